"""A benchmark as an Inspect task: its items are samples, `ask` is the solver, `score` the scorer."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    GenerateConfig,
    ModelOutput,
    get_model,
    messages_from_openai,
)
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, Value, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo
from pydantic import ValidationError

from ramerge.evaluation.benchmark import Benchmark, BenchmarkSettings, Context, Item, Message, Ratio, Reply, Verdict
from ramerge.foundation.errors import EndpointError, EvaluationError, RamergeError
from ramerge.foundation.text import shown, unknown

RATIOS = "ratios"
SUBSET = "subset"
CUT, FAILED_REQUESTS = "cut", "failed_requests"
_ANSWERS, _COUNTS = "ramerge_answers", "ramerge_counts"
_GENERATION = frozenset(BenchmarkSettings.model_fields) - {"seed"}
_ALL = "all"
_MOST_SHOWN = 1000


def benchmark_task(
    kind: type[Benchmark[Any]],
    subsets: str | Sequence[str] | None,
    data: Mapping[str, str] | None,
    parameters: Mapping[str, Any],
    *,
    tokenizer: str | None = None,
    sandbox: str | None = None,
) -> Task:
    """A task of some subsets of a benchmark.

    Args:
        kind: the benchmark.
        subsets: names, also as one text with commas; `all`; by default the headline subsets.
        data: files of the user, by the name of a data set.
        parameters: of the benchmark's settings.
        tokenizer: the model's, where contexts are cut by tokens.
        sandbox: a provider of Inspect's, where programs run.

    Raises:
        EvaluationError: everything that is missing or wrong.
    """
    data = {**(data or {}), **{key: value for key, value in parameters.items() if key in kind.data}}
    parameters = {key: value for key, value in parameters.items() if key not in kind.data}
    benchmark = kind(_settings(kind, parameters), _context(kind, data, tokenizer))
    names = _names(benchmark, subsets)
    benchmark.check(names)
    items = {f"{name}/{item.key}": item for name in names for item in benchmark.items(name)}
    if not items:
        raise EvaluationError(f"ramerge/{kind.name}: {', '.join(names)}: there are no items")
    samples = [
        Sample(
            id=key,
            input=key,
            target=benchmark.target(key.partition("/")[0], item),
            metadata={SUBSET: key.partition("/")[0]},
        )
        for key, item in items.items()
    ]
    settings = benchmark.settings
    return Task(
        dataset=MemoryDataset(samples, name=kind.name),
        solver=_asking(benchmark, items),
        scorer=_judging(benchmark, items),
        sandbox=sandbox,
        config=GenerateConfig(**{name: getattr(settings, name) for name in _GENERATION}),
        metadata={"ramerge_settings": settings.model_dump(mode="json")},
    )


def _settings(kind: type[Benchmark[Any]], parameters: Mapping[str, Any]) -> BenchmarkSettings:
    try:
        return kind.settings_type(**parameters)
    except ValidationError as error:
        raise EvaluationError(
            [f"ramerge/{kind.name}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        ) from error


def _context(kind: type[Benchmark[Any]], data: Mapping[str, str], tokenizer: str | None) -> Context:
    problems = [
        unknown(f"data of ramerge/{kind.name}", name, list(kind.data)) for name in data if name not in kind.data
    ]
    paths = {name: Path(path) for name, path in data.items()}
    problems += [f"--data {name}={path}: does not exist" for name, path in paths.items() if not path.exists()]
    if problems:
        raise EvaluationError(problems)
    return Context(paths, Path(tokenizer) if tokenizer else None)


def _names(benchmark: Benchmark[Any], subsets: str | Sequence[str] | None) -> list[str]:
    there = {each.name: each for each in benchmark.subsets()}
    if not subsets:
        return [name for name, each in there.items() if each.headline]
    wanted = subsets.split(",") if isinstance(subsets, str) else list(subsets)
    if wanted == [_ALL]:
        return list(there)
    if problems := [
        unknown(f"subset of ramerge/{benchmark.name}", name, list(there)) for name in wanted if name not in there
    ]:
        raise EvaluationError(problems)
    return list(dict.fromkeys(wanted))


@dataclass
class InspectChat:
    """Asks the model that Inspect evaluates. Keeps the last exchange for the sample's state."""

    sample: str
    seed: int | None
    messages: list[ChatMessage] = field(default_factory=list)
    output: ModelOutput | None = None
    requests: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    async def __call__(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
        extra_body: Mapping[str, Any] = MappingProxyType({}),
    ) -> Reply:
        config = GenerateConfig(
            seed=self._next_seed(), stop_seqs=list(stop) or None, extra_body=dict(extra_body) or None
        )
        reply = await self._answered(messages, tools, config)
        self.counts[CUT] += reply.finish_reason == "length"
        return reply

    async def _answered(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], config: GenerateConfig
    ) -> Reply:
        try:
            openai_messages: Any = [dict(each) for each in messages]  # typed only where the openai package is installed
            asked = await messages_from_openai(openai_messages)
            output = await get_model().generate(asked, tools=[_tool(each) for each in tools], config=config)
        except RamergeError:
            raise
        except Exception as error:  # whatever a provider raises after its retries
            self.counts[FAILED_REQUESTS] += 1
            cause = error.__cause__ or error  # Inspect puts the whole request in front of it
            raise EndpointError(f"{type(cause).__name__}: {shown(str(cause))}"[:_MOST_SHOWN]) from error
        if output.error or not output.choices:
            raise EndpointError(shown(output.error or "the answer holds no choice")[:_MOST_SHOWN])
        self.messages, self.output = [*asked, output.message], output
        return _reply(output)

    def _next_seed(self) -> int | None:
        """One of its own for every request, the same in every run."""
        number, self.requests = self.requests, self.requests + 1
        if self.seed is None:
            return None
        text = f"{self.seed}/{self.sample}/{number}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _tool(described: Mapping[str, Any]) -> ToolInfo:
    return ToolInfo.model_validate(described["function"])


def _reply(output: ModelOutput) -> Reply:
    calls = tuple(
        (call.function, "" if call.parse_error else json.dumps(call.arguments))
        for call in output.message.tool_calls or ()
    )
    text = output.completion.encode(errors="replace").decode()
    ended = "length" if output.stop_reason in ("max_tokens", "model_length") else output.stop_reason
    return Reply(text, calls, ended)


def _asking(benchmark: Benchmark[Any], items: Mapping[str, Item]) -> Solver:
    @solver(name=f"ramerge/{benchmark.name}")
    def asking() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            sample = str(state.sample_id)
            chat = InspectChat(sample, benchmark.settings.seed)
            state.store.set(_ANSWERS, await benchmark.ask(sample.partition("/")[0], items[sample], chat))
            state.store.set(_COUNTS, dict(+chat.counts))
            if chat.output is not None:
                state.messages, state.output = chat.messages, chat.output
            return state

        return solve

    return asking()


def _judging(benchmark: Benchmark[Any], items: Mapping[str, Item]) -> Scorer:
    @scorer(name=f"ramerge/{benchmark.name}", metrics=[shares()])
    def judging() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            sample = str(state.sample_id)
            subset = sample.partition("/")[0]
            answers = state.store.get(_ANSWERS)
            if answers is None:  # a request failed that it could not do without
                return as_score(Verdict(benchmark.failed(subset, items[sample]), problem="its requests failed"), subset)
            verdict = await benchmark.score(subset, items[sample], answers)
            return as_score(verdict, subset, state.store.get(_COUNTS))

        return score

    return judging()


def as_score(verdict: Verdict, subset: str, counts: Mapping[str, int] | None = None) -> Score:
    """A verdict in Inspect's form: shares to look at, and the ratios that metrics and tables are made of."""
    return Score(
        value={name: _share(ratio) for name, ratio in verdict.metrics.items()},
        answer=verdict.parsed if isinstance(verdict.parsed, str | None) else json.dumps(verdict.parsed, default=repr),
        explanation=verdict.problem,
        metadata={
            RATIOS: {name: [float(each) for each in ratio] for name, ratio in verdict.metrics.items()},
            SUBSET: subset,
            **(counts or {}),
            **verdict.details,
        },
    )


def _share(ratio: Ratio) -> float | None:
    return ratio[0] / ratio[1] if ratio[1] else None


@metric(name="shares")
def shares() -> Metric:
    """Each metric as a ratio of sums; by subset, where there are several."""

    def compute(scores: list[SampleScore]) -> Value:
        sums: dict[tuple[str, str], list[float]] = {}
        for each in scores:
            about = each.score.metadata or {}
            for name, (numerator, denominator) in about.get(RATIOS, {}).items():
                total = sums.setdefault((about[SUBSET], name), [0.0, 0.0])
                total[0] += numerator
                total[1] += denominator
        several = len({subset for subset, _ in sums}) > 1
        return {
            f"{subset}/{name}" if several else name: numerator / denominator if denominator else float("nan")
            for (subset, name), (numerator, denominator) in sums.items()
        }

    return compute
