"""Warnings of damaged files next to the weights that would be copied or compared.

They are only warnings, because a model with such a file can be merged: no weight depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch

from ramerge.core.formats.sidecars import has_tokenizer, is_tokenizer
from ramerge.core.foundation.errors import AGAIN, CheckpointError, readable
from ramerge.core.foundation.text import enumerated
from ramerge.core.planning.findings import PlanFinding, warning
from ramerge.core.planning.inputs import OpenedInputs
from ramerge.core.planning.owners import BASE
from ramerge.core.planning.tokens import Comparison, TokenReader
from ramerge.core.recipe.model import Recipe
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Checkpoint

# Files that transformers and tokenizers read. The model's config.json is checked when the model is opened.
_OBJECTS = (
    "tokenizer.json",
    "vocab.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.json",
    "tekken.json",
    "*_config.json",
    "*/config.json",
)
_ALL: Sequence[Comparison] = ("tokens", "chat template", "end tokens")


def warn_of_damaged_files(
    inputs: OpenedInputs, recipe: Recipe, companions: Mapping[str, Location], reader: TokenReader, *, alone: bool
) -> Iterator[PlanFinding]:
    """Warn of damaged files that would be copied or compared.

    Args:
        companions: the files to copy: relative names and sources.
        alone: whether the output is only tensors, without files, so that only tokens are compared.
    """
    models = {BASE: inputs.opened_base} if inputs.opened_base is not None and recipe.base is not None else {}
    models |= inputs.opened_agents
    owners: dict[Location, str] = {}
    reasons: dict[Location, str] = {}
    uncompared: dict[Location, list[str]] = {}
    for name, model in models.items():
        for what in _ALL[:1] if alone or recipe.companions is not None else _ALL:
            with suppress(CheckpointError):  # reported as a separate problem
                for path, reason in reader.damages(model, what).items():
                    reasons[path] = reason
                    if owners.setdefault(path, name) == name and len(models) > 1:
                        uncompared.setdefault(path, []).append(what)
    names_by_path = {path: name for name, path in companions.items()}
    for path, name in names_by_path.items():
        if path not in reasons and (damage := _damage_of(reader, path, name)) is not None:
            reasons[path] = damage
    for path, reason in reasons.items():
        kinds = uncompared.get(path, [])
        effects = ["it is copied to the output unchanged"] if path in names_by_path else []
        if kinds:
            are = "are" if len(kinds) > 1 or kinds[0].endswith("s") else "is"
            whose = owners[path] or "the base"
            effects.append(f"{enumerated(kinds)} of {whose} {are} not compared with the other models'")
        if effects:
            advice = (
                _intact_file_advice(reader, models, names_by_path[path])
                if is_tokenizer(names_by_path.get(path, ""))
                else ""
            )
            yield warning(f"{path}: {reason}; {' and '.join(effects)}; {AGAIN}{advice}", owners.get(path))


def _damage_of(reader: TokenReader, path: Location, name: str) -> str | None:
    """Why a file that the output gets under this name is damaged; None if it is not, or if its kind is not checked."""
    with suppress(CheckpointError):
        if any(fnmatch(name, each) for each in _OBJECTS):
            return reader.damage_of(path)
        with readable(path):
            return "is empty" if has_tokenizer([name]) and not path.stat().st_size else None
    return None


def _intact_file_advice(reader: TokenReader, models: Mapping[str, Checkpoint], name: str) -> str:
    """Advice to take an agent's intact file of this name by a key of the recipe; empty if no agent has one."""
    for agent, model in models.items():
        with suppress(CheckpointError):
            if agent != BASE and reader.has_valid_json(model, name):
                return f" (or take the file of {agent}: `companions: {agent}`)"
    return ""
