"""The log of a run's uploads, and the remote names of a run's shards."""

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
"""The prefix of objects that exist only while a run writes to the folder."""
CLAIM = f"{HIDDEN_PREFIX}commit"
"""The object that only one run at a time can put. It may then write the files that have the same names in all runs."""
_WEIGHTS = ".safetensors"
_RUN_BYTES = 6
_SHARD_STEM = re.compile(r"(.+?)-(\d{5}(?:-of-\d{5})?)")
_OF_RUN = re.compile(rf".*-([0-9a-f]{{{2 * _RUN_BYTES}}})-\d{{5}}(-of-\d{{5}})?\.safetensors")


class DefeatedError(OutputError):
    """Another process has completed its output at the same place meanwhile. Its output was not changed."""


@dataclass
class UploadRun:
    """The files that a run has uploaded, and the remote files that existed when it began.

    All of it is written to a log, so that a later process can resume the run: first the run, then each uploaded shard,
    before its local file is removed.

    Attributes:
        log: the path of the log.
        name: a unique name of the run, which is part of its shards' names; empty before the run begins.
        initial_tags: the tags of existing files when the run began, by name.
        receipts: for each uploaded shard, the result of `BucketUpload.put`, by local name.
        small_files: name and digest of each small file that the run has put, or was about to put.
        conditions: whether the store enforces conditions of requests; True if that was not tried.
    """

    log: Path
    name: str = ""
    initial_tags: Mapping[str, str | None] = field(default_factory=dict)
    receipts: dict[str, str] = field(default_factory=dict)
    small_files: set[tuple[str, str]] = field(default_factory=set)
    conditions: bool = True

    def read(self) -> None:
        """Read the log of an earlier process; damaged lines are ignored."""
        with suppress(OSError):
            for line in self.log.read_bytes().splitlines():
                with suppress(ValueError, LookupError, TypeError):
                    self._apply_event(json.loads(line))

    def begin(self, initial_tags: Mapping[str, str | None], *, conditions: bool = True) -> None:
        """Begin a new run with a new log."""
        self.log.unlink(missing_ok=True)
        self._log_event({"run": secrets.token_hex(_RUN_BYTES), "seen": dict(initial_tags), "conditions": conditions})

    def add(self, shard: str, tag: str) -> None:
        """Record that a shard was uploaded."""
        self._log_event({"shard": shard, "tag": tag})

    def note_put(self, name: str, data: bytes, *, was_refused: bool = False) -> None:
        """Record that a small file is about to be put, or that this was refused, because another program was faster.

        It is recorded before the request, so that a later process knows about it even if this process is killed. The
        ETag in the response need not be recorded, because it is a digest, too.
        """
        self._log_event({"put": name, "digest": _digest(data), "refused": was_refused})

    def has_put(self, name: str, data: bytes | None) -> bool:
        """Whether a remote small file may be the run's own, because the run has put these bytes under this name."""
        return data is not None and (name, _digest(data)) in self.small_files

    @property
    def claim(self) -> bytes:
        """The content of the object `CLAIM` if this run has put it."""
        return self.name.encode()

    def _log_event(self, event: Mapping[str, Any]) -> None:
        with self.log.open("ab") as file:
            file.write(f"\n{json.dumps(event)}\n".encode())  # on its own line, even after an incomplete line
            file.flush()
            os.fsync(file.fileno())
        self._apply_event(event)

    def _apply_event(self, event: Mapping[str, Any]) -> None:
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
        """Whether a remote file is a shard of this run."""
        match = _OF_RUN.fullmatch(PurePosixPath(name).name)
        return match is not None and match[1] == self.name


def _digest(data: bytes) -> str:
    return str(xxhash.xxh3_128_hexdigest(data))


def is_shard_of_run(name: str) -> bool:
    """Whether a file is a shard of some run, by its name; it belongs to a model only if an index names it."""
    return _OF_RUN.fullmatch(PurePosixPath(name).name) is not None


def shards_of_index(index: bytes) -> set[str]:
    """The files that an index names; empty if the index is damaged."""
    try:
        return {str(name) for name in json.loads(index)["weight_map"].values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()
