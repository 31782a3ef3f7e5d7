"""Figures of docs/findings-*.md, as SVG, from results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import altair as alt
import numpy as np
import vl_convert
from benchmarks import methods as timed
from benchmarks.report import SMALL, load
from benchmarks.timing import spread

from lab import distilled
from lab.results import Outcome, Results
from lab.rows import ALL, FEW
from lab.settings import MAIN
from lab.statistics import nemenyi
from lab.tables import ranks_of

FIGURES = Path(__file__).parents[1] / "docs" / "results" / "figures"
_GREEN, _GREY = "#1a7f5a", "#9a9a9a"
Layers: TypeAlias = alt.LayerChart | alt.FacetChart
_SHADES = ["#1a7f5a", "#7fb9a2", "#c9c08a", "#c9803a", "#8a4b1c"]


def figures(results: Results) -> Iterator[tuple[str, str]]:
    """Names of files with their contents, for what was measured."""
    main = results.setting(MAIN)
    if main is not None:
        yield "lab-ranks.svg", _svg(_ranks(main))
        yield "lab-time.svg", _svg(_time(main))
    if results.models("rl"):
        yield "lab-overlap.svg", _svg(_overlap(results))
    counts = {
        len(one.agents): one for name in ("two", MAIN, "four", "five") if (one := results.setting(name)) is not None
    }
    if len(counts) > 1:
        yield "lab-counts.svg", _svg(_counts(counts))
    if curves := distilled.chart():
        yield "distill.svg", _svg(curves)


def _svg(chart: alt.TopLevelMixin) -> str:
    whole = chart.configure(background="white", padding=14).configure_view(stroke=None)
    version = ".".join(alt.SCHEMA_VERSION[1:].split(".")[:2])
    return str(vl_convert.vegalite_to_svg(json.loads(whole.to_json()), vl_version=version))


def _ranks(outcome: Outcome) -> Layers:
    """Mean ranks, and the critical difference from the best if there can be one."""
    names = [row.name for row in ALL if row.name in outcome.best]
    ranks = ranks_of(outcome, names)
    best, width = min(ranks), nemenyi(len(names), len(outcome.seeds))
    rows = [
        {"method": name, "rank": rank} for name, rank in sorted(zip(names, ranks, strict=True), key=lambda one: one[1])
    ]
    order = [str(row["method"]) for row in rows]
    shaded = "; shaded: not told apart from the best" if width else ""
    band = (
        alt.Chart(alt.InlineData(values=[{"from": best, "to": best + (width or 0.0)}]))
        .mark_rect(color="#e4efe9")
        .encode(x="from:Q", x2="to:Q")
    )
    dots = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_circle(size=70, color=_GREEN)
        .encode(
            x=alt.X("rank:Q", title=f"mean rank over seeds (1 is best){shaded}"),
            y=alt.Y("method:N", sort=order, title=None),
        )
    )
    return alt.layer(band, dots).properties(
        width=420, height=15 * len(order), title="Mean ranks and critical difference" if width else "Mean ranks"
    )


def _time(outcome: Outcome) -> Layers:
    """Figure 9: merging time at 0.5B over that of a file copy, and the score here."""
    runs = load(timed.SECTION)[SMALL].data["taken"]
    rows = [
        {
            "method": row.name,
            "score": outcome.best[row.name].mean,
            "seconds": spread([one["seconds"] for one in runs[row.name]]).median,
        }
        for row in ALL
        if row.name in runs and row.name in outcome.best
    ]
    base_chart = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("seconds:Q", title="seconds to merge three agents of 0.5B", scale=alt.Scale(type="log", nice=True)),
        y=alt.Y("score:Q", title="mean score of the tiny agents, %", scale=alt.Scale(zero=False)),
    )
    text = base_chart.mark_text(align="left", dx=7, fontSize=10).encode(text="method:N")
    return alt.layer(base_chart.mark_circle(size=60, color=_GREEN), text).properties(
        width=420, height=260, title="Time and score"
    )


def _overlap(results: Results) -> alt.HConcatChart:
    """Figures 2 and 7: densities, and how many others moved the same elements."""
    geometry = results.models("rl")["geometry"]
    tasks = list(geometry[0]["density"])
    densities = [
        {"agent": task, "density": 100 * float(np.mean([one["density"][task] for one in geometry]))} for task in tasks
    ]
    shares = [
        {
            "agent": task,
            "others": str(place),
            "share": 100 * float(np.mean([one["shared"][task][place] for one in geometry])),
        }
        for task in tasks
        for place in range(len(tasks))
    ]
    left = (
        alt.Chart(alt.InlineData(values=densities), title="Density")
        .mark_bar(color=_GREEN)
        .encode(y=alt.Y("agent:N", sort=tasks, title=None), x=alt.X("density:Q", title="% of the elements"))
    )
    right = (
        alt.Chart(alt.InlineData(values=shares), title="Moved by how many others")
        .mark_bar()
        .encode(
            y=alt.Y("agent:N", sort=tasks, title=None),
            x=alt.X("share:Q", title="% of the agent's moved elements", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color("others:N", scale=alt.Scale(range=_SHADES), title="others"),
        )
    )
    return alt.hconcat(left.properties(width=200), right.properties(width=300))


def _counts(outcome: dict[int, Outcome]) -> Layers:
    """Scores by the number of agents."""
    rows = [
        {"agents": count, "score": one.best[row.name].mean, "method": row.name}
        for count, one in outcome.items()
        for row in FEW
        if row.name in one.best
    ]
    lines = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("agents:O", title="agents"),
            y=alt.Y("score:Q", title="mean score, %", scale=alt.Scale(zero=False)),
            color=alt.Color("method:N", title=None),
        )
    )
    return alt.layer(lines).properties(width=360, height=240, title="More agents")
