"""Linear algebra of whole matrices, written once for NumPy and torch: spectra, filters, and least squares.

arrays             the few functions that differ between NumPy and torch; where a matrix is solved for
spectral           singular vectors, polar factors, and products of long matrices
curvature          WUDI's objective, by a filter of its spectrum
devices            where a matrix is solved for: NumPy, or torch on a GPU
together           matrices that are solved for at the same time, whose decompositions are stacks
wudi               the minimum of WUDI's objective
core_coefficients  coefficients that keep what each agent does in its leading directions
"""
