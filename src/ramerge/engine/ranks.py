"""Several processes that do one merge: how they find each other, agree, and notice that one is lost.

A launcher starts the same command several times, on one machine or many, and gives each process its number. They share
a folder, and nothing else. In the folder `ranks` of the hidden folder each process has one file, which it replaces
every second:

    0.8f3c...    of rank 0: a counter, how far it is, and why it has failed if it has
    session      by rank 0: which processes belong together, and which files of the journal they all go on from

A process is lost if its file has not changed for some time. Clocks are not compared. The names hold a random number,
because other processes may have been started for the same output, or may have left their files.

Where they share no folder, each has one of its own, and a carrier brings these files from one to the other, late.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from ramerge.engine.journal import Session
from ramerge.foundation.errors import InputError, RamergeError, RankError, RecipeError, StoppedError, reason

Executors = Literal["threads", "ranks", "ray"]

FOLDER = "ranks"
TIMEOUT = 60.0
_SESSION = "session"
_AGAIN = "start all ranks with the same command again: it goes on from what was done"
_BEAT_SECONDS = 1.0
_PARTING_SECONDS = 5.0
_PAUSE = 0.05
_MOST_RANKS = 100_000

# Names of the number and the count of processes, and of what tells two jobs apart. The first launcher that has set both
# is asked.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("PMI_RANK", "PMI_SIZE", ()),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ("SLURM_PROCID", "SLURM_NTASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)


class Carrier(Protocol):
    """Brings the small files of ranks from folder to folder. All of its methods raise what keeps it from that."""

    def begin(self) -> None:
        """Begin; rank 0 first removes what an earlier run has left."""
        ...

    def meet(self, members: Collection[str]) -> None:
        """Bring the files of these ranks, too. When it returns, those are there that were there when it was called."""
        ...

    def carry(self) -> None:
        """Bring everything now."""
        ...

    def check(self) -> None:
        """Raise if nothing is brought any more."""
        ...

    def clock(self) -> float:
        """Seconds in which files were brought, without those in which nobody could."""
        ...

    def end(self) -> None:
        """Bring what was written last, and as rank 0 remove everything."""
        ...


_HERE, _CLEARED, _WRITTEN, _DONE, _LEFT, _FAILED = "here", "cleared", "written", "done", "left", "failed"
_ORDER = (_HERE, _CLEARED, _WRITTEN, _DONE, _LEFT)


@dataclass(frozen=True)
class Rank:
    """One of the processes of a merge.

    Attributes:
        number: which one, from 0.
        world: how many there are.
        timeout: seconds without a sign of life after which a rank is lost.
        job: what tells the job from others; empty if nothing does.
    """

    number: int
    world: int
    timeout: float = TIMEOUT
    job: str = ""

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.number < self.world:
            raise RecipeError(f"rank {self.number} of {self.world} ranks: ranks are numbered from 0 to N-1")
        if self.world > _MOST_RANKS:
            raise RecipeError(f"{self.world:,} ranks: there can be {_MOST_RANKS:,}; is WORLD_SIZE right?")
        check_timeout(self.timeout)


def rank_of(environment: Mapping[str, str], timeout: float = TIMEOUT) -> Rank:
    """The rank that a launcher has given to this process.

    Raises:
        RecipeError: no launcher has, or what it says makes no sense.
    """
    half = ""
    for number, world, names in _LAUNCHERS:
        given = [name for name in (number, world) if name in environment]
        if len(given) == 2:
            job = " ".join(f"{name}={environment[name]}" for name in names if name in environment)
            return Rank(_whole(environment, number), _whole(environment, world), timeout, job)
        if given and given[0] in ("RANK", "WORLD_SIZE"):
            half = f": {given[0]} is set, but {world if given[0] == number else number} is not"
            break
    raise RecipeError(
        f"executor ranks: no launcher has given this process a rank{half}; start it with torchrun, srun or mpirun, or "
        "set RANK and WORLD_SIZE"
    )


def chosen_rank(executor: str, timeout: float, ray_init: Mapping[str, Any] | None = None) -> Rank | None:
    """This process's rank, if it is one of several.

    Raises:
        RecipeError: there is no such executor, it takes no `ray_init`, no launcher has given this process a rank, or
            the timeout is not possible.
    """
    check_timeout(timeout)
    if ray_init and executor != "ray":
        raise RecipeError("ray_init: is only of use with executor ray")
    if executor in ("threads", "ray"):
        return None
    check_executor(executor)
    return rank_of(os.environ, timeout)


def check_timeout(seconds: float) -> None:
    """Raise if no rank can be waited for so long."""
    if not 0 < seconds < float("inf"):
        raise RecipeError(f"rank timeout: must be more than 0 seconds, not {seconds:g}")


def check_executor(executor: str) -> None:
    """Raise if there is no such executor."""
    if executor not in get_args(Executors):
        raise RecipeError(f"executor: {executor!r} is not known; choose threads, ranks or ray")


def advice(environment: Mapping[str, str]) -> str:
    """What to say if a launcher has started several processes that do not know of it; empty for nothing."""
    for _, world, _ in _LAUNCHERS[:-1]:  # Slurm sets the last one also for a script that starts no ranks
        if environment.get(world, "1").strip() not in ("", "0", "1"):
            return f"{world}={environment[world]}, but this process does all work; --executor ranks would share it"
    return ""


def _whole(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.strip().isdecimal():
        raise RecipeError(f"{name}={text!r}: must be a whole number")
    return int(text)


class Team:
    """The ranks of one run, as one of them sees them.

    Args:
        rank: this one.
        work: the hidden folder, which rank 0 makes; or this rank's own.
        carrier: makes what brings files, from the name of this rank; None where all ranks share the folder.
    """

    def __init__(self, rank: Rank, work: Path, carrier: Callable[[str], Carrier | None] = lambda own: None) -> None:
        self.number, self.world = rank.number, rank.world
        self._rank = rank
        self._folder = work / FOLDER
        self._nonce = os.urandom(8).hex()
        self._nonces: dict[int, str] = {rank.number: self._nonce}
        self._state: dict[str, Any] = {"state": _HERE, "job": rank.job, "world": rank.world}
        self._beats = 0
        self._seen: dict[int, tuple[int, float]] = {}
        self._checked = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_failed = False
        self.own = f"{rank.number}.{self._nonce}"
        self._carrier = carrier(self.own)

    # --- finding each other -------------------------------------------------------------------------------------------

    def lead(self, session: Session) -> None:
        """As rank 0: wait for all others, and tell them where the work begins.

        Raises:
            RankError: one does not come in time.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(exist_ok=True)  # another rank may have written there meanwhile
        (self._folder / _SESSION).unlink(missing_ok=True)
        self._begin()
        deadline = time.monotonic() + self._rank.timeout
        while missing := [number for number in range(self.world) if number not in self._nonces]:
            if time.monotonic() > deadline:
                who = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
                raise RankError(
                    f"of {self.world} ranks these have not come within {self._rank.timeout:g} s: {who}; "
                    f"are all started with the same command{self._sharing}?",
                    resumable=True,
                )
            self._check_carrier()
            self._look_for_others()
            time.sleep(_PAUSE)
        text = json.dumps({"nonces": [self._nonces[number] for number in range(self.world)], **asdict(session)})
        _replace(self._folder / _SESSION, text)
        self._meet()

    @property
    def _sharing(self) -> str:
        folder = self._folder.parent.parent.absolute()
        return f", and do all of them see the folder {folder}" if self._carrier is None else ""

    def _meet(self) -> None:
        if self._carrier is not None:
            self._carrier.meet([f"{number}.{nonce}" for number, nonce in self._nonces.items()])

    def _look_for_others(self) -> None:
        for path in list(self._folder.iterdir()):
            first, _, nonce = path.name.partition(".")
            said = _read(path) if first.isdecimal() and nonce else None
            if said is None or int(first) in self._nonces or said.get("job") != self._rank.job:
                continue
            if said.get("world") != self.world:
                theirs = said.get("world")
                text = f"rank {first} was told that there are {theirs} ranks, and rank 0 that there are {self.world}"
                raise RankError(text, resumable=True)
            if int(first) < self.world and said.get("state") == _HERE:
                self._nonces[int(first)] = nonce

    def join(self) -> Session:
        """As another rank: wait for rank 0.

        Raises:
            RankError: it does not come in time, or another job writes the same output.
        """
        self._begin()
        deadline = time.monotonic() + self._rank.timeout
        beats: set[int] = set()
        while True:
            self._check_carrier()
            said = _read(self._folder / _SESSION)
            nonces = said["nonces"] if said is not None else []
            if nonces[self.number : self.number + 1] == [self._nonce]:
                assert said is not None
                self._nonces = dict(enumerate(nonces))
                self._meet()
                return Session(said["run"], tuple((name, length) for name, length in said["before"]))
            if nonces:
                leader = _read(self._folder / f"0.{nonces[0]}") or {}
                beats.add(leader.get("beats", 0))
                if len(beats) > 2:
                    raise RankError(f"{self._folder.parent}: another job is at work there", resumable=True)
            if time.monotonic() > deadline:
                raise RankError(
                    f"rank 0 has not begun within {self._rank.timeout:g} s; is it started with the same "
                    f"command{self._sharing}?",
                    resumable=True,
                )
            time.sleep(_PAUSE)

    # --- staying together ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if another rank has failed or is lost; looks at most twice a second.

        Raises:
            RankError: the first such rank is named.
        """
        now = time.monotonic()
        if now - self._checked < 0.5 * min(1.0, self._rank.timeout):
            return
        self._checked = now
        self._check_carrier()
        for number, nonce in list(self._nonces.items()):  # rank 0 may still be finding others
            if number == self.number:
                continue
            said = _read(self._folder / f"{number}.{nonce}")
            if said is not None and said.get("state") == _FAILED:
                raise RankError(f"rank {number} has failed: {said['words']}", resumable=bool(said["resumable"]))
            beats = said["beats"] if said is not None else -1
            clock = now if self._carrier is None else self._carrier.clock()
            before, since = self._seen.get(number, (-2, clock))
            if beats != before:
                self._seen[number] = beats, clock
            elif clock - since > self._rank.timeout:
                text = f"rank {number} is lost: there was no sign of it for {self._rank.timeout:g} s; {_AGAIN}"
                raise RankError(text, resumable=True)
            if said is None and not self._folder.exists():
                raise RankError(f"rank 0 has ended; {_AGAIN}", resumable=True)

    def _check_carrier(self) -> None:
        if self._carrier is not None:
            self._carrier.check()

    def tell(self) -> None:
        """Let the others see now what this rank has written.

        Raises:
            SendError: that cannot be done.
        """
        if self._carrier is not None:
            self._carrier.carry()

    def say_cleared(self) -> None:
        """As rank 0: say that what the place of an output held before is removed."""
        self._say(_CLEARED)

    def is_cleared(self) -> bool:
        """As another rank: whether rank 0 has said so."""
        return self._said(0, _CLEARED) is not None

    def written(self) -> None:
        """Say that all of this rank's bytes are on the disk, and as rank 0 wait until all say so.

        Raises:
            RankError: a rank has failed or is lost.
        """
        self._say(_WRITTEN)
        self.tell()
        if self.number == 0:
            self._wait_for(_WRITTEN, [number for number in self._nonces if number])

    def say_result(self, result: Any) -> None:
        """As rank 0: tell the others what only rank 0 knows of the output, as plain values."""
        with self._lock:
            self._state["result"] = result

    def wait_for_output(self) -> Any:
        """As another rank: wait until rank 0 has put the output in its place. Gives what it has said of it.

        Raises:
            RankError: rank 0 has failed or is lost.
        """
        while (said := self._said(0, _DONE)) is None:
            self.check()
            time.sleep(_PAUSE)
        return said.get("result")

    def _wait_for(self, state: str, numbers: list[int]) -> None:
        while not all(self._said(number, state) for number in numbers):
            self.check()
            time.sleep(_PAUSE)

    def _said(self, number: int, state: str) -> dict[str, Any] | None:
        """What a rank says now, if it has reached a state."""
        said = _read(self._folder / f"{number}.{self._nonces[number]}")
        found = said.get("state") if said is not None else None
        return said if found in _ORDER and _ORDER.index(found) >= _ORDER.index(state) else None

    def end(self, failure: BaseException | None) -> None:
        """Tell the others how this rank has ended. Rank 0 waits for them to hear it, and removes the folder."""
        if self._thread is None:
            return
        if self.number:  # what it says now is the last: rank 0 then removes everything
            self._ended.set()
            self._thread.join()
        if failure is None:
            self._say(_LEFT if self.number else _DONE)
            self._wait_until_left(self._rank.timeout)
        else:
            self.fail(failure)
        self._ended.set()
        self._thread.join()
        if self._carrier is not None:
            with suppress(RamergeError):  # how this rank has ended matters more
                self._carrier.end()
        if self.number == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):
                self._folder.parent.rmdir()

    def fail(self, failure: BaseException) -> None:
        """Tell the others that this rank has failed. Rank 0 waits until none of them writes or sends any more."""
        if self._thread is not None and not self._has_failed:
            self._has_failed = True
            self._say(_FAILED, words=_in_words(failure), resumable=_is_resumable(failure))
            self._wait_until_left(min(_PARTING_SECONDS, self._rank.timeout))

    def _wait_until_left(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        others = [number for number in self._nonces if number and self.number == 0]
        while not all(map(self._has_left, others)) and time.monotonic() < deadline:
            time.sleep(_PAUSE)

    def _has_left(self, number: int) -> bool:
        said = _read(self._folder / f"{number}.{self._nonces[number]}")
        return said is not None and said.get("state") in (_LEFT, _FAILED)

    # --- signs of life ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._carrier is not None:
            self._folder.mkdir(exist_ok=True)
            self._carrier.begin()
        self._thread = threading.Thread(target=self._live, name="ramerge-rank", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        while True:
            self._beat()
            if self._ended.wait(min(_BEAT_SECONDS, self._rank.timeout / 10)):
                return

    def _say(self, state: str, **more: Any) -> None:
        with self._lock:
            if self._state["state"] != _FAILED:
                self._state |= {"state": state, **more}
        self._beat()

    def _beat(self) -> None:
        with self._lock, suppress(OSError):  # who cannot write is lost for the others
            self._beats += 1
            text = json.dumps({**self._state, "beats": self._beats})
            _replace(self._folder / self.own, text)


def _in_words(failure: BaseException) -> str:
    if isinstance(failure, StoppedError):
        return f"it was stopped by signal {failure.number}"
    if isinstance(failure, OSError):
        return f"{failure.filename or 'a file'}: {reason(failure)}"
    return str(failure)[:2000] or type(failure).__name__


def _is_resumable(failure: BaseException) -> bool:
    if isinstance(failure, RankError):
        return failure.resumable
    return isinstance(failure, StoppedError | KeyboardInterrupt) or not isinstance(failure, InputError | OSError)


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(text)
    partial.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
