"""Buckets: `s3://bucket/folder`, `gs://bucket/folder`, `az://container/folder`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ramerge.core.foundation.errors import CheckpointError, RamergeError
from ramerge.core.storage import client
from ramerge.core.storage.storage import Storage, Version
from ramerge.core.storage.upload import CLAIM, INDEX_ENDING, is_shard_of_run

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# No model has this many files, but the folder above many models may.
_MOST_FILES = 100_000
_CHUNK = 1000
# Endings of files by which a folder is recognized as a model.
_MODELS = (INDEX_ENDING, "/model.safetensors")
_ACCESS = {
    "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, whether they have expired, and AWS_REGION and "
    "AWS_ENDPOINT (or AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, and whether they have expired",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and its key or token, and whether they have expired",
}
SCHEMES = tuple(_ACCESS)
"""The schemes of bucket addresses."""


class Bucket(Storage):
    """A folder of a bucket. Its files are listed once with their ETags, and requests only accept these versions.

    Args:
        access: advice if access is denied, as a clause.
        kind: the class of errors.
    """

    def __init__(
        self, address: str, store: ObjectStore, access: str, kind: type[RamergeError] = CheckpointError
    ) -> None:
        self.address: str = address
        self.store: ObjectStore = store
        self.obstore: ModuleType = client.library(address)
        self._access, self._kind = access, kind
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return open_bucket, (self.address,), {"_files": dict(self.files())}

    def readable_errors(self, key: str = "", *, absent: str = "is not there any more") -> AbstractContextManager[None]:
        place = f"{self.address}/{key}" if key else self.address
        return client.readable_errors(place, self._access, absent=absent, kind=self._kind)

    def list(self) -> dict[str, Version]:
        """List the current files in the folder, with their versions."""
        versions: dict[str, Version] = {}
        with self.readable_errors(absent="there is no such bucket"):
            for chunk in self.obstore.list(self.store, chunk_size=_CHUNK):
                versions |= {meta["path"]: client.version_of(meta) for meta in chunk}
                if len(versions) > _MOST_FILES:
                    break
        if len(versions) > _MOST_FILES:
            raise self._kind(f"{self.address}: holds more than {_MOST_FILES:,} files; name a model's own folder")
        return versions

    @override
    def files(self) -> Mapping[str, Version]:
        with self._lock:
            return self._files

    @cached_property
    def _files(self) -> Mapping[str, Version]:
        versions = self.list()
        has_model = any(f"/{name}".endswith(_MODELS) for name in versions)
        if CLAIM in versions or (not has_model and any(map(is_shard_of_run, versions))):
            raise CheckpointError(
                f"{self.address}: a merge is being uploaded there, or was interrupted before it was complete; wait for "
                f"it, resume it, or remove it (ramerge clean {self.address})"
            )
        return versions

    @override
    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        place, version = f"{self.address}/{key}", self.files()[key]
        return client.chunks(self.store, key, version, start, stop, place=place, access=self._access)


def open_bucket(name: str, kind: type[RamergeError] = CheckpointError) -> Bucket:
    """Open the folder with an address such as `s3://bucket/folder`, without a request."""
    scheme, _, rest = name.partition("://")
    bucket, _, folder = rest.strip("/").partition("/")
    address = f"{scheme}://{f'{bucket}/{folder}'.rstrip('/')}"
    if not bucket or not folder:
        raise CheckpointError(f"{address}: name a bucket and a folder in it, such as {scheme}://bucket/model")
    client.library(address)
    from obstore import store

    store_class = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
    connection, retry = client.store_options()
    with client.readable_errors(address, _ACCESS[scheme]):
        bucket_store = store_class(bucket, prefix=folder, client_options=connection, retry_config=retry)
    return Bucket(address, bucket_store, _ACCESS[scheme], kind)
