"""The interface of remote places that a model is uploaded to, and how its files are named there."""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ramerge.foundation.errors import OutputError
from ramerge.storage.location import Location

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


class UploadTarget(ABC):
    """A remote place that will hold a model.

    Shards are uploaded whole, one after another, while later ones are merged. No model is visible before `commit`.

    Attributes:
        address: the place as messages name it, without credentials.
        name: the model's name for its card.
        staging: the folder on this machine in which files lie until they are uploaded.
        result: what names the model that is there now; the address, unless something names it more exactly.
        needs_index: whether the model needs an index even if it has one shard, because shards have names of their run.
    """

    address: str
    name: str
    staging: Path
    result: str
    needs_index: bool

    def __str__(self) -> str:
        return self.address

    @abstractmethod
    def problems(self, inputs: Sequence[Location], *, overwrite: bool, resumes: bool) -> list[str]:
        """Why no model can be uploaded there, as far as this is clear without writing anything.

        Args:
            inputs: files and folders that are read.
            overwrite: whether what is there will be replaced.
            resumes: whether a run has been interrupted on this machine, so what is there may be its own.
        """

    @abstractmethod
    def begin(self, *, overwrite: bool) -> Mapping[str, Any]:
        """Find what the place holds, as plain values. It stays as it is.

        Raises:
            PlanError: it holds something that is not to be replaced.
            SendError: the server cannot be reached, or denies access.
        """

    @abstractmethod
    def resumes(self, run: UploadRun) -> bool:
        """Whether everything that a run has uploaded is there, and no other run has completed since it began.

        Raises:
            SendError: as for `begin`.
        """

    @abstractmethod
    def put(self, run: UploadRun, name: str, path: Path) -> str:
        """Upload a shard whole. Gives what tells later whether it is there as it was uploaded.

        Raises:
            SendError: as for `begin`.
        """

    @abstractmethod
    def commit(self, run: UploadRun, files: Mapping[str, Path]) -> None:
        """Put the small files, what makes them a model last, and remove what the place held before.

        Raises:
            DefeatedError: another run has completed there meanwhile.
            SendError: as for `begin`.
        """

    @abstractmethod
    def abort(self, run: UploadRun) -> None:
        """Remove what a run has uploaded and not committed.

        Raises:
            SendError: as for `begin`.
        """

    @abstractmethod
    def clean(self) -> list[str]:
        """Remove what interrupted runs of any machine have left, and say what was there.

        Raises:
            SendError: as for `begin`.
        """


def weights_in(files: Collection[str], indexes: Mapping[str, bytes]) -> set[str]:
    """Those of the local files that are shards of an index next to them."""
    named = {
        str(PurePosixPath(index).parent / shard) for index, text in indexes.items() for shard in shards_named(text)
    }
    return named & set(files)
