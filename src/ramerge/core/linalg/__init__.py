"""Linear algebra of whole matrices, written once for NumPy and torch: spectra, filters, and least squares.

solver             runs a solution on NumPy or on torch with a GPU: created by `engine/worker`, called by methods; tests
                   whether a device is fast and accurate, for `planning/resources`
arrays             the few functions that differ between NumPy and torch: for this room and for methods
Mathematics, called by methods:

spectral           singular vectors, polar factors, and sums, norms and products of matrices: for all spectral methods;
                   inverse roots of Gram matrices, for `methods/psa` and its own polar factors
curvature          solves WUDI's objective by a filter of its spectrum: for `methods/swudi` and `methods/core`
wudi               minimizes WUDI's objective: for `methods/wudi`
core_coefficients  coefficients that preserve each agent's effect in its leading directions: for `methods/core` and
                   `analysis/cores`
"""
