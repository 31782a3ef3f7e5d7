"""Where an output may be: what is in its way, and the disk that it needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ramerge.foundation.errors import RecipeError
from ramerge.foundation.jsontext import RECORD, read


def path_of(path: str | Path, what: str = "an output folder") -> Path:
    """A path as the file system knows it; of a link, what it leads to, because that is what would be replaced.

    Args:
        path: as it was given.
        what: what it is to be, for the message.

    Raises:
        RecipeError: it cannot be a path.
    """
    try:
        given = Path(path).expanduser()
        str(given).encode()
        target = given.resolve()  # refuses what no path can hold, which is_symlink() calls no link
        return target if given.is_symlink() else given
    except FileNotFoundError:
        raise  # the working folder is gone, which is no fault of the path's
    except (ValueError, RuntimeError, OSError) as error:
        raise RecipeError(f"{os.fspath(path)!r}: cannot be {what}: {error}") from error


def problems_of(out: Path, inputs: Sequence[Path], size: int, *, overwrite: bool) -> list[str]:
    """All that forbids an output folder at `out`.

    Args:
        out: the output folder.
        inputs: files and folders that are read.
        size: bytes that will be written; an old output is only removed after that.
        overwrite: whether a folder that is there would be replaced.
    """
    text = conflict(out, inputs, overwrite=overwrite)
    problems = [f"{out}: {text}"] if text is not None else []
    ancestor = _ancestor(out)
    if not ancestor.is_dir():
        problems.append(f"{out}: {ancestor} is a file")
    elif not os.access(ancestor, os.W_OK | os.X_OK):
        problems.append(f"{out}: no right to write in {ancestor}")
    free = free_bytes(out)
    if size > free:
        problems.append(f"{out}: needs {size:,} bytes of disk, {free:,} are free")
    return problems


def free_bytes(out: Path) -> int:
    """Bytes that are free on the disk that `out` would be on."""
    return shutil.disk_usage(_ancestor(out)).free


def _ancestor(out: Path) -> Path:
    """The first of the folders above `out` that is there."""
    parent = out.resolve().parent
    return next(folder for folder in (parent, *parent.parents) if folder.exists())


def conflict(out: Path, inputs: Sequence[Path], *, overwrite: bool) -> str | None:
    """Why an output folder cannot be at `out`, because of what is there or is read; None where it can.

    Args:
        out: the output folder.
        inputs: files and folders that are read.
        overwrite: whether a folder that is there would be replaced.
    """
    resolved = out.resolve()
    if Path.cwd().is_relative_to(resolved):
        return "is the working folder, or holds it; choose a folder of its own"
    if resolved.is_mount():
        return "is a mount point, which cannot be replaced; choose a folder inside of it"
    for path in (each.resolve() for each in inputs):
        if resolved == path:
            return "is one of the inputs; choose another folder"
        if path.is_dir() and resolved.is_relative_to(path):
            return f"is inside the input {path}; choose a folder outside of it"
        if path.is_relative_to(resolved):
            return f"holds the input {path}; choose another folder"
    if not os.path.lexists(out):
        return None
    if not out.is_dir():
        return "is a file; choose a folder"
    if not overwrite:
        return "exists; choose another folder or pass --overwrite"
    if not is_replaceable(out):
        return "has subfolders and no merge has made it, so --overwrite does not replace it; remove it yourself"
    return None


def is_replaceable(folder: Path) -> bool:
    """Whether a folder is what `--overwrite` is meant for, and no home or project that was named by mistake.

    That is what a merge has made, or a flat folder.
    """
    made = any(_is_ours(folder / name) for name in ("ramerge.json", "sweep.json"))
    return folder.is_dir() and (made or not any(entry.is_dir() for entry in folder.iterdir()))


def _is_ours(record: Path) -> bool:
    try:
        return "ramerge_version" in read(record, RECORD)
    except (OSError, ValueError):
        return False
