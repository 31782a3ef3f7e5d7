"""Models that say what a test wants them to say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from ramerge.evaluation.benchmark import Benchmark, Item, Message, Reply, Verdict
from ramerge.foundation.errors import EndpointError


class Scripted:
    """Answers with the given replies, one after the other, and keeps what it was asked.

    A `None` among them is a failed request.
    """

    def __init__(self, replies: Iterable[Reply | str | None]) -> None:
        self._replies = [Reply(each) if isinstance(each, str) else each for each in replies]
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, messages: Sequence[Message], **options: Any) -> Reply:
        assert self._replies, "the benchmark asks more often than the script has replies"
        self.asked.append({"messages": list(messages), **options})
        reply = self._replies.pop(0)
        if reply is None:
            raise EndpointError("the endpoint is not there")
        return reply


async def asked_and_scored(benchmark: Benchmark[Any], subset: str, item: Item, chat: Scripted) -> Verdict:
    """One item, as the solver and the scorer of the task take it."""
    return await benchmark.score(subset, item, await benchmark.ask(subset, item, chat))


def attempt(benchmark: Benchmark[Any], subset: str, item: Item, replies: Iterable[Reply | str | None]) -> Verdict:
    """Score one item on a script."""
    return asyncio.run(asked_and_scored(benchmark, subset, item, Scripted(replies)))


def main_metric(benchmark: Benchmark[Any], subset: str, item: Item, replies: Iterable[Reply | str | None]) -> float:
    """The share that a script earns in the subset's main metric."""
    name = next(each.metrics[0] for each in benchmark.subsets() if each.name == subset)
    numerator, denominator = attempt(benchmark, subset, item, replies).metrics[name]
    return numerator / denominator
