"""The work folder: each finished thing is one file, which appears complete or not at all."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation.files import write_file

Bits = NDArray[np.bool_]


class OtherSettingsError(Exception):
    """A work folder was made with other settings."""


class Store:
    """Files of one run.

    Args:
        folder: the work folder.
        digest: of the settings; a folder of others is refused.

    Raises:
        OtherSettingsError: the folder belongs to other settings.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder = folder
        mark = folder / "settings.json"
        if not mark.exists():
            write_file(mark, json.dumps({"digest": digest}))
        elif json.loads(mark.read_text())["digest"] != digest:
            raise OtherSettingsError(f"{folder} was made with other settings: give another --work, or remove it")

    def seed(self, seed: int) -> Path:
        """The folder of a seed."""
        return self.folder / f"seed-{seed:02d}"


def once(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The content of a JSON file, which is made if it is not there."""
    if not path.exists():
        write_file(path, json.dumps(make()) + "\n")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def pack(bits: Bits) -> str:
    """Right and wrong answers as text."""
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def unpack(text: str, count: int) -> Bits:
    """Bits from the text of `pack`."""
    data = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(data, count=count).astype(bool)
