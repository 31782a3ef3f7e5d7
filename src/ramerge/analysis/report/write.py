"""An analysis as one HTML page that needs no network, and as figures for a paper.

`rows` turns the analysis into rows of numbers, `charts` says how each figure shows them (Altair), `page` puts page and
libraries into one file (Jinja2, Vega, DataTables). Names of agents and tensors come from strangers: they reach the page
as JSON data or through Jinja2's escaping, never as markup or code.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramerge.foundation.errors import RecipeError
from ramerge.foundation.extras import install
from ramerge.foundation.files import write_file

_LIBRARIES = ("altair", "itables", "jinja2", "vl_convert")


def render(analysis: Mapping[str, Any], record: Mapping[str, Any] | None = None, recipe: str | None = None) -> str:
    """The page.

    Args:
        analysis: the values of `Analysis.as_dict()`.
        record: the values of `ramerge.json`, if there was a merge.
        recipe: the recipe's YAML text; by default what the analysis holds of it.

    Returns:
        HTML, to be written as UTF-8.

    Raises:
        RecipeError: a library is missing.
    """
    require_extra()
    from ramerge.analysis.report.page import page

    return page(analysis, record, recipe)


def write_figures(analysis: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write each figure as PNG and as SVG, one column of a paper wide.

    Args:
        analysis: the values of `Analysis.as_dict()`.
        folder: made if it is not there; files of the same names are replaced, each at once.

    Returns:
        The paths written.

    Raises:
        RecipeError: a library is missing.
        OutputError: the folder or a file cannot be written; those before it are there.
    """
    require_extra()
    from ramerge.analysis.report.charts import paper_figures

    written = []
    for figure in paper_figures(analysis):
        for path, content in figure.files(folder):
            write_file(path, content)
            written.append(path)
    return written


def require_extra() -> None:
    """Raise RecipeError if a library is missing."""
    missing = [name.replace("_", "-") for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise RecipeError(f"the report needs libraries that are not here ({', '.join(missing)}): {install('report')}")
