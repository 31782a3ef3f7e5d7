"""Kills at random moments: `python -m tests.e2e.kills` (`make kills`).

Every round draws a kind, a command, what lies at the output before, and one to three kills with SIGKILL. A kind is an
executor that writes to a folder, or threads that write to a bucket of a real server. After each kill the output must
be what it was or the new one, whole; in a bucket it may also be what cannot be taken for a model. Then the same command
is run once more: it must give the bytes of an undisturbed run, leave nothing next to them, and do again at most one
block for each worker that was killed. With Ray a block is done when it has been handed over, so there it is what tasks
did in half a second. What is drawn follows from the seed; what the clock does with it, does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import obstore

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.ray import RayExecutor, connection
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.output.lifecycle import output_dir
from ramerge.core.recipe.document import document_of
from ramerge.core.storage.schemes import open_upload
from ramerge.core.storage.upload import CLAIM, is_shard_of_run
from ramerge.deltas import make, run
from ramerge.deltas.spool import SpoolSlots
from tests.checkpoints import recipe, write_simple
from tests.e2e.kills import BLOCK, WORKERS, ended, forked, left_behind, weights_of
from tests.engine.executors.cluster import two_nodes
from tests.engine.executors.wrapped import Around
from tests.engine.test_uploads import as_written_here, shards_of
from tests.plans import planned
from tests.storage import seaweed

_MOST_RUNS = 5
_OLD = {"ramerge.json": b'{"ramerge_version": "0"}', "model.safetensors": b"old" * 1000}


@dataclass(frozen=True)
class Command:
    """What is run.

    Attributes:
        recipe: what is different from the usual recipe; None for a model by itself, written in float32.
        options: of the plan.
        large: whether its weights take several parts of an upload, begun while they are merged, and its tensors several
            blocks of a delta.
        agent: of `ramerge delta`: the agent.
    """

    recipe: Mapping[str, Any] | None
    options: Mapping[str, Any] = field(default_factory=dict)
    large: bool = False
    agent: str | None = None


COMMANDS = {
    "merge, ram+": Command({"method": "ram+"}),
    "merge, ram, several shards": Command({"method": "ram", "shard_size": "2KB", "rounding": "stochastic"}),
    "merge, ties": Command({"method": "ties"}),
    "sweep": Command({}, {"vary": {"parameters.r": [0, 0.1, 0.2]}}),
    "merge as a delta": Command({}, {"kind": "delta"}),
    "merge as a delta, large": Command({}, {"kind": "delta"}, large=True),
    "delta": Command(None, large=True, agent="tool"),
    "convert": Command(None),
    "merge, ram+, in parts": Command({"method": "ram+"}, large=True),
}
_LARGE = (1500, 1800)  # three such tensors are four parts of the least size
_LARGE_BLOCK = 1 << 18
# How slow a block is made, so that moments in the middle are as likely as others; and its elements.
PACE = {
    "threads": (0.004, BLOCK),
    "ray": (0.03, BLOCK),
    "bucket": (0.01, BLOCK),
}
# How often each kind has its turn.
SHARES = {"threads": 0.35, "ray": 0.25, "bucket": 0.4}


@dataclass(frozen=True)
class Logged:
    """Takes its time, and appends a byte to a file whenever a block is begun."""

    log: str
    seconds: float

    def __call__(self, process: Any, worker: Any, block: Any) -> Any:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b".")
        os.close(descriptor)
        time.sleep(self.seconds)
        return process(worker, block)


def logged(executor: Any, log: Path, seconds: float) -> Around:
    """An executor that does so for each block."""
    return Around(executor, Logged(str(log), seconds))


class Place:
    """An output folder.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.work, self.name = path, output_dir(path).work, str(path)

    def files(self) -> dict[str, bytes]:
        """What is there."""
        return {str(each.relative_to(self.path)): each.read_bytes() for each in self.path.rglob("*") if each.is_file()}

    def put(self, files: Mapping[str, bytes]) -> None:
        """Make it hold files."""
        self.path.mkdir()
        for name, data in files.items():
            (self.path / name).write_bytes(data)

    def clear(self) -> None:
        """Remove it, and what lies next to it."""
        for path in (self.path, self.work):
            shutil.rmtree(path, ignore_errors=True)

    def is_no_model(self, files: Mapping[str, bytes]) -> bool:
        """Whether a reader is told that no model is there."""
        return False

    def left(self) -> list[str]:
        """What lies next to it."""
        return left_behind(self.path)


class InBucket(Place):
    """An output in a bucket.

    Args:
        server: has the bucket.
        name: of its folder there.
        staging: where files lie until they are sent.
    """

    def __init__(self, server: seaweed.Server, name: str, staging: Path) -> None:
        self._server, self._folder, self._staging = server, name, staging
        self.name = f"s3://{seaweed.BUCKET}/{name}"
        self.work = output_dir(open_upload(self.name, staging, public=False)).work

    def files(self) -> dict[str, bytes]:
        """See `Place`, under the names of a local output."""
        return as_written_here(self._server.files(self._folder), whole=False)

    def put(self, files: Mapping[str, bytes]) -> None:
        """See `Place`."""
        for name, data in files.items():
            obstore.put(self._server.bucket(), f"{self._folder}/{name}", data)

    def clear(self) -> None:
        """See `Place`."""
        obstore.delete(self._server.bucket(), [f"{self._folder}/{name}" for name in self._server.files(self._folder)])
        shutil.rmtree(self._staging, ignore_errors=True)

    def is_no_model(self, files: Mapping[str, bytes]) -> bool:
        """See `Place`: a run has its claim there, or no index names shards of a run, which a local output has not."""
        return CLAIM in files or not shards_of(self._server.files(self._folder))

    def left(self) -> list[str]:
        """See `Place`."""
        here = [str(path) for path in self._staging.rglob("*")] if self._staging.exists() else []
        files = self._server.files(self._folder)
        strays = {name for name in files if is_shard_of_run(name) or name == CLAIM} - shards_of(files)
        return [*here, *strays]


@dataclass(frozen=True)
class Job:
    """A command with its folders; plain, because it is given to other processes."""

    folder: str
    command: str
    executor: str
    out: str
    address: str = ""
    staging_dir: str | None = None

    @property
    def log(self) -> Path:
        """Where blocks are noted."""
        return Path(self.folder) / "log"

    def run(self) -> None:
        """Carry it out in this process."""
        command, folder = COMMANDS[self.command], Path(self.folder)
        if command.agent is not None:
            self._make_delta(folder / "large" / "base", folder / "large" / command.agent)
            return
        source: Any = document_of(str(folder / "base"), "model")
        source.set(("dtype",), "float32", "dtype")
        if command.recipe is not None:
            source = (
                json.loads((folder / ("large" if command.large else "") / "recipe.json").read_text()) | command.recipe
            )
        plan = planned(source, self.out, cache=False, overwrite=True, staging_dir=self.staging_dir, **command.options)
        seconds, block = PACE[self.executor]
        block = _LARGE_BLOCK if command.large else block
        plan = replace(plan, resources=replace(plan.resources, block_elements=block, workers=WORKERS))
        if self.executor == "ray":
            with connection({"address": self.address}) as ray:
                made = RayExecutor(ray, WORKERS, 2, plan.resources.memory_of)
                execute(plan, logged(made, self.log, seconds))
        else:
            execute(plan, logged(ThreadExecutor(WORKERS), self.log, seconds))

    def _make_delta(self, base: Path, agent: Path) -> None:
        """A delta in blocks as small as can be."""
        seconds, _ = PACE[self.executor]

        @contextmanager
        def chosen(cluster: ramerge.Ray | None, _workers: int, memory: Any) -> Iterator[Around]:
            if cluster is None:
                yield logged(ThreadExecutor(WORKERS), self.log, seconds)
                return
            with connection({"address": cluster.address}) as ray:
                yield logged(RayExecutor(ray, WORKERS, 2, memory), self.log, seconds)

        def compared(*models: Any) -> make.DeltaWork:
            work = make.plan_delta(*models)
            return replace(work, slots=SpoolSlots([replace(entry, together=1) for entry in work.slots.entries]))

        run.chosen_executor, run.plan_delta = chosen, compared
        cluster = ramerge.Ray(address=self.address) if self.executor == "ray" else None
        options = ramerge.Options(overwrite=True, upload=ramerge.Upload(staging_dir=self.staging_dir), ray=cluster)
        ramerge.delta(base, agent, self.out, options=options)

    def start(self) -> int:
        """Begin it in another process. Returns its id."""
        if self.executor == "threads":
            return forked(self._quietly)
        # a fork would share what this process has of the cluster or of obstore
        words = [sys.executable, "-m", "tests.e2e.kills", "--job", json.dumps(vars(self))]
        return forked(lambda: (self._redirect(), os.execv(words[0], words)))

    def _quietly(self) -> None:
        self._redirect()
        self.run()

    def _redirect(self) -> None:
        descriptor = os.open(Path(self.folder) / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 2)


def main() -> int:
    """Exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=SHARES, help="one kind")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.job:
        Job(**json.loads(chosen.job)).run()
        return 0
    shares = {chosen.only: 1.0} if chosen.only else SHARES
    counted, failures, began = Counter[tuple[str, str, str]](), 0, time.monotonic()
    for executor, share in shares.items():
        with tempfile.TemporaryDirectory(prefix="ramerge-kills-") as folder, ExitStack() as stack:
            address = stack.enter_context(two_nodes()).address if executor == "ray" else ""
            server = stack.enter_context(_bucket(Path(folder))) if "bucket" in executor else None
            drawn = random.Random(f"{chosen.seed} {executor}")
            rounds = _Rounds(Path(folder), executor, address, server, drawn, counted)
            failures += rounds.run(round(chosen.kills * share))
    _print_counts(counted)
    kills = sum(number for (_, _, what), number in counted.items() if what == "kills")
    print(f"{kills:,} kills, {failures:,} rounds that ended wrongly, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


@contextmanager
def _bucket(folder: Path) -> Iterator[seaweed.Server]:
    """A server that this process and all that it starts find."""
    (folder / "server").mkdir()
    with seaweed.running(folder / "server") as server:
        os.environ.update(server.environment)
        yield server


class _Rounds:
    """All rounds of an executor."""

    def __init__(
        self,
        folder: Path,
        executor: str,
        address: str,
        server: seaweed.Server | None,
        drawn: random.Random,
        counted: Counter[tuple[str, str, str]],
    ) -> None:
        self._folder, self._executor, self._address, self._server = folder, executor, address, server
        self._drawn, self._counted = drawn, counted
        (folder / "recipe.json").write_text(json.dumps(recipe(folder, write_simple(folder))))
        large = folder / "large"
        (large / "recipe.json").write_text(json.dumps(recipe(large, write_simple(large, shape=_LARGE))))
        self._whole: dict[str, tuple[dict[str, bytes], int, float]] = {}

    def run(self, kills: int) -> int:
        """So many kills; how many rounds ended wrongly."""
        failures, done, number = 0, 0, 0
        commands = list(COMMANDS)
        while done < kills:
            command = commands[number % len(commands)]
            before = self._counted[self._executor, command, "kills"]
            if problems := self._round(command, min(self._drawn.randrange(1, 4), kills - done)):
                failures += 1
                print(f"\nROUND {number}: {self._executor}, {command}")
                print("".join(f"    {problem}\n" for problem in problems), end="")
                said = self._folder / "said"
                print("    said: " + said.read_text()[-3000:].replace("\n", "\n          ") if said.exists() else "")
            done += max(self._counted[self._executor, command, "kills"] - before, 0)
            number += 1
            if number % 10 == 0:
                print(f"{self._executor}: {done} kills, {failures} rounds that ended wrongly", flush=True)
        return failures

    def _round(self, command: str, kills: int) -> list[str]:
        self._learn(command)
        wanted, of_all, took = self._whole[command]
        place = self._place("out")
        job, old = self._job(command, place), self._drawn.random() < 0.4
        self._clear(place)
        if old:
            place.put(_OLD)
        before = place.files()
        problems: list[str] = []
        killed = workers = 0
        for _ in range(kills):
            early, share = self._drawn.random() < 0.15, self._drawn.random()
            lost = self._kill(job, place, took * share, early=early)
            killed, workers = killed + lost, workers + lost * WORKERS
            found = place.files()
            if found != before and not place.is_no_model(found):
                of_all *= 2  # the kill came too late, so the next run does everything again
                if weights_of(found) != wanted:
                    problems.append(f"after kill {killed} the output is neither the old nor the new: {_names(found)}")
                break
        runs = self._finish(job)
        if runs != 1:
            problems.append(f"the next run ended well only the {runs}. time" if runs else "no further run ends well")
        if weights_of(found := place.files()) != wanted:
            problems.append(f"the bytes are not those of an undisturbed run: {_names(found)}")
        if left := place.left():
            problems.append(f"left next to it: {', '.join(left)}")
        again = job.log.stat().st_size - of_all
        if again > workers and self._executor != "ray":
            problems.append(f"{again} blocks were done again after {killed} kills of {workers} workers in all")
        for what, number in {"rounds": 1, "kills": killed, "again": max(again, 0), "workers": workers}.items():
            self._counted[self._executor, command, what] += number
        return problems

    def _learn(self, command: str) -> None:
        """The bytes and blocks of an undisturbed run, and its seconds from the first record on."""
        if command in self._whole:
            return
        place = self._place("whole")
        job = self._job(command, place)
        self._clear(place)
        child = job.start()
        _wait_for_journal(place, child)
        began = time.monotonic()
        assert not ended(child), (self._folder / "said").read_text()
        self._whole[command] = weights_of(place.files()), job.log.stat().st_size, time.monotonic() - began

    def _place(self, name: str) -> Place:
        if self._server is None:
            return Place(self._folder / name)
        return InBucket(self._server, name, self._folder / "staging")

    def _job(self, command: str, place: Place) -> Job:
        staging = str(self._folder / "staging") if self._server is not None else None
        return Job(str(self._folder), command, self._executor, place.name, self._address, staging)

    def _clear(self, place: Place) -> None:
        place.clear()
        for name in ("log", "said"):
            (self._folder / name).unlink(missing_ok=True)

    def _finish(self, job: Job) -> int:
        """Run until it ends well. Returns which time that was; 0 for never."""
        for number in range(1, _MOST_RUNS + 1):
            if not ended(job.start()):
                return number
        return 0

    def _kill(self, job: Job, place: Place, seconds: float, *, early: bool) -> bool:
        """Begin the job, and kill it. False if it was done before."""
        seen = _journal(place)
        child = job.start()
        if not early:
            _wait_for_journal(place, child, seen)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the id is still its own
        return ended(child) == -signal.SIGKILL


def _journal(place: Place) -> frozenset[Path]:
    return frozenset((place.work / "journal").glob("[0-9]*"))


def _wait_for_journal(place: Place, child: int, seen: frozenset[Path] = frozenset()) -> None:
    """Until work begins."""
    while not _journal(place) - seen and _runs(child):
        time.sleep(0.002)


def _runs(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _names(files: Mapping[str, bytes]) -> str:
    return ", ".join(sorted(files)) or "nothing"


def _print_counts(counted: Counter[tuple[str, str, str]]) -> None:
    columns = ("rounds", "kills", "workers", "again")
    titles = ("rounds", "kills", "workers killed", "blocks done again")
    print("\n" + " " * 40 + "".join(f"{title:>20}" for title in titles))
    for executor, command in dict.fromkeys((executor, command) for executor, command, _ in counted):
        cells = "".join(f"{counted[executor, command, column]:>20,}" for column in columns)
        print(f"{f'{executor}: {command}':<40}{cells}")


if __name__ == "__main__":
    sys.exit(main())
