"""The chart of README.md: rewards of real agents and their merges. `python -m lab.chart` draws it from results/."""

from __future__ import annotations

import json
from pathlib import Path

import altair as alt
import vl_convert

from lab.prompted import CONFIRMING, KINDS, kinds, reward_of

CHART = Path(__file__).parents[1] / "docs" / "figures" / "scores.svg"

_NAMES = {"four LoRA agents": "LoRA", "four SFT agents": "fine-tuned", "four RL agents in bfloat16": "RL"}
_EXAMPLES = (
    ("Gemma 3 270M", "LoRA"),
    ("Gemma 3 270M", "fine-tuned"),
    ("SmolLM2-135M", "fine-tuned"),
    ("SmolLM2-135M", "RL"),
)
_COLORS = {
    "base": "#d5d5d5",
    "each agent on its own task": "#9a9a9a",
    "merge: plain sum": "#d9b382",
    "merge: RAM+": "#c9803a",
    "merge: chosen by search": "#1a7f5a",
}
_SEED = "71"
"""Of trainings that the search was not developed on."""


def scores() -> dict[str, dict[str, float]]:
    """By kind of agents and by model: mean reward over the tasks, in percent."""
    rewards = {}
    for each in kinds(CONFIRMING):
        kind = (each.base, _NAMES.get(KINDS[each.name], ""))
        if each.seed == _SEED and kind in _EXAMPLES:
            choice, _ = each.choice("right")
            merges = (each.rewards["sum"], each.rewards["ram+"], each.rewards[choice])
            rewards[kind] = dict(zip(_COLORS, (reward_of(each.figures["base"]), each.agents, *merges), strict=True))
    return {", ".join(kind): rewards[kind] for kind in _EXAMPLES}


def caption() -> str:
    """The chart as text."""
    parts = [
        f"{kind}: agents {row['each agent on its own task']:.0f} %, RAM+ {row['merge: RAM+']:.0f} %, "
        f"chosen by search {row['merge: chosen by search']:.0f} %"
        for kind, row in scores().items()
    ]
    return "; ".join(parts)


def draw() -> str:
    """The chart as SVG."""
    rows = [
        {"kind": kind, "model": model, "score": score, "text": f"{score:.0f}"}
        for kind, row in scores().items()
        for model, score in row.items()
    ]
    models, axis = list(_COLORS), alt.Axis(title=None, ticks=False, domain=False, labelAngle=0, labelFontSize=13)
    chart = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("kind:N", sort=list(scores()), axis=axis, scale=alt.Scale(paddingInner=0.25)),
        xOffset=alt.XOffset("model:N", sort=models),
        y=alt.Y("score:Q", axis=None, scale=alt.Scale(domain=[0, 105])),
    )
    legend = alt.Legend(title=None, orient="bottom", labelFontSize=13, symbolType="square", columns=5, labelLimit=0)
    scale = alt.Scale(domain=models, range=list(_COLORS.values()))
    bars = chart.mark_bar().encode(color=alt.Color("model:N", scale=scale, sort=models, legend=legend))
    numbers = chart.mark_text(dy=-7, fontSize=12).encode(text="text:N")
    title = alt.Title(
        "Four agents of one base, and their merges: mean reward on their four tasks, in percent",
        subtitle=[
            "40 held-out prompts a task, one training of each kind.",
            "Search had 32 other prompts a task, with rewards.",
        ],
        anchor="start",
        subtitlePadding=6,
        offset=12,
    )
    whole = (bars + numbers).properties(title=title, width=820, height=190)
    chart_in_white = whole.configure(background="white", padding=14).configure_view(stroke=None)
    specification = json.loads(chart_in_white.to_json())
    return str(vl_convert.vegalite_to_svg(specification, vl_version=".".join(alt.SCHEMA_VERSION[1:].split(".")[:2])))


if __name__ == "__main__":
    CHART.write_text(draw(), encoding="utf-8")
