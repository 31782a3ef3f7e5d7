"""What a person sees of an evaluation that runs, and the commands that list and show."""

from __future__ import annotations

import io
import json
import sys

import pytest
from click.testing import CliRunner

from ramerge.cli.main import cli
from ramerge.evaluation.commands import task_bar
from ramerge.evaluation.progress import EvaluationProgress
from ramerge.foundation.screen import shown

EVENTS = [
    EvaluationProgress("m", "toy", "easy", done, 4, failed, score)
    for done, failed, score in [(0, 0, None), (4, 1, 0.75)]
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_progress_has_count_failures_and_score(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    with shown(task_bar, quiet=False) as listen:
        for event in EVENTS:
            listen(event)
    assert "m  toy/easy" in screen.getvalue()
    assert "1 failed, score 75.0%" in screen.getvalue()


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(task_bar, quiet=True) as listen:
        listen(EVENTS[1])
    assert capsys.readouterr().err == ""


def test_suites_are_listed_with_tasks_data_and_settings() -> None:
    done = CliRunner().invoke(cli, ["suites", "tool"], catch_exceptions=False)
    assert "    parallel: accuracy  runs by default" in done.output
    assert '--set tool.mode="prompting" (prompting | native)' in done.output
    listed = json.loads(CliRunner().invoke(cli, ["suites", "--json"], catch_exceptions=False).output)
    assert list(listed) == ["tool", "memory", "coding", "instruct", "math", "search", "rewards"]
    assert "squad" in listed["memory"]["data"]
