"""Parts that all tasks share: arguments, samples, requests to the model, and scores that are ratios.

A metric is the sum of numerators divided by the sum of denominators over all samples. So a sample has, for example,
(0, 1) or (1, 1) for accuracy, and (2, 3) for 2 of 3 followed instructions. The ratios are in the metadata of its score,
where tables find them.
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
"""Metadata key of a message: its text as sent by the server, if Inspect has removed the reasoning."""
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
"""By task, its required arguments, and how to give them."""

# --- arguments -------------------------------------------------------------------------------------------------------


def lacking(task: str, arguments: Mapping[str, object]) -> list[str]:
    """Return problems of the task ramerge/NAME: required arguments that are missing."""
    return [f"ramerge/{task} needs {how}" for name, how in NEEDS.get(task, {}).items() if not arguments.get(name)]


def with_validation(make: Callable[..., Task]) -> Callable[..., Task]:
    """Check the arguments of a task function by their annotations; wrong arguments raise `EvaluationError`."""
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
    """Return the names of the requested subsets, given as a list, or as text with commas; `all` means all.

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
    """Call a function with each subset's name; raise one `EvaluationError` with all problems."""
    results: dict[str, T] = {}
    problems: dict[str, None] = {}
    for name in names:
        try:
            results[name] = function(name)
        except EvaluationError as error:
            problems |= dict.fromkeys(error.messages)
    if problems:
        raise EvaluationError(problems)
    return results


def sample(
    subset: str, key: str, content: str | Sequence[Mapping[str, Any]], target: str | list[str] = "", **metadata: Any
) -> Sample:
    """Make a sample of a subset. Its question is a text, or a chat of messages with role and content.

    Raises:
        ValidationError: the messages have another form.
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
    """Send one request to the model, and count in the sample's store whether the answer was cut off at the token limit.

    Args:
        seed: the task's seed; each request sends its own seed, the same in every run. None sends no seed.
        number: the number of the request in the sample.
        options: fields of Inspect's `GenerateConfig`.

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
    """Whether an answer of the model ended at the token limit."""
    return output.stop_reason in ("max_tokens", "model_length")


def text_of(output: ModelOutput) -> str:
    """Return the text of an answer, in whole characters, including the `<think>` part that Inspect removes.

    If only Inspect's providers processed it, the spaces around this part are not the model's.
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
    """Solver for tasks with one request: sends the sample's messages, with the tools and stop texts of its metadata."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        tools = [ToolInfo.model_validate(each["function"]) for each in state.metadata.get(TOOLS, ())]
        stop = list(state.metadata.get(STOP, ())) or None
        state.output = await ask(state, state.messages, seed, tools=tools, stop_seqs=stop)
        state.messages.append(state.output.message)
        return state

    return solve


# --- scores ----------------------------------------------------------------------------------------------------------


def is_failed(state: TaskState) -> bool:
    """Whether a request failed that the sample depends on; solvers set the sample's output last."""
    return not state.output.choices


def score_of(
    state: TaskState, ratios: Mapping[str, Ratio], parsed: object = None, problem: str | None = None, **details: object
) -> Score:
    """Return the score of a sample: shares for display, and the ratios that metrics and tables use.

    Args:
        ratios: the ratio of each metric, the main metric first.
        parsed: the answer as the checker understood it; any JSON value.
        problem: why the answer could not be parsed or checked; None if it could, right or wrong.
        details: further metadata.
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
    """The metric of all tasks: each figure as a ratio of sums; by subset, if there are several."""

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
