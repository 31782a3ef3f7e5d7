"""An analysis as text: a short table and three sentences for the terminal; the table's rows, also for pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.filesize import decimal

from ramerge.analysis.results import Analysis
from ramerge.core.engine.columns import effective_means, erased_means
from ramerge.sdk.commands import table
from ramerge.sdk.text import quantity


def summary(analysis: Analysis) -> list[str]:
    """Return an analysis as lines for the terminal."""
    rate = int(analysis.bytes_read / max(analysis.seconds, 1e-9))
    agents = [asdict(agent) for agent in analysis.model.agents]
    columns = [agent_figures(agent, analysis.method, analysis.rounding) for agent in agents]
    dtypes = [*[f"{name} {dtype}" for name, dtype in analysis.input_dtypes.items()], f"output {analysis.dtype}"]
    return [
        *table(list(columns[0]), [list(each.values()) for each in columns]),
        *[f"  {text}" for text in _glossary(analysis)],
        "",
        *[f"{number}. {finding.text} {finding.reason}" for number, finding in enumerate(analysis.findings, 1)],
        "",
        f"dtypes: {', '.join(dtypes)}",
        f"{quantity(len(analysis.tensors), 'tensor')}, {decimal(analysis.bytes_read)} in {analysis.seconds:.1f} s, "
        f"{decimal(rate)}/s, {decimal(analysis.peak_memory_bytes)} of memory",
        *[f"note: {note}" for note in analysis.notes],
    ]


def _glossary(analysis: Analysis) -> list[str]:
    if analysis.relative_epsilon is None:
        threshold = f"{analysis.epsilon:g}"
    else:
        each = ", ".join(f"{name} {value:.3g}" for name, value in analysis.thresholds.items())
        threshold = f"{analysis.relative_epsilon:g} x the root mean square of agent - base"
        threshold += f" ({each})" if each else ""
    texts = [
        f"density: share of the elements that training moved: |agent - base| > {threshold}",
        "changed: share that differs at all",
        "unique: of the moved elements, share that no other agent moved",
        "rho: shared elements over unique ones; lambda (ram+): RAM+'s factor on these, with its default parameters",
        f"by RAM and others: part of the agent's update that is retained in their merge, stored in {analysis.dtype}",
    ]
    if analysis.rounding:
        stochastic = analysis.recipe.get("rounding") == "stochastic"
        texts += [
            f"erased: {erased_means(f' in a {analysis.method} merge', analysis.dtype, stochastic=stochastic)}",
            f"effective: {effective_means()}",
        ]
    return texts


_MOST_DECIMALS = 6
_EFFECTIVE = ("effective_lambda", "effective_error", "nominal_lambda")


def agent_figures(agent: Mapping[str, Any], method: str, rounding: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return an agent's figures as text, by column heading of the table of agents."""
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
    """Format a share as a percentage: one decimal, or two digits below 0.1 %; a dash if undefined."""
    if share is None or math.isnan(share):
        return "–"
    return f"{share:.1%}" if share >= 0.001 or share <= 0 else f"{100 * share:.2g}%"


def effective_with_error(rounding_figures: Mapping[str, Any]) -> str:
    """Format an agent's effective lambda with its standard error, with as many decimals as the error's first digit
    needs.
    """
    value, error, nominal = (rounding_figures.get(name) for name in _EFFECTIVE)
    if value is None or error is None or nominal is None:
        return "–"
    digits = min(max(3, math.ceil(-math.log10(error))), _MOST_DECIMALS) if error else 3
    error_text = f"{error:.{digits}f}"
    return f"{value:.{digits}f}{f' ± {error_text}' if float(error_text) else ''} of {nominal:.{digits}f}"
