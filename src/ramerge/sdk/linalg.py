"""Whole matrices, on NumPy or torch: Gram matrices and spectra.

>>> import numpy as np
>>> from ramerge.sdk.linalg import spectral
>>> spectral.gram(np.array([[3.0, 4.0]])).tolist()  # A A'
[[25.0]]
"""

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array

__all__ = [
    "Array",
    "spectral",
]
