"""Functional problems on standard input and output: nothing is lost, and results compare as assertions compare them."""

from __future__ import annotations

import ast
import io
from contextlib import redirect_stdout
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.evaluation.tasks.coding.assertions import Call, NotLiteralError, read_assertion
from ramerge.evaluation.tasks.coding.encoding import Form, same

SCALARS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(), st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def read(form: Form, line: str) -> Any:
    lines = iter(line.split("\n"))
    return eval(form.reader(), {"ast": ast, "input": lambda: next(lines)})  # noqa: S307


def printed(form: Form, value: Any) -> str:
    with redirect_stdout(io.StringIO()) as stdout:
        exec(form.printer("value"), {"value": value})  # noqa: S102
    return stdout.getvalue()


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_arguments_come_back_with_their_types(values: list[Any]) -> None:
    form = Form.of_argument(values)
    for value in values:
        line = form.write(value)
        assert line.index("\n") == len(line) - 1
        assert repr(read(form, line)) == repr(value)


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_a_printed_result_is_the_expected_one(values: list[Any]) -> None:
    form = Form.of_result(values)
    assert all(same(printed(form, value), form.write(value), form) for value in values)


@pytest.mark.parametrize(
    ("values", "line", "words"),
    [
        ([3, -4], "3\n", "an integer, on one line"),
        ([3, 4.5], "3\n", "a number, on one line"),
        (["a b", ""], "a b\n", "a text, on one line"),
        ([True], "True\n", "True or False, on one line"),
        ([[1, 2], []], "1 2\n", "a list: integers, on one line, separated by spaces (an empty line if there are none)"),
        ([("a", "b")], "a b\n", "a tuple: words, on one line, separated by spaces (an empty line if there are none)"),
        ([["a b", "c"]], "['a b', 'c']\n", "a value written as a Python literal, on one line"),
        ([[[1, 2], [3]]], "[[1, 2], [3]]\n", "a value written as a Python literal, on one line"),
        (["a\nb"], "'a\\nb'\n", "a value written as a Python literal, on one line"),
        ([1, "1"], "1\n", "a value written as a Python literal, on one line"),
        ([{1, 2}], "{1, 2}\n", "a value written as a Python literal, on one line"),
    ],
)
def test_forms_of_arguments(values: list[Any], line: str, words: str) -> None:
    form = Form.of_argument(values)
    assert form.write(values[0]) == line
    assert form.describe() == words


def test_results_may_be_scalars_of_several_types() -> None:
    form = Form.of_result([5, None, "none"])
    assert form.describe() == "an integer or a text or None, on one line"
    assert [form.write(value) for value in (5, None, "none")] == ["5\n", "None\n", "none\n"]


@pytest.mark.parametrize(
    ("results", "output", "expected", "verdict"),
    [
        ([2], "2.0", "2", True),
        ([2], "1e400", "2e400", False),
        ([True], "1", "True", True),
        ([[1, 2]], "1\n 2", "1 2", True),
        ([[1, 2]], "1 2 3", "1 2", False),
        ([[1, 2]], "[1, 2]", "1 2", False),
        (["2"], "2.0", "2", False),
        (["a b"], "a  b\n", "a b", True),
        ([[[1], [2]]], "[[1],[2.0]]", "[[1], [2]]", True),
        ([[[1], [2]]], "[[1, 2]]", "[[1], [2]]", False),
        ([{1: 2, 3: 4}], "{3: 4, 1: 2}", "{1: 2, 3: 4}", True),
        ([{1, 2}], "{2, 1}", "{1, 2}", True),
        ([{1, 2}], "{[], 1}", "{1, 2}", False),
        ([[[1]]], "[" * 5000, "[[1]]", False),
        ([[[1]]], "'\\d'", "[[1]]", False),
        ([[[1]]], "-" * 9000 + "1", "[[1]]", False),
        ([[[1]]], "9" * 9000, "[[1]]", False),
        ([[[1]]], "x" * 1_000_000, "[[1]]", False),
        ([2], "9" * 5000, "9" * 5001, False),
        ([2], "\ud800", "2", False),
        ([2], "nan", "inf", False),
    ],
)
def test_results_compare_by_value(results: list[Any], output: str, expected: str, verdict: bool) -> None:
    assert same(output, expected, Form.of_result(results)) is verdict


def test_without_a_form_only_the_words_count() -> None:
    assert same("1  2\n\n3 ", "1 2 3")
    assert not same("1.0", "1")


def test_a_tolerance_is_for_numbers() -> None:
    form = Form.of_result([0.33])
    assert same("0.3300000001", "0.33", form, tolerance=1e-6)
    assert not same("0.34", "0.33", form, tolerance=1e-6)


@pytest.mark.parametrize(
    ("assertion", "call"),
    [
        ("assert f(1, [2]) == (3,)", Call("f", (1, [2]), (3,))),
        ("assert f(3 * 19, 'a' + 'b') == [0 ** 0, -1]", Call("f", (57, "ab"), [1, -1])),
        ("assert f('a' * 3, -(2 - 5)) == 2**3", Call("f", ("aaa", 3), 8)),
        ("assert f() is None, 'why'", Call("f", (), None)),
        ("assert f('x')", Call("f", ("x",), True)),
        ("assert not f('x')", Call("f", ("x",), False)),
        ("assert abs(f(1.33) - 0.33) < 1e-6", Call("f", (1.33,), 0.33, 1e-6)),
        ("assert tuple(f([1])) == tuple([1])", Call("f", ([1],), [1])),
    ],
)
def test_assertions_that_can_be_read(assertion: str, call: Call) -> None:
    assert read_assertion(ast.parse(assertion).body[0]) == call


@pytest.mark.parametrize(
    "assertion",
    [
        "assert f(x) == 1",
        "assert f(1) == g(1)",
        "assert f(1) > 1",
        "assert f(1) == 2 == 2",
        "assert f(key=1) == 2",
        "assert f(*[1]) == 2",
        "assert a.f(1) == 2",
        "assert abs(f(1)) < 2",
        "assert f(9 ** 9 ** 9) == 1",
        "assert f(1 / 0) == 1",
        "assert f('a' * 9999) == 1",
        "assert f([1][0]) == 1",
        "for x in range(3): assert f(x) == x",
        "import os",
    ],
)
def test_assertions_that_do_more_are_refused(assertion: str) -> None:
    with pytest.raises(NotLiteralError):
        read_assertion(ast.parse(assertion).body[0])


@pytest.mark.parametrize("output", ["9" * 400, "-" + "9" * 400, "1e999", "nan"])
def test_numbers_that_no_float_holds_are_only_wrong(output: str) -> None:
    results = [35.0, 1.5]
    assert not same(output, Form.of_result(results).write(35.0), Form.of_result(results), tolerance=1e-6)
