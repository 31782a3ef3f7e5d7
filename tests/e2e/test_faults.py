"""A short cut of `make faults`: a few faults over merges, sweeps and analyses, with and without exchange."""

import subprocess
import sys

import pytest

from tests.e2e.faults.process import missing

pytestmark = pytest.mark.full  # a compiler, many processes


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_fault_at_any_call_loses_nothing() -> None:
    command = [sys.executable, "-m", "tests.e2e.faults", "--fast", "--faults", "28", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 that ended wrongly" in done.stdout
