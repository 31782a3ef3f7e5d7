"""Runs cases in a process of their own, with a bound on memory, and watches the clock."""

from __future__ import annotations

import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

MOST_SECONDS = 2.0
"""Of processor time that a case may take."""
MOST_BYTES = 500_000_000
"""That a case may add to the memory of a process that has run one before."""
_MEMORY = Path("/dev/shm")
_SILENCE = 60.0
_BATCH = 100  # cases of a seed, though some kinds have no end of them


@dataclass
class Outcome:
    """What came of the cases of one kind. `defects` begin with the seed and the place of their case."""

    cases: int = 0
    taken: int = 0
    slowest: float = 0.0
    peak_bytes: int = 0
    defects: list[str] = field(default_factory=list)

    def add(self, taken: bool, seconds: float) -> None:
        """One case more."""
        self.cases += 1
        self.taken += taken
        self.slowest = max(self.slowest, seconds)


def run(
    kind: ModuleType, seeds: Iterator[int], cases: int, most_defects: int = 5, most_seconds: float = MOST_SECONDS
) -> Outcome:
    """Up to `cases` cases of the seeds in a forked process, or several where some do not come back."""
    outcome = Outcome()
    for seed in seeds if cases else ():
        with _process(kind, most_seconds) as child:
            for one in chain([seed], seeds):
                back = _run_seed(child, one, outcome, cases)
                if outcome.cases >= cases or len(outcome.defects) >= most_defects:
                    return outcome
                if not back:
                    break
    return outcome


@contextmanager
def _process(kind: ModuleType, most_seconds: float) -> Iterator[Connection]:
    """A process that takes seeds, with a folder for its files on a disk of memory where there is one."""
    ours, theirs = get_context("fork").Pipe()
    with TemporaryDirectory(prefix="ramerge-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None) as scratch:
        child = get_context("fork").Process(
            target=_serve, args=(kind, most_seconds, ours, theirs, scratch), daemon=True
        )
        child.start()
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()
            child.kill()
            child.join()


def _run_seed(child: Connection, seed: int, outcome: Outcome, cases: int) -> bool:
    """Run a seed's cases; whether the process came back from all of them."""
    place = -1
    with suppress(OSError):  # it has died already, which is seen below
        child.send((seed, cases - outcome.cases))
    while True:
        try:
            if not child.poll(_SILENCE):
                raise EOFError
            kind, *values = child.recv()
        except (EOFError, OSError):
            outcome.defects.append(f"seed {seed}, case {place + 1}: the process hung or died")
            outcome.cases += 1
            return False
        if kind == "end":
            _note_peak(outcome, seed, *values)
            return True
        place, taken, seconds, defect = values
        outcome.add(taken, seconds)
        if defect:
            outcome.defects.append(f"seed {seed}, case {place}: {defect}")


def _note_peak(outcome: Outcome, seed: int, peak_bytes: int) -> None:
    if peak_bytes > MOST_BYTES:
        outcome.defects.append(f"seed {seed}, some case: takes {peak_bytes / 1e6:,.0f} MB")
    outcome.peak_bytes = max(outcome.peak_bytes, peak_bytes)


def _serve(kind: ModuleType, most_seconds: float, theirs: Connection, parent: Connection, scratch: str) -> None:
    """The process: cases of the seeds that are sent, one after another."""
    theirs.close()  # or this process would keep itself waiting when its parent has died
    tempfile.tempdir = scratch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for case in _some(kind, 0, 3):  # what is imported, compiled and kept for all cases is not the cases'
        _checked(kind, case)
    baseline = _status("VmRSS")
    room = _status("VmSize") + 2 * MOST_BYTES  # address space, of which threads and allocators take some unused
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    while True:
        try:
            seed, most = parent.recv()
        except EOFError:
            return
        for place, case in enumerate(_some(kind, seed, most)):
            began = time.process_time()
            taken, defect = _checked(kind, case)
            seconds = time.process_time() - began
            if not defect and seconds > most_seconds:
                defect = f"takes {seconds:.1f} s: {case!r:.300}"
            parent.send(("case", place, taken, seconds, defect))
        parent.send(("end", _status("VmHWM") - baseline))


def _some(kind: ModuleType, seed: int, most: int) -> Iterator[object]:
    return islice(kind.cases(seed), min(most, _BATCH))


def _checked(kind: ModuleType, case: object) -> tuple[bool, str | None]:
    try:
        return bool(kind.check(case)), None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return False, f"{type(error).__name__} at {last.filename}:{last.lineno}: {error!s:.300} {case!r:.1000}"


def _status(key: str) -> int:
    """A figure of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))
