"""Models on a web server that answers well, or as bad servers and proxies do."""

from __future__ import annotations

import itertools
import json
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.storage.schemes import open_remote
from tests.checkpoints import simple, write_checkpoint
from tests.storage.web import Fault, Request, WebServer

TAG = '"another"'


def served(web: WebServer, *, shards: int = 1, query: str = "") -> dict[str, Any]:
    """A recipe of a base and two agents that a server has."""
    for seed, name in enumerate(["base", "code", "tool"]):
        write_checkpoint(web.folder / name, simple(seed, moved=0.3 * bool(seed), shape=(400, 16)), shards=shards)
    agents = {name: f"{web.url}/{name}{query}" for name in ("code", "tool")}
    return {"method": "ram+", "base": f"{web.url}/base{query}", "agents": agents}


def here(web: WebServer) -> dict[str, Any]:
    """The same recipe of the folders."""
    agents = {name: str(web.folder / name) for name in ("code", "tool")}
    return {"method": "ram+", "base": str(web.folder / "base"), "agents": agents}


def test_another_machine_asks_for_the_same_versions(web: WebServer) -> None:
    served(web)
    place = open_remote(f"{web.url}/base?key=1") / "model.safetensors"
    assert place.read_bytes()
    web.asked.clear()
    there = pickle.loads(pickle.dumps(place))  # noqa: S301
    assert there == place and there.version() == place.version()
    assert not web.asked  # what is known is not asked for again
    assert there.read_bytes() == place.read_bytes()
    assert all("key=1" in path for _, path, _ in web.asked)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_merge_from_a_web_server(shards: int, web: WebServer, tmp_path: Path) -> None:
    recipe = served(web, shards=shards)
    ramerge.merge(here(web), tmp_path / "here")
    ramerge.merge(recipe, tmp_path / "there")
    for path in (tmp_path / "here").glob("model*"):
        assert (tmp_path / "there" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "there/config.json").is_file()


def test_a_plan_reads_headers_only(web: WebServer) -> None:
    recipe = served(web)
    assert ramerge.plan(recipe).problems == ()
    assert web.of("/base/model.safetensors") == [""]  # all of this small file, at once


def test_a_signature_is_sent_and_not_kept(web: WebServer, tmp_path: Path) -> None:
    recipe = served(web, query="?sig=HUSH%2F")
    record = ramerge.merge(recipe, tmp_path / "out")
    assert record.base == f"{web.url}/base?…"
    assert all(path.endswith("?sig=HUSH%2F") for _, path, _ in web.asked)
    analysis = ramerge.analyze(recipe)
    texts = [path.read_text(errors="replace") for path in (tmp_path / "out").iterdir()]
    assert not any("HUSH" in text for text in (*texts, json.dumps(analysis.to_dict())))
    assert not any("HUSH" in text for text in (str(ramerge.plan(recipe).to_dict()), repr(record)))


def test_a_slow_or_busy_server_is_asked_again(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMERGE_RETRY_SECONDS", "30")
    recipe = served(web)
    ramerge.merge(here(web), tmp_path / "here")
    count = itertools.count()
    statuses = itertools.cycle([503, 429, 500])

    def busy(request: Request) -> bool:
        if next(count) % 2:
            return False
        return request.say(next(statuses), b"slow down", Retry_After="0")

    web.fault = busy
    ramerge.merge(recipe, tmp_path / "there")
    web.fault = lambda request: request.is_for_weights and next(count) % 2 == 0 and request.give(short=100)
    ramerge.merge(recipe, tmp_path / "again")
    for out in ("there", "again"):
        assert (tmp_path / out / "model.safetensors").read_bytes() == (tmp_path / "here/model.safetensors").read_bytes()


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
    "forbidden": (lambda request: request.say(403), "access is denied .*403.*signed, it may have expired"),
    "expired": (
        lambda request: request.say(403, b"<Error><Code>ExpiredToken</Code></Error>"),
        "access is denied .*403 ExpiredToken",
    ),
    "unknown": (lambda request: request.say(401), "access is denied .*401"),
    "gone": (lambda request: request.say(404), "is not there any more"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_answers_badly_in_the_middle(fault: str, web: WebServer, tmp_path: Path) -> None:
    recipe = served(web, query="?sig=HUSH")
    plan = ramerge.plan(recipe, tmp_path / "out")
    assert plan.problems == ()
    answer, said = FAULTS[fault]
    web.fault = lambda request: request.is_for_weights and request.path.startswith("/code/") and answer(request)
    with pytest.raises(ramerge.CheckpointError, match=rf"/code/model\.safetensors: .*{said}") as caught:
        plan.merge()
    assert caught.value.exit_code == 2
    assert "HUSH" not in "".join(traceback.format_exception(caught.value))
    assert list(tmp_path.glob("*out*")) == [] and list(tmp_path.glob(".*out*")) == []


def test_a_server_that_is_not_there_at_first(web: WebServer, tmp_path: Path) -> None:
    recipe = served(web)
    for answer, said in (FAULTS["forbidden"], FAULTS["always busy"], FAULTS["nothing"]):
        web.fault = answer
        problems = ramerge.plan(recipe).problems
        assert len(problems) == 3 and all(web.url in problem for problem in problems), said
    web.fault = lambda request: request.say(404)
    assert "there is nothing under this name" in ramerge.plan(recipe).problems[0]
    web.fault = lambda request: request.say(200, b"<html>log in</html>")
    assert ramerge.plan(recipe).problems


def test_a_shard_that_the_index_names_and_the_server_lacks(web: WebServer) -> None:
    recipe = served(web, shards=2)
    (web.folder / "code/model-00002-of-00002.safetensors").unlink()
    assert "the index names this file, but it is missing" in ramerge.plan(recipe).problems[0]
