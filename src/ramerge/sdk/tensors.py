"""Tensors: name, dtype, shape and the origin of their elements; readers of many tensors at once.

>>> from ramerge.sdk.tensors import Stored, Tensor
>>> Tensor("bias", "F32", (3,), Stored(Path("bias.npy"), offset=128, nbytes=12)).elements
3
"""

from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.identity import identify, state_of
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.tensor import Origin, Stored, Tensor

__all__ = [
    "Contents",
    "Files",
    "Origin",
    "Reader",
    "Stored",
    "Tensor",
    "identify",
    "state_of",
]
