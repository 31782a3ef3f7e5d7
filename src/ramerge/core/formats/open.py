"""Opens folders of any format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from ramerge.core.formats import unread
from ramerge.core.formats.encodings.decode import decode
from ramerge.core.formats.format import ADAPTER, Opening
from ramerge.core.formats.registry import by_priority
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import few_quoted
from ramerge.core.storage.location import Location, here
from ramerge.core.tensors.access import access
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import untied
from ramerge.core.tensors.lowrank import LowRank, OtherRows
from ramerge.core.tensors.paths import common_folder, linked_out
from ramerge.core.tensors.tensor import Tensor

# Planning takes a kilobyte of memory for each tensor.
_MOST_TENSORS = 250_000
# Files of weights inside of a folder, the most levels down that are searched, and the most folders.
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", ".metadata")
_MOST_LEVELS, _MOST_PLACES = 4, 100
# Files in the steps of a training run.
_STEPS = ("global_step_*/*/model_world_size_*_rank_0.pt", "global_step*/*mp_rank_00_model_states.pt")


def open_checkpoint(
    directory: Location,
    *,
    base: Checkpoint | None = None,
    allow_outside_links: bool = False,
    ignore_quantization: bool = False,
) -> Checkpoint:
    """Open a model's folder of any format, reading only headers.

    Args:
        directory: the folder.
        base: the model that an adapter or a delta changes.
        allow_outside_links: whether files may be links that lead out of the folder.
        ignore_quantization: whether `config.json` may declare an unknown quantization, or one that the tensors do not
            have.

    Raises:
        CheckpointError: the folder cannot be opened.
    """
    if not directory.is_dir():
        raise CheckpointError(not_a_directory(directory))
    if not access(directory).is_readable():
        raise CheckpointError(f"{directory}: no permission to read it; change its permissions")
    for format in by_priority():
        if (folder := format.find(directory)) is not None:
            if not allow_outside_links:
                _check_link(directory, folder)
            contents = format.open(folder, Opening(allow_outside_links, base))
            if not allow_outside_links and (base is None or contents.metadata_folder != base.metadata_folder):
                _check_link(directory, contents.metadata_folder)
            break
    else:
        raise CheckpointError(_missing_weights_text(directory))
    if len(contents.tensors) > _MOST_TENSORS:
        raise CheckpointError(f"{directory}: holds more than {_MOST_TENSORS:,} tensors, more than any model has")
    if not format.needs_base and (text := unread.advice_by_names(directory, contents.tensors)) is not None:
        raise CheckpointError(text)
    contents, quantized = decode(directory, contents, ignore=ignore_quantization)
    return Checkpoint(
        **vars(replace(contents, quantized=quantized or contents.quantized)),
        directory=directory,
        format=format.name,
        title=f"{format.title}, {quantized.title}" if quantized is not None else format.title,
        needs_base=format.needs_base,
        outside_links=allow_outside_links,
    )


def open_stack(
    folders: Sequence[Location],
    *,
    base: Checkpoint | None = None,
    only_deltas: bool = False,
    allow_outside_links: bool = False,
    ignore_quantization: bool = False,
) -> Checkpoint:
    """Open a model with adapters and deltas on it: each folder is applied to the preceding ones, the first to `base`.

    Args:
        folders: a model, then adapters and deltas; with a base, the first folder may be an adapter or a delta.
        base: the model that the first folder changes, if it is not a model itself.
        only_deltas: whether all folders must be deltas.
        allow_outside_links: whether files may be links that lead out of their folder.
        ignore_quantization: as for `open_checkpoint`.

    Raises:
        CheckpointError: a folder cannot be opened, is not a delta although it must be, is a model although it is added
            to one, or is an adapter that undoes changes by adapters before it.
    """
    options = {"allow_outside_links": allow_outside_links, "ignore_quantization": ignore_quantization}
    model = base
    # the base is not opened again, so that unchanged tensors are recognized as the base's
    again = base is not None and len(folders) > 1 and folders[0].resolve() == base.directory.resolve()
    notes: list[str] = []
    warnings: list[str] = []
    plain: Checkpoint | None = None  # the model without the adapters below the next folder
    for place, folder in enumerate(folders[again:], int(again)):
        below = model
        model = open_checkpoint(folder, base=below, **options)
        if only_deltas and model.delta is None:
            raise CheckpointError(f"{folder}: is not a delta ({model.title}); give a folder that `ramerge delta` wrote")
        if place and not model.needs_base:
            text = "is a whole model; only adapters and deltas can be added to a model"
            raise CheckpointError(f"{folder}: {text}")
        if model.format != ADAPTER or below is None:
            plain = None
        elif plain is None:
            plain = below
        elif names := _names_of_undone_changes(plain, below, model):
            raise CheckpointError(
                f"{folder}: replaces rows or all of {few_quoted(names)}, which an adapter before it has changed, so "
                "that change would be lost. If it was trained on the model with the other adapter, write that model "
                f"first (ramerge convert MODEL+ADAPTER OUT) and give OUT+{folder}"
            )
        notes += model.notes
        warnings += model.warnings
    assert model is not None
    return replace(model, notes=tuple(notes), warnings=tuple(warnings))


def _names_of_undone_changes(start: Checkpoint, below: Checkpoint, above: Checkpoint) -> list[str]:
    """Return the names of tensors whose changes by lower adapters of a stack are undone by the top adapter.

    Products add up, but rows of tokens, saved modules and magnitudes replace weights. PEFT refuses that, too: only one
    adapter can be active among those that train the same rows or save the same module.

    Args:
        start: the model without adapters.
        below: the model with all adapters but the top one.
        above: the model with all adapters, opened over `below`.
    """
    if above.untied:
        start, below = untied(start), untied(below)
    return [
        name
        for name, tensor in above.tensors.items()
        if (before := below.tensors.get(name)) is not None
        and not _has_equal_elements(before, start.tensors.get(name))
        and not _is_unchanged(tensor, before, start.tensors.get(name))
    ]


def _is_unchanged(tensor: Tensor, below: Tensor, start: Tensor | None) -> bool:
    """Whether a tensor still has all changes of earlier adapters.

    DoRA's magnitudes set the norms of rows or columns, so they undo earlier changes of these norms.
    """
    while not _has_equal_elements(tensor, below):
        match tensor.origin:
            case LowRank(base=base, magnitude=None):
                tensor = base
            case OtherRows(base=base, rows=rows) if not _has_changed(below, start, rows):
                tensor = base
            case _:
                return False
    return True


def _has_changed(tensor: Tensor, start: Tensor | None, rows: tuple[int, ...]) -> bool:
    """Whether earlier adapters have changed any of these rows."""
    while not _has_equal_elements(tensor, start):
        if not isinstance(tensor.origin, OtherRows) or set(rows) & set(tensor.origin.rows):
            return True
        tensor = tensor.origin.base
    return False


def _has_equal_elements(tensor: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors have the same elements, regardless of their names."""
    return other is not None and (tensor.dtype, tensor.shape, tensor.origin) == (other.dtype, other.shape, other.origin)


def _check_link(directory: Location, target: Location) -> None:
    """Raise if a link leads from the user's folder to a target outside of their common folder."""
    source, place = here(directory), here(target)
    if source is not None and place is not None and access(place).leads_outside(common_folder(source, place)):
        raise CheckpointError(linked_out(target))


def not_a_directory(directory: Location) -> str:
    """Return the message about a path that is not a folder."""
    if directory.suffix == ".gguf":
        return (
            f"{directory}: GGUF files are quantized and cannot be merged; "
            "merge the original safetensors checkpoints and convert the result"
        )
    if directory.is_file():
        return f"{directory}: is a file; give the folder that holds config.json and the weights"
    return access(directory).absence()


def _step_order(folder: Location) -> list[tuple[bool, int, str]]:
    """Sort key for a run's folders by step: `checkpoint-1000` comes after `checkpoint-200`, and both after others."""
    matches = [(name, re.search(r"[0-9]{1,18}$", name)) for name in PurePosixPath(str(folder)).parts]
    return [(match is not None, int(match[0]) if match else 0, name) for name, match in matches]


def _inner_models(directory: Location) -> list[Location]:
    """Return the nearest folders with weights, at most four levels down, in the order of steps."""
    for depth in range(1, _MOST_LEVELS + 1):
        places = {path.parent for pattern in _WEIGHTS for path in directory.glob(f"{'*/' * depth}{pattern}")}
        inside = [place for place in places if not access(place).leads_outside(directory)]
        some = sorted(inside, key=_step_order)[-_MOST_PLACES:]
        if models := [place for place in some if any(format.find(place) == place for format in by_priority())]:
            return models
    return []


def _missing_weights_text(directory: Location) -> str:
    if list(directory.glob("*.gguf")):
        return (
            f"{directory}: holds GGUF files only, which are quantized and cannot be merged; "
            "merge the original safetensors checkpoints and convert the result"
        )
    if steps := sorted(
        (path for pattern in _STEPS for path in directory.glob(pattern)), key=lambda path: path.stat().st_mtime
    ):
        return f"{directory}: is the folder of a training run; give one of its steps, such as {steps[-1].parent}"
    if list(directory.glob("adapter_model.*")) and not list(directory.glob("adapter_config.json")):
        return f"{directory}: lacks adapter_config.json, which says how to read an adapter; copy it from its training"
    if text := unread.advice(directory):
        return f"{directory}: {text}"
    if not any(directory.rglob("*")):
        return f"{directory}: is an empty folder; give the folder that holds config.json and the weights"
    inner = _inner_models(directory)
    others = f", the last of {len(inner)} such folders" if len(inner) > 1 else ""
    hint = f"; did you mean {inner[-1]}{others}?" if inner else ""
    formats = ", ".join(dict.fromkeys(format.title for format in by_priority()))
    return f"{directory}: has no weights in a known format ({formats}){hint}"
