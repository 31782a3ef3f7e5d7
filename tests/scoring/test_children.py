"""Processes that a run starts, and the Ctrl-C that is not for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ramerge.scoring.children import start, stop
from ramerge.searches.functions import FunctionScorer

# A module whose import takes long enough for Ctrl-C.
_INTERRUPTED = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
def score(model):
    return {"usual": float(signal.getsignal(signal.SIGINT) is signal.default_int_handler)}
"""


def test_ctrl_c_does_not_reach_a_score_that_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while it scores does it have the usual handler, for processes of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(_INTERRUPTED)
    scorer = FunctionScorer("mine.py:score", tmp_path / "log", 60)
    try:
        (scores,) = scorer.parts(tmp_path, "validation")
        assert [measure.value for measure in scores.values()] == [1.0]
    finally:
        scorer.close()
    assert (tmp_path / "log").read_text() == ""


def test_a_process_that_was_started_when_ctrl_c_came_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, real = list[subprocess.Popen[bytes]](), subprocess.Popen

    def interrupted(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        process = real(*arguments, **options)  # type: ignore[call-overload]
        began.append(process)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with (tmp_path / "log").open("wb") as log, pytest.raises(KeyboardInterrupt):
        start([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL, output=log)
    (process,) = began
    assert process.returncode == -signal.SIGTERM


def test_a_process_ignores_ctrl_c_and_leads_a_session(tmp_path: Path) -> None:
    program = "import os, signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, os.getsid(0) == os.getpid())"
    with (tmp_path / "log").open("wb") as log:
        process = start([sys.executable, "-c", program], stdin=subprocess.DEVNULL, output=log)
        process.wait(60)
        stop(process)
    assert (tmp_path / "log").read_text() == f"True True{os.linesep}"
