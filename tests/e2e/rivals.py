"""Two jobs on one folder of a bucket: `python -m tests.e2e.rivals`.

Every trial draws two of the seven commands that write, and what the folder holds before. Both jobs run at once, with
random pauses before their requests, or one of them is stopped (SIGSTOP) at some request and continues when the other
one has ended. Afterwards the folder must hold the complete output of a job that said so, and nothing else; jobs whose
times overlap must not both say so; and one of the two must. The server is a real one. What is drawn follows from the
seed; what the clock does with it, does not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

import obstore

import ramerge
from tests.checkpoints import simple, write_checkpoint
from tests.e2e.kills import weights_of
from tests.engine.test_uploads import as_written_here, plain
from tests.storage import seaweed

REQUESTS = ("put", "get", "head", "list", "delete")
MODES = ("at once", "one stopped before the other begins", "at once, one stopped")
_PAUSE_SECONDS = 0.02
_SECONDS = 120
_AGENTS = ("code", "tool")
# What a job may say that did not win.
_DEFEATED = ("another job", "holds files", "another program has changed")


def commands(folder: Path) -> dict[str, list[str]]:
    """The words of each command, without the output."""
    base, agents = str(folder / "base"), [f"--agent={name}={folder / name}" for name in _AGENTS]
    merged = ["--base", base, *agents, "--shard-size", "2KB", "--no-cache"]
    return {
        "merge": ["merge", *merged],
        "merge --as-delta": ["merge", *merged, "--as-delta"],
        "sweep": ["sweep", *merged, "--vary", "parameters.r=0,0.1"],
        "convert": ["convert", str(folder / "code"), "--shard-size", "2KB", "--dtype", "float32"],
        "delta": ["delta", "--base", base, "--agent", f"code={folder / 'code'}"],
        "apply": ["apply", "--base", base, str(folder / "changes")],
        "soup": ["soup", *(str(folder / name) for name in _AGENTS), "--shard-size", "2KB"],
    }


KINDS = tuple(commands(Path()))


def write_inputs(folder: Path) -> None:
    """Models of one base, whose small files are equal, and a delta."""
    for seed, name in enumerate(("base", *_AGENTS)):
        write_checkpoint(folder / name, simple(seed, moved=0.3 * bool(seed)))
        for other in ("special_tokens_map.json", "generation_config.json", "vocab.json"):
            (folder / name / other).write_text("{}")
    ramerge.delta(folder / "base", folder / "code", folder / "changes")


@dataclass(frozen=True)
class Job:
    """A command in a process of its own.

    Attributes:
        words: of the command.
        log: a folder for what is known of it.
        seed: of its pauses; 0 for none.
        stop: the number of the request at which it stops, or the object that it is about to put; -1 for none.
        start: a file for which it waits when all is imported; empty for none.
    """

    words: Sequence[str]
    log: str
    seed: int = 0
    stop: int | str = -1
    start: str = ""

    def begin(self) -> subprocess.Popen[bytes]:
        """Start it."""
        Path(self.log).mkdir(parents=True)
        with Path(self.log, "said").open("wb") as said:
            words = [sys.executable, "-m", "tests.e2e.rivals", "--job", json.dumps(asdict(self))]
            return subprocess.Popen(words, stdout=said, stderr=said)

    def run(self) -> None:
        """Carry it out in this process."""
        from ramerge.cli.main import main
        from ramerge.core.storage.bucket_upload import BucketUpload

        drawn, requests = random.Random(self.seed), count()

        def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                began = time.time()
                result = real(*arguments, **options)
                with Path(self.log, "times").open("a") as times:
                    times.write(json.dumps([name, began if name == "begin" else time.time()]) + "\n")
                return result

            return called

        def paused(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                number = next(requests)
                Path(self.log, "requests").write_text(str(number))
                if self.seed:
                    time.sleep(drawn.random() * _PAUSE_SECONDS)
                if number == self.stop or (name == "put" and arguments[1] == self.stop):
                    os.kill(os.getpid(), signal.SIGSTOP)
                return real(*arguments, **options)

            return called

        for name in ("begin", "commit"):
            setattr(BucketUpload, name, noted(name, getattr(BucketUpload, name)))
        for name in REQUESTS:
            setattr(obstore, name, paused(name, getattr(obstore, name)))
        Path(self.log, "ready").touch()
        while self.start and not Path(self.start).exists():
            time.sleep(0.001)
        sys.argv = ["ramerge", *self.words]
        main()

    @property
    def requests(self) -> int:
        """How many requests it has made."""
        return int(Path(self.log, "requests").read_text()) + 1

    @property
    def said(self) -> str:
        """What it printed."""
        return Path(self.log, "said").read_text()

    @property
    def times(self) -> dict[str, float]:
        """When it looked at the folder first, and when its output was complete; what it came to."""
        path = Path(self.log, "times")
        return dict(map(json.loads, path.read_text().splitlines())) if path.exists() else {}


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        kinds: of the two jobs; the first one is stopped, where one is.
        mode: how they run, of `MODES`.
        old: the kind of what the folder holds before, which both replace; empty for nothing.
        moment: where the first one is stopped, as a part of its requests, or by the object that it is about to put.
    """

    kinds: tuple[str, str]
    mode: str
    old: str
    moment: float | str


def trials(number: int, seed: int) -> Iterator[Trial]:
    """Every ordered pair of kinds in turn, each time in another mode."""
    drawn = random.Random(seed)
    pairs = list(product(KINDS, KINDS))
    drawn.shuffle(pairs)
    for one in range(number):
        turn, pair = divmod(one, len(pairs))
        old = drawn.choice(KINDS) if drawn.random() < 0.5 else ""
        # most of what matters happens at the end
        moment = max(drawn.random(), drawn.random())
        yield Trial(pairs[pair], MODES[(turn + pair) % len(MODES)], old, moment)


class Rivals:
    """Runs trials against a server, which the environment must name.

    Args:
        server: the server.
        folder: for inputs, logs and files until they are uploaded.
        seed: of the pauses.
    """

    def __init__(self, server: seaweed.Server, folder: Path, seed: int = 0) -> None:
        self._server, self._folder, self._seed = server, folder, seed
        self._words = commands(folder)
        self._number = count()
        self._whole: dict[str, tuple[dict[str, bytes], set[str], int]] = {}
        write_inputs(folder)

    def run(self, trial: Trial) -> tuple[str, list[str]]:
        """Carry a trial out: how it ended in a few words, and what was wrong."""
        for kind in {*trial.kinds, trial.old} - {""}:
            self._learn(kind)
        number = next(self._number)
        name = f"trial-{number}"
        if trial.old:
            self._finish(self._job(trial.old, name, f"{name}-old"))
        start, together, stops = self._folder / f"{name}-start", trial.mode != MODES[1], trial.mode != MODES[0]
        moment = trial.moment
        at = moment if isinstance(moment, str) else round(moment * self._whole[trial.kinds[0]][2])
        jobs = [
            self._job(
                kind,
                name,
                f"{name}-{index}",
                overwrite=bool(trial.old),
                seed=2 * (number + self._seed) + index + 1,
                stop=at if stops and index == 0 else -1,
                start=str(start),
            )
            for index, kind in enumerate(trial.kinds)
        ]
        first = jobs[0].begin()
        processes = [first, jobs[1].begin()] if together else [first]
        for job in jobs[: len(processes)]:
            _wait_for(Path(job.log, "ready"))
        start.touch()
        stopped = stops and _stops(first)
        if not together:
            processes.append(jobs[1].begin())
        processes[1].wait(_SECONDS)
        if stopped:
            os.kill(first.pid, signal.SIGCONT)
        first.wait(_SECONDS)
        return self._judge(trial, name, jobs, [process.returncode for process in processes], stopped=stopped)

    def _judge(
        self, trial: Trial, name: str, jobs: Sequence[Job], codes: Sequence[int], *, stopped: bool
    ) -> tuple[str, list[str]]:
        winners = [index for index, code in enumerate(codes) if code == 0]
        problems = [
            f"{trial.kinds[index]} ended with {code}: {jobs[index].said[-500:]}"
            for index, code in enumerate(codes)
            if code and (code not in (1, 2) or not any(said in jobs[index].said for said in _DEFEATED))
        ]
        winners.sort(key=lambda index: jobs[index].times["commit"])
        if not winners:
            problems.append("neither job completed its output")
        elif len(winners) == len(jobs) and jobs[winners[1]].times["begin"] < jobs[winners[0]].times["commit"]:
            problems.append("both jobs, which were at work at the same time, say that they have completed the output")
        files = self._server.files(name)
        for winner in winners[-1:]:
            problems += self._differences(trial.kinds[winner], files)
        how = ["none of the two", "the first", "the second", "one after the other"]
        ended = how[3 if len(winners) > 1 else winners[0] + 1 if winners else 0]
        return f"{'stopped' if stopped else 'not stopped'}: {ended}", problems

    def _differences(self, kind: str, files: Mapping[str, bytes]) -> list[str]:
        """What is not as after a job that was alone."""
        wanted, names, _ = self._whole[kind]
        found = {plain(name) for name in files}
        problems = [f"{name} is missing" for name in sorted(names - found)]
        problems += [f"{name} is left" for name in sorted(found - names)]
        try:
            same = weights_of(as_written_here(dict(files)))
        except AssertionError:
            return [*problems, f"an index does not name the shards that are there: {sorted(files)}"]
        return [*problems, *(f"{name} is that of another job" for name in wanted if same.get(name) != wanted[name])]

    def _learn(self, kind: str) -> None:
        """The output of a job that is alone, its names, and the number of its requests."""
        if kind not in self._whole:
            name = f"alone-{KINDS.index(kind)}"
            job = self._job(kind, name, name)
            self._finish(job)
            files = self._server.files(name)
            self._whole[kind] = weights_of(as_written_here(files)), set(map(plain, files)), job.requests

    def _job(self, kind: str, name: str, log: str, *, overwrite: bool = False, **options: Any) -> Job:
        staging = ["--staging-dir", str(self._folder / f"{log}-staging")]
        words = [*self._words[kind], f"s3://{seaweed.BUCKET}/{name}", *staging, *["--overwrite"] * overwrite]
        return Job(words, str(self._folder / f"{log}-log"), **options)

    @staticmethod
    def _finish(job: Job) -> None:
        assert job.begin().wait(_SECONDS) == 0, job.said


def _stops(process: subprocess.Popen[bytes]) -> bool:
    """Wait until a process stops or ends. Whether it has stopped."""
    while process.poll() is None:
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        if found is not None and found.si_code == os.CLD_STOPPED:
            return True
        time.sleep(0.002)
    return False


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _SECONDS
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.002)


def main() -> int:
    """Exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.rivals", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        Job(**json.loads(chosen.job)).run()
        return 0
    counted, failures, began = Counter[tuple[str, str]](), 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ramerge-rivals-") as temporary:
        folder = Path(temporary)
        (folder / "server").mkdir()
        with seaweed.running(folder / "server") as server:
            os.environ.update(server.environment)
            rivals = Rivals(server, folder, chosen.seed)
            for number, trial in enumerate(trials(chosen.trials, chosen.seed)):
                ended, problems = rivals.run(trial)
                counted[trial.mode, ended] += 1
                if problems:
                    failures += 1
                    print(f"\nTRIAL {number}: {trial}: {ended}")
                    print("".join(f"    {problem}\n" for problem in problems), end="", flush=True)
                if number % 20 == 19:
                    print(f"{number + 1} trials, {failures} that ended wrongly", flush=True)
    for (mode, ended), times in sorted(counted.items()):
        print(f"{mode:<40}{ended + ' completed its output':<60}{times:>5,}")
    print(f"{chosen.trials:,} trials, {failures:,} that ended wrongly, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
