"""linalg."""

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array
from ramerge.core.linalg.core import acts, coefficients, movers

__all__ = ["Array", "acts", "coefficients", "movers", "spectral"]
