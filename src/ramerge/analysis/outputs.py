"""What the commands write of an analysis, and what `recommend` says of it with the words of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ramerge.analysis.recommend import Recommendation, recommend, summary
from ramerge.analysis.report.write import figure_files, render, require_extra
from ramerge.analysis.results import Analysis
from ramerge.analysis.tables import csv_files
from ramerge.flags.read import named_inputs
from ramerge.foundation import files
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.events import Listener
from ramerge.foundation.files import STANDARD_OUTPUT
from ramerge.planning.inputs import tensors_of_base
from ramerge.recipe.document import Document
from ramerge.recipe.mergekit.translate import is_mergekit
from ramerge.recipe.read import open_recipe


def recommended(found: Recommendation, paths: Sequence[str], flags: Mapping[str, Any], document: Document) -> list[str]:
    """The lines of a recommendation, with commands that name the inputs as these words do."""
    own = open_recipe(document, tensors_of_base)
    inputs, left_out = named_inputs(paths, flags, own, translated=is_mergekit(document.values))
    return summary(found, inputs, left_out)


def advice(analysis: Analysis, paths: Sequence[str], flags: Mapping[str, Any], document: Document) -> list[str]:
    """What `recommend` says of these agents, for the page; nothing of a single one."""
    if len(analysis.model.agents) < 2:
        return []
    return recommended(recommend(analysis), paths, flags, document)


def models_of(document: Document) -> list[Path]:
    """Folders of models on this machine that a recipe names."""
    agents = document.values.get("agents")
    values = [document.values.get("base"), *(agents.values() if isinstance(agents, Mapping) else ())]
    texts = [value.get("model") if isinstance(value, Mapping) else value for value in values]
    return [folder for text in texts if isinstance(text, str) and (folder := document.folder / text).is_dir()]


def check_outputs(flags: Mapping[str, Any], models: Sequence[Path] = ()) -> None:
    """Refuse what could not be written, before the inputs are read, and what would be written into a model."""
    if flags["as_json"] and flags["html"] == STANDARD_OUTPUT:
        raise RecipeError("--json and --html - both print; give --html a file")
    texts = _given(flags, {"--html": "html", "--json-file": "json_file"})
    folders = _given(flags, {"--csv": "csv", "--figures": "figures"})
    files.check_outputs(texts, folders)
    for path in (*texts.values(), *folders.values()):
        if path != STANDARD_OUTPUT and any(path.resolve().is_relative_to(model.resolve()) for model in models):
            raise RecipeError(f"{path}: is inside a model that is read; choose another place")
    if flags["html"] is not None or flags["figures"] is not None:
        require_extra()


def _given(flags: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Path]:
    return {flag: flags[key] for flag, key in keys.items() if flags[key] is not None}


def prints(flags: Mapping[str, Any]) -> bool:
    """Whether a page or numbers take the place of lines for people."""
    return bool(flags["as_json"]) or flags["html"] == STANDARD_OUTPUT


def write_outputs(
    analysis: Analysis,
    flags: Mapping[str, Any],
    listen: Listener,
    *,
    record: Mapping[str, Any] | None = None,
    recipe: str | None,
    advice: Sequence[str],
) -> None:
    """Write the files that the flags ask for, all of them or none; then print the numbers if they are asked for."""
    texts: list[tuple[Path, str | bytes]] = []
    if flags["json_file"] is not None:
        texts.append((flags["json_file"], analysis.to_json()))
    if flags["csv"] is not None:
        texts += csv_files(analysis.tables(), flags["csv"])
    if flags["html"] is not None:
        texts.append((flags["html"], render(analysis.to_dict(), record, recipe, listen, advice)))
    if flags["figures"] is not None:
        texts += figure_files(analysis.to_dict(), flags["figures"], listen)
    files.write_texts(texts)
    if flags["as_json"]:
        click.echo(analysis.to_json(), nl=False)
