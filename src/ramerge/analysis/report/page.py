"""The page: a template, its data, and the libraries that show them, in one file."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import itables
import jinja2
import vl_convert
from markupsafe import Markup
from rich.filesize import decimal
from ruamel.yaml import YAML

from ramerge.analysis.figures import agent_figures, effective_with_error, percent
from ramerge.analysis.report import rows
from ramerge.analysis.report.charts import VEGA_LITE, Figure, page_figures
from ramerge.analysis.report.rows import Values
from ramerge.sdk.machine import page_styles
from ramerge.sdk.text import one_line, visible

_HERE = Path(__file__).parent
_TABLES = Path(itables.__file__).parent / "html" / "dt_bundle.js"
_FONT = 12
# Words of the glossary in place of those of the terminal.
_HEADINGS = {"unique": "unique share", "rho": "ρ", "lambda (ram+)": "λ of RAM+", "by RAM": "retained by RAM"}
# Of the record: figures with a form of their own, and what has a table of its own.
_RECORD_FORMS = {"bytes_read": "bytes", "bytes_written": "bytes", "peak_memory_bytes": "bytes", "seconds": "seconds"}
_RECORD_APART = {"statistics", "notes", "warnings", "rules"}


def page(analysis: Values, record: Values | None, recipe: str | None, advice: Sequence[str] = ()) -> str:
    return _rendered(
        _HERE / "page.html",
        page_figures(analysis),
        _read("figures.js") + _read("page.js"),
        _TABLES.with_suffix(".css").read_text(encoding="utf-8") + page_styles(),
        chart_libraries() | {"tables": _TABLES.read_text(encoding="utf-8")},
        visible({"tensors": rows.tensors(analysis), "agents": rows.agents_of(analysis)}),
        version=analysis["ramerge_version"],
        record=_plain(record) if record else None,
        notes=(record or {}).get("notes", []),
        warnings=(record or {}).get("warnings", []),
        statistics=(record or {}).get("statistics", {}).get("agents", []),
        recipe=recipe if recipe is not None else _as_yaml(analysis["recipe"]),
        **_found(analysis, advice),
    )


def findings(analysis: Values, advice: Sequence[str] = ()) -> str:
    """The page's findings, agents, advice, forecast, dtypes and pairs, for another page with the same styles."""
    parts = [_environment(_HERE).get_template(name) for name in ("findings.html", "pairs.html")]
    return "".join(part.render(_found(analysis, advice), unfolded=True) for part in parts)


def table(label: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for another page with the same styles; cells are texts, or markup."""
    module: Any = _environment(_HERE).get_template("table.html").module
    return str(module.table(label, head, rows))


def _found(analysis: Values, advice: Sequence[str]) -> dict[str, Any]:
    """Parts of the page that show what `findings` has, too."""
    agents = analysis["model"]["agents"]
    figures = [agent_figures(agent, analysis["method"], analysis["rounding"]) for agent in agents]
    return {
        "analysis": analysis,
        "agents": agents,
        "head": [_HEADINGS.get(title, title) for title in figures[0]],
        "figures_of_agents": [list(each.values()) for each in figures],
        "advice": [line.partition(": ")[::2] for line in advice],
        "pairs": rows.pairs(analysis),
        "precision": rows.precision(analysis),
        "cores": _cores(analysis),
    }


def _cores(analysis: Values) -> list[list[str]]:
    """Head and rows of the table of coefficients: the model, then roles."""
    if (cores := analysis.get("cores")) is None:
        return []
    lines = [["part", *cores["model"]["coefficients"], rows.SUM]]
    for part in (cores["model"], *cores["roles"]):
        values = [*part["coefficients"].values(), part["factor"]]
        lines.append([part["name"], *("–" if value is None else f"{value:.2f}" for value in values)])
    return lines


def plain_page(template: Path, figures: Sequence[Figure], **values: Any) -> str:
    """A page of a template that extends `frame.html`: figures, and tables that need no script."""
    script = _read("figures.js") + 'document.documentElement.dataset.ready = "";\n'
    return _rendered(template, figures, script, page_styles(), chart_libraries(), {}, **values)


def _rendered(
    template: Path,
    figures: Sequence[Figure],
    script: str,
    styles: str,
    libraries: Mapping[str, str],
    data: Mapping[str, Any],
    **values: Any,
) -> str:
    """A page as one file. Its policy allows this script only."""
    specs = {figure.name: figure.spec(_FONT, width="container") for figure in figures}
    text: str = (
        _environment(template.parent)
        .get_template(template.name)
        .render(
            figures=figures,
            data={"figures": specs, **data},
            libraries=libraries,
            styles=Markup(styles),
            script=Markup(script),
            digest=b64encode(sha256(script.encode()).digest()).decode(),
            **values,
        )
    )
    return text


@cache
def chart_libraries() -> dict[str, str]:
    """The scripts that draw the charts."""
    return {"charts": vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)}


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _as_yaml(values: Mapping[str, Any]) -> str:
    stream = io.StringIO()
    YAML().dump(values, stream)
    return stream.getvalue()


def _plain(record: Values) -> dict[str, str]:
    shown = {key: value for key, value in record.items() if key not in _RECORD_APART and value is not None}
    return {key.replace("_", " "): _FILTERS[_RECORD_FORMS.get(key, "plain")](value) for key, value in shown.items()}


# --- forms of figures -------------------------------------------------------------------------------------------------


@cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters.update(_FILTERS)
    return environment


def _shown(value: Any) -> Any:
    """Convert what the template puts out: texts to lines that show as they are. Our own markup is not a text."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(one_line, value.split("\n")))


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _plain_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {item}" for key, item in value.items()) or "none"
    if isinstance(value, str) or not isinstance(value, Iterable):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return ", ".join(map(str, value))


_FILTERS: dict[str, Any] = {
    "percent": percent,
    "number": _number,
    "plain": _plain_text,
    "bytes": decimal,
    "effective": effective_with_error,
    "threshold": rows.threshold_label,
    "count": lambda value: f"{value:,}",
    "seconds": lambda value: f"{value:.1f} s",
}
