"""The HTML page of an analysis: its template and values; its findings, as a part of the tab Look."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import itables
from ruamel.yaml import YAML

from ramerge.analysis.report import rows
from ramerge.analysis.report.charts import page_figures
from ramerge.analysis.report.rows import Values
from ramerge.analysis.text import agent_figures, effective_with_error, percent
from ramerge.core.foundation.text import visible
from ramerge.report.page import FILTERS, environment, scripted_page

_HERE = Path(__file__).parent
_FILTERS = (("percent", percent), ("effective", effective_with_error), ("threshold", rows.threshold_label))
_TABLES = Path(itables.__file__).parent / "html" / "dt_bundle.js"
# Words of the glossary in place of those of the terminal.
_HEADINGS = {"unique": "unique share", "rho": "ρ", "lambda (ram+)": "λ of RAM+", "by RAM": "retained by RAM"}
# Of the record: figures with a form of their own, and what has a table of its own.
_RECORD_FORMS = {"bytes_read": "bytes", "bytes_written": "bytes", "peak_memory_bytes": "bytes", "seconds": "seconds"}
_RECORD_APART = {"agents", "parts", "notes", "warnings", "rules"}


def page(analysis: Values, record: Values | None, recipe: str | None, advice: Sequence[str] = ()) -> str:
    visible_record = {
        key: value for key, value in (record or {}).items() if key not in _RECORD_APART and value is not None
    }
    if recipe is None:
        stream = io.StringIO()
        YAML().dump(analysis["recipe"], stream)
        recipe = stream.getvalue()
    return scripted_page(
        environment(_HERE, _FILTERS),
        "page.html",
        page_figures(analysis),
        (_HERE / "page.js").read_text(encoding="utf-8"),
        _TABLES.with_suffix(".css").read_text(encoding="utf-8"),
        {"tables": _TABLES.read_text(encoding="utf-8")},
        visible({"tensors": rows.tensors(analysis), "agents": rows.agents_of(analysis)}),
        version=analysis["ramerge_version"],
        record={
            key.replace("_", " "): FILTERS[_RECORD_FORMS.get(key, "plain")](value)
            for key, value in visible_record.items()
        }
        if record
        else None,
        notes=(record or {}).get("notes", []),
        warnings=(record or {}).get("warnings", []),
        statistics=[{"name": name, **agent} for name, agent in (record or {}).get("agents", {}).items()],
        recipe=recipe,
        **_shared_template_values(analysis, advice),
    )


def findings(analysis: Values, advice: Sequence[str] = ()) -> str:
    """Return the findings, agents, advice, dtypes and pairs of an analysis as HTML, for the tab Look."""
    parts = [environment(_HERE, _FILTERS).get_template(name) for name in ("findings.html", "pairs.html")]
    return "".join(part.render(_shared_template_values(analysis, advice), unfolded=True) for part in parts)


def _shared_template_values(analysis: Values, advice: Sequence[str]) -> dict[str, object]:
    """Return the template values that `page` and `findings` share."""
    agents = analysis["model"]["agents"]
    figures = [agent_figures(agent, analysis["method"], analysis["rounding"]) for agent in agents]
    return {
        "analysis": analysis,
        "findings": [(each["text"], each["reason"]) for each in analysis["findings"]],
        "agents": agents,
        "head": [_HEADINGS.get(title, title) for title in figures[0]],
        "figures_of_agents": [list(each.values()) for each in figures],
        "advice": [line.partition(": ")[::2] for line in advice],
        "pairs": rows.pairs(analysis),
        "precision": rows.precision(analysis),
    }
