"""Rows of numbers for the page's charts and tables, from `Analysis.to_dict()`; labels of thresholds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ramerge.analysis.survey import FATES
from ramerge.analysis.tables import Row
from ramerge.analysis.tensor_roles import ROLES

Values = Mapping[str, Any]

MOVED_LABEL, CHANGED_LABEL = "moved", "changed"


def merges(analysis: Values) -> dict[str, str]:
    """Map keys of `fates` to titles: RAM, averaging, and the recipe's own method if it is a different one."""
    own = {} if analysis["method"] == "ram" else {"merge": analysis["method"]}
    return {"ram": "RAM", "average": "averaging", **own}


def agents_of(analysis: Values) -> list[str]:
    """Return the names of the agents of an analysis, in the recipe's order."""
    return [agent["name"] for agent in analysis["model"]["agents"]]


def density(analysis: Values) -> list[Row]:
    """Return rows for the chart of densities: the share of all elements that each agent moved, and changed."""
    return [
        {"agent": agent["name"], "measure": measure, "share": agent[share], "elements": agent[count]}
        for agent in analysis["model"]["agents"]
        for measure, share, count in ((MOVED_LABEL, "density", "active"), (CHANGED_LABEL, "changed_share", "changed"))
    ]


def shared_label(others: int) -> str:
    """Return the label in the chart of overlaps for elements that so many other agents moved, too."""
    return ("unique", "1 other")[others] if others < 2 else f"{others} others"


def overlap(analysis: Values) -> list[Row]:
    """Return rows for the chart of overlaps: each agent's active elements, by how many others moved them too."""
    return [
        {
            "agent": agent["name"],
            "others": others,
            "label": shared_label(others),
            "elements": elements,
            "share": _share(elements, agent["active"]),
            "percent": _percent(_share(elements, agent["active"])),
        }
        for agent in analysis["model"]["agents"]
        for others, elements in enumerate(agent["shared_with"])
    ]


def cells(analysis: Values) -> list[Row]:
    """Rows for the heat map: figures by layer and role; `by_agent` and the counts hold a number for each agent."""
    whole = ("layer", "role", "tensors", "elements", "active", "unique")
    return [
        {
            **{key: cell[key] for key in whole},
            "by_agent": {key: value for key, value in cell.items() if key not in whole},
        }
        for cell in analysis["cells"]
    ]


def ulps(analysis: Values) -> list[Row]:
    """Return rows for the chart of update sizes: |tau| in units of the base's last place, with an empty bin at either
    end.
    """
    bins, agents = analysis["bins"]["ulps"], analysis["model"]["agents"]
    nonempty = [index for index in range(1, len(bins)) if any(agent["ulps"][index] for agent in agents)] or [
        len(bins) // 2
    ]
    # Half a unit, 2^-1, is always in view, with room for words on its left.
    first, last = min(nonempty[0], bins.index(-4)) - 1, max(nonempty[-1], bins.index(4)) + 1
    return [
        {
            "agent": agent["name"],
            "bin": bins[1] + index - 1,
            "middle": bins[1] + index - 0.5,
            "elements": (elements := agent["ulps"][index] if 1 <= index < len(bins) else 0),
            "share": _share(elements, agent["changed"]),
        }
        for agent in agents
        for index in range(first, last + 1)
    ]


def pairs(analysis: Values) -> list[Row]:
    """Return rows for the table of pairs: each pair of agents, with its overlap as a multiple of chance."""
    return [
        {
            "first": pair["agents"][0],
            "second": pair["agents"][1],
            "times": pair["both"] / pair["expected"] if pair["expected"] else None,
            **{key: value for key, value in pair.items() if key != "agents"},
        }
        for pair in analysis["model"]["pairs"]
    ]


def matrix(analysis: Values) -> list[Row]:
    """Return rows for the matrix of agents: `pairs` in both orders."""
    return [row | swap for row in pairs(analysis) for swap in ({}, {"first": row["second"], "second": row["first"]})]


def thresholds(analysis: Values) -> list[Row]:
    """Return rows for the charts by threshold: rho, and lambda under each rule."""
    return [
        {
            "agent": agent["name"],
            "epsilon": epsilon_label(at["epsilon"]),
            **{key: at[key] for key in ("density", "unique_share", "rho", "lambdas")},
        }
        for agent in analysis["model"]["agents"]
        for at in agent["by_epsilon"]
    ]


def rescalings(analysis: Values) -> list[Row]:
    """Return rows for the chart of lambda by threshold and rule."""
    return [
        {"agent": row["agent"], "epsilon": row["epsilon"], "rule": rule, "lambda": value}
        for row in thresholds(analysis)
        for rule, value in row["lambdas"].items()
    ]


def threshold_label(analysis: Values) -> str:
    """Return the threshold of the analysis as text."""
    relative = analysis.get("relative_epsilon")
    return epsilon_label(analysis["epsilon"]) if relative is None else f"{relative:g} × root mean square"


def epsilon_label(epsilon: float) -> str:
    """Return a threshold as text: 0, or its shortest form with an exponent."""
    return (
        f"{epsilon:.0e}".replace("e-0", "e-")
        if 0 < epsilon < 0.01 and float(f"{epsilon:.0e}") == epsilon
        else f"{epsilon:g}"
    )


def fates(analysis: Values) -> list[Row]:
    """Return rows for the chart of fates: each agent's active elements, by their fate in a merge."""
    return [
        {
            "agent": agent["name"],
            "merge": label,
            "fate": fate,
            "order": order,
            "elements": agent["fates"][merge][fate],
            "share": _share(agent["fates"][merge][fate], agent["active"]),
            "retained": agent["fates"][merge]["retained"],
            "percent": _percent(agent["fates"][merge]["retained"]),
        }
        for agent in analysis["model"]["agents"]
        for merge, label in merges(analysis).items()
        for order, fate in enumerate(FATES)
    ]


def precision(analysis: Values) -> list[Row]:
    """Return rows for the table of dtypes: each model's dtype, and what rounding to the output's does to an agent's
    updates.
    """
    rounding = analysis.get("rounding", {})
    unknown = dict.fromkeys(
        ("erased", "erased_share", "grown_share", "nominal_lambda", "effective_lambda", "effective_error")
    )
    return [
        {"name": name, "dtype": dtype, **unknown, **rounding.get(name, {})}
        for name, dtype in analysis.get("input_dtypes", {}).items()
    ]


def tensors(analysis: Values) -> Row:
    """Return the page's table of tensors: columns as arrays, and counts in place of shares, to stay small."""
    # layer 2 before layer 10
    table = sorted(
        analysis["tensors"],
        key=lambda tensor: [
            (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
            for part in re.split(r"([0-9]{1,9})", tensor["name"])
        ],
    )
    count = range(len(analysis["model"]["agents"]))
    return {
        **{key: [tensor[key] for tensor in table] for key in ("name", "layer", "elements", "shape")},
        "role": [ROLES.index(tensor["role"]) for tensor in table],
        "roles": ROLES,
        "active": [[tensor["agents"][t]["active"] for tensor in table] for t in count],
        "unique": [[tensor["agents"][t]["shared_with"][0] for tensor in table] for t in count],
    }


def _percent(share: float | None) -> str:
    """Format a share for a chart as sentences have it: Vega would round 62.5 to 63, and Python rounds it to 62."""
    return "" if share is None else f"{share:.0%}"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
