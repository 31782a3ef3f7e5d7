"""Buckets: `s3://bucket/folder`, `gs://bucket/folder`, `az://container/folder`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.storage import client
from ramerge.checkpoint.storage.storage import Storage, Version
from ramerge.foundation.errors import CheckpointError

# No model has as many. A bucket that is named without a folder may.
_MOST_FILES = 100_000
_CHUNK = 1000
_ACCESS = {
    "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, whether they have expired, and AWS_REGION and "
    "AWS_ENDPOINT (or AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, and whether they have expired",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and its key or token, and whether they have expired",
}


class Objects(Storage):
    """A folder of a bucket. Its files are listed once, with their ETags, and requests are bound to these.

    Args:
        scheme: `s3`, `gs` or `az`.
        rest: bucket and folder.
    """

    def __init__(self, scheme: str, rest: str) -> None:
        bucket, _, folder = rest.strip("/").partition("/")
        self.address = f"{scheme}://{bucket}/{folder}".rstrip("/")
        if not bucket or not folder:
            raise CheckpointError(f"{self.address}: name a bucket and a folder in it, such as {scheme}://bucket/model")
        self._access = _ACCESS[scheme]
        client.library(self.address)
        from obstore import store

        made = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
        connection, retry = client.options()
        with client.in_words(self.address, self._access):
            self._store = made(bucket, prefix=folder, client_options=connection, retry_config=retry)
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
        found: dict[str, Version] = {}
        obstore = client.library(self.address)
        with client.in_words(self.address, self._access, absent="there is no such bucket"):
            for chunk in obstore.list(self._store, chunk_size=_CHUNK):
                found |= {meta["path"]: client.version_of(meta) for meta in chunk}
                if len(found) > _MOST_FILES:
                    break
        if len(found) > _MOST_FILES:
            raise CheckpointError(f"{self.address}: holds more than {_MOST_FILES:,} files; name a model's own folder")
        return found

    def fill(self, key: str, position: int, out: NDArray[np.uint8]) -> None:
        """See `Storage`."""
        place = f"{self.address}/{key}"
        client.fill(self._store, key, self.files()[key], position, out, place=place, access=self._access)


def _arrived(scheme: str, rest: str, files: Mapping[str, Version]) -> Objects:
    """The folder as another machine sees it: it is not listed again."""
    objects = Objects(scheme, rest)
    objects._files = files
    return objects
