"""An analysis for the terminal: a short table and three sentences."""

from __future__ import annotations

from dataclasses import asdict

from rich.filesize import decimal

from ramerge.analysis.agent_figures import agent_figures
from ramerge.analysis.results import Analysis
from ramerge.core.engine.columns import effective_means, erased_means
from ramerge.sdk.commands import table


def summary(analysis: Analysis) -> list[str]:
    """The lines of an analysis for the terminal."""
    rate = int(analysis.bytes_read / max(analysis.seconds, 1e-9))
    agents = [asdict(agent) for agent in analysis.model.agents]
    columns = [agent_figures(agent, analysis.method, analysis.rounding) for agent in agents]
    dtypes = [*[f"{name} {dtype}" for name, dtype in analysis.input_dtypes.items()], f"output {analysis.dtype}"]
    return [
        *table(list(columns[0]), [list(each.values()) for each in columns]),
        *[f"  {text}" for text in _meanings(analysis)],
        "",
        *[f"{number}. {finding.text} {finding.reason}" for number, finding in enumerate(analysis.findings, 1)],
        "",
        f"dtypes: {', '.join(dtypes)}",
        f"{len(analysis.tensors):,} tensors, {decimal(analysis.bytes_read)} in {analysis.seconds:.1f} s, "
        f"{decimal(rate)}/s, {decimal(analysis.peak_memory_bytes)} of memory",
        *[f"note: {note}" for note in analysis.notes],
    ]


def _meanings(analysis: Analysis) -> list[str]:
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
