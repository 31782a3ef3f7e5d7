"""Models that several processes make and send to a bucket of a real S3 server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.checkpoint import relay
from ramerge.checkpoint.storage.board import Board
from ramerge.checkpoint.storage.objects import MARKER, RANKS, Bucket
from ramerge.checkpoint.storage.objects_out import ObjectsOut
from ramerge.engine import journal
from ramerge.engine.ranks import Rank, Team
from ramerge.foundation.errors import OutputWarning, RamergeError, SendError
from tests import kills
from tests.checkpoints import recipe, simple, write_checkpoint, write_simple
from tests.executors import cluster
from tests.storage.killed import started
from tests.storage.seaweed import BUCKET, Server
from tests.storage.test_outputs import CASES, expected, found, left
from tests.test_ranks import SECONDS, side_by_side

WORLD = 3


@pytest.fixture(autouse=True)
def stage(own_cache: Path) -> Path:
    """Where files lie until they are sent, which all processes see."""
    return own_cache / "outputs"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return recipe(tmp_path, write_simple(tmp_path)) | {"shard_size": "2KB"}


def in_threads(
    source: dict[str, Any], out: str | Path, world: int = WORLD, **options: Any
) -> list[BaseException | None]:
    """Ranks in threads of this process; how each of them ended."""
    ranks = [Rank(number, world, SECONDS) for number in range(world)]
    return side_by_side([lambda rank=rank: kills.merge(source, out, rank=rank, **options) for rank in ranks])


def on_ranks(_request: pytest.FixtureRequest) -> Callable[[dict[str, Any], str], None]:
    def merge(source: dict[str, Any], out: str) -> None:
        assert in_threads(source, out) == [None] * WORLD

    return merge


def on_ray(request: pytest.FixtureRequest) -> Callable[[dict[str, Any], str], None]:
    ray: Any = request.getfixturevalue("connected")
    return lambda source, out: cluster.merge(ray, source, out, block=kills.BLOCK)


# A cluster takes all cases in one test, because it would start in each process of tests.
TOGETHER = {**{f"ranks-{case}": (on_ranks, [case]) for case in CASES}, "ray": (on_ray, list(CASES))}


@pytest.mark.parametrize(("executor", "cases"), TOGETHER.values(), ids=TOGETHER)
def test_the_output_is_that_of_threads(
    executor: Callable[..., Any],
    cases: list[str],
    s3: Server,
    source: dict[str, Any],
    stage: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    merge = executor(request)
    for case in cases:
        name = f"{executor.__name__}/{case.replace(' ', '-')}"
        merge(source | CASES[case], f"s3://{BUCKET}/{name}")
        assert found(s3, name) == expected(source | CASES[case], tmp_path / case)
        assert left(stage) == [] and MARKER not in s3.files(name)


# Which rank is killed, and when. Rank 0 puts the marker, too.
MOMENTS = [
    (0, "record", 3),
    (0, "record", 30),
    (0, "sent", 0),
    (0, "emptied", 1),
    (0, "put", 1),
    (0, "put", 4),
    (0, "removed", 0),
    (2, "record", 3),
    (2, "record", 30),
    (2, "sent", 0),
    (2, "emptied", 1),
    (2, "put", 0),
    (0, "told", 9),
    (2, "told", 7),
]


@pytest.mark.parametrize(("killed", "what", "number"), MOMENTS)
def test_a_killed_rank_ends_all_and_any_number_goes_on(
    killed: int, what: str, number: int, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    wanted, name = expected(source, tmp_path / "here"), f"ranks-killed/{killed}-{what}-{number}"
    out = f"s3://{BUCKET}/{name}"
    processes = [
        started(source, out, what if rank == killed else "never", number, rank=[rank, WORLD, 4.0])
        for rank in range(WORLD)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes[killed] == -signal.SIGKILL
    ended = [(code, text) for code, text in zip(codes, said, strict=True) if code >= 0]
    assert all(code == 1 and f"rank {killed} " in text for code, text in ended), said
    there = s3.files(name)
    assert MARKER in there and ("model.safetensors.index.json" not in there or what == "removed")
    assert left(stage)
    assert goes_on(source, out) == [None, None]
    assert {key for key in there if key.endswith(".safetensors")} <= wanted.keys()
    assert found(s3, name) == wanted
    assert left(stage) == [] and s3.uploads(name) == []


def goes_on(source: dict[str, Any], out: str, world: int = 2, **options: Any) -> list[BaseException | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutputWarning)
        return in_threads(source, out, world, **options)


def test_a_rank_is_killed_within_its_upload(s3: Server, stage: Path, tmp_path: Path) -> None:
    """The parts that it leaves are removed by the next run, and by `clean`."""
    for seed, name in enumerate(["base", "code"]):
        write_checkpoint(tmp_path / name, simple(seed, moved=0.3 * bool(seed), shape=(1500, 1800)))
    source = recipe(tmp_path, ["code"], method="ram", shard_size="6MB")
    out, number = f"s3://{BUCKET}/ranks-within", 1
    for ends in ("clean", "continues"):
        processes = [
            started(source, out, "part" if rank == number else "never", 1, rank=[rank, 2, 4.0], block=1 << 19)
            for rank in range(2)
        ]
        assert [process.wait(120) for process in processes] == [1, -signal.SIGKILL]
        for process in processes:
            process.communicate()
        assert len(s3.uploads("ranks-within")) == 1
        if ends == "clean":
            (here, there) = ramerge.clean(out)
            assert "removed" in here and "and the parts of an upload that was broken off" in there
            assert s3.files("ranks-within") == {} and left(stage) == []
        else:
            assert goes_on(source, out, block=1 << 19) == [None, None]
    kills.merge(source, tmp_path / "here", block=1 << 19)
    assert found(s3, "ranks-within") == kills.weights(tmp_path / "here")
    assert s3.uploads("ranks-within") == []


def test_weights_that_cannot_be_merged_leave_nothing(s3: Server, source: dict[str, Any], stage: Path) -> None:
    """They are found when other shards have been sent; nothing of these is left."""
    bad = simple(1, moved=0.4)
    bad[sorted(bad)[-1]].bits[3, 3] = 0x7FC0  # NaN
    write_checkpoint(Path(next(iter(source["agents"].values()))), bad)
    ended = in_threads(source | {"method": "ram"}, f"s3://{BUCKET}/ranks-bad")
    assert all("NaN or Inf" in str(failure) for failure in ended)
    assert s3.files("ranks-bad") == {} and s3.uploads("ranks-bad") == [] and left(stage) == []


def test_an_error_of_a_server_is_one_of_all_and_is_kept(s3: Server, source: dict[str, Any], tmp_path: Path) -> None:
    out, send = f"s3://{BUCKET}/ranks-server", ObjectsOut.send
    calls = iter(range(100))

    def fails(self: ObjectsOut, name: str, *arguments: Any) -> str:
        if next(calls) == 2:
            raise SendError(f"{out}/{name}: access is denied")
        return send(self, name, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectsOut, "send", fails)
        ended = in_threads(source, out)
    assert all(isinstance(failure, RamergeError) and "access is denied" in str(failure) for failure in ended), ended
    assert "model.safetensors.index.json" not in s3.files("ranks-server")
    with pytest.warns(OutputWarning, match="begins anew: .* because what does the work .* has changed"):
        kills.merge(source, out)
    assert found(s3, "ranks-server") == expected(source, tmp_path / "here")


@pytest.mark.parametrize("shard_size", ["2KB", "5GB"])
def test_the_old_model_goes_when_rank_0_has_a_file(
    shard_size: str, s3: Server, source: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then no file of the new one is there, and afterwards none of the old one."""
    name = f"ranks-over-{shard_size}"
    out, clear, seen = s3.put(Path(source["base"]), name), ObjectsOut.clear, list[set[str]]()

    def cleared(self: ObjectsOut, *arguments: Any) -> None:
        seen.append({key for key in s3.files(name) if not key.startswith(RANKS)})
        clear(self, *arguments)

    monkeypatch.setattr(ObjectsOut, "clear", cleared)
    before = set(s3.files(name))
    assert in_threads(source | {"shard_size": shard_size}, out, overwrite=True) == [None] * WORLD
    assert seen == [before | {MARKER}]
    assert found(s3, name) == expected(source | {"shard_size": shard_size}, tmp_path / "here")


def test_sweeps(s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    vary = {"parameters.r": [0, 0.1]}
    kills.merge(source, tmp_path / "here", vary=vary)
    assert in_threads(source, f"s3://{BUCKET}/ranks-sweep", vary=vary) == [None] * WORLD
    assert kills.weights_of(s3.files("ranks-sweep")) == kills.weights(tmp_path / "here")
    assert left(stage) == []


def test_ranks_need_no_folder_that_all_see(s3: Server, source: dict[str, Any], tmp_path: Path) -> None:
    """As on machines of their own. Two of the three stages are one folder."""
    (tmp_path / "recipe.yaml").write_text(json.dumps(source))
    stages = [tmp_path / f"stage-{number}" for number in (0, 1, 1)]
    command = [sys.executable, "-m", "ramerge", "merge", str(tmp_path / "recipe.yaml"), f"s3://{BUCKET}/apart"]
    processes = [
        subprocess.Popen(
            [*command, "--executor", "ranks", "--stage", str(stage)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD)},
        )
        for rank, stage in enumerate(stages)
    ]
    assert [process.wait(120) for process in processes] == [0] * WORLD
    assert found(s3, "apart") == expected(source, tmp_path / "here")
    assert not any(map(left, stages)) and not [key for key in s3.files("apart") if key.startswith(".")]


def test_ranks_of_an_analysis_meet_in_a_bucket(s3: Server, source: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps(source))
    meet = ["--executor", "ranks", "--meet", f"s3://{BUCKET}/meet", "--json", str(tmp_path / "found.json")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "ramerge", "analyze", str(tmp_path / "recipe.yaml"), *meet],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    told = [json.loads((tmp_path / "found.json").read_text()), json.loads(ramerge.analyze(source).to_json())]
    one, other = ({**each, "seconds": 0, "peak_memory_bytes": 0} for each in told)
    assert one == other
    assert s3.files("meet") == {}


def test_a_rank_whose_rank_0_does_not_come_leaves_nothing(s3: Server, source: dict[str, Any], stage: Path) -> None:
    with pytest.raises(ramerge.RankError, match="rank 0 has not begun within 2 s"):
        kills.merge(source, f"s3://{BUCKET}/waits", rank=Rank(1, 2, 2.0))
    assert s3.files("waits") == {} and not left(stage)


def test_a_rank_that_does_not_come(s3: Server, source: dict[str, Any], stage: Path) -> None:
    with pytest.raises(
        ramerge.RankError, match=r"have not come within 2 s: 1; are all started with the same command\?"
    ):
        kills.merge(source, f"s3://{BUCKET}/alone", rank=Rank(0, 2, 2.0))
    assert s3.files("alone") == {} and not left(stage)


def test_what_a_rank_had_not_sent_is_made_again(
    s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    """Rank 2 has made more than it has sent, and its folder is gone."""
    name = "ranks-lost-disk"
    out = f"s3://{BUCKET}/{name}"
    processes = [
        started(source, out, "record" if rank == 2 else "never", 30, rank=[rank, WORLD, 4.0]) for rank in range(WORLD)
    ]
    for process in processes:
        process.communicate(timeout=120)
    (lost,) = stage.glob(".*.2.ramerge-partial")
    shutil.rmtree(lost)
    assert goes_on(source, out) == [None, None]
    assert found(s3, name) == expected(source, tmp_path / "here")


def test_a_stage_that_is_too_small(s3: Server, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "64")
    size = ramerge.plan(source).bytes_written
    monkeypatch.setattr(relay, "free_here", lambda destination: size - 1)
    monkeypatch.setattr(relay, "_FILES", 1)
    made = ramerge.plan(source, f"s3://{BUCKET}/small")
    assert made.problems == (), "one process has few files there"
    with pytest.raises(ramerge.PlanError, match=rf"needs {size:,} bytes of disk in .*--stage"):
        ramerge.merge(made, executor="ray")


def test_an_interrupted_merge_on_ray_goes_on(
    connected: Any, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    out = f"s3://{BUCKET}/ray-interrupted"

    def stop(event: ramerge.Progress) -> None:
        if event.stage == "merging" and event.done > event.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.merge(connected, source, out, stop, block=kills.BLOCK, seconds=0.02)
    assert MARKER in s3.files("ray-interrupted") and left(stage)
    with pytest.warns(OutputWarning, match="continuing: [1-9]"):
        cluster.merge(connected, source, out, block=kills.BLOCK)
    assert found(s3, "ray-interrupted") == expected(source, tmp_path / "here")
    assert left(stage) == [] and s3.uploads("ray-interrupted") == []


def test_a_list_that_lacks_what_was_put_while_it_was_made(
    s3: Server, source: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the additions to a file it names a later one, and not the one before."""
    fetch, real, hidden = Board._fetch_all, Bucket.list, dict[Board, str]()
    fetching = threading.local()

    def fetched(board: Board) -> None:
        fetching.board = board
        try:
            fetch(board)
        finally:
            del fetching.board

    def listed(bucket: Bucket, below: str | None = None) -> dict[str, Any]:
        there = real(bucket, below)
        board = getattr(fetching, "board", None)
        if board is not None and board not in hidden:
            news = [key for key in there if key.split("/")[1] in board._members and key not in board._seen]
            for key in news:
                file, _, start = key.rpartition("@")
                if any(int(other.rpartition("@")[2]) > int(start) for other in news if other.startswith(f"{file}@")):
                    hidden[board] = key
                    del there[key]
                    break
        return there

    append = journal._Own.append

    def slowly(own: Any, *arguments: Any) -> None:
        time.sleep(0.02)
        append(own, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Board, "_fetch_all", fetched)
        patch.setattr(Bucket, "list", listed)
        patch.setattr(journal._Own, "append", slowly)
        assert in_threads(source, f"s3://{BUCKET}/ranks-gap") == [None] * WORLD
    assert hidden
    assert found(s3, "ranks-gap") == expected(source, tmp_path / "here")


def test_nobody_is_lost_while_the_server_does_not_answer(
    s3: Server, source: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seconds = Bucket.list, 3.0
    began, writers = threading.Event(), set[int]()
    until = list[float]()

    def listed(bucket: Bucket, below: str | None = None) -> dict[str, Any]:
        if began.is_set():
            until.append(time.monotonic() + 2 * seconds)
            time.sleep(max(0.0, until[0] - time.monotonic()))
        return real(bucket, below)

    append = journal._Own.append

    def noted(own: Any, kind: int, *arguments: Any) -> None:
        append(own, kind, *arguments)
        if kind == journal._BLOCK:
            writers.add(id(own))
            if len(writers) == WORLD:
                began.set()

    monkeypatch.setattr(Bucket, "list", listed)
    monkeypatch.setattr(journal._Own, "append", noted)
    ranks = [Rank(number, WORLD, seconds) for number in range(WORLD)]
    out = f"s3://{BUCKET}/ranks-silence"
    assert side_by_side([lambda rank=rank: kills.merge(source, out, rank=rank) for rank in ranks]) == [None] * WORLD
    assert found(s3, "ranks-silence") == expected(source, tmp_path / "here")


def test_an_analysis_does_not_remove_what_another_one_says(s3: Server, tmp_path: Path) -> None:
    """Two jobs meet in one folder, from machines that share nothing."""
    bucket = Bucket("s3", f"{BUCKET}/meet-twice", "writing there", SendError)
    teams = [Team(Rank(0, 2, SECONDS), tmp_path / name, partial(_board, bucket, tmp_path / name)) for name in "ab"]
    for name in "ab":
        (tmp_path / name).mkdir()
    first, second = teams
    first._begin()
    first._beat()
    first.tell()
    before = s3.files("meet-twice")
    with pytest.raises(SendError, match="meet-twice: another job is at work there; wait for it"):
        second._begin()
    assert before.keys() <= s3.files("meet-twice").keys()
    assert before
    first._ended.set()
    assert first._carrier is not None
    first._carrier.end()
    assert s3.files("meet-twice") == {}


def _board(bucket: Bucket, work: Path, own: str) -> Board:
    return Board(bucket, work, own, 2)


def test_what_a_killed_job_has_left_hinders_no_other(s3: Server, tmp_path: Path) -> None:
    name = "meet-left"
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "0.0123456789abcdef").write_text("{}")
    s3.put(tmp_path, f"{name}/{RANKS}")
    board = Board(Bucket("s3", f"{BUCKET}/{name}", "writing there", SendError), tmp_path, "0.00123456789abcde", 2)
    board.begin()
    assert s3.files(name) == {}
    board.end()


def test_who_has_claimed_the_place_does_not_wait_to_see_who_lives(s3: Server, tmp_path: Path) -> None:
    """A merge goes on after a kill without that delay, which counts against the time of the other ranks."""
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "0.0123456789abcdef").write_text("{}")
    s3.put(tmp_path, f"claimed/{RANKS}")
    out = ObjectsOut("s3", f"{BUCKET}/claimed", tmp_path)
    out.claim("0123", overwrite=False, shared=["model.safetensors"])
    board = out.board(tmp_path, "0.00123456789abcde", 2)
    began = time.monotonic()
    board.begin()
    assert time.monotonic() - began < 2 and s3.files("claimed").keys() == {MARKER}
    board.end()
