"""Parts that all tasks share: arguments, samples, requests to the model, and scores that are ratios.

A metric is the sum of numerators over the sum of denominators of all samples, so an accuracy has (0, 1) or (1, 1), and
the share of followed instructions (2, 3). Each sample's ratios are in its score's metadata, where tables find them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ContentReasoning, GenerateConfig, ModelOutput, get_model
from inspect_ai.scorer import Metric, SampleScore, Score, Value, metric
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo
from pydantic import Field, TypeAdapter, ValidationError, validate_call

from ramerge import EndpointError, EvaluationError, RamergeError
from ramerge.sdk.text import shown, unknown

RATIOS, SUBSET, CUT = "ratios", "subset", "cut"
STOP, TOOLS = "stop", "tools"
FAILURE = "its requests failed"
ORIGINAL_TEXT = "ramerge_text"
"""In a message's metadata: its text as the server sent it, where Inspect has taken the reasoning out of it."""
_MOST_CHARACTERS = 1000

Ratio = tuple[float, float]
Subsets = str | list[str]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int | None, Field(ge=0)]
_MESSAGES: TypeAdapter[list[ChatMessage]] = TypeAdapter(list[ChatMessage])
T = TypeVar("T")

NEEDS = {
    "agreement": {"calibration": "--data calibration=FOLDER, which `ramerge calibrate` writes"},
    "rewards": {
        "prompts": "--data prompts=FILE, JSON lines or verl's parquet",
        "function": "--task-set rewards.function=file.py:compute_score",
    },
}
"""By task, the arguments without which it cannot run, and how to give them."""

# --- arguments -------------------------------------------------------------------------------------------------------


def lacking(task: str, arguments: Mapping[str, object]) -> list[str]:
    """Problems of the task ramerge/NAME without arguments that it needs."""
    return [f"ramerge/{task} needs {how}" for name, how in NEEDS.get(task, {}).items() if not arguments.get(name)]


def with_validation(make: Callable[..., Task]) -> Callable[..., Task]:
    """Check the arguments of a task function by their annotations; wrong ones are an `EvaluationError`."""
    call = validate_call(make)

    @functools.wraps(make)
    def wrapper(*args: object, **kwargs: object) -> Task:
        try:
            return call(*args, **kwargs)
        except ValidationError as error:
            raise EvaluationError(
                [
                    f"ramerge/{make.__name__}: {'.'.join(map(str, each['loc']))}: {each['msg']}"
                    for each in error.errors()
                ]
            ) from error

    wrapper.__module__ = "ramerge"  # Inspect names a task after the package of its module: ramerge/NAME
    return wrapper


def choice(subsets: Subsets, all_names: Iterable[str]) -> list[str]:
    """The names of subsets that a task is asked for: a list, or a text with commas; `all`.

    Raises:
        EvaluationError: some are unknown.
    """
    names = subsets.split(",") if isinstance(subsets, str) else subsets
    if names == ["all"]:
        return list(all_names)
    if problems := [unknown("subset", name, list(all_names)) for name in names if name not in all_names]:
        raise EvaluationError(problems)
    return list(dict.fromkeys(names))


def for_each(names: Iterable[str], function: Callable[[str], T]) -> dict[str, T]:
    """Call a function with each subset's name; one `EvaluationError` with the problems of all where it raised some."""
    results: dict[str, T] = {}
    problems: dict[str, None] = {}
    for name in names:
        try:
            results[name] = function(name)
        except EvaluationError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise EvaluationError(problems)
    return results


def sample(
    subset: str, key: str, content: str | Sequence[Mapping[str, Any]], target: str | list[str] = "", **metadata: Any
) -> Sample:
    """Make a sample of a subset. Its question is a text, or a chat of messages with role and content.

    Raises:
        ValidationError: they are no such messages.
    """
    question = content if isinstance(content, str) else _MESSAGES.validate_python(content)
    return Sample(id=f"{subset}/{key}", input=question, target=target, metadata={SUBSET: subset, **metadata})


# --- requests --------------------------------------------------------------------------------------------------------


async def ask(
    state: TaskState,
    messages: Sequence[ChatMessage],
    seed: int | None,
    number: int = 0,
    *,
    tools: Sequence[ToolInfo] = (),
    **options: object,
) -> ModelOutput:
    """Make one request to the model, and count in the sample's store where the answer is cut off at the limit.

    Args:
        seed: of the task; each request sends one of its own, the same in every run. None sends none.
        number: of the request among those of the sample.
        options: of Inspect's `GenerateConfig`.

    Raises:
        EndpointError: no usable answer, after all retries.
    """
    text = f"{seed}/{state.sample_id}/{number}"
    own = None if seed is None else int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
    try:
        output = await get_model().generate(
            list(messages), tools=list(tools), config=GenerateConfig(seed=own, **options)
        )
    except RamergeError:
        raise
    except Exception as error:  # whatever a provider raises after its retries
        cause = error.__cause__ or error  # Inspect puts the whole request in front of it
        raise EndpointError(f"{type(cause).__name__}: {shown(str(cause))}"[:_MOST_CHARACTERS]) from error
    if output.error or not output.choices:
        raise EndpointError(shown(output.error or "the answer holds no choice")[:_MOST_CHARACTERS])
    if is_cut(output):
        state.store.set(CUT, state.store.get(CUT, 0) + 1)
    return output


def is_cut(output: ModelOutput) -> bool:
    """Whether an answer of the model ended at the limit of tokens."""
    return output.stop_reason in ("max_tokens", "model_length")


def text_of(output: ModelOutput) -> str:
    """The text of an answer, of whole characters, with the `<think>` that Inspect takes out of it.

    Where only Inspect's providers were at work, the spaces around that are not the model's.
    """
    message = output.message
    thoughts = [] if isinstance(message.content, str) else message.content
    thought = "".join(
        f"<think>{each.reasoning}</think>\n"
        for each in thoughts
        if isinstance(each, ContentReasoning) and each.internal == "think"
    )
    text = (message.metadata or {}).get(ORIGINAL_TEXT, f"{thought}{output.completion}")
    return str(text).encode(errors="replace").decode()


@solver(name="ramerge/answer")
def answer(seed: int | None) -> Solver:
    """Solver of tasks with one request: the sample's messages, and the tools and stop texts of its metadata."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        tools = [ToolInfo.model_validate(each["function"]) for each in state.metadata.get(TOOLS, ())]
        stop = list(state.metadata.get(STOP, ())) or None
        state.output = await ask(state, state.messages, seed, tools=tools, stop_seqs=stop)
        state.messages.append(state.output.message)
        return state

    return solve


# --- scores ----------------------------------------------------------------------------------------------------------


def is_failed(state: TaskState) -> bool:
    """Whether a request failed that the sample could not do without: solvers give the sample its output last."""
    return not state.output.choices


def score_of(
    state: TaskState, ratios: Mapping[str, Ratio], parsed: object = None, problem: str | None = None, **details: object
) -> Score:
    """The score of a sample: shares to look at, and the ratios that metrics and tables are made of.

    Args:
        ratios: of each metric, the main one first.
        parsed: the answer as the checker understood it; anything JSON can hold.
        problem: why it could not be understood or checked; None where it could, right or wrong.
        details: for the metadata.
    """
    cut = state.store.get(CUT)
    return Score(
        value={name: numerator / of if of else None for name, (numerator, of) in ratios.items()},
        answer=parsed if isinstance(parsed, str | None) else json.dumps(parsed, default=repr),
        explanation=problem,
        metadata={
            RATIOS: {name: [float(each) for each in ratio] for name, ratio in ratios.items()},
            SUBSET: state.metadata[SUBSET],
            **({CUT: cut} if cut else {}),
            **details,
        },
    )


@metric(name="shares")
def shares() -> Metric:
    """The metric of all tasks: each figure as a ratio of sums; by subset, where there are several."""

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
