"""The format of grail's deltas: folders `checkpoint-1000/DELTA/`.

Written by `grail/trainer/checkpoint_publisher.py` (`upload_delta`) and `grail/infrastructure/sparse_codec.py`, applied
by `grail/infrastructure/delta_checkpoint.py` and `checkpoint_consumer.py` of one-covenant/grail at 54d6342. One zstd
frame holds a header and the positions and new values of each changed tensor, in the order of names. Versions
are windows; a chain begins with a whole model, the anchor. The checksum covers all tensors of the new model, in the
order of names: xxh3-128 of their bytes, or before April 2026 sha256 of names, dtypes, shapes and bytes.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramerge import CheckpointError
from ramerge.core.foundation.dtypes import FROM_FULL_NAME, TORCH_NAMES, itemsize
from ramerge.core.foundation.errors import AGAIN
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.deltas.trainers import digests
from ramerge.deltas.trainers.chain import TrainerLayout, count_of
from ramerge.deltas.trainers.frames import Frame, FrameStream
from ramerge.deltas.trainers.link import Link, LinkPass, misfits
from ramerge.deltas.trainers.sparse import PIECE, Entries, Scatter, check_ascending
from ramerge.deltas.trainers.unpack import format_of
from ramerge.deltas.word_patches import Bytes
from ramerge.sdk.formats import Opening, read_json
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import Files, Tensor, identify
from ramerge.sdk.text import JsonLimits, parse, quoted

_DATA, _ABOUT, _METADATA = "delta_sparse.bin.zst", "delta_metadata.json", "metadata.json"
_VERSIONS = {"sparse_codec_v2": 2, "sparse_codec_v3": 3, "sparse_codec_v3.1": 31}
_INDICES = {"uint8": "<u1", "uint16": "<u2", "int32": "<i4"}
_LIMITS = JsonLimits(size=32_000_000, signs=4_000_000)
_PIECE = 1 << 20


@dataclass(frozen=True)
class _SparseTensor:
    """Changed values of a tensor in the data; offsets count from the start of the frame's content.

    Attributes:
        rows: offset of the row gaps; in version 2, of the gaps of flat positions.
        columns: offset of the column gaps; unused in version 2.
        column_dtype: dtype of the column gaps; empty without columns.
    """

    dtype: str
    shape: tuple[int, ...]
    count: int
    rows: int
    columns: int
    values: int
    row_dtype: str
    column_dtype: str


@dataclass(frozen=True)
class _GrailDelta(Link):
    anchor: int
    frame: Frame
    tensors: Mapping[str, _SparseTensor]
    end: int
    weights: str
    manifest: Mapping[str, str]

    @property
    def root(self) -> int:
        return self.anchor

    def check(self, base: Checkpoint) -> None:
        changes = {name: (sparse.dtype, sparse.shape) for name, sparse in self.tensors.items()}
        if problems := misfits(self.folder, base, changes):
            raise CheckpointError(problems)

    def pass_over(self, base: Checkpoint, files: Files) -> LinkPass:
        return _FramePass(self, files)


class _FramePass(LinkPass):
    def __init__(self, link: _GrailDelta, files: Files) -> None:
        self._link = link
        for name, sha256 in link.manifest.items():  # the sha256 that the publisher noted
            digest, path = hashlib.sha256(), link.folder / name
            size = link.files[path].nbytes
            piece = np.empty(min(_PIECE, size), np.uint8)
            for begin in range(0, size, _PIECE):
                part = piece[: size - begin]
                files.fill(path, begin, part)
                digest.update(part.data)
            if digest.hexdigest() != sha256:
                raise CheckpointError(f"{path}: is damaged: it does not have the sha256 that {_METADATA} says; {AGAIN}")
        self._streams = [link.frame.stream(files) for _ in range(3)]
        self._change: Scatter | None = None
        self._describes_tensors = len(link.weights) == 64
        self._digest = digests.digest("sha256" if self._describes_tensors else "xxh3-128")

    def begin(self, tensor: Tensor) -> bool:
        if self._describes_tensors:
            name = f"torch.{TORCH_NAMES.get(tensor.dtype, tensor.dtype)}"
            fingerprint = f"{tensor.name}{name}{tensor.shape}"
            self._digest.update(fingerprint.encode("utf-8", "surrogatepass"))
        sparse = self._link.tensors.get(tensor.name)
        self._change = _make_scatter(self._link.frame, sparse, self._streams) if sparse else None
        return True

    def change(self, block: Bytes, start: int) -> None:
        if self._change is not None:
            self._change.apply(block, start)
        self._digest.update(block.data)

    def end(self) -> None:
        if self._change is not None:
            self._change.end()

    def finish(self) -> None:
        values = self._streams[-1]
        values.forward(self._link.end)
        values.end()
        if self._digest.hexdigest() != self._link.weights:
            raise CheckpointError(
                f"{self._link.folder}: the resulting model does not have the checksum {self._link.weights}; the delta "
                "is "
                "damaged or belongs to another base, or a zero changed its sign in training (grail does not store "
                "such changes)"
            )


def _make_scatter(frame: Frame, sparse: _SparseTensor, streams: list[FrameStream]) -> Scatter:
    rows, columns, values = streams
    most, width = math.prod(sparse.shape), itemsize(sparse.dtype)

    def entries() -> Entries:
        rows.forward(sparse.rows)
        columns.forward(sparse.columns)
        values.forward(sparse.values)
        places, last = _PositionReader(frame, sparse, rows, columns), -1
        for begin in range(0, sparse.count, PIECE):
            count = min(PIECE, sparse.count - begin)
            positions = places.take(count)
            check_ascending(frame, positions, last, most)
            last = int(positions[-1])
            yield positions, values.take_bytes(count * width)

    return Scatter(entries(), width, lambda: None)


class _PositionReader:
    """Computes flat positions of changed values from stored gaps."""

    def __init__(self, frame: Frame, sparse: _SparseTensor, rows: FrameStream, columns: FrameStream) -> None:
        self._frame, self._sparse = frame, sparse
        self._rows, self._columns = rows, columns
        self._row = self._column = 0

    def take(self, count: int) -> NDArray[np.int64]:
        down = self._rows.take(count, self._sparse.row_dtype)
        rows = self._row + np.cumsum(down)
        self._row = int(rows[-1])
        if not self._sparse.column_dtype:
            return rows
        across = self._columns.take(count, self._sparse.column_dtype)
        if int(down.min()) < 0 or int(across.min()) < 0:
            raise self._frame.wrong("its positions do not ascend")
        sums = np.cumsum(across)
        # columns restart in each row; sums ascend, so the largest one so far is that before the row began
        before = np.maximum.accumulate(np.where(down != 0, sums - across, -1))
        columns = np.where(before < 0, self._column + sums, sums - before)
        self._column = int(columns[-1])
        height, width = self._sparse.shape[0], math.prod(self._sparse.shape[1:])
        if self._row >= height or int(columns.max()) >= width:
            raise self._frame.wrong(
                f"has row {self._row:,} and column {int(columns.max()):,} of {height:,} rows and {width:,} columns"
            )
        return rows * width + columns


def _delta_subfolder(folder: Location) -> str | None:
    return next((name for name in ("", "DELTA") if (folder / name / _ABOUT).is_file()), None)


def read(folder: Path, opening: Opening) -> Link:
    """Read the small files of grail's delta in a folder."""
    opening.check_files(folder, [_METADATA, _ABOUT, _DATA], in_index=False)
    files = identify(folder / name for name in (_METADATA, _ABOUT, _DATA))
    metadata, about = read_json(folder / _METADATA), read_json(folder / _ABOUT)
    version, before, anchor = (
        count_of(metadata, key, folder / _METADATA) for key in ("window", "prev_window", "anchor_window")
    )
    problems = []
    codec = about.get("format")
    if not isinstance(codec, str) or codec not in _VERSIONS:
        problems.append(f"{folder / _ABOUT}: the format {quoted(codec)} is not read; known are {', '.join(_VERSIONS)}")
    if metadata.get("checkpoint_type") != "DELTA":
        problems.append(
            f"{folder / _METADATA}: says that this is no delta, but {metadata.get('checkpoint_type')!r:.100}"
        )
    if (about.get("prev_window"), about.get("anchor_window")) != (before, anchor):
        problems.append(f"{folder}: {_ABOUT} and {_METADATA} disagree about what it builds on")
    weights = metadata.get("weights_hash")
    if not isinstance(weights, str) or not re.fullmatch("[0-9a-f]{32}|[0-9a-f]{64}", weights):
        problems.append(f"{folder / _METADATA}: has no weights_hash, without which no model can be verified")
    hashes = metadata.get("file_manifest", {})
    if not isinstance(hashes, dict):
        problems.append(f"{folder / _METADATA}: file_manifest must map files to checksums")
        hashes = {}
    if problems:
        raise CheckpointError(problems)
    manifest = {name: str(hashes[name]) for name in (_ABOUT, _DATA) if name in hashes}
    frame = Frame(folder / _DATA, 0, files[folder / _DATA].nbytes)
    tensors, end = _read_header(frame, files, _VERSIONS[str(codec)])
    return _GrailDelta(folder, version, before, files, anchor, frame, tensors, end, str(weights), manifest)


def _read_header(
    frame: Frame, files: Mapping[Location, Identity], version: int
) -> tuple[dict[str, _SparseTensor], int]:
    """Read the header at the start of grail's frame; return its tensors, and where the data end."""
    with Files(files) as files_of_frame:
        size = frame.declared_size(files_of_frame)
        stream = frame.stream(files_of_frame)
        length = int(stream.take(1, "<u4")[0])
        if length > _LIMITS.size:
            raise frame.wrong(f"its header has {length:,} bytes, more than any")
        text = stream.take_bytes(length)
    try:
        header = parse(text.tobytes(), _LIMITS, constants=False)
        if not isinstance(header, dict) or header.get("version") != version:
            raise ValueError(f"is not of version {version}, which {_ABOUT} says")
        records = header.get("tensors")
        if not isinstance(records, list):
            raise ValueError("has no list of tensors")
        tensors: dict[str, _SparseTensor] = {}
        end = start = 4 + length
        last = None
        for record in records:
            name, sparse, end = _parse_record(record, version, start, end)
            if last is not None and name <= last:
                raise ValueError(f"has {quoted(name)} after {quoted(last)}; names must ascend")
            tensors[name], last = sparse, name
        if size not in (None, end):
            raise ValueError(f"describes {end:,} bytes, but the file unpacks to {size:,}")
    except ValueError as error:
        raise frame.wrong(f"the header {error}") from error
    return tensors, end


def _parse_record(record: object, version: int, start: int, end: int) -> tuple[str, _SparseTensor, int]:
    """Return a tensor's name in grail's header, its data, and where they end."""
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        raise ValueError("has a tensor without a name")
    name, shape = record["name"], record.get("shape")
    if not isinstance(shape, list) or not shape or not all(map(_is_count, shape)):
        raise ValueError(f"gives {quoted(name)} the shape {quoted(shape)}")
    count, dtype = record.get("num_nonzero"), FROM_FULL_NAME.get(str(record.get("value_dtype")))
    if count is None or not _is_count(count) or count > math.prod(shape):
        raise ValueError(f"says that {quoted(count)} elements of {quoted(name)} have changed, of {math.prod(shape):,}")
    if dtype not in ("BF16", "F16", "F32"):
        raise ValueError(f"gives {quoted(name)} values of {quoted(record.get('value_dtype'))}")
    kinds = [record.get(key, "int32") if version == 31 else "int32" for key in ("row_dtype", "col_dtype")]
    if any(not isinstance(kind, str) or kind not in _INDICES for kind in kinds):
        raise ValueError(f"gives {quoted(name)} positions of {quoted(kinds)}")
    row_dtype, column_dtype = (_INDICES[kind] for kind in kinds)
    if version == 2:
        column_dtype = ""
    rows = count * np.dtype(row_dtype).itemsize
    columns = count * np.dtype(column_dtype).itemsize if column_dtype else 0
    values = count * itemsize(dtype)
    numbers = {
        "indices_offset": end - start,
        "indices_size": rows + columns,
        **({"rows_size": rows, "cols_size": columns} if column_dtype else {}),
        "values_offset": end - start + rows + columns,
        "values_size": values,
    }
    for key, number in numbers.items():
        if record.get(key) != number:
            raise ValueError(f"says {key} {quoted(record.get(key))} of {quoted(name)}, where {number:,} is right")
    sparse = _SparseTensor(dtype, tuple(shape), count, end, end + rows, end + rows + columns, row_dtype, column_dtype)
    return name, sparse, end + rows + columns + values


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def version_of(folder: Location) -> int | None:
    """Return the grail window of a model, from its own metadata or its delta's."""
    for path in (place / _METADATA for place in (folder, folder / "DELTA", folder / "FULL")):
        if path.is_file():
            metadata = read_json(path)
            return count_of(metadata, "window", path) if "window" in metadata else None
    return None


LAYOUT = TrainerLayout(
    "grail", "deltas of grail", re.compile(r"checkpoint-([0-9]{1,15})"), _delta_subfolder, read, version_of
)
FORMAT = format_of(LAYOUT)
