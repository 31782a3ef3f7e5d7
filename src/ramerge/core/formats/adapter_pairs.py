"""The factors of a module in a LoRA adapter, and the model's parameters that they fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramerge.core.tensors.lowrank import Factor
from ramerge.core.tensors.origins import reshaped
from ramerge.core.tensors.tensor import Tensor


@dataclass(frozen=True)
class Pair:
    """The factors of a module: A of shape (rank * experts, in), and B of shape (out, rank * experts).

    Stacked factors of all experts of a projection are A of shape (experts, rank, in), and B of shape
    (experts, out, rank). A factor that all experts share is a stack of one.
    """

    module: str
    a: Tensor
    b: Tensor
    is_embedding: bool

    @property
    def depth(self) -> int:
        """The number of PEFT layers inside of this layer: a module has a layer for each targeted parameter."""
        return self.module.count(".base_layer")

    @property
    def plain(self) -> str:
        """The module's name without PEFT's wrapper layers."""
        return self.module.replace(".base_layer", "")

    @property
    def is_stacked(self) -> bool:
        """Whether the factors have a dimension of experts."""
        return len(self.a.shape) == 3

    def rank(self, experts: int) -> int:
        """Return the rank of each expert if the factors hold `experts` experts."""
        return self.a.shape[0] // experts

    def factors(self, experts: int, *, transposed: bool, expert: int = 0, row: int = 0) -> tuple[Factor, Factor, int]:
        """Return left and right factor, starting at an expert and a row, and the rank.

        A holds the experts one after another; B holds all experts next to each other for each rank.
        """
        rank, width = self.rank(experts), self.a.shape[1]
        a = Factor(self.a, index=1, rank=width, expert=rank * width, first=expert * rank * width)
        b = Factor(self.b, index=rank * experts, rank=experts, expert=1, first=expert)
        left, right = (a, b) if transposed else (b, a)
        if row:
            left = Factor(left.tensor, left.index, left.rank, left.expert, left.first + row * left.index)
        return left, right, rank

    def factors_of_expert(self, *, transposed: bool, expert: int, row: int) -> tuple[Factor, Factor]:
        """Return left and right factor of a stack, starting at an expert and, if not transposed, a row."""
        (_, rank, width), out = self.a.shape, self.b.shape[1]
        a_step = rank * width if self.a.shape[0] > 1 else 0
        b_step = out * rank if self.b.shape[0] > 1 else 0
        a = Factor(self.a, index=1, rank=width, expert=a_step, first=expert * a_step)
        b = Factor(self.b, index=rank, rank=1, expert=b_step, first=expert * b_step + row * rank)
        return (a, b) if transposed else (b, a)

    @property
    def as_stack(self) -> Pair:
        """The factors as a stack; factors without a dimension of experts become a stack of one."""
        if self.is_stacked:
            return self
        a, b = (reshaped(factor, (1, *factor.shape)) for factor in (self.a, self.b))
        return replace(self, a=a, b=b)


@dataclass(frozen=True)
class AdaptedParameter:
    """A parameter that PEFT targets by name.

    Attributes:
        name: the parameter's name in its module.
        shape: (experts, rows, columns), or (rows, columns).
        parts: the base's tensors that form the parameter: name, expert (None for all experts), and first row.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[tuple[str, int | None, int], ...]

    @property
    def experts(self) -> int:
        """The number of experts that the parameter stacks; 1 for a matrix."""
        return self.shape[0] if len(self.shape) == 3 else 1

    def orientations(self, pair: Pair) -> set[bool]:
        """Return the orientations in which the factors fit: False for as they are, True for transposed."""
        (high, wide), (out, width) = self.shape[-2:], (pair.b.shape[0], pair.a.shape[1])
        if pair.a.shape[0] % self.experts:
            return set()
        plain = {False} if (out, width) == (high, wide) else set[bool]()
        return plain | ({True} if (width, out) == (high, wide) and len(self.shape) == 3 else set())
