"""A tensor of a checkpoint: name, dtype, shape, and the origin of its elements.

A trainer may store a tensor whole, in shards, as an adapter on a base, or as codes and scales. Each of these is an
`Origin`: an expression over stored extents. Formats build origins; a reader evaluates them for the requested block.
Code outside of this package rarely needs to know the origin of a tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ramerge.core.foundation.dtypes import FLOATS, itemsize
from ramerge.core.storage.location import Location

if TYPE_CHECKING:
    from ramerge.core.tensors.reader import Reader


class Origin(ABC):
    """The source of a tensor's elements. Subclasses are frozen dataclasses of files, numbers and tensors."""

    @property
    def encoding(self) -> str:
        """The format of the codes from which elements are decoded, such as `F8_E4M3`; empty if they are not codes."""
        return ""

    @property
    def likeness(self) -> Hashable:
        """A key that is equal for origins for which reading a tensor of one dtype and shape takes the same memory."""
        return id(self)

    @property
    def parts(self) -> Sequence[Tensor]:
        """The tensors from which elements are taken or computed; the last one has the model's usual dtype."""
        return ()

    def usual_dtype(self, tensor: Tensor) -> str:
        """The dtype that the tensor has in the model; it may be narrower than the dtype in which it is computed."""
        return self.parts[-1].usual_dtype if self.parts else tensor.dtype

    def leaves(self) -> Iterator[Stored]:
        """Yield the stored extents that a read of the whole tensor reads; at least one."""
        for part in self.parts:
            yield from part.origin.leaves()

    @property
    def grain(self) -> int:
        """The number of elements that are read together: blocks should begin and end at multiples of it."""
        return 1

    @property
    def below(self) -> Tensor | None:
        """The tensor of which it stores changes, which may itself be stored as changes; None if it stores none."""
        return None

    def is_change_of(self, other: Tensor) -> bool:
        """Whether it stores changes of this tensor, in one or several steps, so that `add_changes` can read them."""
        return False

    def changes_of(self, other: Tensor) -> Iterator[Stored]:
        """Yield the stored extents of the changes of this tensor."""
        yield from ()

    def scratch_of_changes(self, tensor: Tensor, other: Tensor, elements: int) -> int:
        """The most bytes of temporary memory that `add_changes` takes for this many elements."""
        return 0

    def add_changes(
        self,
        reader: Reader,
        other: Tensor,
        chain: Sequence[tuple[Tensor, float]],
        start: int,
        stop: int,
        held: NDArray[np.uint8],
        total: NDArray[Any],
    ) -> None:
        """Read the changes of elements `start:stop`, and add them to a sum.

        Args:
            reader: reads the changes; its arena has temporary memory.
            other: the tensor of which the first tensor of the chain is a change.
            chain: tensors, each a change of the one before, with a factor for its changes; the first has this origin.
            start: a multiple of `grain`.
            stop: a multiple of `grain`, or the end of the tensor.
            held: the elements of `other`; overwritten by those of the last tensor in the chain.
            total: the sum, float32, or float64 for F64 tensors; the changes times their factors are added to it.

        Raises:
            CheckpointError: as for `read`, or `held` is not the tensor that was changed.
        """
        raise NotImplementedError

    def ahead(self, tensor: Tensor, start: int, stop: int) -> Iterator[Stored]:
        """Yield extents from which a read of elements `start:stop` takes many small pieces; their ends are approximate.

        If they are remote, each extent is requested as a whole.
        """
        yield from ()

    @abstractmethod
    def scratch(self, tensor: Tensor, elements: int) -> int:
        """The most bytes of temporary memory that a read of this many elements takes from the reader's arena."""

    @abstractmethod
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with elements `start:stop` of the tensor with this origin, in row-major order.

        The bits of an element must not depend on `start` and `stop`. Temporary memory comes from `reader.arena`.

        Raises:
            CheckpointError: a file ends early, cannot be read, or has changed.
        """


@dataclass(frozen=True)
class Stored(Origin):
    """Elements stored in a file, in row-major order.

    Attributes:
        path: the file.
        offset: the byte of the file where the elements begin.
        nbytes: the number of bytes.
    """

    path: Location
    offset: int
    nbytes: int

    @property
    @override
    def likeness(self) -> Hashable:
        return ""

    @override
    def leaves(self) -> Iterator[Stored]:
        yield self

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        return 0

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: NDArray[np.uint8]) -> None:
        reader.files.fill(self.path, self.offset + start * itemsize(tensor.dtype), out)


@dataclass(frozen=True)
class Tensor:
    """A tensor of a model, whose elements are read when they are needed.

    Attributes:
        name: its name in the model.
        dtype: its dtype as safetensors calls it, such as `BF16`.
        shape: its shape.
        origin: the source of its elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    origin: Origin

    @property
    def elements(self) -> int:
        """The number of elements; 1 for a scalar, 0 for an empty tensor."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether it has a floating-point dtype that can be merged."""
        return self.dtype in FLOATS

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.elements * itemsize(self.dtype)

    @property
    def path(self) -> Location:
        """A file with the tensor or a part of it; for a tensor changed by an adapter, the adapter's file."""
        return next(self.origin.leaves()).path

    @property
    def place(self) -> str:
        """Text with the files from which its elements come, for messages."""
        first, *others = dict.fromkeys(leaf.path for leaf in self.origin.leaves())
        more = f" or {others[0]}" if len(others) == 1 else f" or one of {len(others)} other files" if others else ""
        return f"{first}{more}"

    @property
    def encoding(self) -> str:
        """The format of the codes from which its elements are decoded; empty if they are not codes."""
        return self.origin.encoding

    @property
    def likeness(self) -> Hashable:
        """A key that is equal for tensors whose reads take the same memory. Most tensors of a model share one."""
        return self.dtype, self.shape, self.origin.likeness

    @property
    def usual_dtype(self) -> str:
        """The dtype that the tensor has in the model; the base's dtype for a tensor that an adapter changes."""
        return self.origin.usual_dtype(self)

    def scratch(self, elements: int) -> int:
        """The most bytes of temporary memory that a read of this many elements takes."""
        return self.origin.scratch(self, min(elements, self.elements))
