"""Buckets: `s3://bucket/folder`, `gs://bucket/folder`, `az://container/folder`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ramerge.foundation.errors import CheckpointError, RamergeError
from ramerge.storage import client
from ramerge.storage.storage import Storage, Version
from ramerge.storage.upload import INDEX_ENDING, is_shard_of_run

# No model has as many. A bucket that is named without a folder may.
_MOST_FILES = 100_000
_CHUNK = 1000
# What makes a folder a model.
_MODELS = (INDEX_ENDING, "/model.safetensors")
_ACCESS = {
    "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, whether they have expired, and AWS_REGION and "
    "AWS_ENDPOINT (or AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, and whether they have expired",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and its key or token, and whether they have expired",
}
SCHEMES = tuple(_ACCESS)
"""What names of buckets begin with."""


class Bucket:
    """A folder of a bucket, and how it is asked.

    Args:
        address: its name for messages.
        store: obstore's, for that folder.
        access: what to check if access is denied, for people.
        kind: the error if the store cannot be asked.
    """

    def __init__(self, address: str, store: Any, access: str, kind: type[RamergeError] = CheckpointError) -> None:
        self.address, self.store = address, store
        self.obstore = client.library(address)
        self._access, self._kind = access, kind

    def place(self, key: str) -> str:
        """The name of a file for messages."""
        return f"{self.address}/{key}"

    def readable_errors(self, key: str = "", *, absent: str = "is not there any more") -> AbstractContextManager[None]:
        place = self.place(key) if key else self.address
        return client.readable_errors(place, self._access, absent=absent, kind=self._kind)

    def list(self) -> dict[str, Version]:
        """What is in the folder now."""
        found: dict[str, Version] = {}
        with self.readable_errors(absent="there is no such bucket"):
            for chunk in self.obstore.list(self.store, chunk_size=_CHUNK):
                found |= {meta["path"]: client.version_of(meta) for meta in chunk}
                if len(found) > _MOST_FILES:
                    break
        if len(found) > _MOST_FILES:
            raise self._kind(f"{self.address}: holds more than {_MOST_FILES:,} files; name a model's own folder")
        return found

    def chunks(self, key: str, version: Version, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        return client.chunks(self.store, key, version, start, stop, place=self.place(key), access=self._access)

    # --- writing ------------------------------------------------------------------------------------------------------

    def tags(self) -> dict[str, str]:
        """For each file in the folder what tells its content from any other: its size and ETag."""
        return {key: _tag(version) for key, version in self.list().items()}

    def tag(self, key: str) -> str | None:
        """The same of a file; None if it is not there."""
        meta = self._head(key)
        return _tag(client.version_of(meta)) if meta is not None else None

    def _head(self, key: str) -> Any:
        with self.readable_errors(key):
            try:
                return self.obstore.head(self.store, key)
            except FileNotFoundError:
                return None

    def read(self, key: str) -> bytes | None:
        """A small file; None if it is not there."""
        with self.readable_errors(key):
            try:
                return bytes(self.obstore.get(self.store, key).bytes())
            except FileNotFoundError:
                return None

    def put_if(self, key: str, data: bytes, tag: str | None, *, conditions: bool) -> bool:
        """Put a small file if what is there has a tag; without a tag, if nothing is there. False if that is not so.

        Args:
            key: the file.
            data: its bytes.
            tag: see `tags`.
            conditions: whether the store checks this with the request; otherwise it is only looked at just before.
        """
        meta = self._head(key)
        if (_tag(client.version_of(meta)) if meta is not None else None) != tag:
            return False
        return self._put(key, data, _condition(meta) if conditions else "overwrite")

    def _put(self, key: str, data: bytes, mode: Any) -> bool:
        """False if the condition does not hold."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self.readable_errors(key):
            try:
                self.obstore.put(self.store, key, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def takes_conditions(self, key: str) -> bool:
        """Whether the store refuses what must be refused. Tried with a file that is not there before or afterwards."""
        if not self._put(key, b"", "create"):
            return True
        try:
            return not self._put(key, b"", "create") and not self._put(key, b"", {"e_tag": '"another"'})
        except (NotImplementedError, self._kind):
            return False
        finally:
            self.delete([key])

    def delete(self, keys: Sequence[str]) -> None:
        """Remove files."""
        if keys:
            with self.readable_errors():
                self.obstore.delete(self.store, keys)


def open_bucket(
    scheme: str, rest: str, what: str = "reading from there", kind: type[RamergeError] = CheckpointError
) -> Bucket:
    """The folder of a name such as `s3://bucket/folder`.

    Args:
        scheme: `s3`, `gs` or `az`.
        rest: bucket and folder.
        what: what obstore is needed for, for people.
        kind: the error if the store cannot be asked.
    """
    bucket, _, folder = rest.strip("/").partition("/")
    address = f"{scheme}://{f'{bucket}/{folder}'.rstrip('/')}"
    if not bucket or not folder:
        raise CheckpointError(f"{address}: name a bucket and a folder in it, such as {scheme}://bucket/model")
    client.library(address, what)
    from obstore import store

    made = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
    connection, retry = client.options()
    with client.readable_errors(address, _ACCESS[scheme]):
        opened = made(bucket, prefix=folder, client_options=connection, retry_config=retry)
    return Bucket(address, opened, _ACCESS[scheme], kind)


def _tag(version: Version) -> str:
    return f"{version.nbytes} {version.tag}"


def _condition(meta: Any) -> Any:
    """The condition that a file is still what it was; that there is none, without what it was."""
    if meta is None:
        return "create"
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


class Objects(Storage):
    """A folder of a bucket. Its files are listed once, with their ETags, and requests are bound to these.

    Args:
        scheme: `s3`, `gs` or `az`.
        rest: bucket and folder.
    """

    def __init__(self, scheme: str, rest: str) -> None:
        self._bucket = open_bucket(scheme, rest)
        self.address = self._bucket.address
        self._lock = threading.Lock()
        self._named = scheme, rest

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (*self._named, dict(self.files()))

    @override
    def files(self) -> Mapping[str, Version]:
        with self._lock:
            return self._files

    @cached_property
    def _files(self) -> Mapping[str, Version]:
        found = self._bucket.list()
        if not any(f"/{name}".endswith(_MODELS) for name in found) and any(map(is_shard_of_run, found)):
            raise CheckpointError(
                f"{self.address}: a merge is being uploaded there, or was interrupted before it was complete; wait for "
                f"it, resume it, or remove it (ramerge clean {self.address})"
            )
        return found

    @override
    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        return self._bucket.chunks(key, self.files()[key], start, stop)


def _arrived(scheme: str, rest: str, files: Mapping[str, Version]) -> Objects:
    objects = Objects(scheme, rest)
    objects._files = files
    return objects
