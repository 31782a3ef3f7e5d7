"""What a run has uploaded, and how its files are named there."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ramerge.foundation.errors import OutputError

INDEX_ENDING = ".safetensors.index.json"
_WEIGHTS = ".safetensors"
_RUN_BYTES = 6
_NUMBERED = re.compile(r"(.+?)-(\d{5}(?:-of-\d{5})?)")
_OF_RUN = re.compile(rf".*-[0-9a-f]{{{2 * _RUN_BYTES}}}-\d{{5}}(-of-\d{{5}})?\.safetensors")


class DefeatedError(OutputError):
    """Another process has completed its output at the same place meanwhile. Nothing of it was changed."""


@dataclass
class UploadRun:
    """What one run has uploaded, and what it found at the place when it began.

    Attributes:
        name: tells the run from all others. Its shards carry it.
        seen: what the place held, as `Upload.begin` gives it.
        arrived: by local name, what `Upload.put` has said of a shard.
        intended: digests of the small files that the run may have put.
    """

    name: str = field(default_factory=lambda: secrets.token_hex(_RUN_BYTES))
    seen: Mapping[str, Any] = field(default_factory=dict)
    arrived: dict[str, str] = field(default_factory=dict)
    intended: set[str] = field(default_factory=set)

    def named(self, name: str) -> str:
        """What a local shard is called at the place."""
        path = PurePosixPath(name)
        stem = path.name.removesuffix(_WEIGHTS)
        found = _NUMBERED.fullmatch(stem)
        begin, number = found.groups() if found is not None else (stem, "00001-of-00001")
        return str(path.with_name(f"{begin}-{self.name}-{number}{_WEIGHTS}"))

    def owns(self, name: str) -> bool:
        """Whether a file at the place is a shard of this run."""
        return is_shard_of_run(name) and f"-{self.name}-" in name


def is_shard_of_run(name: str) -> bool:
    """Whether a file has the name of a run in its own. Unless an index names it, it belongs to no model."""
    return _OF_RUN.fullmatch(PurePosixPath(name).name) is not None


def shards_named(index: bytes) -> set[str]:
    """The files that an index names; none if it cannot be understood."""
    try:
        return {str(name) for name in json.loads(index)["weight_map"].values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()
