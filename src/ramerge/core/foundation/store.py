"""The cache in the user's cache folder, for data that can be recreated, such as machine code.

A file is read only if it belongs to the user and no other user can write to it. It must hold the requested key, and its
digest must be correct. Cleaning removes only the user's own files with names of the cache, because the folder in
`RAMERGE_CACHE`, or the target of a link, may hold other files. `read` and `write` never raise.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_cache_path

from ramerge.core.foundation.errors import OutputError, reason
from ramerge.core.foundation.files import check_own
from ramerge.core.foundation.systems import NO_LINK, NO_WAIT, PRIVATE, user_id

_UNUSED = 90 * 86400
_DAY = 86400
_DIGEST = 32
_TAG = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of ramerge; see https://bford.info/cachedir/\n"
# A hexadecimal digest, the name of a complete entry; with dot and ending, of an unfinished entry or a lock.
_NAME = re.compile(r"\.?([0-9a-f]{40}|[0-9a-f]{64})(\.\w+)?")


def folder(kind: str) -> Path | None:
    """Return the folder for a kind, in `$RAMERGE_CACHE/ramerge` or the user's cache folder; None without a home."""
    environment_folder = os.environ.get("RAMERGE_CACHE")
    if environment_folder:
        return Path(environment_folder) / "ramerge" / kind
    try:
        return user_cache_path("ramerge", appauthor=False) / kind
    except RuntimeError:
        return None


@contextlib.contextmanager
def entry(path: Path) -> Iterator[None]:
    """Prepare a cache folder that the `with` block fills unless it is complete, and mark it as used.

    Files that were not used for 90 days are removed.

    Args:
        path: a folder within the folder of a kind, named after a digest. The block creates it.
    """
    try:
        _make_cache(path.parent)
        check_own(path.parent)
        yield
        check_own(path)
        with contextlib.suppress(OSError):
            os.utime(path)
        sweep(path.parent)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {reason(error)}; set RAMERGE_CACHE to another folder") from error


def _make_cache(home: Path) -> None:
    """Create a cache folder, and tag its parent so that backups leave it out (https://bford.info/cachedir/)."""
    home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError), (home.parent / _TAG).open("x") as file:
        file.write(_SIGNATURE)


def read(kind: str, key: bytes) -> bytes | None:
    """Return the payload that was written under a 32-byte key; None if it is missing or not trusted."""
    home = folder(kind)
    if home is None:
        return None
    try:
        content = _read_own(home / key.hex())
    except OSError:
        return None
    stored_key, digest, payload = content[:_DIGEST], content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]
    return payload if stored_key == key and digest == hashlib.sha256(payload).digest() else None


def write(kind: str, key: bytes, payload: bytes) -> None:
    """Store `payload` under a 32-byte key, if possible. Remove files that were not used for 90 days."""
    home = folder(kind)
    if home is None:
        return
    with contextlib.suppress(OSError):
        _make_cache(home)
        handle, temporary = tempfile.mkstemp(prefix=f".{key.hex()}.", dir=home)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(key + hashlib.sha256(payload).digest() + payload)
            Path(temporary).replace(home / key.hex())
        except OSError:
            Path(temporary).unlink()
            raise
        sweep(home)


def _read_own(path: Path) -> bytes:
    """Read a regular file that the user owns and only the user can write; otherwise empty. Update its time of use."""
    # without O_NONBLOCK, opening a pipe would block
    with os.fdopen(os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT | PRIVATE), "rb") as file:
        status = os.fstat(file.fileno())
        own = status.st_uid == user_id() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not (own and stat.S_ISREG(status.st_mode)):
            return b""
        if time.time() - status.st_mtime > _DAY:
            with contextlib.suppress(OSError):
                os.utime(file.fileno())
        return file.read()


def sweep(home: Path) -> None:
    """Remove the user's cache files and folders that were not used for 90 days. Links are not followed."""
    if home.is_symlink() or home.parent.is_symlink():
        return
    oldest = time.time() - _UNUSED
    for path in home.iterdir():
        with contextlib.suppress(OSError):
            status = path.lstat()
            if _NAME.fullmatch(path.name) and status.st_uid == user_id() and status.st_mtime < oldest:
                shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else path.unlink()
