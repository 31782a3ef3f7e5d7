"""What a method is: its paper, its parameters, and pure functions on pieces of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from ramerge.kernels.piece import Piece

Counts = NDArray[np.int64]


class Parameters(BaseModel):
    """A method's parameters, each stated once: type, range, default, description."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @property
    def counted_over(self) -> str:
        """What statistics are counted over: `model`, `layer` or `tensor`."""
        return "model"


@dataclass(frozen=True)
class AgentCounts:
    """What one agent moved, in elements.

    Attributes:
        total: elements that were compared.
        active: elements it moved.
        unique: elements that it alone moved.
    """

    total: int
    active: int
    unique: int

    @property
    def shared(self) -> int:
        """Elements that it moved and others too."""
        return self.active - self.unique

    @property
    def density(self) -> float:
        """Active over total, 1 - sparsity (section 3.1); 0 for nothing."""
        return self.active / self.total if self.total else 0.0


@dataclass(frozen=True)
class Method:
    """A merging method.

    Attributes:
        name: as in recipes.
        title: in words.
        source: paper and equations.
        formula: in one line.
        parameters: the model that states and checks its parameters.
        presets: named values of parameters.
        needs_counts: whether merging needs the counts of all pieces, which takes a pass of its own.
        count: adds to counts (int64, shape (2, agents): active, unique) what a piece holds; True if not finite.
        rescale: lambda of an agent from its counts over the scope.
        merge: writes a piece's result. Takes lambdas if `needs_counts`, and counts on the way where an array is given;
            True if the result is not finite, never if `lenient`.
    """

    name: str
    title: str
    source: str
    formula: str
    parameters: type[Any]
    presets: Mapping[str, Mapping[str, object]]
    needs_counts: bool
    count: Callable[[Piece, Any, Counts], bool]
    rescale: Callable[[AgentCounts, Any], float]
    merge: Callable[[Piece, Any, Sequence[float] | None, Counts | None, bool], bool]
