"""Whole matrices, on NumPy or torch: Gram matrices, spectra, the common core of several matrices.

>>> import numpy as np
>>> from ramerge.sdk.linalg import spectral
>>> spectral.gram(np.array([[3.0, 4.0]])).tolist()  # A A'
[[25.0]]
"""

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array
from ramerge.core.linalg.core_coefficients import acts, coefficients, movers

__all__ = ["Array", "acts", "coefficients", "movers", "spectral"]
