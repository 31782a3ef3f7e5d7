"""The cache in the user's cache folder, for data that can be made again, such as machine code. Nothing here raises.

A file is read only if it belongs to the user and no other user can write to it. It must hold the requested key, and its
digest must be right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path

from platformdirs import user_cache_path

_UNUSED = 90 * 86400
_DAY = 86400
_DIGEST = 32


def folder(kind: str) -> Path | None:
    """The cache folder of one kind of files: in `$RAMERGE_CACHE` or the user's cache folder; None without a home."""
    chosen = os.environ.get("RAMERGE_CACHE")
    if chosen:
        return Path(chosen) / kind
    try:
        return user_cache_path("ramerge", appauthor=False) / kind
    except RuntimeError:
        return None


def read(kind: str, key: bytes) -> bytes | None:
    """The payload that was written under a key of 32 bytes; None if it is missing or not trusted."""
    home = folder(kind)
    if home is None:
        return None
    try:
        content = _read_own(home / key.hex())
    except OSError:
        return None
    found, digest, payload = content[:_DIGEST], content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]
    return payload if found == key and digest == hashlib.sha256(payload).digest() else None


def write(kind: str, key: bytes, payload: bytes) -> None:
    """Keep `payload` under a key of 32 bytes, if possible. Remove files that were not used for 90 days."""
    home = folder(kind)
    if home is None:
        return
    with contextlib.suppress(OSError):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(home / key.hex(), key + hashlib.sha256(payload).digest() + payload)
        _sweep(home)


def _read_own(path: Path) -> bytes:
    """The content of a regular file that only the user owns and can write; else empty. Updates its time of use."""
    # without O_NONBLOCK, opening a pipe would block
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


def _sweep(home: Path) -> None:
    now = time.time()
    for path in home.iterdir():
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > _UNUSED:
                path.unlink()
