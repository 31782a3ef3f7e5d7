"""Jobs: commands that the page runs in a queue, each as a process of `ramerge` with the arguments shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramerge.cli.progress import FORM
from ramerge.core.foundation.text import printable
from ramerge.scoring.children import dies_with_parent, stop

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"
_MOST_LINES = 200
_LONGEST_LINE = 1 << 22
_MOST_OUTPUT = 1 << 27
_SIGNAL_CODES = 128


@dataclass
class Job:
    """A job: a command of the page, and its progress.

    Attributes:
        out: the folder that it writes; None if it writes no folder.
        progress: the last event of the running stage; see `foundation.progress.Progress`.
        lines: its standard error.
    """

    title: str
    words: Sequence[str]
    folder: Path
    out: Path | None = None
    state: str = WAITING
    progress: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    output: str = ""
    queued: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _change: threading.Event = field(default_factory=threading.Event)

    @property
    def is_active(self) -> bool:
        """Whether the job is waiting or running."""
        return self.state in (WAITING, RUNNING)

    @property
    def active_job_or_none(self) -> Job | None:
        """The job while it is waiting or running, then None: for a button that stops it."""
        return self if self.is_active else None

    @property
    def has_ended_early(self) -> bool:
        """Whether the job was stopped or failed, so that the same command would resume."""
        return self.state in (STOPPED, FAILED)

    def again(self) -> Job:
        """Return a new job with the same command."""
        return Job(self.title, self.words, self.folder, self.out)

    def follow(self, seconds: float = 0.4) -> Iterator[None]:
        """Yield whenever the job may have changed, until it has ended, and once after that."""
        while self.is_active:
            yield
            self._change.wait(seconds)
            self._change.clear()
        yield

    def stop(self) -> None:
        """Stop the job as Ctrl-C does. A waiting job will not run."""
        with self._lock:
            if self.state == WAITING:
                self.state = STOPPED
            elif self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)

    def run(self) -> None:
        """Run the job, in a thread of the page; called by `JobQueue`."""
        with tempfile.TemporaryFile() as output:
            with self._lock:
                if self.state != WAITING:
                    return
                process = self._process = subprocess.Popen(
                    [sys.executable, "-m", "ramerge", *self.words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    cwd=self.folder,
                    env={**os.environ, FORM: "json", "PYTHONSAFEPATH": "1"},
                    start_new_session=True,  # Ctrl-C is for the page, which stops what it runs
                    preexec_fn=dies_with_parent(),
                )
                self.state = RUNNING
            assert process.stderr is not None
            with process.stderr as error_stream:
                for line in iter(lambda: error_stream.readline(_LONGEST_LINE), b""):
                    self._process_line(line)
            code = process.wait()
            output.seek(0)
            self.output = output.read(_MOST_OUTPUT).decode("utf-8", "replace")
        was_stopped = code in (_SIGNAL_CODES + signal.SIGINT, _SIGNAL_CODES + signal.SIGTERM) or code < 0
        self.state = DONE if code == 0 else STOPPED if was_stopped else FAILED
        self._change.set()

    def _process_line(self, line: bytes) -> None:
        """Process a line of the job's standard error: an event, or readable text."""
        text = line.decode("utf-8", "replace").rstrip("\n")
        event = None
        if text.startswith('{"stage": '):
            with suppress(ValueError):
                event = json.loads(text)
        if not isinstance(event, dict):
            self.lines = [*self.lines, printable(text)][-_MOST_LINES:]
        elif "part" in event:
            self.figures = event
        else:
            self.progress = event
        self._change.set()

    def kill(self) -> None:
        """Kill the job and all its processes."""
        self.stop()
        if self._process is not None:
            stop(self._process)


class JobQueue:
    """A queue of jobs: runs up to `at_once` at a time, in the order in which they were added."""

    def __init__(self, at_once: int = 1) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="ramerge-ui")
        self._jobs: list[Job] = []

    def add(self, job: Job) -> Job:
        """Run a job after the jobs before it."""
        self._jobs = [*(each for each in self._jobs if each.is_active), job]
        job.queued = True
        self._pool.submit(job.run)
        return job

    def close(self) -> None:
        """Stop all jobs, when the page's process stops."""
        for job in self._jobs:
            job.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
