"""The figures of a search as Altair charts, for its page and the tab Choose."""

from __future__ import annotations

from typing import Any

import altair as alt

from ramerge.report.figures import AGENT_COLORS, GRAY, Figure
from ramerge.sdk.text import quantity
from ramerge.searches.results import SearchResult, TriedPoint
from ramerge.searches.space import label, spelling

Row = dict[str, Any]


def figures_of(result: SearchResult) -> list[Figure]:
    """All figures of a search, in the order of its page."""
    figures = [
        _ranking_figure(result),
        _course_figure(result),
        _axes_figure(result),
        *([_front_figure(result)] if len(result.objectives) > 1 else []),
    ]
    return [figure for figure in figures if figure.rows]


def _rows(result: SearchResult) -> list[Row]:
    members = [point for point in result.ranked if point.objectives]
    return [_point_row(place, point) for place, point in enumerate(members, 1)]


def _point_row(place: int, point: TriedPoint) -> Row:
    first = point.objectives[0]
    return {
        "rank": place,
        "point": point.number,
        "values": spelling(point.point),
        "method": str(point.point["method"]),
        "state": "given up early" if point.state == "pruned" else point.state,
        "value": first.value,
        "low": first.value if first.low is None else first.low,
        "high": first.value if first.high is None else first.high,
    }


_TIPS = ["point:Q", "values:N", "method:N", "state:N", "value:Q"]


def _ranking_figure(result: SearchResult) -> Figure:
    rows = _rows(result)
    base = alt.Chart(alt.NamedData(name="rows")).encode(
        y=alt.Y("rank:O", title="rank", axis=alt.Axis(labelOverlap=True)), color=_method_colors(result), tooltip=_TIPS
    )
    scale = alt.Scale(zero=False)
    chart = alt.layer(
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=_title(result), scale=scale), x2="high:Q"),
        base.mark_point(size=50).encode(x=alt.X("value:Q", scale=scale)),
    ).properties(height=max(120, min(14 * len(rows), 560)))
    best = result.winner
    return Figure(
        name="ranking",
        title="All points, the best first",
        caption="Each point's value on the items of the choice, with its 95 % bootstrap interval. Points share their "
        "items, so intervals that overlap may still differ: the table holds the paired differences.",
        text=f"The best of {quantity(len(rows), 'point')} is point {best.number} with {best.objectives[0].value:.4f}.",
        chart=chart,
        rows=rows,
    )


def _course_figure(result: SearchResult) -> Figure:
    rows = sorted(_rows(result), key=lambda row: row["point"])
    sign, best = result.objectives[0].sign, None
    for row in rows:
        if row["state"] == "complete":
            best = row["value"] if best is None else sign * max(sign * best, sign * row["value"])
        row["best"] = best
    base = alt.Chart(alt.NamedData(name="rows")).encode(x=alt.X("point:Q", title="point", axis=alt.Axis(tickMinStep=1)))
    scale = alt.Scale(zero=False)
    chart = alt.layer(
        base.mark_line(interpolate="step-after", color=GRAY).encode(y=alt.Y("best:Q", scale=scale)),
        base.mark_point(size=50).encode(
            y=alt.Y("value:Q", title=_title(result), scale=scale), color=_method_colors(result), tooltip=_TIPS
        ),
    ).properties(height=220)
    return Figure(
        name="course",
        title="The search, point by point",
        caption="Values in the order in which points were tried. The line is the best so far.",
        text=f"{quantity(len(rows), 'point was', 'points were')} scored, one after another.",
        chart=chart,
        rows=rows,
    )


def _axes_figure(result: SearchResult) -> Figure:
    """Draw the value against each number that varies."""
    numbers = {row["point"]: row for row in _rows(result)}
    rows = [
        {**numbers[point.number], "key": label(key), "x": value}
        for point in result.points
        if point.number in numbers
        for key, value in point.point.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    keys = list(dict.fromkeys(row["key"] for row in rows))
    choose = alt.param(name="key", value=keys[0] if keys else "", bind=alt.binding_select(options=keys, name="Key"))
    x = alt.X("x:Q", title="value of the key", scale=alt.Scale(zero=False))
    y = alt.Y("value:Q", title=_title(result), scale=alt.Scale(zero=False))
    chart = _points_layer(result, x, y, [*_TIPS, "x:Q"]).add_params(choose).transform_filter("datum.key == key")
    return Figure(
        name="axes",
        title="What each number does",
        caption="The value of each point against one of the numbers that vary; other keys vary too.",
        text=f"Values against {', '.join(keys)}.",
        chart=chart,
        rows=rows,
    )


def _front_figure(result: SearchResult) -> Figure:
    first, second = result.objectives[:2]
    rows = [
        {
            **_point_row(0, point),
            "first": point.objectives[0].value,
            "second": point.objectives[1].value,
            "front": "on the front" if point.number in result.front else "beaten",
        }
        for point in result.points
        if point.state == "complete"
    ]
    x = alt.X("first:Q", title=first.name, scale=alt.Scale(zero=False))
    y = alt.Y("second:Q", title=second.name, scale=alt.Scale(zero=False))
    shapes = alt.Scale(domain=["on the front", "beaten"], range=["circle", "cross"])
    tips = ["point:Q", "values:N", "method:N", "first:Q", "second:Q"]
    chart = _points_layer(result, x, y, tips).encode(shape=alt.Shape("front:N", scale=shapes))
    return Figure(
        name="front",
        title="Pareto front",
        caption="Points on the front are beaten by no point that is as good in every objective and better in one. "
        "Shown are the first two objectives.",
        text=f"Points {', '.join(map(str, result.front))} are on the Pareto front.",
        chart=chart,
        rows=rows,
    )


def _points_layer(result: SearchResult, x: alt.X, y: alt.Y, tips: list[str]) -> alt.Chart:
    chart: alt.Chart = alt.Chart(alt.NamedData(name="rows")).mark_point(size=50)
    points_chart: alt.Chart = chart.encode(x=x, y=y, color=_method_colors(result), tooltip=tips)
    return points_chart.properties(height=240)


def _title(result: SearchResult) -> str:
    return result.objectives[0].name


def _method_colors(result: SearchResult) -> alt.Color:
    """Return one color for each method, the same in every figure."""
    methods = list(result.space["methods"])
    colors = [AGENT_COLORS[place % len(AGENT_COLORS)] for place in range(len(methods))]
    legend = alt.Legend(columns=3, symbolType="circle") if len(methods) > 1 else None
    return alt.Color("method:N", scale=alt.Scale(domain=methods, range=colors), legend=legend)
