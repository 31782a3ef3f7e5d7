"""Folders that ramerge writes: file names, block size and signed indexes of deltas, and models inside an output."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

DELTA_INDEX = "delta.safetensors.index.json"
"""A folder with this file is a delta in ramerge's layout."""

COMPANIONS = "companions"
"""The subfolder of a delta with files that belong to the model, such as its tokenizer."""

BLOCK = 1 << 18
"""The number of elements in a block of a delta; the last block of a tensor may have fewer."""


def signed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a delta's index, with their digest added."""
    return {**values, "metadata": {**values["metadata"], "index": digest_of_delta_index(values)}}


def digest_of_delta_index(values: Mapping[str, Any]) -> str:
    """The digest of a delta's index: xxh3-128 of its ASCII JSON with sorted keys, no spaces, no `metadata.index`."""
    metadata = {key: value for key, value in values["metadata"].items() if key != "index"}
    text = json.dumps({**values, "metadata": metadata}, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


# --- outputs that are replaced ---------------------------------------------------------------------------------------

SWEEP = "sweep.json"
RECORDS = ("ramerge.json", DELTA_INDEX, SWEEP)
"""Files that show that a folder was written by ramerge."""

SEARCH_DESCRIPTION = "asked.json"
"""A folder with this file is that of a search or a greedy soup."""


def is_unfinished_search(folder: Path) -> bool:
    """Whether a folder holds a search or greedy soup that has not ended."""
    return (folder / SEARCH_DESCRIPTION).is_file() and not (folder / "best").is_dir()


def model_inside(names: Collection[str], sweep: Mapping[str, object]) -> str | None:
    """The first subfolder of a folder that contains a separate model; None if there is none.

    Points of a sweep and the companions of a delta are not separate models. Neither is a folder with a config.json but
    no weights, such as a part of a pipeline.

    Args:
        names: all files in the outer folder, as relative paths with `/`.
        sweep: the contents of the folder's sweep.json; empty if there is none.
    """
    points = sweep.get("points")
    own = {*(points if isinstance(points, Mapping) else ()), *([COMPANIONS] if DELTA_INDEX in names else ())}
    folders: dict[str, set[str]] = {}
    for path in map(PurePosixPath, names):
        if len(path.parts) > 1 and path.parts[0] not in own:
            folders.setdefault(path.parent.as_posix(), set()).add(path.name)
    return min(
        (
            folder
            for folder, files in folders.items()
            if not files.isdisjoint(RECORDS)
            or ("config.json" in files and any(name.endswith(".safetensors") for name in files))
        ),
        default=None,
    )


def holds_another(place: object) -> str:
    """The message that an output is not replaced, because there is another model inside it, at `place`."""
    return (
        f"holds another model, in {place}. It is never replaced, to protect that model; choose another folder, or "
        "remove it yourself"
    )
