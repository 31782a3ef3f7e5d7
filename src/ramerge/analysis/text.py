"""An analysis for a terminal: a short table and three sentences."""

from __future__ import annotations

from collections.abc import Mapping

from rich.filesize import decimal

from ramerge.analysis.parts import AgentPart
from ramerge.analysis.results import Analysis
from ramerge.engine.card import effective_means, erased_means
from ramerge.foundation.terminal import table


def summary(analysis: Analysis) -> list[str]:
    """Lines of text."""
    rate = int(analysis.bytes_read / max(analysis.seconds, 1e-9))
    columns = [_figures(agent, analysis) for agent in analysis.model.agents]
    dtypes = [*[f"{name} {dtype}" for name, dtype in analysis.input_dtypes.items()], f"output {analysis.dtype}"]
    return [
        *table(list(columns[0]), [list(figures.values()) for figures in columns]),
        *[f"  {text}" for text in _meanings(analysis)],
        "",
        *[f"{number}. {finding.text} {finding.reason}" for number, finding in enumerate(analysis.findings, 1)],
        "",
        f"dtypes: {', '.join(dtypes)}",
        f"{len(analysis.tensors):,} tensors, {decimal(analysis.bytes_read)} in {analysis.seconds:.1f} s, "
        f"{decimal(rate)}/s, {decimal(analysis.peak_memory_bytes)} of memory",
        *[f"note: {note}" for note in analysis.notes],
    ]


def _figures(agent: AgentPart, analysis: Analysis) -> dict[str, str]:
    """One agent's figures, by the heading of their column."""
    figures = {
        "agent": agent.name,
        "density": f"{agent.density:.1%}",
        "changed": f"{agent.changed_share:.1%}",
        "unique": f"{agent.unique_share:.1%}",
        "rho": f"{agent.rho:.3f}",
        "lambda (ram+)": f"{agent.lambdas['ram+']:.4f}",
        "kept by RAM": f"{agent.fates['ram'].retained:.1%}",
        "by averaging": f"{agent.fates['average'].retained:.1%}",
    }
    if analysis.method != "ram":
        figures[f"by {analysis.method}"] = f"{agent.fates['merge'].retained:.1%}"
    if analysis.rounding:
        rounded = analysis.rounding[agent.name]
        figures["erased"] = f"{rounded['erased_share']:.1%}"
        figures["effective"] = _effective(rounded)
    return figures


def _effective(rounded: Mapping[str, float | None]) -> str:
    """Effective lambda beside the nominal one; nothing where no element says it."""
    values = [rounded.get(key) for key in ("effective_lambda", "nominal_lambda")]
    return "-" if None in values else " of ".join(f"{value:.3f}" for value in values)


def _threshold(analysis: Analysis) -> str:
    if analysis.relative_epsilon is None:
        return f"{analysis.epsilon:g}"
    each = ", ".join(f"{name} {value:.3g}" for name, value in analysis.thresholds.items())
    return f"{analysis.relative_epsilon:g} x the root mean square of agent - base" + (f" ({each})" if each else "")


def _meanings(analysis: Analysis) -> list[str]:
    """What each column means."""
    texts = [
        f"density: share of the elements that training moved: |agent - base| > {_threshold(analysis)}",
        "changed: share that differs at all",
        "unique: of the moved elements, share that no other agent moved",
        "rho: shared elements over unique ones; lambda (ram+): RAM+'s factor on these, with its default parameters",
        f"kept: part of the agent's update that lies in the merge, stored in {analysis.dtype}",
    ]
    if analysis.rounding:
        coins = analysis.recipe.get("rounding") == "stochastic"
        texts += [
            f"erased: {erased_means(f' in a {analysis.method} merge', analysis.dtype, coins=coins)}",
            f"effective: {effective_means()}",
        ]
    return texts
