"""Linear algebra of whole matrices, written once for NumPy and torch: spectra, filters, and least squares.

solver             where a matrix is solved for, by NumPy or by torch on a GPU: made by `engine/worker`, called by
                   methods; whether a device is fast and right, for `planning/resources`
arrays             the few functions that differ between NumPy and torch: for this room and for methods

Mathematics, which methods call:

spectral           singular vectors, polar factors, and sums, norms and products of matrices: for all spectral methods;
                   inverse roots of Gram matrices, for `methods/psa` and its own polar factors
curvature          WUDI's objective, solved by a filter of its spectrum: for `methods/swudi` and `methods/core`
wudi               the minimum of WUDI's objective: for `methods/wudi`
core_coefficients  coefficients that keep what each agent does in its leading directions: for `methods/core` and
                   `analysis/cores`
"""
