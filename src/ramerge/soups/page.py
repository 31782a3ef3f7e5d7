"""The page of `ramerge soup --analyze`: how straight a run is, in the style of the analysis. It needs no network."""

from __future__ import annotations

from pathlib import Path

import altair as alt

from ramerge import __version__
from ramerge.report.figures import BLUE, GRAY, VERMILION, Figure
from ramerge.report.page import figures_page
from ramerge.soups.straightness import RunStraightness, judgment, rows_of


def render(result: RunStraightness) -> str:
    """Return the page of a run's straightness. The libraries of the extra `report` must be installed."""
    head = ["part", "first component", "R^2", "length"]
    rows = [
        [name, f"{each.share:.1%}", f"{each.fit:.3f}", f"{each.length:.4g}"]
        for name, each in (("whole model", result.model), *result.layers.items())
    ]
    return figures_page(
        Path(__file__).with_name("page.html"),
        [_line_figure(result), _layers_figure(result)],
        version=__version__,
        found=result,
        findings=[(judgment(result), "")],
        head=head,
        rows=rows,
    )


def _line_figure(result: RunStraightness) -> Figure:
    """Draw all checkpoints along the run's line, and the least-squares line through them."""
    rows = [{"step": step, "place": place} for step, place in zip(result.steps, result.model.coordinates, strict=True)]
    base = alt.Chart(alt.NamedData(name="rows")).encode(
        x=alt.X("step:Q", title="step", scale=alt.Scale(zero=True)),
        y=alt.Y("place:Q", title="on the line", scale=alt.Scale(zero=True)),
    )
    regression = base.transform_regression("step", "place").mark_line(color=GRAY)
    points = base.mark_point(filled=True, size=40, color=BLUE).encode(tooltip=["step:Q", "place:Q"])
    return Figure(
        name="line",
        title="Along the line",
        caption="How far each checkpoint is along the first component of the task vectors, in units of the last one, "
        "and the straight line through these places. Predictions continue it.",
        text=f"R squared of the line is {result.model.fit:.3f}.",
        chart=alt.layer(regression, points).properties(height=220),
        rows=rows,
    )


def _layers_figure(result: RunStraightness) -> Figure:
    """Draw the share of the first component and R^2 for each layer."""
    rows = [
        {"part": row["part"], "place": row["place"], "what": what, "value": row[key]}
        for row in rows_of(result)
        for what, key in (("first component", "share"), ("R squared of the line", "fit"))
    ]
    colors = alt.Scale(domain=["first component", "R squared of the line"], range=[BLUE, VERMILION])
    chart = alt.Chart(alt.NamedData(name="rows")).mark_point(filled=True, size=30)
    return Figure(
        name="layers",
        title="By layer",
        caption="The share of each layer's task vectors in their first component, and how straight they move along it. "
        "A random walk has 0.81 and 0.96, so a prediction may be trusted only where both are nearer to 1.",
        text=f"The first component holds {result.model.share:.1%} of the whole model.",
        chart=chart.encode(
            x=alt.X("value:Q", title="", scale=alt.Scale(domain=[0, 1], clamp=True)),
            y=alt.Y("part:N", sort=alt.SortField("place"), title="", axis=alt.Axis(labelOverlap=True)),
            color=alt.Color("what:N", title="", scale=colors, legend=alt.Legend(orient="top")),
            tooltip=["part:N", "what:N", "value:Q"],
        ).properties(height=max(120, min(14 * len(result.layers), 700))),
        rows=rows,
    )
