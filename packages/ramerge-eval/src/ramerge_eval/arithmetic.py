"""Computes arithmetic in a model's output, such as `2 * 3600` or `"a" + "b"`, and nothing else: for `bfcl`, not `eval`.

Results are Python's. Names, calls, attributes, subscripts, comparisons and text formatting are refused, and so is
anything that would fill memory or take long.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

_MOST_BITS = 10_000
_MOST_ELEMENTS = 1_000
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.MatMult: operator.matmul,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}


class UncomputableError(ValueError):
    """An expression that is more than harmless arithmetic."""


def compute(source: str) -> Any:
    """Return the value of an arithmetic expression in a model's output, as Python computes it.

    Raises:
        UncomputableError: it holds more than literals and operators, or its value is too large.
        SyntaxError, TypeError, ZeroDivisionError, OverflowError, RecursionError: as Python does.
    """
    return _value_of(ast.parse(source, mode="eval").body)


def _value_of(node: ast.expr) -> Any:
    """Compute the value of a parsed part of an expression; raises errors like `compute`."""
    if isinstance(node, ast.BinOp):
        left, right = _value_of(node.left), _value_of(node.right)
        _refuse_large(node.op, left, right)
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_value_of(node.operand))
    if isinstance(node, ast.List):
        return [_value_of(each) for each in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value_of(each) for each in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise UncomputableError(f"is not plain arithmetic: {type(node).__name__}") from error


def _refuse_large(operation: ast.operator, left: object, right: object) -> None:
    """Refuse, before computing, operations whose results grow faster than their text."""
    too_large = max(_size(left), _size(right)) > 1
    if isinstance(operation, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        too_large |= left.bit_length() * abs(right) > _MOST_BITS
    elif isinstance(operation, ast.LShift) and isinstance(right, int):
        too_large |= right > _MOST_BITS
    elif isinstance(operation, ast.Mult):
        too_large |= any(
            isinstance(times, int) and _elements(each) * abs(times) > _MOST_ELEMENTS
            for each, times in ((left, right), (right, left))
        )
    elif isinstance(operation, ast.Mod):  # text % values writes as many characters as the text asks for
        too_large |= isinstance(left, str | bytes)
    if too_large:
        raise UncomputableError(f"is too large to compute: {type(operation).__name__}")


def _size(value: object) -> float:
    """Return the size of a value as a share of the allowed size."""
    bits = value.bit_length() if isinstance(value, int) else 0
    return max(bits / _MOST_BITS, _elements(value) / _MOST_ELEMENTS)


def _elements(value: object) -> int:
    """Return the number of elements of a sequence, nested ones included; 0 for a number."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return len(value) + sum(map(_elements, value))
    return 0
