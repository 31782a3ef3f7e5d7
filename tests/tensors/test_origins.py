"""Tensors in pieces, cut and transposed: the same elements whatever block is asked for, in the memory that was said."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramerge.core.tensors import origins
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.origins import (
    Cut,
    Pieces,
    PlacedPiece,
    Transposed,
    box_of,
    is_covered,
    reshaped,
    rows_of,
    stack,
)
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.tensor import Stored, Tensor
from tests.tiers import at_most

KINDS = {"U8": np.uint8, "BF16": np.uint16, "F32": np.uint32, "F64": np.uint64}


class Disk:
    """Arrays in one file, and the tensors that they are."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        path.write_bytes(b"")

    def tensor(self, values: NDArray) -> Tensor:
        dtype = next(name for name, kind in KINDS.items() if kind == values.dtype)
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(values).tobytes())
        self.size += values.nbytes
        return Tensor("x", dtype, values.shape, Stored(self.path, self.size - values.nbytes, values.nbytes))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return Disk(tmp_path_factory.mktemp("disk") / "file")


def read(tensor: Tensor, start: int, stop: int) -> NDArray:
    """Elements of a tensor, read with no more memory than the tensor says."""
    kind = np.dtype(KINDS[tensor.dtype])
    out = np.full((stop - start) * kind.itemsize, 0xAB, np.uint8)
    with Files() as files:
        reader = Reader(files, Arena(tensor.scratch(stop - start)))
        reader.read(tensor, start, stop, out)
        assert reader.arena.excess_count == 0
    return out.view(kind)


def holds(tensor: Tensor, values: NDArray, data: st.DataObject) -> None:
    """Every block that is drawn, and the whole, has the elements of `values`."""
    assert tensor.shape == values.shape
    flat = values.reshape(-1)
    assert (read(tensor, 0, flat.size) == flat).all()
    for _ in range(5):
        start = data.draw(st.integers(0, flat.size))
        stop = data.draw(st.integers(start, flat.size))
        assert (read(tensor, start, stop) == flat[start:stop]).all()


def numbers(data: st.DataObject, shape: tuple[int, ...]) -> NDArray:
    kind = KINDS[data.draw(st.sampled_from(list(KINDS)))]
    return np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, shape).astype(kind)


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


def cuts(data: st.DataObject, extent: int) -> list[int]:
    inner = data.draw(st.lists(st.integers(0, extent), max_size=3))
    return [0, *sorted(inner), extent]


@settings(max_examples=at_most(60))
@given(data=st.data())
def test_pieces_along_one_or_two_dimensions(disk: Disk, data: st.DataObject) -> None:
    values = numbers(data, data.draw(SHAPES))
    dims = data.draw(st.lists(st.integers(0, values.ndim - 1), min_size=1, max_size=2, unique=True))
    boxes = [((0,) * values.ndim, values.shape)]
    for dim in dims:
        ends = cuts(data, values.shape[dim])
        boxes = [
            ((*o[:dim], low, *o[dim + 1 :]), (*s[:dim], high - low, *s[dim + 1 :]))
            for o, s in boxes
            for low, high in pairwise(ends)
        ]
    assert is_covered(values.shape, boxes) is None
    pieces = [
        PlacedPiece(o, disk.tensor(values[tuple(slice(a, a + n) for a, n in zip(o, s, strict=True))])) for o, s in boxes
    ]
    order = data.draw(st.permutations(pieces))
    tensor = Tensor("x", order[0].tensor.dtype, values.shape, Pieces(tuple(order)))
    holds(tensor, values, data)


@settings(max_examples=at_most(60))
@given(data=st.data())
def test_a_cut_of_a_tensor(disk: Disk, data: st.DataObject) -> None:
    values = numbers(data, data.draw(SHAPES))
    box = []
    for dim, extent in enumerate(values.shape):
        whole = dim >= 2 or (values.ndim == 3 and dim == 1 and data.draw(st.booleans()))
        low = 0 if whole else data.draw(st.integers(0, extent - 1))
        box.append(slice(low, extent if whole else data.draw(st.integers(low + 1, extent))))
    part = values[tuple(box)]
    offsets = tuple(side.start for side in box)
    whole_tensor = disk.tensor(values)
    holds(Tensor("x", whole_tensor.dtype, part.shape, Cut(whole_tensor, offsets, part.shape)), part, data)


@settings(max_examples=at_most(60))
@given(data=st.data())
def test_a_transposed_tensor_in_stripes(disk: Disk, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=3).map(tuple))
    values = numbers(data, shape)
    other = disk.tensor(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(origins, "_STRIPE_BYTES", data.draw(st.sampled_from([1, 16, 1 << 19])))
        turned = np.swapaxes(values, -1, -2)
        holds(Tensor("x", other.dtype, turned.shape, Transposed(other)), turned, data)


def test_origins_of_origins(disk: Disk) -> None:
    values = np.arange(60, dtype=np.uint32).reshape(10, 6)
    upper, lower = disk.tensor(values[:4]), disk.tensor(values[4:])
    whole = stack("x", [upper, lower])
    assert whole.shape == (10, 6)
    part = rows_of(whole, 2, 7)
    turned = Tensor("x", "F32", (6, 5), Transposed(part))
    assert (read(turned, 3, 29) == values[2:7].T.reshape(-1)[3:29]).all()
    assert rows_of(whole, 0, 10) is whole


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        ([((0, 0), (2, 3)), ((2, 0), (1, 3))], "lack 3 of 12"),
        ([((0, 0), (3, 3)), ((2, 0), (2, 3))], "overlap"),
        ([((0, 0), (4, 2)), ((0, 1), (4, 2))], "overlap"),
        ([((0, 0), (2, 2)), ((0, 1), (3, 2)), ((3, 0), (1, 3))], "overlap"),
        ([((0, 0), (5, 3))], "outside"),
        ([((-1, 0), (4, 3))], "outside"),
        ([((0,), (12,))], "dimension, the tensor 2"),
        ([], "lack 12 of 12"),
        ([((0, 0), (2, 2)), ((0, 2), (4, 1)), ((2, 0), (2, 2))], "None"),
    ],
)
def test_pieces_that_do_not_make_up_a_tensor(boxes: list, words: str) -> None:
    assert words in str(is_covered((4, 3), boxes))


def test_pieces_without_order_take_no_time() -> None:
    boxes = [((place, place), (1, 1)) for place in range(20_000)]
    assert "in no order" in str(is_covered((20_000, 20_000), boxes))


@given(st.data())
def test_box_reads_the_pieces_holding_it(disk: Disk, data: st.DataObject) -> None:
    layers, rows, columns = (data.draw(st.integers(1, 5)) for _ in range(3))
    values = np.arange(layers * rows * columns, dtype=np.uint32).reshape(layers, rows, columns)
    cuts = sorted(data.draw(st.sets(st.integers(1, rows))) | {0, rows})
    pieces = [
        PlacedPiece((layer, start, 0), disk.tensor(values[layer : layer + 1, start:stop]))
        for layer in range(layers)
        for start, stop in pairwise(cuts)
    ]
    tensor = Tensor("x", "F32", values.shape, Pieces(tuple(pieces)))
    layer, top = data.draw(st.integers(0, layers - 1)), data.draw(st.integers(0, rows - 1))
    bottom = data.draw(st.integers(top + 1, rows))
    one = reshaped(box_of(tensor, (layer, 0, 0), (1, rows, columns)), (rows, columns))
    holds(one, values[layer], data)
    box = box_of(one, (top, 0), (bottom - top, columns))
    holds(box, values[layer, top:bottom], data)
    touched = sum(start < bottom and stop > top for start, stop in pairwise(cuts))
    assert len(list(box.origin.leaves())) == touched
    assert sum(leaf.nbytes for leaf in box.origin.leaves()) == box.nbytes
    holds(reshaped(box, (box.elements,)), values[layer, top:bottom].reshape(-1), data)


@given(st.data())
def test_box_of_strided_and_transposed_tensors(disk: Disk, data: st.DataObject) -> None:
    values = np.arange(35, dtype=np.uint32).reshape(5, 7)
    stored = disk.tensor(values)
    holds(box_of(stored, (1, 2), (3, 4)), values[1:4, 2:6], data)
    turned = Tensor("x", "F32", (7, 5), Transposed(stored))
    holds(box_of(turned, (2, 0), (3, 5)), values.T[2:5], data)
    holds(reshaped(turned, (35,)), values.T.reshape(-1), data)
