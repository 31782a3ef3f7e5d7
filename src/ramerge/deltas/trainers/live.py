"""The format of checkpoints in safetensors files that an engine patches in place with deltas while it serves them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from ramerge import CheckpointError
from ramerge.core.formats import safetensors
from ramerge.core.foundation.systems import NO_WAIT, PRIVATE, lock_file
from ramerge.core.storage.location import here
from ramerge.sdk.formats import Format, Opening, read_json
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import Contents

NAME = "live"
# Of slime's patch for SGLang, and of SGLang: a lock, and the version once it is complete.
_SYNC = ".weight_sync"
# Of SkyRL, next to the folder `weights`: whether it is complete.
_STATE = ".skyrl_weight_sync/state.json"


def find(folder: Location) -> Location | None:
    """Return the folder itself if it holds safetensors files and the marks of an engine that patches them."""
    is_skyrl = folder.name == "weights" and (folder.parent / _STATE).is_file()
    return safetensors.find(folder) if is_skyrl or (folder / _SYNC).is_dir() else None


def open_folder(folder: Location, opening: Opening) -> Contents:
    """Open a checkpoint that an engine patches, with a warning if it may be incomplete.

    Raises:
        CheckpointError: the checkpoint is being patched, or a patch was interrupted, so its tensors have different
            versions.
    """
    state = folder.parent / _STATE
    if folder.name == "weights" and state.is_file() and read_json(state).get("write_in_progress") is not False:
        raise CheckpointError(
            f"{folder}: {state} says that an engine is writing deltas into it, or was interrupted; its tensors are of "
            "different versions. Give the deltas over their base"
        )
    sync = folder / _SYNC
    warnings: tuple[str, ...] = ()
    if sync.is_dir():
        if _is_locked(sync / "lock"):
            raise CheckpointError(
                f"{folder}: an inference engine is writing to it ({sync / 'lock'}); wait, or give the deltas"
            )
        if not (sync / "state.json").is_file():
            raise CheckpointError(
                f"{folder}: an inference engine did not finish writing to it ({sync} has no state.json), so it mixes "
                "versions of the weights. Give the base and the deltas instead"
            )
        warnings = (
            f"{folder}: an inference engine writes to this folder ({sync}), and may have been interrupted; to be sure, "
            "give the base and the deltas instead",
        )
    contents = safetensors.open_folder(folder, opening)
    return replace(contents, warnings=(*warnings, *contents.warnings))


def _is_locked(path: Location) -> bool:
    """Whether a process holds the lock. A lock that cannot be tested counts as free."""
    if (lock := here(path)) is None:
        return False
    with suppress(OSError):
        descriptor = os.open(lock, os.O_RDONLY | NO_WAIT | PRIVATE)
        try:
            lock_file(descriptor, is_shared=True)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


# before safetensors, whose files it has
FORMAT = Format(NAME, "safetensors files", find, open_folder, priority=85)
