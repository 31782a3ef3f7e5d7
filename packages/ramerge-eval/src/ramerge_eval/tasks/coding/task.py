"""The task `coding`: the model writes programs and unit tests, which are scored by running them in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from inspect_ai import Task, task
from inspect_ai.model import ChatMessage, GenerateConfig, ModelOutput
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from pydantic import Field

from ramerge import EndpointError, EvaluationError
from ramerge_eval.data import from_hub
from ramerge_eval.sandbox.watch import Limits
from ramerge_eval.tasks import common
from ramerge_eval.tasks.coding import judging, problems, protocol, scores
from ramerge_eval.tasks.coding.problems import MOST_SECONDS, Problem

Number = Annotated[int, Field(le=1000)]
Problems = Mapping[str, Problem]

_HUB = {
    "livebench": "Gen-Verse/LiveBench-ReasonFlux",
    "livecodebench": "Gen-Verse/LiveCodeBench-ReasonFlux",
    "mbpp": "Gen-Verse/MBPP-ReasonFlux",
    "codecontests": "Gen-Verse/CodeContests",
    "codeforces": "Gen-Verse/CodeForces",
}
_FIELDS = "question, test_input and test_output, optionally test_time_limit, example_input, example_output and task_id"
_ANSWERS = "answers"


@task
@common.with_validation
def coding(
    subsets: common.Subsets = "livebench,livecodebench",
    livebench: Path | None = None,
    livecodebench: Path | None = None,
    mbpp: Path | None = None,
    codecontests: Path | None = None,
    codeforces: Path | None = None,
    programs: Annotated[Number, Field(ge=1)] = 4,
    tests: Annotated[Number, Field(ge=0)] = 4,
    bon: tuple[int, int] | None = None,
    max_tests: common.Count = 8,
    examples: bool = False,
    time_limit: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 10.0,
    sandbox: str = "bubblewrap",
    seed: common.Seed = 0,
) -> Task:
    """The task `coding`: programs and unit tests, run against each other and the truth (CURE).

    Sampling settings are the paper's; the length and the cap on tests are CURE's. CURE also sets top_k to 40, as
    `--top-k` can.

    Args:
        subsets: some of livebench, livecodebench, mbpp, codecontests, codeforces and humaneval.
        livebench, livecodebench, codecontests, codeforces: files in CURE's layout; by default the hub's.
        mbpp: a file in MBPP's own layout or CURE's; by default CURE's of the hub.
        programs: the number of programs per problem.
        tests: the number of generated unit tests per problem; 0 scores only programs.
        bon: n, m of BoN, the best of n programs by m generated tests; by default, all, up to four.
        max_tests: the most ground-truth tests per problem; HumanEval's are all used.
        examples: show a problem's public tests in requests for a test.
        time_limit: seconds per run, if the data states no limit.
        sandbox: where programs run: `bubblewrap`, `docker`, or `local`, without a sandbox.
        seed: the seed of sampling.
    """
    files = {
        "livebench": livebench,
        "livecodebench": livecodebench,
        "mbpp": mbpp,
        "codecontests": codecontests,
        "codeforces": codeforces,
        "humaneval": None,
    }
    best = bon or (min(4, programs), min(4, tests))
    if not 1 <= best[0] <= programs or not min(1, tests) <= best[1] <= tests:
        raise EvaluationError(
            f"ramerge/coding: bon: {best[0]}, {best[1]} must lie between 1, {min(1, tests)} and programs, tests, which "
            f"are {programs}, {tests}"
        )
    by_subset = common.for_each(common.choice(subsets, files), lambda subset: _load(subset, files[subset], max_tests))
    by_id = MappingProxyType({f"{name}/{each.key}": each for name, group in by_subset.items() for each in group})
    return Task(
        dataset=[common.sample(name, each.key, each.question) for name, group in by_subset.items() for each in group],
        solver=_write(by_id, programs, tests, examples, seed),
        scorer=_run(by_id, programs, tests, best, time_limit),
        sandbox=sandbox,
        config=GenerateConfig(temperature=1.0, top_p=0.95, max_tokens=10_000),
    )


def _load(subset: str, path: Path | None, max_tests: int) -> list[Problem]:
    if subset == "humaneval":
        return problems.human_eval_problems()
    if path is None:
        instead = f"give a file with --data {subset}=FILE, a JSON list of objects with {_FIELDS}"
        path = from_hub(_HUB[subset], "test/*.json", task=f"coding/{subset}", instead=instead)
    read = problems.read_mbpp if subset == "mbpp" else problems.read_cure
    return [replace(problem, cases=problem.cases[:max_tests]) for problem in read(path)]


def _test_requests(problem: Problem, tests: int) -> int:
    """Return how many tests to ask for: none for a function, because only its assertions can test it."""
    return 0 if problem.function else tests


@solver(name="ramerge/coding")
def _write(problems: Problems, programs: int, tests: int, examples: bool, seed: int | None) -> Solver:
    """Solver that asks for all programs, then all tests, at once; stores None for a failed request."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        problem = problems[str(state.sample_id)]
        failures: list[EndpointError] = []

        async def one(number: int, messages: list[ChatMessage]) -> ModelOutput | None:
            try:
                return await common.ask(state, messages, seed, number)
            except EndpointError as error:
                failures.append(error)
                return None

        chats = [protocol.program_messages(problem)] * programs
        chats += [protocol.test_messages(problem, examples=examples)] * _test_requests(problem, tests)
        outputs = await asyncio.gather(*(one(number, messages) for number, messages in enumerate(chats)))
        replies = [(chat, output) for chat, output in zip(chats, outputs, strict=True) if output is not None]
        if not replies:
            raise failures[0]
        state.store.set(_ANSWERS, [output and common.text_of(output) for output in outputs])
        chat, state.output = replies[-1]
        state.messages = [*chat, state.output.message]
        return state

    return solve


@scorer(name="ramerge/coding", metrics=[common.shares()])
def _run(problems: Problems, programs: int, tests: int, bon: tuple[int, int], time_limit: float) -> Scorer:
    """Scorer that runs the programs on the tests. A failed request counts as a wrong program or test."""

    async def score(state: TaskState, target: Target) -> Score:
        problem = problems[str(state.sample_id)]
        if common.is_failed(state):
            return common.score_of(
                state,
                scores.nothing(programs, len(problem.cases), _test_requests(problem, tests)),
                problem=common.FAILURE,
            )
        answers: Sequence[str | None] = state.store.get(_ANSWERS)
        codes = [None if each is None else protocol.read_program(each) for each in answers[:programs]]
        cases = [None if each is None else protocol.read_test(each) for each in answers[programs:]]
        judge = judging.Judge(judging.programs(), problem, Limits(seconds=problem.seconds or time_limit))
        table = await judge.table(codes, [*problem.cases, *cases])
        truth = [row[: len(problem.cases)] for row in table]
        own_tests = [row[len(problem.cases) :] for row in table]
        failures = answers.count(None)
        unread = codes.count(None) + cases.count(None) - failures
        gaps = [f"{failures} of {len(answers)} requests failed"] if failures else []
        gaps += [f"{unread} of {len(answers)} answers hold no program or test"] if unread else []
        return common.score_of(
            state,
            scores.figures(truth, own_tests, bon),
            {"passes_ground_truth": truth, "passes_generated": own_tests},
            "; ".join(gaps) or None,
            runs=dict(judge.outcomes),
            **({"reasons": dict(judge.reasons)} if judge.reasons else {}),
        )

    return score
