"""The sandbox `bubblewrap` as Inspect uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from inspect_ai.util import OutputLimitExceededError
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from tests.tiers import unavailable

from ramerge.core.foundation.errors import EvaluationError
from ramerge_eval.sandbox.provider import BubblewrapSandbox
from ramerge_eval.sandbox.watch import Limits

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

MIB = 1 << 20
PYTHON = ["python3", "-c"]


@pytest.fixture
def box() -> BubblewrapSandbox:
    config = Limits(seconds=60, memory_bytes=256 * MIB)
    try:
        asyncio.run(BubblewrapSandbox.task_init("task", config))
    except EvaluationError as error:
        unavailable(str(error))
    made = asyncio.run(BubblewrapSandbox.sample_init("task", config, {}))["default"]
    assert isinstance(made, BubblewrapSandbox)
    return made


def done(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_inspect_finds_it_by_its_name() -> None:
    assert registry_find_sandboxenv("bubblewrap") is BubblewrapSandbox


def test_files_last_from_command_to_command(box: BubblewrapSandbox) -> None:
    done(box.write_file("in/data.txt", "two\n"))
    copy = "import os; os.makedirs('out'); open('out/copy.bin', 'wb').write(open('in/data.txt', 'rb').read() * 2)"
    assert done(box.exec([*PYTHON, copy])).success
    assert done(box.read_file("out/copy.bin", text=False)) == b"two\ntwo\n"
    assert done(box.exec([*PYTHON, "print(open('copy.bin').read())"], cwd="out")).stdout == "two\ntwo\n\n"
    done(box.exec([*PYTHON, "import shutil; shutil.rmtree('out')"]))
    with pytest.raises(FileNotFoundError):
        done(box.read_file("out/copy.bin"))
    with pytest.raises(IsADirectoryError):
        done(box.read_file("in"))


def test_what_a_command_gets_and_says(box: BubblewrapSandbox) -> None:
    program = "import os, sys; print(sys.stdin.read(), os.environ['A'], os.getcwd(), len(sys.argv)); sys.exit(3)"
    result = done(
        box.exec([*PYTHON, program, "x"], input=b"\xff".replace(b"\xff", b"in"), env={"A": "b"}, cwd="/tmp/new")
    )
    assert (result.success, result.returncode, result.stdout) == (False, 3, "in b /tmp/new 2\n")
    assert done(box.exec([*PYTHON, "import numpy; print(numpy.arange(3).sum())"])).stdout == "3\n"
    missing = done(box.exec(["git", "status"]))
    assert (missing.returncode, "Python only" in missing.stderr) == (127, True)


@pytest.mark.parametrize(
    ("program", "error"),
    [("while True: pass", TimeoutError), ("while True: print('x' * 100000)", OutputLimitExceededError)],
)
def test_limits_are_exceptions_of_inspects(box: BubblewrapSandbox, program: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        done(box.exec([*PYTHON, program], timeout=2))


def test_memory(box: BubblewrapSandbox) -> None:
    result = done(box.exec([*PYTHON, "kept = b''\nwhile True: kept += bytes(1 << 24)"]))
    assert not result.success and "emory" in result.stderr


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "/tmp/../etc/x", "a/../../x"])
def test_only_its_folder(box: BubblewrapSandbox, path: str) -> None:
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: box.write_file(path, "x"),
        lambda: box.read_file(path),
        lambda: box.exec([*PYTHON, "pass"], cwd=path),
    ]
    for call in calls:
        with pytest.raises(PermissionError):
            done(call())


def test_links_and_sparse_files_do_not_come_out(box: BubblewrapSandbox) -> None:
    hostile = """
import os
os.symlink("/etc/passwd", "link"); os.symlink("/", "root"); os.mkfifo("pipe")
for number in range(3):
    with open(f"sparse-{number}", "wb") as file:
        file.truncate(60 << 20)
os.makedirs("deep/" * 100)
open("kept", "w").write("x")
os.mkdir("closed", 0); os.chmod("kept", 0)
"""
    assert done(box.exec([*PYTHON, hostile])).success
    assert set(box._files) <= {"kept", "sparse-0"}
    assert sum(map(len, box._files.values())) <= 64 * MIB
    assert done(box.exec([*PYTHON, "print('fine')"])).stdout == "fine\n"


def test_a_disk_that_is_full(box: BubblewrapSandbox) -> None:
    with pytest.raises(PermissionError, match="bytes of files"):
        done(box.write_file("large", bytes(65 * MIB)))


def test_users_are_refused(box: BubblewrapSandbox) -> None:
    with pytest.raises(PermissionError):
        done(box.exec(["python3"], user="root"))
