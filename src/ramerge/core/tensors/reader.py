"""Read blocks of tensors into reused buffers.

Files are read by positioned reads instead of memory maps: if a file shrinks or a disk fails, that raises an error that
names the file, instead of a signal that kills the process. Resident memory is only that of the buffers.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property, lru_cache
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.errors import CheckpointError, reason
from ramerge.core.foundation.files import OpenFile
from ramerge.core.foundation.machine import processors
from ramerge.core.foundation.systems import PRIVATE, read_into
from ramerge.core.storage.location import Location, Remote, is_far
from ramerge.core.storage.storage import Stream, has_changed
from ramerge.core.tensors.access import Identity, identity_of
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.identity import is_another, is_same_elsewhere
from ramerge.core.tensors.tensor import Stored, Tensor

# Many systems let a process open only 1,024 files, including the outputs.
_MOST_OPEN = 128
_MOST_SECONDS = 2
_REQUESTS = 16
# For requests of several pieces of a remote file: the largest gap between pieces in bytes, the largest request in
# bytes, and the number of responses that are kept.
_GAP = 1 << 20
_AHEAD = 4 << 20
_ANSWERS = 2

AHEAD_BYTES = _ANSWERS * _AHEAD
"""The bytes that a reader holds of each remote file from which it reads small pieces (`Origin.ahead`)."""

MOST_KEPT = 600
KEPT_BYTES = 6_000
"""The most objects that a reader keeps for origins (`Reader.kept`), and the size of each in bytes."""


def threads_for(files: Iterable[Location]) -> int:
    """The number of threads that keeps processors and storage busy: one more than processors, because reads wait.

    More for remote files: requests take so long that many must be in flight, and waiting threads cost little.
    """
    remote = any(is_far(path) for path in files)
    return max(processors() + 1, _REQUESTS if remote else 0)


class Wanted(NamedTuple):
    """An array (uint8, contiguous) to fill with the bytes of a file, starting at byte `position`.

    If there is a `stream`, these are its next bytes.
    """

    path: Location
    position: int
    out: NDArray[np.uint8]
    stream: Stream | None = None


class Span(NamedTuple):
    """Elements `start:stop` of several tensors, which are read together."""

    tensors: Sequence[Tensor]
    start: int
    stop: int


class _Extent(NamedTuple):
    path: Remote
    begin: int
    end: int


class _AheadExtents:
    """Extents of a remote file, each of which is requested as a whole when its first piece is needed."""

    def __init__(self, extents: Iterable[_Extent]) -> None:
        self._extents = list(extents)
        self._answers: OrderedDict[_Extent, NDArray[np.uint8]] = OrderedDict()

    def give(self, position: int, out: NDArray[np.uint8]) -> bool:
        for extent in self._extents:
            if extent.begin <= position and position + out.size <= extent.end:
                if extent not in self._answers:
                    while len(self._answers) >= _ANSWERS:
                        self._answers.popitem(last=False)
                    answer = np.empty(extent.end - extent.begin, np.uint8)
                    extent.path.storage.fill(extent.path.key, extent.begin, answer)
                    self._answers[extent] = answer
                self._answers.move_to_end(extent)
                start = position - extent.begin
                out[:] = self._answers[extent][start : start + out.size]
                return True
        return False


class Files:
    """Reads bytes of files, in any thread. Threads share open files, and few files are open at a time.

    When it is pickled for another machine, it opens the same files there. It compares each file by `is_same_elsewhere`
    when it is first opened, and then by its identity on that machine.

    Args:
        identities: the expected identities of files. Other files are not checked.
    """

    def __init__(self, identities: Mapping[Location, Identity] = MappingProxyType({})) -> None:
        self._identities = dict(identities)
        self._unseen: set[Location] = set()  # files not yet opened on this machine
        self._open_file = lru_cache(_MOST_OPEN)(self._open_or_evict)
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Files, (self._identities,), {"_unseen": set(self._identities)}

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files, while no thread is reading. Later reads open them again."""
        if "_request_pool" in vars(self):
            vars(self).pop("_request_pool").shutdown()
        self._open_file.cache_clear()

    def fill(self, path: Location, position: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with the bytes of a file, starting at byte `position`.

        Raises:
            CheckpointError: the file ends early, cannot be read, or has changed.
        """
        if isinstance(path, Remote):
            path.storage.fill(path.key, position, out)
            return
        try:
            with self._opening:  # so that each file is opened only once
                file = self._open_file(path)
            view = out.data
            while view:
                nbytes = read_into(file.descriptor, [view], position)
                if nbytes == 0:
                    raise CheckpointError(has_changed(path))
                view, position = view[nbytes:], position + nbytes
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from error

    def fill_all(self, ranges: Sequence[Wanted]) -> None:
        """Fill several arrays. Remote data is requested concurrently, with a limit on the requests of all threads.

        Raises:
            CheckpointError: as for `fill`.
        """
        remote = [each for each in ranges if is_far(each.path)]
        requests = [self._request_pool.submit(self._fill_range, each) for each in remote[1:]]
        try:
            for each in (*remote[:1], *(each for each in ranges if not is_far(each.path))):
                self._fill_range(each)
        finally:
            wait(requests)  # they write into the arrays until they are done
        for request in requests:
            request.result()

    def _fill_range(self, range_of_file: Wanted) -> None:
        if range_of_file.stream is not None:
            range_of_file.stream.fill(range_of_file.out)
        else:
            self.fill(range_of_file.path, range_of_file.position, range_of_file.out)

    @cached_property
    def _request_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_REQUESTS, thread_name_prefix="ramerge-request")

    def _open_or_evict(self, path: Path) -> OpenFile:
        """Open a file. If the process has too many open files, close others as soon as no thread reads them."""
        deadline = monotonic() + _MOST_SECONDS
        while True:
            try:
                file = OpenFile(os.open(path, os.O_RDONLY | PRIVATE))
                break
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or monotonic() > deadline:
                    raise
            self._open_file.cache_clear()
            sleep(0.01)
        identity = identity_of(file.descriptor)
        planned_identity = self._identities.get(path, identity)
        if path in self._unseen:
            if not is_same_elsewhere(identity, planned_identity):
                raise CheckpointError(is_another(path, identity, planned_identity))
            self._unseen.remove(path)
            self._identities[path] = identity
        elif identity != planned_identity:
            raise CheckpointError(has_changed(path))
        return file


def _remote_extent(tensor: Tensor, start: int, stop: int) -> _Extent | None:
    """The extent of elements `start:stop` in a remote file; None if they are local or computed."""
    origin, width = tensor.origin, itemsize(tensor.dtype)
    if not isinstance(origin, Stored) or not is_far(origin.path):
        return None
    return _Extent(origin.path, origin.offset + start * width, origin.offset + stop * width)


def _join_extents(extents: Iterable[_Extent]) -> Iterator[_Extent]:
    """Join sorted extents of a file if the gap between them is small, and split long ones."""
    extent_before: _Extent | None = None
    for extent in extents:
        if (
            extent_before is not None
            and extent.begin <= extent_before.end + _GAP
            and extent.end - extent_before.begin <= _AHEAD
        ):
            extent_before = extent_before._replace(end=max(extent_before.end, extent.end))
            continue
        yield from _split_extent(extent_before)
        extent_before = extent
    yield from _split_extent(extent_before)


def _split_extent(extent: _Extent | None) -> Iterator[_Extent]:
    if extent is not None:
        for begin in range(extent.begin, extent.end, _AHEAD):
            yield extent._replace(begin=begin, end=min(begin + _AHEAD, extent.end))


class Reader:
    """Reads blocks of tensors, in one thread.

    Attributes:
        files: the open files, which threads may share.
        arena: memory for blocks, and for reading them.
        kept: objects that origins keep between blocks, oldest first: at most `MOST_KEPT`, of a few kilobytes each.
    """

    def __init__(self, files: Files, arena: Arena | None = None) -> None:
        self.files = files
        self.arena: Arena = arena or Arena()
        self._start = self._stop = 0
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        self._digests: dict[tuple[int, int, int], bytes] = {}
        self.kept: dict[tuple[int, ...], Any] = {}
        self._streams: dict[tuple[int, int], Stream] = {}
        self._ahead: dict[Location, _AheadExtents] = {}

    def expect(self, spans: Iterable[Span]) -> None:
        """Announce the next blocks, so that consecutive blocks of a remote file become one request."""
        self._streams = {}
        ends: dict[tuple[Remote, int], Stream] = {}
        pieces: dict[Remote, list[_Extent]] = {}
        for tensors, start, stop in spans:
            for tensor in {id(tensor): tensor for tensor in tensors}.values():
                for piece in tensor.origin.ahead(tensor, start, stop):
                    if is_far(piece.path):
                        end = piece.offset + piece.nbytes
                        pieces.setdefault(piece.path, []).append(_Extent(piece.path, piece.offset, end))
                if (extent := _remote_extent(tensor, start, stop)) is None:
                    continue
                path, begin, end = extent
                stream = ends.pop((path, begin), None) or Stream(path.storage, path.key, begin, begin)
                stream.stop = end
                ends[path, end] = self._streams[id(tensor), start] = stream
        self._ahead = {path: _AheadExtents(_join_extents(sorted(extents))) for path, extents in pieces.items()}

    def fill(self, path: Location, position: int, out: NDArray[np.uint8]) -> None:
        """Like `Files.fill`, but uses the response to a request for several pieces, if `expect` has announced them.

        Raises:
            CheckpointError: as for `Files.fill`.
        """
        if path not in self._ahead or not self._ahead[path].give(position, out):
            self.files.fill(path, position, out)

    def begin(self, start: int, stop: int) -> None:
        """Free all blocks, and begin with blocks of elements `start:stop`."""
        self.arena.clear()
        self._start, self._stop, self._blocks, self._digests = start, stop, {}, {}

    def blocks(self, tensors: Sequence[Tensor]) -> list[NDArray[np.uint8]]:
        """The current blocks of several tensors, as from `block`; remote blocks are requested together.

        Raises:
            CheckpointError: as for `block`.
        """
        arrays: dict[int, NDArray[np.uint8]] = {}
        ranges = []
        for tensor in tensors:
            key, extent = id(tensor), _remote_extent(tensor, self._start, self._stop)
            if extent is not None and key not in {*self._blocks, *arrays}:
                arrays[key] = self._padded_buffer(tensor)
                stream = self._streams.pop((key, self._start), None)
                if stream is not None and not stream.gives(extent.begin, extent.end):
                    stream = None
                ranges.append(Wanted(extent.path, extent.begin, arrays[key][: self._block_bytes(tensor)], stream))
        self.files.fill_all(ranges)
        self._blocks |= arrays
        return list(map(self.block, tensors))

    def block(self, tensor: Tensor) -> NDArray[np.uint8]:
        """The current block of a tensor, uint8, padded with zeros to a multiple of 4 bytes; read once until `begin`.

        Raises:
            CheckpointError: a file ends early, cannot be read, or has changed.
        """
        if id(tensor) not in self._blocks:
            part = self._padded_buffer(tensor)
            with self.arena.scratch():
                tensor.origin.read(self, tensor, self._start, self._stop, part[: self._block_bytes(tensor)])
            self._blocks[id(tensor)] = part
        return self._blocks[id(tensor)]

    def _block_bytes(self, tensor: Tensor) -> int:
        return (self._stop - self._start) * itemsize(tensor.dtype)

    def _padded_buffer(self, tensor: Tensor) -> NDArray[np.uint8]:
        """Memory for the block of a tensor, padded with zeros to a multiple of 4 bytes."""
        size = self._block_bytes(tensor)
        part = self.arena.take(size + -size % 4)
        part[size:] = 0
        return part

    def read(self, tensor: Tensor, start: int, stop: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` (uint8, contiguous) with elements `start:stop`; copies them if they are in the current block.

        Raises:
            CheckpointError: a file ends early, cannot be read, or has changed.
        """
        data = self.lent(tensor, start, stop, out)
        if data is not out:
            out[:] = data

    def lent(self, tensor: Tensor, start: int, stop: int, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Like `read`, but return a view of the current block if it has the elements, otherwise `out`."""
        if self.holds(tensor, start, stop):
            width = itemsize(tensor.dtype)
            return self._blocks[id(tensor)][(start - self._start) * width : (stop - self._start) * width]
        with self.arena.scratch():
            tensor.origin.read(self, tensor, start, stop, out)
        return out

    def holds(self, tensor: Tensor, start: int, stop: int) -> bool:
        """Whether the current block of a tensor is in memory and has elements `start:stop`."""
        return id(tensor) in self._blocks and self._start <= start and stop <= self._stop

    def digest(self, tensor: Tensor, start: int, stop: int, data: NDArray[np.uint8]) -> bytes:
        """The xxh3-128 digest of elements `start:stop` of a tensor, which are `data`; computed once until `begin`."""
        key = id(tensor), start, stop
        if key not in self._digests:
            self._digests[key] = xxhash.xxh3_128_digest(data.data)
        return self._digests[key]
