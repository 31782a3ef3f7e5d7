"""Folders that ramerge writes: file names, block size and signed indices of deltas, and models inside of an output."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

import xxhash

DELTA_INDEX = "delta.safetensors.index.json"
"""A folder with this file is a delta in ramerge's layout."""

COMPANIONS = "companions"
"""The folder of what belongs to the model, in a delta's folder."""

BLOCK = 1 << 18
"""Elements of a block, the last one of a tensor excepted."""


def signed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a delta's index with their digest."""
    return {**values, "metadata": {**values["metadata"], "index": digest_of_delta_index(values)}}


def digest_of_delta_index(values: Mapping[str, Any]) -> str:
    """Digest of a delta's index: xxh3-128 of its JSON in ASCII, with sorted keys, no spaces, no `metadata.index`."""
    metadata = {key: value for key, value in values["metadata"].items() if key != "index"}
    text = json.dumps({**values, "metadata": metadata}, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


# --- outputs that are replaced ---------------------------------------------------------------------------------------

SWEEP = "sweep.json"
RECORDS = ("ramerge.json", DELTA_INDEX, SWEEP)
"""Files that say that a folder was made by ramerge."""


def model_inside(names: Collection[str], sweep: Mapping[str, object]) -> str | None:
    """The first folder inside of another one that holds a model of its own.

    Points of a sweep and the files that a delta keeps belong to the outer model. So does a folder with a config.json
    and no weights, such as a part of a pipeline.

    Args:
        names: all files of the outer folder, as relative paths with `/`.
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
    """Why an output with a model inside, at that place, is not replaced."""
    return (
        f"holds another model, in {place}. It is never replaced, to protect that model; choose another folder, or "
        "remove it yourself"
    )
