"""A figure: an Altair chart as Vega-Lite, SVG or PNG, in the colors and sizes of pages and papers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from ramerge.core.foundation.text import visible

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
"""The version of Vega-Lite in which the charts are written."""

# Okabe and Ito's colors for all kinds of sight, black left out because charts stand on black paper too.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, YELLOW = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#F0E442",
]
GRAY = "#999999"
AGENT_COLORS = [BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GRAY, YELLOW]

# A column of a two-column paper, 3.33 inches, in CSS pixels; PNG at four times that, 384 dots an inch.
_COLUMN, _SCALE = 320, 4
INK = "currentColor"
"""The color of the text around a figure."""


@dataclass(frozen=True)
class Figure:
    """A figure of a page: a chart of the dataset `rows`.

    Attributes:
        name: the name of its files, and its id in the page.
        caption: the subject of the figure, and how to read it.
        text: the same figure as a sentence, for readers who cannot see it.
    """

    name: str
    title: str
    caption: str
    text: str
    chart: alt.Chart | alt.LayerChart | alt.FacetChart
    rows: Sequence[dict[str, Any]]

    def spec(self, font: int, **sizes: Any) -> dict[str, Any]:
        """Return the figure as Vega-Lite. `font`: the size of text in pixels."""
        fit = alt.AutoSizeParams(type="fit-x", contains="padding")
        spec: dict[str, Any] = self.chart.properties(description=self.text, autosize=fit, **sizes).to_dict()
        spec["datasets"] = {**spec.get("datasets", {}), "rows": list(self.rows)}
        visible_spec: dict[str, Any] = visible(spec | {"config": _chart_config(font)})
        return visible_spec

    def svg(self) -> str:
        """Return the figure as SVG, in the color of the text around it."""
        spec = json.dumps(self.spec(11, width=340))
        return str(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE))

    def files(self, folder: Path) -> Iterator[tuple[Path, bytes]]:
        """Yield the figure as files for a paper, PNG and SVG, one column wide."""
        spec = self.spec(9, width=_COLUMN)
        spec["background"] = "white"
        text = json.dumps(spec)
        yield folder / f"{self.name}.png", vl_convert.vegalite_to_png(text, vl_version=VEGA_LITE, scale=_SCALE)
        yield folder / f"{self.name}.svg", vl_convert.vegalite_to_svg(text, vl_version=VEGA_LITE).encode()


def _chart_config(font: int) -> dict[str, object]:
    """The style of charts. Ink is the color of the surrounding text: light or dark on the page, black in a file."""
    ink = {"labelColor": INK, "titleColor": INK, "labelFontSize": font, "titleFontSize": font, "titleFontWeight": 500}
    lines = {"domainColor": INK, "tickColor": INK, "gridColor": INK, "gridOpacity": 0.12, "domainOpacity": 0.5}
    return {
        "font": "system-ui, 'Liberation Sans', Arial, sans-serif",
        "background": None,
        "view": {"stroke": None},
        "axis": {**ink, **lines, "tickOpacity": 0.5, "labelLimit": 7 * font, "titlePadding": font / 2},
        "axisX": {"labelOverlap": "parity", "labelFlush": False, "labelSeparation": font / 2},
        "legend": {
            **ink,
            "orient": "top",
            "offset": 6,
            "title": None,
            "labelLimit": 8 * font,
            "symbolType": "square",
            "rowPadding": 4,
        },
        "text": {"color": INK, "fontSize": font},
        "rule": {"color": INK},
        "line": {"strokeWidth": 2},
        "point": {"filled": True, "size": 40},
    }
