"""Systems without the calls that Linux has, by simulation: what is written must be byte-identical."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ramerge.core.foundation import systems
from tests.checkpoints import write_checkpoint
from tests.messages import Messages
from tests.reference import Stored

READING = ["os.preadv", "os.pread", "os.pwrite", "os.posix_fadvise", "os.POSIX_FADV_WILLNEED"]
DISK = ["os.fdatasync", "os.posix_fallocate", "os.symlink"]
FLAGS = ["os.O_CLOEXEC", "os.O_NOFOLLOW", "os.O_NONBLOCK"]
PROCESSES = [
    "os.fork",
    "os.sched_getaffinity",
    "os.register_at_fork",
    "os.killpg",
    "os.geteuid",
    "os.sysconf",
    "signal.SIGHUP",
]
MODULES = ["fcntl", "resource"]
SYSTEMS = {
    "no names of Linux": [*READING, *DISK, *FLAGS, *PROCESSES, *MODULES],
    "pread only": ["os.preadv", *DISK],
    "no locks": ["fcntl"],
}
ROOT = Path(__file__).parents[2]


def started(taken: Sequence[str], *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.foundation.without", ",".join(taken), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def said(taken: Sequence[str], *arguments: object) -> str:
    process = started(taken, *arguments)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def files(folder: Path) -> dict[str, bytes]:
    """All weights; the record of a run holds times and paths."""
    found = {path.name: path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}
    assert found
    return found


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    home, numbers = tmp_path_factory.mktemp("models"), np.random.default_rng(3)
    base = numbers.standard_normal((300, 700))
    for name in ("base", "one", "two"):
        moved = 0.0 if name == "base" else 0.1 * numbers.standard_normal(base.shape)
        drawn = (base + moved).astype(np.float32).view(np.uint32) >> 16
        write_checkpoint(home / name, {f"w{k}": Stored("BF16", drawn.astype(np.uint16)) for k in range(4)}, shards=2)
    return ["--base", home / "base", "--agent", f"a={home / 'one'}", "--agent", f"b={home / 'two'}"]


def test_merges_are_byte_identical(inputs: list[object], tmp_path: Path) -> None:
    for out, taken in {"usual": [], **SYSTEMS}.items():
        said(taken, "merge", "--method", "ties", *inputs, tmp_path / out)
        assert files(tmp_path / out) == files(tmp_path / "usual"), out


@pytest.mark.full
def test_replacing_converting_and_analyzing(inputs: list[object], tmp_path: Path) -> None:
    taken, base = SYSTEMS["no names of Linux"], inputs[1]
    said(taken, "merge", *inputs, tmp_path / "merged")
    first = files(tmp_path / "merged")
    said(taken, "merge", *inputs, tmp_path / "merged", "--overwrite")
    assert files(tmp_path / "merged") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged"]
    said(taken, "convert", base, tmp_path / "converted", "--dtype", "float32")
    said([], "convert", base, tmp_path / "usual", "--dtype", "float32")
    assert files(tmp_path / "converted") == files(tmp_path / "usual")
    assert "by RAM" in said(taken, "analyze", *inputs)


_HELD = """
import sys
from tests.foundation.without import take
take(sys.argv.pop(1).split(","))
import ramerge.api
def plan(*_, **__):
    print("ready", flush=True)
    sys.stdin.readline()
ramerge.api.plan = plan
from ramerge.cli.main import main
main()
"""


def test_an_interrupt_ends_the_command() -> None:
    names = ",".join(SYSTEMS["no names of Linux"])
    command = [sys.executable, "-c", _HELD, names, "merge", "--base", "b", "--agent", "a=a", "out"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n", process.communicate("\n")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate("\n", timeout=60)
    assert (process.returncode, err) == (128 + signal.SIGINT, "error: stopped by SIGINT; nothing was kept\n")


def test_fallbacks_of_positioned_calls_from_many_threads(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | systems.PRIVATE)

    def fill(piece: int) -> None:
        for k in range(piece, 400, 8):
            assert systems._write_at(descriptor, bytes([k % 256]) * 100, 100 * k) == 100
            assert systems._read_at(descriptor, 100, 100 * k) == bytes([k % 256]) * 100

    threads = [threading.Thread(target=fill, args=[piece]) for piece in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    assert path.read_bytes() == b"".join(bytes([k % 256]) * 100 for k in range(400))


class Locks:
    """`msvcrt` of Windows, of which one other process holds the byte."""

    LK_LOCK, LK_NBLCK = 1, 2

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    def locking(self, descriptor: int, mode: int, nbytes: int) -> None:
        assert (os.lseek(descriptor, 0, os.SEEK_CUR), nbytes) == (1 << 30, 1)
        if self.refusals:
            self.refusals -= 1
            raise PermissionError(13, "Permission denied")


def test_locks_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.lseek(descriptor, 5, os.SEEK_SET)
    monkeypatch.setattr(systems, "_fcntl", None)
    monkeypatch.setattr(systems, "_msvcrt", Locks(2))
    with messages.raises(BlockingIOError):
        systems.lock_file(descriptor)
    systems.lock_file(descriptor, wait=True)
    assert systems._msvcrt.refusals == 0
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 5
    os.close(descriptor)
