"""Figures by layer and role for the heat map. They are added up block by block, so they can be shown while counting."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from ramerge import Progress
from ramerge.analysis.parts import part_of
from ramerge.analysis.task_vector_statistics import TaskVectorStatistics
from ramerge.analysis.tensor_roles import ROLES, role_of
from ramerge.core.engine.result_codec import BlockResult
from ramerge.core.engine.warn import effects
from ramerge.core.recipe.layers import LayerId, layer_of
from ramerge.sdk.methods import Counts
from ramerge.sdk.plans import MergePlan
from ramerge.sdk.progress import Listener

OUTSIDE = "outside"
"""The layer of tensors outside of all layers."""

_SECONDS_BETWEEN = 0.5
_Key = tuple[bool, LayerId | None, int]


@dataclass(frozen=True)
class HeatCell:
    """A cell of the heat map: all tensors of a role in a layer. Tuples have an entry for each agent, None without
    elements.

    Attributes:
        layer: the layer's number, with the name of its stack if there are several, or `outside`.
        role: one of `tensor_roles.ROLES`.
        tensors: the number of tensors.
        elements: the number of their elements.
        active: elements that the agent moved.
        unique: elements that only this agent moved.
        sign_agreement: the share of elements moved by this agent and another that both moved in the same
            direction, over all other agents.
        precision_loss: the share of the agent's updates that rounding the merge to the output's dtype erases.
        effective_lambda: the part of the agent's unique updates that is in the output, measured on a sample.
    """

    layer: str
    role: str
    tensors: int
    elements: int
    active: tuple[int, ...]
    unique: tuple[int, ...]
    sign_agreement: tuple[float | None, ...]
    precision_loss: tuple[float | None, ...]
    effective_lambda: tuple[float | None, ...]


@dataclass(frozen=True)
class CellFigures(Progress):
    """The progress of `analyze`, with all cells of the heat map as counted so far."""

    part: Mapping[str, object] = field(default_factory=dict)
    cells: Sequence[Mapping[str, object]] = ()
    epsilon: float | None = None
    relative_epsilon: float | None = None


@dataclass
class _CellTotals:
    """Running totals for a cell."""

    counts: Counts
    rounding: Counts | int = 0
    elements: int = 0
    tensors: set[int] = field(default_factory=set)


class CellCounts:
    """Counts the heat map: adds up blocks, and notifies a listener twice a second."""

    def __init__(self, plan: MergePlan, statistics: TaskVectorStatistics, listen: Listener) -> None:
        self._plan, self._statistics, self._listen = plan, statistics, listen
        self._sums: dict[_Key, _CellTotals] = {}
        self._last_event = time.monotonic()
        tensors = [tensor for tensor in plan.tensors if tensor.merged]
        self._total = sum(tensor.base.elements for tensor in tensors)
        stacks = {layer.stack for tensor in tensors if (layer := layer_of(tensor.name)) is not None}
        self._several = len(stacks) > 1

    def __call__(self, result: BlockResult) -> None:
        """Add the counts of a block."""
        index = result.block.tensor
        name = self._plan.tensors[index].name
        layer = layer_of(name)
        key = layer is None, layer, ROLES.index(role_of(name))
        total = self._sums.setdefault(key, _CellTotals(np.zeros_like(self._statistics.blank(self._statistics.agents))))
        total.counts += result.counted[self._statistics]
        total.rounding = total.rounding + (0 if result.rounding is None else result.rounding[0])
        total.elements += result.elements
        total.tensors.add(index)
        if (now := time.monotonic()) - self._last_event > _SECONDS_BETWEEN:
            self._last_event = now
            elements = sum(one.elements for one in self._sums.values())
            nothing = self._statistics.blank(self._statistics.agents)
            counts = sum((one.counts for one in self._sums.values()), start=nothing)
            tensors = len(set().union(*(one.tensors for one in self._sums.values())))
            tally = self._statistics.finish(counts, elements, None)
            part = part_of("model", tensors, tally, tuple(self._plan.inputs.agents), self._statistics.epsilons)
            cells = [asdict(cell) for cell in self.cells()]
            epsilons = (None, self._statistics.epsilon) if self._statistics.after else (self._statistics.epsilon, None)
            self._listen(CellFigures("figures", elements, self._total, "elements", "", asdict(part), cells, *epsilons))

    def cells(self) -> tuple[HeatCell, ...]:
        """Return all cells of the heat map with a counted block, by layer and role."""
        return tuple(
            self._heat_cell(key, self._sums[key])
            for key in sorted(self._sums, key=lambda key: (key[0], key[1] or (), key[2]))
        )

    def _heat_cell(self, key: _Key, total: _CellTotals) -> HeatCell:
        _, layer, role = key
        tally = self._statistics.finish(total.counts, total.elements, None)
        rounding_effects = (
            effects(total.rounding) if not isinstance(total.rounding, int) and self._plan.rounds_updates else []
        )
        name = OUTSIDE if layer is None else f"{layer.stack} {layer.number}" if self._several else str(layer.number)
        agents = range(len(self._plan.inputs.agents))
        both, agree = ((pairs.sum(1) - pairs.diagonal()).tolist() for pairs in (tally.both, tally.agree))
        return HeatCell(
            layer=name,
            role=ROLES[role],
            tensors=len(total.tensors),
            elements=total.elements,
            active=tuple(tally.shared.sum(1).tolist()),
            unique=tuple(tally.shared[:, 0].tolist()),
            sign_agreement=tuple(agree[t] / both[t] if both[t] else None for t in agents),
            precision_loss=tuple(one["erased_share"] if one["updates"] else None for one in rounding_effects)
            or (None,) * len(agents),
            effective_lambda=tuple(one["effective_lambda"] for one in rounding_effects) or (None,) * len(agents),
        )
