"""Distillation from merges and from the base: the curves that lab/real/distill.py keeps, as a table and a figure.

What was predicted for them is in lab/experiments/047-merge-then-distill.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from lab.prompted import KINDS, reward_of
from lab.results import FIRST_BASE, MODELS, RESULTS
from lab.tables import table

NEAR = 2.0
"""Points below the agents that count as having reached them."""


@dataclass(frozen=True)
class Curve:
    """Rewards of a student while it is distilled.

    Attributes:
        situation: kind of agents, in `lab.prompted.KINDS`.
        seed: of their training.
        autocast: whether that multiplied in bfloat16.
        repetition: how often the training was repeated before; the agents differ by rounding.
        start: the base, or the rule of the merge.
        rate: learning rate.
        warmup: steps.
        reward: weight of the reward term; 0 without one.
        steps: that were scored.
        tokens: sampled until each of these.
        rewards: mean reward after each, in per cent.
        losses: reverse KL per token in each step.
        agents: mean reward of the agents on their own tasks, in per cent.
    """

    situation: str
    seed: int
    autocast: bool
    repetition: int
    start: str
    rate: float
    warmup: int
    reward: float
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    rewards: tuple[float, ...]
    losses: tuple[float, ...]
    agents: float

    @property
    def training(self) -> str:
        """Name of the agents' training."""
        products = ", trained with bf16 autocast" if self.autocast else ""
        again = ", trained again" if self.repetition else ""
        return f"{MODELS[FIRST_BASE]}, {KINDS[self.situation]} (seed {self.seed}){products}{again}"

    @property
    def label(self) -> str:
        """Start, rate and what else is not usual."""
        notes = [f"{self.warmup} steps of warm-up" if self.warmup else "", "with rewards" if self.reward else ""]
        return ", ".join([self.start, f"{self.rate:g}", *filter(None, notes)])

    @property
    def tokens_to_agents(self) -> int | None:
        """Tokens sampled until the student was first near its agents; None if it never was."""
        return next(
            (n for n, reward in zip(self.tokens, self.rewards, strict=True) if reward >= self.agents - NEAR), None
        )


def curves() -> list[Curve]:
    """All curves that are kept."""
    path = RESULTS / "distill.json"
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [_curve(run) for run in runs]


def text() -> str:
    """The appendix on distillation, docs/findings-distill.md."""
    all_curves = curves()
    if not all_curves:
        return "# Findings: merge, then distill\n\nNo results are kept yet: `python lab/real/distill.py`."
    return f"""# Findings: merge, then distill

Appendix to [Merge, then distill](guides/distill.md). The student starts from the base or from a merge (a warm start),
and each agent is the teacher of its own task. Training uses TRL as `ramerge handoff` configures it: 16 prompts a step,
AdamW, reverse KL over the vocabulary. The tables have the mean reward of greedy replies in per cent, on 40 test prompts
a task. Each start was run once, so differences below 4 may be chance.
[Experiment 047](../lab/experiments/047-merge-then-distill.md) has the predictions, and which of them failed.

![Mean reward against sampled tokens, from the base and from merges](results/figures/distill.svg)

{chr(10).join(_tables(all_curves))}

```sh
python lab/real/distill.py --situation SFT --seed 71 --start "regmean 0.01" --rate 5e-6
```"""


def _tables(all_curves: Sequence[Curve]) -> Iterator[str]:
    for training in dict.fromkeys(curve.training for curve in all_curves):
        members = [curve for curve in all_curves if curve.training == training]
        steps = sorted({step for curve in members for step in curve.steps})
        rows = []
        for curve in members:
            rewards = dict(zip(curve.steps, curve.rewards, strict=True))
            tokens = curve.tokens_to_agents
            rows.append(
                [
                    f"`{curve.start}`" + curve.label.removeprefix(curve.start),
                    *(f"{rewards[step]:.0f}" if step in rewards else "" for step in steps),
                    f"{tokens:,}" if tokens is not None else "not reached",
                    f"{1000 * curve.losses[0]:.0f}, {1000 * curve.losses[-1]:.0f}",
                ]
            )
        head = [
            "start, learning rate",
            *(f"step {step}" for step in steps),
            f"student tokens until within {NEAR:g} points of the agents",
            "KL x 1,000, first and last step",
        ]
        yield f"\n## {training}\n\nThe agents score {members[0].agents:.0f} on their own tasks.\n\n{table(head, rows)}"


def chart() -> alt.FacetChart | None:
    """Reward against sampled tokens, a panel for each training; the agents are a dashed line."""
    plain = [curve for curve in curves() if not curve.warmup and not curve.reward]
    if not plain:
        return None
    rows: list[dict[str, Any]] = [
        {
            "training": curve.training,
            "start": curve.label,
            "tokens": tokens,
            "reward": reward,
            "agents": curve.agents,
        }
        for curve in plain
        for tokens, reward in zip(curve.tokens, curve.rewards, strict=True)
    ]
    base_chart = alt.Chart().encode(x=alt.X("tokens:Q", title="sampled tokens"))
    lines = base_chart.mark_line(point=True).encode(
        y=alt.Y("reward:Q", title="mean reward, %", scale=alt.Scale(zero=False)),
        color=alt.Color("start:N", title="start, learning rate"),
    )
    agents = alt.Chart().mark_rule(strokeDash=[4, 3], color="#9a9a9a").encode(y="agents:Q")
    return (
        alt.layer(lines, agents, data=alt.InlineData(values=rows))
        .properties(width=260, height=200)
        .facet(facet=alt.Facet("training:N", title=None), columns=2)
    )


def _curve(run: dict[str, Any]) -> Curve:
    points = run["curve"]
    return Curve(
        run["situation"],
        run["seed"],
        run["autocast"],
        run["repetition"],
        run["start"],
        run["rate"],
        run["warmup"],
        run["reward"],
        tuple(point["step"] for point in points),
        tuple(point["tokens"] for point in points),
        tuple(reward_of(point["rewards"]) for point in points),
        tuple(run["losses"]),
        reward_of(run["agents"]),
    )
