"""Text files that appear whole."""

from __future__ import annotations

import secrets
from pathlib import Path

from ramerge.errors import OutputError


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place and move it there.

    Raises:
        OutputError: the folder cannot be made, or the file not be written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
