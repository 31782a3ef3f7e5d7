"""The page and the figures, without a browser."""

import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ramerge.analysis.report import write as report
from ramerge.core.foundation import extras
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.extras import install_command
from ramerge.core.foundation.files import write_files
from ramerge.core.foundation.progress import Progress
from ramerge.core.foundation.text import one_line
from ramerge.demo.run import AGENTS
from tests.analysis.report.analyses import HOSTILE, NAMES, hostile, large, shipped
from tests.commands import ramerge

pytestmark = pytest.mark.full  # the page's libraries, a browser

for library in ("altair", "itables", "jinja2", "vl_convert"):
    pytest.importorskip(library)

RECORD = {
    "ramerge_version": "0.1.0",
    "point": {},
    "method": "ram+",
    "parameters": {"epsilon": 1e-5, "r": 0.1},
    "notes": ["2 tensors <kept>"],
    "tensors": 38,
    "bytes_read": 2_000_000_000,
    "agents": {"coder": {"model": "hub/coder", "active": 12345, "rho": None, "lambda": 1.2}},
    "seconds": 1.25,
}


class Elements(HTMLParser):
    """Tags with their attributes, and the text of each script element by id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str | None, str] = {}
        self.text = ""
        self._script: str | None = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("id") if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        self._script = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._script != "":
            self.scripts[self._script] = self.scripts.get(self._script, "") + data


def embedded(html: str) -> dict:
    """What the page's script draws."""
    return json.loads(Elements(html).scripts["data"])


def rows(html: str, figure: str) -> list[dict]:
    return embedded(html)["figures"][figure]["datasets"]["rows"]


def test_a_page_holds_the_figures_of_the_analysis() -> None:
    values = shipped()
    heard: list[Progress] = []
    html = report.render(values, listen=heard.append)
    assert heard == [Progress("drawing", 0, 1, "pages"), Progress("drawing", 1, 1, "pages")]
    agents = values["model"]["agents"]
    assert [(row["agent"], row["share"], row["elements"]) for row in rows(html, "density")] == [
        (agent["name"], agent[share], agent[count])
        for agent in agents
        for share, count in (("density", "active"), ("changed_share", "changed"))
    ]
    shared = [row["elements"] for row in rows(html, "overlap")]
    assert shared == [count for agent in agents for count in agent["shared_with"]]
    assert [row["rho"] for row in rows(html, "rho")] == [at["rho"] for one in agents for at in one["by_epsilon"]]
    assert {(row["rule"], row["lambda"]) for row in rows(html, "lambda")} == {
        pair for agent in agents for at in agent["by_epsilon"] for pair in at["lambdas"].items()
    }
    assert {row["elements"] for row in rows(html, "fates")} == {
        agent["fates"][merge][fate]
        for agent in agents
        for merge in ("ram", "average")
        for fate in ("kept", "diluted", "flipped", "lost")
    }
    assert {row["jaccard"] for row in rows(html, "matrix")} == {pair["jaccard"] for pair in values["model"]["pairs"]}


def test_histogram_bins_stand_at_powers_of_two() -> None:
    values = shipped()
    found = {(row["agent"], row["bin"]): row["elements"] for row in rows(report.render(values), "ulps")}
    for agent in values["model"]["agents"]:
        for power, count in zip(values["bins"]["ulps"], agent["ulps"], strict=True):
            if power is not None:
                assert found.get((agent["name"], power), 0) == count
    assert {(name, -1) for name in NAMES} <= set(found)


def test_the_heat_map_sums_up_to_the_model() -> None:
    values = shipped()
    cells = rows(report.render(values), "heat")
    assert sum(cell["elements"] for cell in cells) == values["model"]["elements"]
    for t, agent in enumerate(values["model"]["agents"]):
        assert sum(cell["active"][t] for cell in cells) == agent["active"]
        assert sum(cell["unique"][t] for cell in cells) == agent["shared_with"][0]


def test_table_of_tensors_matches_the_analysis() -> None:
    values = shipped()
    table = embedded(report.render(values))["tensors"]
    values["tensors"].sort(key=lambda tensor: table["name"].index(tensor["name"]))
    assert table["name"] == [tensor["name"] for tensor in values["tensors"]]
    assert table["shape"] == [tensor["shape"] for tensor in values["tensors"]]
    assert [table["roles"][role] for role in table["role"]] == [tensor["role"] for tensor in values["tensors"]]
    for t in range(len(NAMES)):
        densities = [active / elements for active, elements in zip(table["active"][t], table["elements"], strict=True)]
        assert densities == [tensor["agents"][t]["density"] for tensor in values["tensors"]]


def test_tensors_are_in_their_natural_order() -> None:
    values = large(61, 2)
    for place, tensor in enumerate(values["tensors"]):
        tensor["name"] = f"model.layers.{place}.mlp.up_proj.weight"
    values["tensors"].sort(key=lambda tensor: tensor["name"])
    table = embedded(report.render(values))["tensors"]
    assert table["name"] == [f"model.layers.{place}.mlp.up_proj.weight" for place in range(61)]


@pytest.mark.parametrize("name", ["rho", "lambda", "ulps"])
def test_lines_that_coincide_can_be_told_apart(name: str) -> None:
    spec = embedded(report.render(shipped()))["figures"][name]
    [dash] = [layer["encoding"]["strokeDash"] for layer in spec["layer"] if "strokeDash" in layer.get("encoding", {})]
    assert dash["scale"]["domain"] == list(NAMES)
    first, *others = dash["scale"]["range"]
    assert first == [1, 0]  # whole, below the others
    assert len({tuple(one) for one in others}) == len(others) and all(min(one[1::2]) > 1 for one in others)


def test_warnings_and_precision_are_shown() -> None:
    values = shipped()
    section = '<section id="precision"'
    assert section not in report.render(values | {"input_dtypes": {}, "warnings": []})
    more = {
        "warnings": ["code: 94 % of its updates are <lost>"],
        "input_dtypes": {"base": "bfloat16", "coder": "float32", "memory": "float64"},
        "rounding": {"coder": {"updates": 1_234_567, "erased": 1_160_493, "erased_share": 0.94}},
    }
    html = report.render(values | more)
    assert section in html
    text = Elements(html).text
    for words in ("Warning:", "94 % of its updates are <lost>", "float64", "1,160,493", "94.0%"):
        assert words in text


def test_the_agents_have_the_figures_of_the_terminal() -> None:
    values = shipped() | {"method": "ram+"}
    rounded = {"erased": 1, "updates": 9, "erased_share": 0.123, "effective_lambda": 1.19, "nominal_lambda": 1.2}
    values["rounding"] = {name: rounded | {"effective_error": 0.0} for name in NAMES}
    text = Elements(report.render(values)).text
    for words in ("by ram+", "erased", "12.3%", "effective", "1.190 of 1.200"):
        assert words in text
    assert "±" not in text  # an error of zero is none
    assert f"{values['model']['agents'][0]['fates']['merge']['retained']:.1%}" in text


def test_caption_of_fates_does_not_explain_the_method() -> None:
    [caption] = re.findall(
        r"moved elements under ([^.]*)\.", Elements(report.render(shipped() | {"method": "ram+"})).text
    )
    assert caption.startswith("RAM, averaging and ram+, stored in")


def test_a_recommendation_is_shown() -> None:
    advice = ["try first: ramerge merge r.yaml --method ties OUT", "why: <most> did not move: 3 %"]
    text = Elements(report.render(shipped(), advice=advice)).text
    for words in ("What to try first", "ramerge merge r.yaml --method ties OUT", "<most> did not move: 3 %"):
        assert words in text
    assert "What to try first" not in Elements(report.render(shipped())).text


def test_the_page_of_the_command_has_the_recommendation(tmp_path: Path) -> None:
    agents = [word for name in NAMES for word in ("--agent", f"{name}={AGENTS / name}")]
    ramerge("analyze", "--base", AGENTS / "base", *agents, "--html", tmp_path / "page.html")
    said = ramerge("recommend", "--base", AGENTS / "base", *agents).stdout.splitlines()
    assert 4 <= len(said) <= 5
    text = Elements((tmp_path / "page.html").read_text(encoding="utf-8")).text
    for line in said:
        assert line.partition(": ")[2] in text


def test_findings_summary_recipe_and_glossary_are_plain_html() -> None:
    values = shipped()
    text = Elements(report.render(values)).text
    for finding in values["findings"]:
        assert finding["text"] in text
        assert finding["reason"] in text
    for agent in values["model"]["agents"]:
        assert f"{agent['density']:.1%}" in text
    assert "method: ram" in text
    assert "How to read this" in text
    assert "The merge" not in text
    assert "agents: # mine" in Elements(report.render(values, recipe="agents: # mine")).text


def test_a_record_is_shown() -> None:
    text = Elements(report.render(shipped(), RECORD)).text
    for part in ("The merge", "ram+", "epsilon = 1e-05, r = 0.1", "2.0 GB", "12,345", "1.20", "–", "2 tensors <kept>"):
        assert part in text


@pytest.mark.parametrize(("tensors", "agents", "most"), [(38, 3, 2.0e6), (340, 8, 3.0e6), (10_000, 8, 4.2e6)])
def test_size(tensors: int, agents: int, most: float) -> None:
    assert len(report.render(large(tensors, agents)).encode()) < most


def test_hostile_names_stay_text() -> None:
    values = hostile()
    harmless, html = Elements(report.render(shipped())), report.render(values, RECORD | {"method": HOSTILE[0]})
    found = Elements(html)
    assert [tag for tag, _ in found.tags if tag in ("script", "img", "iframe")] == ["script"] * 3
    assert all(line.isprintable() for line in html.split("\n"))
    assert len([tag for tag, _ in harmless.tags if tag == "script"]) == 3
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert "49" not in re.findall(r"<h1>(.*)</h1>", html)[0]
    assert embedded(html)["agents"] == [one_line(name) for name in HOSTILE]
    for script in found.scripts.values():
        assert "window.hacked" not in script or "</script" not in script.lower()


def test_the_page_asks_for_nothing_outside_of_itself() -> None:
    found = Elements(report.render(shipped()))
    assert not [attributes for _, attributes in found.tags if "src" in attributes]
    assert not [one for tag, one in found.tags if tag in ("link", "a") and not str(one.get("href")).startswith("#")]
    policy = next(one["content"] for tag, one in found.tags if tag == "meta" and "http-equiv" in one)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_one_agent_that_equals_the_base() -> None:
    values = large(2, 1)
    agent = values["model"]["agents"][0]
    agent |= {"active": 0, "density": 0.0, "changed": 0, "changed_share": 0.0, "shared_with": [0], "rho": None}
    agent |= {"ulps": [agent["changed"]] + [0] * (len(agent["ulps"]) - 1)}
    html = report.render(values)
    assert "matrix" not in embedded(html)["figures"]
    assert "∞" in html


def test_figures_are_files_for_a_paper(tmp_path: Path) -> None:
    heard: list[Progress] = []
    files = report.figure_files(shipped(), tmp_path / "new" / "figures", heard.append)
    write_files(files)
    written = [path for path, _ in files]
    count = len(written) // 2
    assert heard == [Progress("drawing", done, count, "figures") for done in range(count + 1)]
    assert sorted(written) == sorted((tmp_path / "new" / "figures").iterdir())
    stems = {path.stem for path in written}
    assert {"density", "overlap", "heat-1-coder", "ulps", "matrix", "rho", "lambda", "fates"} <= stems
    for path in written:
        if path.suffix == ".png":
            width, height = struct.unpack(">II", path.read_bytes()[16:24])
            assert 1280 <= width <= 1400
            assert height > 300
        else:
            assert float(ElementTree.parse(path).getroot().attrib["width"]) <= 350
    text = (tmp_path / "new/figures/density.svg").read_text()
    assert f"{100 * shipped()['model']['agents'][0]['density']:.1f}%" in text


def test_names_of_agents_name_no_other_folder(tmp_path: Path) -> None:
    values = hostile()
    values["model"]["agents"][0]["name"] = "../../etc/passwd\0"
    for path, _ in report.figure_files(values, tmp_path):
        assert path.parent == tmp_path
        assert re.fullmatch(r"[\w-]+\.(png|svg)", path.name)


@pytest.mark.parametrize("write", [report.render, lambda values: report.figure_files(values, Path("unused"))])
def test_a_missing_library_is_named(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "vl_convert" else object())
    text = f"the report needs vl-convert, which is not installed: {install_command('report')}"
    with pytest.raises(RecipeError, match=re.escape(text)):
        write(shipped())
