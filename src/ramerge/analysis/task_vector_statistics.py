"""The statistic of an analysis, counted tensor by tensor in one read of the inputs; its sums over tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.analysis import survey as kernel
from ramerge.core.kernels import fixed
from ramerge.core.kernels.element_formats import Loop
from ramerge.core.methods.moved import thresholds
from ramerge.sdk.kernels import Piece
from ramerge.sdk.methods import Counts, Statistic

Integers = NDArray[np.int64]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Tally:
    """Counts of an analysis over a part of the model: integers and exact sums; N agents, E epsilons.

    Attributes:
        elements: elements of floating-point tensors that the method merges.
        shared: shape (N, N): elements that agent t moved, by the number of others that moved them too, 0 to N - 1.
        both: shape (N, N): elements that two agents moved.
        agree: shape (N, N): elements that both moved in the same direction.
        by_epsilon: shape (E, 2, N): elements that the agent moved by more than each epsilon, and that only it moved so.
        exponents: shape (N, EXPONENT_BINS): elements by the float32 exponent of |tau|.
        ulps: shape (N, ULP_BINS): elements by |tau| in units of the base's last place.
        fates: shape (3, N, 4): the fate of each agent's moved elements under RAM, the mean, and the requested
            merge.
        limbs: the sums of `TallyLayout.sums`, encoded by `kernels.fixed`.
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

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Tally)})

    @cached_property
    def sums(self) -> dict[str, NDArray[np.float64]]:
        """The sums of `TallyLayout.sums`, each rounded once."""
        return _split_by_name(fixed.decode(self.limbs), kernel.TallyLayout(len(self.both)).sums)


@dataclass(frozen=True)
class TaskVectorStatistics(Statistic):
    """The statistic that `ramerge analyze` counts on merged pieces. Its result is a `Tally`.

    Attributes:
        epsilon: an element has moved where |tau| > epsilon (section 3.1); relative to what the statistic `after`
            measures for each agent, if set.
        epsilons: further thresholds at which moved and unique elements are counted.
    """

    agents: int = field(kw_only=True)
    epsilon: float = 1e-5
    epsilons: tuple[float, ...] = ()

    @property
    def _count_shapes(self) -> Shapes:
        return _tally_shapes(self.agents, len(self.epsilons))

    @property
    def nothing(self) -> Tally:
        """Return the tally of no elements."""
        return self.finish(self.blank(self.agents), 0, None)

    def blank(self, agents: int) -> Counts:
        return np.zeros(kernel.size_of(self._count_shapes), np.int64)

    def count(self, piece: Piece, magnitudes: Any, counts: Counts) -> bool:
        layout, split = kernel.TallyLayout(self.agents), _split_by_name(counts, self._count_shapes)
        integers = counts[: kernel.size_of(layout.counts)]
        epsilons = thresholds(self.epsilon, magnitudes)
        sums = np.zeros(kernel.size_of(layout.sums), np.float64)
        tables = kernel.tables(self.agents)

        def observe(loop: Loop, inputs: list[Any], merge: Any) -> bool:
            by_epsilon = split["by_epsilon"].reshape(-1)
            return kernel.survey(
                loop, inputs, merge, epsilons, self.epsilons, piece.out_format, tables, by_epsilon, integers, sums
            )

        is_nonfinite = piece.compare(observe)
        kernel.fold(tables, integers, self.agents)
        fixed.encode(sums, split["limbs"])
        return is_nonfinite

    def finish(self, total: Integers, elements: int, magnitudes: object) -> Tally:
        tables = _split_by_name(total.copy(), self._count_shapes)
        masks = tables.pop("masks")
        # What no agent changed is not counted.
        masks[0] += elements - masks.sum()
        for histogram in (tables["exponents"], tables["ulps"]):
            histogram[:, 0] += elements - histogram.sum(1)
        shared_counts, both = _sharing_counts(masks, self.agents)
        return Tally(elements=elements, shared=shared_counts, both=both, **tables)


@cache
def _tally_shapes(agents: int, epsilons: int) -> Shapes:
    """The contents of a tally as one array, in order: the kernel's counts, counts by epsilon, limbs of its sums."""
    layout = kernel.TallyLayout(agents)
    return {
        **layout.counts,
        "by_epsilon": (epsilons, 2, agents),
        "limbs": (kernel.size_of(layout.sums), fixed.LIMBS),
    }


def _split_by_name(array: NDArray[Any], shapes: Shapes) -> dict[str, NDArray[Any]]:
    return {name: array[part].reshape(shapes[name]) for name, part in kernel.slices(shapes).items()}


def _sharing_counts(masks: Integers, agents: int) -> tuple[Integers, Integers]:
    """Convert elements by the set of agents that moved them into counts by number of other movers, and by pairs."""
    sets = np.arange(len(masks))
    member = ((sets[:, None] >> np.arange(agents)) & 1).astype(bool)
    others = member.sum(1) - 1
    shared_counts, both = np.zeros((agents, agents), np.int64), np.zeros((agents, agents), np.int64)
    for t in range(agents):
        np.add.at(shared_counts[t], others[member[:, t]], masks[member[:, t]])
        both[t] = (masks[:, None] * (member & member[:, t : t + 1])).sum(0)
    return shared_counts, both
