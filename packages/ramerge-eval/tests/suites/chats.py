"""Models that say what a test wants them to say, and tasks that are asked and scored without a run of Inspect's."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageUser,
    GenerateConfig,
    ModelName,
    ModelOutput,
)
from inspect_ai.scorer import Score, Target
from inspect_ai.solver import TaskState
from inspect_ai.tool import ToolCall, ToolInfo

from ramerge_eval.tasks import common

_model: ContextVar[Any] = ContextVar("model", default=None)
_of_inspect = common.get_model
common.get_model = lambda: _model.get() or _of_inspect()


@dataclass(frozen=True)
class Reply:
    """What a model answers: a text, and names and arguments of native calls."""

    text: str
    tool_calls: tuple[tuple[str, str], ...] = ()
    finish_reason: str = "stop"

    def output(self) -> ModelOutput:
        """The same as Inspect has it: arguments are parsed."""
        message = ChatMessageAssistant(
            content=self.text,
            tool_calls=[_call(*each) for each in self.tool_calls] or None,
        )
        stopped: Any = "max_tokens" if self.finish_reason == "length" else "stop"
        return ModelOutput(model="scripted", choices=[ChatCompletionChoice(message=message, stop_reason=stopped)])


def _call(function: str, arguments: str) -> ToolCall:
    try:
        return ToolCall(id="1", function=function, arguments=json.loads(arguments))
    except (ValueError, RecursionError) as error:
        return ToolCall(id="1", function=function, arguments={}, parse_error=str(error))


class Scripted:
    """Answers with the given replies, one after the other, and keeps what it was asked.

    A `None` among them is a failed request.
    """

    def __init__(self, replies: Iterable[Reply | str | None]) -> None:
        self._replies = [Reply(each) if isinstance(each, str) else each for each in replies]
        self.asked: list[dict[str, Any]] = []

    async def generate(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolInfo], config: GenerateConfig
    ) -> ModelOutput:
        assert self._replies, "the task asks more often than the script has replies"
        self.asked.append(
            {
                "messages": [{"role": each.role, "content": each.text} for each in messages],
                "tools": tools,
                "stop": tuple(config.stop_seqs or ()),
                "extra_body": config.extra_body or {},
                "seed": config.seed,
            }
        )
        reply = self._replies.pop(0)
        if reply is None:
            raise ConnectionError("the endpoint is not there")
        return reply.output()


@dataclass(frozen=True)
class Item:
    """A sample of a task."""

    sample: Sample

    @property
    def key(self) -> str:
        """Its id in its subset."""
        return str(self.sample.id).partition("/")[2]

    @property
    def about(self) -> dict[str, Any]:
        """Its metadata."""
        return self.sample.metadata or {}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What is asked."""
        asked = self.sample.input
        chat = [ChatMessageUser(content=asked)] if isinstance(asked, str) else asked
        return [{"role": each.role, "content": each.text} for each in chat]


class Suite:
    """A task function with its arguments."""

    def __init__(self, make: Callable[..., Task], **arguments: Any) -> None:
        self.name = make.__name__
        self.arguments = arguments
        self._make = make
        self._made: dict[str, Task] = {}

    def check(self, subsets: Sequence[str]) -> Task:
        """The task of these subsets."""
        given = {"subsets": list(subsets)} if "subsets" in inspect.signature(self._make).parameters else {}
        return self._make(**given, **self.arguments)

    def task(self, subset: str) -> Task:
        """The task of one subset, made once."""
        if subset not in self._made:
            self._made[subset] = self.check([subset])
        return self._made[subset]

    def items(self, subset: str) -> Iterator[Item]:
        """Samples of a subset."""
        yield from map(Item, self.task(subset).dataset)

    def failed(self, subset: str, item: Item) -> Mapping[str, Any]:
        """What a sample counts whose requests failed."""
        return asyncio.run(_scored(self, subset, item, _state(item))).metrics


def scorer_of(suite: Suite, subset: str) -> Any:
    """The one scorer of a task."""
    scorers: Any = suite.task(subset).scorer
    return scorers[0] if isinstance(scorers, list) else scorers


def solver_arguments(suite: Suite, subset: str) -> dict[str, Any]:
    """What the solver of a task was made with."""
    solver: Any = suite.task(subset).solver
    names = solver.__code__.co_freevars
    return dict(zip(names, (cell.cell_contents for cell in solver.__closure__), strict=True))


@dataclass(frozen=True)
class Verdict:
    """A score, taken apart."""

    score: Score

    @cached_property
    def metrics(self) -> dict[str, tuple[float, float]]:
        """Ratios."""
        assert self.score.metadata is not None
        return {name: tuple(ratio) for name, ratio in self.score.metadata["ratios"].items()}

    @property
    def parsed(self) -> Any:
        """The answer as the scorer understood it."""
        try:
            return json.loads(self.score.answer or "null")
        except ValueError:
            return self.score.answer

    @property
    def problem(self) -> str | None:
        """Why the answer could not be understood."""
        return self.score.explanation

    @property
    def details(self) -> dict[str, Any]:
        """The rest of the metadata."""
        own = (self.score.metadata or {}).items()
        return {name: value for name, value in own if name not in (common.RATIOS, common.SUBSET, common.CUT)}


def _state(item: Item) -> TaskState:
    sample = item.sample
    asked = sample.input
    return TaskState(
        model=ModelName("scripted/model"),
        sample_id=str(sample.id),
        epoch=1,
        input=asked,
        messages=[ChatMessageUser(content=asked)] if isinstance(asked, str) else list(asked),
        target=Target(sample.target),
        metadata=copy.deepcopy(sample.metadata),
    )


async def _scored(suite: Suite, subset: str, item: Item, state: TaskState) -> Verdict:
    return Verdict(await scorer_of(suite, subset)(state, state.target))


async def asked_and_scored(suite: Suite, subset: str, item: Item, chat: Any) -> Verdict:
    """One item, as the solver and the scorer of the task take it."""
    state = _state(item)
    _model.set(chat)
    solver: Any = suite.task(subset).solver
    return await _scored(suite, subset, item, await solver(state, None))


def attempt(suite: Suite, subset: str, item: Item, replies: Iterable[Reply | str | None]) -> Verdict:
    """Score one item on a script."""
    return asyncio.run(asked_and_scored(suite, subset, item, Scripted(replies)))


def main_metric(suite: Suite, subset: str, item: Item, replies: Iterable[Reply | str | None]) -> float:
    """The share that a script earns in the subset's main metric."""
    numerator, denominator = next(iter(attempt(suite, subset, item, replies).metrics.values()))
    return numerator / denominator
