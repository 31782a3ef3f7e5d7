"""Check that paths written in a checkpoint's files stay inside the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from ramerge.core.foundation.text import brief_list
from ramerge.core.storage.location import Location


def climbs_out(name: str) -> bool:
    """Whether a path written in a file could lead out of its folder: it is absolute, or has `..`, a drive, or a NUL."""
    pure = PurePosixPath(name)
    return not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or ":" in name or "\0" in name


def is_too_long(name: str) -> bool:
    """Whether a relative path is too long for any file system."""
    return len(name) > 1024 or any(len(part.encode()) > 255 for part in PurePosixPath(name).parts)


def linked_out(path: Location, *others: Location) -> str:
    """The message that links lead out of their folder."""
    do = "does" if len(others) == 1 else "do"
    as_well = f", as {do} {brief_list([other.name for other in others])}" if others else ""
    return (
        f"{path}: links to {os.path.realpath(str(path))}, outside the checkpoint{as_well}; if you trust "
        f"{'them' if others else 'it'}, give the option --allow-outside-links, or set allow.outside_links: true in the "
        "recipe"
    )


def common_folder(*paths: Path) -> Path:
    """The innermost folder that contains all paths, without following links."""
    return Path(os.path.commonpath([path.absolute() for path in paths]))
