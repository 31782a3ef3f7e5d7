"""Assertions and the function that they test, in two processes with nothing but plain values between them.

`judging` hands the text of this file to two sandboxes, so it imports nothing of ramerge. In one, `judge` runs the
benchmark's assertions; an undefined name in them is a `RemoteProgram`, which stands for an object of the program. In
the other, `answer` runs the program and serves the remotes' requests. So a program can only give wrong answers: it
shares no object, no memory, and no file with the process that decides whether the assertions hold.

Each message is a line of JSON of at most `MOST_BYTES`:

    asked      ["call", target, [argument, ...], {name: argument}], ["get", target, name], ["set", target, name, value]
    answered   ["value", result, [argument after the call, or null if it is the same, ...]],
               ["raised", name of a built-in exception], ["missing", name], ["too", "deep" or "large"]

A target is the name of a global variable, or the number of an object that the program keeps. None, bool, int,
float, complex, str, bytes, list, tuple, dict, set, frozenset and range cross unchanged. The program's values
of derived classes cross as the plain value, scalars of numpy as Python's, and iterators as their first
`MOST_ITEMS` items. Other objects stay, and only their number crosses.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NoReturn

MOST_BYTES = 4 << 20
MOST_LEVELS = 100
MOST_ITEMS = 10_000
_JSON_INTEGERS = range(-(2**63), 2**63)

# how values that JSON does not have are written: scalars as text, and what holds others as a list of these
_SCALARS: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (hex, lambda digits: int(digits, 16)),
    "complex": (repr, complex),
    "bytes": (bytes.hex, bytes.fromhex),
}
_HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[list[Any]], Any]]] = {
    "list": (list, list),
    "tuple": (list, tuple),
    "set": (list, set),
    "frozenset": (list, frozenset),
    "dict": (dict.items, dict),
    "range": (lambda value: (value.start, value.stop, value.step), lambda bounds: range(*bounds)),
}
_BASES: tuple[Any, ...] = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
# StopIteration would end `all(map(f, values))` early and in favor of the program; the last three need more than a text
_EXCLUSIONS = (StopIteration, StopAsyncIteration, UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)
_EXCEPTIONS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _EXCLUSIONS)
}


class UncrossableError(Exception):
    """A value is nested too deeply or too large to cross; the argument is `deep` or `large`."""


class DialogueFailure(BaseException):
    """The program has failed the test; no assertion may catch this."""


class Channel:
    """Messages between the two processes, over standard input and output, which are replaced for all other uses."""

    def __init__(self) -> None:
        self._reader, self._writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)

    def send(self, message: Any) -> None:
        """Send a message. Raises UncrossableError if it is too large, OSError if the other end is closed."""
        line = json.dumps(message).encode()
        if len(line) > MOST_BYTES:
            raise UncrossableError("large")
        self._writer.write(line + b"\n")
        self._writer.flush()

    def receive(self) -> Any:
        """Receive a message. Raises EOFError if there is none, ValueError or RecursionError if it is malformed."""
        line = self._reader.readline(MOST_BYTES + 1)
        if not line:
            raise EOFError
        if not line.endswith(b"\n"):
            raise ValueError("a message without end")
        return json.loads(line)


def encode(value: Any, other: Callable[[Any], Any], level: int = 0) -> Any:
    """Encode a value for JSON. Values that are not plain are first converted by `other`.

    Raises:
        UncrossableError: the value is nested too deeply.
    """
    if level > MOST_LEVELS:
        raise UncrossableError("deep")
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and value in _JSON_INTEGERS):
        return value
    if kind is not getattr(builtins, kind.__name__, None):
        return other(value)
    if kind.__name__ in _SCALARS:
        return [kind.__name__, _SCALARS[kind.__name__][0](value)]
    if kind.__name__ in _HOLDERS:
        return [kind.__name__, [encode(each, other, level + 1) for each in _HOLDERS[kind.__name__][0](value)]]
    return other(value)


def decode(message: Any, lookup: Callable[[str | int], Any]) -> Any:
    """Decode a value; `lookup` returns the object of a target.

    Raises:
        ValueError, TypeError, OverflowError, RecursionError: the message is malformed.
    """
    if message is None or type(message) in (bool, int, float, str):
        return message
    match message:
        case [str(kind), str(text)] if kind in _SCALARS:
            return _SCALARS[kind][1](text)
        case [str(kind), [*items]] if kind in _HOLDERS:
            return _HOLDERS[kind][1]([decode(each, lookup) for each in items])
        case ["iterator", [*items], bool(are_all)]:
            return _items([decode(each, lookup) for each in items], are_all)
        case ["object", str() | int() as target]:
            return lookup(target)
    raise ValueError("an unknown form")


def _items(items: list[Any], are_all: bool) -> Iterator[Any]:
    yield from items
    if not are_all:
        raise DialogueFailure(f"the program's iterator has more than {MOST_ITEMS:,} items")


# where the assertions run


class RemoteProgram:
    """An object of the program: it can be called, and its attributes read and set. Any other use fails the test."""

    __slots__ = ("_channel", "_target")

    def __init__(self, channel: Channel, target: str | int) -> None:
        object.__setattr__(self, "_channel", channel)
        object.__setattr__(self, "_target", target)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        named_values = {name: _encode(each) for name, each in keywords.items()}
        result, after = self._ask("call", list(map(_encode, arguments)), named_values)
        for argument, update in zip([*arguments, *keywords.values()], after, strict=True):
            if update is None:
                continue
            match argument, self._decoded(update):  # the argument becomes what the program made of it
                case list(), list(new):
                    argument[:] = new
                case (dict(), dict(new)) | (set(), set(new)):
                    argument.clear()
                    argument.update(new)
                case _:
                    raise DialogueFailure("the program's answer is malformed")
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself looks for
            raise AttributeError(name)
        return self._ask("get", name)[0]

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, _encode(value))

    def _ask(self, what: str, *about: Any) -> tuple[Any, list[Any]]:
        try:
            self._channel.send([what, self._target, *about])
            reply = self._channel.receive()
        except UncrossableError as error:
            raise DialogueFailure(f"the arguments of a call are too {error}") from None
        except (EOFError, OSError):
            raise DialogueFailure("the program ended before it answered") from None
        except (ValueError, RecursionError):
            raise DialogueFailure("the program's answer is malformed") from None
        match reply:
            case ["value", result, [*after]]:
                return self._decoded(result), after
            case ["raised", str(name)] if name in _EXCEPTIONS:
                raise _EXCEPTIONS[name](_MARK)
            case ["missing", _]:
                raise DialogueFailure(f"the program has no {self._target!r}")
            case ["too", "deep" | "large" as how]:
                raise DialogueFailure(f"the program's result is too {how}")
        raise DialogueFailure("the program's answer is malformed")

    def _decoded(self, message: Any) -> Any:
        try:
            return decode(message, lambda target: RemoteProgram(self._channel, target))
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise DialogueFailure("the program's answer is malformed") from None

    def _refuse(self, *_others: Any) -> NoReturn:
        raise DialogueFailure("the program's result is no plain value, and cannot be compared")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = __contains__ = _refuse
    __hash__ = object.__hash__


_MARK = "by the program"


def _encode(value: Any) -> Any:
    return encode(value, _of_the_program)


def _of_the_program(value: Any) -> Any:
    if type(value) is not RemoteProgram:
        raise DialogueFailure(f"an argument is no plain value but of type {type(value).__name__}")
    return ["object", object.__getattribute__(value, "_target")]


def judge(code: str, assertions: str, function: str) -> NoReturn:
    """Run the assertions, and end this process: with 0 if all hold, otherwise with 1 and the reason as its last line.

    Args:
        code: the code given in the question.
        assertions: the code of the assertions.
        function: the program's function to test, even if something else has that name.
    """
    try:
        channel = Channel()
        namespace: dict[str, Any] = {"__name__": "__main__"}
        run(code, "given.py", namespace)
        names = {node.id for node in ast.walk(ast.parse(assertions)) if isinstance(node, ast.Name)}
        for name in names - namespace.keys() - vars(builtins).keys() | {function}:
            namespace[name] = RemoteProgram(channel, name)
        run(assertions, "assertions.py", namespace)
    except DialogueFailure as error:
        reason = str(error)
    except BaseException as error:  # whatever it is, the assertions have not come to their end
        is_theirs = error.args[:1] != () and error.args[0] is _MARK
        reason = f"the {'program' if is_theirs else 'test'} raised {type(error).__name__}"
        if type(error) is AssertionError and not is_theirs:
            reason = "an assertion does not hold"
    else:
        os._exit(0)
    sys.stderr.write(f"\n{reason}\n")
    sys.stderr.flush()
    os._exit(1)


# where the program runs


def answer(code: str, program: str, function: str) -> None:
    """Run the program, and serve requests of the assertions' process until it ends.

    Args:
        code: the code given in the question, which programs need not repeat.
        program: the code of the program.
        function: the function that it must define; a stub in the question does not count.
    """
    channel = Channel()
    module = sys.modules["__main__"] = ModuleType("__main__")
    run(code, "given.py", module.__dict__)
    module.__dict__.pop(function, None)
    run(program, "program.py", module.__dict__)
    _Answers(channel, module.__dict__).give()


class _Answers:
    def __init__(self, channel: Channel, namespace: Mapping[str, Any]) -> None:
        self._channel = channel
        self._namespace = namespace
        self._objects: list[Any] = []

    def give(self) -> None:
        while True:
            try:
                request = self._channel.receive()
            except EOFError:
                return
            try:
                self._channel.send(self._answer(*request))
            except UncrossableError as error:
                self._channel.send(["too", str(error)])

    def _answer(self, what: str, target: str | int, *about: Any) -> list[Any]:
        if isinstance(target, str) and target not in self._namespace:
            return ["missing", target]
        it = self._find(target)
        try:
            match what, about:
                case "call", (arguments, keywords):
                    positional = list(map(self._decoded, arguments))
                    named_values = {name: self._decoded(each) for name, each in keywords.items()}
                    all_arguments = [*positional, *named_values.values()]
                    before = list(map(self._encode, all_arguments))
                    result = self._encode(it(*positional, **named_values))
                    after = list(map(self._encode, all_arguments))
                    changes = [new if new != old else None for old, new in zip(before, after, strict=True)]
                    return ["value", result, changes]
                case "get", (name,):
                    return ["value", self._encode(getattr(it, name)), []]
                case "set", (name, value):
                    setattr(it, name, self._decoded(value))
            return ["value", None, []]
        except (MemoryError, UncrossableError):
            raise
        except Exception as error:  # whatever it is, the assertions may expect it
            kinds = (kind.__name__ for kind in type(error).__mro__ if _EXCEPTIONS.get(kind.__name__) is kind)
            return ["raised", next(kinds, "Exception")]

    def _decoded(self, message: Any) -> Any:
        return decode(message, self._find)

    def _find(self, target: str | int) -> Any:
        return self._namespace[target] if isinstance(target, str) else self._objects[target]

    def _encode(self, value: Any) -> Any:
        return encode(value, self._other)

    def _other(self, value: Any) -> Any:
        for kind in _BASES:
            if isinstance(value, kind):
                return self._encode(str.__str__(value) if kind is str else kind(value))
        if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "shape", ()):
            return self._encode(value.item())
        if isinstance(value, Iterator):
            items = list(itertools.islice(value, MOST_ITEMS + 1))
            return ["iterator", list(map(self._encode, items[:MOST_ITEMS])), len(items) <= MOST_ITEMS]
        if (number := next((n for n, each in enumerate(self._objects) if each is value), None)) is None:
            number = len(self._objects)
            self._objects.append(value)
        return ["object", number]


def run(code: str, name: str, namespace: dict[str, Any]) -> None:
    """Run code of the program or of the assertions, without this file's own imports from the future."""
    exec(compile(code, name, "exec", dont_inherit=True), namespace)  # noqa: S102 - to run code is what this file is for
