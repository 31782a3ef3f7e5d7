"""How the arguments and results of functions are written on standard input and output.

The paper turns functional problems into programs: variables on separate lines, lists flattened (appendix B.1). That
loses the borders in nested lists and in texts with spaces, so here it is done where nothing is lost:

    a number, truth value, None or text    as it is printed, on one line
    a flat list or tuple of one of them    its values on one line, separated by spaces; an empty line if there are none
    everything else                        as a Python literal on one line: nested or mixed values, dictionaries, sets,
                                           texts with line breaks, lists of texts with spaces

One form holds for an argument in all tests of a problem, and the prompt states it.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_NAMES = {int: "an integer", float: "a number", bool: "True or False", str: "a text", type(None): "None"}
_PLURALS = {int: "integers", float: "numbers", bool: "True or False each", str: "words"}
_LONGEST_LITERAL = 10_000


@dataclass(frozen=True)
class Form:
    """How the values of one argument, or the results, are written.

    Attributes:
        kind: see the module; tuples are written like lists.
        types: Python types of the scalar, or of a list's values.
        result: whether it is printed, not read.
    """

    kind: Literal["scalar", "list", "tuple", "literal"]
    types: frozenset[type] = frozenset()
    result: bool = False

    @staticmethod
    def of_argument(values: Sequence[Any]) -> Form:
        """The form that holds all these values of an argument and lets a program tell their types."""
        if _uniform(values) and all(_is_line(value) for value in values):
            return Form("scalar", _types(values))
        return _of_list(values)

    @staticmethod
    def of_result(values: Sequence[Any]) -> Form:
        """The form of results. Scalars may have several types, such as a number or None: nobody has to read them."""
        if all(type(value) in _NAMES for value in values):
            return Form("scalar", _types(values), result=True)
        form = _of_list(values)
        return Form(form.kind, form.types, result=True)

    def describe(self) -> str:
        """In words, for the prompt."""
        if self.kind == "scalar":
            return " or ".join(name for each, name in _NAMES.items() if each in self.types) + ", on one line"
        if self.kind == "literal":
            return "a value written as a Python literal, on one line"
        values = " or ".join(name for each, name in _PLURALS.items() if each in self.types)
        return f"a {self.kind}: {values}, on one line, separated by spaces (an empty line if there are none)"

    def write(self, value: Any) -> str:
        """The value's line, with its line break."""
        if self.kind == "scalar":
            return f"{value}\n"
        if self.kind == "literal":
            return f"{value!r}\n"
        return " ".join(map(str, value)) + "\n"

    def reader(self) -> str:
        """A Python expression that reads a value back from standard input; needs `ast`."""
        if self.kind in ("scalar", "literal"):
            return "input()" if self.types == {str} else "ast.literal_eval(input())"
        values = "input().split()" if self.types == {str} else "map(ast.literal_eval, input().split())"
        return f"{self.kind}({values})"

    def printer(self, call: str) -> str:
        """Python statements that print the result of a call."""
        if self.kind == "scalar":
            return f"print({call})"
        if self.kind != "literal":
            return f"print(*{call})"
        # a Counter or defaultdict equals a dictionary, but is not printed like one
        return f"result = {call}\nprint(repr(dict(result) if isinstance(result, dict) else result))"


def same(printed: str, expected: str, form: Form | None = None, tolerance: float = 0.0) -> bool:
    """Whether an output is the expected one, white space aside.

    Args:
        form: of a converted problem's results. Its numbers are compared by value, as the original assertions do, so
            2.0 is 2; literals likewise. Without one, only the words count, as in CURE.
        tolerance: greatest absolute difference of two numbers.
    """
    left, right = printed.split(), expected.split()
    if left == right:
        return True
    if form is None or str in form.types:
        return False
    if form.kind == "literal":
        return _same_literal(printed, expected)
    return len(left) == len(right) and all(_same_number(*pair, tolerance) for pair in zip(left, right, strict=True))


def _of_list(values: Sequence[Any]) -> Form:
    inner = [each for value in values if isinstance(value, list | tuple) for each in value]
    if _uniform(inner) and all(_is_word(each) for each in inner):
        if all(type(value) is list for value in values):
            return Form("list", _types(inner))
        if all(type(value) is tuple for value in values):
            return Form("tuple", _types(inner))
    return Form("literal")


def _types(values: Sequence[Any]) -> frozenset[type]:
    types = frozenset(map(type, values))
    return types - {int} if float in types else types


def _uniform(values: Sequence[Any]) -> bool:
    """Whether all are numbers, or truth values, or texts, so that a program can read them."""
    types = set(map(type, values))
    return bool(types) and (types <= {int, float} or types in ({bool}, {str}))


def _is_line(value: Any) -> bool:
    return not isinstance(value, str) or value.splitlines() in ([], [value])


def _is_word(value: Any) -> bool:
    return not isinstance(value, str) or value.split() == [value]


def _same_number(left: str, right: str, tolerance: float) -> bool:
    if left == right:
        return True
    first, second = _number(left), _number(right)
    if first is None or second is None:
        return False
    try:
        return first == second or abs(first - second) <= tolerance
    except OverflowError:  # an integer that no float can hold, less a float
        return False


def _number(token: str) -> int | float | None:
    if token in ("True", "False"):
        return int(token == "True")
    try:
        return int(token)
    except ValueError:
        pass
    try:
        value = float(token)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _same_literal(printed: str, expected: str) -> bool:
    if max(len(printed), len(expected)) > _LONGEST_LITERAL:  # parsing takes long, and equal texts are equal anyway
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in what a model wrote
            return bool(ast.literal_eval(printed.strip()) == ast.literal_eval(expected.strip()))
    except (ValueError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError):
        return False
