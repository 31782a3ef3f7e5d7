"""Prompts of coding, and programs and tests out of answers of all kinds."""

from __future__ import annotations

import pytest

from ramerge_eval.tasks.coding import protocol
from ramerge_eval.tasks.coding.problems import Case, Problem

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

QUESTION = "Add {two} numbers."
PROBLEM = Problem("1", QUESTION, (Case("1 2\n", "3"),), examples=(Case("4 5\n", "9\n"),))


def test_a_program_is_asked_for() -> None:
    system, user = protocol.program_messages(PROBLEM)
    assert (system.role, user.role) == ("system", "user")
    assert QUESTION in user.text
    assert "```python" in user.text and "input()" in user.text


def test_a_function_is_asked_for_where_one_is_tested() -> None:
    _, user = protocol.program_messages(Problem("1", QUESTION, PROBLEM.cases, function="add"))
    assert "write the function" in user.text and "input()" not in user.text


def test_a_test_is_asked_for_with_examples_only_if_wanted() -> None:
    _, plain = protocol.test_messages(PROBLEM, examples=False)
    _, shown = protocol.test_messages(PROBLEM, examples=True)
    for part in (QUESTION, "**Test Input:**", "**Test Output:**", "**Explanation:**"):
        assert part in plain.text
    assert "4 5" not in plain.text
    assert r"input '4 5\n', output '9\n'" in shown.text


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("Thinking.\n```python\nprint(1)\n```\nDone.", "print(1)"),
        ("```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```", "print(2)"),
        ("```python\nprint(1)\n``` then ```\noutput\n```", "print(1)"),
        ("```python\nprint('\0')\n```", "print('\0')"),
        ("print(1)", None),
        ("```\nprint(1)\n```", None),
        ("```python\nprint(1)", None),
        ("```python\n\n```", None),
        ("```python\nprint('\ud800')\n```", None),
        ("", None),
        ("```python" * 100_000, None),
        ("`" * 1_000_000, None),
    ],
)
def test_programs_in_answers(answer: str, program: str | None) -> None:
    assert protocol.read_program(answer) == program


FENCED = "**Test Input:**\n```\n{}```\n\n**Test Output:**\n```\n{}```\n\n**Explanation:**\n\nWhy."


@pytest.mark.parametrize(
    ("answer", "case"),
    [
        (FENCED.format("1 2\n", "3\n"), Case("1 2\n", "3\n")),
        (FENCED.format("0\n", "0\n") + FENCED.format("1 2\n", "3\n"), Case("1 2\n", "3\n")),
        ("**Test Input:**```1 2```**Test Output:**```3```", Case("1 2\n", "3\n")),
        ("**Test Input:** ```plaintext\n1 2\n``` **Test Output:** ```text\n3\n```", Case("1 2\n", "3\n")),
        ("**Test Input:**\n1\n2\n**Test Output:**\n3\n**Explanation:** 1 + 2", Case("1\n2\n", "3\n")),
        (r"**Test Input:**```1\n2```**Test Output:**```3```", Case("1\n2\n", "3\n")),
        (FENCED.format("\n\n5\n", "\n"), Case("5\n", "\n")),
        ("**Test Input:**\n```\n1\n```", None),
        ("**Test Output:**\n```\n1\n```", None),
        ("**Test Output:**\n1\n**Test Input:**\n2", None),
        (FENCED.format("\ud800", "1"), None),
        ("", None),
        ("**Test Input:**" * 60_000, None),
        ("**Test Output:**" * 60_000, None),
        ("**Test Input:** ```" * 50_000, None),
        ("**Test Input:** " + " " * 1_000_000, None),
        ("[" * 1_000_000, None),
    ],
)
def test_tests_in_answers(answer: str, case: Case | None) -> None:
    assert protocol.read_test(answer) == case
