"""Hostile programs in a sandbox: what they may not do, what they leave behind, and what is said of them."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.tiers import unavailable

import ramerge
import ramerge_eval
from ramerge.core.foundation.errors import EvaluationError
from ramerge_eval.sandbox import bubblewrap, execution
from ramerge_eval.sandbox.bubblewrap import Bubblewrap
from ramerge_eval.sandbox.execution import Execution, Outcome, converse
from ramerge_eval.sandbox.seccomp import seccomp_filter
from ramerge_eval.sandbox.watch import Inside, Limits

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

MIB = 1 << 20
AMPLE = Limits(seconds=100)  # for programs that end by themselves, on however busy a machine
_IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
# the kernel does not limit root's processes in a user namespace: a fork bomb there takes the machine
_WAYS = ["as root"] if _IS_ROOT else ["user namespace"]


@pytest.fixture(scope="module", params=_WAYS)
def sandbox(request: pytest.FixtureRequest) -> Bubblewrap:
    """A sandbox of this kind, or a skipped test."""
    try:
        ways = [one for one in bubblewrap.ways() if one.as_root == (request.param == "as root")]
    except EvaluationError as error:
        unavailable(str(error))
    problem = execution.problem_of(ways[0])
    if problem:
        unavailable(f"{request.param}: {problem}")
    return ways[0]


def run(sandbox: Bubblewrap, program: str, stdin: str = "", limits: Limits = AMPLE) -> Outcome:
    return Execution(sandbox, textwrap.dedent(program), stdin, limits)()


def processes_with(mark: str) -> list[int]:
    """Processes of this machine whose command line or environment has the mark."""

    def has_mark(folder: Path) -> bool:
        try:
            return any(mark.encode() in (folder / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            return False

    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if has_mark(folder)]


def soon(condition: Callable[[], bool], seconds: float = 100) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


# what honest programs get


def test_a_program_reads_and_prints(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "a, b = map(int, input().split())\nprint(a + b)", "1 2\n")
    assert (outcome.status, outcome.code, outcome.stdout, outcome.stderr) == ("ok", 0, "3\n", "")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("exit(3)", 3),
        ("import sys; sys.exit(4)", 4),
        ("quit()", 0),
        ("raise SystemExit('no')", 1),
        ("import os; os._exit(7)", 7),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 11)", 128 + signal.SIGSEGV),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
        ("import os; os.abort()", 128 + signal.SIGABRT),
        ("x = '", 1),
        ("print('a')\n\0", 1),
        ("print('\ud800')", 1),
    ],
)
def test_exit_codes(sandbox: Bubblewrap, program: str, code: int) -> None:
    outcome = run(sandbox, program)
    assert (outcome.status, outcome.code) == ("error" if code else "ok", code), outcome
    assert outcome.stdout == ""


def test_what_programs_of_contests_do(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import sys, threading
        sys.setrecursionlimit(10**6)
        threading.stack_size(1 << 27)

        class Node:
            def depth(self, n):
                return 0 if n == 0 else 1 + self.depth(n - 1)

        def main():
            data = open(0).read().split()
            print(len(data), Node().depth(50_000), __name__)
            with open("notes.txt", "w") as file:
                file.write("x")

        thread = threading.Thread(target=main)
        thread.start()
        thread.join()
        """,
        "word " * 10,
    )
    assert (outcome.status, outcome.stdout) == ("ok", "10 50000 __main__\n"), outcome


def test_devices_processes_and_numpy(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import asyncio, multiprocessing, os, random, subprocess, sys
        print(open("/dev/stdin").read())
        open("/dev/null", "w").write("x")
        assert len(open("/dev/urandom", "rb").read(4)) == 4

        def square(n):
            return n * n

        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(square, [1, 2, 3]))
        print(subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True).stdout)
        asyncio.run(asyncio.sleep(0))
        import numpy
        print(int(numpy.arange(4).sum()), flush=True)
        with open("/dev/stdout", "w") as out:
            out.write("end")
        """,
        "in",
        Limits(seconds=100),
    )
    assert (outcome.status, outcome.stdout.split()) == ("ok", ["in", "[1,", "4,", "9]", "child", "6", "end"]), outcome


def test_the_same_program_prints_the_same(sandbox: Bubblewrap) -> None:
    printed = {run(sandbox, "print(list({'a', 'b', 'c', 'd', 'e'}))").stdout for _ in range(4)}
    assert len(printed) == 1


def test_output_that_is_not_utf8(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "import sys; sys.stdout.buffer.write(b'a\\xff\\xfeb')")
    assert (outcome.status, outcome.stdout) == ("ok", "a��b")


def test_text_that_is_not_ascii(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "# -*- coding: latin-1 -*-\nprint('ä€' + input())", "ü\n")
    assert (outcome.status, outcome.stdout) == ("ok", "ä€ü\n")


def test_large_input_that_nobody_reads(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "print('done')", "x" * (32 * MIB))
    assert (outcome.status, outcome.stdout) == ("ok", "done\n")


def test_large_input_and_large_output(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "import sys\nfor line in sys.stdin: print(line, end='')", "0123456789\n" * 90_000)
    assert (outcome.status, outcome.stdout) == ("ok", "0123456789\n" * 90_000)


def test_an_enormous_program(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "#" + "x" * (16 * MIB) + "\nprint('done')", limits=AMPLE)
    assert (outcome.status, outcome.stdout) == ("ok", "done\n")


def test_a_program_cannot_close_what_it_is_heard_by(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "import os\nos.closerange(0, 64)\nwhile True: pass", limits=Limits(seconds=0.5))
    assert (outcome.status, outcome.code) == ("time", None)


def test_output_is_closed_before_the_end(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "import os, time\nos.closerange(0, 64)\ntime.sleep(0.1)\nos._exit(5)")
    assert (outcome.status, outcome.code) == ("error", 5)


# limits


def test_time_is_up_for_those_who_ignore_signals(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import signal, time
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        print("here", flush=True)
        while True:
            time.sleep(100)
        """,
        limits=Limits(seconds=2),
    )
    assert (outcome.status, outcome.code, outcome.stdout) == ("time", None, "here\n")


def test_a_stopped_program_is_killed(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", limits=Limits(seconds=0.5))
    assert outcome.status == "time"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_printing_without_end(sandbox: Bubblewrap, stream: str) -> None:
    outcome = run(
        sandbox,
        f"import sys\nwhile True: sys.{stream}.write('x' * 9999)",
        limits=Limits(seconds=100, output_bytes=100_000),
    )
    assert (outcome.status, outcome.code) == ("output", None)
    assert len(getattr(outcome, stream)) == 100_000


def test_output_at_the_limit_is_fine_and_a_byte_more_is_not(sandbox: Bubblewrap) -> None:
    limits = Limits(seconds=100, output_bytes=1000)
    assert run(sandbox, "print('x' * 1000, end='')", limits=limits).status == "ok"
    assert run(sandbox, "print('x' * 1001, end='')", limits=limits).status == "output"


@pytest.mark.parametrize(
    "program",
    [
        "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
        "kept = 'x'\nwhile True: kept += kept",
        "kept = [0] * 10**12",
        "import mmap\nkept = []\n"
        "while True: kept.append(mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE)); kept[-1].write(bytes(1 << 20))",
    ],
    ids=["bytes", "text", "at once", "mapped"],
)
def test_filling_memory(sandbox: Bubblewrap, program: str) -> None:
    outcome = run(sandbox, program, limits=Limits(seconds=100, memory_bytes=128 * MIB))
    assert outcome.status == "memory", outcome


def test_filling_memory_with_children(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import os, time
        for child in range(8):
            if os.fork() == 0:
                kept = bytearray(os.urandom(1 << 20)) * 40  # 320 MiB together
                time.sleep(60)
        time.sleep(60)
        """,
        limits=Limits(seconds=100, memory_bytes=128 * MIB),
    )
    assert (outcome.status, outcome.code) == ("memory", None)


def test_memory_that_children_share_counts_once(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import os, time
        kept = bytearray(b"x") * (64 << 20)
        for child in range(6):
            if os.fork() == 0:
                time.sleep(0.5)
                os._exit(0)
        for child in range(6):
            os.wait()
        print("done")
        """,
        limits=Limits(seconds=100, memory_bytes=160 * MIB),
    )
    assert (outcome.status, outcome.stdout) == ("ok", "done\n"), outcome


def test_memory_in_swap_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fstatvfs", lambda _disk: SimpleNamespace(f_files=3, f_ffree=1))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nVmPeak:\t 9999 kB\nVmRSS:\t    40 kB\nVmSwap:\t    60 kB\n")
    (tmp_path / "7" / "smaps_rollup").write_text("00-ff ---p\nRss: 40 kB\nPss: 30 kB\nSwap: 60 kB\nSwapPss: 50 kB\n")
    (tmp_path / "8").mkdir()  # as of a process that has ended
    proc = os.open(tmp_path, os.O_RDONLY)
    try:
        inside = Inside(proc, -1, proc)
        assert inside.memory_bytes(102 << 10) == 102 << 10
        assert inside.memory_bytes(101 << 10) == 82 << 10
    finally:
        os.close(proc)


def test_programs_are_killed_before_the_run(sandbox: Bubblewrap) -> None:
    mark = f"first-of-{os.getpid()}"
    program = f"""
        import os, sys
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(4)", "{mark}"])
        os.wait()
        """
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run, sandbox, program, limits=AMPLE)
        assert soon(lambda: bool(processes_with(f"\0{mark}\0")))
        [child] = processes_with(f"\0{mark}\0")
        assert Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n"
        assert running.result().status == "ok"


def test_programs_at_once_limit_processes_by_themselves(sandbox: Bubblewrap) -> None:
    program = """
        import os, time
        made = 1
        try:
            while made < 12:
                if os.fork() == 0:
                    time.sleep(1)
                    os._exit(0)
                made += 1
        except OSError:
            pass
        print(made)
        for _ in range(made - 1):
            os.wait()
        """
    text, limits = textwrap.dedent(program), Limits(seconds=100, processes=8)

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(lambda _: Execution(sandbox, text, "", limits)(), range(4)))
    assert [outcome.stdout for outcome in outcomes] == ["8\n"] * 4


def test_memory_that_belongs_to_no_process(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import ctypes, os
        library = ctypes.CDLL(None, use_errno=True)
        refused = []
        try:
            os.memfd_create("x")
        except OSError as error:
            refused.append(error.errno)
        if library.shmget(0, 1 << 20, 0o1600) == -1:
            refused.append(ctypes.get_errno())
        for flags in (0x10000000, 0x20000):  # CLONE_NEWUSER, CLONE_NEWNS
            if library.unshare(flags) == -1:
                refused.append(ctypes.get_errno())
        # a page of two megabytes stays whole while a pipe has four kilobytes of it
        if library.vmsplice(os.pipe()[1], (ctypes.c_char * 16)(), 1, 0) == -1:
            refused.append(ctypes.get_errno())
        print(refused)
        """,
    )
    assert (outcome.status, outcome.stdout) == ("ok", "[1, 1, 1, 1, 1]\n"), outcome


@pytest.mark.parametrize("opened", ["-1", "os.open('/dev/zero', os.O_RDWR)"], ids=["anonymous", "zero"])
def test_shared_memory_that_is_given_back_but_stays(sandbox: Bubblewrap, opened: str) -> None:
    outcome = run(
        sandbox,
        f"""
        import mmap, os
        kept = []
        for _ in range(256):
            kept.append(mmap.mmap({opened}, 1 << 20))
            kept[-1].write(b"x" * (1 << 20))
            kept[-1].madvise(mmap.MADV_DONTNEED)
        print(sum(each[0] for each in kept))
        """,
        limits=Limits(seconds=100, memory_bytes=128 * MIB),
    )
    assert outcome.status == "error" and not outcome.stdout, outcome
    assert "PermissionError" in outcome.stderr or "FileNotFoundError" in outcome.stderr


def test_memory_that_honest_programs_share(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import multiprocessing
        context = multiprocessing.get_context("fork")
        values = context.Array("i", 4)

        def fill():
            with values.get_lock():
                values[:] = [1, 2, 3, 4]

        child = context.Process(target=fill)
        child.start()
        child.join()
        print(sum(values))
        """,
    )
    assert (outcome.status, outcome.stdout) == ("ok", "10\n"), outcome


def test_what_sockets_hold_counts_as_memory(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import os, socket, time
        for _ in range(4):
            os.fork()
        kept = []
        try:
            while True:
                kept += socket.socketpair()
                kept[-1].setblocking(False)
                kept[-1].send(bytes(1 << 16))
        except OSError:
            time.sleep(60)
        """,
        limits=Limits(seconds=100, memory_bytes=192 * MIB),
    )
    assert (outcome.status, outcome.code) == ("memory", None)


def test_sockets_cannot_hold_more_than_they_are_counted_for(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import asyncio, socket
        one, other = socket.socketpair()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):
            try:
                one.setsockopt(socket.SOL_SOCKET, option, 1 << 30)
                print("set")
            except PermissionError:
                pass
        one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        asyncio.run(asyncio.sleep(0))
        """,
    )
    assert (outcome.status, outcome.stdout) == ("ok", ""), outcome


def test_sockets_in_messages_count(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import socket, time
        one, other = socket.socketpair()
        for _ in range(28):  # no more descriptors may be on their way than can be open
            pair = socket.socketpair()
            socket.send_fds(one, [b"x"], [each.fileno() for each in pair])
            for each in pair:
                each.close()
        time.sleep(60)
        """,
        limits=Limits(seconds=100, memory_bytes=14 * MIB),
    )
    assert outcome.status == "memory", outcome


def test_empty_files_without_end_count_as_memory(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        "import os\nfor number in range(10**9): os.mkdir(f'd{number}')",
        limits=Limits(seconds=60, memory_bytes=32 * MIB),
    )
    assert outcome.status == "memory", outcome


def test_filling_the_disk(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import errno, os
        written = 0
        for number in range(100):
            try:
                with open(f"/tmp/{number}", "wb", buffering=0) as file:
                    while True:
                        written += file.write(bytes(1 << 16))
            except OSError as error:
                assert error.errno in (errno.ENOSPC, errno.EFBIG), error
        print(written)
        """,
        limits=Limits(seconds=100, disk_bytes=8 * MIB),
    )
    assert outcome.status == "ok", outcome
    assert int(outcome.stdout) <= 8 * MIB


@pytest.mark.parametrize("place", ["/", "/usr/lib", "/dev", "/proc", "/packages", str(Path(sys.base_prefix) / "lib")])
def test_nothing_else_can_be_written(sandbox: Bubblewrap, place: str) -> None:
    outcome = run(sandbox, f"import os\nos.mkdir(os.path.join({place!r}, 'made'))")
    assert outcome.status == "error"
    assert "Error" in outcome.stderr
    assert not (Path(place) / "made").exists()


def test_standard_input_cannot_be_written(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "import os\nos.write(os.open('/proc/self/fd/0', os.O_RDWR), bytes(100))", "in")
    assert "PermissionError" in outcome.stderr


def test_a_fork_bomb(sandbox: Bubblewrap) -> None:
    """One of at most 256 processes that end by themselves, for the machine's sake where the sandbox fails."""
    outcome = run(
        sandbox,
        """
        import os, time
        for _ in range(8):
            try:
                os.fork()
            except OSError:
                os.write(1, b"refused\\n")
        time.sleep(20)
        """,
        limits=Limits(seconds=3),
    )
    assert (outcome.status, outcome.code) == ("time", None), outcome
    assert "refused" in outcome.stdout


def test_the_number_of_processes(sandbox: Bubblewrap) -> None:
    program = """
        import os, time
        made = 1
        try:
            while made < 40:
                if os.fork() == 0:
                    time.sleep(20)
                    os._exit(0)
                made += 1
        except OSError:
            pass
        print(made)
        """
    for processes in (1, 5, 16):
        outcome = run(sandbox, program, limits=Limits(processes=processes, seconds=100))
        assert (outcome.status, outcome.stdout) == ("ok", f"{processes}\n"), outcome


@pytest.mark.parametrize(
    "program",
    [
        "def f(n): return f(n + 1)\nf(0)",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)",
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        "x = " + "(" * 100_000,
        "x = " + "-" * 500_000 + "1",
    ],
)
def test_deep_recursion(sandbox: Bubblewrap, program: str) -> None:
    outcome = run(sandbox, program, limits=Limits(seconds=10, memory_bytes=256 * MIB))
    assert outcome.status in ("error", "memory", "time"), outcome


# what is out of reach


def test_no_server_can_be_reached(sandbox: Bubblewrap) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        outcome = run(
            sandbox,
            f"""
            import _socket, socket
            for where in (("127.0.0.1", {server.getsockname()[1]}), ("192.0.2.1", 80)):
                try:
                    socket.create_connection(where, timeout=1)
                    print("connected")
                except OSError as error:
                    print(type(error).__name__)
            for family in (socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40):
                try:
                    socket.socket(family, socket.SOCK_DGRAM)
                    print("opened")
                except OSError as error:
                    print(type(error).__name__)
            """,
        )
        assert outcome.stdout.split() == ["PermissionError"] * 6, outcome
        with pytest.raises(TimeoutError):
            server.accept()


def test_abstract_sockets_of_the_machine_cannot_be_reached(sandbox: Bubblewrap) -> None:
    name = f"\0ramerge-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        outcome = run(sandbox, f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})")
    assert "ConnectionRefusedError" in outcome.stderr


def test_no_file_of_ours_can_be_read(sandbox: Bubblewrap, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    site = Path(pytest.__file__).parent
    places = [
        *(secret, Path(__file__), Path(ramerge.__file__), site, Path.cwd() / "pyproject.toml"),
        *(Path("/etc/passwd"), Path("/etc/hostname"), Path("/var"), Path("/run"), Path("/sys"), Path("/boot")),
        *(Path("/dev/mem"), Path("/dev/tty"), Path("/dev/pts"), Path("/dev/kvm")),
    ]
    outcome = run(
        sandbox, f"import os\nprint([place for place in {[str(p) for p in places]} if os.path.exists(place)])"
    )
    assert outcome.stdout == "[]\n", outcome


def test_the_home_directory_is_empty(sandbox: Bubblewrap) -> None:
    home = Path.home()
    inside = {Path(sys.base_prefix).resolve(), *Path(sys.base_prefix).resolve().parents}
    others = [str(path) for path in home.iterdir() if path not in inside] if home != Path("/") else []
    outcome = run(sandbox, f"import os\nprint([place for place in {others!r} if os.path.lexists(place)])")
    assert outcome.stdout == "[]\n", outcome


def test_no_installed_package_but_numpy(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import os
        for top in ("/usr", "/packages", os.path.dirname(os.path.dirname(os.__file__))):
            for folder, _, _ in os.walk(top):
                if os.path.basename(folder) in ("site-packages", "dist-packages"):
                    print(folder, os.listdir(folder))
        print(sorted(os.listdir("/packages")))
        """,
        limits=Limits(seconds=100),
    )
    *folders, packages = outcome.stdout.splitlines()
    assert all(line.endswith("[]") for line in folders), outcome
    assert packages in ("['numpy']", "['numpy', 'numpy.libs']")


def test_the_environment_is_not_ours(sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMERGE_TEST_SECRET", "hidden-value")
    outcome = run(
        sandbox,
        """
        import os
        print(dict(os.environ))
        for number in [name for name in os.listdir("/proc") if name.isdigit()]:
            for file in ("environ", "cmdline"):
                try:
                    print(open(f"/proc/{number}/{file}", "rb").read())
                except OSError as error:
                    print(error)
        """,
    )
    assert outcome.status == "ok"
    assert "hidden-value" not in outcome.stdout
    assert "RAMERGE" not in outcome.stdout


def landlock_version() -> int:
    return int(ctypes.CDLL(None).syscall(444, None, 0, 1))


@pytest.mark.skipif(
    sys.platform != "linux" or landlock_version() < 2, reason="the kernel has no Landlock that hides it"
)
def test_proc_does_not_name_folders_of_the_machine(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import os
        tasks = [f"/proc/{process}/task/{process}" for process in (1, os.getpid())]
        for folder in ["/proc/self", "/proc/thread-self", "/proc/1", *tasks]:
            for name in ("mountinfo", "mounts", "mountstats", "maps"):
                try:
                    print(open(f"{folder}/{name}").read())
                except OSError:
                    pass
        try:
            open("/proc/self/oom_score_adj", "w").write("0")
            print("took it back")
        except PermissionError:
            pass
        os.makedirs("one/two")
        os.rename("one/two", "three")
        open("/dev/stderr", "w").write(open("/dev/stdin").read())
        """,
        "in",
    )
    assert (outcome.status, outcome.stdout, outcome.stderr) == ("ok", "", "in"), outcome


def test_a_program_has_no_descriptor_but_its_own(sandbox: Bubblewrap) -> None:
    outcome = run(sandbox, "import os\nprint(os.listdir('/proc/self/fd'))")
    assert outcome.stdout == "['0', '1', '2', '3']\n", "the last is of the folder itself"


def test_other_processes_are_not_seen(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        f"""
        import os
        print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()), os.getpid())
        try:
            os.kill({os.getpid()}, 0)
        except ProcessLookupError:
            print("none")
        """,
    )
    assert outcome.stdout.splitlines() == ["[1, 2] 2", "none"], outcome


def test_no_capability_and_no_way_to_more_rights(sandbox: Bubblewrap) -> None:
    outcome = run(
        sandbox,
        """
        import ctypes, os
        library = ctypes.CDLL(None)
        header, rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert library.capget(header, rights) == 0
        ambient = [number for number in range(41) if library.prctl(47, 1, number, 0, 0)]  # PR_CAP_AMBIENT_IS_SET
        # what is inheritable (the third and the last) gives nothing without the ambient ones, and no file may give any
        no_new_privileges, filtered = library.prctl(39, 0, 0, 0, 0), library.prctl(21, 0, 0, 0, 0)
        print(*rights[:2], *rights[3:5], ambient, no_new_privileges, filtered)
        print(os.getuid() > 1000, os.getgroups() in ([], [65534]))
        for number in (0, 1):
            try:
                os.setuid(number)
                print("became", number)
            except OSError as error:
                print(type(error).__name__)
        """,
    )
    first, second, *others = outcome.stdout.splitlines()
    assert first == "0 0 0 0 [] 1 2"
    assert second.startswith("True")
    assert set(others) <= {"PermissionError", "OSError"}


# two programs


_PEER = """
import os
processes = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
assert processes[:2] == [1, 2] and len(processes) == 2, processes
print(os.getuid(), os.listdir("/tmp"), flush=True)
open("/tmp/mine", "w").close()
other, theirs = input().split(" ", 1)
assert theirs == "[]", theirs
"""


def test_two_programs_share_nothing_but_what_they_print(sandbox: Bubblewrap) -> None:
    # in user namespaces both are the same user, each among processes of its own
    users = "assert int(other) != os.getuid()" if sandbox.as_root else ""
    asked, answered = asyncio.run(converse(sandbox, f"{_PEER}\n{users}", f"{_PEER}\ninput()", AMPLE))
    assert (asked.status, asked.stdout, asked.stderr) == ("ok", "", "")
    assert answered.stdout == ""


@pytest.mark.parametrize(
    ("asking", "answering", "ended"),
    [
        ("print(input())", "while True: pass", ("error", "time")),
        ("print(input())", "import os\nos._exit(0)", ("error", "ok")),
        ("print(input())", "kept = bytearray(1 << 40)", ("error", "memory")),
        ("import sys\nsys.exit(int(input()))", "print(0, flush=True)\nimport time\ntime.sleep(60)", ("ok", "error")),
        ("import sys\nsys.exit(int(input()))", "print(3, flush=True)\nimport time\ntime.sleep(60)", ("error", "error")),
        ("pass", "import time\ntime.sleep(60)", ("ok", "error")),
    ],
)
def test_ends_of_two_programs(sandbox: Bubblewrap, asking: str, answering: str, ended: tuple[str, str]) -> None:
    outcomes = asyncio.run(converse(sandbox, asking, answering, Limits(seconds=2) if "time" in ended else AMPLE))
    assert tuple(outcome.status for outcome in outcomes) == ended


def test_a_program_that_is_canceled_before_it_begins(sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("subprocess.Popen", lambda *args, **options: started.append(args))
    canceled = threading.Event()
    canceled.set()
    outcome = Execution(sandbox, "print(1)", "", AMPLE, cancellation=canceled)()
    assert (outcome.status, outcome.code, started) == ("error", None, [])


def test_a_bubblewrap_that_is_canceled_while_it_starts_leaves_no_child(sandbox: Bubblewrap, tmp_path: Path) -> None:
    """Its child waits for a word from it, and is the first process of a namespace, which ignores other signals."""
    bwrap, mark = tmp_path / "bwrap", f"waiting-child-of-{os.getpid()}"
    bwrap.write_text(f"#!/bin/bash\n(trap '' TERM; exec -a {mark} sleep 600) &\nwait\n")
    bwrap.chmod(0o755)
    begun = Execution(replace(sandbox, executable=str(bwrap)), "print(1)", "", AMPLE)
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(begun)
        assert soon(lambda: bool(processes_with(mark)))
        begun.cancellation.set()
        assert outcome.result().status == "error"
    assert soon(lambda: not processes_with(mark), 5)


def test_more_pairs_than_places(sandbox: Bubblewrap) -> None:
    async def many() -> list[tuple[Outcome, Outcome]]:
        # whoever said more after that would say it to a program that may have ended
        program = "print(1, flush=True)\ninput()"
        return await asyncio.gather(*(converse(sandbox, program, program, AMPLE) for _ in range(8)))

    assert {asked.status for asked, _ in asyncio.run(many())} == {"ok"}


# what is left


_DAEMON = """
    import os, subprocess, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", "{mark}"])
        os._exit(0)
    os.wait()
    time.sleep(0.3)
    print("done")
    """


def test_daemons_are_gone(sandbox: Bubblewrap) -> None:
    mark = f"daemon-of-{os.getpid()}"
    seen = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.extend(processes_with(f"\0{mark}\0"))
            time.sleep(0.02)

    watcher = threading.Thread(target=look)
    watcher.start()
    outcome = run(sandbox, _DAEMON.replace("{mark}", mark), limits=Limits(seconds=100))
    stop.set()
    watcher.join()
    assert outcome.stdout == "done\n", outcome
    assert seen, "the daemon was there while the program ran"
    # bubblewrap ends as soon as the program's status is known, a moment before the kernel has ended the others
    assert soon(lambda: not processes_with(f"\0{mark}\0"), seconds=10)


def test_many_programs_leave_nothing(sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"of-many-{os.getpid()}"
    monkeypatch.setitem(bubblewrap.ENVIRONMENT, "MARK", mark)

    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    async def many() -> list[Outcome]:
        return await asyncio.gather(*(execution.run(sandbox, f"print({n})", limits=AMPLE) for n in range(60)))

    assert run(sandbox, "import os; print(os.environ['MARK'])").stdout == f"{mark}\n"
    before, others = descriptors(), zombies()  # of what other tests of this process have started
    outcomes = asyncio.run(many())
    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n" for n in range(60)]
    assert processes_with(mark) == []
    assert not set(zombies()) - set(others)
    assert descriptors() <= before


def zombies() -> list[int]:
    """Dead children of ours that have not been waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state == "Z" and int(parent) == os.getpid():
            found.append(int(path.parent.name))
    return found


def test_no_more_than_the_output_limit_is_held(sandbox: Bubblewrap) -> None:
    peak = "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    script = f"""
from ramerge_eval.sandbox.execution import Execution, open_sandbox
from ramerge_eval.sandbox.watch import Limits
way = open_sandbox()
{peak}
for _ in range(3):
    outcome = Execution(way, "import os\\nwhile True: os.write(1, bytes(1 << 20))", "", Limits(seconds=60))()
    assert outcome.status == "output"
{peak}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after - before < 16 << 10


# asyncio


def test_the_event_loop_goes_on(sandbox: Bubblewrap) -> None:
    async def main() -> tuple[list[Outcome], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        programs = [execution.run(sandbox, "import time; time.sleep(0.5)", limits=AMPLE) for _ in range(2)]
        outcomes = await asyncio.gather(*programs)
        ticking.cancel()
        return outcomes, ticks

    outcomes, ticks = asyncio.run(main())
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
    assert ticks > 5


def test_cancelling_kills(sandbox: Bubblewrap) -> None:
    mark = f"canceled-in-{os.getpid()}"
    child = f"[sys.executable, '-S', '-c', 'import time; time.sleep(600)', '{mark}']"

    async def main() -> None:
        program = f"import os, sys\nos.execv(sys.executable, {child})"
        running = [asyncio.create_task(execution.run(sandbox, program, limits=Limits(seconds=1000))) for _ in range(4)]
        while len(processes_with(f"\0{mark}\0")) < 2:
            await asyncio.sleep(0.02)
        for task in running:
            task.cancel()
        assert {type(result) for result in await asyncio.gather(*running, return_exceptions=True)} == {
            asyncio.CancelledError
        }

    asyncio.run(asyncio.wait_for(main(), 600))
    assert soon(lambda: not processes_with(f"\0{mark}\0"), 5)
    assert run(sandbox, "print(1)").stdout == "1\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_us(sandbox: Bubblewrap, number: signal.Signals) -> None:
    mark = f"orphan-of-{os.getpid()}-{number}"
    script = f"""
import asyncio, signal
from ramerge_eval.sandbox.execution import open_sandbox, run
from ramerge_eval.sandbox.watch import Limits
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
sleeper = "[sys.executable, '-S', '-c', 'import time; time.sleep(600)', '{mark}x']"
program = f"import os, sys; os.execv(sys.executable, {{sleeper}})"
asyncio.run(run(open_sandbox(), program, limits=Limits(seconds=1000)))
"""
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as us:
        assert soon(lambda: bool(processes_with(f"\0{mark}x\0")), 30)
        us.send_signal(number)
        assert us.wait(300) != 0
    assert soon(lambda: not processes_with(f"\0{mark}x\0"))


# where there is no sandbox


def test_no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.sys, "platform", "linux")
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    with pytest.raises(EvaluationError, match=r"(?s)apt install bubblewrap.*--sandbox docker"):
        execution.open_sandbox.__wrapped__()


def test_not_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.sys, "platform", "darwin")
    with pytest.raises(EvaluationError, match=r"(?s)only on Linux.*darwin.*--sandbox docker"):
        execution.open_sandbox.__wrapped__()


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Another bwrap."""
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo bubblewrap 0.6.1", r"bubblewrap 0\.6\.1 is too old"),
        ("echo hello", "--version says 'hello"),
        (
            '[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit\necho "bwrap: No permissions" >&2\nexit 1',
            "(?s)bwrap: No permissions.*user namespaces.*--sandbox docker",
        ),
        ('[ "$1" = --version ] && echo bubblewrap 0.8.0', "(?s)said nothing.*--sandbox docker"),
    ],
)
def test_a_bubblewrap_that_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    stand_in(tmp_path, monkeypatch, script)
    with pytest.raises(EvaluationError, match=message):
        execution.open_sandbox.__wrapped__()


def test_a_sandbox_that_fails_later_is_no_failed_program(
    sandbox: Bubblewrap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho bwrap: out of everything >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    broken = replace(sandbox, executable=str(tmp_path / "bwrap"))
    with pytest.raises(EvaluationError, match="out of everything"):
        run(broken, "print(1)")
    with pytest.raises(EvaluationError, match="out of everything"):
        asyncio.run(execution.run(broken, "print(1)"))


def test_filters_for_machines() -> None:
    assert len(seccomp_filter("x86_64")) == len(seccomp_filter("aarch64"))
    with pytest.raises(KeyError):
        seccomp_filter("vax")


@pytest.mark.skipif(not _IS_ROOT, reason="root alone is exempt from the limit on processes")
def test_root_in_a_user_namespace_is_refused() -> None:
    try:
        way = next(one for one in bubblewrap.ways() if not one.as_root)
    except EvaluationError as error:
        unavailable(str(error))
    assert execution.problem_of(way)


@pytest.mark.skipif(not _IS_ROOT or not shutil.which("setpriv"), reason="becomes another user, which takes root")
def test_an_ordinary_user(tmp_path: Path) -> None:
    """With the system's Python, since others may not read ours."""
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    if not Path(python).exists():
        pytest.skip(f"{python} is not installed")
    script = """
from ramerge_eval.sandbox.execution import Execution, open_sandbox
from ramerge_eval.sandbox.watch import Limits
way = open_sandbox()
assert not way.as_root
print(Execution(way, "print(input())", "hello", Limits())().stdout)
bomb = (
    "import os, time\\nmade = 1\\ntry:\\n  while made < 9: made += os.fork() > 0 or time.sleep(9)"
    "\\nexcept OSError: print(made)"
)
print(Execution(way, bomb, "", Limits(processes=4))().stdout)
eater = "import os, time\\nfor _ in range(3): os.fork()\\nkept = bytearray(b'x') * (40 << 20)\\ntime.sleep(60)"
print(Execution(way, eater, "", Limits(memory_bytes=128 << 20))().status)
"""
    packages = [str(Path(module.__file__ or "").parent.parent) for module in (ramerge, ramerge_eval, pytest)]
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(packages)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if "forbid" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stdout.split() == ["hello", "4", "memory"], done.stderr
