"""Executes the instructions of a pickle that create values. No instruction calls or imports anything.

Python's unpickler is not used. Even if it is restricted to a few names, it may need any amount of memory for a memo
index and any amount of time to hash a key of nested tuples, and it calls the objects that names refer to. Here a name
is a `Name`, and a function of this package returns the value for it.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any, TypeVar

from ramerge.core.foundation.text import quoted

_Kind = TypeVar("_Kind")
# Enough for half a million DTensors.
_MOST_CONTAINERS = 3_000_000


class RefusedError(ValueError):
    """A pickle is damaged, or contains something that no checkpoint needs. The message follows a file's name."""


@dataclass(frozen=True)
class Name:
    """Stand-in for a class or a function in a pickle: just its name."""

    path: str


@dataclass(eq=False)
class Stub:
    """Stand-in for an object: the path of its class, its constructor arguments, and its state. It has no behavior."""

    path: str
    args: tuple[object, ...]
    state: object = field(default=None)

    def fill(self, state: object) -> None:
        """Set the state. Classes with `__slots__` store (None, values)."""
        self.state = state[1] if type(state) is tuple and len(state) == 2 and state[0] is None else state

    def get(self, *names: str) -> object:
        """Return an attribute of the state; further names look into nested stubs. None if it is missing."""
        value: object = self
        for name in names:
            value = value.state.get(name) if isinstance(value, Stub) and isinstance(value.state, dict) else None
        return value


class Machine:
    """Interpreter of one pickle.

    Args:
        data: the pickle, in protocol 2 to 5.
        find: returns the `Name` for a module and a name, or raises RefusedError.
        make: returns the value of a call, given the name and the arguments.
        refer: returns the value for a persistent id.
    """

    def __init__(
        self,
        data: bytes,
        find: Callable[[str, str], Name],
        make: Callable[[Name, tuple[object, ...]], object],
        refer: Callable[[object], object],
    ) -> None:
        self.data = data
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: list[object] = []
        self.containers = 0
        self.find, self.make, self.refer = find, make, refer

    def run(self) -> object:
        """Execute the pickle and return its value. Raises RefusedError if it is damaged or not allowed."""
        file = BytesIO(self.data)
        try:
            while (code := file.read(1)) != pickle.STOP:
                if code and code not in _INSTRUCTIONS:
                    raise RefusedError(f"its pickle holds the instruction {quoted(code)}, which torch does not use")
                act, read = _INSTRUCTIONS[code]  # raises KeyError at the end of the data
                act(self, read(file) if read is not None else None)
            return self.stack.pop()
        except RefusedError:
            raise
        except UnicodeError:
            raise RefusedError("its pickle is damaged: a text is not UTF-8") from None
        except (LookupError, ValueError):
            raise RefusedError("its pickle is damaged: it ends early, or takes what is not there") from None

    def pop_to_mark(self) -> list[object]:
        """Pop the last mark and everything above it."""
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def contain(self, value: object) -> None:
        """Push a new container."""
        self.containers += 1
        if self.containers > _MOST_CONTAINERS:
            raise RefusedError(
                f"its pickle makes more than {_MOST_CONTAINERS:,} lists and objects, more than any model's"
            )
        self.stack.append(value)

    def top(self, kind: type[_Kind]) -> _Kind:
        """Return the value on top of the stack, which must have this type."""
        value = self.stack[-1]
        if not isinstance(value, kind):
            raise RefusedError(f"its pickle is damaged: a {type(value).__name__} is filled as a {kind.__name__}")
        return value


_KEYS = (str, int, Stub)  # integer keys become bytes, and no code here looks them up
# Each instruction gets the argument that follows it in the pickle; None if it has none.
_Act = Callable[[Machine, Any], object]


def _ignore_frame(machine: Machine, number: int) -> None:
    """Ignore protocol and frames."""


def _push_constant(value: object) -> _Act:
    return lambda machine, _: machine.stack.append(value)


def _push(machine: Machine, value: object) -> None:
    machine.stack.append(value)


def _push_text(machine: Machine, text: str) -> None:
    text.encode()  # pickletools lets halves of surrogate pairs pass
    machine.stack.append(text)


def _tuple_of(length: int) -> _Act:
    def make(machine: Machine, _: None) -> None:
        values = tuple(machine.stack[-length:])
        if len(values) < length:
            raise IndexError
        del machine.stack[-length:]
        machine.contain(values)

    return make


def _extend_list(machine: Machine, values: list[object]) -> None:
    machine.top(list).extend(values)


def _set_items(machine: Machine, items: list[object]) -> None:
    into = machine.top(dict)
    if len(items) % 2:
        raise IndexError
    for place in range(0, len(items), 2):
        key = items[place]
        # other hashable keys, such as nested tuples, may take long to hash
        if type(key) not in _KEYS:
            raise RefusedError(f"its pickle holds a dictionary with a key of type {type(key).__name__}")
        # a pickle can choose integers with equal hashes, but not texts or bytes, whose hashes are randomized
        into[b"%d" % key if type(key) is int else key] = items[place + 1]


def _store_memo(machine: Machine, index: int) -> None:
    # pickle numbers the memo from 0 without gaps; a larger index would only waste memory
    if index == len(machine.memo):
        machine.memo.append(machine.stack[-1])
    else:
        machine.memo[index] = machine.stack[-1]


def _read_names(file: IO[bytes]) -> list[str]:
    """Read two lines, a module and a name. pickletools would interpret backslashes in them."""
    lines = [file.readline() for _ in range(2)]
    if not all(line.endswith(b"\n") for line in lines):
        raise IndexError
    return [line[:-1].decode() for line in lines]


def _stack_global(machine: Machine, _: None) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise RefusedError("its pickle is damaged: a name is not a text")
    machine.stack.append(machine.find(module, name))


def _make_object(machine: Machine, _: None) -> None:
    args, name = machine.stack.pop(), machine.stack.pop()
    if type(name) is not Name or type(args) is not tuple:
        raise RefusedError("its pickle calls what is not a class or a function; it may be an attack")
    machine.contain(machine.make(name, args))


def _build_object(machine: Machine, _: None) -> None:
    state, value = machine.stack.pop(), machine.stack[-1]
    if type(value) is dict:
        return  # attributes of an OrderedDict, which hold versions of modules
    if type(value) is not Stub:
        raise RefusedError(f"its pickle sets attributes of a {type(value).__name__}; it may be an attack")
    value.fill(state)


_ACTS: dict[bytes, _Act] = {
    pickle.PROTO: _ignore_frame,
    pickle.FRAME: _ignore_frame,
    pickle.NONE: _push_constant(None),
    pickle.NEWTRUE: _push_constant(True),
    pickle.NEWFALSE: _push_constant(False),
    pickle.EMPTY_TUPLE: _push_constant(()),
    pickle.BININT: _push,
    pickle.BININT1: _push,
    pickle.BININT2: _push,
    pickle.BINFLOAT: _push,
    pickle.LONG1: _push,
    pickle.BINUNICODE: _push_text,
    pickle.SHORT_BINUNICODE: _push_text,
    pickle.BINUNICODE8: _push_text,
    pickle.BINBYTES: _push,
    pickle.SHORT_BINBYTES: _push,
    pickle.MARK: lambda machine, _: machine.marks.append(len(machine.stack)),
    pickle.POP: lambda machine, _: machine.stack.pop(),
    pickle.POP_MARK: lambda machine, _: machine.pop_to_mark(),
    pickle.EMPTY_LIST: lambda machine, _: machine.contain([]),
    pickle.EMPTY_DICT: lambda machine, _: machine.contain({}),
    pickle.TUPLE: lambda machine, _: machine.contain(tuple(machine.pop_to_mark())),
    pickle.TUPLE1: _tuple_of(1),
    pickle.TUPLE2: _tuple_of(2),
    pickle.TUPLE3: _tuple_of(3),
    pickle.APPEND: lambda machine, _: _extend_list(machine, [machine.stack.pop()]),
    pickle.APPENDS: lambda machine, _: _extend_list(machine, machine.pop_to_mark()),
    pickle.SETITEM: lambda machine, _: _set_items(machine, [machine.stack.pop(-2), machine.stack.pop()]),
    pickle.SETITEMS: lambda machine, _: _set_items(machine, machine.pop_to_mark()),
    pickle.BINGET: lambda machine, index: machine.stack.append(machine.memo[index]),
    pickle.LONG_BINGET: lambda machine, index: machine.stack.append(machine.memo[index]),
    pickle.BINPUT: _store_memo,
    pickle.LONG_BINPUT: _store_memo,
    pickle.MEMOIZE: lambda machine, _: machine.memo.append(machine.stack[-1]),
    pickle.GLOBAL: lambda machine, names: machine.stack.append(machine.find(*names)),
    pickle.STACK_GLOBAL: _stack_global,
    pickle.REDUCE: _make_object,
    pickle.NEWOBJ: _make_object,
    pickle.BUILD: _build_object,
    pickle.BINPERSID: lambda machine, _: machine.contain(machine.refer(machine.stack.pop())),
}
_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
# For each instruction, its action, and the reader of its argument.
_INSTRUCTIONS = {
    code: (
        act,
        _read_names if code == pickle.GLOBAL else arg.reader if (arg := _OPCODES[code].arg) is not None else None,
    )
    for code, act in _ACTS.items()
}
