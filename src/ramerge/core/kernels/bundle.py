"""Machine code that is shipped in a wheel, so that the first merge after an installation compiles nothing.

A bundle is a ZIP file for one system and one level of processors, which `scripts/bundle_kernels.py` writes for a
release. An entry has the content that the store would hold. Its name is a digest that does not depend on the versions
of Python, NumPy and numba. The ZIP comment identifies the sources: a bundle built from other sources is not used.
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
"""Rooms whose source files determine the machine code."""


@dataclass(frozen=True)
class Level:
    """A class of processors that run the same machine code.

    Attributes:
        triple: the beginning and the end of LLVM's name of the system.
        processor: LLVM's name of the target processor.
    """

    name: str
    triple: tuple[str, str]
    processor: str
    features: tuple[str, ...]

    def fits(self, triple: str, features: str) -> bool:
        """Whether a machine can run code for this level."""
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
    """Return the machine code of a kernel for a processor; None if no bundle contains it.

    `key` is `KernelSource.portable_key`, `features` a comma-separated list.
    """
    level = next((level for level in LEVELS if level.fits(triple, features)), None)
    bundle = level and _open_zip(FOLDER / f"{level.name}.zip")
    try:
        return bundle.read(key) if bundle else None
    except (KeyError, OSError, BadZipFile):
        return None


def write(path: Path, entries: Mapping[str, bytes]) -> None:
    """Write a bundle with machine code by key."""
    with ZipFile(path, "w", ZIP_DEFLATED) as bundle:
        for key, code in sorted(entries.items()):
            bundle.writestr(key, code)
        bundle.comment = json.dumps(_code_origin()).encode()


@cache
def _open_zip(path: Path) -> ZipFile | None:
    try:
        bundle = ZipFile(path)
        return bundle if json.loads(bundle.comment) == _code_origin() else None
    except (OSError, BadZipFile, ValueError):
        return None


def _code_origin() -> dict[str, str]:
    """Return the version of the running code, which may be older than the files, and a digest of the files."""
    digest = hashlib.sha256()
    for room in SOURCES:
        for path in sorted((PACKAGE / room).glob("*.py")):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return {"version": __version__, "sources": digest.hexdigest()}
