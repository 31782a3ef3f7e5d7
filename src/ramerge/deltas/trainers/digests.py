"""Checksums that trainers store for a tensor's or a whole model's new bytes."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol, cast

import xxhash

from ramerge.core.foundation.extras import install_command


class Digest(Protocol):
    """A checksum in progress: takes bytes in pieces of any size; returns hexadecimal digits."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes to the checksum."""

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far."""


class _Adler32:
    def __init__(self) -> None:
        self._value = 1

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _blake3() -> Digest:
    import blake3

    return cast(Digest, blake3.blake3())  # its own types return itself where this protocol returns nothing


# Name, with how it is made and how many digits it has.
_ALGORITHMS: dict[str, tuple[Callable[[], Digest], int]] = {
    "xxh3-128": (xxhash.xxh3_128, 32),
    "blake3": (_blake3, 64),
    "adler32": (_Adler32, 8),
    "sha256": (hashlib.sha256, 64),
}


def problem(algorithm: object, algorithms: tuple[str, ...]) -> str | None:
    """Return why checksums with this name cannot be verified; None if they can."""
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        return f"names the checksum {algorithm!r}, which is not one of {', '.join(algorithms)}"
    if algorithm == "blake3" and find_spec("blake3") is None:
        return (
            f"its checksums are blake3, which cannot be verified without another package: {install_command('blake3')}"
        )
    return None


def is_written(algorithm: str, text: object) -> bool:
    """Whether a text can be a checksum by this algorithm."""
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{_ALGORITHMS[algorithm][1]}}}", text) is not None


def digest(algorithm: str) -> Digest:
    return _ALGORITHMS[algorithm][0]()
