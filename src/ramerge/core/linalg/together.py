"""Matrices that are solved for at the same time, so that what they decompose is decomposed as one stack.

A GPU decomposes a small matrix in thousands of short steps, and a stack of them in hardly more. But ranks, cuts and
precisions differ from matrix to matrix, so formulas are written for one. Each matrix has a thread, which waits where it
decomposes something until all others wait too, or have ended. What is in a stack, and in which order, depends on the
matrices alone and not on the time that threads take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
# arguments of several calls -> their results
Together = Callable[[Sequence[Any]], Sequence[Any]]


class Company:
    """Threads that solve for a matrix each, with numbers from 0 on; every one of them must `leave`."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._turn = threading.Condition()
        self._waiting: list[_Call] = []
        self._sharing = threading.Lock()
        self._shared: tuple[Any, Callable[[Any], object]] | None = None

    def share(self, take: Callable[[], T], give: Callable[[T], object]) -> T:
        """Take something for all members when the first one asks, and give it back when the last one has left."""
        with self._sharing:
            if self._shared is None:
                self._shared = take(), give
            return self._shared[0]

    def leave(self) -> None:
        """A member makes no more calls."""
        with self._turn:
            self._members -= 1
            self._answer_all()
            is_last = not self._members
        if is_last and self._shared is not None:
            taken, give = self._shared
            give(taken)

    def call(self, number: int, kind: Hashable, argument: Any, function: Together) -> Any:
        """The result of a member's `argument`, of calls of one kind together.

        Raises:
            Exception: of `function` for this argument alone.
        """
        call = _Call(number, kind, argument, function)
        with self._turn:
            self._waiting.append(call)
            self._answer_all()
            self._turn.wait_for(lambda: call.is_answered)
        if call.error is not None:
            raise call.error
        return call.result

    def _answer_all(self) -> None:
        if len(self._waiting) < self._members:
            return
        kinds: dict[Hashable, list[_Call]] = {}
        for call in sorted(self._waiting, key=lambda call: call.number):
            kinds.setdefault(call.kind, []).append(call)
        self._waiting = []
        for calls in kinds.values():
            _answer(calls)
        self._turn.notify_all()


@dataclass
class _Call:
    number: int
    kind: Hashable
    argument: Any
    function: Together
    result: Any = None
    error: Exception | None = None
    is_answered: bool = False


def _answer(calls: Sequence[_Call]) -> None:
    """Where all calls together fail, each by itself: one matrix may not converge, or all need too much memory."""
    try:
        results = calls[0].function([call.argument for call in calls])
    except Exception as error:
        if len(calls) > 1:
            for call in calls:
                _answer([call])
            return
        calls[0].error = error
    else:
        for call, result in zip(calls, results, strict=True):
            call.result = result
    for call in calls:
        call.is_answered = True


@dataclass(frozen=True)
class Member:
    """A place in a company."""

    company: Company
    number: int


def at_once(works: Sequence[Callable[[Member], T]]) -> list[T]:
    """The results of the members of a company, each in a thread of its own; ends with the first one's error."""
    company, results = Company(len(works)), list[Future[T]]()

    def run(number: int) -> T:
        try:
            return works[number](Member(company, number))
        finally:
            company.leave()

    with ThreadPoolExecutor(len(works), "ramerge-together") as threads:
        try:
            for number in range(len(works)):
                results.append(threads.submit(run, number))
        finally:
            for _ in works[len(results) :]:  # the system allows no more threads
                company.leave()
    return [result.result() for result in results]


_present: ContextVar[Member | None] = ContextVar("present", default=None)


@contextmanager
def as_member(member: Member | None) -> Iterator[None]:
    """In the block, this thread's calls are those of a member."""
    token = _present.set(member)
    try:
        yield
    finally:
        _present.reset(token)


def call(kind: Hashable, argument: T, function: Together) -> Any:
    """The result of `function([argument])`, with calls of the same kind by others of this thread's company."""
    member = _present.get()
    if member is None:
        return function([argument])[0]
    return member.company.call(member.number, kind, argument, function)
