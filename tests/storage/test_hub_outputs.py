"""Models that are sent to the hub: a stand-in with its routes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.core.foundation.errors import OutputWarning
from tests.checkpoints import recipe, write_simple
from tests.commands import ramerge as command
from tests.e2e import kills
from tests.plans import planned
from tests.storage.hub import TOKEN, State, standing_in
from tests.storage.test_outputs import CASES, left, stage
from tests.storage.web import Request, WebServer

__all__ = ["stage"]
# of huggingface_hub, which sends files without Xet as httpx2 does not want it
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]  # a stand-in of the hub


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A hub without repositories, and a token for it."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with standing_in(tmp_path_factory.mktemp("hub"), TOKEN) as server:
        for name in ("ENDPOINT", "_HF_DEFAULT_ENDPOINT"):
            monkeypatch.setattr(constants, name, server.url)
        yield server


def state(hub: WebServer) -> State:
    return hub.handler.state  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return recipe(tmp_path, write_simple(tmp_path)) | {"shard_size": "2KB"}


@pytest.mark.parametrize("branch", ["", "@trial"])
@pytest.mark.parametrize("case", ["ram+", "ties", "one file"])
def test_the_output_is_that_of_a_folder(
    case: str, branch: str, hub: WebServer, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    source = source | CASES[case]
    ramerge.merge(source, tmp_path / "here", options=ramerge.Options(cache=False))
    plan = ramerge.plan(source, f"hub:me/merged{branch}", options=ramerge.Options(cache=False))
    plan.merge()
    made = hub.folder / f"me/merged{branch}"
    assert {path.name for path in made.iterdir()} == {path.name for path in (tmp_path / "here").iterdir()}
    for path in (tmp_path / "here").glob("*[s.]*"):
        assert (
            path.name in {"README.md", "ramerge.json", "ramerge.yaml"}
            or path.read_bytes() == (made / path.name).read_bytes()
        )
    assert state(hub).private == {"me/merged": True}
    assert len(state(hub).commits) == 1
    assert (
        str(getattr(plan.out, "result", "")) == f"hub:me/merged@{state(hub).heads['me/merged', branch[1:] or 'main']}"
    )
    assert 'from_pretrained("me/merged")' in (made / "README.md").read_text()
    assert left(stage) == []


def as_sweep(source: dict[str, Any], out: str | Path) -> None:
    ramerge.sweep(source, out, vary={"parameters.r": [0, 0.1]}, options=ramerge.Options(cache=False))


def as_delta(source: dict[str, Any], out: str | Path) -> None:
    ramerge.merge(source, out, kind="delta", options=ramerge.Options(cache=False))


@pytest.mark.parametrize("make", [as_sweep, as_delta])
def test_all_kinds_of_outputs_are_one_commit(
    make: Callable[..., None], hub: WebServer, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    make(source, tmp_path / "here")
    make(source, "hub:me/made")
    assert kills.weights(hub.folder / "me/made") == kills.weights(tmp_path / "here")
    assert len(state(hub).commits) == 1
    assert left(stage) == []


@pytest.mark.parametrize("make", [as_sweep, as_delta, ramerge.merge])
def test_uploads_show_no_local_path(
    make: Callable[..., Any], hub: WebServer, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    make(source, "hub:me/made")
    texts = [path for path in (hub.folder / "me/made").rglob("*") if path.suffix in (".json", ".yaml", ".md")]
    assert any(path.name == "ramerge.yaml" for path in texts)
    for path in texts:
        assert str(tmp_path) not in path.read_text(), path
    assert left(stage) == []


def test_nothing_is_visible_before_the_commit(hub: WebServer, source: dict[str, Any], stage: Path) -> None:
    def fails(request: Request) -> bool:
        return "/commit/" in request.path and request.say(503)

    hub.fault = fails
    with pytest.raises(
        ramerge.OutputError, match=r"hub:me/merged: the hub cannot take it: .*100 % of the work is kept"
    ):
        ramerge.merge(source, "hub:me/merged", options=ramerge.Options(cache=False))
    assert list((hub.folder / "me/merged").iterdir()) == []
    hub.fault = lambda request: False
    hub.asked.clear()
    with pytest.warns(OutputWarning, match="hub:me/merged: continuing: 100 %"):
        ramerge.merge(source, "hub:me/merged", options=ramerge.Options(cache=False))
    assert not any("/large/" in path for _, path, _ in hub.asked), "what was sent is not sent again"
    assert (hub.folder / "me/merged/model.safetensors.index.json").exists()
    assert left(stage) == []


@pytest.mark.parametrize(
    ("prepare", "options", "said"),
    [
        (
            lambda state: setattr(state, "role", "read"),
            {},
            "hub:me/merged: the token may only read; log in with a token",
        ),
        (lambda state: state.private.update({"me/merged": False}), {}, "is public; pass --public"),
        (lambda state: None, {}, "holds files .README.md.; choose another name or branch, or pass --overwrite"),
        (lambda state: state.private.update({"me/merged": False}), {"public": True}, "holds files"),
        (lambda state: None, {"public": True, "overwrite": True}, "is private already; make it public on the hub"),
    ],
)
def test_what_is_refused(
    prepare: Callable[[State], None], options: dict[str, Any], said: str, hub: WebServer, source: dict[str, Any]
) -> None:
    (hub.folder / "me/merged").mkdir(parents=True)
    (hub.folder / "me/merged/README.md").write_text("mine")
    state(hub).private["me/merged"] = True
    prepare(state(hub))
    (problem,) = planned(source, "hub:me/merged", **options).findings.problems
    assert re.search(said, problem) and TOKEN not in problem


def test_overwriting_and_public(hub: WebServer, source: dict[str, Any], tmp_path: Path) -> None:
    ramerge.merge(source, "hub:me/merged", options=ramerge.Options(upload=ramerge.Upload(public=True)))
    assert state(hub).private == {"me/merged": False}
    ramerge.merge(
        source | {"shard_size": "5GB"},
        "hub:me/merged",
        options=ramerge.Options(overwrite=True, upload=ramerge.Upload(public=True)),
    )
    files = {path.name for path in (hub.folder / "me/merged").iterdir()}
    assert "model.safetensors" in files and "model.safetensors.index.json" not in files
    assert not any("-of-" in name for name in files)


def test_a_token_that_may_not_write_there(hub: WebServer, source: dict[str, Any], stage: Path) -> None:
    hub.fault = lambda request: request.path == "/api/repos/create" and request.say(403)
    with pytest.raises(ramerge.OutputError, match=r"hub:me/merged: access is denied .403.; log in") as caught:
        ramerge.merge(source, "hub:me/merged", options=ramerge.Options(cache=False))
    assert TOKEN not in str(caught.value)
    assert left(stage) == []


def test_a_token_that_expires_in_the_middle(hub: WebServer, source: dict[str, Any]) -> None:
    asked: list[str] = []

    def expires(request: Request) -> bool:
        if "/preupload/" in request.path:
            asked.append(request.path)
        return len(asked) > 1 and request.say(401)

    hub.fault = expires
    with pytest.raises(ramerge.OutputError, match=r"hub:me/merged/model-\S+: access is denied .401.*is kept") as caught:
        ramerge.merge(source, "hub:me/merged", options=ramerge.Options(cache=False))
    assert TOKEN not in str(caught.value)
    hub.fault = lambda request: False
    with pytest.warns(OutputWarning, match="continuing"):
        ramerge.merge(source, "hub:me/merged", options=ramerge.Options(cache=False))
    assert len(state(hub).commits) == 1


def test_the_branch_has_moved(hub: WebServer, source: dict[str, Any]) -> None:
    hub.fault = lambda request: "/commit/" in request.path and request.say(412)
    with pytest.raises(ramerge.OutputError, match=r"hub:me/merged: the hub cannot take it: .*412"):
        ramerge.merge(source, "hub:me/merged", options=ramerge.Options(cache=False))


@pytest.mark.parametrize(
    "out", ["hub:merged", "hub:a/b/c", "hub:", "hub:me/m@", "hub:me/m?token=hush", "hub:me:hush@x/y", "hub:me/m@../x"]
)
def test_names_that_cannot_be(out: str, source: dict[str, Any]) -> None:
    with pytest.raises(ramerge.CheckpointError, match="must be hub:owner/name") as caught:
        ramerge.plan(source, out)
    assert "hush" not in str(caught.value)


def test_a_wrong_branch_is_shown(source: dict[str, Any]) -> None:
    with pytest.raises(ramerge.CheckpointError, match=r"hub:me/m@\.\./x: must be"):
        ramerge.plan(source, "hub:me/m@../x")


def test_the_command_says_the_commit(hub: WebServer, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [f"--agent={name}={folder}" for name, folder in source["agents"].items()]
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    ended = command("merge", "--base", source["base"], *flags, "hub:me/merged")
    assert ended.returncode == 0, ended.stderr
    assert f"hub:me/merged@{state(hub).heads['me/merged', 'main']}: ram+" in ended.stdout
    again = command("merge", "--base", source["base"], *flags, "hub:me/merged")
    assert again.returncode == 2 and "holds files" in again.stderr
