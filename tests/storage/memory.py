"""Buckets in memory: the store of obstore that answers as servers do, with ETags, ranges and conditions."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import obstore
from obstore.store import MemoryStore


class Memory:
    """Folders of buckets by bucket and name. A client is bound to one of them, so each is a store of its own."""

    def __init__(self) -> None:
        self._stores: defaultdict[tuple[str, str], MemoryStore] = defaultdict(MemoryStore)

    def open(self, bucket: str, *, prefix: str, **_connection: object) -> MemoryStore:
        """Instead of a client of a server."""
        return self._stores[bucket, prefix]

    def put(self, folder: Path, name: str) -> str:
        """Copy a folder to a bucket. Returns what it is called there."""
        for path in folder.rglob("*"):
            if path.is_file():
                obstore.put(self._stores["models", name], path.relative_to(folder).as_posix(), path.read_bytes())
        return f"gs://models/{name}"

    def files(self, name: str) -> dict[str, bytes]:
        """The files of a folder of the bucket."""
        store = self._stores["models", name]
        keys = [meta["path"] for chunk in obstore.list(store) for meta in chunk]
        return {key: bytes(obstore.get(store, key).bytes()) for key in keys}
