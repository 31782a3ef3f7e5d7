"""Several processes that share a merge, over the file system."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import ramerge
from ramerge.checkpoint.stage import hidden_folder
from ramerge.engine.facts import seen_elsewhere
from ramerge.engine.journal import difference
from ramerge.engine.planned import facts_of
from ramerge.engine.ranks import Rank, advice, rank_of
from ramerge.foundation.errors import RamergeError
from tests.checkpoints import recipe, simple, write_checkpoint, write_simple
from tests.kills import beside, die_at, ended, forked, merge, weights

SECONDS = 20.0


@pytest.fixture
def source(tmp_path: Path) -> dict:
    return recipe(tmp_path, write_simple(tmp_path))


def side_by_side(works: list[Callable[[], object]]) -> list[BaseException | None]:
    """Do all at the same time, in threads; what each of them raised."""
    failures: list[BaseException | None] = [None] * len(works)

    def run(place: int) -> None:
        try:
            works[place]()
        except BaseException as error:
            failures[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return failures


# --- who is who -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (0, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 4)),
    ],
)
def test_launchers(environment: dict[str, str], found: tuple[int, int]) -> None:
    rank = rank_of(environment)
    assert (rank.number, rank.world) == found


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "no launcher has given this process a rank; start it with torchrun, srun or mpirun"),
        ({"RANK": "1"}, "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set, but RANK is not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2 ranks: ranks are numbered from 0"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1': must be a whole number"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "rank 0 of 0 ranks"),
    ],
)
def test_ranks_that_make_no_sense(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ramerge.RecipeError, match=words):
        rank_of(environment)


def test_a_launcher_that_is_not_asked_for_is_mentioned() -> None:
    assert "WORLD_SIZE=4, but this process does all work" in advice({"RANK": "0", "WORLD_SIZE": "4"})
    assert advice({"RANK": "0", "WORLD_SIZE": "1"}) == advice({}) == ""
    assert advice({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == ""  # as in every script of Slurm


# --- the work ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"vary": {"parameters.r": [0, 0.1]}}], ids=["merge", "sweep"])
def test_processes_write_the_bytes_of_one(options: dict, world: int, source: dict, tmp_path: Path) -> None:
    merge(source, tmp_path / "whole", **options)

    def one(number: int) -> None:
        merge(source, tmp_path / "out", rank=Rank(number, world, SECONDS), **options)

    assert [ended(child) for child in [forked(lambda n=n: one(n)) for n in range(world)]] == [0] * world
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")
    assert beside(tmp_path / "out") == []


@pytest.mark.parametrize(("first", "then"), [(2, 4), (4, 2), (2, 1), (1, 3)])
def test_a_second_start_goes_on_with_any_number_of_ranks(first: int, then: int, source: dict, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(source, tmp_path / "whole")

    def start(world: int, records: int | None) -> list[int]:
        def one(number: int) -> None:
            if records is not None and number == world - 1:
                die_at(records)
            merge(source, out, rank=Rank(number, world, 1.0 if records else SECONDS) if world > 1 else None)

        return [ended(child) for child in [forked(lambda number=number: one(number)) for number in range(world)]]

    began = time.monotonic()
    assert start(first, 40 // first) == [*[1] * (first - 1), -signal.SIGKILL]
    assert time.monotonic() - began < 30
    assert not out.exists()
    assert (hidden_folder(out) / "journal").is_dir()
    assert start(then, None) == [0] * then
    assert weights(out) == weights(tmp_path / "whole")
    assert beside(out) == []


def launch(world: int, *arguments: object, **environments: object) -> list[tuple[int, str, str]]:
    """The command line as ranks; exit codes, standard output and standard error."""
    command = [sys.executable, "-m", "ramerge", *map(str, arguments), "--executor", "ranks"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen(command, **pipes, env=os.environ | {"RANK": str(number), "WORLD_SIZE": str(world)})
        for number in range(world)
    ]
    said = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]


def test_the_command_line(source: dict, tmp_path: Path) -> None:
    names = list(source["agents"])
    agents = [
        "--base",
        tmp_path / "base",
        *[word for name in names for word in ("--agent", f"{name}={tmp_path / name}")],
    ]
    merge(source, tmp_path / "whole")
    (code, out, err), (other, nothing, silent) = launch(2, "merge", *agents, tmp_path / "out")
    assert (code, other) == (0, 0), err + silent
    assert "lambda" in out and "merging: " in err
    assert nothing == silent == ""
    assert weights(tmp_path / "out").keys() == weights(tmp_path / "whole").keys()
    safetensors = "model.safetensors"
    assert weights(tmp_path / "out")[safetensors] == weights(tmp_path / "whole")[safetensors]
    ramerge.analyze(source, cache=False)
    written = tmp_path / "analysis.json"
    done = launch(2, "analyze", *agents, "--meet", tmp_path / "meet", "--json", written, "--quiet")
    assert [code for code, _, _ in done] == [0, 0], done
    found, wanted = json.loads(written.read_text()), json.loads(ramerge.analyze(source, cache=False).to_json())
    for told in ("seconds", "peak_memory_bytes"):
        assert found.pop(told) and wanted.pop(told)
    assert found == wanted
    assert list((tmp_path / "meet").iterdir()) == []


# --- what can go wrong ------------------------------------------------------------------------------------------------


def failures(works: list[Callable[[], object]]) -> list[str]:
    found = side_by_side(works)
    assert all(isinstance(failure, RamergeError) for failure in found), found
    return [str(failure) for failure in found]


def test_ranks_that_do_not_do_the_same(source: dict, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for other, words in (
        (source | {"parameters": {"r": 0.5}}, "parameters.*of the recipe"),
        (source, "the size of blocks"),
    ):
        block = 64 if other is source else 32
        first, second = failures(
            [
                lambda: merge(source, out, rank=Rank(0, 2, SECONDS)),
                lambda other=other, block=block: merge(other, out, block=block, rank=Rank(1, 2, SECONDS)),
            ]
        )
        assert "rank 1 does not do the same work as rank 0: not the same is: " in second
        assert first.startswith("rank 1 has failed: rank 1 does not do the same work")
        assert re.search(words, second)
        assert not out.exists() and beside(out) == []


def test_ranks_may_read_copies_of_the_inputs(source: dict, tmp_path: Path) -> None:
    """With the same time of the last write. A run that goes on wants the same files."""
    file = Path(source["base"]) / "model.safetensors"
    before = facts_of(ramerge.plan(source))
    shutil.copy2(file, tmp_path / "copy")
    (tmp_path / "copy").replace(file)
    copied = facts_of(ramerge.plan(source))
    assert difference(before, copied) == str(file)
    assert seen_elsewhere(before) == seen_elsewhere(copied)
    os.utime(file, ns=(0, 0))
    assert difference(seen_elsewhere(before), seen_elsewhere(facts_of(ramerge.plan(source)))) == str(file)


def test_a_rank_that_does_not_come(source: dict, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ramerge.RankError, match=r"of 3 ranks these have not come within 0.5 s: 1, 2"):
        merge(source, out, rank=Rank(0, 3, 0.5))
    with pytest.raises(ramerge.RankError, match=r"rank 0 has not begun within 0.5 s"):
        merge(source, out, rank=Rank(1, 3, 0.5))
    assert not out.exists() and beside(out) == []


def test_ranks_that_were_told_different_numbers(source: dict, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = failures(
        [
            lambda: merge(source, out, rank=Rank(0, 2, 3.0)),
            lambda: merge(source, out, rank=Rank(1, 3, 3.0)),
        ]
    )
    assert "rank 1 was told that there are 3 ranks, and rank 0 that there are 2" in first
    assert "rank 0 has not begun" in second
    assert beside(out) == []


def test_bad_weights_are_an_error_of_all(source: dict, tmp_path: Path) -> None:
    bad = simple(1, moved=0.4)
    bad["model.layers.1.weight"].bits[3, 3] = 0x7FC0  # NaN
    write_checkpoint(tmp_path / "tool", bad)
    out = tmp_path / "out"
    found = failures([lambda number=number: merge(source, out, rank=Rank(number, 3, SECONDS)) for number in range(3)])
    assert all("NaN or Inf" in text for text in found)
    assert not out.exists() and beside(out) == []


def test_an_error_of_one_ends_all(source: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramerge.checkpoint.write import Writer

    write, out, writes = Writer.write, tmp_path / "out", Counter[int]()

    def failing(writer: Writer, *arguments: object) -> None:
        writes[id(writer)] += 1
        if writes[id(writer)] > 3:
            raise OSError(5, "Input/output error")
        write(writer, *arguments)

    monkeypatch.setattr(Writer, "write", failing)
    found = side_by_side([lambda number=number: merge(source, out, rank=Rank(number, 2, 5.0)) for number in range(2)])
    assert all(isinstance(failure, OSError | RamergeError) for failure in found), found
    assert any("Input/output error" in str(failure) for failure in found)
    assert not out.exists() and beside(out) == []


def test_two_jobs_for_one_output(source: dict, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(source, tmp_path / "whole")
    found = side_by_side(
        [
            lambda job=job, number=number: merge(source, out, rank=Rank(number, 2, 4.0, job))
            for job in ("a", "b")
            for number in range(2)
        ]
    )
    assert sorted(failure is None for failure in found) == [False, False, True, True], found
    texts = " ".join(str(failure) for failure in found if failure is not None)
    assert "another process is writing it" in texts or "exists" in texts
    assert weights(out) == weights(tmp_path / "whole")
    assert beside(out) == []


def test_what_ranks_of_a_killed_run_left_is_not_taken_for_living(source: dict, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(source, tmp_path / "whole")

    def doomed(number: int) -> None:
        die_at(12)
        merge(source, out, rank=Rank(number, 2, SECONDS))

    assert [ended(child) for child in [forked(lambda n=n: doomed(n)) for n in range(2)]] == [-signal.SIGKILL] * 2
    assert (hidden_folder(out) / "ranks" / "session").is_file()
    with pytest.raises(ramerge.RankError, match="rank 0 has not begun"):
        merge(source, out, rank=Rank(1, 2, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merge(source, out)  # without ranks
    assert weights(out) == weights(tmp_path / "whole")
    assert beside(out) == []


def test_a_rank_may_write_into_what_is_removed(source: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in which ranks of a killed run met is removed, while a rank of the next run has found it."""
    out = tmp_path / "out"
    merge(source, tmp_path / "whole")
    met, remove, left = hidden_folder(out) / "ranks", shutil.rmtree, iter(range(2))
    met.mkdir(parents=True)

    def written_meanwhile(path: Path, ignore_errors: bool = False) -> None:
        if path == met and next(left, None) is not None:
            (met / ".1.sign").touch()
            assert ignore_errors, "it is still there"
            return
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", written_meanwhile)
    merge(source, out)
    assert weights(out) == weights(tmp_path / "whole")
    assert beside(out) == []


def test_what_several_processes_cannot_make(source: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ramerge.RecipeError, match="on_tensor cannot be called by several processes"):
        ramerge.merge(source, on_tensor=print, executor="ranks")
    with pytest.raises(ramerge.RecipeError, match="needs a folder in which ranks meet"):
        ramerge.analyze(source, executor="ranks")
    with pytest.raises(ramerge.RecipeError, match="choose threads, ranks or ray"):
        ramerge.merge(source, tmp_path / "out", executor="rays")
