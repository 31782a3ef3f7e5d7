"""A suite for tests of everything around suites: say the word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from ramerge.evaluation.suite import Chat, Item, Ratio, Reply, Score, Settings, Suite, Task
from ramerge.foundation.errors import EndpointError, EvaluationError


class ToySettings(Settings):
    words: int = 20
    twice: bool = False


class ToySuite(Suite[ToySettings]):
    name = "toy"
    title = "Say the word"
    settings_type = ToySettings
    data: ClassVar[Mapping[str, str]] = {"words": "words to say"}

    def tasks(self) -> Sequence[Task]:
        return (Task("easy", "Easy", ("accuracy", "length")), Task("hard", "Hard", ("accuracy",), headline=False))

    def check(self, tasks: Sequence[str]) -> None:
        if self.settings.words == 13:
            raise EvaluationError("toy: thirteen words cannot be")

    def items(self, task: str) -> Iterator[Item]:
        for number in range(self.settings.words):
            yield Item(f"{task}-{number}", f"word{number}")

    async def attempt(self, task: str, item: Item, chat: Chat) -> Score:
        reply = await chat([{"role": "user", "content": f"say {item.value}"}], stop=["."])
        if reply.text == "bomb":
            raise RecursionError("too deep")
        if self.settings.twice:
            with suppress(EndpointError):
                await chat([{"role": "user", "content": "once more"}])
        right = float(reply.text.strip() == item.value)
        metrics: dict[str, Ratio] = {"accuracy": (right, 1.0)}
        if task == "easy":
            metrics["length"] = (float(len(reply.text)), 10.0)
        parsed = {(1, 2): ...} if reply.text == "odd" else reply.text.strip()
        return Score(metrics, parsed, problem=None if reply.text else "said nothing")

    def gold(self, task: str, item: Item) -> Sequence[Reply]:
        return [Reply(str(item.value))]

    def failed(self, task: str, item: Item) -> Mapping[str, Ratio]:
        return {"accuracy": (0.0, 1.0)} | ({"length": (0.0, 10.0)} if task == "easy" else {})

    def uses(self, task: str) -> Sequence[str]:
        return ["words"]

    def versions(self) -> Mapping[str, str]:
        return {"toy": "1"}
