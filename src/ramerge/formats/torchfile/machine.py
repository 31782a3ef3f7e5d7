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


class RefusedError(ValueError):
    """A pickle that is damaged, or asks for what no checkpoint needs. The message follows the name of a file."""


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

    def fill(self, state: Any) -> None:
        """Set the state. Classes with `__slots__` write (None, values)."""
        self.state = state[1] if type(state) is tuple and len(state) == 2 and state[0] is None else state

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
        data, stack, memo, position = self.data, self.stack, self.memo, 0
        try:
            while (code := data[position]) != _STOP:
                # two of three instructions are one of these, so they are written out
                if code == _GET_BYTE:
                    stack.append(memo[data[position + 1]])
                    position += 2
                elif code == _NUMBER_BYTE:
                    stack.append(data[position + 1])
                    position += 2
                elif code == _PUT_UNSIGNED and data[position + 1 : position + 5] == len(memo).to_bytes(4, "little"):
                    memo.append(stack[-1])
                    position += 5
                else:
                    self.position = position + 1
                    self._step(code)
                    position = self.position
            return self.stack.pop()
        except (IndexError, struct.error):
            raise RefusedError("its pickle is damaged: it ends early, or takes what is not there") from None
        except UnicodeDecodeError:
            raise RefusedError("its pickle is damaged: a text is not UTF-8") from None

    def _step(self, code: int) -> None:
        form, act = _TABLE[code]
        if form is None:
            act(self, code)
        else:
            (number,) = form.unpack_from(self.data, self.position)
            self.position += form.size
            act(self, number)

    def take(self, nbytes: int) -> bytes:
        """The next bytes of the pickle."""
        begin = self.position
        self.position = begin + nbytes
        if self.position > len(self.data):
            raise IndexError
        return self.data[begin : self.position]

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


_KEYS = (str, int, Stub)  # the keys that are numbers become bytes, and nothing of ours asks for them
# Each instruction gets the number that follows it in the pickle, or its own code if none follows.
_Act = Callable[[Machine, Any], None]


def _refuse(machine: Machine, code: int) -> None:
    raise RefusedError(f"its pickle holds the instruction {quoted(bytes([code]))}, which torch does not use")


def _ignore(machine: Machine, number: int) -> None:
    """Protocol and frames say nothing that is needed."""


def _constant(value: Any) -> _Act:
    return lambda machine, _: machine.stack.append(value)


def _number(machine: Machine, number: Any) -> None:
    machine.stack.append(number)


def _long(machine: Machine, nbytes: int) -> None:
    machine.stack.append(int.from_bytes(machine.take(nbytes), "little", signed=True))


def _text(machine: Machine, nbytes: int) -> None:
    machine.stack.append(machine.take(nbytes).decode())


def _bytes(machine: Machine, nbytes: int) -> None:
    machine.stack.append(machine.take(nbytes))


def _mark(machine: Machine, _: int) -> None:
    machine.marks.append(len(machine.stack))


def _pop(machine: Machine, _: int) -> None:
    machine.stack.pop()


def _pop_mark(machine: Machine, _: int) -> None:
    machine.marked()


def _list(machine: Machine, _: int) -> None:
    machine.contain([])


def _dict(machine: Machine, _: int) -> None:
    machine.contain({})


def _tuple(machine: Machine, _: int) -> None:
    machine.contain(tuple(machine.marked()))


def _tuple_of(length: int) -> _Act:
    def make(machine: Machine, _: int) -> None:
        found = tuple(machine.stack[-length:])
        if len(found) < length:
            raise IndexError
        del machine.stack[-length:]
        machine.contain(found)

    return make


def _append(machine: Machine, _: int) -> None:
    value = machine.stack.pop()
    machine.top(list).append(value)


def _appends(machine: Machine, _: int) -> None:
    values = machine.marked()
    machine.top(list).extend(values)


def _set(machine: Machine, items: list[Any]) -> None:
    into = machine.top(dict)
    if len(items) % 2:
        raise IndexError
    for place in range(0, len(items), 2):
        key = items[place]
        # what else can be hashed takes long to hash: a tuple of tuples of tuples
        if type(key) not in _KEYS:
            raise RefusedError(f"its pickle holds a dictionary with a key of type {type(key).__name__}")
        # a pickle can choose numbers that all have one hash, but not texts: Python's hash of these is random
        into[b"%d" % key if type(key) is int else key] = items[place + 1]


def _set_item(machine: Machine, _: int) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set(machine, [key, value])


def _set_items(machine: Machine, _: int) -> None:
    _set(machine, machine.marked())


def _get(machine: Machine, index: int) -> None:
    machine.stack.append(machine.memo[index])


def _memoize(machine: Machine, _: int) -> None:
    machine.memo.append(machine.stack[-1])


def _put(machine: Machine, index: int) -> None:
    # pickle counts from 0 without a gap, so an index beyond the end is a lie that would take memory
    if index == len(machine.memo):
        machine.memo.append(machine.stack[-1])
    else:
        machine.memo[index] = machine.stack[-1]


def _global(machine: Machine, _: int) -> None:
    machine.stack.append(machine.find(machine.line(), machine.line()))


def _stack_global(machine: Machine, _: int) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise RefusedError("its pickle is damaged: a name is not a text")
    machine.stack.append(machine.find(module, name))


def _make(machine: Machine, _: int) -> None:
    args, name = machine.stack.pop(), machine.stack.pop()
    if type(name) is not Name or type(args) is not tuple:
        raise RefusedError("its pickle calls what is not a class or a function; it may be an attack")
    machine.contain(machine.make(name, args))


def _build(machine: Machine, _: int) -> None:
    state, value = machine.stack.pop(), machine.stack[-1]
    if type(value) is dict:
        return  # attributes of an OrderedDict: versions of modules
    if type(value) is not Stub:
        raise RefusedError(f"its pickle sets attributes of a {type(value).__name__}; it may be an attack")
    value.fill(state)


def _refer(machine: Machine, _: int) -> None:
    machine.contain(machine.refer(machine.stack.pop()))


_BYTE, _SHORT, _INT, _UNSIGNED, _SIZE, _FLOAT = map(struct.Struct, ("<B", "<H", "<i", "<I", "<Q", ">d"))
_INSTRUCTIONS: dict[bytes, tuple[struct.Struct | None, _Act]] = {
    pickle.PROTO: (_BYTE, _ignore),
    pickle.FRAME: (_SIZE, _ignore),
    pickle.NONE: (None, _constant(None)),
    pickle.NEWTRUE: (None, _constant(True)),
    pickle.NEWFALSE: (None, _constant(False)),
    pickle.EMPTY_TUPLE: (None, _constant(())),
    pickle.BININT: (_INT, _number),
    pickle.BININT1: (_BYTE, _number),
    pickle.BININT2: (_SHORT, _number),
    pickle.BINFLOAT: (_FLOAT, _number),
    pickle.LONG1: (_BYTE, _long),
    pickle.BINUNICODE: (_UNSIGNED, _text),
    pickle.SHORT_BINUNICODE: (_BYTE, _text),
    pickle.BINUNICODE8: (_SIZE, _text),
    pickle.BINBYTES: (_UNSIGNED, _bytes),
    pickle.SHORT_BINBYTES: (_BYTE, _bytes),
    pickle.MARK: (None, _mark),
    pickle.POP: (None, _pop),
    pickle.POP_MARK: (None, _pop_mark),
    pickle.EMPTY_LIST: (None, _list),
    pickle.EMPTY_DICT: (None, _dict),
    pickle.TUPLE: (None, _tuple),
    pickle.TUPLE1: (None, _tuple_of(1)),
    pickle.TUPLE2: (None, _tuple_of(2)),
    pickle.TUPLE3: (None, _tuple_of(3)),
    pickle.APPEND: (None, _append),
    pickle.APPENDS: (None, _appends),
    pickle.SETITEM: (None, _set_item),
    pickle.SETITEMS: (None, _set_items),
    pickle.BINGET: (_BYTE, _get),
    pickle.LONG_BINGET: (_UNSIGNED, _get),
    pickle.BINPUT: (_BYTE, _put),
    pickle.LONG_BINPUT: (_UNSIGNED, _put),
    pickle.MEMOIZE: (None, _memoize),
    pickle.GLOBAL: (None, _global),
    pickle.STACK_GLOBAL: (None, _stack_global),
    pickle.REDUCE: (None, _make),
    pickle.NEWOBJ: (None, _make),
    pickle.BUILD: (None, _build),
    pickle.BINPERSID: (None, _refer),
}
_STOP, _GET_BYTE, _NUMBER_BYTE, _PUT_UNSIGNED = (
    pickle.STOP[0],
    pickle.BINGET[0],
    pickle.BININT1[0],
    pickle.LONG_BINPUT[0],
)
_TABLE = [_INSTRUCTIONS.get(bytes([code]), (None, _refuse)) for code in range(256)]
