"""Models inside of the folder of an output, which replacing the output would remove."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from ramerge.storage.delta_index import COMPANIONS, INDEX

SWEEP = "sweep.json"
RECORDS = ("ramerge.json", INDEX, SWEEP)
"""Files that say that a folder was made by ramerge."""


def model_inside(names: Collection[str], sweep: Mapping[str, Any]) -> str | None:
    """The first folder inside of another one that holds a model of its own.

    Points of a sweep and the files that a delta keeps belong to what is there. So does a folder of a model that has a
    config.json and no weights, such as a part of a pipeline.

    Args:
        names: all files of the outer folder, as relative paths with `/`.
        sweep: what its `sweep.json` says; empty without one.
    """
    points = sweep.get("points")
    own = {*(points if isinstance(points, Mapping) else ()), *([COMPANIONS] if INDEX in names else ())}
    folders: dict[str, set[str]] = {}
    for path in map(PurePosixPath, names):
        if len(path.parts) > 1 and path.parts[0] not in own:
            folders.setdefault(path.parent.as_posix(), set()).add(path.name)
    return min((folder for folder, files in folders.items() if _is_model(files)), default=None)


def holds_another(place: object) -> str:
    """Why an output with a model inside, at that place, is not replaced."""
    return (
        f"holds another model, in {place}, which --overwrite would remove; choose another folder, or remove it yourself"
    )


def _is_model(files: Collection[str]) -> bool:
    weights = any(name.endswith(".safetensors") for name in files)
    return not {*RECORDS}.isdisjoint(files) or ("config.json" in files and weights)
