"""ARCHITECTURE.md and the docstrings of packages name what there is."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ramerge"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)


@pytest.mark.parametrize(("contract", "table"), [(0, "| room |"), (2, "| room of the core |")], ids=["all", "core"])
def test_rooms_are_in_the_order_of_the_import_rules(contract: int, table: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    floors = [re.findall(r"\.(\w+)(?= |$)", floor) for floor in settings["contracts"][contract]["layers"]]
    rows = PAGE.split(table)[1].split("\n\n")[0]
    names = re.findall(r"^\| (`.*?`) \|", rows, re.MULTILINE)
    rooms = [re.sub(r"(/|\.py)$", "", name) for row in names for name in re.findall(r"`([^`]+)`", row)]
    floor_of = {room: number for number, floor in enumerate(floors) for room in floor}
    assert sorted(rooms) == sorted(floor_of)
    assert [floor_of[room] for room in rooms] == sorted(floor_of.values())


def test_named_files_exist() -> None:
    files = re.findall(r"`([\w/]+\.(?:py|md)|tests/[\w/]+)`", PAGE)
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE)
    missing = [
        name
        for name in [*files, *links]
        if not (ROOT / name).exists() and not (SOURCE / name).exists() and not (SOURCE / "core" / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_docstrings_of_packages_name_their_modules(package: Path) -> None:
    """A line of the table is `module, module   what they do`."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    rows = re.findall(r"^((?:\w+/?, )*\w+/?)(?:  +|(?<=/) +)\S", text, re.MULTILINE)
    named = {name for row in rows for name in row.split(", ")}
    missing = [name for name in named if not ((package / name).is_dir() or (package / f"{name}.py").is_file())]
    assert not missing
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    assert sorted(modules - named - set(re.findall(r"`(\w+)`", text))) == []


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 1500


def test_kinds_of_places_are_told_apart_in_few_lines() -> None:
    """All others ask a location for what they want to know (`core/tensors/access.py`, `core/output/lifecycle.py`)."""
    kinds = {"Location", "OutputTarget", "Path", "PurePath", "Remote", "RemoteOutputDir", "RemoteStagingDir"}
    kinds |= {"BucketUpload", "HubUpload", "LocalAccess", "OutputDir", "RemoteAccess", "StagingDir", "UploadTarget"}
    lines = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.MatchClass) and kinds & _classes_tested_for(node)
    ]
    assert len(lines) <= 12, lines


def _classes_tested_for(node: ast.Call | ast.MatchClass) -> set[str]:
    """The names of the classes in a call of `isinstance`, or in a pattern."""
    if isinstance(node, ast.MatchClass):
        classes: list[ast.expr] = [node.cls]
    else:
        classes = node.args[1:] if getattr(node.func, "id", "") in ("isinstance", "issubclass") else []
    names = [part for each in classes for part in ast.walk(each)]
    return {getattr(name, "id", getattr(name, "attr", "")) for name in names}
