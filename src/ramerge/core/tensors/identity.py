"""Identify the file at a path, and check later that it is still the same file with the same content."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage.location import Location
from ramerge.core.storage.storage import has_changed
from ramerge.core.tensors.access import FileIdentity, Identity, access

# A file's times advance in steps: ticks of the kernel's clock, at most 10 ms; or up to two seconds on file systems that
# keep whole seconds.
TICK_SECONDS = 0.02
_COARSE_TICK_SECONDS = 2.0
_SECOND = 1_000_000_000


def is_same_elsewhere(ours: Identity, theirs: Identity) -> bool:
    """Whether a file that two machines see is the same, as far as its identity shows.

    Devices have other numbers on each machine, and so have inodes where a bucket is mounted. Size and time of the last
    write are kept with the file.
    """
    if isinstance(ours, FileIdentity) and isinstance(theirs, FileIdentity):
        return (ours.nbytes, ours.modified_ns) == (theirs.nbytes, theirs.modified_ns)
    return ours == theirs


def identify(paths: Iterable[Location]) -> dict[Location, Identity]:
    """The identities of files, with samples of those on this machine. Every later write changes a file's identity.

    A second write in the same tick of the clock does not change the times. So a file that was written just now is
    identified again when its tick is over.

    Raises:
        CheckpointError: a file cannot be opened.
    """
    identities = {path: access(path).version() for path in paths}
    seconds = 0.0
    for identity in identities.values():
        if isinstance(identity, FileIdentity):
            tick = TICK_SECONDS if identity.changed_ns % _SECOND else _COARSE_TICK_SECONDS
            # at most a tick, because the file's time may be far in the future
            seconds = max(seconds, min(tick, tick - (time.time_ns() - identity.latest_ns) / _SECOND))
    if seconds > 0:
        time.sleep(seconds)
        identities = {path: access(path).version() for path in identities}
    return {path: access(path).with_sample(identity) for path, identity in identities.items()}


def state_of(files: Mapping[Location, Identity]) -> dict[str, str]:
    """The state of files by path, which is the same on every machine. A run that is resumed compares it."""
    return {str(path.resolve()): _state(identity) for path, identity in files.items()}


def _state(identity: Identity) -> str:
    if isinstance(identity, FileIdentity):
        return f"{identity.nbytes} bytes of {identity.modified_ns} with {identity.sample}"
    return repr(asdict(identity))


def check_unchanged(files: Mapping[Location, Identity]) -> None:
    """Refuse files that have changed. Remote files are not looked at: every read of them was bound to a version."""
    if problems := [has_changed(path) for path, identity in files.items() if not access(path).is_still(identity)]:
        raise CheckpointError(problems)


def is_another(path: Location, identity: FileIdentity, planned_identity: Identity) -> str:
    """The message about a file that another machine sees differently."""
    plan = (
        f"{planned_identity.nbytes:,} bytes, written {_date(planned_identity)}"
        if isinstance(planned_identity, FileIdentity)
        else str(planned_identity)
    )
    return (
        f"{path}: is not the file that was planned with, but one of {identity.nbytes:,} bytes, written "
        f"{_date(identity)}; planned was one of {plan}"
    )


def _date(identity: FileIdentity) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(identity.modified_ns / _SECOND))
