"""Soups by scores that `ramerge eval` measured: logs of a stand-in endpoint, read by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from tests.commands import ramerge as command
from tests.server import completion, serving
from tests.soups.test_soup import write_run

from ramerge.scoring.access import ModelAccess
from ramerge_eval.models import EvaluationTarget
from ramerge_eval.run import EvaluationRequest, evaluate
from test_run import MINE, content

# Inspect's own code and that of its servers warns of many things
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]
RIGHT = {10: 1, 20: 3, 30: 2}
"""How many of three questions the checkpoint of a step answers."""


def test_weights_and_choices_come_from_logs_of_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    for step, right in RIGHT.items():
        known = {f"q{number}" for number in range(right)}
        with serving(lambda body, known=known: completion("yes" if content(body) in known else "no")) as server:
            target = EvaluationTarget(f"global_step_{step}", "stand-in")
            assert evaluate("logs", [target], EvaluationRequest(["mine.py@mine"]), ModelAccess(endpoint=server.url))
    words = ["soup", "run", "out", "--base", "base", "--strategy", "scored", "--scores", "logs", "--quiet"]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out/ramerge.json").read_text())
    assert record["method"] == "scored"
    weights = record["parameters"]["scores"]
    assert {name: round(3 * value) for name, value in weights.items()} == {
        f"step-{step}": right for step, right in RIGHT.items()
    }
    chosen = command(*words[:2], "two", *words[3:], "--choose", "1")
    assert chosen.returncode == 0, chosen.stderr
    assert list(json.loads((tmp_path / "two/ramerge.json").read_text())["parameters"]["scores"]) == ["step-20"]
    missing = command("soup", "run", "three", "--base", "base", "--strategy", "scored", "--scores", "run")
    assert missing.returncode != 0 and not (tmp_path / "three").exists()
