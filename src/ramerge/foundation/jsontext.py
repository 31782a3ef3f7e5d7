"""JSON that strangers wrote, bounded before it is parsed, and JSON that we write.

Python's parser takes up to a hundred times a text's size, and what it makes of a hostile text makes trouble much later:
a lone surrogate where a file is written, a number of 400 digits where it becomes a float, a deep nesting wherever
values are walked. So none of it gets in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ESCAPED = re.compile(rb"\\[^u]")
_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_WHOLE_OR_HALF = re.compile(rb"(\\[^u]|%b)|%b" % (_PAIR.pattern, _HALF.pattern))
# What is no letter inside of a string; outside of strings JSON has nothing that is not printable but white space.
_CONTROLS = re.compile(r"[^\n -~]")


@dataclass(frozen=True)
class Limits:
    """What a text may hold.

    Attributes:
        size: bytes.
        signs: commas, colons and brackets outside of strings, which bounds the number of values and keys.
        depth: of lists and objects in each other.
        name: characters of a key.
        digits: of a number, one after the other.
    """

    size: int
    signs: int
    depth: int = 64
    name: int = 1024
    digits: int = 100


# Of a record, with figures of every tensor: 50,000 of two agents.
RECORD = Limits(size=32_000_000, signs=2_000_000)

Pairs = list[tuple[str, Any]]


def parse(
    text: bytes,
    limits: Limits,
    *,
    to_object: Callable[[Pairs], Any] = dict,
    to_integer: Callable[[str], Any] = int,
    constants: bool = True,
    halves: Literal["refuse", "replace", "keep"] = "refuse",
) -> Any:
    """The values of a text in UTF-8.

    Args:
        text: the JSON.
        limits: what it may hold.
        to_object: makes an object of its keys and values, in their order.
        to_integer: makes a number of an integer's text.
        constants: whether NaN and Infinity are taken, which Python writes and JSON does not know; else no number may
            be beyond the range of float64 either.
        halves: what happens to halves of surrogate pairs, which are no characters: the text is refused, or they become
            question marks, or they stay.

    Raises:
        ValueError: it is not JSON, or exceeds a limit; the message says which.
    """
    check(text, limits)
    if halves != "keep" and b"\\u" in text and _HALF.search(_PAIR.sub(b"", _ESCAPED.sub(b"", text))):
        if halves == "refuse":
            raise ValueError("holds half of a surrogate pair, which is no character")
        text = _WHOLE_OR_HALF.sub(lambda found: found[1] or b"?", text)

    def checked(pairs: Pairs) -> Any:
        if any(len(name) > limits.name for name, _ in pairs):
            raise ValueError(f"has a key of more than {limits.name:,} characters")
        return to_object(pairs)

    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=checked,
            parse_int=to_integer,
            parse_constant=None if constants else _refuse_constant,
            parse_float=None if constants else _finite,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start:,})") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error})") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"holds {name[:40]}, which is not a finite number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


def check(text: bytes, limits: Limits) -> None:
    """Refuse a text that exceeds a limit, before it is parsed.

    Counts what is outside of strings. Bytes of other characters than ASCII are never those that are looked for.

    Raises:
        ValueError: it exceeds a limit other than that on keys; the message says which.
    """
    if len(text) > limits.size:
        raise ValueError(f"has {len(text):,} bytes, more than the {limits.size:,} that are read")
    if text.count(b'"') > 4 * limits.signs:
        raise ValueError("holds too many values")
    # an even number of backslashes is itself, the odd one escapes what follows
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    outside = b"".join(bare.split(b'"')[::2])
    opening = outside.count(b"[") + outside.count(b"{")
    if opening + outside.count(b",") + outside.count(b":") > limits.signs:
        raise ValueError(f"holds too many values: more than {limits.signs:,} commas, colons and brackets")
    # from the first digit on only, so that the time is linear in the text
    if re.search(rb"(?<![0-9])[0-9]{%d}" % (limits.digits + 1), outside):
        raise ValueError(f"holds a number of more than {limits.digits:,} digits")
    if opening > limits.depth and nesting(outside) > limits.depth:
        raise ValueError(f"is nested more than {limits.depth} deep")


def nesting(text: bytes) -> int:
    """How many brackets are open at most, wherever they stand."""
    brackets = np.frombuffer(text.translate(None, _NO_BRACKETS), np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), np.int32(1), np.int32(-1))
    return int(np.cumsum(steps).max(initial=0))


def read(path: Path, limits: Limits, *, constants: bool = True) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: no regular file, not JSON, not an object, or beyond the limits.
        OSError: it cannot be read.
    """
    # a pipe would block and a device never end
    if not path.is_file():
        raise ValueError("is not a regular file")
    with path.open("rb") as file:
        text = file.read(limits.size + 1)
    if len(text) > limits.size:
        raise ValueError(f"has more than the {limits.size:,} bytes that are read")
    values = parse(text, limits, constants=constants)
    if not isinstance(values, dict):
        raise ValueError("must hold a JSON object")
    return values


def dumped(values: Any, *, indent: int | None = 2, constants: bool = False) -> str:
    """The text of a file or of `--json`, with a line end. Letters stay readable; what is no letter is escaped.

    Raises:
        ValueError: a number is infinite or none, and `constants` does not allow it.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=constants, separators=separators)
    return _CONTROLS.sub(_escaped, text) + "\n"


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]
