"""Maps names of adapters on experts to positions of the experts in a base.

Trainers adapt each expert separately (`experts.3.up_proj`, `experts.up_projs.3`) or all together (`experts.w3`). A base
stores a tensor for each expert's projection, for a projection of all experts, or for gate and up of all experts.
Sources: PEFT 0.21, `tinker_cookbook.weights`, SkyRL, Megatron-Bridge, unsloth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ramerge.core.foundation.text import quoted
from ramerge.core.tensors.lowrank import Region
from ramerge.core.tensors.tensor import Tensor

_KINDS = {
    "gate_proj": "gate",
    "w1": "gate",
    "up_proj": "up",
    "w3": "up",
    "down_proj": "down",
    "w2": "down",
    "gate_up_proj": "gate_up",
}
_PROJECTION = "|".join(_KINDS)
_MODULE = re.compile(
    rf"(?P<stem>(?:.*\.)?experts)\.(?:(?P<one>\d{{1,6}})\.(?P<part>{_PROJECTION})|(?P<all>{_PROJECTION})"
    r"|(?P<list>gate_up_proj|gate_proj|up_proj|down_proj)s\.(?P<number>\d{1,6}))"
)
_NUMBER = re.compile(r"\.\d+(?=\.[^.]+\.weight$)")
"""Matches the expert's number in the name of a tensor of a single expert."""
# Names of tensors of single experts; names of tensors of all experts end in `_proj`.
_EACH = {
    "gate_up": (("gate_proj", "up_proj"), ("w1", "w3")),
    "gate": (("gate_proj",), ("w1",)),
    "up": (("up_proj",), ("w3",)),
    "down": (("down_proj",), ("w2",)),
}


class Projection(NamedTuple):
    """A projection of experts, the target of an adapter's module.

    Attributes:
        stem: the name up to `experts`.
        kind: `gate`, `up`, `gate_up` or `down`.
        is_short: whether the name is w1, w2 or w3; w1 is up if experts have no gate.
    """

    stem: str
    kind: str
    is_short: bool


def projection_of(module: str) -> tuple[Projection, int | None] | None:
    """Return the projection that a module changes, and the expert (None for all); None for other modules."""
    match = _MODULE.fullmatch(module)
    if match is None:
        return None
    part = match["part"] or match["list"] or match["all"]
    number = match["one"] or match["number"]
    return Projection(match["stem"], _KINDS[part], part.startswith("w")), int(number) if number else None


@dataclass(frozen=True)
class ExpertPlace:
    """The position of a projection in a base.

    Attributes:
        name: the base's tensor.
        expert: index of the expert; None if the tensor holds all experts.
        shape: shape of one expert's matrix in this tensor.
        row: the projection's row at which the matrix begins.
        half: 0 or 1 for a half of the matrix; None for the whole matrix.
    """

    name: str
    expert: int | None
    shape: tuple[int, ...]
    row: int = 0
    half: int | None = None

    def region(self, out: int, *, transposed: bool, interleaved: bool) -> Region | None:
        """Return rows (columns, if transposed) that hold a projection with `out` rows; None for the whole matrix."""
        if self.half is None:
            return None
        first, step = (self.half, 2) if interleaved else (self.half * out, 1)
        return Region(first, step, out, is_columns=transposed)

    def orientations(self, out: int, width: int) -> set[bool]:
        """Return the orientations in which a projection of this shape fits: False for as it is, True for transposed."""
        out *= 1 if self.half is None else 2
        return {
            transposed for transposed in (False, True) if self.shape == ((width, out) if transposed else (out, width))
        }


@dataclass(frozen=True)
class BaseExperts:
    """Finds projections of experts in a base."""

    base_name: Callable[[str], str | None]
    tensors: Mapping[str, Tensor]

    def places_of(self, projection: Projection) -> list[ExpertPlace]:
        """Return the positions of a projection; empty if the base does not have it.

        Raises:
            ValueError: an expert lacks a matrix that others have, or its tensor is not a matrix.
        """
        stem, kind, is_short = projection
        if is_short and kind in ("gate", "up") and not self._expert_places(stem, "gate"):
            return self._expert_places(stem, "up") if kind == "gate" else []
        return self._expert_places(stem, kind)

    def _expert_places(self, stem: str, kind: str) -> list[ExpertPlace]:
        if (name := self.base_name(f"{stem}.{kind}_proj")) is not None and len(shape := self.tensors[name].shape) == 3:
            return [ExpertPlace(name, None, shape[1:])]
        if kind in ("gate", "up") and (name := self.base_name(f"{stem}.gate_up_proj")) is not None:
            shape = self.tensors[name].shape
            return [ExpertPlace(name, None, shape[1:], half=("gate", "up").index(kind))] if len(shape) == 3 else []
        return self.separate_places(stem, kind)

    def separate_places(self, stem: str, kind: str) -> list[ExpertPlace]:
        """Return the positions of a projection that is stored separately for each expert; empty if it is not."""
        for parts in _EACH[kind]:
            first = [self.base_name(f"{stem}.0.{part}.weight") for part in parts]
            if first[0] is not None:
                count = max(self._expert_counts[_NUMBER.sub(".*", name)] for name in first if name is not None)
                return [place for expert in range(count) for place in self._expert_matrices(stem, expert, parts)]
        return []

    def _expert_matrices(self, stem: str, expert: int, parts: Sequence[str]) -> Iterator[ExpertPlace]:
        row = 0
        for part in parts:
            weight_name = f"{stem}.{expert}.{part}.weight"
            if (name := self.base_name(weight_name)) is None:
                raise ValueError(f"the base lacks {quoted(weight_name)}, which other experts have; is it complete?")
            shape = self.tensors[name].shape
            if len(shape) != 2:
                raise ValueError(f"the base's {quoted(name)} has the shape {list(shape)}, and must be a matrix")
            yield ExpertPlace(name, expert, shape, row)
            row += shape[0]

    @cached_property
    def _expert_counts(self) -> Counter[str]:
        """The number of experts that have a tensor, by the tensor's name without the expert's number."""
        return Counter(_NUMBER.sub(".*", name) for name in self.tensors)
