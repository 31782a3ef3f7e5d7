"""The demo's models and a file of prompts for each agent, for searches by prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ramerge
from ramerge.demo.run import copy_models
from ramerge.demo.tasks import TASKS, prompts

NAMES = {"code": "add", "tool": "reverse", "memory": "sort"}
AGENTS = {"code": "coder", "tool": "tool", "memory": "memory"}
SETTINGS = ramerge.CalibrationSettings(count=6, max_new=12, device="cpu")


@pytest.fixture
def prompt_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The working folder with the demo's models, and a file of prompts for each agent."""
    monkeypatch.chdir(tmp_path)
    copy_models(Path(), lambda _: None)
    tasks = {task.name: task for task in TASKS}
    for agent, task in NAMES.items():
        records = [{"prompt": example.prompt} for example in prompts(tasks[task], "train", 6, 1)]
        Path(f"{agent}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return {agent: f"{agent}.jsonl" for agent in AGENTS}
