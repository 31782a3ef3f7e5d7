"""What work depends on, by names for people.

Two runs of equal fingerprints do the same work on the same blocks, and write the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from ramerge.foundation.version import __version__
from ramerge.storage.location import Location
from ramerge.tensors.identity import FileIdentity, Identity


def versions() -> dict[str, str]:
    """The fingerprint of all work."""
    return {"the version of ramerge or NumPy": f"{__version__}, {np.__version__}"}


def files(identities: Mapping[Location, Identity]) -> dict[str, str]:
    """The fingerprint of files."""
    return {f"{path}": _file(identity) for path, identity in identities.items()}


def _file(identity: Identity) -> str:
    """A file. Its device is left out: it may have another number after a restart, or on another machine."""
    if not isinstance(identity, FileIdentity):
        return repr(asdict(identity))
    content = f"{identity.nbytes} bytes of {identity.modified_ns} with {identity.sample}"
    return f"{content}; inode {identity.inode} changed at {identity.changed_ns}"
