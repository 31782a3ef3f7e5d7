"""Each figure of an analysis as an Altair chart: for its page, for papers, and for the tab Look."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import altair as alt

from ramerge.analysis.cells import OUTSIDE
from ramerge.analysis.report import rows
from ramerge.analysis.report.rows import Values
from ramerge.analysis.survey import FATES
from ramerge.analysis.tensor_roles import ROLES
from ramerge.report.figures import AGENT_COLORS, BLUE, GREEN, INK, SKY, VERMILION, Figure
from ramerge.sdk.text import enumerated, quantity

_DASHES = [[1, 0], [8, 4], [4, 4], [2, 3], [12, 6], [8, 3, 2, 3], [6, 8], [1, 4]]


def page_figures(analysis: Values) -> list[Figure]:
    """Return all figures of an analysis, in the order of its page."""
    figures = [
        density_bars(analysis),
        overlap_bars(analysis),
        heat_map(analysis),
        update_sizes(analysis),
        _overlap_matrix(analysis),
        _rho_by_threshold(analysis),
        _lambda_by_threshold(analysis),
        _update_fates_chart(analysis),
    ]
    return [figure for figure in figures if figure.rows]


def paper_figures(analysis: Values) -> list[Figure]:
    """Return all figures of an analysis for a paper, with one heat map per agent, because paper has no controls."""
    names = rows.agents_of(analysis)
    files = [re.sub(r"[^A-Za-z0-9_]+", "-", name)[:40].strip("-") or "agent" for name in names]
    heat_maps = [heat_map(analysis, t, f"heat-{t + 1}-{file}") for t, file in enumerate(files)]
    return [chart for figure in page_figures(analysis) for chart in (heat_maps if figure.name == "heat" else [figure])]


# --- the figures ------------------------------------------------------------------------------------------------------


def density_bars(analysis: Values) -> Figure:
    names, table = rows.agents_of(analysis), rows.density(analysis)
    most = max((row["share"] for row in table), default=0.0) or 1.0
    bars = _data_chart("rows").encode(
        x=alt.X("share:Q", title="share of all elements", scale=alt.Scale(domain=[0, most]), axis=_percent_axis()),
        y=_agent_axis(names),
        yOffset=alt.YOffset("measure:N", sort=None),
        tooltip=_tooltips("agent:N", "measure:N", "share:Q", "elements:Q"),
    )
    colors = _label_colors("measure", [rows.MOVED_LABEL, rows.CHANGED_LABEL], [BLUE, SKY])
    chart = alt.layer(
        bars.mark_bar().encode(color=colors),
        bars.mark_text(align="left", dx=4).encode(text=alt.Text("share:Q", format=".3p")),
    ).properties(height=46 * len(names))
    return Figure(
        name="density",
        title="How much each agent moved",
        caption=f"Elements moved by more than ε = {rows.threshold_label(analysis)}, and all whose value "
        "changed at all, as a share of all elements compared.",
        text=f"Density: {_figure_per_agent(analysis, lambda agent: agent['density'])}.",
        chart=chart,
        rows=table,
    )


def overlap_bars(analysis: Values) -> Figure:
    names, table = rows.agents_of(analysis), rows.overlap(analysis)
    labels = [rows.shared_label(others) for others in range(len(names))]
    bars = _data_chart("rows").encode(
        x=_share_of_updates(),
        y=_agent_axis(names),
        order=alt.Order("others:Q"),
        tooltip=_tooltips("agent:N", "label:N", "share:Q", "elements:Q"),
    )
    # percentages in the middle of bars that are wide enough
    words = bars.transform_calculate(words="datum.share * width < 28 ? '' : datum.percent").mark_text()
    ink = alt.condition("datum.others == 0", alt.value("white"), alt.value("black"))
    middle = alt.X("share:Q", stack="zero", bandPosition=0.5)
    chart = alt.layer(
        bars.mark_bar().encode(color=_label_colors("label", labels, [BLUE, *_heatmap_colors(len(names) - 1)])),
        words.encode(text="words:N", color=ink, x=middle),
    ).properties(height=32 * len(names))
    return Figure(
        name="overlap",
        title="How much of it is shared",
        caption="Each agent's moved elements, by how many other agents moved the same element (figure 2 of the paper). "
        "RAM keeps unique elements whole and averages shared ones over the agents that moved them.",
        text=f"Unique share: {_figure_per_agent(analysis, lambda agent: agent['unique_share'])}.",
        chart=chart,
        rows=table,
    )


MEASURES = ("density", "unique_share", "sign_agreement", "precision_loss", "effective_lambda")
"""The measures that the heat map can show."""


def heat_map(analysis: Values, agent: int = 0, name: str = "", measure: str = MEASURES[0]) -> Figure:
    """Draw the heat map of all agents, with controls; with `name`, that of one agent and measure, without controls."""
    names, table = rows.agents_of(analysis), rows.cells(analysis)
    layers, roles = (list(dict.fromkeys(row[key] for row in table)) for key in ("layer", "role"))
    roles.sort(key=ROLES.index)
    measures = {name: TITLES.get(name, name) for name in MEASURES}
    by_name, by_measure = (
        alt.binding_select(options=list(range(len(names))), labels=names, name="Agent"),
        alt.binding_select(options=list(measures), labels=list(measures.values()), name="Measure"),
    )
    chart = (
        _data_chart("rows")
        .mark_rect()
        .add_params(
            alt.param(name="agent", value=agent, bind=alt.Undefined if name else by_name),
            alt.param(name="measure", value=measure, bind=alt.Undefined if name else by_measure),
        )
        .transform_calculate(
            moved="datum.active[agent]",
            density="datum.active[agent] / datum.elements",
            unique_share="datum.active[agent] ? datum.unique[agent] / datum.active[agent] : null",
            **{each: f"datum.by_agent.{each}[agent]" for each in MEASURES[2:]},
        )
        .transform_calculate(value="datum[measure]")
        .encode(
            x=alt.X("role:N", title=None, scale=alt.Scale(domain=roles), axis=_slanted_axis(-40)),
            y=alt.Y("layer:O", title="layer", scale=alt.Scale(domain=layers), axis=alt.Axis(labelOverlap=True)),
            color=alt.Color(
                "value:Q",
                scale=alt.Scale(scheme="viridis", type="sqrt", zero=True),
                legend=alt.Legend(format="%", orient="bottom", gradientThickness=8),
            ),
            tooltip=_tooltips(
                "layer:N", "role:N", *(f"{each}:Q" for each in MEASURES), "moved:Q", "elements:Q", "tensors:Q"
            ),
        )
        .properties(height=14 * len(layers))
    )
    whose = f": {names[agent]}" if name else ""
    return Figure(
        name=name or "heat",
        title=f"Where in the model{whose}",
        caption="Figures by layer and role: density, the unique share of what was moved, whether agents that moved the "
        "same elements agree in sign, what rounding erases, and effective lambda. Tensors of no layer stand under "
        f"“{OUTSIDE}”. Point at a cell for exact figures.",
        text=f"Heat map of {quantity(len(layers), 'layer')} and {quantity(len(roles), 'role')}. The table of tensors "
        "below holds its figures.",
        chart=chart,
        rows=table,
    )


def update_sizes(analysis: Values) -> Figure:
    names, table = rows.agents_of(analysis), rows.ulps(analysis)
    dtype = "the output's dtype" if analysis["dtype"] == "mixed" else analysis["dtype"]
    first = min(row["bin"] for row in table)
    last = max(row["bin"] for row in table) + 1
    labels = "datum.value < 0 ? '1/' + format(pow(2, -datum.value), ',') : format(pow(2, datum.value), ',')"
    x = alt.X(
        "middle:Q",
        title=["size of the update, in units", f"of the last place in {dtype}"],
        scale=alt.Scale(domain=[first, last], nice=False),
        axis=alt.Axis(labelExpr=labels, tickMinStep=1, grid=False),
    )
    # Room for words above the lines.
    room = alt.Scale(domain=[0, 1.15 * max(row["share"] for row in table) or 1.0], nice=False)
    lines = _data_chart("rows").encode(
        x=x,
        y=alt.Y("share:Q", title="share of changed elements", scale=room, axis=_percent_axis()),
        color=_label_colors("agent", names, AGENT_COLORS, "stroke"),
        tooltip=_tooltips("agent:N", "bin:Q", "share:Q", "elements:Q"),
    )
    boundary = alt.Chart(alt.InlineData(values=[{"middle": -1, "from": first, "words": "half a unit"}]))
    chart = alt.layer(
        boundary.mark_rect(opacity=0.08, color=INK).encode(x=alt.X("from:Q"), x2="middle"),
        boundary.mark_rule(strokeDash=[4, 3]).encode(x="middle:Q"),
        boundary.mark_text(align="left", dx=4, baseline="top").encode(x="middle:Q", y=alt.value(2), text="words:N"),
        lines.mark_line(interpolate="step").encode(strokeDash=_agent_dashes(names)),
        lines.mark_point(size=60, opacity=0.01),
    ).properties(height=220)
    return Figure(
        name="ulps",
        title="How large the updates are",
        caption="Changed elements by the size of their update in units of the weight's last place in the output's "
        f"dtype, {analysis['dtype']}; a bin holds sizes up to twice its label. Left of the dashed line, below half a "
        "unit, the whole update rounds away. The outermost bins hold all beyond them.",
        text="Histogram of update sizes; an update smaller than half a unit in the last place is rounded away.",
        chart=chart,
        rows=table,
    )


def _overlap_matrix(analysis: Values) -> Figure:
    names, table = rows.agents_of(analysis), rows.matrix(analysis)
    angle = 0 if sum(map(len, names)) < 30 else -40
    squares = _data_chart("rows").encode(
        x=alt.X("first:N", title=None, scale=alt.Scale(domain=names), axis=_slanted_axis(angle)),
        y=alt.Y("second:N", title=None, scale=alt.Scale(domain=names)),
        tooltip=_tooltips(
            *("first:N", "second:N", "jaccard:Q", "both:Q", "expected:Q", "times:Q"),
            *("cosine:Q", "sign_agreement:Q", "magnitude_ratio:Q"),
        ),
    )
    words = squares.transform_calculate(words=f"width < {26 * len(names)} ? '' : format(datum.jaccard, '.2f')")
    dark = alt.condition("datum.jaccard < 0.6", alt.value("white"), alt.value("black"))
    chart = alt.layer(
        squares.mark_rect().encode(
            color=alt.Color("jaccard:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]), legend=None)
        ),
        words.mark_text().encode(text="words:N", color=dark),
    ).properties(height=44 * len(names))
    return Figure(
        name="matrix",
        title="Which agents meet",
        caption="Jaccard index of what two agents moved: of all elements that either moved, the share that both did.",
        text="Jaccard index: "
        + ", ".join(f"{row['first']} and {row['second']} {row['jaccard']:.2f}" for row in rows.pairs(analysis))
        + ".",
        chart=chart,
        rows=table,
    )


def _rho_by_threshold(analysis: Values) -> Figure:
    table = [{key: row[key] for key in ("agent", "epsilon", "rho")} for row in rows.thresholds(analysis)]
    return Figure(
        name="rho",
        title="Overlap against the threshold",
        caption="ρ, shared over unique elements, when an element counts as moved only beyond ε. The dashed line is the "
        "ε of this analysis; where nothing is unique ρ is infinite and has no point.",
        text=f"Rho at this threshold: {_figure_per_agent(analysis, lambda agent: agent['rho'], '.2f')}.",
        chart=_epsilon_chart(analysis, "rho", "ρ"),
        rows=table,
    )


def _lambda_by_threshold(analysis: Values) -> Figure:
    table = rows.rescalings(analysis)
    rules = list(dict.fromkeys(row["rule"] for row in table))
    choose = alt.param(name="rule", value=rules[0], bind=alt.binding_select(options=rules, name="Rule"))
    return Figure(
        name="lambda",
        title="Rescaling against the threshold",
        caption="λ, the factor that RAM+ puts on an agent's unique elements to make up for what its shared ones lose.",
        text=(
            f"Lambda at this threshold: {_figure_per_agent(analysis, lambda agent: agent['lambdas'][rules[0]], '.3f')}."
        ),
        chart=_epsilon_chart(analysis, "lambda", "λ", choose),
        rows=table,
    )


def _epsilon_chart(
    analysis: Values, field: str, title: str, choose: alt.Parameter | None = None
) -> alt.LayerChart | alt.FacetChart:
    order = [rows.epsilon_label(epsilon) for epsilon in analysis["epsilons"]]
    lines = _data_chart("rows") if choose is None else _data_chart("rows").transform_filter("datum.rule == rule")
    lines = lines.encode(
        x=alt.X(
            "epsilon:O",
            title="ε",
            scale=alt.Scale(domain=order),
            axis=alt.Axis(labelAngle=0, labelAlign="center", labelBaseline="top"),
        ),
        y=alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False, nice=True), axis=alt.Axis(tickCount=5)),
        color=_label_colors("agent", rows.agents_of(analysis), AGENT_COLORS, "stroke"),
        tooltip=_tooltips("agent:N", "epsilon:N", f"{field}:Q"),
    )
    own = [] if analysis["epsilon"] is None else [{"epsilon": rows.epsilon_label(analysis["epsilon"])}]
    own_chart = alt.Chart(alt.InlineData(values=own))
    points = lines.mark_point() if choose is None else lines.mark_point().add_params(choose)
    line_marks = lines.mark_line().encode(strokeDash=_agent_dashes(rows.agents_of(analysis)))
    layers = own_chart.mark_rule(strokeDash=[4, 3], opacity=0.6).encode(x="epsilon:O"), line_marks, points
    return alt.layer(*layers).properties(height=200)


def _update_fates_chart(analysis: Values) -> Figure:
    names, table, merges = rows.agents_of(analysis), rows.fates(analysis), rows.merges(analysis)
    bars = _data_chart("rows").encode(
        x=_share_of_updates(),
        y=_agent_axis(names),
        yOffset=alt.YOffset("merge:N", sort=None, scale=alt.Scale(paddingInner=0.15)),
        order=alt.Order("order:Q"),
        tooltip=_tooltips("agent:N", "merge:N", "fate:N", "share:Q", "elements:Q", "retained:Q"),
    )
    colors = _label_colors("fate", FATES, [GREEN, SKY, VERMILION, "#BDBDBD"])
    ends = bars.transform_filter("datum.order == 0").transform_calculate(
        end="1", words="datum.merge + ' ' + datum.percent"
    )
    chart = alt.layer(
        bars.mark_bar().encode(color=colors),
        ends.mark_text(align="left", dx=5).encode(x=alt.X("end:Q"), text="words:N"),
    ).properties(height=26 * len(names) * len(merges))
    return Figure(
        name="fates",
        title="What a merge leaves",
        caption=f"Each agent's moved elements under {enumerated(list(merges.values()))}, stored in "
        f"{analysis['dtype']}: kept (at least 99 % of the update), diluted, flipped in sign, or lost: the output has "
        "the base's value. Averaging adds the mean of all task vectors. The figure next to each bar is the share of "
        "the update that is retained.",
        text=f"Retained by RAM: {_figure_per_agent(analysis, lambda agent: agent['fates']['ram']['retained'])}; "
        f"by averaging: {_figure_per_agent(analysis, lambda agent: agent['fates']['average']['retained'])}.",
        chart=chart,
        rows=table,
    )


# --- shared parts -----------------------------------------------------------------------------------------------------

_WHOLE = alt.Scale(domain=[0, 1], nice=False)
_FORMATS = {
    **dict.fromkeys(("share", "density", "unique_share", "sign_agreement", "retained", "precision_loss"), ".3p"),
    **dict.fromkeys(("elements", "moved", "both", "tensors"), ","),
    **dict.fromkeys(("jaccard", "cosine", "rho", "lambda", "effective_lambda", "times", "magnitude_ratio"), ".4~r"),
    "expected": ",.0f",
}
TITLES = {
    "label": "shared with",
    "unique_share": "unique share",
    "expected": "both by chance",
    "times": "both / chance",
    "sign_agreement": "same sign",
    "precision_loss": "erased by rounding",
    "effective_lambda": "effective lambda",
    "magnitude_ratio": "ratio of sizes",
    "bin": "from 2 to the power",
    "first": "agent",
    "second": "and",
}


def _data_chart(data: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name=data))


def _tooltips(*fields: str) -> list[alt.Tooltip]:
    names = [field.partition(":")[0] for field in fields]
    return [
        alt.Tooltip(field, title=TITLES.get(name, name), format=_FORMATS.get(name, alt.Undefined))
        for field, name in zip(fields, names, strict=True)
    ]


def _slanted_axis(angle: float) -> alt.Axis:
    return alt.Axis(orient="top", labelAngle=angle, labelOverlap=False)


def _share_of_updates() -> alt.X:
    quarters = alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1])
    return alt.X("share:Q", stack="zero", title="share of moved elements", scale=_WHOLE, axis=quarters)


def _agent_axis(names: Sequence[str]) -> alt.Y:
    return alt.Y(
        "agent:N",
        title=None,
        scale=alt.Scale(domain=list(names)),
        axis=alt.Axis(ticks=False, domain=False, labelPadding=6),
    )


def _label_colors(field: str, labels: Sequence[str], colors: Sequence[str], symbol: str = "square") -> alt.Color:
    """Give each label a color."""
    scale = alt.Scale(domain=list(labels), range=[colors[t % len(colors)] for t in range(len(labels))])
    return alt.Color(f"{field}:N", scale=scale, legend=_legend(labels, symbol))


def _legend(labels: Sequence[str], symbol: str) -> alt.Legend:
    """Return a legend with as many columns as fit on a phone."""
    columns = 240 // (28 + min(7 * max(map(len, labels)), 96))
    return alt.Legend(columns=min(columns, len(labels)), symbolType=symbol)


def _agent_dashes(names: Sequence[str]) -> alt.StrokeDash:
    """Give each agent a dash pattern. The first agent's line is solid and drawn first: it shows in the gaps of the
    others.
    """
    scale = alt.Scale(domain=list(names), range=[_DASHES[t % len(_DASHES)] for t in range(len(names))])
    return alt.StrokeDash("agent:N", scale=scale, legend=_legend(names, "stroke"))


def _percent_axis() -> alt.Axis:
    return alt.Axis(format="%", tickCount=5)


def _heatmap_colors(count: int) -> list[str]:
    """Return colors for a heat map from pale to strong, all light enough for black text."""
    pale, strong = (0xFD, 0xE3, 0xC1), (0xDE, 0x7A, 0x12)
    steps = [t / max(count - 1, 1) for t in range(count)] if count > 1 else [0.5] * count
    return ["#" + "".join(f"{round(a + (b - a) * t):02X}" for a, b in zip(pale, strong, strict=True)) for t in steps]


def _figure_per_agent(analysis: Values, figure: Callable[[Values], float | None], form: str = ".1%") -> str:
    values = [(agent["name"], figure(agent)) for agent in analysis["model"]["agents"]]
    return ", ".join(f"{name} {'infinite' if value is None else format(value, form)}" for name, value in values)
