"""Bounds on what strangers send: bytes of a body after unpacking, nesting of JSON, and the number of its values.

A body of a megabyte can unpack to a gigabyte, and each `[],` of three bytes takes seventy as an object of Python. So
both are bounded before anything is parsed.
"""

from __future__ import annotations

import json
import re
import zlib
from asyncio import Semaphore
from collections.abc import AsyncIterator, Callable
from itertools import accumulate
from typing import Any

from ramerge.foundation.errors import EndpointError
from ramerge.foundation.text import clean

MOST_BYTES = 8_000_000
"""Of an answer. The longest that a model gives are a tenth of it."""

PACKING = "gzip"
"""The only content encoding that is asked for and read, besides none."""

_DEEPEST = 100
_MOST_VALUES = 1_000_000
_SMALL = 1 << 16
_GZIP = 31
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class RefusedError(EndpointError):
    """An answer that is too long, or packed in a way that nobody asked for."""


async def read_body(chunks: AsyncIterator[bytes], packing: str, most: int, places: Semaphore) -> bytes:
    """A body, unpacked.

    Args:
        chunks: as they come over the wire.
        packing: the header Content-Encoding.
        most: bytes, packed and unpacked.
        places: for bodies above 64 KiB, so that few are in memory at once.

    Raises:
        RefusedError: it has more bytes, or another packing than gzip.
    """
    body, whole = await read_start(chunks, packing, most, places)
    if not whole:
        raise RefusedError(f"the answer has more than {most:,} bytes")
    return body


async def read_start(chunks: AsyncIterator[bytes], packing: str, most: int, places: Semaphore) -> tuple[bytes, bool]:
    """The first bytes of a body, at most `most`, and whether they are all of it; otherwise as `read_body`."""
    body = _Body(_unpacker(packing), most)
    await body.take(chunks, min(_SMALL, most))
    if not body.ended:
        async with places:
            await body.take(chunks, most)
    return bytes(body.data[:most]), body.ended and len(body.data) <= most


class _Body:
    """The part of a body that has come."""

    def __init__(self, unpack: Callable[[bytes, int], bytes], most: int) -> None:
        self.data = bytearray()
        self.ended = False
        self._unpack = unpack
        self._most = most
        self._came = 0

    async def take(self, chunks: AsyncIterator[bytes], until: int) -> None:
        """Go on until more than so many bytes are there, packed or unpacked, or the body ends."""
        while max(self._came, len(self.data)) <= until:
            chunk = await anext(chunks, None)
            if chunk is None:
                self.ended = True
                return
            self._came += len(chunk)
            self.data += self._unpack(chunk, self._most + 1 - len(self.data))


def _unpacker(packing: str) -> Callable[[bytes, int], bytes]:
    if packing.strip().lower() in ("", "identity"):
        return lambda chunk, _: chunk
    if packing.strip().lower() != PACKING:
        raise RefusedError(f"the answer is packed with {packing[:40]!r}, and {PACKING} was asked for")
    unpacker = zlib.decompressobj(_GZIP)

    def unpack(chunk: bytes, most: int) -> bytes:
        try:
            return unpacker.decompress(chunk, most)
        except zlib.error as error:
            raise RefusedError(f"the answer says that it is packed with {PACKING}, and is not") from error

    return unpack


def read_json(text: bytes | str, *, of_user: bool = False) -> Any:
    """JSON in UTF-8, nested at most 100 deep, of a million values at most, and with `?` for lone surrogates.

    Args:
        of_user: a file that the user gives, which may hold any number of values and keeps lone surrogates.

    Raises:
        ValueError: it is no JSON, or beyond a bound; says which.
    """
    whole = text.decode("utf-8") if isinstance(text, bytes) else text
    refuse_heavy(whole, None if of_user else _MOST_VALUES)
    try:
        value = json.loads(whole.removeprefix("\ufeff"))
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # Python's limit of digits
        raise ValueError("a number has thousands of digits") from error
    if of_user or not _HALF.search(whole):
        return value
    return json.loads(clean(json.dumps(value, ensure_ascii=False)))


def refuse_heavy(text: str, most_values: int | None = _MOST_VALUES) -> None:
    """Raises `ValueError` where `read_json` would refuse a JSON text for its nesting or its number of values."""
    data = text.encode("utf-8", "surrogatepass")
    # what stands outside strings: pairs of backslashes go first, then quotes that are part of a string
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if most_values is not None and plain.count(b'"') > 2 * most_values:
        raise ValueError(f"it holds more than {most_values:,} strings")
    marks = b"".join(plain.split(b'"')[::2]).translate(None, _NO_MARKS)
    closing = marks.count(b"]") + marks.count(b"}")
    if most_values is not None and len(marks) - closing > most_values:
        raise ValueError(f"it holds more than {most_values:,} values")
    brackets = marks.translate(None, b",")
    if max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0) > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")


_NO_MARKS = bytes(byte for byte in range(256) if byte not in b"[]{},")
