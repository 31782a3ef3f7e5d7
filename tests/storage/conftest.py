"""Servers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage import seaweed
from tests.storage.memory import Memory
from tests.storage.web import WebServer, serving
from tests.tiers import unavailable


@pytest.fixture(scope="session")
def _s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[seaweed.Server]:
    """One server for each process of tests: it starts in some seconds, and nothing has to be shared or locked."""
    try:
        with seaweed.running(tmp_path_factory.mktemp("s3")) as server:
            yield server
    except seaweed.NotStartedError as error:
        unavailable(f"no S3 server: {error}")


@pytest.fixture
def s3(_s3_server: seaweed.Server, monkeypatch: pytest.MonkeyPatch) -> seaweed.Server:
    """A real S3 server, to which the environment leads."""
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return _s3_server


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Buckets of Google's kind (which have no uploads to abort) in the memory of this process: no server is asked."""
    made = Memory()
    monkeypatch.setattr("obstore.store.GCSStore", made.open)
    return made


@pytest.fixture
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """A web server for the files of a folder."""
    with serving(tmp_path_factory.mktemp("web")) as server:
        yield server


@pytest.fixture(autouse=True)
def _directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy is asked for the loopback, and a server that is gone is not waited for."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("RAMERGE_RETRY_SECONDS", "1")
