"""The factors of a module in a LoRA adapter, and the model's parameter that they fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramerge.core.tensors.lowrank import Factor
from ramerge.core.tensors.origins import reshaped
from ramerge.core.tensors.tensor import Tensor


@dataclass(frozen=True)
class Pair:
    """The factors of a module: A, of shape (rank * experts, in), and B, of shape (out, rank * experts).

    Stacked, those of a projection of all experts, A is (experts, rank, in), and B (experts, out, rank). One that all
    experts share is a stack of one.
    """

    module: str
    a: Tensor
    b: Tensor
    is_embedding: bool

    @property
    def depth(self) -> int:
        """How many layers of PEFT are inside of this one: a module has one for each parameter that it targets."""
        return self.module.count(".base_layer")

    @property
    def plain(self) -> str:
        """The module's name without PEFT's layers."""
        return self.module.replace(".base_layer", "")

    @property
    def is_stacked(self) -> bool:
        """Whether the factors have a dimension of experts."""
        return len(self.a.shape) == 3

    def rank(self, experts: int) -> int:
        """The rank of each of so many experts."""
        return self.a.shape[0] // experts

    def factors(self, experts: int, *, transposed: bool, expert: int = 0, row: int = 0) -> tuple[Factor, Factor, int]:
        """Left and right factor from an expert and a row on, and the rank.

        A has the experts one after the other, in B each rank has all experts side by side. Of several experts, or of
        one whose factors are all there are.
        """
        rank, width = self.rank(experts), self.a.shape[1]
        a = Factor(self.a, index=1, rank=width, expert=rank * width, first=expert * rank * width)
        b = Factor(self.b, index=rank * experts, rank=experts, expert=1, first=expert)
        left, right = (a, b) if transposed else (b, a)
        if row:
            left = Factor(left.tensor, left.index, left.rank, left.expert, left.first + row * left.index)
        return left, right, rank

    def of_stack(self, *, transposed: bool, expert: int, row: int) -> tuple[Factor, Factor]:
        """Left and right factor of a stack, from an expert and a row on; `row` applies without transposition."""
        (_, rank, width), out = self.a.shape, self.b.shape[1]
        a_step = rank * width if self.a.shape[0] > 1 else 0
        b_step = out * rank if self.b.shape[0] > 1 else 0
        a = Factor(self.a, index=1, rank=width, expert=a_step, first=expert * a_step)
        b = Factor(self.b, index=rank, rank=1, expert=b_step, first=expert * b_step + row * rank)
        return (a, b) if transposed else (b, a)

    @property
    def as_stack(self) -> Pair:
        """The same factors as a stack of one, if they are no stack."""
        if self.is_stacked:
            return self
        a, b = (reshaped(factor, (1, *factor.shape)) for factor in (self.a, self.b))
        return replace(self, a=a, b=b)


@dataclass(frozen=True)
class AdaptedParameter:
    """A parameter that PEFT targets by name.

    Attributes:
        shape: (experts, rows, columns), or (rows, columns).
        parts: the base's tensors that make it up: names with expert, None for all experts, and first row.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[tuple[str, int | None, int], ...]

    @property
    def experts(self) -> int:
        """How many experts the parameter stacks; 1 for a matrix."""
        return self.shape[0] if len(self.shape) == 3 else 1

    def orientations(self, pair: Pair) -> set[bool]:
        """Whether the factors fit as they are (False), and transposed (True)."""
        (high, wide), (out, width) = self.shape[-2:], (pair.b.shape[0], pair.a.shape[1])
        if pair.a.shape[0] % self.experts:
            return set()
        plain = {False} if (out, width) == (high, wide) else set[bool]()
        return plain | ({True} if (width, out) == (high, wide) and len(self.shape) == 3 else set())
