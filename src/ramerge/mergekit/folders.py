"""The folder at which relative paths of a recipe in mergekit's form start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramerge.core.recipe.paths import parts_of
from ramerge.sdk.recipes import Document


def _is_under(model: str, folder: Path) -> bool:
    """Whether a model, or one of the parts that are added up, exists under a folder."""
    return any(part.path for part in parts_of(model, folder))


def choose_folder(document: Document, models: Sequence[str]) -> tuple[Path, str | None]:
    """The folder at which paths of a recipe in mergekit's form start, and a note if there was a choice.

    mergekit starts at the working directory, and recipes are often kept next to their models or in a folder of their
    own there. All paths start at the same folder: the first of these under which most of the models exist.
    """
    if document.source is None:
        return document.folder, None
    folders = [Path(), document.folder, document.folder.absolute().parent]
    relative = [model for model in models if not Path(model).is_absolute()]
    counts = [sum(_is_under(model, folder) for model in relative) for folder in folders]
    best_folder = folders[counts.index(max(counts))]
    here, start = Path().resolve(), best_folder.resolve()
    if not any(counts) or here == start == document.folder.resolve():
        return best_folder, None
    why = "as in mergekit" if here == start else f"because fewer of the models are under {here}"
    return best_folder, f"relative paths start at {start}, {why}"
