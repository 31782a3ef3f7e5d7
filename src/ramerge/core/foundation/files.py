"""Writes files so that they appear complete or not at all.

A file is written under a hidden name in its folder and then renamed. The hidden file is locked while it is written.
Its name is always the same, so the next process overwrites the hidden file that a killed process left.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from ramerge.core.foundation.errors import OutputError, RamergeError, RecipeError, StoppedError, reason
from ramerge.core.foundation.signals import held
from ramerge.core.foundation.systems import NO_LINK, NO_WAIT, PRIVATE, lock_file, user_id, write_at

STANDARD_OUTPUT = Path("-")
"""The path that stands for standard output."""

_LONGEST_NAME = 255
# Errors that are due to the path itself.
_WRONG_PATH = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


_OF_THE_DEMO = ("base", "coder", "tool", "memory")


def no_such_folder(path: Path, also: str = "") -> str:
    """Return a message that a folder does not exist (nor does `also`), with a suggestion if a name is similar."""
    parent = path.parent
    siblings = [entry.name for entry in islice(parent.iterdir(), 1000) if entry.is_dir()] if parent.is_dir() else []
    if near := get_close_matches(path.name, siblings, n=1):
        return f"{path}: no such folder{also}; did you mean {parent / near[0]}?"
    # the tutorial's models are next to the user, and not above a recipe that was moved
    is_demo = path.name in _OF_THE_DEMO and ".." not in path.parts
    demo = f"; `ramerge demo --models {parent}` makes tiny models of such names" if is_demo else ""
    return f"{path}: no such folder{also}{demo}"


def near_file(path: Path) -> str:
    """Return a suggestion of a similar name in the same folder for a missing file; empty if there is none."""
    entries = islice(path.parent.iterdir(), 1000) if path.parent.is_dir() else ()
    near = get_close_matches(path.name, [entry.name for entry in entries if entry.is_file()], n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def write_file(path: Path, content: str | bytes) -> None:
    """Create or replace a file, completely or not at all. Missing folders are created. Text is written as UTF-8.

    Raises:
        OutputError: a folder cannot be created, or the file cannot be written.
    """
    write_files([(path, content)])


def write_files(contents: Sequence[tuple[Path, str | bytes]]) -> None:
    """Create or replace files, each completely. If a file cannot be written, all stay as they are."""
    places = Counter(path.resolve() for path, _ in contents)
    if twice := [path for path, count in places.items() if count > 1]:
        raise OutputError(f"{path}: two outputs have this name; choose another place for one" for path in twice)
    with held():
        partial_files: list[tuple[Path, int]] = []
        new_folders: list[Path] = []
        path = Path()
        try:
            for path, content in contents:
                new_folders += [folder for folder in path.parents if not folder.exists()]
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = lock(hidden_path_beside(path, "partial"), wait=True)
                partial_files.append((path, descriptor))
                os.ftruncate(descriptor, 0)
                write_all(descriptor, memoryview(content.encode() if isinstance(content, str) else content), 0)
                os.fsync(descriptor)
            for path, _ in partial_files:
                hidden_path_beside(path, "partial").replace(path)
                StoppedError.finished[str(path)] = None
        except OSError as error:
            for other, descriptor in partial_files:
                with suppress(OSError):
                    if is_at(hidden_path_beside(other, "partial"), descriptor):
                        hidden_path_beside(other, "partial").unlink()
            _remove_empty(new_folders)
            raise _write_error(path, hidden_path_beside(path, "partial"), error) from error
        finally:
            for _, descriptor in partial_files:
                os.close(descriptor)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that are empty, innermost first."""
    for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
        with suppress(OSError):
            folder.rmdir()


def write_texts(texts: Sequence[tuple[Path, str | bytes]]) -> None:
    """Write files with `write_files`, then print the text whose path is `-` on standard output.

    Raises:
        OutputError: a file cannot be written.
        OSError: standard output cannot be written.
    """
    write_files([(path, content) for path, content in texts if path != STANDARD_OUTPUT])
    for path, text in texts:
        if path == STANDARD_OUTPUT and isinstance(text, str):
            sys.stdout.write(text)
            sys.stdout.flush()


def hidden_path_beside(path: Path, ending: str) -> Path:
    """Return the path `.NAME.ending` next to a path. If it is too long, NAME is shortened and gets a digest."""
    name, room = os.fsencode(path.name), _LONGEST_NAME - len(f"..{ending}")
    if len(name) <= room:
        return path.parent / f".{path.name}.{ending}"
    digest = f"~{hashlib.sha256(name).hexdigest()[:12]}"
    return path.with_name(f".{name[: room - len(digest)].decode(errors='ignore')}{digest}.{ending}")


def lock(path: Path, *, wait: bool) -> int:
    """Open a file and lock it until the descriptor is closed. A missing file is created.

    Another user's file is removed first, because its owner could later change its content. On a file system without
    locks, the file is not locked.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is off.
        OSError: the file cannot be opened or locked, or removed.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK | PRIVATE, 0o666)
        try:
            try:
                lock_file(descriptor, wait=wait)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            if is_at(path, descriptor):
                if not _has_foreign_owner(os.fstat(descriptor), path.parent):
                    return descriptor
                path.unlink()
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the process that held the lock has moved or removed the file


def check_own(folder: Path) -> None:
    """Raise if another user can write to a folder, or may have written to it."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise OutputError(f"{folder}: is not a folder, but one is needed there; remove it")
    if _has_foreign_owner(status, folder.parent):
        raise OutputError(
            f"{folder}: belongs to another user (uid {status.st_uid}), who decides what is in it, so it is not used; "
            "have it removed, or choose another place"
        )
    if status.st_mode & _OTHERS_WRITE & ~_new_file_status(folder.parent).st_mode:
        raise OutputError(
            f"{folder}: other users can write to it, so what is in it is not trusted; remove it, or if only you have "
            "written there, run `chmod go-w` on it"
        )


def _has_foreign_owner(status: os.stat_result, folder: Path) -> bool:
    return status.st_uid != user_id() and status.st_uid != _new_file_status(folder).st_uid


def _new_file_status(folder: Path) -> os.stat_result:
    """Return the status of a new private file in a folder, for comparison with a file's owner and permissions.

    Some file systems show the same owner, or all permissions, for every file.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno())


def is_at(path: Path, descriptor: int) -> bool:
    """Whether `path` names the file that is open as `descriptor`."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class OpenFile:
    """A file descriptor that is closed when nothing references it: neither a cache of open files nor a thread."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def write_all(descriptor: int, view: memoryview, offset: int) -> None:
    """Write all of `view` at `offset`, with as many calls as necessary."""
    while view:
        nbytes = write_at(descriptor, view, offset)
        view, offset = view[nbytes:], offset + nbytes


# --- state that a feature keeps in a folder, and reads again ----------------------------------------------------------


def check_state(*paths: Path) -> None:
    """Raise if paths hold anything but regular files and folders, at any depth; missing paths are fine.

    State is read and overwritten by name, and its folder may come from a stranger: a link would lead out of the folder,
    a pipe would block, and a device has no end. Call this before anything in the folder is opened.

    Raises:
        OutputError: there is a link, pipe, socket or device.
        OSError: a folder cannot be listed.
    """
    left = [path for path in paths if os.path.lexists(path)]
    while left:
        path = left.pop()
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            left += path.iterdir()
        elif not stat.S_ISREG(mode):
            kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
            raise OutputError(
                f"{path}: is {kind}, and ramerge makes none there, so nothing in this folder is used; remove it if you "
                "know what it is, or choose another folder"
            )


def read_regular(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes. Links are not followed, and pipes do not block.

    Raises:
        ValueError: the file is not regular, or is larger.
        OSError: the file cannot be read.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT | PRIVATE), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"has more than the {most:,} bytes that are allowed")
    return content


# --- checks before there is anything to write -------------------------------------------------------------------------

_OF_CHECKPOINTS = ("*.safetensors", "pytorch_model*.bin")


def check_file(path: Path) -> None:
    """Raise if a path cannot or should not be written, before there is anything to write. Leaves no file behind.

    Raises:
        RecipeError: the path is not a regular file, it belongs to a checkpoint, or its folder cannot be written to.
        OutputError: the disk fails.
    """
    if path.is_dir() and not path.is_symlink():
        raise RecipeError(f"{path}: cannot be written: it is a folder; name a file in it")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise RecipeError(f"{path}: cannot be written: it is not a regular file; choose another path")
    if path.exists() and path.suffix != ".html" and any(any(path.parent.glob(name)) for name in _OF_CHECKPOINTS):
        raise RecipeError(f"{path}: cannot be written: it is a file of a checkpoint; choose another path")
    check_can_create(path, path)


def check_can_create(path: Path, reported_path: Path) -> None:
    """Raise an error about `reported_path` if a file cannot be created at `path`. Leaves no file or folder behind.

    Raises:
        RecipeError: the path is invalid, or its folder cannot be written to.
        OutputError: the disk fails.
    """
    probe = hidden_path_beside(path, "partial")
    try:
        with held():
            new_folders = [folder for folder in probe.parents if not folder.exists()]
            try:
                probe.parent.mkdir(parents=True, exist_ok=True)
                descriptor = lock(probe, wait=True)
                try:
                    probe.unlink()
                finally:
                    os.close(descriptor)
            finally:
                _remove_empty(new_folders)
    except OSError as error:
        raise _write_error(
            reported_path, probe, error, RecipeError if error.errno in _WRONG_PATH else OutputError
        ) from error


def _write_error(path: Path, partial: Path, error: OSError, kind: type[RamergeError] = OutputError) -> RamergeError:
    left = f"; {partial} is left over; the next write of this file removes it" if os.path.lexists(partial) else ""
    return kind(f"{path}: cannot be written: {reason(error)}{left}")
