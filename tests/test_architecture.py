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
    words = [word for word in PAGE.split() if re.search(r"[a-z]", word)]
    assert len(words) <= 1500


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


def test_the_source_stays_plain() -> None:
    """No long function, and few values without a stated type."""
    texts = {path.relative_to(SOURCE): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    functions = [
        (path, node)
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [f"{path}:{node.name}" for path, node in functions if _lines(node) > 60] == []
    assert sum(len(re.findall(r"\bAny\b", text)) for text in texts.values()) <= 900


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring."""
    first = function.body[0].end_lineno if ast.get_docstring(function) else function.lineno
    return (function.end_lineno or 0) - (first or 0)
