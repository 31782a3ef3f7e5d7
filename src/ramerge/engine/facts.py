"""What work depends on, by names for people.

Two runs whose facts are equal do the same work on the same blocks, and write the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from ramerge.checkpoint.identity import FileIdentity, Identity
from ramerge.checkpoint.storage.place import Place
from ramerge.foundation.version import __version__

_HERE = "; inode "


def versions() -> dict[str, str]:
    """The facts of all work."""
    return {"the version of ramerge or NumPy": f"{__version__}, {np.__version__}"}


def files(identities: Mapping[Place, Identity]) -> dict[str, str]:
    """The facts of files."""
    return {f"{path}": _file(identity) for path, identity in identities.items()}


def seen_elsewhere(facts: Mapping[str, str]) -> dict[str, str]:
    """What of the facts must be the same on all machines. A copy of a file has another inode there."""
    return {name: value.partition(_HERE)[0] for name, value in facts.items()}


def is_file(value: str) -> bool:
    """Whether a fact's value is that of a file on this machine."""
    return _HERE in value


def _file(identity: Identity) -> str:
    """A file: first what copies have in common (`is_same_elsewhere`). Its device has another number on each machine."""
    if not isinstance(identity, FileIdentity):
        return repr(asdict(identity))
    size_and_time = f"{identity.nbytes} bytes of {identity.modified_ns}"
    return f"{size_and_time}{_HERE}{identity.inode} changed at {identity.changed_ns}"
