"""Requests to a server that answers as bad servers and proxies do."""

from __future__ import annotations

import itertools
import traceback
from pathlib import Path

import numpy as np
import pytest

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage import client
from ramerge.core.storage.storage import Version
from tests.messages import Messages
from tests.storage.web import Fault, Request, WebServer

KEY = "model.safetensors"
FAULTS: dict[str, tuple[Fault, str]] = {
    "ignores ranges": (lambda request: request.give(ranges=False), "does not answer requests for a part of a file"),
    "a page of a proxy": (
        lambda request: request.say(200, b"<html>log in</html>", Content_Type="text/html"),
        "does not answer requests for a part of a file",
    ),
    "another version": (lambda request: request.give(tag="no match"), "has changed since"),
    "a precondition": (lambda request: request.say(412), "has changed since"),
    "half of it": (lambda request: request.give(short=100), "breaks off its answers, and requests are repeated"),
    "nothing": (lambda request: request.hang_up(), "cannot be reached, or breaks off"),
    "always busy": (lambda request: request.say(503, Retry_After="1"), "the server fails .*503.*run this again later"),
    "too many": (lambda request: request.say(429, Retry_After="1"), "the server fails .*429"),
    "forbidden": (lambda request: request.say(403), "access is denied .*403.*; check the key"),
    "expired": (
        lambda request: request.say(403, b"<Error><Code>ExpiredToken</Code></Error>"),
        "access is denied .*403 ExpiredToken",
    ),
    "unknown": (lambda request: request.say(401), "access is denied .*401"),
    "gone": (lambda request: request.say(404), "is not there any more"),
}


def asked(web: WebServer, start: int, stop: int, *, write: bool = True) -> bytes:
    """Bytes of a file of the server, which is written first."""
    from obstore import head
    from obstore.store import HTTPStore

    (web.folder / KEY).write_bytes(content())
    connection, retry = client.store_options()
    store = HTTPStore(f"{web.url}?sig=HUSH", client_options=connection, retry_config=retry)
    fault, web.fault = web.fault, lambda _request: False
    version = client.version_of(head(store, KEY))
    web.fault = fault
    found = client.chunks(store, KEY, version, start, stop, place=f"bucket/{KEY}", access="check the key")
    return b"".join(chunk.tobytes() for chunk in found)


def content() -> bytes:
    return np.random.default_rng(0).integers(0, 256, 50_000, np.uint8).tobytes()


@pytest.mark.parametrize(("start", "stop"), [(0, 50_000), (0, 1), (49_999, 50_000), (7, 40_007)])
def test_ranges(start: int, stop: int, web: WebServer) -> None:
    assert asked(web, start, stop) == content()[start:stop]


def test_a_busy_server_is_asked_again(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMERGE_RETRY_SECONDS", "30")
    count, statuses = itertools.count(), itertools.cycle([503, 429, 500])

    def busy(request: Request) -> bool:
        return next(count) % 4 != 3 and request.say(next(statuses), b"slow down", Retry_After="0")

    web.fault = busy
    assert asked(web, 5, 40_000) == content()[5:40_000]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_answers_badly(fault: str, web: WebServer) -> None:
    web.fault, said = FAULTS[fault]
    with pytest.raises(CheckpointError, match=rf"bucket/model\.safetensors: .*{said}") as caught:
        asked(web, 5, 40_000)
    assert caught.value.exit_code == 2
    assert "HUSH" not in "".join(traceback.format_exception(caught.value))


def test_a_file_that_is_shorter_than_its_version(web: WebServer, tmp_path: Path, messages: Messages) -> None:
    with messages.raises(CheckpointError):
        list(client.chunks(None, KEY, Version("", 10, 0), 5, 11, place="x", access=""))  # type: ignore[arg-type]
