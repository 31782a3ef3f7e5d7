"""Folders of web servers. Nothing lists them, so a model's files are found by their usual names and its index."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.typing import override
from ramerge.storage import client
from ramerge.storage.storage import Storage, Version

NAMES = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "delta.safetensors.index.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "LICENSE",
)
_ACCESS = "check the address; if it is signed, it may have expired"
_AT_ONCE = 10


class Web(Storage):
    """A folder of a web server.

    Args:
        address: without a query.
        query: goes with every request, also from other machines; empty if there is none.
    """

    def __init__(self, address: str, query: str) -> None:
        self.address = address.rstrip("/")
        client.library(self.address)
        from obstore.store import HTTPStore

        connection, retry = client.options()
        with client.readable_errors(self.address, _ACCESS):
            self._store = HTTPStore(
                f"{self.address}{'?' if query else ''}{query}", client_options=connection, retry_config=retry
            )
        self._found: dict[str, Version | None] = {}
        self._denied: str | None = None
        self._lock = threading.Lock()
        self._query = query

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            return _arrived, (self.address, self._query, dict(self._found))

    def files(self) -> Mapping[str, Version]:
        """Those that are there of the usual ones, and those that were asked for by name."""
        self.find(NAMES[0])  # a server that is gone is waited for once
        self.expect(NAMES)
        with self._lock:
            found = {key: version for key, version in self._found.items() if version is not None}
        if not found and self._denied:
            raise CheckpointError(self._denied)
        return found

    @override
    def expect(self, keys: Iterable[str]) -> None:
        with self._lock, ThreadPoolExecutor(_AT_ONCE) as pool:
            missing = [key for key in keys if key not in self._found]
            self._found |= zip(missing, pool.map(self._ask, missing), strict=True)

    @override
    def find(self, key: str) -> Version | None:
        with self._lock:
            if key not in self._found:
                self._found[key] = self._ask(key)
            return self._found[key]

    def _ask(self, key: str) -> Version | None:
        """The version of a file. A server that denies access to one may only want to say that it is not there."""
        obstore = client.library(self.address)
        place = f"{self.address}/{key}"
        with client.readable_errors(place, _ACCESS):
            try:
                return client.version_of(obstore.head(self._store, key))
            except FileNotFoundError:
                return None
            except obstore.exceptions.BaseError as error:
                if not client.is_denied(error):
                    raise
        self._denied = f"{place}: access is denied; {_ACCESS}"
        return None

    @override
    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        version = self.find(key)
        place = f"{self.address}/{key}"
        if version is None:
            raise CheckpointError(f"{place}: there is no such file")
        return client.chunks(self._store, key, version, start, stop, place=place, access=_ACCESS)


def _arrived(address: str, query: str, found: Mapping[str, Version | None]) -> Web:
    """The folder as another machine sees it: nothing is asked for again."""
    web = Web(address, query)
    web._found = dict(found)
    return web
