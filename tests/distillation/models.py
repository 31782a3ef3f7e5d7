"""A merge of the demo's agents with prompts, for tests of `ramerge handoff`."""

from __future__ import annotations

from pathlib import Path

import pytest

import ramerge
from ramerge.demo.run import copy_models

AGENTS = {"code": "coder", "tool": "tool", "memory": "memory"}
PROMPTS = {name: f"{name}.jsonl" for name in AGENTS}
OPTIONS = ramerge.Options(threads=1)


@pytest.fixture
def merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `merged` in the working folder, which has the demo's models and prompts."""
    monkeypatch.chdir(tmp_path)
    copy_models(Path(), lambda _: None)
    ramerge.merge({"base": "base", "agents": AGENTS}, "merged", options=OPTIONS)
    return Path("merged")
