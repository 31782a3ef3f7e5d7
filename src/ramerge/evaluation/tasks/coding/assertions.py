"""Assertions about a function, read as calls with literal arguments and results. Nothing is executed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from ramerge.evaluation import arithmetic


class NotLiteralError(ValueError):
    """An assertion does more than compare one call with one value."""


@dataclass(frozen=True)
class Call:
    """`function(*arguments)` must be `result`, within `tolerance` where that is a number."""

    function: str
    arguments: tuple[Any, ...]
    result: Any
    tolerance: float = 0.0


def read_assertion(statement: ast.stmt) -> Call:
    """The call that an assertion is about: `f(…) == v`, `f(…) is v`, `f(…)`, `not f(…)` or `abs(f(…) - v) < t`.

    Raises:
        NotLiteralError: it is none of these.
    """
    match statement:
        case ast.Assert(test=ast.Compare(left=ast.Call(func=ast.Name(id="abs")) as left, ops=[ast.Lt()]) as test):
            return _within(left, value_of(test.comparators[0]))
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right])):
            return _call(_untupled(left), _untupled(right))
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=call)):
            return _call(call, ast.Constant(False))
        case ast.Assert(test=ast.Call() as call):
            return _call(call, ast.Constant(True))
    raise NotLiteralError(ast.unparse(statement))


def value_of(node: ast.expr) -> Any:
    """The value of a literal, or of simple arithmetic on literals such as `3 * 19`.

    Raises:
        NotLiteralError: it is something else.
    """
    try:
        return arithmetic.value_of(node)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise NotLiteralError(ast.unparse(node)) from error


def _call(call: ast.expr, result: ast.expr, tolerance: float = 0.0) -> Call:
    match call:
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            return Call(function, tuple(value_of(each) for each in arguments), value_of(result), tolerance)
    raise NotLiteralError(ast.unparse(call))


def _within(distance: ast.Call, tolerance: Any) -> Call:
    match distance.args:
        case [ast.BinOp(left=call, op=ast.Sub(), right=result)]:
            return _call(call, result, float(tolerance))
    raise NotLiteralError(ast.unparse(distance))


def _untupled(node: ast.expr) -> ast.expr:
    match node:
        case ast.Call(func=ast.Name(id="tuple"), args=[inner]):
            return inner
    return node
