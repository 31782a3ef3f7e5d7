"""Origins that compute: against float64, in parts of any bounds, in as much memory as they say."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from ramerge.core.formats.safetensors import tensors_of
from ramerge.core.tensors import lowrank
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.lowrank import Factor, LowRank, OtherRows
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.tensor import Tensor
from tests.checkpoints import floats, write_safetensors
from tests.reference import NUMBERS, Stored
from tests.tiers import some

Reals = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def stored(folder: Path, tensors: dict[str, Stored]) -> dict[str, Tensor]:
    write_safetensors(folder / "x.safetensors", tensors)
    return {tensor.name: tensor for tensor in tensors_of(folder / "x.safetensors")}


def read(tensor: Tensor, start: int, stop: int, files: Files) -> Reals:
    """Elements, in exactly the memory that the tensor says."""
    arena, out = Arena(tensor.scratch(stop - start)), np.empty(4 * (stop - start), np.uint8)
    Reader(files, arena).read(tensor, start, stop, out)
    assert not arena.excess_count
    return out.view(np.float32)


def check(tensor: Tensor, wanted: np.ndarray[tuple[int, ...], np.dtype[np.float64]], rng: np.random.Generator) -> None:
    with Files() as files:
        whole = read(tensor, 0, tensor.elements, files)
        np.testing.assert_allclose(whole, wanted.reshape(-1), rtol=2e-6, atol=2e-6)
        for _ in range(15):
            start, stop = np.sort(rng.integers(0, tensor.elements + 1, 2)).tolist()
            if start < stop:
                assert read(tensor, start, stop, files).tobytes() == whole[start:stop].tobytes()


def numbers(tensor: Stored) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return tensor.bits.view(NUMBERS[tensor.dtype]).astype(np.float64)


@pytest.mark.parametrize("panel", some([1, 7, 64, 1 << 19], fast=[7]))
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("magnitudes", ["none", "rows", "columns"])
@pytest.mark.parametrize("transposed", [False, True])
def test_low_rank(
    panel: int, dtype: str, magnitudes: str, transposed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowrank, "_PANEL", panel)
    rng = np.random.default_rng(panel)
    for experts, rows, columns, rank in ((1, 7, 5, 3), (1, 1, 9, 1), (1, 13, 40, 9), (3, 6, 11, 4)):
        if experts > 1 and magnitudes != "none":
            continue
        width, out = (rows, columns) if transposed else (columns, rows)
        count = {"none": 1, "rows": rows, "columns": columns}[magnitudes]
        shapes = {
            "w": (experts, rows, columns),
            "a": (rank * experts, width),
            "b": (out, rank * experts),
            "m": (count,),
        }
        given = {name: floats(rng.normal(0, 0.5, shape), dtype) for name, shape in shapes.items()}
        found = stored(tmp_path, given)
        a = Factor(found["a"], 1, width, rank * width)
        b = Factor(found["b"], rank * experts, experts, 1)
        left, right = (a, b) if transposed else (b, a)
        magnitude = found["m"] if magnitudes != "none" else None
        origin = LowRank(found["w"], left, right, rank, 0.37, magnitude, by_column=magnitudes == "columns")
        products = np.einsum(
            "ore,eri->eoi",
            numbers(given["b"]).reshape(out, rank, experts),
            numbers(given["a"]).reshape(experts, rank, width),
        )
        wanted = numbers(given["w"]) + np.float32(0.37) * (products.swapaxes(1, 2) if transposed else products)
        if magnitudes == "rows":
            wanted *= numbers(given["m"])[:, None] / np.linalg.norm(wanted, axis=-1, keepdims=True)
        if magnitudes == "columns":
            wanted *= numbers(given["m"]) / np.linalg.norm(wanted, axis=-2, keepdims=True)
        tensor = Tensor("w", "F32", found["w"].shape, origin)
        check(tensor, wanted, rng)
        assert pickle.dumps(tensor)  # Ray's nodes get plans of which samples were read


def test_an_addition_to_a_vector(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given = {"bias": floats(rng.normal(size=9)), "more": floats(rng.normal(size=9))}
    found = stored(tmp_path, given)
    origin = LowRank(found["bias"], None, Factor(found["more"], 1, 9), 1, 0.5)
    check(Tensor("bias", "F32", (9,), origin), numbers(given["bias"]) + 0.5 * numbers(given["more"]), rng)


def test_other_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given = {"w": floats(rng.normal(size=(9, 5))), "rows": floats(rng.normal(size=(3, 5)), "F32")}
    found = stored(tmp_path, given)
    wanted = numbers(given["w"])
    wanted[[7, 0, 3]] = numbers(given["rows"])
    origin = OtherRows(found["w"], (0, 3, 7), (1, 2, 0), found["rows"])
    check(Tensor("w", "F32", (9, 5), origin), wanted, rng)


def test_several_on_top_of_each_other(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (6, 8), "a": (2, 8), "b": (6, 2), "c": (3, 8), "d": (6, 3)}
    given = {name: floats(rng.normal(size=shape)) for name, shape in shapes.items()}
    found = stored(tmp_path, given)

    def product(base: Tensor, a: str, b: str, rank: int) -> LowRank:
        return LowRank(base, Factor(found[b], rank, 1), Factor(found[a], 1, 8), rank, 0.5)

    first = Tensor("w", "F32", (6, 8), product(found["w"], "a", "b", 2))
    second = Tensor("w", "F32", (6, 8), product(first, "c", "d", 3))
    a, b, c, d = (numbers(given[name]) for name in "abcd")
    check(second, numbers(given["w"]) + 0.5 * b @ a + 0.5 * d @ c, rng)
