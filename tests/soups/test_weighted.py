"""Weighted means of tensors: the same bits from whole tensors and from chains of changes, whatever the block."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.tensor import Stored, Tensor
from ramerge.core.tensors.weighted import WeightedSum, mean_of
from ramerge.deltas.codec import BLOCK, Encoder
from ramerge.deltas.patched import Patched
from tests.messages import Messages
from tests.reference import BITS, encode
from tests.reference import Stored as Values
from tests.tiers import at_most


class Disk:
    """Arrays in one file."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        path.write_bytes(b"")

    def put(self, data: bytes) -> Stored:
        with self.path.open("ab") as file:
            file.write(data)
        self.size += len(data)
        return Stored(self.path, self.size - len(data), len(data))

    def whole(self, values: Values) -> Tensor:
        return Tensor("w", values.dtype, values.bits.shape, self.put(values.bits.tobytes()))

    def change(self, below: Tensor, old: Values, new: Values, compression: str = "none") -> Tensor:
        """What was changed of a tensor, as a delta stores it."""
        blocks = Encoder(compression).encode_all(old.bits.reshape(-1), new.bits.reshape(-1))
        begin, rows = 0, []
        for block in blocks:
            numbers = block.row.numbers
            numbers[0] = begin
            rows.append(numbers)
            begin += block.row.nbytes
        table = self.put(b"".join(row.tobytes() for row in rows))
        data = self.put(b"".join(bytes(block.payload) for block in blocks))
        return Tensor("w", new.dtype, new.bits.shape, Patched(below, table, data if data.nbytes else None, "base"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return Disk(tmp_path_factory.mktemp("disk") / "file")


def read(tensor: Tensor, start: int, stop: int) -> NDArray:
    """Elements, read with no more memory than the tensor says."""
    out = np.full((stop - start) * itemsize(tensor.dtype), 0xAB, np.uint8)
    with Files() as files:
        reader = Reader(files, Arena(tensor.scratch(stop - start)))
        reader.read(tensor, start, stop, out)
        assert reader.arena.excess_count == 0
    return out.view(np.float32 if tensor.dtype == "F32" else np.float64)


def mean(models: list[Values], weights: list[float]) -> NDArray:
    """The slow and obvious formula, with one rounding after each operation."""
    kind = np.float64 if any(model.dtype == "F64" for model in models) else np.float32
    used = [(model.numbers(kind).reshape(-1), weight) for model, weight in zip(models, weights, strict=True) if weight]
    total = np.zeros(used[0][0].size, kind)
    for place in range(1, len(used)):
        factor = 0.0
        for _, weight in reversed(used[place:]):
            factor += weight
        total = total + kind(factor) * (used[place][0] - used[place - 1][0])
    first = used[0][0]
    return np.where(total == 0, first, first + total)


def run(rng: np.random.Generator, count: int, size: int, dtypes: list[str], moved: float) -> list[Values]:
    values, found = rng.normal(0, 0.02, size), []
    for place in range(count):
        found.append(encode(values.astype(np.float64), dtypes[place % len(dtypes)]))
        values = values + np.where(rng.random(size) < moved, rng.normal(0, 0.01, size), 0)
    return found


DTYPES = st.lists(st.sampled_from(["BF16", "F16", "F32", "F64"]), min_size=1, max_size=3)


@settings(max_examples=at_most(60), deadline=None)
@given(data=st.data())
def test_whole_tensors_of_any_dtypes_and_blocks(disk: Disk, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    count, size = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 300))
    models = run(rng, count, size, data.draw(DTYPES), 0.3)
    draw = rng.normal(size=count) * (rng.random(count) < 0.8)
    draw[-1] += 1 - draw.sum()
    tensor = mean_of("w", [disk.whole(model) for model in models], draw.tolist())
    wanted = mean(models, draw.tolist())
    assert isinstance(tensor.origin, WeightedSum) or sum(draw != 0) == 1
    if not isinstance(tensor.origin, WeightedSum):
        return
    assert read(tensor, 0, size).tobytes() == wanted.tobytes()
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    assert read(tensor, start, stop).tobytes() == wanted[start:stop].tobytes()


@settings(max_examples=at_most(12), deadline=None)
@given(data=st.data())
def test_chain_equals_whole_tensors(disk: Disk, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    size = data.draw(st.sampled_from([1, 1000, BLOCK, BLOCK + 7, 2 * BLOCK + 99]))
    dtype, moved = data.draw(st.sampled_from(["BF16", "F16", "F32", "F64"])), data.draw(st.sampled_from([0, 0.02, 0.7]))
    models = run(rng, data.draw(st.integers(2, 7)), size, [dtype], moved)
    chain = [disk.whole(models[0])]
    for old, new in pairwise(models):
        chain.append(disk.change(chain[-1], old, new, data.draw(st.sampled_from(["none", "zstd"]))))
    weights = [data.draw(st.sampled_from([0.0, 0.25, -0.5])) for _ in models[1:]]
    weights = [1 - sum(weights), *weights] if data.draw(st.booleans()) else [0.0, *weights[:-1], 1 - sum(weights[:-1])]
    tensor, wanted = mean_of("w", chain, weights), mean(models, weights)
    if isinstance(tensor.origin, WeightedSum):
        assert read(tensor, 0, size).tobytes() == wanted.tobytes()
        start = data.draw(st.integers(0, size))
        stop = data.draw(st.integers(start, size))
        assert read(tensor, start, stop).tobytes() == wanted[start:stop].tobytes()


def test_unmoved_elements_keep_every_bit(disk: Disk) -> None:
    odd = Values("F32", np.array([-0.0, 1e-45, 3.4e38, 0.1], np.float32).view(BITS["F32"]))
    tensor = mean_of("w", [disk.whole(odd)] * 3, [0.2, 0.3, 0.5])
    assert read(tensor, 0, 4).tobytes() == odd.bits.tobytes()


def test_a_long_chain_in_constant_memory(disk: Disk) -> None:
    models = run(np.random.default_rng(1), 600, 64, ["BF16"], 0.1)
    chain = [disk.whole(models[0])]
    for old, new in pairwise(models):
        chain.append(disk.change(chain[-1], old, new))
    assert chain[-1].scratch(64) == max(chain[1].scratch(64), chain[-1].scratch(64))
    assert len(list(chain[-1].origin.leaves())) <= 2 * 600
    out = np.empty(128, np.uint8)
    with Files() as files:
        Reader(files, Arena(chain[-1].scratch(64))).read(chain[-1], 0, 64, out)
    assert out.tobytes() == models[-1].bits.tobytes()
    tensor = mean_of("w", chain, [1 / 600] * 600)
    assert read(tensor, 0, 64).tobytes() == mean(models, [1 / 600] * 600).tobytes()


@pytest.mark.parametrize("link", [1, 2, 3])
def test_a_base_that_was_not_meant_is_refused(disk: Disk, link: int, messages: Messages) -> None:
    models = run(np.random.default_rng(2), 4, 100, ["BF16"], 0.1)
    others = run(np.random.default_rng(3), 4, 100, ["BF16"], 0.1)
    chain = [disk.whole(models[0])]
    for place in range(1, 4):
        pair = (others if place == link else models)[place - 1 : place + 1]
        chain.append(disk.change(chain[-1], *pair))
    with messages.raises(CheckpointError):
        read(mean_of("w", chain, [0.25] * 4), 0, 100)
