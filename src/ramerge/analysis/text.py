"""An analysis for a terminal: a short table and three sentences."""

from __future__ import annotations

from rich.filesize import decimal

from ramerge.analysis.parts import AgentPart
from ramerge.analysis.results import Analysis
from ramerge.foundation.terminal import table


def summary(analysis: Analysis) -> list[str]:
    """Lines of text."""
    rate = int(analysis.bytes_read / max(analysis.seconds, 1e-9))
    columns = [_figures(agent, analysis) for agent in analysis.model.agents]
    dtypes = [*[f"{name} {dtype}" for name, dtype in analysis.input_dtypes.items()], f"output {analysis.dtype}"]
    return [
        *table(list(columns[0]), [list(figures.values()) for figures in columns]),
        _meaning(analysis),
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
        "moved": f"{agent.density:.1%}",
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
        nominal, effective = rounded.get("nominal_lambda"), rounded.get("effective_lambda")
        figures["effective"] = "-" if nominal is None or effective is None else f"{effective:.3f} of {nominal:.3f}"
    return figures


def _meaning(analysis: Analysis) -> str:
    texts = [
        f"moved: |agent - base| > {analysis.epsilon:g}",
        "changed: differs at all",
        "unique: of the moved, by no other agent",
        f"kept: part of the agent's update that lies in the merge, stored in {analysis.dtype}",
    ]
    if analysis.rounding:
        texts += [
            f"erased: of what {analysis.method} changes of the agent, share that rounding puts back to the base",
            f"effective: where no other agent moved an element, part of the update that {analysis.method} leaves in the "
            "output, of what it is before rounding (in a sample)",
        ]
    return "; ".join(texts)
