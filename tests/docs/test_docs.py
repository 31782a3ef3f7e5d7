"""README and docs say what is so: every command, recipe and program in them is run, every flag and link exists.

Blocks run in a folder of their own for each page, from top to bottom, with the demo's tiny agents under the names that
the pages use. A `text` block after a program is what the program prints, where `...` stands for anything. A block that
cannot run here says why in its first line, which readers see too: `# needs a GPU`, `# takes an hour`. Its flags are
checked all the same.
"""

import ast
import contextlib
import doctest
import inspect
import io
import re
import runpy
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt
from ruamel.yaml import YAML

import ramerge
from docs import signatures, tables
from ramerge.analysis.parts import AgentPair, AgentPart
from ramerge.analysis.results import Analysis
from ramerge.calibration.record import CalibrationRecord
from ramerge.cli.main import COMMANDS, cli
from ramerge.core.engine.record import AgentStatistics, Record
from ramerge.core.foundation import extras
from ramerge.core.methods.registry import METHODS
from ramerge.core.recipe.document import read_document
from ramerge.core.recipe.read import DIALECTS
from ramerge.demo import run as demo
from ramerge.searches.results import SearchResult, TriedPoint
from ramerge.searches.spacefile import file_space

pytestmark = pytest.mark.full  # the pages and all that their examples use

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md"))]
LINKED = [
    *PAGES,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "lab").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
COPIED = ("base", "coder", "tool", "memory")
MODELS = {name: name for name in COPIED} | {"Qwen/Qwen2.5-7B-Instruct": "base"}
COPY = "ramerge demo --models ."
ENVIRONMENT = [["python3", "-m", "venv", ".venv"], [".", ".venv/bin/activate"]]
LANGUAGES = {"py", "pycon", "toml", "sh", "python", "yaml", "json", "mermaid", "text"}
THEIR_PROGRAMS = {"STUDENT/train.py", "OUT/train.py", "verl.trainer.main_ppo"}
"""Programs that `ramerge handoff` writes, and a trainer's."""
NOT_RUN = re.compile(r"# (needs|takes) \w+")
# flags that pages mention and that are not ours
THEIRS = {
    "--no-deps": "pip",
    "--max-model-len": "vLLM",
    "--enable-lora": "vLLM",
    "--continuous-batching": "transformers",
    "--use_cpu": "TRL",
    "--max-lora-rank": "vLLM",
    "--save-debug-rollout-data": "slime",
    "--no-monitors": "prime-rl",
    "--output_path": "OpenRLHF",
    "--dtype": "vLLM",
    "--port": "transformers",
    "--save-hf": "slime",
    "--use-opd": "slime",
    "--custom-reward-post-process-path": "slime",
    "--write": "benchmarks",
    "--only": "benchmarks",
    "--temperature": "Inspect",
    "--seeds": "lab",
    "--no-log-realtime": "Inspect",
    "--log-dir": "Inspect",
    "--help": "every command",
    "--version": "ramerge by itself",
    **DIALECTS["mergekit"].flags,
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def runs(self) -> bool:
        return not NOT_RUN.match(self.text)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    fenced = [token for token in tokens if token.type == "fence" and not token.info.startswith("{")]
    return [Block(page, (token.map or [0])[0] + 1, token.info, token.content) for token in fenced]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command, without variables before it."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in line.removesuffix("&").split("&&"):
            words = shlex.split(part, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                yield words


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, agent in MODELS.items():
        shutil.copytree(demo.AGENTS / agent, tmp_path / name)
    for step, agent in enumerate(COPIED, 1):
        shutil.copytree(demo.AGENTS / agent, tmp_path / "runs" / "code" / f"global_step_{step * 100}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
        indented = [(token.map or [0])[0] + 1 for token in tokens if token.type == "code_block"]
        assert not indented, f"{page}: blocks without fence and language at lines {indented}"
        assert {block.language for block in blocks(page)} <= LANGUAGES, page


@pytest.mark.parametrize("page", [page for page in PAGES if "```" in page.read_text(encoding="utf-8")], ids=name_of)
@pytest.mark.usefixtures("models")
def test_blocks_run(page: Path) -> None:
    values: dict[str, Any] = {}
    if any(COPY in block.text for block in blocks(page)):  # then its readers need no other models either
        for name in COPIED:
            shutil.rmtree(name)
    printed, program_printed = "", None
    for block in blocks(page):
        if block.language == "sh":
            printed = "".join([run(words, block) for words in commands(block)])
        elif block.language == "text" and program_printed is not None:
            same = doctest.OutputChecker().check_output(block.text, program_printed, doctest.ELLIPSIS)
            assert same, f"{block}: the program prints\n{program_printed}"
        elif block.language == "text" and page == ROOT / "README.md":
            lines = {steady(line) for line in printed.splitlines()}
            assert [line for line in block.text.splitlines() if line != "..." and steady(line) not in lines] == []
        elif block.language == "yaml":
            check_recipe(block)
        elif block.language == "python":
            program = Path("program.py")
            program.write_text("\n" * block.line + block.text)  # so that a traceback has the page's line
            compile(program.read_bytes(), block.page, "exec")
            if block.runs:
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    values = runpy.run_path(str(program), values)
                program_printed = said.getvalue()
                continue
        program_printed = None


def steady(line: str) -> str:
    """A line without seconds and memory, which differ from run to run."""
    return re.sub(r"in [\d.]+ s and [\d.]+ [kMG]B", "in S and M", line)


def run(words: list[str], block: Block) -> str:
    """Run a command of ours, and return what it prints; of others, check that what it names exists."""
    program, *arguments = words
    if program == "ramerge" and block.runs:
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, f"{block}: {shlex.join(words)}: {result.exception}\n{result.output}"
        return result.output
    if program == "ramerge":
        parsed(arguments, block)
    elif program == "pip":
        extras = re.findall(r"[\w-]+", " ".join(re.findall(r"\.\[(.*?)\]", " ".join(arguments))))
        assert set(extras) <= {*(metadata("ramerge").get_all("Provides-Extra") or ())}, block
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), block
    elif words in ENVIRONMENT:
        pass
    elif program == "python" and {*arguments[:2]} & THEIR_PROGRAMS:
        assert not block.runs
    elif program == "python" and arguments[0] == "-m":
        assert find_spec(arguments[1]) is not None, block
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), block
    else:
        assert not block.runs, f"{block}: {program} is not a command of ours; say what it needs in the first line"
    return ""


def parsed(arguments: list[str], block: Block) -> None:
    """Check the flags of a command that is not run."""
    name, *rest = arguments
    try:
        COMMANDS[name].make_context(name, rest)
    except click.ClickException as error:
        pytest.fail(f"{block}: ramerge {shlex.join(arguments)}: {error.format_message()}")


def check_recipe(block: Block) -> None:
    """Plan a recipe, of which a page may show only some keys. `# NAME.yaml` in its first line makes it a file."""
    name = re.match(r"# (\S+\.yaml)\n", block.text)
    path = Path(name[1] if name else f"line-{block.line}.yaml")
    values = YAML(typ="safe").load(block.text)
    if path.name == "space.yaml":
        path.write_text(block.text)
        file_space(read_document(Path("recipe.yaml")), path)
        return
    if not values.keys() & {"agents", "merge_method"}:
        block_of_models = "base: ./base\nagents: {code: ./coder, tool: ./tool, memory: ./memory}\n"
        path.write_text(block_of_models + block.text)
    else:
        path.write_text(block.text)
    if not block.runs:
        ramerge.read_recipe(path)
        return
    assert ramerge.plan(path).problems == (), block


def test_names_of_the_package_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"\bramerge\.(\w+)\(", page.read_text(encoding="utf-8")):
            assert hasattr(ramerge, name), f"{page}: ramerge.{name}"
    for block in (block for page in PAGES for block in blocks(page)):
        for node in ast.walk(ast.parse(block.text if block.language == "python" else "")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ramerge"):
                module = import_module(node.module or "")
                assert all(hasattr(module, each.name) for each in node.names), f"{block}: {node.module}"


def test_flags_and_commands_in_sentences_exist() -> None:
    known = {
        flag
        for command in COMMANDS.values()
        for option in command.params
        for flag in (*option.opts, *option.secondary_opts)
    }
    texts = {page: re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8")) for page in PAGES}
    for page, span in ((page, span) for page, text in texts.items() for span in re.findall(r"`([^`\n]+)`", text)):
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span):
            assert flag in known | THEIRS.keys(), f"{page}: `{span}`"
        if command := re.match(r"ramerge ([a-z]+)", span):
            assert command[1] in COMMANDS, f"{page}: `{span}`"


def test_links_lead_to_files() -> None:
    """Those inside the site are checked when it is built; these are those that readers of the sources follow."""
    links = [(page, re.findall(r"\]\(([^()\s]+)\)", page.read_text(encoding="utf-8"))) for page in LINKED]
    for page, link in ((page, link) for page, found in links for link in found):
        file, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page}: {link}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


# --- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("Keys of a recipe", ramerge.Recipe),
        ("Keys of an agent", ramerge.Agent),
        ("Rules", ramerge.Rule),
        ("rename", ramerge.Rename),
        ("allow", ramerge.Allow),
    ],
)
def test_every_key_of_a_recipe_has_its_row(heading: str, model: Any) -> None:
    text = (DOCS / "reference" / "recipe.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", section, re.MULTILINE)
    assert {key: default.strip("`") for key, default in rows} == {
        field.alias or key: default_of(field) for key, field in model.model_fields.items()
    }


def default_of(field: Any) -> str:
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    if value is None:
        return "none"
    if isinstance(value, ramerge.Allow):
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return {(): "[]", ("*",): "*"}.get(value, str(value)) if not isinstance(value, dict) else "{}"


@pytest.mark.parametrize("model", [Record, CalibrationRecord, Analysis, AgentPart, AgentPair, SearchResult, TriedPoint])
def test_every_key_of_a_file_is_described(model: Any) -> None:
    text = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
    described = {word for span in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", span)}
    assert {each.name for each in fields(model)} <= described


@pytest.mark.usefixtures("models")
def test_every_key_of_a_plan_is_described() -> None:
    text = (DOCS / "reference" / "files.md").read_text(encoding="utf-8").partition("## The JSON of a plan")[2]
    described = {
        key for row in re.findall(r"^\| (`.*?`) \|", text.partition("\n## ")[0], re.M) for key in row.split("`")
    }
    values = ramerge.plan({"method": "ties", "base": "base", "agents": {"code": "coder", "tool": "tool"}}).to_dict()
    assert {*values} == described - {"", ", "}


def test_recipe_page_names_methods_without_base() -> None:
    text = (DOCS / "reference" / "recipe.md").read_text(encoding="utf-8")
    [named] = re.findall(r"`base` by most methods: (.*?) do\s+without one", text, re.DOTALL)
    assert set(re.findall("`(.*?)`", named)) == {name for name, method in METHODS.items() if not method.needs_base}


@pytest.mark.usefixtures("models")
def test_every_figure_of_an_agent_is_described() -> None:
    text = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
    for method in ("ram+", "ties"):
        agents = {"code": "coder", "tool": "tool"}
        record = ramerge.merge({"method": method, "base": "base", "agents": agents}, f"merged-{method}")
        assert isinstance(record.agents["code"], AgentStatistics)
        for key in record.agents["code"].values:
            assert f"`{key}`" in text, key


def test_tutorial_table_matches_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)  # scores take half a minute
    said: list[str] = []
    demo.run(None, said.append)
    lines = [line for text in said for line in text.splitlines()]
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    table = page[page.index("agent     density") :].partition("\n\n")[0]
    assert len(table.splitlines()) == 4
    assert [line for line in table.splitlines() if line not in lines] == []


def test_the_chart_shows_what_was_measured() -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    from benchmarks import chart
    from lab import chart as score_chart

    def words(text: str) -> list[str]:
        return re.findall(r">([^<>]+)</(?:text|tspan)>", text)

    drawn = words(chart.CHART.read_text(encoding="utf-8"))
    assert drawn == words(chart.draw())
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ours, theirs = ([word for word in drawn if word.endswith(unit)] for unit in (" s", " GB"))
    assert f"RAM+ on three 0.5B agents: {ours[-2]}, {theirs[0]}; mergekit takes {ours[-1]} and {theirs[1]}" in text
    scores = words(score_chart.CHART.read_text(encoding="utf-8"))
    assert scores == words(score_chart.draw())
    assert f"![{score_chart.caption()}](docs/figures/scores.svg)" in " ".join(text.split())


def test_the_guide_to_prompts_says_what_was_measured() -> None:
    from lab.prompted import CONFIRMING, Kind, kinds, reward_of

    found = kinds()
    text = " ".join((DOCS / "guides" / "prompts.md").read_text(encoding="utf-8").split())
    rows = re.findall(r"\| (mass|NLL) \| ([\d.]+ \(\d+\)) \| ([\d.]+ \(\d+\)) \|", text)
    assert rows == [
        (score, *(mean_and_most([choose(each, which)[1] for each in members]) for which in ("right", "all")))
        for members in (found, kinds(CONFIRMING))
        for score, choose in (("mass", Kind.choice), ("NLL", Kind.chosen_by_nll))
    ]
    assert f"up to {max(each.best[1] - each.without_prompts[1] for each in found):.0f} points behind" in text
    (adapters,) = (each.figures for each in found if each.base.startswith("Gemma") and each.name == "LoRA")
    sizes = [reward_of(adapters[f"regmean 0.01{more}"]["rewards"]) for more in (", 4 prompts", "", ", 64 prompts")]
    assert "scores {:.0f} % with 4 prompts per task, {:.0f} % with 16 and {:.0f} % with 64.".format(*sizes) in text
    others = ("prompts of another task", "general prompts")
    wrong = [reward_of(adapters[f"regmean 0.01, {each}"]["rewards"]) for each in others]
    assert "it scores {:.0f} %, with general instructions {:.0f} %".format(*wrong) in text


def mean_and_most(behind: list[float]) -> str:
    return f"{statistics.fmean(behind):.1f} ({max(behind):.0f})"


def test_readme_says_what_was_measured() -> None:
    from lab.prompted import CONFIRMING, kinds

    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    trainings = [*kinds(), *kinds(CONFIRMING)]
    behind = {which: max(each.choice(which)[1] for each in trainings) for which in ("right", "all")}
    assert (
        f"at most {behind['all']:.0f} points behind the best of up to 15 merges" in text
        and f"with rewards at most {behind['right']:.0f} (" in text
    )


def test_predicted_times_follow_from_what_was_measured() -> None:
    from benchmarks import scale

    text = (ROOT / scale.PAGE).read_text(encoding="utf-8")
    assert text == scale.page(text, scale.tables_of_results()), "run `python -m benchmarks.scale --write`"


def test_tables_match_code_and_measurements() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")}
    assert [str(page) for page, text in texts.items() if text != tables.page(text)] == [], "run `python -m docs.tables`"


def test_the_reference_has_every_flag_with_its_default() -> None:
    text = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        section = text.partition(f"\n## ramerge {name}\n")[2].partition("\n## ")[0]
        for flag in (flag for option in command.params for flag in option.opts if flag.startswith("--")):
            assert re.search(rf"^\| `(--[\w-]+, )*{flag}[`/,]", section, re.MULTILINE), f"{name} {flag}"
    assert "| `--score-timeout` | `SECONDS (number)` | `3600.0` |" in text
    assert "| `--cache/--no-cache` |  | `--cache` |" in text


def test_reference_has_every_typed_signature() -> None:
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    for name in tables.names_of("functions"):
        section = text.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        for parameter in inspect.signature(getattr(ramerge, name)).parameters.values():
            assert re.search(rf"\b{parameter.name}: \w", section), f"{name}({parameter})"
    for name in tables.names_of("classes"):
        section = text.partition(f"\n### class {name}\n")[2].partition("\n### ")[0]
        rows = re.findall(r"^\| `(\w+)` \| `.+?` \| .* \| .+ \|$", section, re.MULTILINE)
        assert {*signatures.fields(getattr(ramerge, name))} == {*rows}, name
    assert "| `max_memory` | `int \\| str \\| None` | `None` |" in text
    assert "    options: Options = Options(),\n" in text


def test_every_method_has_a_page_with_its_facts() -> None:
    for name in METHODS:
        text = (DOCS / "methods" / tables.page_of(name)).read_text(encoding="utf-8")
        assert f"<!-- method {name}: python -m docs.tables -->" in text
    index = (DOCS / "methods" / "index.md").read_text(encoding="utf-8")
    assert "{all-methods}" in index and all(f"`{name}`]" in tables.all_methods() for name in METHODS)


def test_table_is_written_between_its_comments() -> None:
    text = "before\n<!-- method ties: python -m docs.tables -->\n{}<!-- end -->\nafter\n"
    stale, now = text.format("\nstale\n\n"), tables.page(text.format(""))
    assert "| `density` | `0.2` |" in now and "stale" not in now
    assert tables.page(stale) == now == tables.page(now)
    assert now.startswith("before\n<!--") and now.endswith("\n\n<!-- end -->\nafter\n")


def test_words_that_readers_would_not_search_for(tmp_path: Path) -> None:
    pages = {"a": "the file beside it", "b": "besides", "c": "`beside` and\n```sh\nbeside\n```\n", "d": "Coins"}
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text)
    check = [sys.executable, str(ROOT / "scripts" / "check_words.py"), str(tmp_path)]
    ran = subprocess.run(check, capture_output=True, text=True)
    assert ran.returncode == 1
    assert re.findall(r"(\w)\.md.*: '(.*?)'; write", ran.stderr) == [("a", "beside"), ("d", "Coins")]
