"""A model that is uploaded to a bucket.

No two runs write the same shard, because shards carry the name of their run: `model-<run>-00001-of-00016.safetensors`.
Loaders find them by the index. The commit is one conditional put of the index: it succeeds only if the index is still
what it was when the run began. The other small files are put just before it, each on the same condition. Afterwards
what the place held before is removed, each file only if it is still the one that was listed, and only as long as the
index is this run's. So a process that slept while another one completed ends with an error, and changes nothing.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from ramerge.foundation.errors import OutputError, OutputWarning, PlanError
from ramerge.foundation.jsontext import RECORD, dumped, parse
from ramerge.storage.delta_index import COMPANIONS, signed
from ramerge.storage.delta_index import INDEX as DELTA_INDEX
from ramerge.storage.location import Location, Remote
from ramerge.storage.objects import Bucket
from ramerge.storage.own_files import RECORDS, SWEEP, holds_another, model_inside
from ramerge.storage.upload import (
    INDEX_ENDING,
    DefeatedError,
    UploadRun,
    UploadTarget,
    is_shard_of_run,
    shards_named,
    weights_in,
)

# A store takes 10,000 parts of an object, of at least 5 MiB each.
_PART = 8 << 20
_MOST_PARTS = 9_000
_PARTS_AT_ONCE = 4
_PROBE = ".ramerge-probe-"
# Loaders prefer it to an index. So it goes just before the commit, lest an old one be taken for the new model.
_ONE_FILE = "model.safetensors"


class BucketUpload(UploadTarget):
    """A folder of a bucket.

    Args:
        bucket: the folder.
        staging: see `UploadTarget`.
    """

    needs_index = True

    def __init__(self, bucket: Bucket, staging: Path) -> None:
        self._bucket = bucket
        self.address = self.result = bucket.address
        self.name = self.address.rpartition("/")[2]
        self.staging = staging
        self._conditions = True

    # --- before the merge ---------------------------------------------------------------------------------------------

    def problems(self, inputs: Sequence[Location], *, overwrite: bool, resumes: bool) -> list[str]:
        for each in inputs:
            if isinstance(each, Remote) and _overlap(self.address, each.storage.address):
                return [
                    f"{self.address}: is, holds or is inside the input {each.storage.address}; choose another place"
                ]
        try:
            if not resumes:
                self._refuse(self._bucket.tags(), overwrite=overwrite)
        except (OutputError, PlanError) as error:
            return list(error.problems)
        return []

    def _refuse(self, there: Mapping[str, str], *, overwrite: bool) -> None:
        """Raise if the folder holds what must not be replaced. Shards that no index names belong to no model."""
        names = [name for name in there if not is_shard_of_run(name) and not name.startswith(_PROBE)]
        if names and not overwrite:
            raise PlanError(
                f"{self.address}: holds files; choose another folder, or pass --overwrite (in Python overwrite=True)"
            )
        if inside := model_inside(names, self._json(SWEEP) if SWEEP in there else {}):
            raise PlanError(f"{self.address}: {holds_another(f'{self.address}/{inside}')}")
        if not any(name in there for name in RECORDS) and any("/" in name for name in names):
            raise PlanError(
                f"{self.address}: has subfolders and was not made by a merge, so --overwrite does not replace it; "
                "remove it yourself"
            )

    def begin(self, *, overwrite: bool) -> Mapping[str, Any]:
        """Gives by name what tells each file from what may take its place."""
        there = self._bucket.tags()
        self._refuse(there, overwrite=overwrite)
        self._conditions = self._bucket.takes_conditions(f"{_PROBE}{secrets.token_hex(6)}")
        if not self._conditions:
            warnings.warn(
                f"{self.address}: this store ignores conditions of requests (If-Match), so if another job writes to "
                "the same place at the same time, the last one to end may mix its files with those of the other",
                OutputWarning,
                stacklevel=2,
            )
        return there

    def resumes(self, run: UploadRun) -> bool:
        there = self._bucket.tags()
        arrived = all(there.get(run.named(name)) == said for name, said in run.arrived.items())
        return arrived and all(self._is_still(name, run) for name in {*there, *run.seen} if _is_index(name))

    # --- while later shards are merged --------------------------------------------------------------------------------

    def put(self, run: UploadRun, name: str, path: Path) -> str:
        key = run.named(name)
        part = max(_PART, -(-path.stat().st_size // _MOST_PARTS))
        with self._bucket.readable_errors(key):
            self._bucket.obstore.put(
                self._bucket.store, key, path, use_multipart=True, chunk_size=part, max_concurrency=_PARTS_AT_ONCE
            )
        return self._bucket.tag(key) or ""

    # --- the commit ---------------------------------------------------------------------------------------------------

    def commit(self, run: UploadRun, files: Mapping[str, Path]) -> None:
        """Put are first the records, which differ between runs, and last of all the indexes."""
        indexes = {name: path.read_bytes() for name, path in files.items() if _is_index(name)}
        weights = weights_in(files, indexes)
        arrived = dict(run.arrived)
        for name in sorted(weights - arrived.keys()):
            arrived[name] = self.put(run, name, files[name])
        self._check_place(run, indexes)
        self._check_arrived(run, arrived)
        for name in sorted(files.keys() - weights - indexes.keys(), key=lambda name: (not _is_record(name), name)):
            self._check_place(run, indexes)
            self._put_small(run, name, files[name].read_bytes())
        self._check_place(run, indexes)
        for name in indexes:
            self._remove_seen(run, str(PurePosixPath(name).with_name(_ONE_FILE)))
        for name, text in sorted(indexes.items()):
            self._put_small(run, name, _renamed(name, text, run))
        self.remove_old(run, {*files, *map(run.named, arrived)}, indexes)

    def _check_arrived(self, run: UploadRun, arrived: Mapping[str, str]) -> None:
        there = self._bucket.tags()
        for name, said in arrived.items():
            if there.get(run.named(name)) != said:
                raise DefeatedError(
                    f"{self._bucket.place(run.named(name))}: another program has changed or removed it since it was "
                    "uploaded; is another job writing to the same place?"
                )

    def _check_place(self, run: UploadRun, indexes: Mapping[str, bytes]) -> None:
        for name in indexes:
            if not self._is_still(name, run):
                raise self._defeat(name)

    def _defeat(self, name: str) -> DefeatedError:
        return DefeatedError(
            f"{self._bucket.place(name)}: another job has written to the same place since this one began, so this "
            "one's output is not put there; choose another place, or run it again with --overwrite"
        )

    def _is_still(self, name: str, run: UploadRun) -> bool:
        """Whether an index is what it was when the run began, or the run's own."""
        return self._bucket.tag(name) == run.seen.get(name) or self._is_own_index(name, run)

    def _is_own_index(self, name: str, run: UploadRun) -> bool:
        text = self._bucket.read(name)
        return text is not None and any(run.owns(shard) for shard in shards_named(text))

    def _put_small(self, run: UploadRun, name: str, data: bytes) -> None:
        """Put a file if it is still what it was when the run began, or what the run itself has put there before."""
        if self._bucket.put_if(name, data, run.seen.get(name), conditions=self._conditions):
            return
        there, tag = self._bucket.read(name), self._bucket.tag(name)
        if there == data:  # the answer to an earlier request was lost
            return
        own = self._is_own_small(name, run) or (_is_index(name) and self._is_own_index(name, run))
        if not own or not self._bucket.put_if(name, data, tag, conditions=self._conditions):
            raise self._defeat(name)

    def remove_old(self, run: UploadRun, new: set[str], indexes: Mapping[str, bytes]) -> None:
        """Remove what was there when the run began, as long as the place is the run's."""
        for name in sorted(run.seen.keys() - new, key=lambda name: not _is_index(name)):
            if not all(self._is_own_index(index, run) for index in indexes):
                return  # another run has completed since: what is there is its own
            self._remove_seen(run, name)

    def _remove_seen(self, run: UploadRun, name: str) -> None:
        if name in run.seen and self._bucket.tag(name) == run.seen[name]:
            self._bucket.delete([name])

    # --- what is not committed ----------------------------------------------------------------------------------------

    def abort(self, run: UploadRun) -> None:
        there = self._bucket.tags()
        if any(self._is_own_index(name, run) for name in there if _is_index(name)):
            return  # it was committed
        self._bucket.delete([name for name in there if run.owns(name)])
        # records differ between runs and are put first: where the run's is, no other run has put its small files
        if any(self._is_own_small(name, run) for name in there if _is_record(name) and not _is_index(name)):
            small = [name for name in there.keys() - run.seen.keys() if not name.endswith(".safetensors")]
            self._bucket.delete([name for name in small if self._is_own_small(name, run)])

    def _is_own_small(self, name: str, run: UploadRun) -> bool:
        text = self._bucket.read(name)
        return text is not None and digest(text) in run.intended

    def clean(self) -> list[str]:
        there = self._bucket.tags()
        used = {
            str(PurePosixPath(name).parent / shard)
            for name in there
            if _is_index(name)
            for shard in shards_named(self._bucket.read(name) or b"")
        }
        left = [name for name in there if (is_shard_of_run(name) and name not in used) or name.startswith(_PROBE)]
        self._bucket.delete(left)
        return [f"{self.address}: files of interrupted merges removed: {len(left)}"] if left else []

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return dict(parse(self._bucket.read(name) or b"", RECORD))
        except (ValueError, TypeError):
            return {}


def digest(data: bytes) -> str:
    """What tells a small file from others."""
    return str(xxhash.xxh3_128_hexdigest(data))


def _is_index(name: str) -> bool:
    """Whether a file is an index of what lies next to it. What a delta keeps of its agent is not."""
    return name.endswith(INDEX_ENDING) and not name.startswith(f"{COMPANIONS}/")


def _renamed(name: str, text: bytes, run: UploadRun) -> bytes:
    values = json.loads(text)
    values["weight_map"] = {tensor: run.named(shard) for tensor, shard in values["weight_map"].items()}
    is_delta = PurePosixPath(name).name == DELTA_INDEX
    return dumped(signed(values), indent=1).encode() if is_delta else f"{json.dumps(values, indent=2)}\n".encode()


def _is_record(name: str) -> bool:
    return PurePosixPath(name).name in RECORDS


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
