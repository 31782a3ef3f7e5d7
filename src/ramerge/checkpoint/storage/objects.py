"""Buckets: `s3://bucket/folder`, `gs://bucket/folder`, `az://container/folder`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.storage import client
from ramerge.checkpoint.storage.storage import Storage, Version
from ramerge.checkpoint.storage.uploads import Uploads
from ramerge.foundation.errors import CheckpointError, RamergeError

# No model has as many. A bucket that is named without a folder may.
_MOST_FILES = 100_000
_CHUNK = 1000
_ACCESS = {
    "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, whether they have expired, and AWS_REGION and "
    "AWS_ENDPOINT (or AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, and whether they have expired",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and its key or token, and whether they have expired",
}


# Lies in a folder from when a run takes it until the run has put a complete model there.
MARKER = ".ramerge-partial"
# Holds what ranks tell each other (`storage.board`).
RANKS = ".ramerge-ranks"


class Bucket:
    """A folder of a bucket, and how it is asked.

    Args:
        scheme: `s3`, `gs` or `az`.
        rest: bucket and folder.
        what: what obstore is needed for, in words.
        kind: the error if the store cannot be asked.
    """

    def __init__(
        self,
        scheme: str,
        rest: str,
        what: str = "reading from there",
        kind: type[RamergeError] = CheckpointError,
    ) -> None:
        bucket, _, folder = rest.strip("/").partition("/")
        self.address = f"{scheme}://{f'{bucket}/{folder}'.rstrip('/')}"
        if not bucket or not folder:
            raise CheckpointError(f"{self.address}: name a bucket and a folder in it, such as {scheme}://bucket/model")
        self.obstore = client.library(self.address, what)
        self._access, self._kind, self._folder = _ACCESS[scheme], kind, folder
        self._uploads = Uploads(bucket, self._access) if scheme == "s3" else None
        from obstore import store

        made = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
        connection, retry = client.options()
        with client.in_words(self.address, self._access):
            self.store = made(bucket, prefix=folder, client_options=connection, retry_config=retry)

    def place(self, key: str) -> str:
        """The name of a file for messages."""
        return f"{self.address}/{key}"

    def list(self, below: str | None = None) -> dict[str, Version]:
        """What is in the folder now, or in a folder below it."""
        found: dict[str, Version] = {}
        with self.in_words(absent="there is no such bucket"):
            for chunk in self.obstore.list(self.store, below, chunk_size=_CHUNK):
                found |= {meta["path"]: client.version_of(meta) for meta in chunk}
                if len(found) > _MOST_FILES:
                    break
        if len(found) > _MOST_FILES:
            raise self._kind(f"{self.address}: holds more than {_MOST_FILES:,} files; name a model's own folder")
        return found

    def in_words(self, key: str = "", *, absent: str = "is not there any more") -> AbstractContextManager[None]:
        """See `client.in_words`."""
        place = self.place(key) if key else self.address
        return client.in_words(place, self._access, absent=absent, kind=self._kind)

    def abort(self, key: str) -> int:
        """Abort multipart uploads of a file that are open, where this can be done: on S3. Gives their number.

        Raises:
            SendError: the server does not allow it.
        """
        return self._uploads.abort(f"{self._folder}/{key}") if self._uploads is not None else 0

    def chunks(self, key: str, version: Version, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """See `client.chunks`."""
        return client.chunks(self.store, key, version, start, stop, place=self.place(key), access=self._access)


class Objects(Storage):
    """A folder of a bucket. Its files are listed once, with their ETags, and requests are bound to these.

    Args:
        scheme: `s3`, `gs` or `az`.
        rest: bucket and folder.
    """

    def __init__(self, scheme: str, rest: str) -> None:
        self._bucket = Bucket(scheme, rest)
        self.address = self._bucket.address
        self._lock = threading.Lock()
        self._named = scheme, rest

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (*self._named, dict(self.files()))

    def files(self) -> Mapping[str, Version]:
        """See `Storage`."""
        with self._lock:
            return self._files

    @cached_property
    def _files(self) -> Mapping[str, Version]:
        found = self._bucket.list()
        if MARKER in found:
            raise CheckpointError(
                f"{self.address}: a merge is being written there, or was stopped before it was complete; wait for it, "
                f"go on with it, or remove it (ramerge clean {self.address})"
            )
        return {key: version for key, version in found.items() if not key.startswith(f"{RANKS}/")}

    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        """See `Storage`."""
        return self._bucket.chunks(key, self.files()[key], start, stop)


def _arrived(scheme: str, rest: str, files: Mapping[str, Version]) -> Objects:
    """The folder as another machine sees it: it is not listed again."""
    objects = Objects(scheme, rest)
    objects._files = files
    return objects
