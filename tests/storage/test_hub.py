"""Hub ids while the hub can be reached: a stand-in with its routes, and a cache like huggingface_hub's."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.filesize import decimal

import ramerge
from ramerge.core.foundation.errors import DownloadNote
from ramerge.core.storage.hub import error_text
from ramerge.core.storage.resolve import resolve
from ramerge.soups.checkpoints import agents_of, checkpoints_of
from tests.checkpoints import simple, write_checkpoint, write_simple
from tests.commands import ramerge as command
from tests.storage.hub import COMMIT, NAME, TOKEN, standing_in
from tests.storage.web import WebServer

pytestmark = pytest.mark.full  # a stand-in of the hub


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A hub with one repository, and an empty cache."""
    from huggingface_hub import constants

    folder = tmp_path_factory.mktemp("hub")
    made = write_checkpoint(folder / NAME, simple(2, moved=0.4), shards=2)
    (made / "tokenizer.json").write_text('{"model": {}}')
    (made / "picture.png").write_bytes(b"not wanted")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
    with standing_in(folder) as server:
        for name in ("ENDPOINT", "_HF_DEFAULT_ENDPOINT"):
            monkeypatch.setattr(constants, name, server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield server


def recipe(folder: Path, name: str = NAME) -> dict[str, Any]:
    """A recipe of a base, an agent here, and one on the hub."""
    write_simple(folder, {"code": 0.1})
    return {"method": "ram+", "base": str(folder / "base"), "agents": {"code": str(folder / "code"), "tool": name}}


def expected(hub: WebServer, folder: Path) -> bytes:
    """The merge, of the hub's own folder."""
    ramerge.merge(recipe(folder, str(hub.folder / NAME)), folder / "here")
    return (folder / "here/model.safetensors").read_bytes()


def cached_files(hub: WebServer) -> list[str]:
    """Names of files in the cache."""
    from huggingface_hub import constants

    return [path.name for path in Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file()]


def test_another_machine_asks_the_hub_itself(
    hub: WebServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    place = resolve(NAME, tmp_path).folder / "config.json"
    assert place.read_bytes() == (hub.folder / NAME / "config.json").read_bytes()
    pickled = pickle.dumps(place)
    assert TOKEN.encode() not in pickled
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("another")))
    there = pickle.loads(pickled)  # noqa: S301
    assert there == place and there.version() == place.version()
    assert there.read_bytes() == place.read_bytes()


@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_a_merge_reads_by_range_and_downloads_nothing(revision: str, hub: WebServer, tmp_path: Path) -> None:
    record = ramerge.merge(recipe(tmp_path, NAME + revision), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(hub, tmp_path)
    assert [*record.agents.values()][1].model == NAME + revision
    assert f"tool: {NAME}@{revision.removeprefix('@') or COMMIT}" in (tmp_path / "out/ramerge.yaml").read_text()
    assert cached_files(hub) == []


def test_name_may_begin_like_hub_outputs(hub: WebServer, tmp_path: Path) -> None:
    ramerge.merge(recipe(tmp_path, f"hub:{NAME}@{COMMIT}"), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(hub, tmp_path)
    assert f"tool: {NAME}@{COMMIT}" in (tmp_path / "out/ramerge.yaml").read_text()
    (problem,) = ramerge.plan(recipe(tmp_path, "hub:me:hush@host/x")).problems
    assert "must be followed by owner/name" in problem


def test_a_plan_reads_headers_only(hub: WebServer, tmp_path: Path) -> None:
    write_checkpoint(hub.folder / NAME, simple(2, moved=0.4, shape=(400, 300)), shards=2)
    write_checkpoint(tmp_path / "base", simple(0, shape=(400, 300)))
    plan = ramerge.plan({"method": "ram", "base": str(tmp_path / "base"), "agents": {"tool": NAME}})
    assert plan.problems == ()
    asked = [ranges for method, path, ranges in hub.asked if path.startswith("/bytes/") and method == "GET"]
    assert sorted(asked) == ["bytes=0-0"] * 2 + ["bytes=0-65535"] * 2
    assert cached_files(hub) == []


def test_the_base_from_the_hub_gives_its_companions(hub: WebServer, tmp_path: Path) -> None:
    source = recipe(tmp_path)
    ramerge.merge({"method": "ram", "base": NAME, "agents": {"code": source["agents"]["code"]}}, tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").read_text() == '{"model": {}}'
    assert not (tmp_path / "out/picture.png").exists()
    assert f"- {NAME}" in (tmp_path / "out/README.md").read_text()


def test_cached_model_is_read_from_the_cache(hub: WebServer, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    fill_cache(hub, Path(hf_hub_download(NAME, "config.json")).parent)
    hub.asked.clear()
    ramerge.merge(recipe(tmp_path), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(hub, tmp_path)
    assert not any("/resolve/" in asked for _, asked, _ in hub.asked)


def fill_cache(hub: WebServer, snapshot: Path) -> None:
    """Put all files into a snapshot."""
    for path in (hub.folder / NAME).iterdir():
        if path.suffix != ".png" and not (snapshot / path.name).exists():
            (snapshot / path.name).write_bytes(path.read_bytes())


def test_a_hub_that_cannot_be_reached(hub: WebServer, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    fill_cache(hub, Path(hf_hub_download(NAME, "config.json")).parent)
    hub.fault = lambda request: request.hang_up()
    ramerge.merge(recipe(tmp_path), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(hub, tmp_path)
    problem = ramerge.plan(recipe(tmp_path, "org/other")).problems[0]
    assert "org/other: there is no folder" in problem and "the hub cannot provide it" in problem


@pytest.mark.parametrize("kind", ["ConnectError", "ConnectionError"])
def test_a_hub_that_does_not_answer_is_named(kind: str) -> None:
    error = type(kind, (OSError,), {})("[Errno 111] Connection refused")
    text = error_text(error)
    assert text.startswith("[Errno 111] Connection refused; check the network") and "(HF_ENDPOINT)" in text
    assert error_text(ValueError("no such name")) == "no such name"


def test_unreachable_hub_advice_is_given_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_simple(tmp_path)
    models = ["--base", tmp_path / "base", "--agent", "a=org/absent"]
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "RAMERGE_RETRY_SECONDS": "0", "HF_HOME": str(tmp_path / "hub")}
    for name, value in closed.items():
        monkeypatch.setenv(name, value)
    told = command("plan", *models).stderr
    assert told.count("check ") == told.count("network") == told.count("org/absent: ") == 1
    assert "the hub's address http://127.0.0.1:9 (HF_ENDPOINT)" in told


def test_without_obstore_it_is_downloaded(hub: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramerge.core.storage.resolve.find_spec", lambda _name: None)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    size = sum(path.stat().st_size for path in (hub.folder / NAME).iterdir() if path.suffix != ".png")
    said = re.escape(f"{NAME}: downloads {decimal(size)} into the hub's cache; without a download, by range: pip ")
    with pytest.warns(DownloadNote, match=said):
        planned = ramerge.plan(recipe(tmp_path))
    assert planned.problems == () and "model-00001-of-00002.safetensors" in str(planned.details.inputs.files)
    ramerge.merge(recipe(tmp_path), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(hub, tmp_path)


@pytest.mark.parametrize("name", ["org/absent", f"{NAME}@v9"])
def test_what_the_hub_does_not_have(name: str, hub: WebServer, tmp_path: Path) -> None:
    problems = ramerge.plan(recipe(tmp_path, name)).problems
    assert len(problems) == 1 and f"{name}: there is no folder" in problems[0]
    assert "the hub cannot provide it: 404" in problems[0]


def test_a_signature_that_ends_is_asked_for_again(hub: WebServer, tmp_path: Path) -> None:
    plan = ramerge.plan(recipe(tmp_path), tmp_path / "out")
    hub.handler.signature = "2"  # type: ignore[attr-defined]
    plan.merge()
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(hub, tmp_path)


def test_a_busy_hub_is_asked_again(hub: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMERGE_RETRY_SECONDS", "20")
    seen: dict[str, int] = {}

    def busy(request: Any) -> bool:
        seen[request.path] = seen.get(request.path, 0) + 1
        return seen[request.path] == 1 and request.say(429 if "api" in request.path else 503, Retry_After="0")

    hub.fault = busy
    ramerge.merge(recipe(tmp_path), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == expected(hub, tmp_path)


def test_access_that_ends_in_the_middle(hub: WebServer, tmp_path: Path) -> None:
    plan = ramerge.plan(recipe(tmp_path), tmp_path / "out")
    hub.fault = lambda request: request.say(403)
    with pytest.raises(ramerge.CheckpointError, match=rf"{NAME}@{COMMIT}/model\S+: .*403.*hf auth login"):
        plan.merge()
    assert not any(path.name.startswith(("out", ".out")) for path in tmp_path.iterdir())


def test_file_replaced_on_the_byte_server(hub: WebServer, tmp_path: Path) -> None:
    plan = ramerge.plan(recipe(tmp_path), tmp_path / "out")
    write_checkpoint(hub.folder / NAME, simple(3, moved=0.4), shards=2)
    with pytest.raises(ramerge.CheckpointError, match=rf"{NAME}@{COMMIT}/model\S+: has changed since"):
        plan.merge()


def test_a_token_goes_to_the_hub_only(
    hub: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.handler.token = TOKEN  # type: ignore[attr-defined]
    assert "Access is restricted" in ramerge.plan(recipe(tmp_path)).problems[0]
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    record = ramerge.merge(recipe(tmp_path), tmp_path / "out")
    sent = {path.split("/")[1] for path, token in hub.handler.seen if token}  # type: ignore[attr-defined]
    assert "bytes" not in sent and "api" in sent
    assert TOKEN not in repr(record) + "".join(
        path.read_text(errors="replace") for path in (tmp_path / "out").iterdir()
    )


def test_a_run_with_a_branch_for_each_step(hub: WebServer, tmp_path: Path) -> None:
    steps = {f"step-{step}": write_checkpoint(hub.folder / f"{NAME}@step-{step}", simple(step)) for step in (10, 20)}
    write_checkpoint(hub.folder / f"{NAME}@other", simple(3))
    hub.handler.state.heads.update(  # type: ignore[attr-defined]
        {(NAME, name): f"{place:040x}" for place, name in enumerate(("step-10", "step-20", "other"), 1)}
    )
    run = checkpoints_of([NAME])
    assert [(one.step, one.model) for one in run] == [(10, f"{NAME}@step-10"), (20, f"{NAME}@step-20")]
    ramerge.merge({"method": "uniform", "agents": agents_of(run, run, None)}, tmp_path / "out")
    agents = {name: str(folder) for name, folder in steps.items()}
    ramerge.merge({"method": "uniform", "agents": agents}, tmp_path / "here")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "here/model.safetensors").read_bytes()
    assert not any(name.endswith(".safetensors") for name in cached_files(hub))
