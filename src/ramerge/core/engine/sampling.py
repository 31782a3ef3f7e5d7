"""Reads samples of the weights of all models before anything is merged."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.threads import map_in_threads
from ramerge.core.kernels.convert import convert
from ramerge.core.planning.model import TensorPlan
from ramerge.core.storage.location import is_far
from ramerge.core.tensors.embeddings import EMBEDDINGS, HEADS
from ramerge.core.tensors.reader import Files, Reader, threads_for
from ramerge.core.tensors.tensor import Tensor

Values = NDArray[np.float32] | NDArray[np.float64]

PLACES = 32
ELEMENTS = 1 << 13
"""The most elements read at each of 32 places: 262,144 in all, 26 of which moved if one in ten thousand moved."""
ENOUGH = 256
"""The fewest elements for a meaningful correlation."""

# The most pieces of all models together, each about a page of a file, and of one matrix: models have 16 to 64 heads.
_PIECES = 1 << 14
_IN_MATRIX = 64
_GAIN = re.compile(r"(?:norm|ln)[^.]*(?:\.weight)?$|\.(?:weight|gamma)$", re.IGNORECASE)
_GAINS, _FAR_GAINS = 16, 3
# The most temporary memory of a piece that is computed from little more than its own bytes.
_LOCAL_BYTES = 1 << 16


def sampled_blocks(tensors: Sequence[TensorPlan], agents: int) -> Iterator[tuple[TensorPlan, Values]]:
    """Yield tensors and values of all models, shape (N + 1, elements), at random places; the same in every run."""
    draw = Random(0)
    large = [tensor for tensor in tensors if tensor.base.elements >= ENOUGH] or list(tensors)
    places = []
    for index in sorted(draw.sample(range(len(large)), min(PLACES, len(large)))):
        size = min(large[index].base.elements, ELEMENTS)
        places.append((large[index], [draw.randint(0, large[index].base.elements - size)], size))
    for tensor, values in _read_samples(places, agents):
        yield tensor, values[:, 0]


def sampled_pieces(tensors: Sequence[TensorPlan], agents: int) -> Iterator[tuple[TensorPlan, Values]]:
    """Yield matrices with small pieces of all models spread over each matrix, shape (N + 1, pieces, `ENOUGH`).

    Embeddings are left out, because rows of new tokens are often reinitialized; so are matrices whose pieces are
    computed from far more bytes than their own.
    """
    draw = Random(0)
    matrices = [
        tensor
        for tensor in tensors
        if len(tensor.base.shape) > 1 and tensor.base.elements >= ENOUGH
        if not tensor.name.endswith(HEADS + EMBEDDINGS)
        if all(source.tensor.scratch(ENOUGH) <= _LOCAL_BYTES for source in tensor.sources)
    ]
    most = _PIECES // (agents + 1)
    sample = sorted(draw.sample(range(len(matrices)), min(most, len(matrices))))
    stacks = [math.prod(matrices[index].base.shape[:-2]) for index in sample]
    each = max(min(most // max(sum(stacks), 1), _IN_MATRIX), 1)
    places = []
    for index, stack in zip(sample, stacks, strict=True):
        elements = matrices[index].base.elements
        count = max(min(each * stack, elements // ENOUGH, most), 1)
        starts = [draw.randrange(n * elements // count, (n + 1) * elements // count) for n in range(count)]
        places.append((matrices[index], [min(start, elements - ENOUGH) for start in starts], ENOUGH))
    yield from _read_samples(places, agents)


def sampled_gains(tensors: Sequence[TensorPlan], agents: int) -> Iterator[tuple[TensorPlan, Values]]:
    """Yield gains of norms with values of all models, shape (N + 1, elements): one layer for each kind of norm.

    Fewer gains are read of remote models, because each is a request.
    """
    kinds: dict[str, list[TensorPlan]] = {}
    for tensor in tensors:
        if len(tensor.base.shape) == 1 and _GAIN.search(tensor.name):
            kinds.setdefault(re.sub(r"\d+", "0", tensor.name), []).append(tensor)
    sample = [gains[len(gains) // 2] for gains in kinds.values()]
    most = _FAR_GAINS if any(is_far(source.tensor.path) for gain in sample for source in gain.sources) else _GAINS
    places = [(gain, [0], min(gain.base.elements, ELEMENTS)) for gain in sample[:most]]
    for tensor, values in _read_samples(places, agents):
        yield tensor, values[:, 0]


def _read_samples(
    places: Sequence[tuple[TensorPlan, Sequence[int], int]], agents: int
) -> Iterator[tuple[TensorPlan, Values]]:
    def read(reader: Reader, place: tuple[TensorPlan, Sequence[int], int]) -> tuple[TensorPlan, Values]:
        tensor, starts, size = place
        sources = tensor.sources[: agents + 1]  # importances come last
        values = [[read_numbers(each.tensor, reader, start, size) for start in starts] for each in sources]
        return tensor, np.array(values)

    with Files() as files:
        paths = {source.tensor.path for tensor, _, _ in places for source in tensor.sources}
        yield from map_in_threads(threads_for(paths), lambda: Reader(files), read, places)


def read_numbers(tensor: Tensor, reader: Reader, start: int, size: int) -> Values:
    """Read elements `start:start + size` of a tensor as float32, or as float64 if its dtype is F64."""
    raw = np.empty(size * itemsize(tensor.dtype), np.uint8)
    reader.read(tensor, start, start + size, raw)
    return _convert_to_float32(raw, tensor.dtype)


def rounded_values(values: Values, dtype: str) -> Values:
    """Round sampled values to a narrower dtype; returns float32 in the same shape."""
    raw = np.empty(values.size * itemsize(dtype), np.uint8)
    source, words = ("F64", np.uint64) if values.dtype == np.float64 else ("F32", np.uint32)
    convert(source, np.ascontiguousarray(values).reshape(-1).view(words), dtype, raw, values.size)
    return _convert_to_float32(raw, dtype).reshape(values.shape)


def _convert_to_float32(raw: NDArray[np.uint8], dtype: str) -> Values:
    if dtype == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    values = raw.view({"F16": np.float16, "F32": np.float32, "F64": np.float64}[dtype])
    return values.astype(np.float32) if dtype == "F16" else values
