"""Models that are sent to the hub: a stand-in with its routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ramerge
from tests.checkpoints import recipe, write_simple
from tests.commands import ramerge as command
from tests.storage.hub import TOKEN, State, standing_in
from tests.storage.test_outputs import CASES, left, stage
from tests.storage.web import Request, WebServer

__all__ = ["stage"]


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
    ramerge.merge(source, tmp_path / "here", cache=False)
    plan = ramerge.plan(source, f"hub:me/merged{branch}", cache=False)
    ramerge.merge(plan)
    made = hub.folder / f"me/merged{branch}"
    assert {path.name for path in made.iterdir()} == {path.name for path in (tmp_path / "here").iterdir()}
    for path in (tmp_path / "here").glob("*[s.]*"):
        assert path.name in ("ramerge.json", "README.md") or path.read_bytes() == (made / path.name).read_bytes()
    assert state(hub).private == {"me/merged": True}
    assert len(state(hub).commits) == 1
    assert (
        str(getattr(plan.out, "result", "")) == f"hub:me/merged@{state(hub).heads['me/merged', branch[1:] or 'main']}"
    )
    assert 'from_pretrained("me/merged")' in (made / "README.md").read_text()
    assert left(stage) == []
