"""Models that say what a test wants them to say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from ramerge.evaluation.suite import Item, Message, Reply, Score, Suite
from ramerge.foundation.errors import EndpointError


class Scripted:
    """Answers with the given replies, one after the other, and keeps what it was asked.

    A `None` among them is a failed request.
    """

    def __init__(self, replies: Iterable[Reply | str | None]) -> None:
        self._replies = [Reply(each) if isinstance(each, str) else each for each in replies]
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, messages: Sequence[Message], **options: Any) -> Reply:
        assert self._replies, "the suite asks more often than the script has replies"
        self.asked.append({"messages": list(messages), **options})
        reply = self._replies.pop(0)
        if reply is None:
            raise EndpointError("the endpoint is not there")
        return reply


def attempt(suite: Suite[Any], task: str, item: Item, replies: Iterable[Reply | str | None]) -> Score:
    """Score one item of a suite on a script."""
    return asyncio.run(suite.attempt(task, item, Scripted(replies)))


def main_metric(suite: Suite[Any], task: str, item: Item, replies: Iterable[Reply | str | None]) -> float:
    """The share that a script earns in the task's main metric."""
    name = next(each.metrics[0] for each in suite.tasks() if each.name == task)
    numerator, denominator = attempt(suite, task, item, replies).metrics[name]
    return numerator / denominator
