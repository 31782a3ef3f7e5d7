"""Writes a recipe as a file, and as command-line arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramerge.cli.words import stays_text
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.files import STANDARD_OUTPUT, write_texts
from ramerge.core.foundation.jsontext import dumped
from ramerge.core.methods.base import SIDE_INPUTS
from ramerge.core.options import Options
from ramerge.core.output.targets import claim_files
from ramerge.core.recipe.document import Document
from ramerge.core.recipe.model import Recipe
from ramerge.core.recipe.paths import parts_of, portable, reads_of

_KEYS = ("dtype", "rounding", "rounding_seed", "companions", "shard_size", "rename", "allow")
"""Keys that work with any method."""


def write_recipe(recipe: Recipe, path: Path) -> list[str]:
    """Write a recipe in ramerge's own form, with all values that flags gave. `-` prints it.

    Returns:
        A line that says so; none if the recipe was printed.

    Raises:
        RecipeError: the file exists.
        OutputError: the file cannot be written.
    """
    prints = path == STANDARD_OUTPUT
    if not prints and os.path.lexists(path):
        raise RecipeError(f"--write-recipe {path}: exists, and is not replaced; give another name")
    claim_files(reads_of(recipe.document), {"--write-recipe": path})
    write_texts([(path, portable(recipe, None if prints else path.parent).to_yaml())])
    return [] if prints else [f"{path}: recipe with all flags applied"]


def words_of(recipe: Document, *, method: bool = True, prompts: bool = False, start: Path | None = None) -> list[str]:
    """Return a recipe as command-line arguments.

    Args:
        recipe: a document in ramerge's own form.
        method: whether to include the method, and what may not fit other methods: parameters, also those of rules,
            preset and side inputs.
        prompts: whether to include the prompts, for a command that takes them.
        start: give paths inside this folder relative to it; by default, paths start as in the recipe.
    """
    values: dict[str, Any] = recipe.as_dict()
    words: list[str] = []
    if method and values.get("method") is not None:
        words += ["--method", str(values["method"])]
    if values.get("base") is not None:
        words += ["--base", _short_model(values["base"], recipe.folder, start)]
    agents = {name: _agent_text(agent, recipe.folder, start) for name, agent in values["agents"].items()}
    plain = all(isinstance(model, str) for model in agents.values())
    if not plain or any("=" in name for name in agents):  # which --agent takes for the end of the name
        words += ["--set", f"agents={_text_for_set(agents)}"]
    else:
        words += [word for name, model in agents.items() for word in ("--agent", f"{name}={model}")]
    for name, path in (values.get("prompts") or {}).items() if prompts else ():
        words += ["--prompts", f"{name}={_short_path(recipe.folder / Path(path).expanduser(), start)}"]
    if method:
        words += [
            word
            for name, agent in values["agents"].items()
            for side in SIDE_INPUTS
            if isinstance(agent, Mapping) and agent.get(side.key)
            for word in (f"--{side.key}", f"{name}={_short_model(agent[side.key], recipe.folder, start)}")
        ]
        if values.get("preset") is not None:
            words += ["--preset", str(values["preset"])]
        for name, value in (values.get("parameters") or {}).items():
            words += ["--set", f"parameters.{name}={_text_for_set(value)}"]
    if rules := values.get("rules") if method else _remove_parameters(values.get("rules") or []):
        words += ["--set", f"rules={_text_for_set(rules)}"]
    for key in _KEYS:
        if values.get(key) is not None:
            words += ["--set", f"{key}={_text_for_set(values[key])}"]
    return words


def _remove_parameters(rules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the parameters of rules. Such a rule stays only if it keeps its tensors from later rules."""
    left = [{**rule, "parameters": {}} if rule.get("parameters") else rule for rule in rules]
    while left and left[-1].get("parameters") == {} and "dtype" not in left[-1]:
        left.pop()
    return left


def _agent_text(agent: Any, folder: Path, start: Path | None) -> object:
    """An agent as one text, with a plus between deltas; as a mapping for a soup, or a delta over another agent."""
    if isinstance(agent, Mapping) and agent.get("soup"):
        members = {name: _agent_text(one, folder, start) for name, one in agent["soup"]["agents"].items()}
        return {"soup": {**agent["soup"], "agents": members}}
    if isinstance(agent, Mapping) and agent.get("over"):
        deltas = [agent["delta"]] if isinstance(agent["delta"], str) else agent["delta"]
        return {**agent, "delta": [_short_model(part, folder, start) for part in deltas]}
    model = (agent.get("model") or agent["delta"]) if isinstance(agent, Mapping) else agent
    parts = [model] if isinstance(model, str) else model
    return "+".join(_short_model(part, folder, start) for part in parts)


def _short_model(model: str, folder: Path, start: Path | None) -> str:
    """Return a model's name so that it is valid in the working folder: paths in a recipe start at its folder."""
    return "+".join(_short_path(part.path, start) if part.path else part.written for part in parts_of(model, folder))


def _short_path(path: Path, start: Path | None) -> str:
    if start is None or not path.is_relative_to(start) or path == start:
        return str(path)
    inner = str(path.relative_to(start))
    return f"./{inner}" if inner.startswith("-") else inner


def _text_for_set(value: object) -> str:
    """Return the text that `--set` parses as the value."""
    if isinstance(value, str) and stays_text(value):
        return value
    return dumped(value, indent=None).strip()


def limit_words(options: Options) -> list[str]:
    """Return flags for the limits of a run, such as `--threads`."""
    words = ["--threads", str(options.threads)] if options.threads is not None else []
    words += ["--max-memory", str(options.max_memory)] if options.max_memory is not None else []
    return words + (["--device", options.device] if options.device != "auto" else [])
