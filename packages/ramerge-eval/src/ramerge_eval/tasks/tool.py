"""The task `tool`: the 13 single-turn subsets of the Berkeley Function Calling Leaderboard.

Source: Patil et al., The Berkeley Function Calling Leaderboard, ICML 2025. Questions, possible answers, prompt, decoder
and checker are those of the package `bfcl-eval`, so a score equals the package's score of the same output. Two things
differ, for answers that no model intends. The package computes operators in arguments by `eval`; here, only arithmetic
is computed. And answers beyond a length count as undecodable, because the package's parsers overflow the stack on deep
nesting.

By the package's rules, an undecodable answer is right in `irrelevance` and `live_irrelevance`, and wrong in other
categories. An answer that makes the checker fail counts as wrong; the package's own run would stop.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Literal

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ModelOutput
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import TaskState

from ramerge import EvaluationError
from ramerge_eval.data import read_records, refuse_duplicates
from ramerge_eval.tasks import bfcl, common
from ramerge_eval.time_limit import call_within_limit

Mode = Literal["prompting", "native"]

SUBSETS = (
    *("live_multiple", "live_parallel", "live_relevance", "live_simple", "live_parallel_multiple", "live_irrelevance"),
    *("multiple", "irrelevance", "simple_java", "simple_javascript", "parallel_multiple", "parallel", "simple_python"),
)
MOST_CHARACTERS = {"python": 100_000, "java": 4_000, "javascript": 4_000}
"""Longest answer to decode. On deep nesting Python 3.10's parser overflows the stack at 1,000,000 characters, and
tree-sitter at 16,000, or takes ten seconds; at twice these limits neither does."""

_MOST_CHARACTERS = 10_000


@task
@common.with_validation
def tool(
    subsets: common.Subsets = "live_parallel,live_parallel_multiple,parallel,parallel_multiple",
    bfcl: Path | None = None,
    mode: Mode = "prompting",
    seed: common.Seed = 0,
) -> Task:
    """The task `tool`: function calls (BFCL), judged by bfcl-eval's own checker.

    Args:
        subsets: some of BFCL's 13 single-turn subsets.
        bfcl: a folder like bfcl_eval/data; by default the package's own.
        mode: `prompting` has functions in the system prompt and calls in the text; `native` uses the API's tools and
            tool_calls.
        seed: the seed of sampling.
    """
    by_subset = common.for_each(common.choice(subsets, SUBSETS), lambda subset: _samples(subset, bfcl, mode))
    return Task(
        dataset=[each for samples in by_subset.values() for each in samples],
        solver=common.answer(seed),
        scorer=_calls(mode),
        # bfcl-eval's own, the length for models that it serves
        config=GenerateConfig(temperature=0.001, top_p=1.0, max_tokens=4096),
    )


def _samples(subset: str, folder: Path | None, mode: Mode) -> list[Sample]:
    """Read the samples of a subset of BFCL, in the order of the file."""
    package = bfcl.load()
    path = (folder or Path(package.config.PROMPT_PATH)) / f"{package.config.VERSION_PREFIX}_{subset}.json"
    records = read_records(path, {"id": str, "question": list, "function": list})
    refuse_duplicates(path, [record["id"] for record in records])
    answers: dict[str, list[dict[str, object]]] = {}
    if "relevance" not in subset:
        possible = path.parent / "possible_answer" / path.name
        solutions = read_records(possible, {"id": str, "ground_truth": list})
        refuse_duplicates(possible, [each["id"] for each in solutions])
        answers = {each["id"]: each["ground_truth"] for each in solutions}
        if unanswered := [record["id"] for record in records if not answers.get(record["id"])]:
            raise EvaluationError(f"{possible}: lacks possible answers to {', '.join(unanswered[:10])}")
    samples = []
    for record in records:
        item, problem = call_within_limit(_sample, subset, record, answers.get(record["id"]), mode)
        if item is None:
            raise EvaluationError(f"{path}, {record['id']}: is not a question of BFCL ({problem})")
        samples.append(item)
    return samples


def _sample(subset: str, record: Mapping[str, Any], truth: list[dict[str, Any]] | None, mode: Mode) -> Sample:
    """Make a sample of BFCL: tools in the form of its handlers for chat APIs, types for its checker in the language's
    form.
    """
    package = bfcl.load()
    parameters = {function["name"]: function["parameters"]["properties"] for function in record["function"]}
    for each in truth or ():  # some of BFCL's own answers have arguments that their function does not take
        for name, values in each.items():
            parameters[name].keys(), values.keys()
    question = copy.deepcopy({key: record[key] for key in ("id", "question", "function")})
    [question] = package.utils.add_language_specific_hint_to_function_doc([question])
    messages, functions = question["question"][0], question["function"]
    tools = []
    if mode == "native":
        style = package.enums.ModelStyle.OPENAI_COMPLETIONS
        tools = package.handler.convert_to_tool(functions, package.types.GORILLA_TO_OPENAPI, style)
    else:
        messages = package.handler.system_prompt_pre_processing_chat_model(messages, functions, question["id"])
    about = {"functions": record["function"], "possible_answers": truth, common.TOOLS: tools}
    return common.sample(subset, record["id"], messages, json.dumps(truth), **about)


@scorer(name="ramerge/tool", metrics=[common.shares()])
def _calls(mode: Mode) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        if common.is_failed(state):
            return _verdict(state, False, None, common.FAILURE)
        # parsing a model's output warns of its escapes, and the package prints what it cannot convert
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            if state.metadata["possible_answers"] is not None:
                return _score_calls(state, mode)
            # right where a function is called, or where none is; the package reads these answers as Python
            calls, problem = call_within_limit(_decoded, state.output, "python", mode)
            is_call = problem is None and not bfcl.load().utils.is_empty_output(calls)
            is_right = is_call is not ("irrelevance" in state.metadata["subset"])
            return _verdict(state, is_right, calls, None if is_right else problem)

    return score


def _score_calls(state: TaskState, mode: Mode) -> Score:
    package, subset = bfcl.load(), state.metadata["subset"]
    language = subset.removeprefix("simple_") if subset in ("simple_java", "simple_javascript") else "python"
    calls, problem = call_within_limit(_decoded, state.output, language, mode)
    if problem is not None:
        return _verdict(state, False, None, problem)
    if not package.utils.is_function_calling_format_output(calls):
        return _verdict(state, False, calls, "the answer holds no list of calls")
    verdict, problem = call_within_limit(
        package.checker.ast_checker,
        state.metadata["functions"],
        calls,
        state.metadata["possible_answers"],
        package.enums.Language(language),
        subset,
        bfcl.NATIVE if mode == "native" else bfcl.PROMPTING,
    )
    if verdict is None:
        return _verdict(state, False, calls, problem)
    about = {} if verdict["valid"] else {"error_type": verdict["error_type"], "error": _text(verdict["error"])}
    return _verdict(state, verdict["valid"], calls, **about)


def _decoded(output: ModelOutput, language: str, mode: Mode) -> object:
    """Decode calls with the package's decoder; raises whatever it raises for an answer without calls."""
    package = bfcl.load()
    if mode == "native":
        if not (calls := output.message.tool_calls):
            raise ValueError("the answer has no tool calls")
        if problem := next((call.parse_error for call in calls if call.parse_error), None):
            raise ValueError(problem)
        return [{call.function: call.arguments} for call in calls]
    text = common.text_of(output)
    if len(text) > MOST_CHARACTERS[language]:
        raise ValueError(f"the answer has {len(text):,} characters, more than {MOST_CHARACTERS[language]:,}")
    return package.handler.default_decode_ast_prompting(text, package.enums.ReturnFormat(language))


def _verdict(state: TaskState, is_right: bool, calls: object, problem: str | None = None, **about: object) -> Score:
    """Return the score of an answer. `calls` are shown unchanged, or cut if they are too long or not JSON."""
    text, unwritable = call_within_limit(partial(json.dumps, allow_nan=False), calls)
    is_long = unwritable is not None or len(text or "") > _MOST_CHARACTERS
    short_text = _text(calls) if is_long else calls
    return common.score_of(state, {"accuracy": (float(is_right), 1.0)}, short_text, problem, **about)


def _text(value: object) -> str:
    text, problem = call_within_limit(repr, value)  # fails on integers beyond Python's limit of digits
    return (text or f"cannot be shown ({problem})")[:_MOST_CHARACTERS]
