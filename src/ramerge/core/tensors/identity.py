"""Identify files, and check later that they are still the same files with the same content."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage.location import Location
from ramerge.core.storage.storage import has_changed
from ramerge.core.tensors.access import FileIdentity, Identity, access

# A file's times advance in ticks of the kernel's clock, at most 10 ms; or in up to two seconds, on file systems that
# store whole seconds.
TICK_SECONDS = 0.02
_COARSE_TICK_SECONDS = 2.0
_SECOND = 1_000_000_000


def is_same_elsewhere(ours: Identity, theirs: Identity) -> bool:
    """Whether a file seen by two machines is the same, judging by its identity.

    Only size and time of the last write are compared, because each machine numbers devices differently, and also inodes
    of a mounted bucket.
    """
    if isinstance(ours, FileIdentity) and isinstance(theirs, FileIdentity):
        return (ours.nbytes, ours.modified_ns) == (theirs.nbytes, theirs.modified_ns)
    return ours == theirs


def identify(paths: Iterable[Location]) -> dict[Location, Identity]:
    """The identities of files, with samples of local files. Each later write changes a file's identity.

    A second write in the same tick of the clock would not change the times, so if a file was written just now, files
    are identified again when the tick is over.

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
    return {path: access(path).add_sample(identity) for path, identity in identities.items()}


def state_of(files: Mapping[Location, Identity]) -> dict[str, str]:
    """The state of files by path, which is the same on all machines; compared when a run is resumed."""
    return {str(path.resolve()): _identity_text(identity) for path, identity in files.items()}


def _identity_text(identity: Identity) -> str:
    if isinstance(identity, FileIdentity):
        return f"{identity.nbytes} bytes of {identity.modified_ns} with {identity.sample}"
    return repr(asdict(identity))


def check_unchanged(files: Mapping[Location, Identity]) -> None:
    """Refuse local files that have changed. Remote files need no check, because reads accept only one version.

    Raises:
        CheckpointError: files have changed; lists all of them.
    """
    if problems := [has_changed(path) for path, identity in files.items() if not access(path).is_still(identity)]:
        raise CheckpointError(problems)


def is_another(path: Location, identity: FileIdentity, planned_identity: Identity) -> str:
    """The message that a file on this machine is not the file that the plan was made with."""
    plan = (
        f"{planned_identity.nbytes:,} bytes, written {_format_date(planned_identity)}"
        if isinstance(planned_identity, FileIdentity)
        else str(planned_identity)
    )
    return (
        f"{path}: is not the file that was planned with, but one of {identity.nbytes:,} bytes, written "
        f"{_format_date(identity)}; planned was one of {plan}"
    )


def _format_date(identity: FileIdentity) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(identity.modified_ns / _SECOND))
