"""Rows of the comparison: methods, each with the parameters to try on the validation prompts.

A row with a grid is reported twice: with its defaults, and with the point that is best on the validation prompts. Grids
follow the paper's table 11 where it has one; scales go on to N = 3, because a mean of N agents may need a factor of N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramerge.core.methods.registry import METHODS


@dataclass(frozen=True)
class Row:
    """A method as it is measured.

    Attributes:
        name: what tables call it.
        method: as in a recipe.
        fixed: parameters that do not vary.
        grid: values of parameters that are chosen on the validation prompts; the first of each is the default.
        beyond: whether tasks are asked, too, that no agent was trained on.
    """

    name: str
    method: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    beyond: bool = False

    @property
    def points(self) -> int:
        """How many combinations are tried."""
        product = 1
        for values in self.grid.values():
            product *= len(values)
        return product


_SCALES = (1.0, 0.3, 0.5, 0.7, 1.5, 3.0)
_FEWER = (1.0, 0.5, 1.5)
_GRIDS: dict[str, Mapping[str, Sequence[Any]]] = {
    "ram": {},
    "ram+": {"r": (0.1, 0.05, 0.2, 0.5)},
    "ram+s": {"r": (0.1, 0.05, 0.2, 0.5)},
    "task_arithmetic": {"scale": _SCALES},
    "linear": {},
    "fisher": {"scale": _SCALES},
    "ties": {"density": (0.2, 0.1, 0.5), "scale": _FEWER},
    "dare": {"p": (0.5, 0.1), "scale": (1.0, 0.5, 0.7)},
    "dare_ties": {"p": (0.5, 0.1), "scale": _FEWER},
    "wudi": {"proximity": (1e-5, 1e-10, 1e-2)},
    "della": {"density": (0.5, 0.2, 0.8), "scale": _FEWER},
    "della_linear": {"density": (0.5, 0.8), "scale": (1.0, 0.5, 0.7)},
    "breadcrumbs": {"density": (0.1, 0.3, 0.9), "scale": (1.0, 0.7)},
    "breadcrumbs_ties": {"density": (0.1, 0.3, 0.9), "scale": (1.0, 0.7)},
    "sce": {"select_topk": (1.0, 0.5, 0.1)},
    "multislerp": {},
    "karcher": {},
    "model_stock": {"per": ("tensor", "row")},
    "tsvm": {"scale": _FEWER},
    "iso_c": {"scale": _FEWER},
    "swudi": {"scale": _FEWER},
    "aswudi": {"scale": _FEWER},
    "resmerge": {"scale": (1.0, 1.5, 3.0)},
    "psa": {"scale": _FEWER},
    "iso_cts": {"scale": _FEWER},
    "knots": {"scale": (0.5, 1.0, 1.5)},
}
_OF_TWO = {"slerp": {"t": (0.5, 0.3, 0.7)}, "nuslerp": {}}
NO_MERGE = {
    "arcee_fusion": "takes one agent",
    "isolate": "merges one agent's region, for the table of unique regions",
    **dict.fromkeys(("uniform", "ema", "scored", "extrapolate", "relex"), "is for checkpoints of one run"),
    "passthrough": "copies one model, which the rows of agents show",
}

PAPER = ("task_arithmetic", "fisher", "ties", "dare", "dare_ties")
"""The baselines of the paper's table 1."""
_FEW = {*PAPER, "ram", "ram+", "linear", "wudi"}
ALL = tuple(Row(name, name, grid=grid, beyond=name in _FEW) for name, grid in _GRIDS.items())
TWO = tuple(Row(name, name, grid=grid) for name, grid in _OF_TWO.items())
# a method without a row has not been measured yet
assert {row.method for row in (*ALL, *TWO)} | NO_MERGE.keys() <= METHODS.keys()

FEW = tuple(row for row in ALL if row.name in _FEW)

R = (0.0, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0)
ALPHA = (0.5, 1.0, 2.0, 5.0, 100.0)
EPSILON = (0.0, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3)
ABLATIONS = {
    "r": tuple(Row(f"ram+ r={r:g}", "ram+", {"r": r}) for r in R),
    "alpha": tuple(Row(f"ram+ alpha={alpha:g}", "ram+", {"alpha": alpha}) for alpha in ALPHA),
    "epsilon": tuple(Row(f"ram+ epsilon={epsilon:g}", "ram+", {"epsilon": epsilon}) for epsilon in EPSILON),
}

SHARED_RULES = ("mean", "agree_max", "sum", "rms", "ties")
RULES = (
    *(Row(f"ram shared={rule}", "ram", {"shared": rule}) for rule in SHARED_RULES),
    *(Row(f"ram+ shared={rule}", "ram+", {"shared": rule}) for rule in SHARED_RULES),
    *(Row(f"sum x {scale:g}", "task_arithmetic", {"scale": scale}) for scale in (0.5, 0.8, 1.0)),
)
"""Candidates for a better rule for shared elements, fixed before anything was measured; no parameter is chosen."""


def regions(agents: Sequence[str]) -> tuple[Row, ...]:
    """Figure 3: the unique region of each agent on the base, in full and divided by the number of agents."""
    return tuple(
        Row(f"unique of {agent} x {text}", "isolate", {"agent": agent, "scale": scale})
        for agent in agents
        for text, scale in (("1", 1.0), ("1/N", 1.0 / len(agents)))
    )
