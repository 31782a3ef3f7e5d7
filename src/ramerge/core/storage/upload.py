"""The log of a run's uploads, and the remote names of its shards."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from ramerge.core.foundation.errors import OutputError

INDEX_ENDING = ".safetensors.index.json"
HIDDEN_PREFIX = ".ramerge-"
"""What objects begin with that lie at a place only while a run writes there."""
CLAIM = f"{HIDDEN_PREFIX}commit"
"""The object that only one run can put, which then may write what has the same name in all runs."""
_WEIGHTS = ".safetensors"
_RUN_BYTES = 6
_SHARD_STEM = re.compile(r"(.+?)-(\d{5}(?:-of-\d{5})?)")
_OF_RUN = re.compile(rf".*-([0-9a-f]{{{2 * _RUN_BYTES}}})-\d{{5}}(-of-\d{{5}})?\.safetensors")


class DefeatedError(OutputError):
    """Another process has completed its output at the same place meanwhile. Nothing of it was changed."""


@dataclass
class UploadRun:
    """Files that one run has uploaded, and the contents of the place when it began.

    It is noted in a log, which is on the disk before a shard is removed here: first the run, then each shard that has
    arrived. So a later process can continue.

    Attributes:
        conditions: whether the place takes conditions of requests, as far as it was tried.
        name: distinguishes the run from all others; empty before it begins. Its shards carry it.
        initial_tags: the place's content, as `BucketUpload.begin` returns it.
        receipts: by local name, the result of `BucketUpload.put` for a shard.
        small_files: name and digest of each small file that the run has put, or was about to.
    """

    log: Path
    name: str = ""
    initial_tags: Mapping[str, str | None] = field(default_factory=dict)
    receipts: dict[str, str] = field(default_factory=dict)
    small_files: set[tuple[str, str]] = field(default_factory=set)
    conditions: bool = True

    def read(self) -> None:
        """Read the run's log, without damaged lines."""
        with suppress(OSError):
            for line in self.log.read_bytes().splitlines():
                with suppress(ValueError, LookupError, TypeError):
                    self._take(json.loads(line))

    def begin(self, initial_tags: Mapping[str, str | None], *, conditions: bool = True) -> None:
        """Begin the log of another run."""
        self.log.unlink(missing_ok=True)
        self._note({"run": secrets.token_hex(_RUN_BYTES), "seen": dict(initial_tags), "conditions": conditions})

    def add(self, shard: str, tag: str) -> None:
        """Note that a shard has arrived."""
        self._note({"shard": shard, "tag": tag})

    def note_put(self, name: str, data: bytes, *, was_refused: bool = False) -> None:
        """Note that a small file is about to be put, or was refused, because another program had just put one.

        It is noted before, so that a later process knows it whenever this one is killed. The ETag in the answer would
        add nothing: it is a digest, too.
        """
        self._note({"put": name, "digest": _digest(data), "refused": was_refused})

    def has_put(self, name: str, data: bytes | None) -> bool:
        """Whether a small file at the place may be the run's own: the run has put these bytes under this name."""
        return data is not None and (name, _digest(data)) in self.small_files

    @property
    def claim(self) -> bytes:
        """The content of the object by which the run claims the place."""
        return self.name.encode()

    def _note(self, event: Mapping[str, Any]) -> None:
        with self.log.open("ab") as file:
            file.write(f"\n{json.dumps(event)}\n".encode())  # on a line of its own, whatever is torn before it
            file.flush()
            os.fsync(file.fileno())
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if "run" in event:
            self.name, self.initial_tags = str(event["run"]), dict(event["seen"])
            self.conditions = event.get("conditions", True) is True
            self.receipts.clear()
            self.small_files.clear()
        elif "put" in event:
            put = str(event["put"]), str(event["digest"])
            self.small_files.discard(put) if event["refused"] else self.small_files.add(put)
        else:
            self.receipts[str(event["shard"])] = str(event["tag"])

    def remote_name(self, name: str) -> str:
        """The remote name of a local shard."""
        path = PurePosixPath(name)
        stem = path.name.removesuffix(_WEIGHTS)
        match = _SHARD_STEM.fullmatch(stem)
        begin, number = match.groups() if match is not None else (stem, "00001-of-00001")
        return str(path.with_name(f"{begin}-{self.name}-{number}{_WEIGHTS}"))

    def owns(self, name: str) -> bool:
        """Whether a file at the place is a shard of this run."""
        match = _OF_RUN.fullmatch(PurePosixPath(name).name)
        return match is not None and match[1] == self.name


def _digest(data: bytes) -> str:
    return str(xxhash.xxh3_128_hexdigest(data))


def is_shard_of_run(name: str) -> bool:
    """Whether a file's name contains a run's; it belongs to a model only if an index names it."""
    return _OF_RUN.fullmatch(PurePosixPath(name).name) is not None


def shards_of_index(index: bytes) -> set[str]:
    """The files that an index names; none if it cannot be understood."""
    try:
        return {str(name) for name in json.loads(index)["weight_map"].values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()
