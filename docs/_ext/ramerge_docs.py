"""What the site takes from the code, so that it cannot go stale: methods, public names; and a check of all links."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from benchmarks import methods as measured
from benchmarks.report import SMALL, load
from benchmarks.timing import ratios, spread
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective

import ramerge
from ramerge.methods.table import METHODS, describe, reads_in_words

# --- methods --------------------------------------------------------------------------------------------------------


class MethodDirective(SphinxDirective):
    """`{method-facts} ram+`: a method as `ramerge methods` shows it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Nodes of a few tables."""
        return self.parse_text_to_nodes(_method_text(describe(METHODS[self.arguments[0]])))


def _method_text(method: Mapping[str, Any]) -> str:
    reads = f"{reads_in_words(method)} of all inputs, with default parameters"
    facts = [("Formula", _code(method["formula"])), ("Source", _linked(method["source"])), ("Reads", reads)]
    if method["differs"]:
        facts.append(("mergekit", method["differs"]))
    parts = ["\n".join(f"- **{name}:** {text}" for name, text in facts)]
    if method["parameters"]:
        rows = [_parameter_row(name, field) for name, field in method["parameters"].items()]
        parts.append(_table(("parameter", "default", "values", "meaning"), rows))
    if method["presets"]:
        rows = [
            (f"`{name}`", ", ".join(f"`{key}` = `{value}`" for key, value in values.items()))
            for name, values in method["presets"].items()
        ]
        parts.append(_table(("preset", "parameters"), rows))
    return "\n\n".join(parts)


def _parameter_row(name: str, field: Mapping[str, Any]) -> tuple[str, ...]:
    default = field["default"] if isinstance(field["default"], str) else json.dumps(field["default"])
    only = "".join(f"Only with `{key}: {value}`: " for key, value in field["only"].items())
    return f"`{name}`", f"`{default}`", _cell(field["range"]), only + _cell(field["description"])


class MethodsTableDirective(SphinxDirective):
    """`{methods-table}`: all methods, each with a link to its page."""

    def run(self) -> list[nodes.Node]:
        """Nodes of one table."""
        rows = [
            (
                f"[`{name}`]({page_of(name)})",
                _cell(method.title),
                _code(method.formula),
                reads_in_words(describe(method)),
            )
            for name, method in METHODS.items()
        ]
        return self.parse_text_to_nodes(_table(("method", "title", "merged task vector", "reads"), rows))


class MethodsCostDirective(SphinxDirective):
    """`{methods-cost}`: time over a file copy, and memory, as they were measured."""

    def run(self) -> list[nodes.Node]:
        """Nodes of one table."""
        taken = load(measured.SECTION)[SMALL].data["taken"]
        rows = [(f"`{name}`", *_cost(taken, name)) for name in METHODS if name in taken]
        return self.parse_text_to_nodes(_table(("method", "over the copy", "peak memory, MB"), rows))


def _cost(taken: Mapping[str, Any], name: str) -> tuple[str, str]:
    floor = taken.get(f"floor of {name}", taken["floor"])
    over = ratios([one["seconds"] for one in taken[name]], [one["seconds"] for one in floor])
    return over.text(), spread([one["peak"] / 1e6 for one in taken[name]]).text(0)


def page_of(method: str) -> str:
    """The file of a method's page."""
    return f"{method.replace('+s', '-plus-s').replace('+', '-plus').replace('_', '-')}.md"


def _code(text: str) -> str:
    return f"`{_cell(text.replace('`', ''))}`"


def _linked(text: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = tuple("---" for _ in head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


# --- public names ---------------------------------------------------------------------------------------------------


class PublicNamesDirective(SphinxDirective):
    """`{public-names} functions` (or `classes`, `errors`): those of `ramerge.__all__`, from their docstrings."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Nodes that autodoc makes."""
        text = "\n".join(_autodoc(name) for name in _names(self.arguments[0]))
        return self.parse_text_to_nodes(f"````{{eval-rst}}\n{text}\n````")


def _names(kind: str) -> list[str]:
    return [name for name in ramerge.__all__ if not name.startswith("_") and _kind(name) == kind]


def _kind(name: str) -> str:
    value = getattr(ramerge, name)
    if not inspect.isclass(value):
        return "functions"
    return "errors" if issubclass(value, BaseException) else "classes"


def _autodoc(name: str) -> str:
    if _kind(name) == "functions":
        return f".. autofunction:: ramerge.{name}\n"
    if _kind(name) == "errors":
        return f".. autoexception:: ramerge.{name}\n   :no-index-entry:\n   :show-inheritance:\n"
    methods = ", ".join(_methods(getattr(ramerge, name)))
    # `()`: the signature is not asked for, which autodoc cannot give for typed dictionaries
    return f".. autoclass:: ramerge.{name}()\n" + (f"   :members: {methods}\n" if methods else "")


def _methods(cls: type) -> Iterator[str]:
    """Public methods and properties that a class defines itself. Its fields are described in its docstring."""
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", value)
        if not name.startswith("_") and (inspect.isfunction(function) or isinstance(value, property)):
            yield name


def without_fields(_app: Sphinx, what: str, *_more: object) -> tuple[str, None] | None:
    """No list of all fields in the heading of a class, which describes them under `Attributes`."""
    return ("", None) if what == "class" else None


def escape_docstring(_app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Our docstrings are plain text: bars around magnitudes are no substitutions of reStructuredText, and so on."""
    lines[:] = [_MARKUP.sub(lambda found: found[1] or f"\\{found[2]}", line) for line in _with_bullets(lines)]


# napoleon takes what stands before the first colon of a property's docstring for its type
_COLON = "\N{MODIFIER LETTER COLON}"


def hide_colons(_app: Sphinx, what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Before napoleon."""
    if what == "property":
        lines[:] = [line.replace(":", _COLON) for line in lines]


def show_colons(_app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """After napoleon."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


_MARKUP = re.compile(r"(`[^`]*`)|([|*]|_(?!\w))")
_SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:")


def _with_bullets(lines: list[str]) -> Iterator[str]:
    """Lists of names below a line of ours, such as `Methods that trim report:`, as lists of reStructuredText."""
    inside = False
    for line in lines:
        if line[:1].strip():
            inside = line.endswith(":") and line not in _SECTIONS
            yield line
            if inside:
                yield ""
        else:
            item = inside and re.match(r" {4}\w+: ", line)
            yield f"    - {line[4:]}" if item else (f"  {line}" if inside and line else line)


def public_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, contents: nodes.Node) -> nodes.reference | None:
    """Lead `ramerge.engine.record.Record`, which annotations say, to `ramerge.Record`, which the page has."""
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    if node.get("refdomain") != "py" or target == f"ramerge.{name}" or name not in ramerge.__all__:
        return None
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", f"ramerge.{name}", node, contents)


# --- included files -------------------------------------------------------------------------------------------------

_INCLUDE = re.compile(r"```\{include\} (\S+)\n")


def link_to_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Lead links to files of the repository, which readers of the sources follow, to the pages that include them."""
    folder = Path(app.srcdir, docname).parent

    def page(found: re.Match[str]) -> str:
        target = _including(Path(app.srcdir)).get((folder / found[1]).resolve())
        return f"]({os.path.relpath(target, folder)}{found[2] or ''})" if target else found[0]

    source[0] = re.sub(r"\]\(([^()#:]+\.md)(#[^()]*)?\)", page, source[0])


@cache
def _including(root: Path) -> dict[Path, Path]:
    """Files outside of the site to the pages that include them."""
    pages = [(path, _INCLUDE.match(path.read_text(encoding="utf-8"))) for path in root.rglob("*.md")]
    return {(path.parent / found[1]).resolve(): path for path, found in pages if found}


# --- links ----------------------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """The anchors of a page, and where its links and images lead."""

    _LINKS: ClassVar[Mapping[str, str]] = {"a": "href", "img": "src", "link": "href", "script": "src"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down what an element names or leads to."""
        values = {key: value for key, value in attrs if value}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag in self._LINKS and self._LINKS[tag] in values:
            self.links.add(values[self._LINKS[tag]])


def check_links(app: Sphinx, error: Exception | None) -> None:
    """Every link inside the site must lead to a file, and to an anchor in it if it names one."""
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")}
    broken = [
        f"{path.relative_to(out.resolve())}: {link}"
        for path, page in sorted(pages.items())
        for link in sorted(page.links)
        if not _leads_somewhere(path, link, pages)
    ]
    if broken:
        raise SphinxError("links that lead nowhere:\n" + "\n".join(broken))


def _leads_somewhere(path: Path, link: str, pages: Mapping[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target = target / "index.html"
    if target in pages:
        return not parts.fragment or unquote(parts.fragment) in pages[target].anchors
    return target.is_file()


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.add_directive("method-facts", MethodDirective)
    app.add_directive("methods-table", MethodsTableDirective)
    app.add_directive("methods-cost", MethodsCostDirective)
    app.add_directive("public-names", PublicNamesDirective)
    app.connect("autodoc-process-signature", without_fields)
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    app.connect("source-read", link_to_pages)
    app.connect("missing-reference", public_name)
    app.connect("build-finished", check_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
