"""Inputs that are nearly right: values, tokens and bytes of good ones, replaced by what has been trouble somewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True)
class Raw:
    """A token that is written as it is."""

    text: str


NAMES = (
    "",
    " ",
    ".",
    "..",
    "/",
    "a/../b",
    "é漢字",
    "\x1b[2J\x1b[Hready to merge",
    "\x9b2J",
    "a\nerror: forged",
    "\r",
    "\t=1",
    "=cmd|' /C calc'!A0",
    "@x",
    "-1",
    "\u202egnp.exe",
    "a\u200bb",
    "\u2028",
    "\ufe0f",
    "\0",
    "\ud800",
    "a" * 300,
    "b" * 2000,
    "model.layers.0.weight",
    "model.safetensors",
    "[red]x[/red]",
    "{task}",
    "%s%n",
    "<script>alert(1)</script>",
    "</script>",
    "`rm -rf`",
    "| x |",
    "rope_theta",
    "quantization_config",
    "__metadata__",
    "norm" * 60 + "_eps",
)
TOKENS = (
    "-0",
    "0",
    "-1",
    "1e400",
    "-1e-400",
    "1.5",
    "NaN",
    "Infinity",
    "-Infinity",
    "1" * 99,
    "9" * 400,
    "7" * 5000,
    "01",
    "+1",
    "true",
    "null",
    "[]",
    "{}",
    '""',
    "[[]]",
    "[" * 40 + "]" * 40,
    '{"a":' * 70 + "1" + "}" * 70,
    "[" * 900 + "]" * 900,
    "18446744073709551616",
    "9223372036854775808",
    "4611686018427387904",
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\ud83d\\ude00"',
    '"\\u0000"',
    "[0,0,0,0,0,0,0,0,0,0]",
    '{"a":1,"a":2}',
    '"' + "x" * 3000 + '"',
    "",
    "'",
    "}",
    "]",
)
BYTES = (
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\0",
    b"\x1b[2J",
    b'"',
    b"\\",
    b"{",
    b"]",
    b",",
    b":",
    b"\n",
    b"\xef\xbb\xbf",
)


def value(rng: Random) -> Any:
    """Something odd."""
    made: tuple[Callable[[], Any], ...] = (
        lambda: Raw(rng.choice(TOKENS)),
        lambda: rng.choice(NAMES),
        lambda: rng.choice((None, True, 0, -1, 0.5, 2**31, 2**53 + 1, [], {}, [0], ["x"], {"a": "b"})),
        lambda: [rng.choice(NAMES) for _ in range(rng.randrange(4))],
        lambda: {rng.choice(NAMES): rng.randrange(10) for _ in range(rng.randrange(4))},
    )
    return rng.choice(made)()


def mutated(rng: Random, document: Any) -> Any:
    """A copy with one to four values, keys or places changed."""
    found = deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 4))):
        owners = list(_owners(found))
        if not owners:
            return value(rng)
        owner = rng.choice(owners)
        if isinstance(owner, dict):
            _change_object(rng, owner)
        else:
            _change_list(rng, owner)
    return found


def _owners(node: Any) -> Any:
    if isinstance(node, dict | list) and node:
        yield node
        for child in node.values() if isinstance(node, dict) else node:
            yield from _owners(child)


def _change_object(rng: Random, owner: dict[Any, Any]) -> None:
    key = rng.choice(list(owner))
    change = rng.randrange(6)
    if change == 0:
        del owner[key]
    elif change == 1:
        owner[rng.choice(NAMES)] = owner.pop(key)
    elif change == 2:
        owner[rng.choice(NAMES)] = value(rng)
    elif change == 3:
        owner[rng.choice(NAMES)] = deepcopy(owner[key])
    else:
        owner[key] = _near(rng, owner[key])


def _change_list(rng: Random, owner: list[Any]) -> None:
    place = rng.randrange(len(owner))
    change = rng.randrange(5)
    if change == 0:
        del owner[place]
    elif change == 1:
        owner.insert(place, deepcopy(owner[place]))
    elif change == 2:
        rng.shuffle(owner)
    else:
        owner[place] = _near(rng, owner[place])


def _near(rng: Random, old: Any) -> Any:
    """A neighbor of a value, or something else altogether."""
    if isinstance(old, bool) or old is None or rng.random() < 0.5:
        return value(rng)
    if isinstance(old, int):
        return old + rng.choice((-8, -1, 1, 2, 8, 2**32, -(2**63)))
    if isinstance(old, float):
        return old * rng.choice((-1, 0, 1e300, 1e-300))
    if isinstance(old, str):
        return rng.choice((old + rng.choice(NAMES), rng.choice(NAMES) + old, old[:-1], old.upper(), old * 3))
    return value(rng)


def dump(node: Any) -> str:
    """JSON, with raw tokens as they are and lone surrogates escaped."""
    if isinstance(node, Raw):
        return node.text
    if isinstance(node, dict):
        return "{" + ",".join(f"{json.dumps(str(key))}:{dump(one)}" for key, one in node.items()) + "}"
    if isinstance(node, list | tuple):
        return "[" + ",".join(map(dump, node)) + "]"
    return json.dumps(node, ensure_ascii=False) if _fits(node) else json.dumps(node)


def _fits(node: Any) -> bool:
    return not isinstance(node, str) or not any("\ud800" <= sign <= "\udfff" for sign in node)


def torn(rng: Random, data: bytes) -> bytes:
    """Bytes flipped, cut, doubled or put in."""
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(data) + 1)
        change = rng.randrange(5)
        if change == 0 and place < len(data):
            data = data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        elif change == 1:
            data = data[:place]
        elif change == 2:
            data = data[:place] + rng.choice(BYTES) + data[place:]
        elif change == 3:
            end = min(len(data), place + rng.randrange(1, 40))
            data = data[:place] + data[place:end] * rng.choice((0, 2, 50)) + data[end:]
        else:
            token = rng.choice(TOKENS + NAMES).encode("utf-8", "surrogatepass")
            data = data[:place] + token + data[place + rng.randrange(4) :]
    return data


def json_text(rng: Random, document: Any) -> bytes:
    """The text of a changed document, sometimes torn as well."""
    if rng.random() < 0.15:
        return torn(rng, dump(document).encode("utf-8", "surrogatepass"))
    text = dump(mutated(rng, document)).encode("utf-8", "surrogatepass")
    return torn(rng, text) if rng.random() < 0.15 else text
