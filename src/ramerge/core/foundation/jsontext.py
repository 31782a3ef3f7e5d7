"""Reads JSON from untrusted files, after checking it against limits, and writes JSON.

Python's parser may need a hundred times the memory of the text. And values in a malicious text cause errors much later:
a lone surrogate when a file is written, a number of 400 digits when it becomes a float, and deep nesting in every
recursive function. So such texts are refused here.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NoReturn, Protocol

from typing_extensions import override

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ESCAPE = re.compile(rb"\\[^u]")
_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_WHOLE_OR_HALF = re.compile(rb"(\\[^u]|%b)|%b" % (_PAIR.pattern, _HALF.pattern))
# Characters that may need escaping. Outside of strings, JSON has only printable ASCII and white space.
_CONTROLS = re.compile(r"[^\n -~]")


@dataclass(frozen=True)
class JsonLimits:
    """Limits for a text.

    Attributes:
        size: the most bytes.
        signs: the most commas, colons and brackets outside of strings; limits the number of values and keys.
        depth: the most levels of nested lists and objects.
        name: the most characters of a key.
        digits: the most consecutive digits of a number.
    """

    size: int
    signs: int
    depth: int = 64
    name: int = 1024
    digits: int = 100


_SLICE = 1 << 20
_SPACE = b" \t\r\n"

# Enough for a record with figures of every tensor: 50,000 tensors of two agents.
RECORD = JsonLimits(size=32_000_000, signs=2_000_000)


class Readable(Protocol):
    """A `Path`, or the name of a remote file."""

    def is_file(self) -> bool:
        """Whether the file exists and is regular."""
        ...

    def open(self, mode: Literal["rb"], /) -> BinaryIO:
        """Open the file for reading."""
        ...


Pairs = list[tuple[str, object]]


class _NotANumber(float):
    """A NaN that equals itself, so that values read from equal texts are equal. `!=` behaves as for floats."""

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NotANumber)

    @override
    def __hash__(self) -> int:
        return hash(_NotANumber)


_CONSTANTS = {"NaN": _NotANumber("nan"), "Infinity": math.inf, "-Infinity": -math.inf}


def parse(
    text: bytes,
    limits: JsonLimits,
    *,
    on_repetition: Callable[[Pairs], None] | None = None,
    to_integer: Callable[[str], object] = int,
    constants: bool = True,
    halves: Literal["refuse", "replace", "keep"] = "refuse",
) -> Any:
    """Parse JSON text in UTF-8.

    Args:
        text: the JSON text.
        limits: the limits for the text.
        on_repetition: called with the keys and values of each object with a repeated key; the last value counts.
        to_integer: converts the text of an integer.
        constants: whether NaN and Infinity are accepted, which Python writes, but JSON does not define. If not, numbers
            beyond the range of float64 are refused, too.
        halves: how to treat lone halves of surrogate pairs, which are not characters: refuse the text, replace them by
            question marks, or keep them.

    Raises:
        ValueError: the text is not JSON, or exceeds a limit, which the message names.
    """
    longest = check(text, limits)
    if halves != "keep" and b"\\u" in text and _HALF.search(_PAIR.sub(b"", _ESCAPE.sub(b"", text))):
        if halves == "refuse":
            raise ValueError("holds half of a surrogate pair, which is not a character")
        text = _WHOLE_OR_HALF.sub(lambda match: match[1] or b"?", text)

    def check_pairs(pairs: Pairs) -> dict[str, object]:
        mapping = dict(pairs)
        if longest > limits.name and any(len(name) > limits.name for name in mapping):
            raise ValueError(f"has a key of more than {limits.name:,} characters")
        if on_repetition is not None and len(mapping) < len(pairs):
            on_repetition(pairs)
        return mapping

    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=check_pairs if on_repetition is not None or longest > limits.name else None,
            parse_int=to_integer,
            parse_constant=_CONSTANTS.__getitem__ if constants else _refuse_constant,
            parse_float=None if constants else _parse_finite,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start:,})") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        if "\n" not in error.doc.strip():  # a line of a file, whose number callers add
            place = f"column {min(error.pos, len(error.doc.rstrip())) + 1}"
        raise ValueError(f"is not JSON ({error.msg}, {place})") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"holds {name[:40]}, which is not a finite number")


def _parse_finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


def check(text: bytes, limits: JsonLimits) -> int:
    """Check a text against limits before it is parsed, except for the length of keys.

    Only signs outside of strings count. In UTF-8, no byte of a non-ASCII character equals one of the signs.

    Returns:
        An upper bound for the length of strings.

    Raises:
        ValueError: the text exceeds a limit, which the message names.
    """
    if len(text) > limits.size:
        raise ValueError(f"has {len(text):,} bytes, more than the {limits.size:,} that are allowed")
    if text.count(b'"') > 4 * limits.signs:
        raise ValueError("holds too many values")
    # two backslashes stand for one; a single backslash escapes the next character
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    pieces = bare.split(b'"')
    outside = b"".join(pieces[::2])
    opening = outside.count(b"[") + outside.count(b"{")
    if opening + outside.count(b",") + outside.count(b":") > limits.signs:
        raise ValueError(f"holds too many values: more than {limits.signs:,} commas, colons and brackets")
    # match only at the first digit of a number, so that the time is linear in the text
    if re.search(rb"(?<![0-9])[0-9]{%d}" % (limits.digits + 1), outside):
        raise ValueError(f"holds a number of more than {limits.digits:,} digits")
    if opening > limits.depth and max_nesting(outside) > limits.depth:
        raise ValueError(f"is nested more than {limits.depth} deep")
    return len(text) if bare is not text else max(map(len, pieces[1::2]), default=0)


def max_nesting(text: bytes) -> int:
    """Return the depth of nested brackets, including brackets in strings."""
    import numpy as np  # half of the time that `ramerge --help` would take

    brackets = np.frombuffer(text.translate(None, _NO_BRACKETS), np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), np.int32(1), np.int32(-1))
    return int(np.cumsum(steps).max(initial=0))


def read_object(path: Readable, limits: JsonLimits, *, constants: bool = True) -> dict[str, Any]:
    """Read the JSON object in an untrusted file; use `typedjson` to read it into a dataclass.

    Raises:
        ValueError: the file is not regular, is not JSON, is not an object, or exceeds a limit.
        OSError: the file cannot be read.
    """
    # reading a pipe would block, and reading a device would never end
    if not path.is_file():
        raise ValueError("is not a regular file")
    with path.open("rb") as file:
        text = file.read(limits.size + 1)
    if len(text) > limits.size:
        raise ValueError(f"has more than the {limits.size:,} bytes that are allowed")
    values = parse(text, limits, constants=constants)
    if not isinstance(values, dict):
        raise ValueError("must hold a JSON object")
    return values


def damage(file: BinaryIO, limits: JsonLimits) -> str | None:
    """Return why a file is not a JSON object; None if it is, or if it exceeds the size limit and looks like an object.

    A larger file is not parsed, which would take long, and is never wholly in memory. It must be UTF-8 and begin and
    end with braces, so that files are detected that are truncated, in another encoding, or incompletely written.
    """
    text = file.read(limits.size + 1)
    if not text.strip(_SPACE):
        return "is empty" if len(text) <= limits.size else "begins with white space only"
    if not text.strip(b"\0"):
        return "holds zeros only"
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "is not UTF-8, but UTF-16"
    if text.startswith(codecs.BOM_UTF8):
        return "begins with a byte order mark, which JSON must not"
    if len(text) <= limits.size:
        try:
            return None if isinstance(parse(text, limits, halves="keep"), dict) else "is not a JSON object"
        except ValueError as error:
            return str(error)
    if text.lstrip(_SPACE)[:1] != b"{":
        return "is not a JSON object: it does not begin with {"
    decoder, last = codecs.getincrementaldecoder("utf-8")(), b""
    while text:
        if b"\0" in text:
            return "is not JSON: it holds zeros"
        try:
            decoder.decode(text)
        except UnicodeDecodeError:
            return "is not UTF-8"
        last = text.rstrip(_SPACE)[-1:] or last
        text = file.read(_SLICE)
    return None if last == b"}" else "is not a JSON object: it does not end with }, so it may be truncated"


def dumped(values: object, *, indent: int | None = 2, constants: bool = False) -> str:
    """Return JSON text with a final newline, for a file or `--json`. Unprintable characters are escaped.

    Raises:
        ValueError: a number is infinite or NaN, and `constants` does not allow it.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=constants, separators=separators)
    return _CONTROLS.sub(_escape_match, text) + "\n"


def _escape_match(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]
