"""What the site takes from docstrings, so that it cannot go stale; and a check of all links."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from docs.tables import all_methods, kind_of, names_of
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

import ramerge

# --- public names ---------------------------------------------------------------------------------------------------


class PublicNamesDirective(SphinxDirective):
    """`{public-names} functions` (or `classes`, `errors`): those of `ramerge.__all__`, from their docstrings."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Nodes that autodoc makes."""
        text = "\n".join(_autodoc(name) for name in names_of(self.arguments[0]))
        return self.parse_text_to_nodes(f"````{{eval-rst}}\n{text}\n````")


class AllMethodsDirective(SphinxDirective):
    """`{all-methods}`: every method in the registry, with a link to its page."""

    def run(self) -> list[nodes.Node]:
        """The nodes of a table."""
        return self.parse_text_to_nodes(all_methods())


def _autodoc(name: str) -> str:
    if kind_of(name) == "functions":
        return f".. autofunction:: ramerge.{name}\n"
    if kind_of(name) == "errors":
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
    """Lead `ramerge.core.engine.record.Record`, which annotations say, to `ramerge.Record`, which the page has."""
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    if node.get("refdomain") != "py" or target == f"ramerge.{name}" or name not in ramerge.__all__:
        return None
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", f"ramerge.{name}", node, contents)


# --- formulas -------------------------------------------------------------------------------------------------------


def visit_inline_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula of a sentence as MathML, which browsers typeset without scripts."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_block_math(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on lines of its own as MathML."""
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


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
    app.add_directive("public-names", PublicNamesDirective)
    app.add_directive("all-methods", AllMethodsDirective)
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_block_math, None))
    app.connect("autodoc-process-signature", without_fields)
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    app.connect("source-read", link_to_pages)
    app.connect("missing-reference", public_name)
    app.connect("build-finished", check_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
