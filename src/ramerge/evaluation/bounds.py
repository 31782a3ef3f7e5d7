"""Bounds on what strangers send: bytes of a body after unpacking, and what its JSON may hold.

A body of a megabyte can unpack to a gigabyte, and each `[],` of three bytes takes seventy as an object of Python. So
both are bounded before anything is parsed.
"""

from __future__ import annotations

import codecs
import sys
import zlib
from asyncio import Semaphore
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from ramerge.foundation.errors import EndpointError
from ramerge.foundation.jsontext import Limits, parse

MOST_BYTES = 8_000_000
"""Of an answer. The longest that a model gives are a tenth of it."""

PACKING = "gzip"
"""The only content encoding that is asked for and read, besides none."""

ANSWER = Limits(size=sys.maxsize, signs=500_000, depth=100, name=sys.maxsize, digits=4300)
"""Of an answer's JSON, whose bytes are bounded before. Python reads and writes no longer numbers."""

RESULT = replace(ANSWER, signs=2_000_000)
"""Of a line of results, of a `model.json` and of the merge record in it."""

DATA = replace(ANSWER, signs=sys.maxsize)
"""Of a file that the user gives, which may hold any number of values."""

_SMALL = 1 << 16
_GZIP = 31


class RefusedError(EndpointError):
    """An answer that is too long, or packed in a way that was not asked for."""


async def read_body(chunks: AsyncIterator[bytes], packing: str, most: int, large: Semaphore) -> bytes:
    """A body, unpacked.

    Args:
        chunks: as they come over the wire.
        packing: the header Content-Encoding.
        most: bytes, packed and unpacked.
        large: taken by bodies above 64 KiB, so that few are in memory at once.

    Raises:
        RefusedError: it has more bytes, or another packing than gzip.
    """
    body, whole = await read_start(chunks, packing, most, large)
    if not whole:
        raise RefusedError(f"the answer has more than {most:,} bytes")
    return body


async def read_start(chunks: AsyncIterator[bytes], packing: str, most: int, large: Semaphore) -> tuple[bytes, bool]:
    """The first bytes of a body, at most `most`, and whether they are all of it; otherwise as `read_body`."""
    body = _Body(_unpacker(packing), most)
    await body.take(chunks, min(_SMALL, most))
    if not body.ended:
        async with large:
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


def read_json(text: bytes, limits: Limits) -> Any:
    """JSON in UTF-8, perhaps behind a byte order mark, with `?` for halves of surrogate pairs.

    Raises:
        ValueError: it is not JSON, or exceeds a limit; the message says which.
    """
    return parse(text.removeprefix(codecs.BOM_UTF8), limits, halves="replace")
