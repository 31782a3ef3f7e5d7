"""Makes an HTML page as one file: a template, its data, and the libraries that show it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup
from rich.filesize import decimal

from ramerge.report.figures import VEGA_LITE, Figure
from ramerge.sdk.text import one_line, page_styles

_HERE = Path(__file__).parent
_FONT = 12


def figures_page(template: Path, figures: Sequence[Figure], **values: Any) -> str:
    """Make a page of figures and of tables that need no script, for searches and runs.

    Args:
        template: a template that extends `frame.html`.
        figures: the figures, which the template shows by including `figures.html`.
    """
    script = 'document.documentElement.dataset.ready = "";\n'
    return scripted_page(environment(template.parent), template.name, figures, script, **values)


def scripted_page(
    templates: jinja2.Environment,
    name: str,
    figures: Sequence[Figure],
    script: str,
    styles: str = "",
    libraries: Mapping[str, str] | None = None,
    data: Mapping[str, object] | None = None,
    **values: object,
) -> str:
    """Make a page with a script as one file, for analyses. The page's policy allows only this script.

    Args:
        templates: the `environment` of the template's folder.
        figures: the figures, which the template shows by including `figures.html`.
        libraries: JavaScript modules, by the names under which the script imports them.
        data: the script's data.
    """
    script = (_HERE / "figures.js").read_text(encoding="utf-8") + script
    specs = {figure.name: figure.spec(_FONT, width="container") for figure in figures}
    return templates.get_template(name).render(
        figures=figures,
        data={"figures": specs, **(data or {})},
        libraries=chart_libraries() | dict(libraries or {}),
        styles=Markup(styles + page_styles()),
        script=Markup(script),
        digest=b64encode(sha256(script.encode()).digest()).decode(),
        **values,
    )


def table(label: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as a part of a page, in the style of reports; cells are text or markup."""
    module: Any = environment(_HERE).get_template("parts.html").module
    return str(module.table(label, head, rows))


@cache
def chart_libraries() -> dict[str, str]:
    """Return the scripts that draw the charts."""
    return {"charts": vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)}


@cache
def environment(folder: Path, filters: tuple[tuple[str, Callable[..., str]], ...] = ()) -> jinja2.Environment:
    """Templates of a folder and of `report`, with further filters by name."""
    jinja_environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_plain_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja_environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    jinja_environment.filters.update(FILTERS | dict(filters))
    return jinja_environment


def _plain_value(value: object) -> object:
    """Escape control characters in text that a template shows; keep line breaks, markup and other values unchanged."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(one_line, value.split("\n")))


def _plain_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {item}" for key, item in value.items()) or "none"
    if isinstance(value, str) or not isinstance(value, Iterable):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return ", ".join(map(str, value))


FILTERS: dict[str, Callable[..., str]] = {
    "number": lambda value: "∞" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}",
    "plain": _plain_text,
    "bytes": decimal,
    "count": lambda value: f"{value:,}",
    "seconds": lambda value: f"{value:.1f} s",
}
"""Forms of figures."""
