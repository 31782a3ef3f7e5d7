"""The sdk: each module has a docstring that runs, each name an example, a sentence, and users."""

from __future__ import annotations

import ast
import doctest
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_origin

import pytest

import ramerge
import ramerge.sdk
from tests.test_api import models as models  # the working folder of the examples

ROOT = Path(__file__).parents[1]
MODULES = [import_module(f"ramerge.sdk.{each.name}") for each in pkgutil.iter_modules(ramerge.sdk.__path__)]
_CORE = {"api.py", "cli", "core", "sdk", "testing.py", "state_dicts.py", "__init__.py", "__main__.py"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
@pytest.mark.usefixtures("models")
def test_every_module_has_an_example_that_runs(module: ModuleType) -> None:
    assert ">>> " in (module.__doc__ or "")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    known = {"ramerge": ramerge, "Path": Path}
    output: list[str] = []
    runner.run(_PARSER.get_doctest(module.__doc__ or "", known, module.__name__, None, 0), out=output.append)
    assert not runner.summarize(verbose=False).failed, "".join(output)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_name_occurs_in_an_example(module: ModuleType) -> None:
    """Examples are those of docstrings, which run above, and of pages, which run in `tests/docs`."""
    used = {name for text in _EXAMPLES for place, name in _used(text) if place == module.__name__}
    assert not set(module.__all__) - used


def _used(text: str) -> Iterator[tuple[str, str]]:
    """Modules and names that a program imports and does something with."""
    nodes = [*ast.walk(ast.parse(text))]
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", each.name) for each in node.names if (each.asname or each.name) in read)


def _programs(page: Path) -> str:
    """The Python of a page, from top to bottom, without what cannot run."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return "".join(block for block in blocks if not re.match(r"# (needs|takes) ", block))


_PARSER = doctest.DocTestParser()
_EXAMPLES = [
    *("".join(each.source for each in _PARSER.get_examples(module.__doc__ or "")) for module in MODULES),
    *map(_programs, sorted((ROOT / "docs" / "guides").glob("*.md"))),
    *map(_programs, sorted((ROOT / "docs" / "reference" / "sdk").glob("*.md"))),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_functions_classes_and_their_methods_are_documented(module: ModuleType) -> None:
    values = {name: getattr(module, name) for name in module.__all__}
    # `Callable[...]` is a class to Python 3.10
    values = {name: value for name, value in values.items() if not get_origin(value)}
    bare = [
        name
        for name, value in values.items()
        if not name.isupper()  # options and other constants have theirs in the source
        and (inspect.isfunction(value) or inspect.isclass(value) or inspect.ismodule(value))
        and not inspect.getdoc(value)
    ]
    bare += [
        f"{name}.{part}"
        for name, value in values.items()
        if inspect.isclass(value)
        for part, found in vars(value).items()
        if not part.startswith("_") and (inspect.isfunction(found) or isinstance(found, property))
        if not inspect.getdoc(getattr(value, part))
    ]
    assert not bare


def test_each_name_is_used() -> None:
    """An example of a plug-in needs it, or two rooms do: features, and packages of their own."""
    rooms: dict[tuple[str, str], set[str]] = {}
    for path in sorted((ROOT / "src" / "ramerge").rglob("*.py")):
        room = path.relative_to(ROOT / "src" / "ramerge").parts[0]
        if room not in _CORE:
            for each in _imported(path.read_text(encoding="utf-8")):
                rooms.setdefault(each, set()).add(room)
    outside = {
        each
        for folder in ("examples", "packages")
        for path in (ROOT / folder).rglob("*.py")
        for each in _imported(path.read_text(encoding="utf-8"))
    }
    guides = [
        *(ROOT / "docs" / "guides").glob("*.md"),
        *(ROOT / "docs/reference/sdk" / each for each in _OF_GUIDE),
    ]
    outside |= {each for page in guides for each in _imported(_programs(page))}
    guide = (ROOT / "docs" / "guides" / "write-a-method.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:\w+\.)*(\w+)`", guide))
    unused = [
        f"{module.__name__}.{name}"
        for module in MODULES
        for name in module.__all__
        if name not in named
        and (module.__name__, name) not in outside
        and len(rooms.get((module.__name__, name), ())) < 2
    ]
    assert not unused


def _imported(text: str) -> Iterator[tuple[str, str]]:
    """Modules and names that a program imports, wherever it does."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", each.name) for each in node.names)


_OF_GUIDE = ("methods.md", "commands.md")
"""The pages to which the guide for plug-ins sends its readers for a method or a command of theirs."""


def test_it_is_an_interface() -> None:
    """Few names, in modules that hand on and define nothing, each in the sentences of its module's page."""
    assert sum(len(module.__all__) for module in MODULES) <= 150
    silent = []
    for module in MODULES:
        topic = module.__name__.rpartition(".")[2]
        page = (ROOT / "docs" / "reference" / "sdk" / f"{topic}.md").read_text(encoding="utf-8")
        sentences = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
        named = set(re.findall(r"`(?:\w+\.)*(\w+)[^`]*`", sentences))
        silent += [f"{topic}.{name}" for name in module.__all__ if name not in named]
    assert not silent
