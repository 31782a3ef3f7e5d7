"""Reads the zip archives of `torch.save`, whose entries are uncompressed, so that they can be read by position.

Python's zipfile is not used, because it accepts archives that torch never writes (bytes before the archive,
compression, duplicate names), may need any amount of memory for the list of entries, and is slow for a folder of
torch.distributed.checkpoint, in which every tensor is an archive.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

from ramerge.core.foundation.errors import AGAIN, CheckpointError, readable, reason
from ramerge.core.foundation.systems import NO_WAIT, PRIVATE, read_at
from ramerge.core.foundation.text import quoted
from ramerge.core.tensors.header import LFS_POINTER

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_EXTRA = struct.Struct("<2H")
_NUMBERS64 = 1  # the kind of the extra field that holds numbers of 64 bits
_IN_64_BITS = 0xFFFFFFFF
_ENCRYPTION_FLAGS = 0x2041
_SIZES_FOLLOW = 8
_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
# enough for 160,000 tensors
_MOST_DIRECTORY_BYTES = 16_000_000
# In a small archive, one read gets both the pickle and the list of entries.
_TAIL = 4096


@dataclass(frozen=True)
class Place:
    """The position of an entry.

    Attributes:
        name: the entry's full name.
        header: position of the entry's local header in the file.
        nbytes: size of the data.
        limit: the position where header and data must have ended.
        checksum: CRC-32 of the data; 0 if the writer did not compute it.
    """

    name: str
    header: int
    nbytes: int
    limit: int
    checksum: int


class Window:
    """Bytes `begin:end` of an open file."""

    def __init__(self, path: Path, descriptor: int, begin: int, end: int) -> None:
        self.path, self.begin, self.end = path, begin, end
        self._descriptor = descriptor

    def part(self, begin: int, nbytes: int) -> Window:
        """Return a part of the window; `begin` is relative to the window."""
        if self.begin + begin + nbytes > self.end:
            raise damage(self.path, f"an item extends to byte {begin + nbytes:,}, beyond its end")
        return Window(self.path, self._descriptor, self.begin + begin, self.begin + begin + nbytes)

    def read(self, position: int, nbytes: int) -> bytes:
        """Read bytes at `position` in the file, which must be within the window."""
        if position < self.begin or position + nbytes > self.end:
            raise damage(self.path, f"{nbytes:,} bytes at {position:,} are outside of it")
        try:
            data = read_at(self._descriptor, nbytes, position)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {reason(error)}") from error
        if len(data) < nbytes:
            raise damage(self.path, f"ends at {position + len(data):,}, but extends to {position + nbytes:,}")
        return data


def damage(path: Path, what: str) -> CheckpointError:
    """Return the error about a damaged file."""
    return CheckpointError(f"{path}: is damaged, or not a torch.save file: {what}; {AGAIN}")


@contextmanager
def window(path: Path) -> Iterator[Window]:
    """Open a file as a window of all its bytes."""
    with readable(path):
        descriptor = os.open(path, os.O_RDONLY | NO_WAIT | PRIVATE)
    try:
        yield Window(path, descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


class Archive:
    """The entries of an archive, by name without the archive's own name, with which all entries begin.

    Raises:
        CheckpointError: the file is not an archive of torch.save, or is damaged; or an entry is compressed, encrypted
            or a duplicate, overlaps another entry, or lies outside of the file.
    """

    def __init__(self, file: Window) -> None:
        self.file = file
        self.entries: dict[str, Place] = {}
        start, directory, count = _read_directory(file)
        items = sorted(_directory_items(file, directory, count), key=itemgetter(1))
        names = sorted(name for name, *_ in items)
        for left, right in pairwise(names):
            if left == right:
                raise damage(file.path, f"holds two entries {quoted(left)}")
        ends = [position for _, position, *_ in items[1:]] + [start]
        root = items[0][0].partition("/")[0] + "/" if items else ""
        # here, entries are checked against each other; local headers are checked when an entry is used
        for (name, position, nbytes, checksum), limit in zip(items, ends, strict=True):
            if position + _LOCAL.size + len(name) + nbytes > limit or position < file.begin:
                raise damage(file.path, f"the entry {quoted(name)} overlaps what follows it")
            if not name.startswith(root):
                raise damage(file.path, f"the entry {quoted(name)} is not in the folder {quoted(root)} of the others")
            self.entries[name[len(root) :]] = Place(name, position, nbytes, limit, checksum)

    def read(self, name: str, most: int) -> bytes | None:
        """Read the data of an entry, which may have at most `most` bytes; None if there is no such entry."""
        place = self.entries.get(name)
        if place is None:
            return None
        if place.nbytes > most:
            raise CheckpointError(
                f"{self.file.path}: the entry {quoted(name)} has {place.nbytes:,} bytes; at most {most:,} are read"
            )
        return self.file.read(self.locate(place), place.nbytes)

    def locate(self, place: Place) -> int:
        """Return the position of an entry's data in the file, after checking the local header."""
        header = self.file.read(place.header, _LOCAL.size + len(place.name.encode()))
        sign, _, flags, method, _, _, _, packed_size, unpacked, n, e = _LOCAL.unpack_from(header)
        position = place.header + _LOCAL.size + n + e
        sizes = {packed_size, unpacked} - {_IN_64_BITS}
        if flags & _SIZES_FOLLOW:
            sizes -= {0}
        if (
            sign != b"PK\3\4"
            or method
            or flags & _ENCRYPTION_FLAGS
            or header[_LOCAL.size : _LOCAL.size + n] != place.name.encode()
            or not sizes <= {place.nbytes}
            or position + place.nbytes > place.limit
        ):
            raise damage(
                self.file.path, f"the header of its entry {quoted(place.name)} contradicts its list of entries"
            )
        return int(position)


def _read_directory(file: Window) -> tuple[int, bytes, int]:
    tail = file.read(max(file.begin, file.end - _TAIL), min(_TAIL, file.end - file.begin))
    if len(tail) < _END.size or not (end := tail[-_END.size :]).startswith(b"PK\5\6"):
        raise _archive_error(file)
    _, disk, first_disk, here, count, nbytes, start, comment = _END.unpack(end)
    after = file.end - _END.size
    locator = tail[-_END.size - _LOCATOR.size : -_END.size]
    if locator.startswith(b"PK\6\7") and len(locator) == _LOCATOR.size:
        _, disk, position, _ = _LOCATOR.unpack(locator)
        after = file.begin + position
        sign, _, _, _, disk, first_disk, here, count, nbytes, start = _END64.unpack(file.read(after, _END64.size))
        if sign != b"PK\6\6":
            raise damage(file.path, "its end is not where it says")
    start += file.begin
    if disk or first_disk or here != count or comment or start + nbytes != after:
        raise damage(file.path, "its list of entries does not end where the archive does")
    if nbytes > _MOST_DIRECTORY_BYTES:
        raise CheckpointError(
            f"{file.path}: its list of entries has {nbytes:,} bytes; no model needs more than {_MOST_DIRECTORY_BYTES:,}"
        )
    inside = start - (file.end - len(tail))
    directory = tail[inside : inside + nbytes] if inside >= 0 else file.read(start, nbytes)
    return start, directory, count


def _directory_items(file: Window, directory: bytes, count: int) -> Iterator[tuple[str, int, int, int]]:
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(directory):
            raise damage(file.path, "its list of entries is cut off")
        sign, _, _, flags, method, _, _, checksum, packed_size, unpacked, n, e, c, disk, _, _, position = (
            _CENTRAL.unpack_from(directory, at)
        )
        at += _CENTRAL.size
        try:
            name = directory[at : at + n].decode()
        except UnicodeDecodeError:
            raise damage(file.path, "the name of an entry is not UTF-8") from None
        if _IN_64_BITS in (packed_size, unpacked, position):
            unpacked, packed_size, position = _zip64_numbers(
                directory[at + n : at + n + e], unpacked, packed_size, position
            )
        at += n + e + c
        if sign != b"PK\1\2" or at > len(directory) or disk or packed_size < 0:
            raise damage(file.path, f"its list of entries is damaged at {quoted(name)}")
        if method or flags & _ENCRYPTION_FLAGS or packed_size != unpacked:
            raise CheckpointError(
                f"{file.path}: the entry {quoted(name)} is compressed or encrypted, which torch.save does not do; "
                "save it again with torch.save"
            )
        yield name, file.begin + position, packed_size, checksum
    if at != len(directory):
        raise damage(file.path, "its list of entries holds more than it says")


def _zip64_numbers(extra: bytes, *numbers: int) -> tuple[int, ...]:
    """Return the numbers, taking those beyond 32 bits from the extra fields; -1 if they are missing there."""
    while len(extra) >= _EXTRA.size:
        kind, nbytes = _EXTRA.unpack_from(extra)
        field, extra = extra[_EXTRA.size : _EXTRA.size + nbytes], extra[_EXTRA.size + nbytes :]
        if kind == _NUMBERS64:
            values = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
            return tuple(next(values, -1) if number == _IN_64_BITS else number for number in numbers)
    return (-1,) * len(numbers)


def _archive_error(file: Window) -> CheckpointError:
    head = file.read(file.begin, min(len(LFS_POINTER), file.end - file.begin))
    if head == LFS_POINTER:
        return CheckpointError(f"{file.path}: is a Git LFS pointer, not the weights; get them with `git lfs pull`")
    if head.startswith(_LEGACY):
        return CheckpointError(
            f"{file.path}: is written in the format of torch before 1.6, which is not read; write it again: "
            'python -c "import sys, torch; torch.save(torch.load(sys.argv[1], weights_only=True), sys.argv[1])" '
            f"{file.path}"
        )
    if head.startswith(b"PK"):
        return CheckpointError(f"{file.path}: truncated: the end of the archive is missing; {AGAIN}")
    return CheckpointError(f"{file.path}: is not a file of torch.save")
