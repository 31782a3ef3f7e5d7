"""A short cut of `make kills`: a few kills of threads."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.full  # Ray


def test_run_after_a_kill_gives_the_bytes() -> None:
    command = [sys.executable, "-m", "tests.e2e.kills", "--kills", "5", "--seed", "5", "--only", "threads"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 rounds that ended wrongly" in done.stdout
