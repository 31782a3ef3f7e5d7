"""Helpers for all formats: indices, `config.json`, and folders of training runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ramerge.core.formats.format import Opening
from ramerge.core.foundation.errors import AGAIN, CheckpointError, readable
from ramerge.core.foundation.jsontext import JsonLimits, read_object
from ramerge.core.foundation.text import quoted
from ramerge.core.storage.location import Location, is_far
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.paths import climbs_out, is_too_long
from ramerge.core.tensors.tensor import Tensor

UNGATHERED = (
    "it was saved without gathering the shards of ZeRO-3 or FSDP; gather them when you save (DeepSpeed: "
    "stage3_gather_16bit_weights_on_model_save, FSDP: FULL_STATE_DICT)"
)
"""The reason why weights of a model or an adapter have no elements, for messages."""

# Enough for an index of 150,000 tensors.
_LIMITS = JsonLimits(size=32_000_000, signs=1_000_000)
_MOST_FILES = 10_000
_REQUESTS = 16
_MINUTES = 30
# Folders of the policy within a run, and files that name the latest step: verl's, then SkyRL's.
_ROLES = ("actor", "policy")
_LATEST = ("latest_checkpointed_iteration.txt", "latest_ckpt_global_step.txt")


def read_json(path: Location) -> dict[str, object]:
    """Read a JSON object from a file in a checkpoint's folder.

    Raises:
        CheckpointError: the file cannot be read, exceeds a limit (`jsontext`), or is not a JSON object.
    """
    try:
        with readable(path):
            return read_object(path, _LIMITS)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; correct it, or {AGAIN}") from error


def read_config(folder: Location) -> dict[str, object]:
    """Read a folder's `config.json`; empty if there is none.

    Raises:
        CheckpointError: as for `read_json`.
    """
    path = folder / "config.json"
    return read_json(path) if path.exists() else {}


def write_time_warnings(folder: Location, identities: Iterable[Identity]) -> tuple[str, ...]:
    """Return a warning if the parts of a model were written at very different times, so may be from different steps."""
    times = sorted(identity.modified_ns for identity in identities)
    if not times or times[-1] - times[0] <= _MINUTES * 60 * 10**9:
        return ()
    return (
        f"{folder}: between the first and the last file that was written are more than {_MINUTES} minutes; make sure "
        "that all are of one step",
    )


def tag_of(path: Location) -> str | None:
    """Return the latest step that a trainer's small file names; None if the file or a plain name in it is missing."""
    if not path.is_file():  # reading a pipe could block
        return None
    try:
        with path.open("rb") as file:
            text = file.read(256).decode("ascii", "replace").strip()
    except OSError:
        return None
    return text if re.fullmatch(r"\w[\w .-]*", text) else None


def policy_places(folder: Location) -> list[Location]:
    """Return folders that may hold the policy: a run, its latest steps, and `actor` or `policy` in each."""
    steps = [folder / f"global_step_{step}" for name in _LATEST if (step := tag_of(folder / name)) is not None]
    return [inner for place in (folder, *steps) for inner in (place, *(place / role for role in _ROLES))]


@dataclass(frozen=True)
class About:
    """The configuration of a model that may have no `config.json` next to its weights.

    Attributes:
        config: the configuration; empty if there is none.
        metadata_folder: the folder of the configuration and the tokenizer.
        files: identity of `config.json`; empty if it is the base's.
        notes: a note if the base's configuration is used.
    """

    config: Mapping[str, object]
    metadata_folder: Location
    files: Mapping[Location, Identity]
    notes: tuple[str, ...] = ()


def about_model(folder: Location, places: Iterable[Location], opening: Opening) -> About:
    """Read the first `config.json` in these folders, otherwise take the base's configuration."""
    for place in places:
        if (place / "config.json").is_file():
            opening.check_files(place, ["config.json"], in_index=False)
            files = identify([place / "config.json"])
            return About(read_config(place), place, files)
    if opening.base is None:
        return About({}, folder, {})
    metadata_folder = opening.base.metadata_folder
    note = f"{folder}: there is no config.json; that of the base ({metadata_folder}) is used, and its tokenizer"
    return About(opening.base.config, metadata_folder, {}, (note,))


def read_index(path: Location, suffix: str) -> tuple[list[str], dict[str, str]]:
    """Return the weight files that an index names, sorted, and its map of tensors to files."""
    return indexed_files(path, read_json(path).get("weight_map"), suffix)


def indexed_files(path: Location, weight_map: object, suffix: str) -> tuple[list[str], dict[str, str]]:
    """Check an index's map of tensors to files; return its files, sorted, and the map.

    Args:
        path: the index's path, for messages.
        weight_map: the map.
        suffix: the required suffix of files.

    Raises:
        CheckpointError: the map is invalid, or names files outside of the folder or without this suffix.
    """
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise CheckpointError(f"{path}: weight_map must map tensor names to file names")
    files = list(dict.fromkeys(weight_map.values()))
    if len(files) > _MOST_FILES:
        raise CheckpointError(f"{path}: names {len(files):,} files; a checkpoint has at most {_MOST_FILES:,}")
    for wrong, what in ((climbs_out, "leads out of the checkpoint's folder"), (is_too_long, "is too long")):
        if any(map(wrong, files)):
            raise CheckpointError(f"{path}: the shard path {quoted(name)} {what}" for name in files if wrong(name))
    others = [name for name in files if not name.endswith(suffix)]
    if others:
        raise CheckpointError(f"{path}: shard {quoted(name)} is not a {suffix} file" for name in others)
    return sorted(files), weight_map


def opened_each(
    paths: Sequence[Location], tensors_of: Callable[[Location], list[Tensor]]
) -> Iterable[list[Tensor] | CheckpointError]:
    """Return the tensors of each file, or the file's error, in order; remote files are opened concurrently.

    Args:
        paths: the files.
        tensors_of: returns the tensors of a file.
    """

    def open_one(path: Location) -> list[Tensor] | CheckpointError:
        try:
            return tensors_of(path)
        except CheckpointError as error:
            return error

    if any(map(is_far, paths)):
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return list(pool.map(open_one, paths))
    return map(open_one, paths)


def check_index(folder: Location, index: Mapping[str, str], shards: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return problems if an index and the files disagree.

    Args:
        folder: the folder, for messages.
        index: the index's map of tensors to files.
        shards: the names of the tensors in each file.
    """
    actual = {name: shard for shard, names in shards.items() for name in names}
    problems = []
    for name, shard in index.items():
        if name not in actual:
            problems.append(f"{folder / shard}: lacks {quoted(name)}, which the index lists for it")
        elif actual[name] != shard:
            problems.append(f"{folder}: the index lists {quoted(name)} for {shard}, but it is in {actual[name]}")
    problems += [
        f"{folder / shard}: holds {quoted(name)}, which the index does not list"
        for name, shard in actual.items()
        if name not in index
    ]
    return problems
