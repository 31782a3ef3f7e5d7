"""One run of a program: started, followed to its end or to a limit, and killed with all that it started."""

from __future__ import annotations

import fcntl
import math
import os
import queue
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal

from ramerge.evaluation.sandbox import bubblewrap
from ramerge.evaluation.sandbox.bubblewrap import PACKAGES, Bubblewrap
from ramerge.evaluation.sandbox.watch import Inside, Limits, files_below
from ramerge.foundation.errors import EvaluationError

Status = Literal["ok", "error", "time", "memory", "output"]

_TICK = 0.02
_START_SECONDS = 30.0
_READ_BYTES = 1 << 16
_SPARE_ADDRESSES = 256 << 20
_OPEN_FILES = 64  # each may hold a buffer in the kernel
_START = Path(__file__).with_name("start.py").read_text(encoding="utf-8")
# without site, Python starts in a fraction of the time; -I would ignore the fixed seed of hashes, and there is nothing
# of a user's to isolate from
_PYTHON = ("-S", "-s", "-X", "utf8", "-c", _START)

# of this process and not of a sandbox: two sandboxes must not give their programs the same users
_SLOTS: queue.SimpleQueue[int] = queue.SimpleQueue()
for _slot in range(bubblewrap.MOST_USERS):
    _SLOTS.put(_slot)


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        status: `ok` is exit code 0; `error` another code or a signal; `time`, `memory` and `output` limits that it
            met. An uncaught MemoryError counts as `memory`.
        code: its exit code, 128 + n after signal n, None if it was killed at a limit.
        stdout: what it printed, at most `output_bytes` of it; bytes that are not UTF-8 are replaced.
        stderr: likewise.
        seconds: from its start to its end, without those of setting up the sandbox.
        files: of a command, what /tmp held at its end, by paths below it.
    """

    status: Status
    code: int | None
    stdout: str
    stderr: str
    seconds: float
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A command in place of the text of a program.

    Attributes:
        words: the command.
        environment: variables, besides those of every program.
        folder: where it starts: /tmp or a folder below it.
        files: what /tmp holds when it starts, by paths below it. What it holds at the end is in the outcome.
    """

    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/tmp"
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass
class _Stream:
    """What a program prints, as far as it is kept."""

    pipe: IO[bytes]
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    over: bool = False

    def read(self) -> bool:
        """Takes what is there. False where there is nothing (more), or no more is wanted."""
        try:
            piece = os.read(self.pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        self.over = self.over or len(self.kept) + len(piece) > self.limit
        self.kept += piece[: self.limit - len(self.kept)]
        return bool(piece) and not self.over

    def text(self) -> str:
        return self.kept.decode("utf-8", errors="replace")


class Execution:
    """One program, from its start to the end of its last process."""

    def __init__(
        self,
        way: Bubblewrap,
        program: str | Command,
        stdin: str | bytes | IO[bytes],
        limits: Limits,
        stdout: IO[bytes] | None = None,
        canceled: threading.Event | None = None,
    ) -> None:
        """Prepares a run.

        Args:
            way: of the sandbox.
            program: text of a Python program, or a command.
            stdin: what it reads, or the end of a pipe, which the run closes.
            limits: what it may use.
            stdout: the end of a pipe that it prints to, which the run closes; its outcome then has no output.
            canceled: kills the program when it is set.
        """
        self._way = way
        self._program = "" if isinstance(program, Command) else program
        self._command = program if isinstance(program, Command) else Command(())
        self._files: dict[str, bytes] = {}
        self._stdin = stdin
        self._stdout = stdout
        self._limits = limits
        self._canceled = canceled or threading.Event()
        self._inside: Inside | None = None
        self._began: float | None = None
        self._watched = 0.0

    def cancel(self) -> None:
        """Kills the program soon; what the call then returns means nothing."""
        self._canceled.set()

    def __call__(self) -> Outcome:
        if self._canceled.is_set():
            return Outcome("error", None, "", "", 0.0)
        slot = _SLOTS.get()
        try:
            with ExitStack() as resources:
                for pipe in (self._stdin, self._stdout):
                    if pipe is not None and not isinstance(pipe, str | bytes):
                        resources.enter_context(pipe)
                return self._run(resources, slot)
        except OSError as error:
            raise EvaluationError(f"the sandbox failed: {error}") from error
        finally:
            _SLOTS.put(slot)

    def _run(self, resources: ExitStack, slot: int) -> Outcome:
        ours, theirs = socket.socketpair()
        resources.enter_context(ours)
        with theirs:
            process = self._start(resources, theirs.fileno(), slot)
        try:
            streams = self._streams(resources, process, slot)
            limit = self._follow(process, ours, streams)
            ended = time.monotonic()
        finally:
            self._end(process)
        for stream in streams:
            while stream.read():
                pass
        *printed, stderr = (stream.text() for stream in streams)
        stdout = "".join(printed)
        if self._began is None and not self._canceled.is_set():
            raise EvaluationError(f"the sandbox did not start: {stderr.strip()[-1000:] or 'it said nothing'}")
        if limit is None and any(stream.over for stream in streams):
            limit = "output"
        seconds = ended - (self._began or ended)
        if limit:
            return Outcome(limit, None, stdout, stderr, seconds, self._files)
        # a sandbox passes a signal on as a shell does
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        return Outcome(_status(code, stderr), code, stdout, stderr, seconds, self._files)

    def _streams(self, resources: ExitStack, process: subprocess.Popen[bytes], slot: int) -> list[_Stream]:
        pipes = [resources.enter_context(pipe) for pipe in (process.stdout, process.stderr) if pipe]
        for pipe in pipes:
            os.set_blocking(pipe.fileno(), False)
            if self._way.as_root:  # so that the program can open /dev/stdout
                os.fchown(pipe.fileno(), self._way.user(slot), -1)
        return [_Stream(pipe, self._limits.output_bytes) for pipe in pipes]

    def _start(self, resources: ExitStack, channel: int, slot: int) -> subprocess.Popen[bytes]:
        source, stdin = (
            resources.enter_context(_sealed(_content(given))) if isinstance(given, str | bytes) else given
            for given in (self._program, self._stdin)
        )
        system_calls = resources.enter_context(_sealed(self._way.system_calls))
        command = self._command
        files = {path: resources.enter_context(_sealed(content)).fileno() for path, content in command.files.items()}
        inherited = [source.fileno(), channel, system_calls.fileno(), *files.values()]
        sandbox = self._way.command(
            self._limits.disk_bytes, system_calls.fileno(), command.environment, command.folder, files
        )
        arguments = [source.fileno(), channel, self._way.user(slot), PACKAGES, *self._resources()]
        return subprocess.Popen(
            [*sandbox, str(bubblewrap.interpreter()), *_PYTHON, *map(str, arguments), "--", *command.words],
            stdin=stdin,
            stdout=self._stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=inherited,
            cwd="/",
            env={},  # the first process in a sandbox shows the environment it was started with
            start_new_session=True,  # a terminal's Ctrl-C is for us
        )

    def _resources(self) -> list[str]:
        """Limits that the kernel holds, as NAME:SOFT:HARD."""
        limits = self._limits
        processor = math.ceil(limits.seconds)
        addresses = 2 * limits.memory_bytes + _SPARE_ADDRESSES  # most are never used, and memory is watched
        values = {
            "RLIMIT_CPU": (processor, processor + 1),
            "RLIMIT_AS": (addresses,) * 2,
            "RLIMIT_FSIZE": (limits.disk_bytes,) * 2,
            "RLIMIT_NOFILE": (_OPEN_FILES,) * 2,
            "RLIMIT_CORE": (1, 1),  # 0 does not keep dumps from a handler of the system
            "RLIMIT_NPROC": (limits.processes + self._way.uncounted,) * 2,
        }
        return [f"{name}:{soft}:{hard}" for name, (soft, hard) in values.items()]

    def _follow(
        self, process: subprocess.Popen[bytes], channel: socket.socket, streams: list[_Stream]
    ) -> Status | None:
        """Reads what it prints until it ends (None), or meets the limit that is returned."""
        waiting_until = time.monotonic() + _START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ, lambda: self._hear(channel))
            for stream in streams:
                selector.register(stream.pipe, selectors.EVENT_READ, stream.read)
            while process.poll() is None:
                if self._canceled.is_set():
                    return "error"
                if not selector.get_map():  # it has closed its output, most likely because it ends
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_TICK)
                for key, _ in selector.select(_TICK if selector.get_map() else 0):
                    if not key.data():
                        selector.unregister(key.fileobj)
                if self._began is None:
                    if time.monotonic() > waiting_until:
                        return "time"
                elif limit := self._limit_met(streams):
                    return limit
        if self._began is None:  # it has ended before it was heard
            self._hear(channel)
        return None

    def _hear(self, channel: socket.socket) -> bool:
        """Takes the message that the program starts now. False, for there is one message."""
        message, descriptors, _, _ = socket.recv_fds(channel, 1, 3, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        if message:
            if len(descriptors) != 3:
                raise EvaluationError("the sandbox did not start: too many files are open here")
            self._inside = Inside(*descriptors)
            self._began = time.monotonic()
        return False

    def _limit_met(self, streams: list[_Stream]) -> Status | None:
        now, limits = time.monotonic(), self._limits
        if any(stream.over for stream in streams):
            return "output"
        if self._began is not None and now - self._began > limits.seconds:
            return "time"
        if self._inside and now - self._watched >= _TICK:
            self._watched = now
            processes = self._inside.processes()
            if self._inside.memory_bytes(processes, limits.memory_bytes) > limits.memory_bytes:
                return "memory"
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kills what is left; returns when it is gone."""
        inside, self._inside = self._inside, None
        if inside:  # bubblewrap ends after its child, which ends after all other processes
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(inside.first, signal.SIGKILL)
        else:  # bubblewrap's child waits for it forever if bubblewrap is killed early, and ignores other signals
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if inside:
            if self._command.words:
                self._files = files_below(inside.disk, self._limits.disk_bytes)
            inside.close()


class Conversation:
    """Two programs, each in a sandbox of its own, each of which reads what the other one prints."""

    def __init__(self, way: Bubblewrap, asking: str, answering: str, limits: Limits) -> None:
        """Prepares the runs of both under these limits; `asking` also has the time that the other needs to start."""
        self._way = way
        self._asking = asking
        self._answering = answering
        self._limits = limits
        self._canceled = threading.Event()

    def cancel(self) -> None:
        """Kills both soon; what the call then returns means nothing."""
        self._canceled.set()

    def __call__(self) -> tuple[Outcome, Outcome]:
        """How the one that asks ended, and the other one, which is killed when no request can come any more."""
        questions, answers = _pipe(), _pipe()
        patient = replace(self._limits, seconds=self._limits.seconds + _START_SECONDS)
        asking = Execution(self._way, self._asking, answers[0], patient, questions[1], self._canceled)
        answering = Execution(self._way, self._answering, questions[0], self._limits, answers[1], self._canceled)
        with ThreadPoolExecutor(1, thread_name_prefix="sandbox") as thread:
            answered = thread.submit(answering)
            try:
                asked = asking()
            finally:
                self._canceled.set()
            return asked, answered.result()


def _content(given: str | bytes) -> bytes:
    return given.encode("utf-8", errors="surrogatepass") if isinstance(given, str) else given


def _sealed(content: bytes) -> IO[bytes]:
    """A file to inherit: a program that does not read it blocks nothing, and none can write to it."""
    file = os.fdopen(os.memfd_create("ramerge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb+")
    file.write(content)
    file.seek(0)
    fcntl.fcntl(
        file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
    )
    return file


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0)


def _status(code: int, stderr: str) -> Status:
    if code == 0:
        return "ok"
    if code == 128 + signal.SIGXCPU:
        return "time"
    last = stderr.rstrip().rpartition("\n")[2]
    return "memory" if code == 1 and last.startswith("MemoryError") else "error"
