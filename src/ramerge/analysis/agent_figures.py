"""An agent's row in the table of agents as text, in the terminal and on the page; shares as percentages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_MOST_DECIMALS = 6
_EFFECTIVE = ("effective_lambda", "effective_error", "nominal_lambda")


def agent_figures(agent: Mapping[str, Any], method: str, rounding: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Text of an agent's figures in the table of agents, by the heading of their column."""
    figures = {
        "agent": agent["name"],
        "density": percent(agent["density"]),
        "changed": percent(agent["changed_share"]),
        "unique": percent(agent["unique_share"]),
        "rho": f"{math.inf if agent['rho'] is None else agent['rho']:.3f}",
        "lambda (ram+)": f"{agent['lambdas']['ram+']:.4f}",
        "by RAM": percent(agent["fates"]["ram"]["retained"]),
        "by averaging": percent(agent["fates"]["average"]["retained"]),
    }
    if method != "ram":
        figures[f"by {method}"] = percent(agent["fates"]["merge"]["retained"])
    if rounding_figures := rounding.get(agent["name"]):
        figures["erased"] = percent(rounding_figures["erased_share"])
        values = [rounding_figures.get(key) for key in ("effective_lambda", "nominal_lambda")]
        figures["effective"] = "-" if None in values else " of ".join(f"{value:.3f}" for value in values)
    return figures


def percent(share: float | None) -> str:
    """A share as a percentage: one decimal, or two digits below 0.1 %; a dash for a share of nothing."""
    if share is None or math.isnan(share):
        return "–"
    return f"{share:.1%}" if share >= 0.001 or share <= 0 else f"{100 * share:.2g}%"


def effective_with_error(rounding_figures: Mapping[str, Any]) -> str:
    """An agent's effective lambda with its standard error, which gets as many decimals as its first digit needs."""
    value, error, nominal = (rounding_figures.get(name) for name in _EFFECTIVE)
    if value is None or error is None or nominal is None:
        return "–"
    digits = min(max(3, math.ceil(-math.log10(error))), _MOST_DECIMALS) if error else 3
    error_text = f"{error:.{digits}f}"
    return f"{value:.{digits}f}{f' ± {error_text}' if float(error_text) else ''} of {nominal:.{digits}f}"
