"""Shards that are sent while they are merged: what is sent is final, and each end of one side ends the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramerge
from ramerge.checkpoint import relay
from ramerge.checkpoint.storage.destination import Destination, Reaches
from ramerge.engine.execute import _in_order, execute
from ramerge.engine.executors.executor import Elsewhere, bare
from ramerge.engine.executors.threads import ThreadExecutor
from ramerge.engine.ranks import Rank
from ramerge.engine.sending import _AHEAD, Prefixes
from ramerge.engine.sinks import Shards
from ramerge.engine.worker import Worker
from ramerge.foundation.errors import SendError
from ramerge.planning import sample
from ramerge.planning.model import Block, Plan
from tests.checkpoints import floats, recipe, simple, write_checkpoint, write_simple
from tests.kills import weights, weights_of
from tests.test_quantised import family
from tests.test_ranks import side_by_side
from tests.test_vocabulary import write as write_rows

_SECONDS = 60
_WORKERS = 4


def rows_apart(folder: Path) -> dict[str, Any]:
    """Models of which rows of a tensor are planned apart."""
    write_rows(folder / "base", 0, 12)
    write_rows(folder / "a", 1, 10)
    write_rows(folder / "b", 2, 14, ["<x>", "<y>", "<z>", "<u>", "<v>"])
    return recipe(folder, ["a", "b"], allow={"vocabulary": "common"})


SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "one file": lambda folder: recipe(folder, write_simple(folder)),
    "shards": lambda folder: recipe(folder, write_simple(folder), shard_size="2KB"),
    "float32": lambda folder: recipe(folder, write_simple(folder), dtype="float32", rounding="nearest"),
    "stochastic": lambda folder: recipe(folder, write_simple(folder), rounding="stochastic"),
    "rows apart": rows_apart,
    "codes and scales": lambda folder: family(folder, "fp8 blocks") | {"dtype": "like base"},
}


class Told(Destination):
    """A place that keeps in memory what it is told to, in small pieces.

    Args:
        stage: see `Destination`.
        size: of a piece.
        before: called with the number of the piece before each of them is wanted.
    """

    def __init__(self, stage: Path, size: int = 96, before: Callable[[int], None] = lambda number: None) -> None:
        self.address = self.result = "s3://told/model"
        self.name, self.stage = "model", stage
        self.ended: list[str] = []
        self.senders: dict[str, int] = {}  # by file, the thread
        self.visible: dict[str, bytes] = {}
        self.pieces: list[tuple[str, int, bytes]] = []
        self.most = 0
        self._size, self._before = size, before

    def problems(self, inputs: Sequence[Any], run: Callable[[], str | None], *, overwrite: bool) -> list[str]:
        return []

    def claim(self, run: str, *, overwrite: bool, shared: Collection[str] = ()) -> None:
        """Nobody else is there."""

    def join(self, shared: Collection[str]) -> None:
        """All ranks of a test are in one process."""

    def holds(self, sent: Mapping[str, str]) -> bool:
        return True

    def clear(self, run: str, sent: Collection[str]) -> None:
        self.ended.append("clear")

    def send(self, name: str, path: Path, reaches: Reaches) -> str:
        end = path.stat().st_size
        self.senders[name] = threading.get_ident()
        try:
            for start in range(0, end, self._size):
                stop = min(start + self._size, end)
                self._before(len(self.pieces))
                reaches(stop)
                self.most = max(self.most, len([one for one in path.parent.iterdir() if one.stat().st_blocks]))
                with path.open("rb") as file:
                    file.seek(start)
                    self.pieces.append((name, start, file.read(stop - start)))
        except SendError:
            self.ended.append("broken off")
            raise
        self.ended.append(name)
        self.visible[name] = b"".join(data for of, _, data in self.pieces if of == name)
        return str(end)

    def commit(self, run: str, files: Mapping[str, Path], sent: Mapping[str, str]) -> None:
        self.visible |= {name: path.read_bytes() for name, path in files.items()}

    def discard(self, run: str | None) -> list[str]:
        self.visible = {}
        return []


def planned(source: object, out: Path | Destination, block: int = 32) -> Plan:
    plan = ramerge.plan(source, out if isinstance(out, Path) else out.stage / "out", cache=False)
    resources = replace(plan.resources, block_elements=block, workers=_WORKERS)
    return replace(plan, out=out, resources=resources)


class Shuffled:
    """An executor whose blocks end in another order than they begin in."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def map(self, worker: Any, work: Any, blocks: Any, elsewhere: Elsewhere = bare) -> Any:
        """See `Executor.map`."""
        draw, lock = random.Random(self._seed), threading.Lock()

        def slowly(own: Any, block: Any) -> Any:
            with lock:
                seconds = draw.choice([0, 0, 0.001, 0.004])
            for outcome in work(own, block):
                threading.Event().wait(seconds)
                yield outcome

        return ThreadExecutor(_WORKERS).map(worker, slowly, blocks, elsewhere)


@pytest.mark.parametrize("case", SOURCES)
@pytest.mark.parametrize("seed", range(3))
def test_what_was_sent_does_not_change_later(case: str, seed: int, tmp_path: Path) -> None:
    source = SOURCES[case](tmp_path)
    out = Told(tmp_path / "stage")
    execute(planned(source, out), Shuffled(seed))
    execute(planned(source, tmp_path / "here", block=1 << 14), ThreadExecutor(1))
    assert weights_of(out.visible) == weights(tmp_path / "here")
    assert out.most <= _AHEAD + 1 and not (tmp_path / "stage").exists()


@pytest.mark.parametrize("case", SOURCES)
@pytest.mark.parametrize("world", [2, 3])
def test_each_rank_sends_files_of_its_own(case: str, world: int, tmp_path: Path) -> None:
    source = SOURCES[case](tmp_path)
    out = Told(tmp_path / "stage")
    execute(planned(source, tmp_path / "here", block=1 << 14), ThreadExecutor(1))
    ranks = [Rank(number, world, 20.0) for number in range(world)]
    works = [lambda rank=rank: execute(planned(source, out), Shuffled(rank.number), rank=rank) for rank in ranks]
    assert side_by_side(works) == [None] * world
    assert weights_of(out.visible) == weights(tmp_path / "here")
    apart = 1 if case == "codes and scales" else len(out.senders)  # the parts of one tensor are made by one rank
    assert out.ended[0] == "clear" and len(set(out.senders.values())) == min(world, apart)
    assert len(out.ended) == 1 + len(out.senders), "no file is sent twice"
    assert list((tmp_path / "stage").iterdir()) == []


def test_what_another_rank_has_sent_may_be_seen_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was listed a moment ago is not always listed again by a network file system."""
    commit, of_others, late = relay.Relay.commit, relay._Sent._of_others, iter(range(0))

    def committed(stage: relay.Relay) -> None:
        nonlocal late
        late = iter(range(3))
        commit(stage)

    monkeypatch.setattr(relay.Relay, "commit", committed)
    monkeypatch.setattr(relay._Sent, "_of_others", lambda s: [] if next(late, None) is not None else of_others(s))
    source, out = SOURCES["shards"](tmp_path), Told(tmp_path / "stage")
    execute(planned(source, tmp_path / "here"), ThreadExecutor(1))
    ranks = [Rank(number, 2, 20.0) for number in range(2)]
    works = [lambda rank=rank: execute(planned(source, out), ThreadExecutor(2), rank=rank) for rank in ranks]
    assert side_by_side(works) == [None, None] and next(late, None) is None
    assert weights_of(out.visible) == weights(tmp_path / "here")


def one_large(folder: Path) -> dict[str, Any]:
    """Models of a large file, which rank 0 makes, and many small ones, which rank 1 makes."""
    rng = np.random.default_rng(0)
    for name in ("base", "code"):
        shapes = {"a": (200, 60), **{f"b{number:02}": (60, 10) for number in range(12)}}
        made = {name: floats(rng.normal(0, 0.02, shape), "BF16") for name, shape in shapes.items()}
        write_checkpoint(folder / name, made)
    return recipe(folder, ["code"], method="ram", shard_size="1KB")


def test_nothing_is_sent_after_a_failed_rank_s_output_was_removed(tmp_path: Path) -> None:
    """Another rank is just completing a file, which cannot be broken off any more."""
    ending, removed = threading.Event(), threading.Event()

    class Slow(Told):
        def send(self, name: str, path: Path, reaches: Reaches) -> str:
            said = super().send(name, path, reaches)
            if name == "model-00002-of-00013.safetensors":
                data = self.visible.pop(name)
                ending.set()
                removed.wait(1.5)
                self.visible[name] = data
            return said

        def discard(self, run: str | None) -> list[str]:
            found = super().discard(run)
            removed.set()
            return found

    class Failing:
        def map(self, worker: Any, work: Any, blocks: Any, elsewhere: Elsewhere = bare) -> Any:
            yield from ThreadExecutor(_WORKERS).map(worker, work, blocks, elsewhere)
            assert ending.wait(_SECONDS)
            raise OSError(5, "Input/output error")

    source, out = one_large(tmp_path), Slow(tmp_path / "stage")
    executors = [Failing(), ThreadExecutor(_WORKERS)]
    ranks = [Rank(number, 2, 20.0) for number in range(2)]
    works = [lambda rank=rank: execute(planned(source, out), executors[rank.number], rank=rank) for rank in ranks]
    first, second = side_by_side(works)
    assert "Input/output error" in str(first) and "rank 0 has failed" in str(second)
    assert removed.is_set() and out.visible == {}


def test_ranks_do_not_wait_for_the_end_of_the_only_file_of_rank_0(tmp_path: Path) -> None:
    """That is sent last, while the others must send to go on."""
    source, out = one_large(tmp_path), Told(tmp_path / "stage")
    ranks = [Rank(number, 2, 20.0) for number in range(2)]
    works = [lambda rank=rank: execute(planned(source, out), ThreadExecutor(4), rank=rank) for rank in ranks]
    failures = list[BaseException | None]()
    ended = threading.Thread(target=lambda: failures.extend(side_by_side(works)), daemon=True)
    ended.start()
    ended.join(_SECONDS)
    assert failures == [None, None]
    assert len([name for name, thread in out.senders.items() if thread == out.senders[min(out.senders)]]) == 1


@contextmanager
def noted(found: dict[Block, list[tuple[str, int, int]]]) -> Iterator[None]:
    """Note what each block writes: file, offset, bytes."""
    with pytest.MonkeyPatch.context() as patch:
        merge = Worker.merge

        def merge_noted(self: Worker, block: Block, tasks: Any, sink: Shards) -> Any:
            class Noting:
                def write(self, point: int, tensor: int, part: int, start: int, data: Any) -> None:
                    planned = sink._plan.tensors[tensor].parts[part]
                    place = planned.offset + planned.begin + start
                    found.setdefault(block, []).append((planned.shard, place, data.size))
                    sink.write(point, tensor, part, start, data)

            return merge(self, block, tasks, Noting())  # type: ignore[arg-type]

        patch.setattr(Worker, "merge", merge_noted)
        yield


@pytest.fixture(scope="module", params=SOURCES)
def writes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Plan, dict[Block, list[tuple[str, int, int]]]]:
    """A plan, and what its blocks write."""
    folder, found = tmp_path_factory.mktemp("writes"), dict[Block, list[tuple[str, int, int]]]()
    plan = planned(SOURCES[request.param](folder), folder / "out")
    with noted(found):
        execute(plan, ThreadExecutor(1))
    runs = _in_order(plan, range(len(plan.tensors)), 0)
    assert set(found) == {block for run in runs for batch in run for block in batch}
    return plan, found


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), spread=st.integers(0, 60))
def test_a_prefix_is_what_no_later_block_writes(
    seed: int, spread: int, writes: tuple[Plan, dict[Block, list[tuple[str, int, int]]]]
) -> None:
    """Blocks end in any order, nearly that of the files or not at all."""
    plan, found = writes
    draw = random.Random(seed)
    places = {block: index + draw.uniform(0, spread) for index, block in enumerate(found)}
    final = Prefixes(plan)
    missing = {shard.name: np.ones(shard.file_bytes, bool) for shard in plan.shards}
    for shard in plan.shards:
        missing[shard.name][: len(shard.header)] = False
    before = {shard.name: len(shard.header) for shard in plan.shards}
    for block in sorted(found, key=places.__getitem__):
        assert any(final.of(name) < missing[name].size for name in missing)
        final.add(block)
        for shard, start, size in found[block]:
            assert missing[shard][start : start + size].all(), "two blocks write the same"
            missing[shard][start : start + size] = False
        for shard, left in missing.items():
            reached = final.of(shard)
            assert not left[:reached].any() and reached >= before[shard]
            if not any(len(tensor.parts) > 1 for tensor in plan.tensors):
                assert reached == (left.argmax() if left.any() else left.size), "more is final"
            before[shard] = reached
    assert all(final.of(name) == left.size for name, left in missing.items())


def test_a_second_pass_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess that is refuted costs another pass, so none is made; and if one were, nothing would be sent twice."""
    monkeypatch.setattr(sample, "_WORTH_A_SAMPLE", 1)
    source = recipe(tmp_path, write_simple(tmp_path), method="ties")
    assert ramerge.plan(source, tmp_path / "here", cache=False).guessed
    monkeypatch.setattr("ramerge.checkpoint.outputs.open_destination", lambda *_, **__: Told(tmp_path / "stage"))
    assert not ramerge.plan(source, "s3://told/model", cache=False).guessed
    plan = planned(source, tmp_path / "here")
    final, block = Prefixes(plan), _in_order(plan, [0], 0)[0][0][0]
    final.add(block)
    with pytest.raises(AssertionError):
        final.add(block)


def test_sending_begins_before_merging_ends(tmp_path: Path) -> None:
    """The last block waits until the beginning of its file has been sent. The end of the file waits for all checks."""
    begun, merged = threading.Event(), threading.Event()

    def before(number: int) -> None:
        if number == 3:
            begun.set()

    class Waiting:
        def map(self, worker: Any, work: Any, blocks: Any, elsewhere: Elsewhere = bare) -> Any:
            last = blocks[-1]

            def waiting(own: Any, block: Any) -> Any:
                assert block != last or begun.wait(_SECONDS), "nothing is sent before the last block is merged"
                return work(own, block)

            yield from ThreadExecutor(_WORKERS).map(worker, waiting, blocks, elsewhere)
            merged.set()

    out = Told(tmp_path / "stage", before=before)
    execute(planned(recipe(tmp_path, write_simple(tmp_path), method="ram"), out), Waiting())
    assert merged.is_set() and out.ended == ["clear", "model.safetensors"]


def test_weights_that_are_refused_are_not_completed(tmp_path: Path) -> None:
    """What is wrong in the last block is found when the rest of the only file has been sent."""
    source = recipe(tmp_path, write_simple(tmp_path), method="ram")
    tensors = simple(1, moved=0.3)
    name = sorted(tensors)[-1]
    values = np.zeros((40, 16))
    values[-1, -1] = np.nan
    write_checkpoint(tmp_path / "code", tensors | {name: floats(values, "BF16")})
    asked = threading.Event()

    class Patient:
        """All is merged, and there is time to send it, before the pass ends and its weights are looked at."""

        def map(self, worker: Any, work: Any, blocks: Any, elsewhere: Elsewhere = bare) -> Any:
            yield from ThreadExecutor(_WORKERS).map(worker, work, blocks, elsewhere)
            assert asked.wait(_SECONDS)
            threading.Event().wait(0.2)

    plan = planned(source, Told(tmp_path / "stage"))
    (size,) = (shard.file_bytes for shard in plan.shards)
    out = Told(tmp_path / "stage", before=lambda number: asked.set() if number == -(-size // 96) - 1 else None)
    with pytest.raises(ramerge.WeightsError, match=name):
        execute(replace(plan, out=out), Patient())
    assert out.ended == ["broken off"], "what the place held before is still there"
    assert out.visible == {}
    assert not (tmp_path / "stage").exists()


@pytest.mark.parametrize("shard_size", ["2KB", "5GB"])
@pytest.mark.parametrize("fails_at", [0, 5, 20])
def test_an_error_of_the_place_ends_the_merge(shard_size: str, fails_at: int, tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), method="ram", shard_size=shard_size)

    def before(number: int) -> None:
        if number == fails_at:
            raise SendError("s3://told/model: the server says no")

    out = Told(tmp_path / "stage", before=before)
    with pytest.raises(ramerge.OutputError, match=r"^s3://told/model: the server says no; ") as caught:
        execute(planned(source, out), ThreadExecutor(_WORKERS))
    assert str(caught.value).count("the server says no") == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramerge-") and thread.is_alive()]


def test_blocks_that_are_needed_next_never_wait(tmp_path: Path) -> None:
    """The first block is late, and the other workers run ahead as far as they may. Yet all comes to an end."""
    source = recipe(tmp_path, write_simple(tmp_path), method="ram", shard_size="1KB")
    held = threading.Event()

    class First:
        def map(self, worker: Any, work: Any, blocks: Any, elsewhere: Elsewhere = bare) -> Any:
            def late(own: Any, block: Any) -> Any:
                if block == blocks[0]:
                    held.wait(0.3)
                return work(own, block)

            return ThreadExecutor(_WORKERS).map(worker, late, blocks, elsewhere)

    out = Told(tmp_path / "stage")
    ended = threading.Thread(target=partial(execute, planned(source, out), First()), daemon=True)
    ended.start()
    ended.join(_SECONDS)
    assert not ended.is_alive() and out.most <= _AHEAD + 1
    assert len(out.ended) == 1 + len([name for name in out.visible if name.endswith(".safetensors")])
