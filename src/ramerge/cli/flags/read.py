"""Turns command-line arguments into a recipe's document and the output folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramerge.cli.words import named, pairs, parse_scalar
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.files import near_file
from ramerge.core.foundation.text import unknown
from ramerge.core.methods.base import SIDE_INPUTS
from ramerge.core.recipe.checks import check_conversion
from ramerge.core.recipe.document import Document, document_of, read_document
from ramerge.core.recipe.other_method import change_method
from ramerge.core.storage.schemes import is_remote

_YAML = (".yaml", ".yml")
_AGENT = "NAME=MODEL, such as --agent code=./coder"
_SETTING = "KEY=VALUE, such as --set parameters.r=0.05"


def read_model(model: str, options: Mapping[str, Any]) -> Document:
    """Return the document that rewrites one model, from the arguments of `convert`."""
    document = document_of(absolute_model(model), "MODEL")
    keys = [key for key, _ in pairs("--set", options["settings"], _SETTING)]
    check_conversion(keys, "--set ", has_base=options.get("base") is not None)
    _set_stated_keys(document, options, "base", "dtype", "rounding", "shard_size")
    _set_keys(document, options)
    return document


def recipe_of_words(paths: Sequence[str], options: Mapping[str, Any]) -> Document:
    """Read the document from `[RECIPE]` and flags, for commands that write no checkpoint.

    Raises:
        RecipeError: the arguments contradict each other, or the recipe cannot be read.
    """
    if len(paths) > 1:
        raise RecipeError(f"at most one recipe is expected, got {', '.join(paths)}{_flags_advice(paths)}")
    if not paths and not _names_models(options):
        raise RecipeError("give a recipe's path, or --base and --agent")
    document = Document({})
    if paths:
        try:
            document = _read_document(paths[0], options)
        except RecipeError as error:
            if not _names_models(options) or paths[0].endswith(_YAML) or not Path(paths[0]).exists():
                raise
            text = f"{paths[0]}: was read as the recipe, because it is a file; models are folders: --agent NAME=FOLDER"
            raise RecipeError([*error.messages, text]) from error
    return _apply_flags(document, options)


def _names_models(options: Mapping[str, Any]) -> bool:
    return options["base"] is not None or bool(options["agents"])


def _read_document(path: str, options: Mapping[str, Any]) -> Document:
    """Read a recipe's document. The folder of a single model becomes a recipe with only that agent."""
    if not _is_model(path):
        if not Path(path).exists() and not path.endswith(_YAML):
            raise RecipeError(f"{path}: no such recipe, and no such folder of a model{near_file(Path(path))}")
        return read_document(path)
    of_several = options["base"] is not None or options.get("method") is not None
    return document_of(absolute_model(path), "MODEL", None if of_several else "passthrough")


def read_inputs(
    paths: Sequence[str], options: Mapping[str, Any], *, or_model: bool = False
) -> tuple[Document, str | None]:
    """Read the document from `[RECIPE] [OUT]` and flags; return it, and the output folder as given, if any.

    Args:
        paths: the positional arguments. With `--base` or `--agent`, a single one is the output folder unless it is a
            file.
        options: values of the flags by name; absent ones are None or empty.
        or_model: whether the folder of a single model may be given in place of a recipe.

    Raises:
        RecipeError: the arguments contradict each other, or the recipe cannot be read.
    """
    pairs("--set", options["settings"], _SETTING)  # these first, because the rest of one may look like a path
    pairs("--agent", options["agents"], _AGENT)
    if agent_paths := [path for path in paths if "=" in path and not is_remote(path) and not Path(path).exists()]:
        raise RecipeError(
            f"{path}: is neither a recipe nor a folder; did you mean --agent {path}?" for path in agent_paths
        )
    if len(paths) > 2:
        text = f"at most one recipe and one output folder are expected, got {', '.join(paths)}"
        raise RecipeError(text + _flags_advice(paths))
    if len(paths) == 2 and _is_recipe(paths[1]) and not (_is_recipe(paths[0]) or _is_model(paths[0])):
        raise RecipeError(f"{paths[1]}: the recipe comes first, and then the output folder: {paths[1]} {paths[0]}")
    by_flags = _names_models(options)
    if or_model and paths and not options["agents"] and _is_model(paths[0]):
        document, rest = _read_document(paths[0], options), paths[1:]
    elif len(paths) == 2 or (paths and (not by_flags or _is_recipe(paths[0]))):
        try:
            document, rest = read_document(paths[0]), paths[1:]
        except RecipeError as error:
            if len(paths) == 2 or paths[0].endswith(_YAML) or (not by_flags and Path(paths[0]).exists()):
                raise
            text = (
                "because it is a file; if it is meant as OUT, give a folder"
                if by_flags
                else "because no models are named; if it is meant as OUT, give --base and --agent, or a recipe"
            )
            raise RecipeError([*error.messages, f"{paths[0]}: was read as the recipe, {text}"]) from error
    elif by_flags:
        document, rest = Document({}), paths
    else:
        raise RecipeError("give a recipe's path, or --base and --agent")
    return _apply_flags(document, options), rest[0] if rest else None


def _flags_advice(paths: Sequence[str]) -> str:
    """Return advice with flags for models whose folders were given as positional arguments."""
    base, *agents = [path for path in paths if _is_model(path)] or [""]
    words = " ".join(f"--agent {Path(path).name}={path}" for path in agents)
    return f"; models are named by options: --base {base} {words}" if agents else ""


def _is_model(path: str) -> bool:
    """Whether an argument is a model's folder, local or remote, or a model with adapters (`storage.resolve`)."""
    return is_remote(path) or Path(path).is_dir() or ("+" in path and not _is_recipe(path))


def _is_recipe(path: str) -> bool:
    return path.endswith(_YAML) or Path(path).is_file()


def _apply_flags(document: Document, options: Mapping[str, Any]) -> Document:
    """Return the document with the values of flags. A preset, or another method, replaces the document's parameters."""
    if options.get("method") is not None:
        document = change_method(document, options["method"], "--method")
    if options.get("preset") is not None:
        document = document.without("parameters")
    _set_stated_keys(document, options, "base", "preset", "dtype", "rounding", "shard_size")
    agents = named("--agent", options["agents"], _AGENT)
    for name, model in agents.items():
        document.set(("agents", name), absolute_model(model), f"--agent {name}")
    agent_names = list(document.agents)  # none in the form of another program, which is translated when it is opened
    for key, example in [(side.key, f"./{side.key}/code") for side in SIDE_INPUTS] + [("prompts", "code.jsonl")]:
        flag = f"--{key}"
        paths = named(flag, options.get(key, ()), f"NAME=PATH, such as {flag} code={example}")
        named_later = key == "prompts" and document.source is not None and document.stated("agents") is None
        if not named_later and (wrong := [name for name in paths if name not in agent_names]):
            raise RecipeError(f"{flag} {name}: {unknown('agent', name, agent_names)}" for name in wrong)
        for name, path in paths.items():
            place = ("prompts", name) if key == "prompts" else ("agents", name, key)
            document.set(place, absolute_model(path), f"{flag} {name}")
    _set_keys(document, options)
    return document


def _set_keys(document: Document, options: Mapping[str, Any]) -> None:
    settings = pairs("--set", options["settings"], _SETTING)
    keys = [document.key_of(key) for key, _ in settings]
    if twice := [key for place, key in enumerate(keys) if key in document.flags or key in keys[:place]]:
        raise RecipeError(
            f"--set {'.'.join(key)}: is given twice{f', also by {flag}' if (flag := document.flags.get(key)) else ''}; "
            "give it once"
            for key in dict.fromkeys(twice)
        )
    for key, (name, value) in zip(keys, settings, strict=True):
        document.set(key, parse_scalar(value, f"--set {name}"), f"--set {name}={value}")


def _set_stated_keys(document: Document, options: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if options.get(key) is not None:
            value = absolute_model(options[key]) if key == "base" else options[key]
            document.set((key,), value, f"--{key.replace('_', '-')}")


def absolute_model(model: str) -> str:
    """Make a model's path from a flag absolute, so that it does not depend on the recipe's folder.

    Other names, such as hub ids, stay as they are.
    """
    try:
        path = Path(model).expanduser()
        return str(path.absolute()) if model and path.exists() else model
    except (ValueError, RuntimeError, OSError):
        return model  # planning reports what is wrong with it
