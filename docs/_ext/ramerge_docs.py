"""The list of methods, words for the search, formulas without scripts, included files, and a check of all links."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from docs.tables import all_methods
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

# --- tables ---------------------------------------------------------------------------------------------------------


class AllMethodsDirective(SphinxDirective):
    """`{all-methods}`: every method in the registry, with a link to its page."""

    def run(self) -> list[nodes.Node]:
        """The nodes of a table."""
        return self.parse_text_to_nodes(all_methods())


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


# --- search ---------------------------------------------------------------------------------------------------------

_SEARCH = re.compile(r"<!-- search: (.+?) -->\n")


def index_words(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Make `<!-- search: vLLM, serve -->` entries of the index, for which the search shows that place first."""

    def entries(found: re.Match[str]) -> str:
        return f"```{{index}} {', '.join(f'! {word}' for word in found[1].split(', '))}\n```\n"

    source[0] = _SEARCH.sub(entries, source[0])


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
    """Register everything above with Sphinx."""
    app.add_directive("all-methods", AllMethodsDirective)
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_block_math, None))
    app.connect("source-read", link_to_pages)
    app.connect("source-read", index_words)
    app.connect("build-finished", check_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
