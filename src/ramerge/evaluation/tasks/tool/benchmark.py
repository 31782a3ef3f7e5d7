"""The 13 single-turn subsets of BFCL, scored by its own checker."""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ramerge.evaluation.benchmark import Benchmark, BenchmarkSettings, Chat, Item, Message, Reply, Subset, Verdict
from ramerge.evaluation.data import all_of, read_records, refuse_duplicates
from ramerge.evaluation.guard import guarded
from ramerge.evaluation.tasks.tool import bfcl
from ramerge.foundation.errors import EvaluationError

METRIC = "accuracy"
MOST_CHARACTERS = {"python": 100_000, "java": 4_000, "javascript": 4_000}
"""Longest answer to decode. On deep nesting Python 3.10's parser overflows the stack at 1,000,000 characters, and
tree-sitter at 16,000, or takes ten seconds; at twice these limits neither does."""

_MOST_SHOWN = 10_000
_DATA = "bfcl"
_TASKS = (
    ("live_multiple", "Live Multiple"),
    ("live_parallel", "Live Parallel"),
    ("live_relevance", "Live Relevance"),
    ("live_simple", "Live Simple"),
    ("live_parallel_multiple", "Live Parallel Multiple"),
    ("live_irrelevance", "Live Irrelevance"),
    ("multiple", "Multiple"),
    ("irrelevance", "Irrelevance"),
    ("simple_java", "Simple Java"),
    ("simple_javascript", "Simple JavaScript"),
    ("parallel_multiple", "Parallel Multiple"),
    ("parallel", "Parallel"),
    ("simple_python", "Simple Python"),
)
_HEADLINE = {"live_parallel", "live_parallel_multiple", "parallel", "parallel_multiple"}


class ToolSettings(BenchmarkSettings):
    """How tools are offered, and how answers are generated."""

    mode: Literal["prompting", "native"] = Field(
        "prompting",
        description="functions in the system prompt and calls in the text, or through the API's tools and tool_calls",
    )
    temperature: float = Field(0.001, ge=0, le=2, description="sampling temperature; the default is bfcl-eval's own")
    max_tokens: int = Field(4096, ge=1, description="new tokens a request; bfcl-eval's own for models that it serves")


@dataclass(frozen=True)
class BfclEntry:
    """An item of BFCL.

    Attributes:
        messages, tools: what is asked; no tools in prompting mode.
        functions: as the checker takes them, with the types of their own language.
        answer: possible answers; None where the question is whether a function is called at all.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    functions: list[dict[str, Any]]
    answer: list[dict[str, Any]] | None


class ToolBenchmark(Benchmark[ToolSettings]):
    """BFCL's 13 single-turn subsets, scored by its AST checker."""

    name: ClassVar[str] = "tool"
    settings_type: ClassVar[type[BenchmarkSettings]] = ToolSettings
    data: ClassVar[Mapping[str, str]] = {"bfcl": "a folder like bfcl_eval/data; default: the package's own"}

    def subsets(self) -> Sequence[Subset]:
        return [Subset(name, title, (METRIC,), headline=name in _HEADLINE) for name, title in _TASKS]

    def check(self, subsets: Sequence[str]) -> None:
        """Loads the package and makes every question."""
        bfcl.load()
        all_of(partial(list, self.items(subset)) for subset in subsets)

    def items(self, subset: str) -> Iterator[Item]:
        """Questions in the order of the package's file, or of the user's, given as the data set `bfcl`: a folder with
        the files of the package's `data`.
        """
        path = self._folder() / f"{bfcl.load().config.VERSION_PREFIX}_{subset}.json"
        records = read_records(path, {"id": str, "question": list, "function": list})
        refuse_duplicates(path, [record["id"] for record in records])
        answers = {} if _is_relevance(subset) else self._answers(path, records)
        for record in records:
            question, problem = guarded(self._question, record, answers.get(record["id"]))
            if question is None:
                raise EvaluationError(f"{path}, {record['id']}: is not a question of BFCL ({problem})")
            yield Item(record["id"], question)

    async def ask(self, subset: str, item: Item, chat: Chat) -> dict[str, Any]:
        question: BfclEntry = item.value
        reply = await chat(question.messages, tools=question.tools)
        return {"text": reply.text, "tool_calls": [list(each) for each in reply.tool_calls]}

    async def score(self, subset: str, item: Item, answers: Mapping[str, Any]) -> Verdict:
        question: BfclEntry = item.value
        reply = Reply(answers["text"], tuple((name, arguments) for name, arguments in answers["tool_calls"]))
        with _quiet():
            if question.answer is None:
                return self._score_relevance(subset, reply)
            return self._score_calls(subset, question, reply)

    def target(self, subset: str, item: Item) -> str:
        return json.dumps(item.value.answer)

    def _folder(self) -> Path:
        return self.context.data.get(_DATA) or Path(bfcl.load().config.PROMPT_PATH)

    def _answers(self, path: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        """Possible answers by the question's id."""
        answers_path = path.parent / "possible_answer" / path.name
        answers = read_records(answers_path, {"id": str, "ground_truth": list})
        refuse_duplicates(answers_path, [each["id"] for each in answers])
        by_id = {each["id"]: each["ground_truth"] for each in answers}
        if unanswered := [record["id"] for record in records if not by_id.get(record["id"])]:
            raise EvaluationError(f"{answers_path}: lacks possible answers to {', '.join(unanswered[:10])}")
        return by_id

    def _question(self, record: Mapping[str, Any], answer: list[dict[str, Any]] | None) -> BfclEntry:
        """What the package's handlers for chat APIs would send."""
        package = bfcl.load()
        if answer is not None:
            _require_functions(answer, record["function"])
        asked = copy.deepcopy({key: record[key] for key in ("id", "question", "function")})
        [asked] = package.utils.add_language_specific_hint_to_function_doc([asked])
        messages, functions = asked["question"][0], asked["function"]
        tools: Sequence[Mapping[str, Any]] = ()
        if self.settings.mode == "native":
            style = package.enums.ModelStyle.OPENAI_COMPLETIONS
            tools = package.handler.convert_to_tool(functions, package.types.GORILLA_TO_OPENAPI, style)
        else:
            messages = package.handler.system_prompt_pre_processing_chat_model(messages, functions, asked["id"])
        return BfclEntry(messages, tools, record["function"], answer)

    def _score_relevance(self, subset: str, reply: Reply) -> Verdict:
        """Right where a function is called, or where none is. The package reads these answers as Python."""
        calls, problem = guarded(self._decoded, reply, "python")
        is_call = problem is None and not bfcl.load().utils.is_empty_output(calls)
        is_right = is_call is not ("irrelevance" in subset)
        return _score(is_right, calls, None if is_right else problem)

    def _score_calls(self, subset: str, question: BfclEntry, reply: Reply) -> Verdict:
        package, language = bfcl.load(), _language(subset)
        calls, problem = guarded(self._decoded, reply, language)
        if problem is not None:
            return _score(False, None, problem)
        if not package.utils.is_function_calling_format_output(calls):
            return _score(False, calls, "the answer holds no list of calls")
        model = bfcl.NATIVE if self.settings.mode == "native" else bfcl.PROMPTING
        verdict, problem = guarded(
            package.checker.ast_checker,
            question.functions,
            calls,
            question.answer,
            package.enums.Language(language),
            subset,
            model,
        )
        if verdict is None:
            return _score(False, calls, problem)
        if verdict["valid"]:
            return _score(True, calls)
        return _score(False, calls, details={"error_type": verdict["error_type"], "error": _text(verdict["error"])})

    def _decoded(self, reply: Reply, language: str) -> Any:
        """Calls as the package's decoder gives them; raises whatever it raises on what is none."""
        package = bfcl.load()
        if self.settings.mode == "native":
            if not reply.tool_calls:
                raise ValueError("the answer has no tool calls")
            _refuse_long(sum(len(arguments) for _, arguments in reply.tool_calls), MOST_CHARACTERS["python"])
            return [{name: json.loads(arguments)} for name, arguments in reply.tool_calls]
        _refuse_long(len(reply.text), MOST_CHARACTERS[language])
        return package.handler.default_decode_ast_prompting(reply.text, package.enums.ReturnFormat(language))


def _require_functions(answer: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]]) -> None:
    """Raises where possible answers are for other functions, or either has another form.

    Some of BFCL's own answers have arguments that their function does not take, so these are let pass.
    """
    parameters = {function["name"]: function["parameters"]["properties"] for function in functions}
    for each in answer:
        for name, values in each.items():
            parameters[name].keys(), values.keys()


def _refuse_long(characters: int, most: int) -> None:
    if characters > most:
        raise ValueError(f"the answer has {characters:,} characters, more than {most:,}")


def _is_relevance(subset: str) -> bool:
    return "relevance" in subset


def _language(subset: str) -> str:
    return subset.removeprefix("simple_") if subset in ("simple_java", "simple_javascript") else "python"


def _score(is_right: bool, calls: Any, problem: str | None = None, details: Mapping[str, Any] | None = None) -> Verdict:
    return Verdict({METRIC: (float(is_right), 1.0)}, _jsonable(calls), problem, details or {})


def _jsonable(calls: Any) -> Any:
    """Calls as they are; the start of their text where they are too many, or hold what JSON does not."""
    text, problem = guarded(lambda: json.dumps(calls, allow_nan=False))
    if problem is None and text is not None and len(text) <= _MOST_SHOWN:
        return calls
    return _text(calls)


def _text(value: Any) -> str:
    shown, problem = guarded(repr, value)  # fails on integers beyond Python's limit of digits
    return (shown or f"cannot be shown ({problem})")[:_MOST_SHOWN]


@contextmanager
def _quiet() -> Iterator[None]:
    """Parsing a model's output warns of its escapes, and the package prints what it cannot convert."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
