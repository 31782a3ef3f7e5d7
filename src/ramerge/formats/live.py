"""Folders of checkpoints that an engine patches in place while it serves them."""

from __future__ import annotations

import os
from contextlib import suppress

from ramerge.formats.files import read_json
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.systems import NO_WAIT, PRIVATE, lock_file
from ramerge.storage.location import Location, Remote


def check(folder: Location) -> tuple[str, ...]:
    """Refuse a folder whose tensors may be half patched. Return a warning about one of which nothing tells.

    Raises:
        CheckpointError: it is being patched, or was not finished.
    """
    _check_skyrl(folder)
    return _check_slime(folder)


def _check_slime(folder: Location) -> tuple[str, ...]:
    """`.weight_sync` of slime's patch for SGLang, and of SGLang: a lock, and the version once it is complete."""
    sync = folder / ".weight_sync"
    if not sync.is_dir():
        return ()
    if _is_locked(sync / "lock"):
        raise CheckpointError(
            f"{folder}: an engine writes deltas into it now ({sync / 'lock'}); wait, or give the deltas"
        )
    if not (sync / "state.json").is_file():
        raise CheckpointError(
            f"{folder}: an engine has begun to write into it and has not finished ({sync} has no state.json); its "
            "tensors are of different versions. Give the deltas over their base"
        )
    return (
        f"{folder}: an engine writes deltas into this folder ({sync}), and nothing tells whether one was interrupted; "
        "to be sure, give the deltas over their base",
    )


def _check_skyrl(folder: Location) -> None:
    """`weights` of a local checkpoint of SkyRL; its state says whether it is complete."""
    state = folder.parent / ".skyrl_weight_sync" / "state.json"
    if folder.name == "weights" and state.is_file() and read_json(state).get("write_in_progress") is not False:
        raise CheckpointError(
            f"{folder}: {state} says that an engine is writing deltas into it, or was interrupted; its tensors are of "
            "different versions. Give the deltas over their base"
        )


def _is_locked(path: Location) -> bool:
    """Whether a process holds the lock. A lock that cannot be tried is taken to be free."""
    if isinstance(path, Remote):
        return False
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | NO_WAIT | PRIVATE)
        try:
            lock_file(descriptor, shared=True)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False
