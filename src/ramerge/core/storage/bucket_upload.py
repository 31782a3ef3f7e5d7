"""Upload of a model to a bucket.

No two runs write the same shard, because the names of shards contain the run: `model-<run>-00001-of-00016.safetensors`.
Loaders find shards by the index. All other files have the same names in all runs, so only one run at a time may write
them: the run that holds the claim, an object that can only be put if there is none. All runs use the same claim, for
models, sweeps and deltas. The run with the claim checks that no record and no index has changed since it began, puts
the small files and finally the indexes, removes the previous files, and then the claim. A process that was suspended
while another one completed its output ends with an error, and changes nothing. No run takes over a claim, because the
other run may still be alive: if it was killed, repeat its command, or run `ramerge clean`.
"""

from __future__ import annotations

import json
import secrets
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, cast

from ramerge.core.foundation.errors import OutputError, OutputWarning, PlanError, SendError
from ramerge.core.foundation.jsontext import RECORD, dumped, parse
from ramerge.core.storage import client
from ramerge.core.storage.location import Location, is_far
from ramerge.core.storage.objects import Bucket
from ramerge.core.storage.own_files import COMPANIONS, DELTA_INDEX, RECORDS, SWEEP, holds_another, model_inside, signed
from ramerge.core.storage.storage import Version
from ramerge.core.storage.upload import (
    CLAIM,
    HIDDEN_PREFIX,
    INDEX_ENDING,
    DefeatedError,
    UploadRun,
    is_shard_of_run,
    shards_of_index,
)

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

# A store takes at most 10,000 parts of an object, of at least 5 MiB each.
_PART = 8 << 20
_MOST_PARTS = 9_000
_PARTS_AT_ONCE = 4
# Loaders prefer this file to an index, so an old one is removed just before the new index is put.
_ONE_FILE = "model.safetensors"
# How long a run waits for another run's claim, which is held while a few small files are put.
_PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.2


class _SmallObject(NamedTuple):
    """A small remote file: its tag, its bytes, and the request condition that it has not changed; or its absence."""

    tag: str | None = None
    data: bytes | None = None
    condition: PutMode = "create"


class BucketUpload:
    """A folder of a bucket to which a model is uploaded.

    All methods raise `SendError` if the server cannot be reached or denies access.

    Attributes:
        name: the model's name for its card.
        address: the folder's address.
        result: the address of the uploaded model.
        needs_index: whether even a model of one shard needs an index, because names of shards contain the run.
        is_published: whether others may read it, so that its files must not show paths of this machine.
    """

    needs_index = True
    is_published = False

    def __init__(self, bucket: Bucket, staging: Path) -> None:
        self._bucket = bucket
        self.address: str = bucket.address
        self.result: str = bucket.address
        self.name: str = self.address.rpartition("/")[2]
        self.staging = staging

    def __str__(self) -> str:
        return self.address

    # --- before the merge ---------------------------------------------------------------------------------------------

    def problems(self, inputs: Sequence[Location], *, overwrite: bool, resumes: bool) -> list[str]:
        """Problems with uploading a model to the folder, as far as they show without writing.

        Args:
            resumes: whether a run was interrupted on this machine, so that existing files may be its own.
        """
        for input_address in (each.storage.address for each in inputs if is_far(each)):
            is_inside = f"{self.address}/".startswith(f"{input_address}/")
            if is_inside or f"{input_address}/".startswith(f"{self.address}/"):
                return [f"{self.address}: is, holds or is inside the input {input_address}; choose another place"]
        try:
            if not resumes:
                self._refuse_existing(self._file_tags(), overwrite=overwrite)
        except (OutputError, PlanError) as error:
            return list(error.messages)
        return []

    def _refuse_existing(self, existing_keys: Collection[str], *, overwrite: bool) -> None:
        """Raise PlanError if the folder has files that must not be replaced. Shards of runs do not count."""
        if CLAIM in existing_keys:
            raise PlanError(f"{self.address}: {self._claim_text()}")
        names = [name for name in existing_keys if not _belongs_to_run(name)]
        sweep: dict[str, object] = {}
        with suppress(ValueError, TypeError):
            sweep = dict(parse(self._read_object(SWEEP).data or b"", RECORD)) if SWEEP in existing_keys else {}
        if inside := model_inside(names, sweep):
            raise PlanError(f"{self.address}: {holds_another(f'{self.address}/{inside}')}")
        if not any(name in existing_keys for name in RECORDS) and any("/" in name for name in names):
            raise PlanError(
                f"{self.address}: has subfolders, and ramerge did not write it. It is never replaced, to protect your "
                "files; choose another folder, or remove it yourself"
            )
        if names and not overwrite:
            raise PlanError(f"{self.address}: holds files; choose another folder, or pass --overwrite")

    def _claim_text(self) -> str:
        return (
            "another job is completing its output there, or was killed while it did; wait for it, resume it, or remove "
            f"what it left (ramerge clean {self.address})"
        )

    def begin(self, run: UploadRun, *, overwrite: bool) -> None:
        """Begin a run, and record the tags of existing files by name.

        Shards that no index names are left out: they may belong to a running job.
        """
        existing_tags = self._file_tags()
        self._refuse_existing(existing_tags, overwrite=overwrite)
        conditions = self._takes_conditions(f"{HIDDEN_PREFIX}probe-{secrets.token_hex(6)}")
        if not conditions:
            warnings.warn(
                f"{self.address}: this store ignores conditions of requests (If-Match), so if another job writes to "
                "the same place at the same time, the last one to end may mix its files with those of the other",
                OutputWarning,
                stacklevel=2,
            )
        shards_in_use = self._shards_in_use(existing_tags)
        initial_tags = {
            name: tag for name, tag in existing_tags.items() if name in shards_in_use or not _belongs_to_run(name)
        }
        run.begin(initial_tags, conditions=conditions)

    def _takes_conditions(self, key: str) -> bool:
        """Whether the store enforces conditions of requests (If-Match). Tries it with a temporary file."""
        if not self._put(key, b"", "create"):
            return True
        try:
            return not self._put(key, b"", "create") and not self._put(key, b"", {"e_tag": '"another"'})
        except (NotImplementedError, SendError):
            return False
        finally:
            self._delete_objects([key])

    def resumes(self, run: UploadRun) -> bool:
        """Whether all uploads of a run still exist, and no other run has completed since it began."""
        existing_tags = self._file_tags()
        is_complete = all(existing_tags.get(run.remote_name(name)) == tag for name, tag in run.receipts.items())
        return is_complete and self._changed_file(run, existing_tags) is None

    # --- while later shards are merged --------------------------------------------------------------------------------

    def put(self, run: UploadRun, name: str, path: Path) -> str:
        """Upload a whole shard. Return its tag, which shows whether it changes later."""
        key = run.remote_name(name)
        part = max(_PART, -(-path.stat().st_size // _MOST_PARTS))
        with self._bucket.readable_errors(key):
            self._bucket.obstore.put(
                self._bucket.store, key, path, use_multipart=True, chunk_size=part, max_concurrency=_PARTS_AT_ONCE
            )
        return self._size_and_etag(key) or ""

    # --- the commit ---------------------------------------------------------------------------------------------------

    def commit(self, run: UploadRun, files: Mapping[str, Path]) -> None:
        """Put the remaining shards; then, holding the claim, the small files, and finally the indexes.

        Raises:
            DefeatedError: another run has completed its output in the folder meanwhile, or is about to.
        """
        indexes = sorted(name for name in files if _is_index(name))
        weights = {
            str(PurePosixPath(index).parent / shard)
            for index in indexes
            for shard in shards_of_index(files[index].read_bytes())
        } & files.keys()
        tags = dict(run.receipts)
        for name in sorted(weights - tags.keys()):
            tags[name] = self.put(run, name, files[name])
        self._put_claim(run)
        existing_tags = self._file_tags()
        for name, tag in tags.items():
            if existing_tags.get(run.remote_name(name)) != tag:
                raise DefeatedError(
                    f"{self.address}/{run.remote_name(name)}: another program has changed or removed it since it was "
                    "uploaded; is another job writing to the same place?"
                )
        if (change := self._changed_file(run, existing_tags, files)) is not None:
            raise self._overtaken_error(change)
        for name in sorted(files.keys() - weights - {*indexes}, key=lambda name: (not _is_record(name), name)):
            self._put_small_file(run, name, files[name].read_bytes())
        for name in indexes:
            one_file = PurePosixPath(name).name.removesuffix(".index.json")
            one_file = _ONE_FILE if name.endswith(DELTA_INDEX) else one_file
            self._remove_initial(run, str(PurePosixPath(name).with_name(one_file)))
        for name in indexes:
            values = json.loads(files[name].read_bytes())
            values["weight_map"] = {tensor: run.remote_name(shard) for tensor, shard in values["weight_map"].items()}
            is_delta = PurePosixPath(name).name == DELTA_INDEX
            text = dumped(signed(values), indent=1) if is_delta else f"{json.dumps(values, indent=2)}\n"
            self._put_small_file(run, name, text.encode())
        self._remove_old(run, {*files, *map(run.remote_name, tags)})
        if self._holds_claim(run):
            self._delete_objects([CLAIM])

    def _put_claim(self, run: UploadRun) -> None:
        """Put this run's claim. Only the run that holds it may write files whose names are the same in all runs."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while (holder := self._read_object(CLAIM).data) != run.claim:
            if holder is None:
                self._put(CLAIM, run.claim, "create" if run.conditions else "overwrite")
            elif time.monotonic() > end:
                raise DefeatedError(f"{self.address}: {self._claim_text()}")
            else:
                time.sleep(_LOOK_SECONDS)

    def _holds_claim(self, run: UploadRun) -> bool:
        return self._read_object(CLAIM).data == run.claim

    def _changed_file(
        self, run: UploadRun, existing_tags: Mapping[str, str], names: Collection[str] = ()
    ) -> str | None:
        """The first file that another process has changed since the run began; None if there is none.

        Only indexes, records, single-file models and `names` are compared. Removed files do not matter.
        """
        for name in sorted(existing_tags):
            looked_at = name in names or _is_index(name) or _is_record(name) or PurePosixPath(name).name == _ONE_FILE
            is_other = looked_at and existing_tags[name] != run.initial_tags.get(name)
            if is_other and not run.has_put(name, self._read_object(name).data):
                return name
        return None

    def _overtaken_error(self, name: str) -> DefeatedError:
        return DefeatedError(
            f"{self.address}/{name}: another job has written to the same place since this one began, so this "
            "one's output is not put there; choose another place, or run it again with --overwrite"
        )

    def _put_small_file(self, run: UploadRun, name: str, data: bytes) -> None:
        """Put a small file, unless another process has changed it since the run began."""
        for _ in range(2):  # the response to a successful request may be lost
            object_there = self._read_object(name)
            if object_there.data == data:
                return
            if object_there.tag not in (None, run.initial_tags.get(name)) and not run.has_put(name, object_there.data):
                break
            run.note_put(name, data)
            if not self._holds_claim(run):
                break
            if self._put(name, data, object_there.condition if run.conditions else "overwrite"):
                return
            run.note_put(name, data, was_refused=True)
        raise self._overtaken_error(name)

    def _remove_old(self, run: UploadRun, new: set[str]) -> None:
        """Remove the files that existed when the run began, except `new` ones, as long as the run holds the claim."""
        for name in sorted(run.initial_tags.keys() - new, key=lambda name: not _is_index(name)):
            if not self._holds_claim(run):
                return  # the claim was removed, so files may be another run's
            self._remove_initial(run, name)

    def _remove_initial(self, run: UploadRun, name: str) -> None:
        if name in run.initial_tags and self._size_and_etag(name) == run.initial_tags[name]:
            self._delete_objects([name])

    # --- uncommitted uploads ------------------------------------------------------------------------------------------

    def abort(self, run: UploadRun) -> None:
        """Remove a run's uncommitted uploads, and the small files that it has put.

        Different runs may put equal small files, so a file is the run's own only if the run has put these bytes under
        this name, and still holds the claim. Replaced files are not restored.
        """
        existing_tags = self._file_tags()
        shards_in_use = self._shards_in_use(existing_tags)
        self._delete_objects([name for name in existing_tags if run.owns(name) and name not in shards_in_use])
        if not self._holds_claim(run):
            return
        if not any(map(run.owns, shards_in_use)):
            put = {name for name, _ in run.small_files} & existing_tags.keys() - run.initial_tags.keys()
            self._delete_objects([name for name in put if run.has_put(name, self._read_object(name).data)])
        self._delete_objects([CLAIM])

    def clean(self) -> list[str]:
        """Remove the leftovers of interrupted runs of any machine. Return sentences about what was removed."""
        existing_tags = self._file_tags()
        shards_in_use = self._shards_in_use(existing_tags)
        left = [name for name in existing_tags if _belongs_to_run(name) and name not in shards_in_use]
        self._delete_objects(left)
        return [f"{self.address}: files of interrupted merges removed: {len(left)}"] if left else []

    def _shards_in_use(self, existing_keys: Collection[str]) -> set[str]:
        """The shards that an existing index names."""
        return {
            str(PurePosixPath(name).parent / shard)
            for name in existing_keys
            if _is_index(name)
            for shard in shards_of_index(self._read_object(name).data or b"")
        }

    # --- requests -----------------------------------------------------------------------------------------------------

    def _file_tags(self) -> dict[str, str]:
        """The tag of each file in the folder: its size and ETag, which identify the content."""
        return {key: _tag_of(version) for key, version in self._bucket.list().items()}

    def _size_and_etag(self, key: str) -> str | None:
        """Size and ETag of a file, as in `_file_tags`; None if it does not exist."""
        with self._bucket.readable_errors(key):
            try:
                return _tag_of(client.version_of(self._bucket.obstore.head(self._bucket.store, key)))
            except FileNotFoundError:
                return None

    def _read_object(self, key: str) -> _SmallObject:
        with self._bucket.readable_errors(key):
            try:
                answer = self._bucket.obstore.get(self._bucket.store, key)
                data, meta = bytes(answer.bytes()), answer.meta
            except FileNotFoundError:
                return _SmallObject()
        condition = {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
        return _SmallObject(_tag_of(client.version_of(meta)), data, cast("UpdateVersion", condition))

    def _put(self, key: str, data: bytes, mode: PutMode) -> bool:
        """Put a small file. Return False if the condition `mode` does not hold."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._bucket.readable_errors(key):
            try:
                self._bucket.obstore.put(self._bucket.store, key, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def _delete_objects(self, keys: Sequence[str]) -> None:
        if keys:
            with self._bucket.readable_errors():
                self._bucket.obstore.delete(self._bucket.store, keys)


def _tag_of(version: Version) -> str:
    return f"{version.nbytes} {version.tag}"


def _belongs_to_run(name: str) -> bool:
    """Whether a file belongs to a single run; it belongs to a model only if an index names it."""
    return is_shard_of_run(name) or name.startswith(HIDDEN_PREFIX)


def _is_index(name: str) -> bool:
    """Whether a file is an index of files next to it, and not the copy of an agent's index in a delta."""
    return name.endswith(INDEX_ENDING) and not name.startswith(f"{COMPANIONS}/")


def _is_record(name: str) -> bool:
    return PurePosixPath(name).name in RECORDS
