"""Tensors rounded to a narrower dtype: quantized weights as a trainer has loaded them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.kernels.convert import convert
from ramerge.core.tensors.arena import room
from ramerge.core.tensors.reader import Reader
from ramerge.core.tensors.tensor import Origin, Tensor


@dataclass(frozen=True)
class Rounding(Origin):
    """The elements of `exact`, rounded once (half to even) to the dtype of the tensor with this origin."""

    exact: Tensor

    @property
    @override
    def encoding(self) -> str:
        return self.exact.encoding

    @property
    @override
    def likeness(self) -> Hashable:
        return "rounded", self.exact.likeness

    @property
    @override
    def parts(self) -> Sequence[Tensor]:
        return (self.exact,)

    @property
    @override
    def grain(self) -> int:
        return self.exact.origin.grain

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        return room(elements * itemsize(self.exact.dtype)) + self.exact.scratch(elements)

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: NDArray[np.uint8]) -> None:
        exact = reader.arena.take((stop - start) * itemsize(self.exact.dtype))
        reader.read(self.exact, start, stop, exact)
        convert(self.exact.dtype, exact, tensor.dtype, out, stop - start)


def round_tensor(tensor: Tensor, dtype: str) -> Tensor:
    """A tensor with the elements of another, rounded to a narrower dtype."""
    return Tensor(tensor.name, dtype, tensor.shape, Rounding(tensor))
