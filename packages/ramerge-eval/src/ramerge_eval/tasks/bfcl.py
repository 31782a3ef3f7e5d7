"""Loads the package `bfcl-eval` without its vendors' SDKs, and so that it runs nothing of a model's output.

`load` imports a private copy of the package's modules: other users of `bfcl_eval` in the process get the untouched
package. In the copy

- `bfcl_eval.constants.model_config` is a stub. The real one imports a handler, and with it an SDK, for every model on
  the leaderboard, thirty in all; the checker only asks it whether a model writes `_` for the `.` in a function's name.
- `eval`, by which the decoder computes arguments such as `2 * 3600`, does arithmetic and nothing else: see
  `ramerge_eval.arithmetic`.
- folders for results and locks, which the package makes when imported, are made in a temporary folder and removed.

The package's other dependencies are not needed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

from ramerge import EvaluationError
from ramerge_eval.arithmetic import compute

PACKAGES = ("bfcl-eval", "tree-sitter", "tree-sitter-java", "tree-sitter-javascript")
PROMPTING, NATIVE = "ramerge", "ramerge-native"
"""Names of models for the checker: the first writes function names unchanged; the second writes `_` for `.`, as
OpenAI's API requires, and as the package does for all models that it queries through that API's `tools`.
"""

_MODULES = ("bfcl_eval", "tree_sitter", "tree_sitter_java", "tree_sitter_javascript")
_STUBBED = "bfcl_eval.constants.model_config"
_ROOT = "BFCL_PROJECT_ROOT"


class Bfcl(NamedTuple):
    """The modules of the package bfcl-eval that the task `tool` calls."""

    config: ModuleType
    enums: ModuleType
    types: ModuleType
    utils: ModuleType
    handler: ModuleType
    checker: ModuleType


# its own requirements pin what nothing here needs
_INSTALL = "pip install --no-deps bfcl-eval (the packages of tree-sitter come with ramerge-eval)"


@cache
def load() -> Bfcl:
    """Load the modules of the package bfcl-eval.

    Raises:
        EvaluationError: something is not installed, or has an incompatible version.
    """
    if absent := [name.replace("_", "-") for name in _MODULES if find_spec(name) is None]:
        problems = [f"ramerge/tool needs {', '.join(absent)}: {_INSTALL}"]
        if sys.version_info >= (3, 13):
            problems.append("ramerge/tool: tree-sitter 0.21 has no wheels for Python 3.13; use 3.10 to 3.12")
        raise EvaluationError(problems)
    if sys.version_info >= (3, 14):  # its decoder asks for ast.NameConstant, and would call every answer undecodable
        raise EvaluationError("ramerge/tool: bfcl-eval does not work with Python 3.14 and later; use 3.10 to 3.12")
    try:
        with _copy():
            modules = Bfcl(
                config=import_module("bfcl_eval.constants.eval_config"),
                enums=import_module("bfcl_eval.constants.enums"),
                types=import_module("bfcl_eval.constants.type_mappings"),
                utils=import_module("bfcl_eval.utils"),
                handler=import_module("bfcl_eval.model_handler.utils"),
                checker=import_module("bfcl_eval.eval_checker.ast_eval.ast_checker"),
            )
    except Exception as error:  # what a package raises that meets other versions of its dependencies than it knows
        raise EvaluationError(
            f"ramerge/tool: bfcl-eval cannot be imported ({type(error).__name__}: {error}); "
            f"install it and what it needs again: {_INSTALL}"
        ) from error
    vars(modules.handler)["eval"] = compute
    return modules


@contextmanager
def _copy() -> Iterator[None]:
    """A context that imports a fresh copy of `bfcl_eval` with the stub, and restores all modules afterwards."""
    root = os.environ.get(_ROOT)
    before = _out_of_sight()
    try:
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.environ[_ROOT] = folder
            stub = sys.modules[_STUBBED] = ModuleType(_STUBBED)
            vars(stub)["MODEL_CONFIG_MAPPING"] = {
                PROMPTING: SimpleNamespace(underscore_to_dot=False),
                NATIVE: SimpleNamespace(underscore_to_dot=True),
            }
            yield
    finally:
        _out_of_sight()
        sys.modules.update(before)
        os.environ.pop(_ROOT)
        if root is not None:
            os.environ[_ROOT] = root


def _out_of_sight() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "bfcl_eval"]
    return {name: sys.modules.pop(name) for name in names}
