"""Text files that appear whole."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from ramerge.errors import OutputError


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place and move it there; its folder is made if it is not there.

    Raises:
        OutputError: the folder cannot be made, or the file not be written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def check_file(path: Path) -> None:
    """Refuse a file that could not be written or should not, before there is anything to write.

    Raises:
        OutputError: something other than a regular file has its name, it belongs to a checkpoint, or nothing can be
            written beside it.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OutputError(f"{path}: cannot be written: is no regular file; name another")
    if path.exists() and path.suffix != ".html" and any(path.parent.glob("*.safetensors")):
        raise OutputError(f"{path}: cannot be written: is a file of a checkpoint; name another")
    _check_beside(path, path)


def check_folder(path: Path) -> None:
    """Likewise for files in a folder."""
    _check_beside(path / "file", path)


def _check_beside(file: Path, named: Path) -> None:
    probe = file.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(f"{named}: cannot be written: {error.strerror}") from error
