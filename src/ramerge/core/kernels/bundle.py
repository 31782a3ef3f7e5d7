"""Machine code that a wheel brings along, so that the first merge after an installation compiles nothing.

A bundle is a ZIP file for one system and one level of processors; `scripts/bundle_kernels.py` makes it for a release.
An entry is what the store would keep. Its name is a digest that does not depend on the versions of Python, NumPy and
numba. The comment names the sources of the code: a bundle of other sources is not used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from ramerge.core.foundation.version import __version__

PACKAGE = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "bundles"
SOURCES = ("kernels", "methods")
"""Rooms whose files decide what the machine code does."""


@dataclass(frozen=True)
class Level:
    """Processors that run the same machine code.

    Attributes:
        triple: how the name of the system begins and ends, as LLVM writes it.
        processor: the target processor, as LLVM calls it.
    """

    name: str
    triple: tuple[str, str]
    processor: str
    features: tuple[str, ...]

    def fits(self, triple: str, features: str) -> bool:
        """Whether a machine runs its code."""
        first, last = self.triple
        return triple.startswith(first) and triple.endswith(last) and {*self.features} <= {*features.split(",")}


_V3 = (
    *("+sse3", "+ssse3", "+sse4.1", "+sse4.2", "+popcnt", "+cx16", "+sahf", "+xsave"),
    *("+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe"),
)
_V4 = (*_V3, "+avx512f", "+avx512bw", "+avx512cd", "+avx512dq", "+avx512vl", "+avx512vbmi2")
# the first that fits is used
LEVELS = (
    Level("x86-64-v4-linux", ("x86_64", "linux-gnu"), "x86-64-v4", _V4),
    Level("x86-64-v3-linux", ("x86_64", "linux-gnu"), "x86-64-v3", _V3),
    Level("arm64-linux", ("aarch64", "linux-gnu"), "generic", ("+neon",)),
)


def find(key: str, triple: str, features: str) -> bytes | None:
    """The machine code under a digest, for a processor; None if no bundle has it. `key` is `KernelSource.portable_key`,
    `features` has commas between names.
    """
    level = next((level for level in LEVELS if level.fits(triple, features)), None)
    bundle = level and _open_zip(FOLDER / f"{level.name}.zip")
    try:
        return bundle.read(key) if bundle else None
    except (KeyError, OSError, BadZipFile):
        return None


def write(path: Path, entries: Mapping[str, bytes]) -> None:
    """Write a bundle of machine code by its keys."""
    with ZipFile(path, "w", ZIP_DEFLATED) as bundle:
        for key, code in sorted(entries.items()):
            bundle.writestr(key, code)
        bundle.comment = json.dumps(_origin()).encode()


@cache
def _open_zip(path: Path) -> ZipFile | None:
    try:
        bundle = ZipFile(path)
        return bundle if json.loads(bundle.comment) == _origin() else None
    except (OSError, BadZipFile, ValueError):
        return None


def _origin() -> dict[str, str]:
    """The version of this process, which may be older than the files, and a digest of the files."""
    digest = hashlib.sha256()
    for room in SOURCES:
        for path in sorted((PACKAGE / room).glob("*.py")):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return {"version": __version__, "sources": digest.hexdigest()}
