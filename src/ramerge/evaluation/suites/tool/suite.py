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

from ramerge.evaluation.data import all_of, read_records, refuse_duplicates
from ramerge.evaluation.guard import guarded
from ramerge.evaluation.requirements import versions
from ramerge.evaluation.suite import Chat, Item, Message, Reply, Score, Settings, Suite, Task
from ramerge.evaluation.suites.tool import bfcl, gold
from ramerge.foundation.errors import EvaluationError

METRIC = "accuracy"
MOST_CHARACTERS = {"python": 100_000, "java": 4_000, "javascript": 4_000}
"""Longest answer to decode. On deep nesting Python 3.10's parser overflows the stack at 1,000,000 characters, and
tree-sitter at 16,000, or takes ten seconds; at twice these limits neither does."""

_MOST_SHOWN = 10_000
_REFUSAL = "None of the functions can be used to answer this."
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


class ToolSettings(Settings):
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


class ToolSuite(Suite[ToolSettings]):
    """BFCL's 13 single-turn subsets, scored by its AST checker."""

    name: ClassVar[str] = "tool"
    title: ClassVar[str] = "Tool use (BFCL)"
    settings_type: ClassVar[type[Settings]] = ToolSettings
    data: ClassVar[Mapping[str, str]] = {"bfcl": "a folder like bfcl_eval/data; default: the package's own"}

    def tasks(self) -> Sequence[Task]:
        return [Task(name, title, (METRIC,), headline=name in _HEADLINE) for name, title in _TASKS]

    def check(self, tasks: Sequence[str]) -> None:
        """Loads the package and makes every question."""
        bfcl.load()
        all_of(partial(list, self.items(task)) for task in tasks)

    def items(self, task: str) -> Iterator[Item]:
        """Questions in the order of the package's file, or of the user's, given as the data set `bfcl`: a folder with
        the files of the package's `data`.
        """
        path = self._folder() / f"{bfcl.load().config.VERSION_PREFIX}_{task}.json"
        records = read_records(path, {"id": str, "question": list, "function": list})
        refuse_duplicates(path, [record["id"] for record in records])
        answers = {} if _is_relevance(task) else self._answers(path, records)
        for record in records:
            question, problem = guarded(self._question, record, answers.get(record["id"]))
            if question is None:
                raise EvaluationError(f"{path}, {record['id']}: is not a question of BFCL ({problem})")
            yield Item(record["id"], question)

    async def attempt(self, task: str, item: Item, chat: Chat) -> Score:
        question: BfclEntry = item.value
        reply = await chat(question.messages, tools=question.tools)
        with _quiet():
            if question.answer is None:
                return self._score_relevance(task, reply)
            return self._score_calls(task, question, reply)

    def gold(self, task: str, item: Item) -> Sequence[Reply]:
        question: BfclEntry = item.value
        if "irrelevance" in task:
            return [Reply(_REFUSAL)]
        answer = question.answer if question.answer is not None else [{question.functions[0]["name"]: {}}]
        calls = gold.calls(answer, question.functions)
        language = _language(task)
        if language != "python":
            write = gold.java if language == "java" else gold.javascript
            calls = [(name, gold.source(arguments, question.functions[0], write)) for name, arguments in calls]
        if self.settings.mode == "native":
            return [Reply("", tuple((name.replace(".", "_"), json.dumps(arguments)) for name, arguments in calls))]
        spell = gold.python if language == "python" else gold.quoted
        return [Reply(f"[{', '.join(spell(name, arguments) for name, arguments in calls)}]")]

    def versions(self) -> Mapping[str, str]:
        return versions(bfcl.PACKAGES)

    def uses(self, task: str) -> Sequence[str]:
        return [_DATA]

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
            gold.calls(answer, record["function"])  # raises where answer and functions do not fit
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

    def _score_relevance(self, task: str, reply: Reply) -> Score:
        """Right where a function is called, or where none is. The package reads these answers as Python."""
        calls, problem = guarded(self._decoded, reply, "python")
        is_call = problem is None and not bfcl.load().utils.is_empty_output(calls)
        is_right = is_call is not ("irrelevance" in task)
        return _score(is_right, calls, None if is_right else problem)

    def _score_calls(self, task: str, question: BfclEntry, reply: Reply) -> Score:
        package, language = bfcl.load(), _language(task)
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
            task,
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


def _refuse_long(characters: int, most: int) -> None:
    if characters > most:
        raise ValueError(f"the answer has {characters:,} characters, more than {most:,}")


def _is_relevance(task: str) -> bool:
    return "relevance" in task


def _language(task: str) -> str:
    return task.removeprefix("simple_") if task in ("simple_java", "simple_javascript") else "python"


def _score(is_right: bool, calls: Any, problem: str | None = None, details: Mapping[str, Any] | None = None) -> Score:
    return Score({METRIC: (float(is_right), 1.0)}, _jsonable(calls), problem, details or {})


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
