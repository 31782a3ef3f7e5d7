"""What a perfect model would say, benchmark by benchmark, in the order in which it is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ramerge.evaluation.benchmark import Benchmark, Item, Reply
from ramerge.evaluation.tasks.coding.problems import Case
from ramerge.evaluation.tasks.math import _boxed
from tests.evaluation import bfcl_calls


def gold_of(benchmark: Benchmark[Any], subset: str, item: Item) -> Sequence[Reply]:
    """The replies that a checker must score 1."""
    return _GOLD[benchmark.name](benchmark, subset, item)


def _coding(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    problem = item.value
    program = Reply(f"```python\n{problem.solution or _answering_program(problem.cases)}\n```")
    tests = [_shown(case) for case in problem.cases]
    asked = benchmark._tests(problem)
    return [program] * benchmark.settings.programs + [Reply(tests[number % len(tests)]) for number in range(asked)]


def _answering_program(cases: Sequence[Case]) -> str:
    """A program that looks up the output of each test: what passes where the data has no solution."""
    answers = {case.stdin: case.expected for case in cases}
    return f"import sys\n\nanswers = {answers!r}\nprint(answers[sys.stdin.read()])"


def _shown(case: Case) -> str:
    """An answer that holds this test."""
    stdin, expected = (text if text.endswith("\n") else f"{text}\n" for text in (case.stdin, case.expected))
    return f"**Test Input:**\n```\n{stdin}```\n\n**Test Output:**\n```\n{expected}```\n\n**Explanation:**\n\nOne."


def _memory(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    answer = item.value.question.answer
    chunks = benchmark._tokens.chunks(item.value.text(), benchmark.settings.chunk_tokens)
    return [*(Reply(f"Found so far: {answer}") for _ in chunks), Reply(f"Therefore, the answer is {answer}.")]


def _tool(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    question = item.value
    if "irrelevance" in subset:
        return [Reply("None of the functions can be used to answer this.")]
    answer = question.answer if question.answer is not None else [{question.functions[0]["name"]: {}}]
    calls: list[tuple[str, Any]] = list(bfcl_calls.calls(answer, question.functions))
    language = subset.removeprefix("simple_") if subset in ("simple_java", "simple_javascript") else "python"
    if language != "python":
        write = bfcl_calls.java if language == "java" else bfcl_calls.javascript
        calls = [(name, bfcl_calls.source(arguments, question.functions[0], write)) for name, arguments in calls]
    if benchmark.settings.mode == "native":
        return [Reply("", tuple((name.replace(".", "_"), json.dumps(arguments)) for name, arguments in calls))]
    spell = bfcl_calls.python if language == "python" else bfcl_calls.quoted
    return [Reply(f"[{', '.join(spell(name, arguments) for name, arguments in calls)}]")]


def _search(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    return [Reply(f"<think> I know this. </think>\n<answer> {item.value.answers[0]} </answer>")]


def _rewards(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    return [Reply(str(item.value.ground_truth))]


def _math(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    document = item.value.document
    if subset == "math500":
        return (Reply(f"\\boxed{{{_boxed(document['solution'])}}}"),)
    number = document["answer"].split("####")[-1].strip()
    # the first is how gsm8k's examples end, the second how gsm8k_cot's do
    drawn = "gsm8k_train" in benchmark.context.data or "gsm8k" not in benchmark.context.data
    return (Reply(document["answer"] if drawn or benchmark.settings.fewshot == 0 else f"The answer is {number}."),)


def _ifeval(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    """A record's own `gold` or `response`; nothing where it has none, as in the published data."""
    gold = item.value.document.get("gold")
    return () if gold is None else (Reply(gold),)


_GOLD = {
    "coding": _coding,
    "memory": _memory,
    "tool": _tool,
    "search": _search,
    "rewards": _rewards,
    "math": _math,
    "ifeval": _ifeval,
}
