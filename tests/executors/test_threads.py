import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ramerge.engine.executors.threads import ThreadExecutor


@contextmanager
def own(_tell: Callable[[int], None]) -> Iterator[list[int]]:
    yield []


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_every_block_once(workers: int) -> None:
    results = ThreadExecutor(workers).map(own, lambda _, block: [block * 2], range(100))
    assert sorted(results) == list(range(0, 200, 2))
    assert threading.active_count() == 1 or all(not t.name.startswith("ramerge-") for t in threading.enumerate())


def test_workers_own_what_they_open_and_let_go_of_it() -> None:
    open_now: set[int] = set()

    @contextmanager
    def worker(_tell: Callable[[bool], None]) -> Iterator[int]:
        me = threading.get_ident()
        open_now.add(me)
        yield me
        open_now.discard(me)

    assert all(ThreadExecutor(3).map(worker, lambda me, _: [me == threading.get_ident()], range(50)))
    assert not open_now


def test_the_first_error_ends_it_after_all_have_stopped() -> None:
    def work(_: list[int], block: int) -> Iterator[int]:
        if block == 3:
            raise ValueError("three")
        yield block

    with pytest.raises(ValueError, match="three"):
        list(ThreadExecutor(2).map(own, work, range(1_000_000)))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramerge-")]


def test_a_consumer_that_stops_early_stops_the_workers() -> None:
    results = ThreadExecutor(2).map(own, lambda _, block: [block], range(10**9))
    next(results)
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramerge-")]


def test_a_worker_may_say_more_than_its_results() -> None:
    @contextmanager
    def worker(tell: Callable[[int], None]) -> Iterator[Callable[[int], None]]:
        yield tell

    def work(tell: Callable[[int], None], block: int) -> Iterator[int]:
        tell(-block)
        yield block

    assert list(ThreadExecutor(1).map(worker, work, [1, 2])) == [-1, 1, -2, 2]


def test_results_of_a_block_come_one_by_one() -> None:
    begun = threading.Semaphore(0)

    def work(_: list[int], block: int) -> Iterator[int]:
        yield block
        assert begun.acquire(timeout=30), "the first result waits for the second"
        yield -block

    results = ThreadExecutor(2).map(own, work, [1])
    assert next(results) == 1
    begun.release()
    assert list(results) == [-1]


def test_a_consumer_that_stops_ends_a_block_in_its_middle() -> None:
    results = ThreadExecutor(2).map(own, lambda _, block: itertools.count(block), [0, 1])
    next(results)
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramerge-")]


def test_no_blocks() -> None:
    assert list(ThreadExecutor(2).map(own, lambda _, block: [block], [])) == []


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        ThreadExecutor(0)


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_fewer_threads_where_the_system_allows_no_more(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(begun) == allowed:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    results = ThreadExecutor(3).map(own, lambda _, block: [block], range(10))
    if allowed:
        assert sorted(results) == list(range(10))
    else:
        with pytest.raises(RuntimeError, match="can't start"):
            list(results)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramerge-")]
