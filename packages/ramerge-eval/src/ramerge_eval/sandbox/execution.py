"""Runs a program in the sandbox: starts it, follows it to its end or a limit, and kills it with all that it started."""

from __future__ import annotations

import asyncio
import fcntl
import marshal
import math
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Literal, NamedTuple, TypeVar

from ramerge import EvaluationError
from ramerge.sdk.options import processors
from ramerge_eval.sandbox import bubblewrap
from ramerge_eval.sandbox.bubblewrap import INSTEAD, PACKAGES, Bubblewrap
from ramerge_eval.sandbox.watch import Inside, Limits, files_below

Status = Literal["ok", "error", "time", "memory", "output"]
T = TypeVar("T")

_TICK = 0.02
_START_SECONDS = 30.0
_SPARE_ADDRESSES = 256 << 20
_OPEN_FILES = 64  # each may hold a buffer in the kernel
_START = Path(__file__).with_name("start.py").read_text(encoding="utf-8")
# without site, Python starts in a fraction of the time; -I would ignore the fixed seed of hashes
_PYTHON = ("-S", "-s", "-X", "utf8", "-c", _START)
_PROBE_PROCESSES = 4
_PROBE = """
import os, time
made = 1
try:
    while made < 8:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""


class Outcome(NamedTuple):
    """The outcome of a program in the sandbox: how it ended, and its output.

    `status` is `ok` after exit code 0, `error` after another code or a signal, or the limit that was reached: `time`,
    `memory` (also an uncaught MemoryError) or `output`. `code` is 128 + n after signal n, and None at a limit. Output
    is cut at `output_bytes`; bytes that are not UTF-8 are replaced. For a command, `files` is the content of /tmp at
    its end.
    """

    status: Status
    code: int | None
    stdout: str
    stderr: str
    files: Mapping[str, bytes] = {}


class Command(NamedTuple):
    """A command instead of a program's text. `files` is the initial content of /tmp, by relative path."""

    words: Sequence[str]
    environment: Mapping[str, str] = {}
    folder: str = "/tmp"
    files: Mapping[str, bytes] = {}


@dataclass
class Execution:
    """One program in the sandbox, from its start to the end of its last process.

    Attributes:
        stdin: its input, or the end of a pipe, which the run closes.
        stdout: the end of a pipe to print to, which the run closes; the outcome then has no output.
        cancellation: kills the program when set; the outcome is then meaningless.
    """

    way: Bubblewrap
    program: str | Command
    stdin: str | bytes | IO[bytes]
    limits: Limits
    stdout: IO[bytes] | None = None
    cancellation: threading.Event = field(default_factory=threading.Event)
    _inside: Inside | None = None
    _start_time: float | None = None

    def __call__(self) -> Outcome:
        """Run the program. Raises `EvaluationError` if the sandbox itself fails."""
        if self.cancellation.is_set():
            return Outcome("error", None, "", "")
        try:
            with ExitStack() as resources:
                for pipe in (self.stdin, self.stdout):
                    if pipe is not None and not isinstance(pipe, str | bytes):
                        resources.enter_context(pipe)
                return self._run(resources)
        except OSError as error:
            raise EvaluationError(f"the sandbox failed: {error}") from error

    def _run(self, resources: ExitStack) -> Outcome:
        ours, theirs = socket.socketpair()
        resources.enter_context(ours)
        user, most = self.way.user(), self.limits.output_bytes
        with theirs:
            process = self._start(resources, theirs.fileno(), user)
        with ThreadPoolExecutor(2, thread_name_prefix="sandbox") as threads:
            try:
                pipes = [resources.enter_context(pipe) for pipe in (process.stdout, process.stderr) if pipe]
                for pipe in pipes:
                    os.fchown(pipe.fileno(), user, -1)  # so that the program can open /dev/stdout
                outputs = [threads.submit(pipe.read, most + 1) for pipe in pipes]
                limit = self._follow(process, ours, outputs)
            finally:
                files = self._end(process)
        *stdout, stderr = (each.result()[:most].decode("utf-8", errors="replace") for each in outputs)
        if self._start_time is None and not self.cancellation.is_set():
            raise EvaluationError(f"the sandbox did not start: {stderr.strip()[-1000:] or 'it said nothing'}")
        if limit is None and any(len(each.result()) > most for each in outputs):
            limit = "output"
        # a sandbox passes a signal on as a shell does
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        is_memory_error = code == 1 and stderr.rstrip().rpartition("\n")[2].startswith("MemoryError")
        status: Status = limit or ("ok" if code == 0 else "memory" if is_memory_error else "error")
        return Outcome(status, None if limit else code, "".join(stdout), stderr, files)

    def _start(self, resources: ExitStack, channel: int, user: int) -> subprocess.Popen[bytes]:
        command = self.program if isinstance(self.program, Command) else Command(())
        job = {
            "program": self.program if isinstance(self.program, str) else "",
            "command": list(command.words),
            "environment": dict(command.environment),
            "folder": command.folder,
            "files": {f"/tmp/{path}": content for path, content in command.files.items()},
            "packages": PACKAGES,
            "user": user,
            "limits": {
                "RLIMIT_CPU": math.ceil(self.limits.seconds) + 1,
                "RLIMIT_AS": 2 * self.limits.memory_bytes + _SPARE_ADDRESSES,  # most are unused, and memory is watched
                "RLIMIT_FSIZE": self.limits.disk_bytes,
                "RLIMIT_NOFILE": _OPEN_FILES,
                "RLIMIT_CORE": 1,  # 0 does not keep dumps from a handler of the system
                "RLIMIT_NPROC": self.limits.processes + self.way.uncounted,
            },
        }
        stdin = self.stdin.encode("utf-8", errors="surrogatepass") if isinstance(self.stdin, str) else self.stdin
        source, system_calls = (
            resources.enter_context(_memory_file(content)) for content in (marshal.dumps(job), self.way.system_calls)
        )
        sandbox = self.way.command(self.limits.disk_bytes, system_calls.fileno())
        return subprocess.Popen(
            [*sandbox, str(bubblewrap.interpreter()), *_PYTHON, str(source.fileno()), str(channel)],
            stdin=resources.enter_context(_memory_file(stdin)) if isinstance(stdin, bytes) else stdin,
            stdout=self.stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[source.fileno(), channel, system_calls.fileno()],
            cwd="/",
            env=bubblewrap.ENVIRONMENT,
            start_new_session=True,  # a terminal's Ctrl-C is for us
        )

    def _follow(
        self, process: subprocess.Popen[bytes], channel: socket.socket, outputs: Sequence[Future[bytes]]
    ) -> Status | None:
        """Wait until the program ends, and return None; or return the limit that it reaches."""
        waiting_until = time.monotonic() + _START_SECONDS
        exit_descriptor = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(exit_descriptor, selectors.EVENT_READ)
                selector.register(channel, selectors.EVENT_READ)
                while True:
                    ready = {key.fileobj for key, _ in selector.select(_TICK)}
                    if channel in ready:
                        selector.unregister(channel)
                        # the one message: that the program starts now
                        close_on_exec = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
                        message, descriptors, _, _ = socket.recv_fds(channel, 1, 3, close_on_exec)
                        if message and len(descriptors) != 3:
                            raise EvaluationError("the sandbox did not start: too many files are open here")
                        if message:
                            self._inside = Inside(*descriptors)
                            self._start_time = time.monotonic()
                    if exit_descriptor in ready:
                        return None
                    if self.cancellation.is_set():
                        return "error"
                    if self._start_time is None:
                        if time.monotonic() > waiting_until:
                            return "time"
                    elif limit := self._limit(self._start_time, outputs):
                        return limit
        finally:
            os.close(exit_descriptor)

    def _limit(self, start: float, outputs: Sequence[Future[bytes]]) -> Status | None:
        if any(each.done() and len(each.result()) > self.limits.output_bytes for each in outputs):
            return "output"
        if time.monotonic() - start > self.limits.seconds:
            return "time"
        if self._inside and self._inside.memory_bytes(self.limits.memory_bytes) > self.limits.memory_bytes:
            return "memory"
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> dict[str, bytes]:
        """Kill what is left; when it is gone, return the files that a command has left."""
        inside, self._inside = self._inside, None
        with suppress(ProcessLookupError, PermissionError):
            if inside:  # bubblewrap ends after its child, which ends after all other processes
                signal.pidfd_send_signal(inside.first, signal.SIGKILL)
            else:  # bubblewrap's child waits for it forever if bubblewrap is killed early, and ignores other signals
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if inside is None:
            return {}
        try:
            return files_below(inside.disk, self.limits.disk_bytes) if isinstance(self.program, Command) else {}
        finally:
            inside.close()


async def run(
    way: Bubblewrap, program: str | Command, stdin: str | bytes = "", limits: Limits | None = None
) -> Outcome:
    """Run a program in the sandbox without blocking the event loop; canceling kills it. Text that is not Python is an
    `error`.

    Raises:
        EvaluationError: the sandbox itself failed; the program did not run.
    """
    cancellation = threading.Event()
    return await _in_thread(Execution(way, program, stdin, limits or Limits(), cancellation=cancellation), cancellation)


async def converse(
    way: Bubblewrap, asking: str, answering: str, limits: Limits | None = None
) -> tuple[Outcome, Outcome]:
    """Run two programs in sandboxes; each reads what the other prints, and they share nothing else.

    They are in different sandboxes: neither sees the other's processes, files or memory, or can send it a signal. When
    the asking program ends, both end.

    Returns:
        The outcomes of asking and answering program. Their standard output is not kept.
    """
    cancellation, limits = threading.Event(), limits or Limits()
    questions, answers = _pipe(), _pipe()
    patient = limits.model_copy(update={"seconds": limits.seconds + _START_SECONDS})  # the other one starts, too
    asker = Execution(way, asking, answers[0], patient, questions[1], cancellation)
    answerer = Execution(way, answering, questions[0], limits, answers[1], cancellation)

    def both() -> tuple[Outcome, Outcome]:
        with ThreadPoolExecutor(1, thread_name_prefix="sandbox") as thread:
            answer = thread.submit(answerer)
            try:
                question = asker()
            finally:
                cancellation.set()  # no request can come any more
            return question, answer.result()

    return await _in_thread(both, cancellation)


@cache
def _threads() -> ThreadPoolExecutor:
    """The thread pool of this process: as many programs, or pairs, run at once as there are processors."""
    return ThreadPoolExecutor(processors(), thread_name_prefix="sandbox")


async def _in_thread(job: Callable[[], T], cancellation: threading.Event) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads(), job)
    except asyncio.CancelledError:
        cancellation.set()
        raise


@cache
def open_sandbox() -> Bubblewrap:
    """Return a way to start sandboxes that has run a program on this machine.

    Raises:
        EvaluationError: no sandbox is available, with what is missing.
    """
    problems = []
    for way in bubblewrap.ways():
        problem = problem_of(way)
        if problem is None:
            return way
        problems.append(problem)
    raise EvaluationError(
        f"bubblewrap cannot make a sandbox here: {'; '.join(dict.fromkeys(problems))}. It needs user namespaces, "
        "which a container or the system may forbid (docker: --security-opt seccomp=unconfined --security-opt "
        "systempaths=unconfined; sysctl kernel.apparmor_restrict_unprivileged_userns, "
        f"kernel.unprivileged_userns_clone, user.max_user_namespaces); {INSTEAD}"
    )


def problem_of(way: Bubblewrap) -> str | None:
    """Return why programs cannot run in a sandbox on this machine; None if a test program ran, and its number of
    processes was limited.

    Only the kernel can limit it: killing a fork bomb from outside takes longer than the bomb needs to take over the
    machine. The kernel exempts root, and before Linux 5.14 it counted a user's processes across sandboxes.
    """
    try:
        outcome = Execution(way, _PROBE, "", Limits(processes=_PROBE_PROCESSES))()
    except EvaluationError as error:
        return str(error)
    if outcome.status != "ok":
        return f"a program ended with {outcome.status}, saying {outcome.stderr.strip()[-1000:]!r}"
    if int(outcome.stdout) != _PROBE_PROCESSES:
        return f"a program allowed {_PROBE_PROCESSES} processes could have {int(outcome.stdout)}"
    return None


def _memory_file(content: bytes) -> IO[bytes]:
    """Return a file to inherit: a program that does not read it blocks nothing, and none can write to it."""
    file = os.fdopen(os.memfd_create("ramerge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb+")
    file.write(content)
    file.seek(0)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0)
