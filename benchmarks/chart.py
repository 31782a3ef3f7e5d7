"""The chart of README.md: RAM+, mergekit and a file copy. `python -m benchmarks.chart` draws it from results/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from benchmarks import methods, peers
from benchmarks.report import SMALL, RawResults, load
from benchmarks.timing import spread

CHART = Path(__file__).parents[1] / "docs" / "figures" / "speed.svg"

_COPY, _OURS, _THEIRS = "file copy", "ramerge", "mergekit"
_COLORS = {_COPY: "#9a9a9a", _OURS: "#1a7f5a", _THEIRS: "#c9803a"}


def draw() -> str:
    """The chart as SVG: medians of seconds and peak memory; next to a copy if that was measured on the same machine."""
    ours, theirs = load(methods.SECTION)[SMALL], load(peers.SECTION)[SMALL]
    runs = theirs.data["pairs"]["ram+"]["taken"]
    same = ours.machine["cpu"] == theirs.machine["cpu"]
    copy = {_COPY: _median(ours.data["taken"]["floor"], "seconds")} if same else {}
    seconds = {
        **copy,
        _OURS: _median(runs["ramerge"], "seconds"),
        _THEIRS: _median(runs["mergekit"], "seconds"),
    }
    memory = {name: _median(runs[name], "peak") / 1e9 for name in (_OURS, _THEIRS)}
    panels = alt.hconcat(_panel("time", seconds, ".1f", "s"), _panel("peak memory", memory, ".2f", "GB"), spacing=40)
    title = alt.Title(
        "RAM+ of three agents",
        subtitle=_workload(ours, theirs, has_copy=same),
        anchor="start",
        subtitlePadding=6,
        offset=16,
    )
    chart = panels.properties(title=title).configure(background="white", padding=14).configure_view(stroke=None)
    specification = json.loads(chart.to_json())
    return str(vl_convert.vegalite_to_svg(specification, vl_version=".".join(alt.SCHEMA_VERSION[1:].split(".")[:2])))


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return spread([one[key] for one in runs]).median


def _panel(title: str, values: Mapping[str, float], form: str, unit: str) -> alt.LayerChart:
    """Horizontal bars with their numbers."""
    rows = [{"what": name, "value": value, "text": f"{value:{form}} {unit}"} for name, value in values.items()]
    axis = alt.Axis(title=None, domain=False, ticks=False, labelFontSize=13, labelPadding=8)
    chart = alt.Chart(alt.Data(values=rows), title=alt.Title(title, anchor="start", fontSize=12)).encode(
        y=alt.Y("what:N", sort=list(values), axis=axis),
        x=alt.X("value:Q", axis=None, scale=alt.Scale(domain=[0, 1.3 * max(values.values())])),
    )
    scale = alt.Scale(domain=list(_COLORS), range=list(_COLORS.values()))
    bars = chart.mark_bar(height=18).encode(color=alt.Color("what:N", scale=scale, legend=None))
    numbers = chart.mark_text(align="left", dx=5, fontSize=13).encode(text="text:N")
    return (bars + numbers).properties(width=270, height=alt.Step(28))


def _workload(ours: RawResults, theirs: RawResults, *, has_copy: bool) -> list[str]:
    machine, data, size = theirs.machine, theirs.data, ours.data["bytes"] / 1e9
    return [
        f"Four bfloat16 checkpoints shaped as Qwen2.5-{data['size']}, {size:.2f} GB in all, already in the page cache; "
        f"{machine['cpu']}, {machine['cores']} cores.",
        f"Medians; mergekit {data['versions']['mergekit']} (ramplus_tl) and ramerge in turns."
        + (" The copy reads all inputs, copies one and syncs it." if has_copy else ""),
    ]


if __name__ == "__main__":
    CHART.write_text(draw(), encoding="utf-8")
