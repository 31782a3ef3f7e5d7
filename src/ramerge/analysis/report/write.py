"""Writes the page of an analysis as text, and its figures as files for a paper; called by the commands.

`rows` turns the analysis into rows of numbers, `charts` draws figures from them (Altair), and `page` puts page and
libraries into one file (Jinja2, Vega, DataTables). Names of agents and tensors are untrusted: they reach the page as
JSON data or through Jinja2's escaping, never as markup or code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ramerge import Progress
from ramerge.report.extra import require_extra
from ramerge.sdk.progress import Listener, silence


def render(
    analysis: Mapping[str, object],
    record: Mapping[str, object] | None = None,
    recipe: str | None = None,
    listen: Listener = silence,
    advice: Sequence[str] = (),
) -> str:
    """Return the page of an analysis as one HTML file.

    Args:
        record: the values of `ramerge.json` of a finished merge.
        recipe: the recipe's YAML text; by default the analysis's own copy.
    """
    require_extra()
    listen(Progress("drawing", 0, 1, "pages"))
    from ramerge.analysis.report.page import page

    text = page(analysis, record, recipe, advice)
    listen(Progress("drawing", 1, 1, "pages"))
    return text


def figure_files(analysis: Mapping[str, object], folder: Path, listen: Listener = silence) -> list[tuple[Path, bytes]]:
    """Return the figure files of an analysis for `--figures`: PNG and SVG, one column of a paper wide."""
    require_extra()
    from ramerge.analysis.report.charts import paper_figures

    files: list[tuple[Path, bytes]] = []
    figures = paper_figures(analysis)
    for number, figure in enumerate(figures):
        listen(Progress("drawing", number, len(figures), "figures"))
        files += figure.files(folder)
    listen(Progress("drawing", len(figures), len(figures), "figures"))
    return files
