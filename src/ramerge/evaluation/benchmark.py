"""What a benchmark is: subsets made of items, how a model is asked about one item, and how its answers are scored.

A benchmark is data and a little asking: it opens no socket, writes no log and counts no failure. `tasks.bridge` makes
an Inspect task of it, whose solver calls `ask` with a `Chat` for each sample, and whose scorer calls `score`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Message = Mapping[str, Any]
"""One message of a chat as OpenAI's API takes it: role, content, and what tool calls need."""

Ratio = tuple[float, float]
"""A sample's share in a metric: numerator and denominator. A metric is the sum of the first over the
sum of the second, over all samples, so an accuracy has (0, 1) or (1, 1), and the share of followed instructions (2, 3).
"""


class BenchmarkSettings(BaseModel):
    """A task's parameters. The first ones are its generation, which Inspect's own options change; defaults are the
    paper's, or the benchmark's where the paper is silent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(0.0, ge=0, le=2, description="sampling temperature; 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus of sampling")
    max_tokens: int = Field(1024, ge=1, description="new tokens a request")
    seed: int | None = Field(0, ge=0, description="seed of data and of sampling; null sends none")


@dataclass(frozen=True)
class Subset:
    """One data set of a benchmark, a column or more of a table.

    `metrics` names what its samples are scored by, the main one first; all are shares of one. `headline` subsets are
    what runs unless others are asked for.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    headline: bool = True


@dataclass(frozen=True)
class Item:
    """One question. `key` is unique in its subset and the same in every run; `value` is the benchmark's own."""

    key: str
    value: Any


@dataclass(frozen=True)
class Reply:
    """What a model answered.

    Attributes:
        text: the content, of whole characters; empty where there is none.
        tool_calls: function name and arguments (a JSON text, unchecked) of each native call.
        finish_reason: why it ended, `length` at the limit of tokens.
    """

    text: str
    tool_calls: tuple[tuple[str, str], ...] = ()
    finish_reason: str | None = "stop"


@dataclass(frozen=True)
class Verdict:
    """How one sample did.

    Attributes:
        metrics: a ratio for each of the subset's metrics.
        parsed: the answer as the checker understood it; anything JSON can hold.
        problem: why it could not be understood or checked, in a sentence; None where it could, right or wrong.
    """

    metrics: Mapping[str, Ratio]
    parsed: Any = None
    problem: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Chat(Protocol):
    """Asks the model under test, for one sample."""

    async def __call__(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
        extra_body: Mapping[str, Any] = MappingProxyType({}),
    ) -> Reply:
        """One request, with the task's generation settings.

        Args:
            messages: the whole conversation.
            tools: functions for native calling, in the API's format.
            stop: texts that end the answer; the server leaves them out of it.
            extra_body: further keys of this request.

        Raises:
            EndpointError: no usable answer, after all retries. A benchmark may catch it where an item takes many
                requests and one may fail.
        """


@dataclass(frozen=True)
class Context:
    """What a user gives a benchmark.

    Attributes:
        data: files or folders of the user, by the name of a data set.
        tokenizer: a folder with the model's `tokenizer.json`, or the file.
    """

    data: Mapping[str, Path] = field(default_factory=dict)
    tokenizer: Path | None = None


S = TypeVar("S", bound=BenchmarkSettings)


class Benchmark(ABC, Generic[S]):
    """Subsets of one kind. `data` has the files that a user may give, by name, with what they hold."""

    name: ClassVar[str]
    settings_type: ClassVar[type[BenchmarkSettings]] = BenchmarkSettings
    data: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: S, context: Context) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def subsets(self) -> Sequence[Subset]:
        """All subsets, in the order of the paper's tables. Opens no data."""

    @abstractmethod
    def check(self, subsets: Sequence[str]) -> None:
        """Make sure that these subsets can run: packages, data, a tokenizer.

        Raises:
            EvaluationError: with a sentence for each thing that is missing or wrong, and what to do.
        """

    @abstractmethod
    def items(self, subset: str) -> Iterator[Item]:
        """The items of a subset, the same in every run with the same settings.

        Raises:
            EvaluationError: the data has missing fields, duplicated keys or a wrong encoding; names file and line.
        """

    @abstractmethod
    async def ask(self, subset: str, item: Item, chat: Chat) -> Any:
        """Ask the model: what it answered, as plain values that JSON can hold.

        Raises:
            EndpointError: a request failed that the item cannot do without.
        """

    @abstractmethod
    async def score(self, subset: str, item: Item, answers: Any) -> Verdict:
        """Score what `ask` returned. Any answer, however broken, gets a verdict."""

    def failed(self, subset: str, item: Item) -> Mapping[str, Ratio]:
        """What a sample counts whose requests failed: nothing, with its whole weight in the denominator."""
        metrics = next(each.metrics for each in self.subsets() if each.name == subset)
        return dict.fromkeys(metrics, (0.0, 1.0))

    def target(self, subset: str, item: Item) -> str:
        """The right answer as a log shows it, where a short text is one."""
        return ""
