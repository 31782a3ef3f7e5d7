"""Assertions and functions in two processes: what crosses, what does not, and what is said of it."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramerge_eval.sandbox.provider import BubblewrapSandbox
from ramerge_eval.sandbox.watch import Limits
from ramerge_eval.tasks.coding import dialogue
from ramerge_eval.tasks.coding.dialogue import UncrossableError, decode, encode
from ramerge_eval.tasks.coding.judging import Judge
from ramerge_eval.tasks.coding.problems import Case, Problem

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.complex_numbers(allow_nan=False)),
    *(st.text(max_size=4), st.binary(max_size=4), st.builds(range, st.integers(), st.integers())),
)
HASHABLE = SCALARS | st.lists(SCALARS, max_size=3).map(tuple) | st.frozensets(SCALARS, max_size=3)
INNER = HASHABLE | st.sets(HASHABLE, max_size=3)
PLAIN = INNER | st.lists(INNER, max_size=3) | st.dictionaries(HASHABLE, st.lists(INNER, max_size=2), max_size=3)
FORMS = ["list", "tuple", "set", "frozenset", "dict", "int", "complex", "bytes", "range", "iterator", "object"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(FORMS) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)

NODE = """
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
"""
PROGRAM = f"""
import enum, itertools, numpy
from collections import Counter
{NODE}
def f(n, b=None):
    if type(n) is list:
        n.append(3)
        b["x"] = {{1}}
    return n
def length(node): return 1 + length(node.next) if node else 0
def nodes(): return [Node(1)]
def yields(n): yield from range(n)
def pair(n): return map(str, n), zip(n)
def endless(): return itertools.count()
class Own(ValueError): pass
class One(enum.IntEnum): A = 1
def raises(own):
    if own: raise Own("x")
    return [][1]
def plain(): return One.A, True, numpy.int64(2), numpy.bool_(0), Counter("aab")
"""
HOLDING = """
import math
assert f(1) == 1 and f(n=2) == 2 and math.isclose(f(0.1), 0.1) and set([f(1)]) == {1} and f(1 << 30_000) == 1 << 30_000
n, b = [1], {}
assert f(n, b=b) == n == [1, 3] and b == {"x": {1}}
assert list(yields(3)) == [0, 1, 2] and next(yields(1)) == 0 and next(endless()) == 0 and yields(1) != [0]
a, b = pair((1,))
assert list(a) == ["1"] and list(b) == [(1,)]
assert repr(plain()) == "(1, True, 2, False, {'a': 2, 'b': 1})"
for own, kind in (True, ValueError), (False, IndexError):
    try:
        raises(own)
        assert False
    except kind:
        pass
node = Node(1)
node.next = Node(2)
node.next.next = Node(3)
assert length(Node(1, Node(2))) == 2 and length(node) == 3 and node.next.value == 2 and nodes()[0].value == 1
"""
UNLIKE = "the program's result is no plain value, and cannot be compared"
FAILING = {
    ("def f(n): return n + 1", "assert f(1) == 3"): "an assertion does not hold",
    ("def f(): print('no input:', input())", "f()"): "the program raised EOFError",
    ("def f(n): return n / 0", "f(1)"): "the program raised ZeroDivisionError",
    ("def f(n): assert n", "f(0)"): "the program raised AssertionError",
    ("f = 1", "f()"): "the program raised TypeError",
    (f"{NODE}\ndef f(): return Node(1)", "assert f() == 1"): UNLIKE,
    ("def f(): return f", "assert f()()"): UNLIKE,
    ("def f(n): pass", "Node(1)"): "the program has no 'Node'",
    ("def f(g): return g(1)", "f(lambda n: n)"): "an argument is no plain value but of type function",
    ("def f(n): return [0] * 10**6 * 2", "f(1)"): "the program's result is too large",
    ("def f(n): pass", "f('x' * (1 << 23))"): "the arguments of a call are too large",
    ("import itertools\nf = itertools.count", "list(f())"): "the program's iterator has more than 10,000 items",
    ("def f(n): return n", "assert f(1"): "the test raised SyntaxError",
    ("def f(n): return n", "raise SystemExit(0)"): "the test raised SystemExit",
    ("def f(n): return 'ok'", "print(f(1))\n1 / 0"): "the test raised ZeroDivisionError",
}
GIVEN = "import math\ndef double(n): return 2 * n\ndef f(n): 'not written yet'"


def refuse(value: Any) -> Any:
    raise AssertionError(value)


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_plain_values_cross_with_their_types(value: Any) -> None:
    crossed = decode(json.loads(json.dumps(encode(value, refuse))), refuse)
    assert (type(crossed), crossed) == (type(value), value)


def test_numbers_that_are_not_finite_cross() -> None:
    crossed = decode(json.loads(json.dumps(encode([math.nan, math.inf, -0.0, 1 << 20_000], refuse))), refuse)
    assert [repr(each) for each in crossed[:3]] == ["nan", "inf", "-0.0"]
    assert crossed[3] == 1 << 20_000


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_malformed_messages_are_refused(message: Any) -> None:
    with suppress(ValueError, TypeError, OverflowError):
        decoded = decode(json.loads(json.dumps(message)), lambda _target: 0)
        assert type(decoded).__module__ == "builtins"  # never an object of the program's


def test_what_is_nested_too_deeply_does_not_cross() -> None:
    deep: Any = 0
    for _ in range(dialogue.MOST_LEVELS):
        deep = [deep]
    assert decode(encode(deep, refuse), refuse) == deep
    with pytest.raises(UncrossableError, match="deep"):
        encode([deep], refuse)


def test_two_processes_do_what_one_would() -> None:
    assert reasons((PROGRAM, HOLDING, "")) == [""]


def test_reasons_for_which_assertions_fail() -> None:
    said = reasons(*((*run, "") for run in FAILING))
    assert dict(zip(FAILING, said, strict=True)) == FAILING


def test_what_the_question_gives_is_on_both_sides() -> None:
    said = reasons(
        ("def f(n): return double(n) + math.floor(n)", "assert f(1) == double(1) + 1", GIVEN),
        ("def double(n): return 0\ndef f(n): return 0", "assert f(1) == double(1)", GIVEN),
        ("x = 1", "assert f(1) is None", GIVEN),
    )
    assert said == ["", "an assertion does not hold", "the program has no 'f'"]


def reasons(*runs: tuple[str, str, str]) -> list[str]:
    """Why assertions about `f` do not hold, empty if they do: of programs, assertions, and what the question gives."""

    async def reason(sandbox: BubblewrapSandbox, program: str, assertions: str, given: str) -> str:
        case = Case("", "", assertions=assertions)
        judge = Judge(sandbox, Problem("x", "", (case,), function="f", preamble=given), Limits(seconds=60))
        [[passed]] = await judge.table([program], [case])
        [said] = judge.reasons or [""]
        assert passed == (said == "") == (judge.outcomes == {"ok": 1})
        return said

    async def all_of_them() -> list[str]:
        sandbox = BubblewrapSandbox(Limits())
        return await asyncio.gather(*(reason(sandbox, *run) for run in runs))

    return asyncio.run(all_of_them())
