"""A tensor of a checkpoint: name, dtype, shape, and the origin of its elements.

A trainer may store a tensor whole, in shards, as an adapter on a base, or as codes and scales. Each of these is an
`Origin`: an expression over stored extents. Formats build origins; a reader composes them into the block that is asked
for. Nothing outside of this room knows which origin a tensor has.
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
    """Origin of a tensor's elements. Subclasses are frozen dataclasses of files, numbers and tensors."""

    @property
    def encoding(self) -> str:
        """The format of the codes that the elements are decoded from, such as `F8_E4M3`; empty if there are none."""
        return ""

    @property
    def likeness(self) -> Hashable:
        """Equal for origins from which tensors of one dtype and shape are read in the same memory."""
        return id(self)

    @property
    def parts(self) -> Sequence[Tensor]:
        """The tensors that it consists of. If it is computed in a wider dtype, the last one has that of the model."""
        return ()

    def usual_dtype(self, tensor: Tensor) -> str:
        """The dtype in which the model has the tensor, where it is computed in a wider one."""
        return self.parts[-1].usual_dtype if self.parts else tensor.dtype

    def leaves(self) -> Iterator[Stored]:
        """The stored extents that a read of the whole tensor takes; at least one."""
        for part in self.parts:
            yield from part.origin.leaves()

    @property
    def grain(self) -> int:
        """Elements that are read together: blocks that begin or end between them read more."""
        return 1

    @property
    def below(self) -> Tensor | None:
        """The tensor that it stores changes of, which may be such a tensor itself."""
        return None

    def is_change_of(self, other: Tensor) -> bool:
        """Whether it stores changes of this tensor, in one step or several, which `add_changes` reads."""
        return False

    def changes_of(self, other: Tensor) -> Iterator[Stored]:
        """The stored extents of the changes of this tensor."""
        yield from ()

    def scratch_of_changes(self, tensor: Tensor, other: Tensor, elements: int) -> int:
        """As `scratch`, for `add_changes`."""
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
        """Read the changes of elements `start:stop`, which begin and end at multiples of `grain`, or end the tensor.

        Args:
            reader: reads, and has temporary memory.
            other: the tensor that the first of the chain is a change of.
            chain: tensors, each a change of the one before, and the factors of what they change; the first has this
                origin.
            start, stop: the elements.
            held: those of `other`; becomes those of the last tensor of the chain.
            total: float32, or float64 for F64: the differences, times their factors, are added to it.

        Raises:
            CheckpointError: as for `read`, or `held` is not what was changed.
        """
        raise NotImplementedError

    def ahead(self, tensor: Tensor, start: int, stop: int) -> Iterator[Stored]:
        """Extents in which small pieces lie that a read of elements `start:stop` takes one by one; about, at the ends.

        Where they are remote, they are requested together.
        """
        yield from ()

    @abstractmethod
    def scratch(self, tensor: Tensor, elements: int) -> int:
        """The most bytes of temporary memory that a read of so many elements takes from the reader's arena."""

    @abstractmethod
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with elements `start:stop` of the tensor that has this origin, in row-major
        order. The bits of an element do not depend on `start` and `stop`. Temporary memory comes from `reader.arena`.

        Raises:
            CheckpointError: a file ends early, cannot be read, or has changed.
        """


@dataclass(frozen=True)
class Stored(Origin):
    """Row-major bytes in a file.

    Attributes:
        path: the file.
        offset: byte of the file where they begin.
        nbytes: how many.
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
    """A tensor.

    Attributes:
        name: as a model has it.
        dtype: in safetensors' spelling, such as `BF16`.
        shape: its shape.
        origin: where its elements come from.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    origin: Origin

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar, 0 for an empty tensor."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether merging is defined for its dtype."""
        return self.dtype in FLOATS

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * itemsize(self.dtype)

    @property
    def path(self) -> Location:
        """A file that holds it, or a part of it; for tensors changed by an adapter, the adapter's."""
        return next(self.origin.leaves()).path

    @property
    def place(self) -> str:
        """The files that its elements come from, for messages."""
        first, *others = dict.fromkeys(leaf.path for leaf in self.origin.leaves())
        more = f" or {others[0]}" if len(others) == 1 else f" or one of {len(others)} other files" if others else ""
        return f"{first}{more}"

    @property
    def encoding(self) -> str:
        """The format of the codes that its elements are decoded from; empty if they are stored as they are."""
        return self.origin.encoding

    @property
    def likeness(self) -> Hashable:
        """Equal for tensors that are read in the same memory. A large model has thousands of each kind."""
        return self.dtype, self.shape, self.origin.likeness

    @property
    def usual_dtype(self) -> str:
        """The dtype in which the model has it; the base's for a tensor that an adapter changes."""
        return self.origin.usual_dtype(self)

    def scratch(self, elements: int) -> int:
        """The most bytes of temporary memory that a read of so many elements takes."""
        return self.origin.scratch(self, min(elements, self.elements))
