"""Statistics that are float64 sums over elements. Results do not depend on blocks, threads or processors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels.element_formats import Loop, Words
from ramerge.core.kernels.elementwise import Element, Inputs
from ramerge.core.kernels.fixed import CHUNK, WIDE_LIMBS, decode, encode
from ramerge.core.kernels.piece import Piece
from ramerge.core.kernels.sums import sums
from ramerge.core.methods.base import Counts, S, Statistic

Floats = NDArray[np.float64]


_LARGEST = 2.0**300


@dataclass(frozen=True)
class Summand:
    """A formula of one element and its arguments, as `kernels.sums` takes them."""

    value: Element
    each: Sequence[Sequence[float]] = ()
    common: Sequence[float] = ()


@dataclass(frozen=True)
class Sums(Statistic[S]):
    """Sums over a part of the model: `kernels.sums` sums chunks, and their sums are added as fixed-point integers.

    The last row of the counts holds the number of sums of chunks that are out of range.
    """

    chunk = CHUNK
    kinds: ClassVar[int] = 1

    @staticmethod
    @abstractmethod
    def terms(agents: int) -> Sequence[tuple[int, int]]:
        """The pairs of agents whose values are multiplied and summed for each summand, as `kernels.sums` takes them."""

    @abstractmethod
    def summands(self, required: Any) -> list[Summand]:
        """The formulas whose values are summed, given the result of `after`."""

    def blank(self, agents: int) -> Counts:
        return np.zeros((self.kinds * len(self.terms(agents)) + 1, WIDE_LIMBS), np.int64)

    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        agents = piece.which.agents
        selection, terms = Inputs(agents, piece.which.base), self.terms(agents)

        def kernel(loop: Loop, inputs: list[Words]) -> bool:
            results = [
                sums(each.value, loop, inputs, selection, terms, CHUNK, piece.elements, each.each, each.common)
                for each in self.summands(required)
            ]
            self.enter(np.concatenate([terms_of for terms_of, _ in results], 1), counts)
            return results[0][1]

        return piece.observe(kernel)

    def enter(self, values: Floats, counts: Counts) -> None:
        """Add sums of chunks, of shape (chunks, terms), to the counts."""
        usable = np.abs(values) < _LARGEST  # false for NaN, too
        counts[-1, 0] += np.count_nonzero(~usable)
        for row in np.where(usable, values, 0):
            encode(row, counts[:-1])

    def read(self, total: NDArray[np.int64]) -> Floats:
        """The sums, in the order of terms; all NaN if a chunk's sum was out of range."""
        sums = decode(total[:-1])
        return np.full_like(sums, np.nan) if total[-1, 0] else sums
