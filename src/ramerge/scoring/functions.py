"""Loads a Python function that a user names, `module:function` or `file.py:function`; its digest and its errors."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_PACKAGE = str(Path(__file__).parents[1])


class NoFunctionError(ValueError):
    """The name of a function leads nowhere. The message is a sentence for the user."""


def load(spec: str) -> tuple[ModuleType, Callable[..., Any]]:
    """Load a user's function and its module, which may import others from the file's folder or the working folder.

    Raises:
        NoFunctionError: there is no such file, or it has no such function.
        Exception: whatever the module raises.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        write = f"{spec}:FUNCTION" if spec.endswith(".py") else "file.py:function or module:function"
        raise NoFunctionError(f"{spec!r} names no function; write {write}")
    if not place.endswith(".py") and not all(part.isidentifier() for part in place.split(".")):
        raise NoFunctionError(f"{place!r} is neither a module nor a Python file; write file.py:function")
    if place.endswith(".py"):
        path = Path(place).expanduser()
        if not path.is_file():
            raise NoFunctionError(f"{path}: there is no such Python file")
        _add_import_folder(path.parent.absolute())
        loader = _SourceLoader(path.stem, str(path))
        module_spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
        assert module_spec is not None  # one is always made where a loader is given
        module = sys.modules[path.stem] = importlib.util.module_from_spec(module_spec)
        loader.exec_module(module)
    else:
        _add_import_folder(Path.cwd())
        module = importlib.import_module(place)
    function: object = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        names = [each for each, value in vars(module).items() if inspect.isfunction(value) and not each.startswith("_")]
        raise NoFunctionError(f"{place} has no function {name!r}; it has {', '.join(names) or 'none'}")
    return module, function


class _SourceLoader(SourceFileLoader):
    """Compiles a file each time, because Python's cache misses an edit with the same second and size."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _add_import_folder(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def digest(module: ModuleType) -> str:
    """Return the digest of a user's module: its file, and the imported modules in its folder.

    Installed packages, and modules that a function imports later, do not count. Empty if there is no file.
    """
    file = getattr(module, "__file__", None)
    if not file:
        return ""
    own = Path(file).resolve()
    hash_of_files = hashlib.sha256(own.read_bytes())
    # a script that calls ramerge is no part of the function
    modules = [each for name, each in [*sys.modules.items()] if name not in ("__main__", "__mp_main__")]
    names = [getattr(each, "__file__", None) or "" for each in modules]
    # thousands of modules are imported next to torch, and a path takes 0.1 ms to resolve
    module_files = {Path(name).resolve() for name in names if name.endswith(".py") and "site-packages" not in name}
    for path in sorted(module_files - {own}):
        # some modules name a file that is not there
        own_module = path.is_relative_to(own.parent) and "site-packages" not in path.parts
        if own_module and path.is_file():
            hash_of_files.update(
                f"\0{path.relative_to(own.parent)}\0".encode("utf-8", "surrogateescape") + path.read_bytes()
            )
    return hash_of_files.hexdigest()


def function_state(spec: str) -> dict[str, str]:
    """Return the name of a user's function and the digest of its module, whatever path leads to it."""
    module, _ = load(spec)
    return {"function": spec.rpartition(":")[2], "digest": digest(module)}


def describe_error(error: BaseException) -> str:
    """Describe an error of a user's function, or of its name, in one sentence."""
    if isinstance(error, NoFunctionError):
        return str(error)[:2000]
    return f"{f'{type(error).__name__}: {error}'[:2000]}{_place_of(error)}"


def _place_of(error: BaseException) -> str:
    """Return the last line of the user's file that the error passed, in parentheses; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [each for each in frames if not each.filename.startswith((_PACKAGE, "<")) and each.line]
    own = [each for each in outside if each.filename == outside[0].filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
