"""Numbers of another tensor, rounded to a narrower dtype: quantized weights as a trainer has loaded them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.kernels.convert import convert
from ramerge.core.tensors.arena import room
from ramerge.core.tensors.reader import Reader
from ramerge.core.tensors.tensor import Origin, Tensor


@dataclass(frozen=True)
class Rounded(Origin):
    """Each element of `exact`, rounded once to the dtype of the tensor that has this origin, to nearest even."""

    exact: Tensor

    @property
    def encoding(self) -> str:
        """See `Origin`."""
        return self.exact.encoding

    @property
    def likeness(self) -> Hashable:
        """See `Origin`."""
        return "rounded", self.exact.likeness

    @property
    def parts(self) -> Sequence[Tensor]:
        """See `Origin`."""
        return (self.exact,)

    @property
    def grain(self) -> int:
        """See `Origin`."""
        return self.exact.origin.grain

    def scratch(self, tensor: Tensor, elements: int) -> int:
        """See `Origin`."""
        return room(elements * itemsize(self.exact.dtype)) + self.exact.scratch(elements)

    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: NDArray[np.uint8]) -> None:
        """See `Origin`."""
        exact = reader.arena.take((stop - start) * itemsize(self.exact.dtype))
        reader.read(self.exact, start, stop, exact)
        convert(self.exact.dtype, exact, tensor.dtype, out, stop - start)


def rounded(tensor: Tensor, dtype: str) -> Tensor:
    """The tensor with its elements rounded to a narrower dtype."""
    return Tensor(tensor.name, dtype, tensor.shape, Rounded(tensor))
