"""What one read of the inputs counts for an analysis, tensor by tensor, and how tensors add up to parts of a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels import fixed
from ramerge.kernels import task_vector_statistics as kernel
from ramerge.kernels.formats import Loop
from ramerge.kernels.piece import Piece
from ramerge.methods.base import Counts, Statistic
from ramerge.methods.moved import thresholds

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Tally:
    """Integers and exact sums over a part of the model; N agents, E epsilons. Tallies add up.

    Attributes:
        elements: elements of floating-point tensors that the method merges.
        shared: shape (N, N): elements that agent t moved, by how many others did, 0 to N - 1.
        both: shape (N, N): elements that two agents moved.
        agree: shape (N, N): those of them that both moved in the same direction.
        by_epsilon: shape (E, 2, N): elements moved by more than each epsilon, and moved only by this agent.
        exponents: shape (N, EXPONENT_BINS): elements by the float32 exponent of |tau|.
        ulps: shape (N, ULP_BINS): elements by |tau| in units of the base's last place.
        fates: shape (3, N, 4): what RAM, the mean, and the merge that was asked for leave of each agent's moved
            elements.
        limbs: the sums of `kernels.anatomy.Layout.sums`, as `fixed` has them.
    """

    elements: int
    shared: Integers
    both: Integers
    agree: Integers
    by_epsilon: Integers
    exponents: Integers
    ulps: Integers
    fates: Integers
    limbs: Integers = field(repr=False)

    @staticmethod
    def total(tallies: Iterable[Tally], agents: int, epsilons: int) -> Tally:
        """The sum of several."""
        total = blank(agents, epsilons)
        elements = 0
        for tally in tallies:
            elements += tally.elements
            for array in fields(Tally)[1:]:
                getattr(total, array.name)[...] += getattr(tally, array.name)
        return Tally(elements, **{array.name: getattr(total, array.name) for array in fields(Tally)[1:]})

    @cached_property
    def sums(self) -> dict[str, NDArray[np.float64]]:
        """The sums of `kernels.anatomy.Layout.sums`, each rounded once."""
        shapes = kernel.TallyLayout(len(self.both)).sums
        flat = fixed.decode(self.limbs)
        return {name: flat[part].reshape(shapes[name]) for name, part in kernel.slices(shapes).items()}


def blank(agents: int, epsilons: int) -> Tally:
    """Nothing counted."""
    n, layout = agents, kernel.TallyLayout(agents)
    shapes = {
        "shared": (n, n),
        "both": (n, n),
        "agree": (n, n),
        "by_epsilon": (epsilons, 2, n),
        "exponents": layout.counts["exponents"],
        "ulps": layout.counts["ulps"],
        "fates": layout.counts["fates"],
        "limbs": (kernel.size_of(layout.sums), fixed.LIMBS),
    }
    return Tally(0, **{name: np.zeros(shape, np.int64) for name, shape in shapes.items()})


@dataclass(frozen=True)
class Anatomy(Statistic):
    """Everything that `ramerge analyze` counts, of pieces that have been merged. Its result is a `Tally`.

    Attributes:
        agents: how many the recipe has.
        epsilon: an element has moved where |tau| > epsilon (section 3.1); in units of what `after` measures of each
            agent, if that must be known first.
        epsilons: those for which moved and unique elements are counted as well.
    """

    agents: int = field(kw_only=True)
    epsilon: float = 1e-5
    epsilons: tuple[float, ...] = ()

    def blank(self, agents: int) -> Counts:
        """int64: the counts of the kernel, those by epsilon, and limbs of its sums."""
        return np.zeros(self._slices.size, np.int64)

    @property
    def _slices(self) -> _Slices:
        return _slices(self.agents, len(self.epsilons))

    def count(self, piece: Piece, known: Any, counts: Counts) -> bool:
        """See `Statistic.count`."""
        agents, at = self.agents, self._slices
        moved = thresholds(self.epsilon, known)
        sums = np.zeros(kernel.size_of(at.layout.sums), np.float64)
        found = kernel.tables(agents)

        def observe(loop: Loop, inputs: list[Any], merged: Any) -> bool:
            return kernel.survey(
                loop,
                inputs,
                merged,
                moved,
                self.epsilons,
                piece.out_format,
                found,
                counts[at.by_epsilon],
                counts[at.integers],
                sums,
            )

        flagged = piece.compare(observe)
        kernel.fold(found, counts[at.integers])
        fixed.encode(sums, counts[at.limbs].reshape(-1, fixed.LIMBS))
        return flagged

    def finish(self, total: Integers, elements: int, known: Any) -> Tally:
        """See `Statistic.finish`."""
        at = self._slices
        found = {
            name: total[at.integers][part].reshape(at.layout.counts[name])
            for name, part in kernel.slices(at.layout.counts).items()
        }
        found["masks"][0] += elements - found["masks"].sum()
        for histogram in (found["exponents"], found["ulps"]):
            histogram[:, 0] += elements - histogram.sum(1)
        shared, both = _sharing(found["masks"], at.layout.agents)
        return Tally(
            elements=elements,
            shared=shared,
            both=both,
            agree=found["agree"].copy(),
            by_epsilon=total[at.by_epsilon].reshape(len(self.epsilons), 2, -1).copy(),
            exponents=found["exponents"].copy(),
            ulps=found["ulps"].copy(),
            fates=found["fates"].copy(),
            limbs=total[at.limbs].reshape(-1, fixed.LIMBS).copy(),
        )


@dataclass(frozen=True)
class _Slices:
    """Where what is counted lies in one array."""

    agents: int
    epsilons: int

    @cached_property
    def layout(self) -> kernel.TallyLayout:
        return kernel.TallyLayout(self.agents)

    @cached_property
    def integers(self) -> slice:
        return slice(0, kernel.size_of(self.layout.counts))

    @cached_property
    def by_epsilon(self) -> slice:
        start = self.integers.stop
        return slice(start, start + self.epsilons * 2 * self.agents)

    @cached_property
    def limbs(self) -> slice:
        start = self.by_epsilon.stop
        return slice(start, start + kernel.size_of(self.layout.sums) * fixed.LIMBS)

    @property
    def size(self) -> int:
        return int(self.limbs.stop)


_slices = cache(_Slices)


def _sharing(masks: Integers, agents: int) -> tuple[Integers, Integers]:
    """From elements by the set of agents that moved them: by number of other movers, and by pairs."""
    sets = np.arange(len(masks))
    member = ((sets[:, None] >> np.arange(agents)) & 1).astype(bool)
    others = member.sum(1) - 1
    shared, both = np.zeros((agents, agents), np.int64), np.zeros((agents, agents), np.int64)
    for t in range(agents):
        np.add.at(shared[t], others[member[:, t]], masks[member[:, t]])
        both[t] = (masks[:, None] * (member & member[:, t : t + 1])).sum(0)
    return shared, both
