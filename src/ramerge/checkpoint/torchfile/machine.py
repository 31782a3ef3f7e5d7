"""Carries out the instructions of a pickle that make values. There is no instruction here that calls or imports.

Python's unpickler is not used: also one that allows only few names takes any amount of memory for an index of its memo,
and any amount of time to hash a key of nested tuples; and it calls what a name stands for. Here a name is a `Name`, and
what is made of it is what one function of ours returns.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ramerge.foundation.text import quoted

# Half a million tensors of DTensor's kind need as many.
_MOST_CONTAINERS = 3_000_000
_KEYS = (str, int)


class RefusedError(ValueError):
    """A pickle that is damaged, or asks for what no checkpoint needs. The message goes on after the name of the file."""


@dataclass(frozen=True)
class Name:
    """What stands for a class or a function in a pickle: only its name."""

    path: str


@dataclass(eq=False)
class Stub:
    """What stands for an object of a class: the arguments that it was made with, and its state. It does nothing."""

    path: str
    args: tuple[Any, ...]
    state: Any = field(default=None)

    def get(self, name: str) -> Any:
        """An attribute of the state; None if there is none."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class Machine:
    """Makes the value of one pickle.

    Args:
        data: the pickle; protocols 2 to 5.
        find: a name for a module and a name in it.
        make: the value for a name and arguments: an object of a class, or what a function would return.
        refer: the value for a persistent id.
    """

    def __init__(
        self,
        data: bytes,
        find: Callable[[str, str], Name],
        make: Callable[[Name, tuple[Any, ...]], Any],
        refer: Callable[[Any], Any],
    ) -> None:
        self.data, self.position = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.containers = 0
        self.find, self.make, self.refer = find, make, refer

    def run(self) -> Any:
        """The value.

        Raises:
            RefusedError: the pickle is damaged, uses an instruction that torch does not write, or a function refuses.
        """
        data, table = self.data, _TABLE
        try:
            while (code := data[self.position]) != _STOP:
                self.position += 1
                if (instruction := table[code]) is None:
                    raise RefusedError(
                        f"its pickle holds the instruction {quoted(bytes([code]))}, which torch does not use"
                    )
                instruction(self)
            return self.stack.pop()
        except IndexError:
            raise RefusedError("its pickle is damaged: it ends early, or takes what is not there") from None
        except UnicodeDecodeError:
            raise RefusedError("its pickle is damaged: a text is not UTF-8") from None

    def take(self, nbytes: int) -> bytes:
        """The next bytes of the pickle."""
        begin = self.position
        self.position = begin + nbytes
        if self.position > len(self.data):
            raise IndexError
        return self.data[begin : self.position]

    def number(self, form: struct.Struct) -> int:
        """The next number of the pickle."""
        return int(form.unpack(self.take(form.size))[0])

    def line(self) -> str:
        """The next line of the pickle."""
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise IndexError
        found = self.data[self.position : end].decode()
        self.position = end + 1
        return found

    def marked(self) -> list[Any]:
        """Take off the stack what lies above the last mark."""
        mark = self.marks.pop()
        found = self.stack[mark:]
        del self.stack[mark:]
        return found

    def contain(self, value: Any) -> None:
        """Put a new container on the stack."""
        self.containers += 1
        if self.containers > _MOST_CONTAINERS:
            raise RefusedError(
                f"its pickle makes more than {_MOST_CONTAINERS:,} lists and objects, more than any model's"
            )
        self.stack.append(value)

    def top(self, kind: type) -> Any:
        """The value on the stack, which must be of a type."""
        value = self.stack[-1]
        if type(value) is not kind:
            raise RefusedError(f"its pickle is damaged: a {type(value).__name__} is filled as a {kind.__name__}")
        return value


_BYTE, _SHORT, _INT, _UNSIGNED, _SIZE, _FLOAT = map(struct.Struct, ("<B", "<H", "<i", "<I", "<Q", ">d"))


def _ignore(form: struct.Struct) -> Callable[[Machine], None]:
    return lambda machine: machine.take(form.size) and None


def _constant(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _number(form: struct.Struct) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.number(form))


def _float(machine: Machine) -> None:
    machine.stack.append(_FLOAT.unpack(machine.take(8))[0])


def _long(machine: Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(machine.number(_BYTE)), "little", signed=True))


def _text(form: struct.Struct) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(form)).decode())


def _bytes(form: struct.Struct) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.take(machine.number(form)))


def _mark(machine: Machine) -> None:
    machine.marks.append(len(machine.stack))


def _pop(machine: Machine) -> None:
    machine.stack.pop()


def _pop_mark(machine: Machine) -> None:
    machine.marked()


def _list(machine: Machine) -> None:
    machine.contain([])


def _dict(machine: Machine) -> None:
    machine.contain({})


def _tuple(machine: Machine) -> None:
    machine.contain(tuple(machine.marked()))


def _tuple_of(length: int) -> Callable[[Machine], None]:
    def make(machine: Machine) -> None:
        found = tuple(machine.stack[-length:])
        if len(found) < length:
            raise IndexError
        del machine.stack[-length:]
        machine.contain(found)

    return make


def _append(machine: Machine) -> None:
    value = machine.stack.pop()
    machine.top(list).append(value)


def _appends(machine: Machine) -> None:
    values = machine.marked()
    machine.top(list).extend(values)


def _set(machine: Machine, items: list[Any]) -> None:
    into = machine.top(dict)
    if len(items) % 2:
        raise IndexError
    for place in range(0, len(items), 2):
        key = items[place]
        # what else can be hashed takes long to hash: a tuple of tuples of tuples
        if type(key) not in _KEYS and type(key) is not Stub:
            raise RefusedError(f"its pickle holds a dictionary with a key of type {type(key).__name__}")
        into[key] = items[place + 1]


def _set_item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set(machine, [key, value])


def _set_items(machine: Machine) -> None:
    _set(machine, machine.marked())


def _get(form: struct.Struct) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.memo[machine.number(form)])


def _memoize(machine: Machine) -> None:
    machine.memo.append(machine.stack[-1])


def _put(form: struct.Struct) -> Callable[[Machine], None]:
    def put(machine: Machine) -> None:
        # pickle counts from 0 without a gap, so an index beyond the end is a lie that would take memory
        index, value = machine.number(form), machine.stack[-1]
        if index == len(machine.memo):
            machine.memo.append(value)
        else:
            machine.memo[index] = value

    return put


def _global(machine: Machine) -> None:
    machine.stack.append(machine.find(machine.line(), machine.line()))


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise RefusedError("its pickle is damaged: a name is not a text")
    machine.stack.append(machine.find(module, name))


def _make(machine: Machine) -> None:
    args, name = machine.stack.pop(), machine.stack.pop()
    if type(name) is not Name or type(args) is not tuple:
        raise RefusedError("its pickle calls what is not a class or a function; it may be an attack")
    machine.contain(machine.make(name, args))


def _build(machine: Machine) -> None:
    state, value = machine.stack.pop(), machine.stack[-1]
    if type(value) is dict:
        return  # attributes of an OrderedDict: versions of modules
    if type(value) is not Stub:
        raise RefusedError(f"its pickle sets attributes of a {type(value).__name__}; it may be an attack")
    # classes with __slots__ write (None, values)
    value.state = state[1] if type(state) is tuple and len(state) == 2 and state[0] is None else state


def _refer(machine: Machine) -> None:
    machine.contain(machine.refer(machine.stack.pop()))


_INSTRUCTIONS: dict[bytes, Callable[[Machine], None]] = {
    pickle.PROTO: _ignore(_BYTE),
    pickle.FRAME: _ignore(_SIZE),
    pickle.NONE: _constant(None),
    pickle.NEWTRUE: _constant(True),
    pickle.NEWFALSE: _constant(False),
    pickle.EMPTY_TUPLE: _constant(()),
    pickle.BININT: _number(_INT),
    pickle.BININT1: _number(_BYTE),
    pickle.BININT2: _number(_SHORT),
    pickle.LONG1: _long,
    pickle.BINFLOAT: _float,
    pickle.BINUNICODE: _text(_UNSIGNED),
    pickle.SHORT_BINUNICODE: _text(_BYTE),
    pickle.BINUNICODE8: _text(_SIZE),
    pickle.BINBYTES: _bytes(_UNSIGNED),
    pickle.SHORT_BINBYTES: _bytes(_BYTE),
    pickle.MARK: _mark,
    pickle.POP: _pop,
    pickle.POP_MARK: _pop_mark,
    pickle.EMPTY_LIST: _list,
    pickle.EMPTY_DICT: _dict,
    pickle.TUPLE: _tuple,
    pickle.TUPLE1: _tuple_of(1),
    pickle.TUPLE2: _tuple_of(2),
    pickle.TUPLE3: _tuple_of(3),
    pickle.APPEND: _append,
    pickle.APPENDS: _appends,
    pickle.SETITEM: _set_item,
    pickle.SETITEMS: _set_items,
    pickle.BINGET: _get(_BYTE),
    pickle.LONG_BINGET: _get(_UNSIGNED),
    pickle.BINPUT: _put(_BYTE),
    pickle.LONG_BINPUT: _put(_UNSIGNED),
    pickle.MEMOIZE: _memoize,
    pickle.GLOBAL: _global,
    pickle.STACK_GLOBAL: _stack_global,
    pickle.REDUCE: _make,
    pickle.NEWOBJ: _make,
    pickle.BUILD: _build,
    pickle.BINPERSID: _refer,
}
_STOP = pickle.STOP[0]
_TABLE = [_INSTRUCTIONS.get(bytes([code])) for code in range(256)]
