"""Which agents are merged with which rows, and how large everything is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from lab.rows import ABLATIONS, ALL, FEW, RULES, TWO, Row, regions
from lab.tasks import NAMES
from lab.training import Practice, Schooling


@dataclass(frozen=True)
class Setting:
    """Agents to merge.

    Attributes:
        name: what tables and files call it.
        kind: how the agents were trained, a key of `Sizes.kinds`.
        agents: names of agents to their tasks.
        dtype: of the merged model.
        rows: what is compared.
    """

    name: str
    kind: str
    agents: Mapping[str, str]
    dtype: str
    rows: tuple[Row, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that agents were trained on, each once."""
        return tuple(dict.fromkeys(self.agents.values()))


def _first(count: int) -> dict[str, str]:
    return {name: name for name in NAMES[:count]}


KINDS: Mapping[str, str] = {
    "rl": "RL, SGD, bfloat16 steps",
    "rl-float32": "RL, SGD, float32 steps",
    "sft": "SFT, SGD, bfloat16 steps",
    "rl-adam": "RL, Adam, bfloat16 steps",
    "sft-adam": "SFT, Adam, bfloat16 steps",
}
"""How agents are trained, as a phrase."""
_ABLATED = tuple(row for rows in ABLATIONS.values() for row in rows)
MAIN = "three"
SETTINGS: tuple[Setting, ...] = (
    Setting(MAIN, "rl", _first(3), "bfloat16", (*ALL, *RULES, *_ABLATED, *regions(NAMES[:3]))),
    Setting("five", "rl", _first(5), "bfloat16", (*ALL, *RULES)),
    Setting("three-float32", "rl-float32", _first(3), "float32", (*ALL, *RULES)),
    Setting("three-sft", "sft-adam", _first(3), "bfloat16", (*FEW, *RULES)),
    Setting("two", "rl", _first(2), "bfloat16", (*FEW, *TWO)),
    Setting("four", "rl", _first(4), "bfloat16", FEW),
    Setting("copies", "rl", {**_first(3), "add-2": "add", "add-3": "add"}, "bfloat16", (*FEW, *RULES)),
)


@dataclass(frozen=True)
class Sizes:
    """How much is trained and measured."""

    seeds: int
    schooling: Schooling
    kinds: Mapping[str, Practice]
    validation: int = 150
    test: int = 500
    fisher: int = 64
    settings: tuple[str, ...] = tuple(setting.name for setting in SETTINGS)
    rows: tuple[str, ...] = ()
    tasks: int = len(NAMES)
    of_kind: Mapping[str, int] = field(default_factory=dict)

    def digest(self) -> str:
        """Digest of everything but code that decides the contents of a work folder; more seeds do not change it."""
        plain = asdict(self) | {"seeds": None, "all": [asdict(setting) for setting in self.choice()]}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def choice(self) -> tuple[Setting, ...]:
        """The settings with their rows."""
        return tuple(
            Setting(one.name, one.kind, one.agents, one.dtype, tuple(row for row in one.rows if self._has_row(row)))
            for one in SETTINGS
            if one.name in self.settings
        )

    def _has_row(self, row: Row) -> bool:
        return not self.rows or row.name in self.rows

    def tasks_of(self, kind: str) -> tuple[str, ...]:
        """The tasks that agents of a kind are trained on."""
        return NAMES[: self.of_kind.get(kind, self.tasks)]
