"""`DeltaWriter`: writes the files of a delta tensor by tensor, each block by block, as they arrive."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ramerge.core.formats.sidecars import companions_of
from ramerge.core.foundation.files import write_all
from ramerge.core.output.staging import StagingDir
from ramerge.core.storage.own_files import BLOCK, COMPANIONS, DELTA_INDEX
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.header import header_bytes
from ramerge.deltas.codec import COLUMNS, EncodedBlock, digest, digest_of_blocks, tensor_digest
from ramerge.deltas.format import STORED_FORMATS, sidecar_files, stored_header
from ramerge.deltas.index import (
    BLOCKS,
    CHANGES,
    DATA,
    DATA_FILE,
    FORMAT,
    HEADER,
    PADDING,
    VERSION,
    WHOLE,
    Companion,
    DeltaMetadata,
    DeltaTensor,
    Index,
    TensorKind,
    digest_of_model,
    read_index,
)
from ramerge.sdk.storage import Location

# A file that is as large takes no more tensors.
_FULL = 4 << 30
# The header comes last, into room that was left for it. Tensors that it has no room for are in the next file.
_MOST_ROOM = 1 << 20
# Bytes of a header for a tensor, in addition to its name.
_ENTRY = 110
_FILES = 4096
_PIECE = 1 << 20


class DeltaWriter:
    """Writer of a delta into a staging directory, for one thread.

    Call `changed` or `whole` for each tensor of the agent, in the agent's order, and `base_tensor` for each tensor of
    the base without a call of `changed`; then `header` and `companion` for the agent's files; then `finish`.

    Args:
        names: names of the tensors to come, for the size of headers.
    """

    def __init__(self, staging: StagingDir, names: Iterable[str]) -> None:
        self._staging = staging
        self._files = _DataFiles(staging, sum(2 * (len(json.dumps(name)) + _ENTRY) for name in names) + _FILES)
        self._tensors: dict[str, DeltaTensor] = {}
        self._base: dict[str, tuple[str, Sequence[int], str]] = {}
        self._shards: dict[str, list[str]] = {}
        self._headers: dict[str, str] = {}
        self._companions: dict[str, Companion] = {}

    def __enter__(self) -> DeltaWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def changed(self, name: str, dtype: str, shape: Sequence[int], blocks: Iterable[EncodedBlock]) -> None:
        """Write a tensor that base and agent have in the same dtype and shape, changed or not."""
        rows, size, result = [np.empty((0, COLUMNS), np.uint64)], 0, tensor_digest()
        with self._files.entry(DATA + name, "U8", lambda: [size], optional=True) as append:
            for block in blocks:
                row = block.row.numbers
                row[0] = size
                rows.append(row[None])
                result.update(block.result)
                append(block.payload)
                size += len(block.payload)
            append(bytes(-size % 8))  # so that what follows is aligned
            size += -size % 8
        table = np.concatenate(rows)
        with self._files.entry(BLOCKS + name, "U64", lambda: list(table.shape)) as append:
            append(table.tobytes())
        base = digest_of_blocks(table[:, 6:8])
        moved = int(table[:, 2].sum())
        kind: TensorKind = "changed" if moved else "same"
        self._tensors[name] = DeltaTensor(dtype, tuple(shape), kind, moved, base, result.hexdigest())
        self._base[name] = (dtype, shape, base)

    def whole(self, name: str, dtype: str, shape: Sequence[int], blocks: Iterable[NDArray[np.uint8]]) -> None:
        """Write a tensor that the base lacks, or has in another dtype or shape."""
        found = tensor_digest()
        with self._files.entry(WHOLE + name, dtype, lambda: list(shape)) as append:
            for block in blocks:
                found.update(digest(block))
                append(block.data)
        self._tensors[name] = DeltaTensor(dtype, tuple(shape), "whole", math.prod(shape), "", found.hexdigest())

    def base_tensor(self, name: str, dtype: str, shape: Sequence[int], found: str) -> None:
        """Record a tensor of the base, with its digest; the agent lacks it, or has another tensor with that name."""
        self._base[name] = (dtype, shape, found)

    def header(self, file: str, tensors: Sequence[str], header: bytes) -> None:
        """Record one of the agent's files: its tensors in the order of their bytes, and the bytes before them.

        Without such bytes, any fitting header will do.
        """
        self._shards[file] = list(tensors)
        if header:
            padded = header + bytes(-len(header) % 8)
            with self._files.entry(HEADER + file, "U8", lambda: [len(padded)]) as append:
                append(padded)
            self._headers[file] = digest(padded).hex()

    def companion(self, name: str, source: Location | str, base: Location | None) -> None:
        """Write a sidecar file of the agent, or its text, unless it equals the base's."""
        found = digest(source.encode()).hex() if isinstance(source, str) else digest_of_file(source)
        same = source == base or (base is not None and base.is_file() and digest_of_file(base) == found)
        self._companions[name] = Companion(same, found)
        if same:
            return
        if isinstance(source, str):
            self._staging.write(f"{COMPANIONS}/{name}", source)
        else:
            self._staging.copy(f"{COMPANIONS}/{name}", source)

    @property
    def written(self) -> int:
        return self._files.written

    def finish(self) -> Index:
        """Write the rest of the delta, its index last."""
        weight_map = self._files.finish()
        result = {name: (one.dtype, one.shape, one.result) for name, one in self._tensors.items()}
        metadata = DeltaMetadata(FORMAT, VERSION, BLOCK, digest_of_model(self._base), digest_of_model(result), "")
        dropped = [name for name in self._base if name not in self._tensors]
        shards, headers = self._shards, self._headers
        index = Index(metadata, weight_map, self._tensors, dropped, shards, headers, self._companions)
        self._staging.write(DELTA_INDEX, index.text())
        return index


def digest_of_file(path: Location) -> str:
    """Return xxh3-128 of a file's bytes, in hexadecimal."""
    found = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


class _DataFiles:
    """Safetensors files of a delta. Tensors are appended in order; their sizes become known afterwards."""

    def __init__(self, staging: StagingDir, room: int) -> None:
        self._staging = staging
        self._room = min(room, _MOST_ROOM)
        self._number = 0
        self._descriptor = -1
        self._position = 0
        self._header: dict[str, dict[str, object]] = {}
        self._length = 0
        self._weight_map: dict[str, str] = {}
        self.written = 0

    @property
    def _file_name(self) -> str:
        return DATA_FILE.format(self._number)

    @contextmanager
    def entry(
        self, name: str, dtype: str, shape: Callable[[], Sequence[int]], *, optional: bool = False
    ) -> Iterator[Callable[[Any], None]]:
        """Begin a tensor; yield a function that appends bytes to it. `shape` is called after the last byte."""
        needed = len(json.dumps(name)) + 2 * _ENTRY
        if self._position >= _FULL or self._length + needed > self._room:
            self._end_file()
        if self._descriptor < 0:
            self._number += 1
            self._room = max(self._room, needed)
            self._room += -self._room % 8
            self._descriptor = self._staging.create(self._file_name)
            self._position = 0
            self._header = {"__metadata__": {"format": FORMAT}}
            self._length = len(json.dumps(self._header))
        begin = self._position
        yield self._append_bytes
        if self._position > begin or not optional:
            self._add_entry(name, dtype, shape(), begin)
        if self._position % 8:
            begin = self._position
            self._append_bytes(bytes(-begin % 8))
            self._add_entry(f"{PADDING}{begin}", "U8", [self._position - begin], begin)

    def _append_bytes(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        write_all(self._descriptor, view, 8 + self._room + self._position)
        self._position += view.nbytes

    def _add_entry(self, name: str, dtype: str, shape: Sequence[int], begin: int) -> None:
        self._header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, self._position]}
        self._length += len(json.dumps({name: self._header[name]}))
        if name.startswith(CHANGES):
            self.written += self._position - begin
        self._weight_map[name] = self._file_name

    def _end_file(self) -> None:
        if self._descriptor < 0:
            return
        text = json.dumps(self._header, separators=(",", ":")).encode().ljust(self._room)
        write_all(self._descriptor, memoryview(self._room.to_bytes(8, "little") + text), 0)
        self._staging.finish(self._file_name, self._descriptor, 8 + self._room + self._position)
        self.close()

    def finish(self) -> dict[str, str]:
        self._end_file()
        return self._weight_map

    def close(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def write_headers_and_sidecars(base: Checkpoint, agent: Checkpoint, writer: DeltaWriter) -> None:
    """Write the headers of the agent's files, and its sidecar files that differ from the base's."""
    index = read_index(agent.delta / DELTA_INDEX) if agent.delta is not None else None
    for file, names in agent.shards.items():
        header = b""  # if the agent has no such files
        if index is not None and agent.delta is not None:
            header = stored_header(agent.delta, index, file)
        elif agent.format in STORED_FORMATS:
            header = header_bytes(agent.metadata_folder / file)
        writer.header(file, names, header)
    theirs, ours = (sidecar_files(model) for model in (base, agent))
    for name, content in companions_of(ours, None, vocabulary=agent.vocabulary, apart=agent.untied):
        writer.companion(name, content, theirs.get(name))
