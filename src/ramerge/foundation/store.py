"""What can be made again, such as machine code, in a folder of the user's. Nothing here raises.

A file is believed only if it belongs to the user, nobody else can write to it, it says that it is what was asked for,
and its digest is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
import time
from pathlib import Path

_UNUSED = 90 * 86400
_DAY = 86400
_DIGEST = 32


def folder(kind: str) -> Path | None:
    """Under `$RAMERGE_CACHE`, or where the platform keeps what can be made again; None if there is no such place."""
    chosen = os.environ.get("RAMERGE_CACHE")
    if chosen:
        return Path(chosen) / kind
    with contextlib.suppress(RuntimeError):
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "ramerge" / kind
        shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # the specification says to ignore what is not absolute
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "ramerge" / kind
    return None


def read(kind: str, key: bytes) -> bytes | None:
    """What was written of a kind under a key of 32 bytes, or None if that is not there or not to be trusted."""
    place = folder(kind)
    if place is None:
        return None
    try:
        content = _read_own(place / key.hex())
    except OSError:
        return None
    found, digest, payload = content[:_DIGEST], content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]
    return payload if found == key and digest == hashlib.sha256(payload).digest() else None


def write(kind: str, key: bytes, payload: bytes) -> None:
    """Keep `payload` under a key of 32 bytes, if that is possible, and remove what was not used for long."""
    place = folder(kind)
    if place is None:
        return
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(place / key.hex(), key + hashlib.sha256(payload).digest() + payload)
        _sweep(place)


def _read_own(path: Path) -> bytes:
    """A regular file that only its owner, the user, can write to; else empty. Its time tells when it was last used."""
    # a pipe would block without O_NONBLOCK
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        own = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not (own and stat.S_ISREG(status.st_mode)):
            return b""
        if time.time() - status.st_mtime > _DAY:
            with contextlib.suppress(OSError):
                os.utime(file.fileno())
        return file.read()


def _replace(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename, so that no reader sees half a file."""
    handle, beside = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(beside).replace(path)
    except OSError:
        Path(beside).unlink()
        raise


def _sweep(place: Path) -> None:
    now = time.time()
    for path in place.iterdir():
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > _UNUSED:
                path.unlink()
