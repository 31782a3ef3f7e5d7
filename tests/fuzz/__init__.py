"""Mutated inputs of every kind, by the hundred thousand: `make fuzz`, or `python -m tests.fuzz --help`.

Each module has `cases(seed)`, which makes some inputs that depend on nothing but the seed, and `check(case)`, which
gives one to the functions that the command line calls. It returns whether the input was taken, and raises what is a
defect: an error that is none of ramerge's, or a promise that was not kept.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

KINDS = (
    "headers",
    "indices",
    "deltas",
    "configs",
    "companions",
    "tokenizers",
    "recipes",
    "records",
    "importances",
    "prompts",
    "pickles",
    "foreign",
    "results",
)


def kind(name: str) -> ModuleType:
    """The module of that name; some need an extra."""
    return import_module(f"tests.fuzz.{name}")
