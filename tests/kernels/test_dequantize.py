"""Quantized weights next to NumPy and ml_dtypes: the same bits, for any run of elements."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ramerge.core.kernels.dequantize import CODES, SCALES, Grid, dequantize
from tests.formats.quantized import FLOAT4, dequantized

_FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
_SCALE_TYPES = {
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
}
_SHAPES = [
    ((576, 192), (128, 128)),
    ((130, 5), (128, 128)),
    ((7, 33), (7, 33)),
    ((9, 300), (1, 300)),
    ((5, 96), (1, 32)),
    ((6, 64), (1, 16)),
    ((3, 50, 40), (16, 16)),
    ((2, 3, 24), (1, 8)),
    ((4, 21), (3, 5)),
]


def _same(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """Whether bits are equal; all NaN are alike."""
    both = np.isnan(left) & np.isnan(right)
    return bool(((left.view(np.uint32) == right.view(np.uint32)) | both).all())


def _decode(
    codes: str,
    code_bytes: NDArray,
    scales: str,
    scale_bytes: NDArray,
    grid: Grid,
    start: int,
    stop: int,
    divisor: float,
) -> NDArray:
    """Elements `start:stop`, from as few bytes as that takes."""
    per, width = len(CODES[codes]), SCALES[scales].itemsize
    first, last = grid.scales_of(start, stop)
    out = np.empty(stop - start, np.float32)
    packed = code_bytes[start // per : -(-stop // per)].copy()
    dequantize(
        codes, packed, scales, scale_bytes[first * width : last * width].copy(), grid, start, out, divisor=divisor
    )
    return out


@pytest.mark.full
@pytest.mark.parametrize("codes", list(_FLOAT8))
def test_every_code_of_8_bits_widens_exactly(codes: str) -> None:
    every = np.arange(256, dtype=np.uint8)
    out = np.empty(256, np.float32)
    dequantize(codes, every, "F32", np.ones(1, np.float32).view(np.uint8), Grid(1, 256, 1, 256), 0, out)
    assert _same(out, every.view(_FLOAT8[codes]).astype(np.float32))


def test_every_4_bit_code_and_power_scale() -> None:
    pairs = np.tile(np.arange(256, dtype=np.uint8), 256)
    powers = np.arange(256, dtype=np.uint8)
    out = np.empty(2 * pairs.size, np.float32)
    dequantize("E2M1", pairs, "F8_E8M0", powers, Grid(256, 512, 1, 512), 0, out)
    nibbles = np.stack([pairs & 15, pairs >> 4], -1).reshape(256, 512)
    with np.errstate(over="ignore"):
        expected = FLOAT4[nibbles] * powers.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[:, None]
    assert _same(out, expected.reshape(-1))


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        ("F8_E4M3", "F32"),
        ("F8_E4M3", "BF16"),
        ("F8_E4M3", "F8_E8M0"),
        ("F8_E5M2", "F32"),
        ("E2M1", "F8_E8M0"),
        ("E2M1", "F8_E4M3"),
    ],
)
def test_any_run_of_elements_gives_the_reference_bits(codes: str, scales: str) -> None:
    rng = np.random.default_rng(0)
    for shape, block in _SHAPES:
        size, per = int(np.prod(shape)), len(CODES[codes])
        grid = Grid(*shape[-2:], *block)
        stack = int(np.prod(shape[:-2]))
        code_bytes = rng.integers(0, 256, -(-size // per), dtype=np.uint8)
        scale = np.abs(rng.normal(0.01, 0.02, (stack, grid.down, grid.across))).astype(_SCALE_TYPES[scales])
        divisor = float(np.float32(rng.uniform(100, 3000))) if scales == "F8_E4M3" else 1.0
        expected = dequantized(codes, code_bytes, scale, shape, block, divisor).reshape(-1)
        scale_bytes = np.ascontiguousarray(scale).reshape(-1).view(np.uint8)
        for start, stop in [(0, size), *np.sort(rng.integers(0, size + 1, (20, 2))).tolist()]:
            out = _decode(codes, code_bytes, scales, scale_bytes, grid, start, stop, divisor)
            assert _same(out, expected[start:stop]), (shape, block, start, stop)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 0.0, -0.0])
def test_invalid_scale_makes_elements_nan(bad: float) -> None:
    codes = np.full(12, 0x38, np.uint8)
    scales = np.array([0.5, bad, 0.25], np.float32)
    out = np.empty(12, np.float32)
    dequantize("F8_E4M3", codes, "F32", scales.view(np.uint8), Grid(1, 12, 1, 4), 0, out)
    assert out[:4].tolist() == [0.5] * 4
    assert np.isnan(out[4:8]).all()
    assert out[8:].tolist() == [0.25] * 4


def test_scale_of_tiny_weights_may_be_zero() -> None:
    out = np.empty(32, np.float32)
    dequantize(
        "E2M1", np.full(16, 0x11, np.uint8), "F8_E4M3", np.array([0, 0x38], np.uint8), Grid(1, 32, 1, 16), 0, out
    )
    assert out.tolist() == [0.0] * 16 + [0.5] * 16
