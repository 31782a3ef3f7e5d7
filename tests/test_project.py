"""What the repository shows to the world: workflows, metadata, and pages for people who do not know us yet."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from ruamel.yaml import YAML

import ramerge

if sys.version_info >= (3, 11):
    import tomllib
else:
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PLACEHOLDERS = ".github/PLACEHOLDERS.md"

PAGES = [
    ".devcontainer/devcontainer.json",
    ".dockerignore",
    ".github/CODEOWNERS",
    ".github/ISSUE_TEMPLATE/bug.yml",
    ".github/PULL_REQUEST_TEMPLATE.md",
    ".github/dependabot.yml",
    ".pre-commit-config.yaml",
    ".readthedocs.yaml",
    "CITATION.cff",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "Dockerfile",
    "GOVERNANCE.md",
    "SECURITY.md",
    "changelog.d/README.md",
]

INVENTED = re.compile(r"OWNER/|\bSITE\b|\bCONTACT\b|@[A-Z]{3,}")


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text())


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in read(workflow)["jobs"].values():
        yield from job.get("steps", ())


def classifiers(prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in PROJECT["classifiers"] if name.startswith(prefix)]


PYTHONS = [name for name in classifiers("Programming Language :: Python :: ") if re.fullmatch(r"3\.\d+", name)]


def tracked() -> list[str]:
    """All files of the repository; those of a checkout without git cannot be told from what was built there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git here")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_there(name: str) -> None:
    assert (ROOT / name).read_text().strip()


def test_versions_of_python() -> None:
    """CI tests the classifiers, which the wheel carries; what it adds by hand is among them."""
    jobs = read(ROOT / ".github/workflows/ci.yml")["jobs"]
    assert jobs["wheel"]["outputs"]["pythons"].endswith("outputs.supported_python_classifiers_json_array }}")
    matrices = [jobs[name]["strategy"]["matrix"] for name in ("test", "bare")]
    assert {matrix["python"] for matrix in matrices} == {"${{ fromJSON(needs.wheel.outputs.pythons) }}"}
    added = [row for matrix in matrices for row in matrix.get("include", ())]
    assert {row["python"] for row in added} <= set(PYTHONS)

    allowed = SpecifierSet(PROJECT["requires-python"])
    minors = [int(version.removeprefix("3.")) for version in PYTHONS]
    assert minors == list(range(10, 10 + len(minors))), "none is left out"
    assert all(version in allowed for version in PYTHONS)
    assert "3.9" not in allowed
    lowest = [row["python"] for row in added if row["resolution"] == "lowest-direct"]
    assert lowest == PYTHONS[:1], "the lowest versions of libraries are tested on the lowest Python"


def test_systems() -> None:
    """A system is a classifier if and only if its job may stop a change."""
    matrix = read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    names = {"ubuntu": "POSIX :: Linux", "macos": "MacOS", "windows": "Microsoft :: Windows"}
    required = {*matrix["system"], *(row["system"] for row in matrix["include"] if not row.get("trial"))}
    assert {names[system.partition("-")[0]] for system in required} == set(classifiers("Operating System :: "))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows(workflow: Path) -> None:
    """Actions are pinned by hash, jobs have a limit and no rights but those they name, and what they run is there."""
    content = read(workflow)
    assert content["permissions"] == {}
    for name, job in content["jobs"].items():
        assert "permissions" in job, name
        assert "timeout-minutes" in job or "uses" in job, name
        assert (ROOT / job.get("uses", "Makefile")).is_file()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps(workflow):
        if action := step.get("uses"):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        run = step.get("run", "")
        assert set(re.findall(r"\bmake ([a-z-]+)", run)) <= targets
        assert all((ROOT / script).is_file() for script in re.findall(r"python (\S+\.py)", run))
        named = re.findall(r"\.\[([\w,-]+)\]", run)
        assert {extra for group in named for extra in group.split(",")} <= set(PROJECT["optional-dependencies"])
    rows = content["jobs"].get("long", {}).get("strategy", {}).get("matrix", {}).get("target", [])
    assert set(rows) <= targets


def test_hooks_have_the_versions_of_lint() -> None:
    pinned = set((ROOT / "constraints.txt").read_text().splitlines())
    ci = (ROOT / ".github/workflows/ci.yml").read_text()
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    tools = {tool for hook in hooks for tool in hook["additional_dependencies"]}
    assert tools
    assert all(tool in pinned or f"--spec {tool} " in ci for tool in tools)


def test_one_version_of_python_is_pinned() -> None:
    """constraints.txt was resolved for one version: jobs that use it, images and the site have the same."""
    settings = [step.get("with", {}) for workflow in WORKFLOWS for step in steps(workflow)]
    used = {each["python-version"] for each in settings if "python-version" in each} - {"${{ matrix.python }}"}
    used |= set(re.findall(r"FROM python:(3\.\d+)", (ROOT / "Dockerfile").read_text()))
    used |= {read(ROOT / ".readthedocs.yaml")["build"]["tools"]["python"]}
    assert len(used) == 1
    assert used <= set(PYTHONS)


def test_no_invented_addresses() -> None:
    """Only one page holds placeholders; what is quoted from elsewhere may name what it likes."""
    quoted = ("tests/", "lab/results/", "src/", "lab/", "benchmarks/", "docs/", "examples/")
    for name in tracked():
        if name == PLACEHOLDERS or name.startswith((*quoted, "packages/")):
            continue
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        assert not INVENTED.search(text), f"{name}: {INVENTED.search(text)}"


def test_both_distributions_have_one_version() -> None:
    """The version is in one file; ramerge-eval takes it from there, and needs the same one of ramerge."""
    folder = ROOT / "packages" / "ramerge-eval"
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    file = ROOT / tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]["path"]
    assert (folder / settings["tool"]["hatch"]["version"]["path"]).resolve() == file.resolve()
    needed = {each.name: each.specifier for each in map(Requirement, settings["project"]["dependencies"])}
    assert str(needed["ramerge"]) == f"=={ramerge.__version__}"
    assert [Requirement(each).name for each in PROJECT["optional-dependencies"]["eval"]] == ["ramerge-eval"]


def test_owned_paths_exist() -> None:
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line.startswith("/")]
    assert paths and [path for path in paths if not (ROOT / path[1:]).exists()] == []


def test_no_file_of_data_is_one_long_line() -> None:
    """A change of a file that is one line shows as a change of everything."""
    data = [name for name in tracked() if name.endswith((".json", ".jsonl", ".csv", ".yaml"))]
    assert "lab/results/kinds.json" in data
    assert [name for name in data if max(map(len, (ROOT / name).read_text().splitlines())) > 20_000] == []


def test_every_experiment_has_a_page_of_the_site() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs/experiments").iterdir()}
    assert pages.keys() == {path.name for path in (ROOT / "lab/experiments").glob("*.md")}
    assert all(f"lab/experiments/{name}" in text for name, text in pages.items())


def test_placeholders_are_explained() -> None:
    page = (ROOT / PLACEHOLDERS).read_text()
    for word in ("OWNER/REPOSITORY", "SITE", "@OWNER/MAINTAINERS", "CONTACT"):
        assert f"| `{word}` |" in page
        assert page.count(word) > 1, f"{word} stands for something that is used"


def test_a_bug_report_asks_for_the_plan() -> None:
    required = [
        str(part["attributes"]) for part in read(ROOT / ".github/ISSUE_TEMPLATE/bug.yml")["body"]
        if part.get("validations", {}).get("required")
    ]  # fmt: skip
    assert any("ramerge plan --json" in part for part in required)


def test_news_fragments_have_a_section() -> None:
    """Kinds of fragments are the sections of CHANGELOG.md, and each fragment has one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = {kind["directory"]: kind["name"] for kind in settings["type"]}
    for fragment in (ROOT / "changelog.d").iterdir():
        assert fragment.name == "README.md" or fragment.suffixes[-2].strip(".") in kinds, fragment.name
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert changelog.count(settings["start_string"]) == 1
    assert set(kinds.values()) <= set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    readme = (ROOT / "changelog.d/README.md").read_text()
    assert all(f"| `{kind}` | {name} |" in readme for kind, name in kinds.items())


def test_lowest_versions_are_known() -> None:
    """`lowest-direct` installs what a dependency names as its lowest version, so each names one."""
    for line in PROJECT["dependencies"]:
        assert any(part.operator in (">=", "==") for part in Requirement(line).specifier), line


def test_continuous_integration_runs_what_readme_says() -> None:
    readme, run = ((ROOT / name).read_text() for name in ("README.md", ".ci/run"))
    said = re.findall(r"^make ([\w-]+) +# ", readme, re.MULTILINE)
    assert said == ["demo", "test"]
    assert re.search(r"^make test\b", run, re.MULTILINE)


def test_patterns_of_code_owners_name_what_is_there() -> None:
    lines = (ROOT / ".github/CODEOWNERS").read_text(encoding="utf-8").splitlines()
    patterns = [line.split()[0] for line in lines if line.startswith("/")]
    assert patterns and [each for each in patterns if not (ROOT / each.strip("/")).exists()] == []
