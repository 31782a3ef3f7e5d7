"""Merges that were stopped: what they leave, and what the next run makes of it."""

import os
import random
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge import api
from ramerge.core.engine import fingerprint, journal
from ramerge.core.foundation.errors import ContinueNote, OutputWarning, StoppedError
from ramerge.core.output.lifecycle import build_output, output_dir
from ramerge.core.output.staging import OutputDir
from ramerge.core.planning import cached_counts
from ramerge.core.planning.build import make_plan
from tests.checkpoints import mapped, recipe, simple, write_checkpoint, write_simple
from tests.e2e.kills import counting, ended, forked, killed, left_behind, merge, weights
from tests.messages import Messages

CASES = {
    "ram+": ({"method": "ram+"}, {}),
    "ram": ({"method": "ram"}, {}),
    "several shards": ({"shard_size": "2KB"}, {}),
    "sweep": ({}, {"vary": {"parameters.r": [0, 0.1, 0.2]}}),
    "three passes": ({"method": "ties"}, {}),
    "stochastic": ({"rounding": "stochastic"}, {}),
    "as a delta": ({}, {"kind": "delta"}),
    "as an adapter": ({}, {"kind": ramerge.AsAdapter(rank=3)}),
}


@pytest.fixture
def source(tmp_path: Path) -> dict:
    return recipe(tmp_path, write_simple(tmp_path))


@pytest.mark.parametrize("case", CASES)
def test_killed_run_resumes_to_the_same_bytes(case: str, source: dict, tmp_path: Path) -> None:
    settings, options = CASES[case]
    source, out = source | settings, tmp_path / "out"
    merge(source, tmp_path / "whole", **options)
    for seed in range(2):
        drawn, stops = random.Random(seed), 0
        while killed(lambda: merge(source, out, **options), drawn.randrange(5, 60), torn=drawn.random() < 0.5):
            stops += 1
            assert not out.exists()
            assert stops < 30, "no run comes further"
        assert stops
        assert weights(out) == weights(tmp_path / "whole")
        assert left_behind(out) == []
        shutil.rmtree(out)


@contextmanager
def said() -> Iterator[list[str]]:
    """What is said of earlier runs."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield found
    found += [str(one.message) for one in seen if issubclass(one.category, OutputWarning)]


def continued(work: Callable[[], object]) -> str:
    with said() as found:
        work()
    (text,) = found
    return text


def test_what_was_done_is_not_done_again(source: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    counting(calls, monkeypatch)
    merge(source, tmp_path / "whole")
    of_all = len(calls)
    assert killed(lambda: merge(source, tmp_path / "out"), 2 + of_all // 2 + 10)
    calls.clear()
    text = continued(lambda: merge(source, tmp_path / "out"))
    assert "continuing: " in text and " % of the work was done before" in text
    assert calls.count("count") == 0  # the whole pass was done
    assert len(calls) == of_all - (of_all // 2 + 9), "what is in the journal is not done again"
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


def test_only_unfinished_blocks_are_repeated(source: dict, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def logged() -> None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        from ramerge.core.engine.worker import Worker

        for name in ("count", "merge"):
            real = getattr(Worker, name)
            setattr(Worker, name, lambda *a, real=real: (os.write(descriptor, b"."), real(*a))[1])
        merge(source, tmp_path / "out")

    assert ended(forked(logged)) == 0
    of_all = log.stat().st_size
    shutil.rmtree(tmp_path / "out")
    log.unlink()
    stops = 0
    while killed(logged, 11):
        stops += 1
    assert stops > 3
    assert of_all <= log.stat().st_size <= of_all + 3 * stops  # a block for each of three workers


@pytest.mark.parametrize(
    "change",
    [
        lambda source, folder: source | {"parameters": {"r": 0.3}},
        lambda source, folder: source | {"method": "ram"},
        lambda source, folder: write_checkpoint(folder / "tool", simple(7, moved=0.2)) and source,
        lambda source, folder: source | {"shard_size": "2KB"},
    ],
    ids=["parameters", "method", "weights", "shard_size"],
)
def test_what_has_changed_is_said(change: Callable, source: dict, tmp_path: Path, messages: Messages) -> None:
    assert killed(lambda: merge(source, tmp_path / "out"), 30)
    source = change(source, tmp_path)
    merge(source, tmp_path / "whole")
    with messages.warns(ContinueNote):
        merge(source, tmp_path / "out")
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")
    assert left_behind(tmp_path / "out") == []


def test_memory_mapped_write_restarts_the_merge(source: dict, tmp_path: Path, messages: Messages) -> None:
    with mapped(tmp_path / "tool/model.safetensors") as change:
        assert killed(lambda: merge(source, tmp_path / "out"), 30)
        change()
        merge(source, tmp_path / "whole")
        with messages.warns(ContinueNote):
            merge(source, tmp_path / "out")
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


def test_run_killed_after_publishing_is_cleared(source: dict, tmp_path: Path, messages: Messages) -> None:
    """It is refused, as after a run that was not killed, but nothing is left."""

    def placed() -> None:
        OutputDir.close = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        merge(source, tmp_path / "out")

    assert ended(forked(placed)) == -signal.SIGKILL
    assert left_behind(tmp_path / "out") != []
    with messages.warns(OutputWarning), pytest.raises(ramerge.PlanError, match="exists"):
        ramerge.merge(source, tmp_path / "out")
    assert left_behind(tmp_path / "out") == []
    merge(source, tmp_path / "whole")
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


def test_another_version_or_size_of_blocks(source: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge(source, tmp_path / "whole")
    for block, words in ((32, "version of ramerge or NumPy"), (512, "size of blocks")):
        assert killed(lambda: merge(source, tmp_path / "out"), 30)
        with monkeypatch.context() as patch:
            if block == 32:
                patch.setattr(fingerprint, "__version__", "99")
            assert words in continued(lambda block=block: merge(source, tmp_path / "out", block=block))
        assert weights(tmp_path / "out") == weights(tmp_path / "whole")
        shutil.rmtree(tmp_path / "out")


def test_begin_anew_and_clean(source: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, calls = tmp_path / "out", []
    counting(calls, monkeypatch)
    merge(source, tmp_path / "whole")
    of_all = len(calls)
    assert killed(lambda: merge(source, out), 30)
    calls.clear()
    with said() as found:
        merge(source, out, fresh=True)
    assert (len(calls), found, left_behind(out)) == (of_all, [], [])
    shutil.rmtree(out)
    assert killed(lambda: merge(source, out), 30)
    assert left_behind(out)
    assert ramerge.clean(out) == [f"{output_dir(out).work}: removed"]
    assert ramerge.clean(out) == [] == left_behind(out)


def test_clean_leaves_the_output_and_living_runs_alone(source: dict, tmp_path: Path, messages: Messages) -> None:
    out = tmp_path / "out"
    merge(source, out)
    before = weights(out)
    assert killed(lambda: merge(source, out, overwrite=True), 30)
    assert ramerge.clean(out)
    assert weights(out) == before
    with build_output(out, overwrite=True) as stage:
        stage.write("a", "b")
        with messages.raises(ramerge.OutputError):
            ramerge.clean(out)


def stopping(number: int, records: int) -> None:
    """A signal at a record, handled as under the command line."""

    def stop(number: int, _frame: object) -> None:
        raise StoppedError(number)

    signal.signal(number, stop)
    append, left = journal.JournalWriter.append, iter(range(records))

    def counted(own: journal.JournalWriter, *arguments: object) -> None:
        append(own, *arguments)
        if next(left, None) is None:
            os.kill(os.getpid(), number)

    journal.JournalWriter.append = counted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_keeps_finished_work(number: int, source: dict, tmp_path: Path) -> None:
    out, words = tmp_path / "out", tmp_path / "words"
    merge(source, tmp_path / "whole")

    def stopped() -> None:
        stopping(number, 30)
        try:
            merge(source, out)
        except StoppedError as stop:
            words.write_text(stop.kept)

    assert ended(forked(stopped)) == 0
    assert " % of the work is kept: the same command resumes from there" in words.read_text()
    assert f"`ramerge clean {out}` removes it" in words.read_text()
    assert "continuing" in continued(lambda: merge(source, out))
    assert weights(out) == weights(tmp_path / "whole")


def test_an_error_leaves_nothing(source: dict, tmp_path: Path) -> None:
    bad = simple(1, moved=0.4)
    bad["model.layers.1.weight"].bits[3, 3] = 0x7FC0  # NaN
    write_checkpoint(tmp_path / "tool", bad)
    assert killed(lambda: merge(source, tmp_path / "out"), 10)
    with pytest.raises(ramerge.WeightsError, match="1 NaN"), said():
        merge(source, tmp_path / "out")
    assert left_behind(tmp_path / "out") == []


def test_output_in_the_way_keeps_finished_work(source: dict, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(source, tmp_path / "whole")
    write_checkpoint(out, simple(3))
    assert killed(lambda: merge(source, out, overwrite=True), 30)
    with pytest.raises(ramerge.PlanError, match="exists"):
        merge(source, out)
    assert "continuing" in continued(lambda: merge(source, out, overwrite=True))
    assert weights(out) == weights(tmp_path / "whole")


# --- what is not to be trusted ----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_journal_never_changes_a_byte(seed: int, source: dict, tmp_path: Path) -> None:
    source["method"] = ("ram+", "ram", "ties", "ram+s")[seed]
    damaged(source, tmp_path, random.Random(seed), 3, 30)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_many_damaged_journals(seed: int, source: dict, tmp_path: Path) -> None:
    damaged(source | {"method": "ties"}, tmp_path, random.Random(100 + seed), 20, 150)


def damaged(source: dict, folder: Path, drawn: random.Random, times: int, most: int) -> None:
    """Stop merges twice, damage what is left, and let them go on."""
    out = folder / "out"
    merge(source, folder / "whole")
    for _ in range(times):
        if all(killed(lambda: merge(source, out), drawn.randrange(5, most)) for _ in range(2)):
            damage(output_dir(out).work / "journal", drawn)
            with said():
                merge(source, out)
        assert weights(out) == weights(folder / "whole")
        assert left_behind(out) == []
        shutil.rmtree(out)


def damage(folder: Path, drawn: random.Random) -> None:
    """Change bytes, cut, double, exchange or remove files."""
    paths = sorted(folder.iterdir())
    path = drawn.choice([*paths, *paths[1:], *paths[1:]])
    data = bytearray(path.read_bytes())
    kind = drawn.randrange(6)
    if kind < 2 and data:
        for _ in range(drawn.randrange(1, 4)):
            data[drawn.randrange(len(data))] = drawn.randrange(256)
    elif kind == 2:
        del data[drawn.randrange(len(data) + 1) :]
    elif kind == 3:
        place = drawn.randrange(len(data) + 1)
        data[place:place] = data[: drawn.randrange(200)]
    elif kind == 4:
        data[:] = drawn.choice(paths).read_bytes()
    else:
        path.unlink()
        return
    path.write_bytes(data)


def test_only_data_on_disk_survives_a_restart(source: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    counting(calls, monkeypatch)
    merge(source, tmp_path / "whole")
    of_all = len(calls)
    for marks in (False, True):
        monkeypatch.setattr(journal, "_SECONDS_BETWEEN_MARKS", 0.0 if marks else 1e9)
        assert killed(lambda: merge(source, tmp_path / "out"), of_all - 5, marked=marks)
        calls.clear()
        with monkeypatch.context() as patch, said():
            patch.setattr(journal, "boot", lambda: "another")
            merge(source, tmp_path / "out")
        assert (len(calls) < of_all) is marks
        assert weights(tmp_path / "out") == weights(tmp_path / "whole")
        shutil.rmtree(tmp_path / "out")


def test_lost_shards_are_written_anew(source: dict, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(source, tmp_path / "whole")
    new = output_dir(out).work / "new"
    changes = [
        lambda: (new / "model.safetensors").unlink(),
        lambda: os.truncate(new / "model.safetensors", 100),
        lambda: (shutil.rmtree(new), new.mkdir()),
        lambda: (new / "more").write_text("x"),
        lambda: (shutil.copytree(new, new.with_name("x")), shutil.rmtree(new), new.with_name("x").rename(new)),
    ]
    for change in changes:
        assert killed(lambda: merge(source, out), 40)
        change()
        with said():
            merge(source, out)
        assert weights(out) == weights(tmp_path / "whole")
        assert left_behind(out) == []
        shutil.rmtree(out)


@pytest.mark.usefixtures("own_cache")
def test_counts_of_another_command_undo_no_work(source: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge was stopped before they were known. It goes on with its own."""
    monkeypatch.setattr(cached_counts, "SETTLED_SECONDS", 0)
    source, out = source | {"method": "ram+"}, tmp_path / "out"

    plans: list[Any] = []

    def small(*arguments: Any, **options: Any) -> Any:
        made = make_plan(*arguments, **options)
        plans.append(made)
        return replace(made, resources=replace(made.resources, block_elements=32, workers=3))

    monkeypatch.setattr(api, "make_plan", small)
    assert killed(lambda: ramerge.merge(source, out), 20)
    ramerge.analyze(source)
    assert ramerge.plan(source, tmp_path / "other").details.counts.cached
    plans.clear()
    assert "continuing: " in continued(lambda: ramerge.merge(source, out))
    assert len(plans) == 1
    ramerge.merge(source, tmp_path / "whole", options=ramerge.Options(cache=False))
    assert weights(out) == weights(tmp_path / "whole")
    assert killed(lambda: ramerge.merge(source, out, options=ramerge.Options(overwrite=True)), 20)
    assert "parameters.r of the recipe has changed" in continued(
        lambda: ramerge.merge({**source, "parameters": {"r": 0.3}}, out, options=ramerge.Options(overwrite=True))
    )
