"""What the shell offers after Tab. Imports stand inside the functions: a shell waits for them at every keystroke."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from click import Context, Parameter
from click.shell_completion import CompletionItem

_Complete = Callable[[Context, Parameter, str], list[CompletionItem]]


def _matching(words: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(begun)]


def files(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Files and folders, by the shell's own means."""
    return [CompletionItem(begun, type="file")]


def folders(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Folders, by the shell's own means."""
    return [CompletionItem(begun, type="dir")]


def named_folders(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """The folder of NAME=FOLDER. Shells complete whole words, so it is looked up here."""
    name, equals, place = begun.partition("=")
    if not equals:
        return []
    parent = Path(place) if place.endswith("/") else Path(place or ".").parent
    stem = place[: place.rfind("/") + 1]
    try:
        found = sorted(entry.name for entry in parent.expanduser().iterdir() if entry.is_dir())
    except (OSError, RuntimeError, ValueError):
        return []
    return _matching((f"{name}={stem}{entry}/" for entry in found if not entry.startswith(".")), begun)


def methods(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Names of merging methods."""
    from ramerge.methods import METHODS

    return _matching(METHODS, begun)


def presets(context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Presets of the method that `--method` names; of all methods without one."""
    from ramerge.methods import METHODS

    chosen = METHODS.get(str(context.params.get("method")))
    owners = [chosen] if chosen is not None else list(METHODS.values())
    return _matching(dict.fromkeys(name for method in owners for name in method.presets), begun)


def parameters(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """`parameters.KEY=` for `--vary`."""
    return _matching((f"{key}=" for key in _parameters()), begun)


def keys(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Keys of recipes for `--set`."""
    from ramerge.recipe import Allow, Recipe

    own = [name for name in Recipe.model_fields if name not in ("agents", "parameters", "rules", "allow")]
    allowed = [f"allow.{name}" for name in Allow.model_fields]
    return _matching((f"{key}=" for key in (*own, *_parameters(), *allowed)), begun)


def dtypes(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """What `dtype` takes."""
    from typing import get_args

    from ramerge.recipe import Recipe

    kinds = get_args(Recipe.model_fields["dtype"].annotation)
    return _matching((name for kind in kinds for name in get_args(kind)), begun)


def suites(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Names of suites, also behind a comma."""
    from ramerge.evaluation.suites import SUITES

    before = begun[: begun.rfind(",") + 1]
    return _matching((before + name for name in SUITES), begun)


def _parameters() -> list[str]:
    from ramerge.methods import METHODS

    names = dict.fromkeys(name for method in METHODS.values() for name in method.parameters.model_fields)
    return [f"parameters.{name}" for name in names]
