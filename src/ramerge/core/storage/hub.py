"""A repository of the hub at one commit. huggingface_hub resolves files and grants access, obstore reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import shown
from ramerge.core.storage import client
from ramerge.core.storage.storage import Storage, Version, has_changed

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import HTTPStore

Answer = TypeVar("Answer")

PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken", "LICENSE*", "*.md"]
UNWANTED = ["original/*", "onnx/*", "*.gguf", "consolidated*"]
_ACCESS = "log in (hf auth login, or HF_TOKEN), and ask for access if the repository is gated"
# Status codes of a hub that is busy or down.
_TRANSIENT = (408, 429, 500, 502, 503, 504)
# What httpx and requests raise where a server does not answer.
_NO_ANSWER = ("ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError", "ReadTimeout", "SSLError")
_LONGEST_WAIT = 30.0
_SMALL = 1 << 16


class _HubSource(NamedTuple):
    """The source of a file's bytes: an address, perhaps with a signature, and the server's answer about the file."""

    store: HTTPStore
    version: Version


class Hub(Storage):
    """A repository of the hub at a commit, as storage.

    The hub resolves each file once to an address on another server, signed for some time. After that time, the file is
    resolved again.
    """

    def __init__(self, name: str, commit: str, files: Mapping[str, Version]) -> None:
        self.address: str = f"{name}@{commit}"
        self._name, self._commit = name, commit
        self._files = files
        self._sources: dict[str, _HubSource] = {}
        self._locks = {key: threading.Lock() for key in files}

    def __reduce__(self) -> tuple[object, ...]:
        return Hub, (self._name, self._commit, dict(self._files))

    @override
    def files(self) -> Mapping[str, Version]:
        return self._files

    @override
    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        source = self._source(key)
        try:
            for chunk in self._request(source, key, start, stop):
                start += chunk.size
                yield chunk
        except client.DeniedError:  # the signature has expired
            yield from self._request(self._source(key, instead_of=source), key, start, stop)

    def _request(self, source: _HubSource, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        place = f"{self.address}/{key}"
        return client.chunks(source.store, "", source.version, start, stop, place=place, access=_ACCESS)

    def _source(self, key: str, instead_of: _HubSource | None = None) -> _HubSource:
        with self._locks[key]:
            cached = self._sources.get(key)
            if cached is None or cached is instead_of:
                fresh = self._find(key)
                if cached is not None and cached.version != fresh.version:
                    raise CheckpointError(has_changed(f"{self.address}/{key}"))
                cached = self._sources[key] = fresh
            return cached

    def _find(self, key: str) -> _HubSource:
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

        place, version = f"{self.address}/{key}", self._files[key]
        client.library(place)
        from obstore import get
        from obstore.store import HTTPStore

        url = hf_hub_url(self._name, key, revision=self._commit)
        with hub_errors(place):
            about = _patiently(lambda: get_hf_file_metadata(url), everywhere=True)
        tag = (about.etag or "").strip('"')
        if (about.size, about.commit_hash or self._commit) != (version.nbytes, self._commit) or tag != version.tag:
            raise CheckpointError(has_changed(place))
        connection, retry = client.store_options()
        is_same_server = urlsplit(about.location)[:2] == urlsplit(url)[:2]
        if is_same_server and (token := get_token()):  # it goes to no other server
            connection["default_headers"] = {"authorization": f"Bearer {token}"}
        with client.readable_errors(place, _ACCESS):
            store = HTTPStore(about.location, client_options=connection, retry_config=retry)
            # not asked for by HEAD, because a signature is for one kind of request
            first: GetOptions = {"range": (0, 1)} if version.nbytes > _SMALL else {}
            there = client.version_of(get(store, "", options=first).meta)
        return _HubSource(store, there)


def commit_of(name: str, revision: str | None) -> tuple[str, dict[str, Version]]:
    """The current commit of a repository's revision, and its files.

    Raises:
        Exception: of huggingface_hub, or of its requests.
    """
    from huggingface_hub import HfApi

    info = _patiently(lambda: HfApi().model_info(name, revision=revision, files_metadata=True))
    return str(info.sha), {
        file.rfilename: Version((file.lfs.sha256 if file.lfs else file.blob_id) or "", file.size or 0, 0)
        for file in info.siblings or ()
        # as `snapshot_download` understands the patterns
        if any(fnmatch(file.rfilename, each) for each in PATTERNS)
        and not any(fnmatch(file.rfilename, each) for each in UNWANTED)
    }


@contextmanager
def hub_errors(place: str) -> Iterator[None]:
    """Turn errors of huggingface_hub into an error of ramerge."""
    try:
        yield
    except failures() as error:
        raise CheckpointError(f"{place}: the hub cannot provide it: {error_text(error)}; {_ACCESS}") from None


def failures() -> tuple[type[Exception], ...]:
    """Errors of huggingface_hub: its own, and those of its library for requests, which has changed."""
    from huggingface_hub.errors import HfHubHTTPError

    return (*HfHubHTTPError.__bases__, OSError, ValueError)


def gave_no_answer(error: BaseException) -> bool:
    """Whether the hub could not be reached."""
    return type(error).__name__ in (*_NO_ANSWER, "OfflineModeIsEnabled")


def error_text(error: BaseException) -> str:
    """The text of an error of huggingface_hub, on one line, with advice if the hub could not be reached."""
    from huggingface_hub import constants

    text = shown(error, 300) or type(error).__name__
    if not gave_no_answer(error):
        return text
    return f"{text}; check the network, and the hub's address {constants.ENDPOINT} (HF_ENDPOINT)"


def _patiently(ask: Callable[[], Answer], *, everywhere: bool = False) -> Answer:
    """The hub's answer. While it is busy or down, the request is repeated, for as long as those to other servers.

    Args:
        everywhere: whether to repeat requests also when the hub cannot be reached at all.
    """
    end, pause = time.monotonic() + client.retry_seconds(), 0.25
    while True:
        try:
            return ask()
        except failures() as error:
            response = getattr(error, "response", None)
            status = getattr(response, "status_code", None)
            if status not in _TRANSIENT and (status is not None or not everywhere):
                raise
            retry_after = str(getattr(response, "headers", {}).get("Retry-After", ""))
            pause = min(_LONGEST_WAIT, float(retry_after) if retry_after.isdecimal() else 2 * pause)
            if time.monotonic() + pause > end:
                raise
        time.sleep(pause)
