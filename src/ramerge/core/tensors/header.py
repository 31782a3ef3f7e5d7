"""Read headers of safetensors files, which are not trusted, and write headers.

Everything that the safetensors library refuses is refused. Everything that it accepts is accepted, except

- headers that are larger or deeper, or have more entries, than those of any model (`MAX_HEADER_BYTES`, `_LIMITS`),
- sizes that need all 64 bits, because the highest bit is used as the sign,
- duplicate names or keys, and keys other than dtype, shape and data_offsets, because their meaning would be unclear.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from ramerge.core.foundation.dtypes import BITS
from ramerge.core.foundation.errors import AGAIN, CheckpointError, readable
from ramerge.core.foundation.jsontext import JsonLimits, Pairs, parse
from ramerge.core.foundation.text import quoted
from ramerge.core.storage.location import Location

LFS_POINTER = b"version https://git-lfs"
"""The beginning of a Git LFS pointer, a small file that stands for a large one."""

# Enough for 130,000 tensors whose names have a hundred characters. The safetensors library accepts headers of 100 MB,
# for which Python would need gigabytes.
MAX_HEADER_BYTES = 32_000_000
_LIMITS = JsonLimits(size=MAX_HEADER_BYTES, signs=1_700_000, depth=8)
_MOST_PROBLEMS = 100
# Larger headers are not cached.
_MOST_KEPT_BYTES = 256_000
MAX_NUMBER = 2**63 - 1
_KEYS = {"dtype", "shape", "data_offsets"}
_INT = {int}
_FEW = 8


class HeaderEntry(NamedTuple):
    """A tensor in a header: safetensors dtype, shape, and its bytes `begin:end`, counted from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """The entries of a header in the order of their bytes, the file's metadata, and the size of the file."""

    entries: tuple[HeaderEntry, ...]
    metadata: Mapping[str, str]
    file_bytes: int


def read_header(path: Location) -> Header:
    """Read and check the header of a safetensors file.

    Raises:
        CheckpointError: the file cannot be read, or violates the format; lists all problems.
    """
    with readable(path), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        prefix = file.read(8)
        if len(prefix) < 8:
            raise CheckpointError(f"{path}: {size} bytes is too short for a safetensors file; {AGAIN}")
        if prefix == LFS_POINTER[:8] and file.read(len(LFS_POINTER) - 8) == LFS_POINTER[8:]:
            raise CheckpointError(f"{path}: is a Git LFS pointer, not the weights; get them with `git lfs pull`")
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(
                f"{path}: header length {length:,} exceeds the limit of {MAX_HEADER_BYTES:,} bytes; "
                f"this is not a safetensors file, or it is damaged: {AGAIN}"
            )
        if 8 + length > size:
            raise CheckpointError(
                f"{path}: truncated: the header takes {8 + length:,} bytes, but the file has only {size:,}; " + AGAIN
            )
        text = file.read(length)
    return parse_header(path, text, 8 + length, size)


def header_bytes(path: Location) -> bytes:
    """The bytes of a safetensors file before the data of its tensors."""
    header = read_header(path)
    start = header.entries[0].begin if header.entries else header.file_bytes
    with readable(path), path.open("rb") as file:
        return file.read(start)


def parse_header(path: Location, text: bytes, data_start: int, file_bytes: int) -> Header:
    """Parse and check the text of a header.

    Args:
        path: the file, for messages.
        data_start: the byte of the file where the tensors' data begins.
        file_bytes: the size of the file.

    Raises:
        CheckpointError: as for `read_header`.
    """
    parsed = _parse_header if len(text) <= _MOST_KEPT_BYTES else _parse_header.__wrapped__
    try:
        return parsed(text, data_start, file_bytes)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {problem}" for problem in error.messages) from error


@lru_cache(256)  # agents often have the same headers as their base
def _parse_header(text: bytes, data_start: int, file_bytes: int) -> Header:
    document = _load_json(text)
    metadata = document.pop("__metadata__", None)
    problems = []
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        problems.append("__metadata__ must map strings to strings")
    entries = []
    for name, raw in document.items():
        entry = _parse_entry(name, raw, data_start)
        if isinstance(entry, str):
            problems.append(f"tensor {quoted(name)}: {entry}")
        else:
            entries.append(entry)
        if len(problems) == _MOST_PROBLEMS:
            break
    entries.sort(key=attrgetter("begin", "end"))
    if not problems:
        problems = [f"{problem}; {AGAIN}" for problem in _layout_problems(entries, data_start, file_bytes)]
    if problems:
        raise CheckpointError(problems)
    return Header(tuple(entries), metadata or {}, file_bytes)


def _load_json(text: bytes) -> dict[str, Any]:
    duplicates: list[str] = []

    def refuse_repetition(pairs: Pairs) -> None:
        counts = Counter(name for name, _ in pairs)
        duplicates.extend(sorted(name for name, count in counts.items() if count > 1))

    try:
        # -0 as a float, because the safetensors library does not accept it as an integer
        to_integer = (lambda number: -0.0 if number == "-0" else int(number)) if b"-0" in text else int
        document = parse(text, _LIMITS, on_repetition=refuse_repetition, to_integer=to_integer, constants=False)
    except ValueError as error:
        raise CheckpointError(
            f"the header {error}; this is not a safetensors file, or it is damaged: {AGAIN}"
        ) from error
    if not isinstance(document, dict):
        raise CheckpointError(f"the header is a JSON {type(document).__name__}, not an object; {AGAIN}")
    if duplicates:
        raise CheckpointError(f"the header names {quoted(name)} more than once" for name in duplicates)
    return document


def _parse_entry(name: str, raw: object, data_start: int) -> HeaderEntry | str:
    if not isinstance(raw, dict) or raw.keys() != _KEYS:
        return "must have exactly the keys dtype, shape and data_offsets"
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        return f"unknown dtype {quoted(dtype)}"
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return _count_problem(shape, offsets)
    numbers = shape + offsets
    if set(map(type, numbers)) != _INT or min(numbers) < 0:  # fast, because a large model has half a million numbers
        return _count_problem(shape, offsets)
    if max(numbers) > MAX_NUMBER:
        return "a size or an offset overflows 64 bits"
    bits = _size_in_bits(shape, BITS[dtype])
    if bits > 8 * MAX_NUMBER:
        return f"shape {quoted(shape)} overflows 64 bits"
    begin, end = offsets
    if begin > end:
        return f"data_offsets {offsets} end before they begin"
    if bits != 8 * (end - begin):
        return f"{dtype} {quoted(shape)} takes {bits / 8:,.0f} bytes, but data_offsets {offsets} hold {end - begin:,}"
    return HeaderEntry(name, dtype, tuple(shape), data_start + begin, data_start + end)


def _count_problem(shape: object, offsets: object) -> str:
    if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
        return f"shape {quoted(shape)} is not a list of non-negative integers"
    return f"data_offsets {quoted(offsets)} are not two non-negative integers"


def _size_in_bits(shape: Sequence[int], width: int) -> int:
    """The size of a tensor in bits; any number above the limit if it is too large, because huge products take long."""
    if len(shape) <= _FEW:
        return width * math.prod(shape)
    bits = 0 if 0 in shape else width
    for extent in shape:
        if bits > 8 * MAX_NUMBER:
            break
        bits *= extent
    return bits


def _layout_problems(entries: Sequence[HeaderEntry], data_start: int, file_bytes: int) -> list[str]:
    """Problems with the layout: overlaps, gaps, and data that does not end at the file's end.

    Args:
        entries: sorted by position.
    """
    problems = []
    position, before = data_start, None
    for entry in entries:
        if entry.begin < position:
            other = f"tensor {quoted(before.name)}" if before is not None else "the header"
            problems.append(f"tensor {quoted(entry.name)} overlaps {other}")
        elif entry.begin > position:
            problems.append(f"{entry.begin - position:,} bytes before tensor {quoted(entry.name)} belong to no tensor")
        position, before = max(position, entry.end), entry
    if position > file_bytes:
        missing = position - file_bytes
        problems.append(f"truncated: tensors run {missing:,} bytes past the file's end")
    elif position < file_bytes:
        problems.append(f"{file_bytes - position:,} bytes at the end belong to no tensor")
    return problems


def encode_header(entries: Sequence[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a header with its length prefix, padded so that the data starts at a multiple of 8.

    Args:
        entries: (name, dtype, shape, bytes) of each tensor, in the order of the data, which has no gaps.
    """
    document: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for name, dtype, shape, nbytes in entries:
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
