"""The page of a search, `search.html`, in the style of the analysis. It needs no network."""

from __future__ import annotations

from pathlib import Path

from ramerge.searches.results import SearchResult
from ramerge.searches.space import spelling
from ramerge.searches.text import column_definitions, findings, ranking_rows


def render(result: SearchResult, recipe: str) -> str:
    """Return the page of a search, as one HTML file.

    Args:
        result: the search.
        recipe: the YAML of the best point's recipe.
    """
    from ramerge import __version__
    from ramerge.report.page import figures_page
    from ramerge.searches.charts import figures_of

    head, rows = ranking_rows(result)
    apart = f"Validation and test: {result.apart}." if result.apart else "Validation and test items are the same."
    return figures_page(
        Path(__file__).with_name("page.html"),
        figures_of(result),
        version=__version__,
        result=result,
        winner=spelling(result.winner.point),
        findings=[
            (text, "")
            for text in [*column_definitions(result), *findings(result), *(f"note: {note}" for note in result.notes)]
        ],
        head=head,
        rows=rows,
        failures=[f"point {point.number}: {point.failure}" for point in result.points if point.state == "failed"],
        recipe=recipe,
        apart=apart,
    )
