"""TRL itself: it parses what is written, and distills two steps on a CPU, each prompt with its teacher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ramerge
from tests.checkpoints import read_checkpoint
from tests.distillation.models import AGENTS, PROMPTS
from tests.distillation.models import merged as merged  # a fixture

pytestmark = pytest.mark.needs("trl", "torch", "transformers", "datasets")
HERE = Path(__file__).parent
ON_A_CPU = [
    "--use_cpu",
    "true",
    "--bf16",
    "false",
    "--max_completion_length",
    "12",
    "--gradient_checkpointing",
    "false",
]


def run(*words: object) -> str:
    """A program of the trainer's side, in a process of its own; what it prints."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def last_line(text: str) -> Any:
    return json.loads(text.strip().splitlines()[-1])


def test_two_steps_of_several_teachers(merged: Path) -> None:
    ramerge.handoff(merged, "out", prompts=PROMPTS)
    words = ["--max_steps", 2, "--warmup_steps", 0, "--learning_rate", "1e-3", "--gradient_accumulation_steps", 1]
    output = run("out/train.py", "--config", "out/config.yaml", *ON_A_CPU, *words)
    assert output.count("'loss'") == 2
    before, after = read_checkpoint(merged), read_checkpoint(Path("out/trained"))
    assert before.keys() <= after.keys()
    assert any(before[name].bits.tobytes() != after[name].bits.tobytes() for name in before)


def test_each_completion_is_compared_with_the_teacher_of_its_prompt(merged: Path) -> None:
    ramerge.handoff(merged, "out", prompts=PROMPTS, settings=ramerge.HandoffSettings(max_new=12))
    losses = last_line(run(HERE / "trl_loss.py", "out"))
    assert losses["batch"] == pytest.approx(losses["own"], rel=1e-3)
    assert losses["mean"] == pytest.approx(losses["batch"], rel=1e-3)
    assert losses["other"] > 1.5 * losses["own"]


def test_two_asynchronous_steps(merged: Path) -> None:
    ramerge.handoff(merged, "out", trainer="trl-async", prompts=PROMPTS)
    done = last_line(run(HERE / "trl_async.py", "out"))
    assert done["steps"] == 2 and len(done["losses"]) == 2 and all(loss > 0 for loss in done["losses"])
    assert done["scored"] == dict.fromkeys(AGENTS, 16)
