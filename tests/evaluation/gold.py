"""What a perfect model would say, benchmark by benchmark, in the order in which it is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ramerge.evaluation.benchmark import Benchmark, Item, Reply
from ramerge.evaluation.tasks.coding import problems, protocol
from ramerge.evaluation.tasks.math import _boxed
from tests.evaluation import bfcl_calls

_GSM8K = {
    "gsm8k": "{answer}",
    "gsm8k_cot": "The answer is {number}.",
    "gsm8k_cot_llama": "The final answer is {number}",
}
_MATH500 = {
    "math_verify": "\\boxed{%s}",
    "exact_match": "Final Answer: The final answer is $%s$. I hope it is correct.",
    "hendrycks": "$%s$",
}


def gold_of(benchmark: Benchmark[Any], subset: str, item: Item) -> Sequence[Reply]:
    """The replies that a checker must score 1."""
    return _GOLD[benchmark.name](benchmark, subset, item)


def _coding(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    problem = item.value
    program = Reply(protocol.show_program(problem.solution or problems.answering_program(problem.cases)))
    tests = [protocol.show_test(case) for case in problem.cases]
    asked = benchmark._tests(problem)
    return [program] * benchmark.settings.programs + [Reply(tests[number % len(tests)]) for number in range(asked)]


def _memory(benchmark: Any, subset: str, item: Item) -> Sequence[Reply]:
    answer = item.value.question.answer
    boxed = benchmark.settings.answer_format == "boxed"
    final = Reply(f"\\boxed{{{answer}}}" if boxed else f"Therefore, the answer is {answer}.")
    if benchmark.settings.workflow == "single":
        return [final]
    chunks = benchmark._tokens.chunks(item.value.pieces(), benchmark.settings.chunk_tokens)
    return [*(Reply(f"Found so far: {answer}") for _ in chunks), final]


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
        return (Reply(_MATH500[benchmark.settings.math500_scorer] % _boxed(document["solution"])),)
    answer = document["answer"]
    return (Reply(_GSM8K[benchmark._gsm8k_task].format(answer=answer, number=answer.split("####")[-1].strip())),)


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
