"""The process in which a score's function runs: `python -m ramerge.search.child FUNCTION DESCRIPTOR`.

It reads a JSON line for each model from standard input, and writes lines to the descriptor. What the function prints
goes to the log that standard output and error are.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def main(spec: str, descriptor: int) -> None:
    """Load a function, and score models with it until standard input ends."""
    with os.fdopen(descriptor, "w", encoding="utf-8") as answers:

        def say(**values: Any) -> None:
            answers.write(json.dumps(values) + "\n")
            answers.flush()

        try:
            module, function = load(spec)
        except BaseException as error:
            traceback.print_exc()
            say(error=in_words(error))
            return
        say(
            ready=True,
            splits=takes_split(function),
            in_parts=inspect.isgeneratorfunction(function),
            digest=digest(module),
        )
        for line in sys.stdin:
            asked = json.loads(line)
            if "model" in asked:
                try:
                    _score(function, asked, say)
                except Exception as error:
                    traceback.print_exc()
                    say(error=in_words(error))


def _score(function: Callable[..., Any], asked: Mapping[str, Any], say: Callable[..., None]) -> None:
    more = {"split": asked["split"]} if takes_split(function) else {}
    for part in _parts(function(Path(asked["model"]), **more)):
        say(part=plain(part))
        if not json.loads(sys.stdin.readline() or "{}").get("more"):
            break
    say(done=True)


def _parts(returned: Any) -> Iterator[Any]:
    """A generator gives its scores part by part."""
    return iter(returned) if inspect.isgenerator(returned) else iter([returned])


def load(spec: str) -> tuple[ModuleType, Callable[..., Any]]:
    """The function that `module:function` or `file.py:function` names.

    Raises:
        ValueError: it names none.
    """
    place, _, name = spec.rpartition(":")
    module = from_file(Path(place)) if place.endswith(".py") else _from_path(place)
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if inspect.isfunction(value) and not each.startswith("_")]
        raise ValueError(f"{place} has no function {name!r}; it has {', '.join(known) or 'none'}")
    return module, function


def from_file(path: Path) -> ModuleType:
    """A file as a module; it finds modules beside it."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None or not path.is_file():
        raise ValueError(f"{path}: there is no such Python file")
    sys.path.insert(0, str(path.parent.absolute()))
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def _from_path(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def takes_split(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter `split`."""
    return "split" in inspect.signature(function).parameters


def digest(module: ModuleType) -> str:
    """What tells one version of a module's file from another; empty where it has no file."""
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def plain(value: Any) -> Any:
    """Scores as JSON holds them: numbers of NumPy and torch become Python's, and other values their text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    return repr(value)[:200]


def in_words(error: BaseException) -> str:
    """An error in one sentence."""
    return f"{type(error).__name__}: {error}"[:2000]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
