"""An analysis for a terminal: a short table and three sentences."""

from __future__ import annotations

from rich.filesize import decimal

from ramerge.analysis.results import AgentPart, Analysis
from ramerge.terminal import table

_HEAD = ("agent", "moved", "changed", "unique", "rho", "lambda (ram+)", "kept by RAM", "by averaging", "averaged away")
_MEANING = (
    "moved: |agent - base| > {epsilon:g}; changed: differs at all; unique: of the moved, by no other agent; kept: "
    "part of the agent's update that lies in the merge; averaged away: of the moved, what rounds back to the base"
)


def summary(analysis: Analysis) -> str:
    """Lines of text."""
    rate = int(analysis.bytes_read / max(analysis.seconds, 1e-9))
    return "\n".join(
        [
            *table(_HEAD, [_row(agent) for agent in analysis.model.agents]),
            _MEANING.format(epsilon=analysis.epsilon),
            "",
            *[f"{number}. {one.text} {one.reason}" for number, one in enumerate(analysis.findings, 1)],
            "",
            f"{len(analysis.tensors):,} tensors, {decimal(analysis.bytes_read)} in {analysis.seconds:.1f} s, "
            f"{decimal(rate)}/s, {decimal(analysis.peak_memory_bytes)} of memory",
            *[f"note: {note}" for note in analysis.notes],
        ]
    )


def _row(agent: AgentPart) -> tuple[str, ...]:
    average = agent.fates["average"]
    return (
        agent.name,
        f"{agent.density:.1%}",
        f"{agent.changed_share:.1%}",
        f"{agent.unique_share:.1%}",
        f"{agent.rho:.3f}",
        f"{agent.lambdas['ram+']:.4f}",
        f"{agent.fates['ram'].retained:.1%}",
        f"{average.retained:.1%}",
        f"{average.lost / max(agent.active, 1):.1%}",
    )
