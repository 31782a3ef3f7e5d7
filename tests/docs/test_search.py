"""The site's search finds the right page first: Sphinx's own script is asked, in a browser, about the built site."""

import re
from pathlib import Path

import pytest

from tests.tiers import unavailable
from tests.ui.served import CHROMIUM, chromium

pytestmark = pytest.mark.full  # the site and a browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIRST = {
    "vLLM": "guides/merge",
    "chat template": "guides/merge",
    "license": "guides/license",
    "which method": "methods/index",
    "memory": "guides/merge",
    "GPU": "guides/merge",
    "quantize": "guides/merge-quantized",
    "MoE": "guides/merge-models-that-differ",
    "vision": "guides/merge-models-that-differ",
    "adapter": "guides/merge-lora",
}
LAST = re.compile(r"(decisions|experiments|results)/|(findings|changes|contributing)$")
# what `query` of Sphinx's searchtools.js does, but for showing the results, of which it shows the last one first
ASK = "query => Search._performSearch(...Search._parseQuery(query)).map(result => result[0]).reverse()"


def test_the_search_finds_guides_first() -> None:
    pytest.importorskip("playwright")
    site = ROOT / "build" / "docs"
    if not CHROMIUM or not (site / "searchindex.js").exists():
        unavailable("no chromium, or no site: run `make docs`")
    words = dict(FIRST)
    for page in sorted(DOCS.rglob("*.md")):
        for found in re.findall("<!-- search: (.+?) -->", page.read_text(encoding="utf-8")):
            words |= dict.fromkeys(found.split(", "), str(page.relative_to(DOCS).with_suffix("")))
    assert {word: words[word] for word in FIRST} == FIRST
    with chromium() as browser:
        page = browser.new_page()
        page.goto((site / "search.html").as_uri())
        page.wait_for_function("Search.hasIndex()")
        answers = {word: page.evaluate(ASK, word) for word in words}
        everything = page.evaluate(ASK, "merge")
    assert {word: pages[0] for word, pages in answers.items()} == words
    ranked = [name for name in everything if LAST.match(name) or name.startswith("guides/")]
    last = [bool(LAST.match(name)) for name in ranked]
    assert True in last and last == sorted(last), ranked
