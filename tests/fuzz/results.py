"""Mutants of what an evaluation reads: files of data, and records of merges.

    for case in itertools.islice(cases(seed), count):
        check(case)

`cases` is endless and the same for a seed; each case holds all that is needed to see it again. `check` does what the
command `eval` would do with it, in a temporary folder, and returns whether it was taken. An error of
ramerge's own is a right end, if its message is short and can be printed. Everything else that is raised is a finding:
an exception of another kind, or an `AssertionError` about what would have been shown.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ramerge.core.foundation.errors import RamergeError
from ramerge_eval import data, models

_LONGEST_MESSAGE = 20_000
_DEEP = 900

_RECORD = {
    "method": "ram+",
    "parameters": {"r": 0.1},
    "base": "/models/base",
    "agents": {"tool": {"model": "/models/agent"}},
}
_ITEM = {"id": "q1", "question": "who?", "answer": ["she", "he"], "meta": {"level": 3}}


@dataclass(frozen=True)
class Case:
    """A mutant.

    Attributes:
        name: kind, seed and number, which make it again.
        kind: record or data.
        content: the mutated file or body.
    """

    name: str
    kind: str
    content: bytes


def cases(seed: int) -> Iterator[Case]:
    """Mutants without end."""
    chance = random.Random(seed)
    number = 0
    while True:
        for kind, make in _KINDS.items():
            yield Case(f"{kind}-{seed}-{number}", kind, _mutated(make(), chance))
            number += 1


def check(case: Case) -> bool:
    """Read a mutant, and do with it what the commands do; whether it was taken."""
    try:
        _CHECKS[case.kind](case.content)
        return True
    except RamergeError as error:
        _check_shown(str(error))
        assert len(str(error)) <= _LONGEST_MESSAGE, f"a message of {len(str(error)):,} characters"
        return False


def _check_shown(shown: str) -> None:
    shown.encode("utf-8")
    assert all(sign.isprintable() or sign in "\n" for sign in shown), "what a terminal would obey is shown"


# --- what is done with a mutant --------------------------------------------------------------------------------------


def _check_record(content: bytes) -> None:
    with TemporaryDirectory() as name:
        (Path(name) / "ramerge.json").write_bytes(content)
        about = models.EvaluationTarget("merged", "merged", name).about()
        json.dumps(about, allow_nan=True).encode("utf-8")


def _check_data(content: bytes) -> None:
    with TemporaryDirectory() as name:
        path = Path(name) / "data.jsonl"
        path.write_bytes(content)
        records = data.read_records(path, {"id": str, "question": str, "answer": list})
        data.refuse_duplicates(path, [record["id"] for record in records])
        json.dumps(records, ensure_ascii=False).encode("utf-8")


# --- mutants ---------------------------------------------------------------------------------------------------------


_KINDS: dict[str, Callable[[], bytes]] = {
    "record": lambda: json.dumps(_RECORD).encode(),
    "data": lambda: b"".join(json.dumps({**_ITEM, "id": f"q{number}"}).encode() + b"\n" for number in range(3)),
}
_CHECKS: dict[str, Callable[[bytes], None]] = {
    "record": _check_record,
    "data": _check_data,
}

_ODD_VALUES: tuple[str, ...] = (
    *(
        "null",
        "true",
        "-0",
        "-0.0",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e308",
        "1e999",
        "-1",
        "[]",
        "{}",
        '""',
        "0",
        "2.5",
    ),
    "1" + "0" * 400,
    "-1" + "0" * 5000,
    "1" * 100_000,
    '"\\ud800"',
    '"\\udfff\\ud800x"',
    '"\\u001b[2J\\u001b]0;x\\u0007"',
    '"\\u202egnp.exe"',
    '"\\u0000"',
    '"a\\nramerge: ready"',
    '"=1+1"',
    '"<script>"',
    '"' + "x" * 100_000 + '"',
    "[" * 90 + "]" * 90,
    "[" * _DEEP + "]" * _DEEP,
    '{"a":' * _DEEP + "1" + "}" * _DEEP,
    "[" * 100_000,
    "[" + "[]," * 2000 + "[]]",
    '{"a": 1, "a": 2}',
    '{"\\ud800": 1}',
    '{"\\u001b[2J": [1, 1]}',
    '{"name": "x", "model": "y", "key": "z"}',
    "[[1, 1], [1, 0]]",
    "[1e99, 1e-300]",
)
_TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b"\r\n"),
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80"),
)


def _mutated(content: bytes, chance: random.Random) -> bytes:
    """One to three mutations, of values or of bytes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice((_other_value, _other_value, _other_value, _other_key, _without, _other_bytes))(
            content, chance
        )
    return content


def _places(content: bytes) -> list[tuple[int, int]]:
    """Where JSON's scalars and keys begin and end, by tokens outside and inside of strings."""
    found, start = [], None
    position = 0
    while position < len(content):
        byte = content[position : position + 1]
        if byte == b'"':
            end = position + 1
            while end < len(content) and content[end : end + 1] != b'"':
                end += 2 if content[end : end + 1] == b"\\" else 1
            found.append((position, min(end + 1, len(content))))
            position = end
        elif byte.isalnum() or byte in b"-.":
            start = position if start is None else start
        if start is not None and not (byte.isalnum() or byte in b"-.+"):
            found.append((start, position))
            start = None
        position += 1
    return found[:10_000]


def _other_value(content: bytes, chance: random.Random) -> bytes:
    """A scalar, a key, or a bracket with what follows up to its end, becomes an odd value."""
    places = _places(content[:20_000])
    if not places:
        return content + chance.choice(_ODD_VALUES).encode()
    start, end = chance.choice(places)
    if chance.random() < 0.3:
        start, end = _around(content, start)
    return content[:start] + chance.choice(_ODD_VALUES).encode() + content[end:]


def _around(content: bytes, place: int) -> tuple[int, int]:
    """The innermost list or object around a place, roughly."""
    start = max(content.rfind(b"[", 0, place), content.rfind(b"{", 0, place))
    if start < 0:
        return 0, len(content)
    depth = 0
    for position in range(start, len(content)):
        depth += content[position] in b"[{"
        depth -= content[position] in b"]}"
        if not depth:
            return start, position + 1
    return start, len(content)


def _other_key(content: bytes, chance: random.Random) -> bytes:
    """One text of the file in the place of another, so that keys come twice or are gone."""
    places = [(start, end) for start, end in _places(content[:20_000]) if content[start : start + 1] == b'"']
    if len(places) < 2:
        return content
    (start, end), (first, last) = chance.sample(places, 2)
    return content[:start] + content[first:last] + content[end:]


def _without(content: bytes, chance: random.Random) -> bytes:
    """A stretch is gone."""
    start = chance.randrange(len(content) + 1)
    return content[:start] + content[start + chance.choice((1, 2, 10, 100, 10_000)) :]


def _other_bytes(content: bytes, chance: random.Random) -> bytes:
    """A token more, or a byte flipped."""
    start = chance.randrange(len(content) + 1)
    if chance.random() < 0.5 or start == len(content):
        return content[:start] + chance.choice(_TOKENS) + content[start:]
    return content[:start] + bytes([content[start] ^ (1 << chance.randrange(8))]) + content[start + 1 :]
