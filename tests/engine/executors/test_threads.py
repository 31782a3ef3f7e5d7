import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from ramerge.core.engine.executors.executor import Processed, Unrecorded
from ramerge.core.engine.executors.threads import ThreadExecutor
from tests.messages import Messages


@dataclass(frozen=True)
class Blocks:
    """A pass over numbers."""

    function: Callable[[Any, int], Any]
    worker: Callable[[Callable[[Any], None]], Any] = nullcontext
    prefetched: list[Sequence[int]] = field(default_factory=list)

    def open_worker(self, report: Callable[[Any], None]) -> Any:
        return self.worker(report)

    def prefetch(self, worker: Any, run: Sequence[int]) -> None:
        self.prefetched.append(run)

    def process(self, worker: Any, block: int) -> Any:
        return self.function(worker, block)

    def settle(self) -> None: ...

    def close(self) -> None: ...


class Noting:
    """Notes what is recorded."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}

    def record(self, number: int, result: Any) -> None:
        self.seen[number] = result


def runs(count: int) -> list[list[tuple[int, int]]]:
    return [[(number, number)] for number in range(count)]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ramerge-")]


def doubled(_worker: Any, block: int) -> int:
    return 2 * block


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_blocks_are_recorded_before_handing_over(workers: int) -> None:
    noting = Noting()
    for event in ThreadExecutor(workers).run(Blocks(doubled), runs(100), noting):
        assert isinstance(event, Processed) and noting.seen[event.number] == event.result
    assert noting.seen == {number: 2 * number for number in range(100)}
    assert not threads()


def test_workers_close_the_files_they_open() -> None:
    open_now: set[int] = set()

    @contextmanager
    def worker(_report: Any) -> Any:
        me = threading.get_ident()
        open_now.add(me)
        yield me
        open_now.discard(me)

    work = Blocks(lambda me, _: me == threading.get_ident(), worker)
    assert all(event.result for event in ThreadExecutor(3).run(work, runs(50), Unrecorded()))
    assert not open_now


def test_first_error_is_raised_after_all_stop() -> None:
    def process(_worker: Any, block: int) -> int:
        if block == 3:
            raise ValueError("three")
        return block

    with pytest.raises(ValueError, match="three"):
        list(ThreadExecutor(2).run(Blocks(process), runs(100_000), Unrecorded()))
    assert not threads()


@pytest.mark.parametrize("of_a_run", [1, 100_000])
def test_a_consumer_that_stops_early_stops_the_workers(of_a_run: int) -> None:
    blocks = [(number, number) for number in range(100_000)]
    cut = [blocks[start : start + of_a_run] for start in range(0, len(blocks), of_a_run)]
    noting = Noting()
    events = ThreadExecutor(2).run(Blocks(doubled), cut, noting)
    next(events)
    events.close()
    assert not threads() and len(noting.seen) < len(blocks)


def test_a_worker_may_report_more_than_its_results() -> None:
    def process(report: Callable[[int], None], block: int) -> int:
        report(-block)
        return block

    events = ThreadExecutor(1).run(Blocks(process, nullcontext), [[(0, 1), (1, 2)]], Unrecorded())
    assert list(events) == [-1, Processed(0, 1), -2, Processed(1, 2)]


def test_run_results_come_singly_after_its_blocks() -> None:
    begun = threading.Semaphore(0)

    def process(_worker: Any, block: int) -> int:
        assert not block or begun.acquire(timeout=30), "the first result waits for the second"
        return block

    work = Blocks(process)
    events = ThreadExecutor(2).run(work, [[(0, 0), (1, 1)]], Unrecorded())
    assert next(events) == Processed(0, 0)
    begun.release()
    assert list(events) == [Processed(1, 1)]
    assert work.prefetched == [[0, 1]]


def test_no_blocks() -> None:
    assert list(ThreadExecutor(2).run(Blocks(doubled), [], Unrecorded())) == []


def test_no_workers_are_refused(messages: Messages) -> None:
    with messages.raises(ValueError):
        ThreadExecutor(0)


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_fewer_threads_where_the_system_allows_no_more(
    allowed: int, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    start, begun = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(begun) == allowed:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    events = ThreadExecutor(3).run(Blocks(doubled), runs(10), Unrecorded())
    if allowed:
        assert sorted(event.number for event in events) == list(range(10))
    else:
        with messages.raises(RuntimeError):
            list(events)
    assert not threads()


def test_workers_wait_where_results_are_not_taken() -> None:
    noting = Noting()
    events = ThreadExecutor(3).run(Blocks(doubled), runs(1000), noting)
    taken = [next(events)]
    time.sleep(0.2)
    assert len(noting.seen) <= len(taken) + 3 + 3 + 1  # those that wait, and one in the hands of each worker
    events.close()
    assert len(noting.seen) < 20
