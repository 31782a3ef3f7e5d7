"""ARCHITECTURE.md and the docstrings of packages name what there is."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
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
PACKAGES += sorted(path.parent for path in (ROOT / "packages").glob("*/src/**/__init__.py"))


@pytest.mark.parametrize(("contract", "table"), [(0, "| room |"), (2, "| room of the core |")], ids=["all", "core"])
def test_rooms_follow_the_import_rules(contract: int, table: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    floors = [re.findall(r"\.(\w+)(?= |$)", floor) for floor in settings["contracts"][contract]["layers"]]
    rows = PAGE.split(table)[1].split("\n\n")[0]
    names = re.findall(r"^\| (`.*?`) \|", rows, re.MULTILINE)
    rooms = [re.sub(r"(/|\.py)$", "", name) for row in names for name in re.findall(r"`([^`]+)`", row)]
    floor_of = {room: number for number, floor in enumerate(floors) for room in floor}
    assert sorted(rooms) == sorted(floor_of)
    assert [floor_of[room] for room in rooms] == sorted(floor_of.values())


def test_rooms_import_what_their_rows_name() -> None:
    stated = {}
    for table in ("| room |", "| room of the core |"):
        for row in re.findall(r"^\| `.*", PAGE.split(table)[1].split("\n\n")[0], re.MULTILINE):
            _, name, _, imports, _ = (cell.strip() for cell in row.split("|"))
            stated[re.sub(r"/|\.py|`", "", name)] = imports
    order = list(stated)
    imported: dict[str, set[str]] = {room: set() for room in order}
    for path in SOURCE.rglob("*.py"):
        room = _room(path.relative_to(SOURCE).with_suffix("").parts)
        for name in _imported(ast.parse(path.read_text(encoding="utf-8"))):
            imported.setdefault(room, set()).add(_room(name))
    anyone = {"foundation", "options", "registry"}
    for room, names in stated.items():
        below = set(order[order.index(room) + 1 :]) - {"core"}
        found = imported[room] & set(order) - {room} - anyone
        if names.startswith("all below"):
            assert found == below - anyone - set(re.findall(r"`(\w+)`", names)), room
        else:
            assert found == set(re.findall(r"`(\w+)`", names)), room


def _room(parts: Sequence[str]) -> str:
    """The room of a module by the parts of its name below `ramerge`."""
    return parts[1] if parts[0] == "core" and len(parts) > 1 else parts[0]


def _imported(tree: ast.AST) -> Iterator[list[str]]:
    """The parts of the names below `ramerge` that a module imports, wherever it does."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name.split(".")[1:] for name in names if name.startswith("ramerge."))


def test_named_files_exist() -> None:
    files = re.findall(r"`([\w/]+\.(?:py|md)|tests/[\w/]+)`", PAGE)
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE)
    missing = [
        name
        for name in [*files, *links]
        if not (ROOT / name).exists() and not (SOURCE / name).exists() and not (SOURCE / "core" / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_of_packages_name_their_modules(package: Path) -> None:
    """A line of the table is `module, module   what they do`."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    rows = re.findall(r"^((?:\w+/?, )*\w+/?)(?:  +|(?<=/) +)\S", text, re.MULTILINE)
    named = {name for row in rows for name in row.split(", ")}
    missing = [name for name in named if not ((package / name).is_dir() or (package / f"{name}.py").is_file())]
    assert not missing
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    assert sorted(modules - named - set(re.findall(r"`(\w+)`", text))) == []
