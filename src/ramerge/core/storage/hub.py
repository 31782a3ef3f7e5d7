"""A repository on the hub at one commit. huggingface_hub resolves files and authenticates; obstore reads."""

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
# Names of errors that httpx and requests raise if a server does not answer.
_NO_ANSWER = ("ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError", "ReadTimeout", "SSLError")
_LONGEST_WAIT = 30.0
_SMALL = 1 << 16


class _HubSource(NamedTuple):
    """Where the bytes of a file are read: a store for one address, which may be signed, and the version there."""

    store: HTTPStore
    version: Version


class Hub(Storage):
    """A repository on the hub at one commit, as storage.

    The hub resolves each file to an address on another server, with a signature that expires. After that, the file is
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
        source = self._cached_source(key)
        try:
            for chunk in self._request_bytes(source, key, start, stop):
                start += chunk.size
                yield chunk
        except client.DeniedError:  # the signature has expired
            yield from self._request_bytes(self._cached_source(key, instead_of=source), key, start, stop)

    def _request_bytes(self, source: _HubSource, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        place = f"{self.address}/{key}"
        return client.chunks(source.store, "", source.version, start, stop, place=place, access=_ACCESS)

    def _cached_source(self, key: str, instead_of: _HubSource | None = None) -> _HubSource:
        with self._locks[key]:
            cached = self._sources.get(key)
            if cached is None or cached is instead_of:
                fresh = self._find_source(key)
                if cached is not None and cached.version != fresh.version:
                    raise CheckpointError(has_changed(f"{self.address}/{key}"))
                cached = self._sources[key] = fresh
            return cached

    def _find_source(self, key: str) -> _HubSource:
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

        place, version = f"{self.address}/{key}", self._files[key]
        client.library(place)
        from obstore import get
        from obstore.store import HTTPStore

        url = hf_hub_url(self._name, key, revision=self._commit)
        with hub_errors(place):
            about = _retry_while_busy(lambda: get_hf_file_metadata(url), everywhere=True)
        tag = (about.etag or "").strip('"')
        if (about.size, about.commit_hash or self._commit) != (version.nbytes, self._commit) or tag != version.tag:
            raise CheckpointError(has_changed(place))
        connection, retry = client.store_options()
        is_same_server = urlsplit(about.location)[:2] == urlsplit(url)[:2]
        if is_same_server and (token := get_token()):  # never send the token to another server
            connection["default_headers"] = {"authorization": f"Bearer {token}"}
        with client.readable_errors(place, _ACCESS):
            store = HTTPStore(about.location, client_options=connection, retry_config=retry)
            # a GET instead of a HEAD, because a signature is only valid for one kind of request
            first: GetOptions = {"range": (0, 1)} if version.nbytes > _SMALL else {}
            resolved_version = client.version_of(get(store, "", options=first).meta)
        return _HubSource(store, resolved_version)


def commit_of(name: str, revision: str | None) -> tuple[str, dict[str, Version]]:
    """The current commit of a repository's revision, and its files.

    Raises:
        Exception: an error of huggingface_hub, or of its requests (`failures`).
    """
    from huggingface_hub import HfApi

    info = _retry_while_busy(lambda: HfApi().model_info(name, revision=revision, files_metadata=True))
    return str(info.sha), {
        file.rfilename: Version((file.lfs.sha256 if file.lfs else file.blob_id) or "", file.size or 0, 0)
        for file in info.siblings or ()
        # patterns are matched as by `snapshot_download`
        if any(fnmatch(file.rfilename, each) for each in PATTERNS)
        and not any(fnmatch(file.rfilename, each) for each in UNWANTED)
    }


@contextmanager
def hub_errors(place: str) -> Iterator[None]:
    """Turn errors of huggingface_hub into errors of ramerge. `place`: the address, for messages."""
    try:
        yield
    except failures() as error:
        raise CheckpointError(f"{place}: the hub cannot provide it: {error_text(error)}; {_ACCESS}") from None


def failures() -> tuple[type[Exception], ...]:
    """The classes of errors that huggingface_hub raises, including those of its HTTP library, which depends on its
    version.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (*HfHubHTTPError.__bases__, OSError, ValueError)


def gave_no_answer(error: BaseException) -> bool:
    """Whether the hub could not be reached."""
    return type(error).__name__ in (*_NO_ANSWER, "OfflineModeIsEnabled")


def error_text(error: BaseException) -> str:
    """The text of an error of huggingface_hub in one line, with advice if the hub could not be reached."""
    from huggingface_hub import constants

    text = shown(error, 300) or type(error).__name__
    if not gave_no_answer(error):
        return text
    return f"{text}; check the network, and the hub's address {constants.ENDPOINT} (HF_ENDPOINT)"


def _retry_while_busy(ask: Callable[[], Answer], *, everywhere: bool = False) -> Answer:
    """Call `ask`, and repeat it while the hub is busy or down, for at most `client.retry_seconds`.

    Args:
        ask: makes the request, and returns the answer.
        everywhere: whether to repeat the request even if the hub cannot be reached at all.
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
