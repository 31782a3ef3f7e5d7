"""The page in a browser: Debian's or any other Chromium that is on the path; skipped where there is none."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ramerge.analysis.report import write as report
from tests.analysis.report.analyses import HOSTILE, NAMES, hostile, large, shipped
from tests.tiers import unavailable

playwright = pytest.importorskip("playwright.sync_api")
for library in ("altair", "itables", "jinja2", "vl_convert"):
    pytest.importorskip(library)
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
if not CHROMIUM:
    unavailable("no Chromium on the path")
pytestmark = pytest.mark.full  # the page's libraries, a browser


@dataclass
class Opened:
    """A page, and what happened in it."""

    page: Any
    path: Path
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def rows(self, figure: str) -> list[dict]:
        """A figure's rows from Vega, without what Vega adds."""
        return self.page.evaluate("name => report.views[name].data('rows').map(row => ({...row}))", figure)

    def column(self, place: int) -> list[str]:
        """Of the table, as it is shown, every page of it."""
        shown = "{search: 'applied', order: 'applied'}"
        found = f"place => report.table.cells(null, place, {shown}).render('display').toArray()"
        return self.page.evaluate(found, place)


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # Chromium's own sandbox does not start for root, who runs the tests in containers.
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=alone)
        yield found
        found.close()


@cache
def rendered(values: str) -> str:
    """The page of an analysis, which several tests open."""
    return report.render(json.loads(values))


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens an analysis; at the end, it must have asked for nothing and complained of nothing."""
    all_opened = []

    def opened(values: dict[str, Any], **context: Any) -> Opened:
        path = tmp_path / f"{len(all_opened)}.html"
        path.write_text(rendered(json.dumps(values)), encoding="utf-8")
        one = Opened(browser.new_context(**context).new_page(), path)
        all_opened.append(one)
        one.page.on("console", lambda message: one.complaints.append(message.text))
        one.page.on("pageerror", lambda error: one.complaints.append(str(error)))
        one.page.on("request", lambda request: one.requests.append(request.url))
        one.page.goto(path.as_uri())
        one.page.wait_for_selector("html[data-ready]")
        return one

    yield opened
    for one in all_opened:
        assert one.complaints == []
        assert [url for url in one.requests if not url.startswith("blob:")] == [one.path.as_uri()]
        one.page.context.close()


def test_figures_show_the_numbers_of_the_analysis(open_page: Open) -> None:
    values = shipped()
    opened = open_page(values)
    agents = values["model"]["agents"]
    assert [row["share"] for row in opened.rows("density")][::2] == [agent["density"] for agent in agents]
    assert sum(row["elements"] for row in opened.rows("fates")) == 2 * sum(agent["active"] for agent in agents)
    # What is drawn, not only what is known: the labels of the bars.
    drawn = opened.page.locator("#figure-density svg").text_content()
    for agent in agents:
        assert f"{100 * agent['density']:.3g}"[:3] in drawn
    assert opened.page.locator("figure svg").count() == 8


def test_every_figure_is_described_in_words(open_page: Open) -> None:
    opened = open_page(shipped())
    words = [chart.get_attribute("aria-label") for chart in opened.page.locator("figure .chart").all()]
    assert len(words) == 8
    assert min(map(len, words)) > 20
    assert f"coder {shipped()['model']['agents'][0]['density']:.1%}" in words[0]


def test_the_table_sorts_and_searches_by_keyboard(open_page: Open) -> None:
    values = shipped()
    opened = open_page(values)
    page = opened.page
    density = [tensor["agents"][0]["density"] for tensor in values["tensors"]]
    page.get_by_role("button", name="coder: Activate to sort").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#tensor-table th[aria-sort=ascending]")
    ascending = [float(text.rstrip("%")) for text in opened.column(5)]
    assert ascending == sorted(ascending)
    assert ascending[-1] == pytest.approx(100 * max(density), rel=1e-2)
    page.keyboard.press("Enter")
    page.wait_for_selector("#tensor-table th[aria-sort=descending]")
    assert [float(text.rstrip("%")) for text in opened.column(5)] == ascending[::-1]
    page.get_by_label("Search tensors and roles").focus()
    page.keyboard.type("mlp")
    found = sum("mlp" in tensor["name"] for tensor in values["tensors"])
    page.wait_for_function(f"report.table.rows({{search: 'applied'}}).count() === {found}")
    page.locator("#measure").focus()
    page.keyboard.press("ArrowDown")
    shares = [float(text.rstrip("%")) for text in opened.column(5)]
    assert shares == sorted(shares, reverse=True)
    tensor = next(one for one in values["tensors"] if one["name"] == opened.column(0)[0])
    assert shares[0] == pytest.approx(100 * tensor["agents"][0]["unique_share"], rel=1e-2)


def test_heat_map_is_operated_by_keyboard(open_page: Open) -> None:
    values = shipped()
    opened = open_page(values)
    page = opened.page
    for select in page.locator("#controls-heat select").all():
        select.focus()
        page.keyboard.press("ArrowDown")
    page.wait_for_function("report.views.heat.signal('agent') === 1")
    assert page.evaluate("report.views.heat.signal('measure')") == "unique_share"
    cell = opened.rows("heat")[0]
    found = page.locator("#figure-heat svg .mark-rect path").first.get_attribute("aria-label")
    assert f"unique share: {100 * cell['unique'][1] / cell['active'][1]:.3g}"[:17] in found


def test_figures_are_saved_by_keyboard(open_page: Open, tmp_path: Path) -> None:
    page = open_page(shipped()).page
    for form, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
        page.locator(f"#figure-overlap [data-save={form}]").focus()
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        assert download.value.suggested_filename == f"overlap.{form}"
        download.value.save_as(tmp_path / form)
        assert (tmp_path / form).read_bytes().startswith(start)


def test_a_cell_shows_its_figures_under_the_pointer(open_page: Open) -> None:
    opened = open_page(shipped())
    opened.page.locator("#figure-heat svg .mark-rect path").nth(3).hover()
    tooltip = opened.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert "density" in tooltip.text_content()
    assert f"{opened.rows('heat')[3]['elements']:,}" in tooltip.text_content()


def test_hostile_names_do_nothing(open_page: Open) -> None:
    opened = open_page(hostile())
    page = opened.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, script").count() == 3
    assert page.locator("#controls-heat option").first.text_content() == HOSTILE[0]
    page.locator("#figure-density svg .mark-rect path").first.hover()
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert HOSTILE[0] in page.locator("#vg-tooltip-element").text_content()
    page.locator("#tensor-table thead th").nth(5).click()
    page.get_by_label("Search tensors and roles").fill("onerror")
    assert page.locator("#tensor-table tbody td.name").first.text_content().endswith(HOSTILE[1])
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, script").count() == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 375, 1280])
def test_it_fits_and_can_be_read(width: int, scheme: str, open_page: Open) -> None:
    values = large(60, 8)
    for agent in values["model"]["agents"]:
        agent["name"] += "-with-a-name-that-goes-on-and-on"
    page = open_page(values, viewport={"width": width, "height": 800}, color_scheme=scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.querySelector('figure')).backgroundColor")
    for ink in ("figcaption", "figure svg text", "h1"):
        fill = "fill" if "svg" in ink else "color"
        found = page.evaluate("([on, fill]) => getComputedStyle(document.querySelector(on))[fill]", [ink, fill])
        assert _contrast(paper, found) > 4.5


def test_figures_fit_on_a_phone(open_page: Open) -> None:
    values = large(60, 8) | {"input_dtypes": {"base": "bfloat16"}, "warnings": ["one"]}
    page = open_page(values, viewport={"width": 420, "height": 900}).page
    page.get_by_text("Figures of all pairs").click()
    beyond = (
        "[...document.querySelectorAll('td, .plain tbody th')].filter(one => one.getBoundingClientRect().right > 420)"
    )
    assert page.evaluate(f"{beyond}.map(one => one.textContent)") == []
    # each figure has the name of its column next to it
    cells = "[...document.querySelectorAll('#agents td, #tensor-table tbody td:not(.name)')]"
    assert page.evaluate(f"{cells}.every(one => one.dataset.label)")


# The widest line of each label or value of a card, and whether it is whole.
_CARDS = """[...document.querySelectorAll('.plain td, #tensor-table tbody td')].map(cell => {
  const label = getComputedStyle(cell, '::before'), box = cell.getBoundingClientRect();
  const [width, height, line] = [label.width, label.height, label.lineHeight].map(parseFloat);
  return {text: cell.textContent, label: width, lines: height / line, cut: cell.scrollWidth > Math.ceil(box.width)};
})"""
# The labels of a figure's x axis that are shown, from left to right.
_TICKS = """name => {
  const axis = document.querySelector(`#figure-${name} [aria-label^='X-axis']`);
  const labels = [...axis.querySelectorAll('.role-axis-label text')];
  return labels.filter(one => one.textContent && one.getAttribute('opacity') !== '0')
    .map(one => one.getBoundingClientRect().toJSON()).sort((a, b) => a.left - b.left);
}"""


@pytest.mark.parametrize("name", ["tool", "an-agent-with-a-long-name", "anagentwhosenamehasnoplacetobreak"])
def test_labels_and_values_are_readable_on_a_phone(name: str, open_page: Open) -> None:
    values = shipped() | {"method": "task_arithmetic"}
    values["model"]["agents"][0]["name"] = name
    figures = {"updates": 100, "erased": 1, "erased_share": 0.01, "nominal_lambda": 1.2, "effective_lambda": 1.19731}
    values["rounding"] = {name: figures | {"grown_share": 0.3, "effective_error": 0.00021}}
    values["input_dtypes"] = {name: "bfloat16"}
    page = open_page(values, viewport={"width": 420, "height": 900}).page
    cards = page.evaluate(_CARDS)
    assert any("1.1973 ± 0.0002 of 1.2000" in card["text"] for card in cards)
    assert [card for card in cards if card["cut"] or card["label"] < 60 or card["lines"] > 3.1] == []


@pytest.mark.parametrize("width", [420, 1280])
def test_ticks_and_axes_stay_within_their_bounds(width: int, open_page: Open) -> None:
    values = shipped()
    for agent in values["model"]["agents"]:
        agent |= {"density": 0.999, "changed_share": 1.0}
    page = open_page(values, viewport={"width": width, "height": 900}).page
    for name in ("density", "overlap", "ulps", "rho", "fates"):
        ticks = page.evaluate(_TICKS, name)
        assert len(ticks) > 1
        assert all(after["left"] - one["right"] >= 4 for one, after in pairwise(ticks)), name
    for name in ("density", "fates"):
        domain = page.evaluate("name => report.views[name].scale('x').domain()", name)
        assert domain == [0, 1]


def test_names_sort_by_their_numbers(open_page: Open) -> None:
    values = large(60, 2)
    for place, tensor in enumerate(values["tensors"]):
        tensor["name"] = f"model.layers.{place}.weight"
    opened = open_page(values)
    names = [f"model.layers.{place}.weight" for place in range(60)]
    assert opened.column(0) == names
    opened.page.locator("#tensor-table thead th").first.click()
    opened.page.wait_for_selector("#tensor-table th[aria-sort=ascending]")
    assert opened.column(0) == names


def test_paper_is_white_even_in_the_dark(open_page: Open) -> None:
    page = open_page(shipped(), color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.classList.contains('dark')") is False
    assert not page.get_by_label("Parts of this page").is_visible()


def test_names_reach_the_page_in_the_recipes_order(open_page: Open) -> None:
    headers = open_page(shipped()).page.locator("#tensor-table thead th").all_text_contents()
    assert [header.strip() for header in headers][-3:] == list(NAMES)


def _contrast(one: str, other: str) -> float:
    """WCAG's contrast between two colors `rgb(r, g, b)`."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    channels = [int(part) / 255 for part in color.partition("(")[2].rstrip(")").split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
