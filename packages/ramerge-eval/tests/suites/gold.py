"""What a perfect model would say, benchmark by benchmark, in the order in which it is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ramerge_eval.tasks.coding.problems import Case
from ramerge_eval.tasks.harness import _boxed_answer
from suites import bfcl_calls
from suites.chats import Item, Reply, Suite, scorer_of, solver_arguments


def gold_of(suite: Suite, subset: str, item: Item) -> Sequence[Reply]:
    """The replies that a checker must score 1."""
    return _GOLD[suite.name](suite, subset, item)


def document_of(suite: Suite, subset: str, item: Item) -> Any:
    """What lm-eval judges by."""
    [score] = [
        cell.cell_contents for cell in scorer_of(suite, subset).__closure__ if hasattr(cell.cell_contents, "args")
    ]
    return score.args[0][subset].documents[item.sample.id]


def _coding(suite: Suite, subset: str, item: Item) -> Sequence[Reply]:
    given = solver_arguments(suite, subset)
    problem = given["problems"][item.sample.id]
    program = Reply(f"```python\n{problem.solution or _answering_program(problem.cases)}\n```")
    tests = [_shown(case) for case in problem.cases]
    asked = 0 if problem.function else given["tests"]
    return [program] * given["programs"] + [Reply(tests[number % len(tests)]) for number in range(asked)]


def _answering_program(cases: Sequence[Case]) -> str:
    """A program that looks up the output of each test: what passes where the data has no solution."""
    answers = {case.stdin: case.output for case in cases}
    return f"import sys\n\nanswers = {answers!r}\nprint(answers[sys.stdin.read()])"


def _shown(case: Case) -> str:
    """An answer that holds this test."""
    stdin, expected = (text if text.endswith("\n") else f"{text}\n" for text in (case.stdin, case.output))
    return f"**Test Input:**\n```\n{stdin}```\n\n**Test Output:**\n```\n{expected}```\n\n**Explanation:**\n\nOne."


def _memory(suite: Suite, subset: str, item: Item) -> Sequence[Reply]:
    answer = item.sample.target
    given = solver_arguments(suite, subset)
    chunks = given["tokens"].chunks(given["contexts"][item.sample.id].text(), given["chunk_tokens"])
    return [*(Reply(f"Found so far: {answer}") for _ in chunks), Reply(f"Therefore, the answer is {answer}.")]


def _tool(suite: Suite, subset: str, item: Item) -> Sequence[Reply]:
    functions, truth = item.about["functions"], item.about["possible_answers"]
    if "irrelevance" in subset:
        return [Reply("None of the functions can be used to answer this.")]
    answer = truth if truth is not None else [{functions[0]["name"]: {}}]
    calls: list[tuple[str, Any]] = list(bfcl_calls.calls(answer, functions))
    language = subset.removeprefix("simple_") if subset in ("simple_java", "simple_javascript") else "python"
    if language != "python":
        write = bfcl_calls.java if language == "java" else bfcl_calls.javascript
        calls = [(name, bfcl_calls.source(arguments, functions[0], write)) for name, arguments in calls]
    if suite.arguments["mode"] == "native":
        return [Reply("", tuple((name.replace(".", "_"), json.dumps(arguments)) for name, arguments in calls))]
    spell = bfcl_calls.python if language == "python" else bfcl_calls.quoted
    return [Reply(f"[{', '.join(spell(name, arguments) for name, arguments in calls)}]")]


def _search(suite: Suite, subset: str, item: Item) -> Sequence[Reply]:
    return [Reply(f"<think> I know this. </think>\n<answer> {item.sample.target[0]} </answer>")]


def _rewards(suite: Suite, subset: str, item: Item) -> Sequence[Reply]:
    return [Reply(str(item.about["ground_truth"]))]


def _math(suite: Suite, subset: str, item: Item) -> Sequence[Reply]:
    document = document_of(suite, subset, item)
    if subset == "math500":
        return (Reply(f"\\boxed{{{_boxed_answer(document['solution'])}}}"),)
    number = document["answer"].split("####")[-1].strip()
    # the first is how gsm8k's examples end, the second how gsm8k_cot's do
    drawn = "gsm8k_train" in suite.arguments or "gsm8k" not in suite.arguments
    return (Reply(document["answer"] if drawn or suite.arguments.get("fewshot") == 0 else f"The answer is {number}."),)


def _ifeval(suite: Suite, subset: str, item: Item) -> Sequence[Reply]:
    """The `gold` of the record."""
    records = map(json.loads, suite.arguments["ifeval"].read_text(encoding="utf-8").splitlines())
    return (next(Reply(record["gold"]) for record in records if str(record["key"]) == item.key),)


_GOLD = {
    "coding": _coding,
    "memory": _memory,
    "tool": _tool,
    "search": _search,
    "rewards": _rewards,
    "math": _math,
    "ifeval": _ifeval,
}
