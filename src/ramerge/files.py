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
    """Refuse a file that could not be written, before there is anything to write.

    Raises:
        OutputError: a folder has its name, or nothing can be written beside it.
    """
    if path.is_dir():
        raise OutputError(f"{path}: cannot be written: is a folder; name a file")
    probe = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    write_text(probe, "")
    probe.unlink()


def check_folder(path: Path) -> None:
    """Likewise for files in a folder."""
    check_file(path / "file")
