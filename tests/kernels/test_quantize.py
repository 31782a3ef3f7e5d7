"""Quantizing next to NumPy, ml_dtypes and torch: the same codes and scales."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from ramerge.core.kernels.dequantize import SCALES, Grid, dequantize
from ramerge.core.kernels.quantize import CODES, quantize
from tests.formats.quantized import quantized

pytestmark = pytest.mark.full  # torch

_FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
_SHAPES = [
    ((576, 192), (128, 128)),
    ((7, 33), (7, 33)),
    ((9, 300), (1, 300)),
    ((3, 50, 40), (16, 16)),
    ((5, 96), (1, 32)),
]


@pytest.mark.parametrize("codes", list(CODES))
def test_numbers_round_to_nearest_even_code(codes: str) -> None:
    every = np.sort(np.arange(256, dtype=np.uint8).view(_FLOAT8[codes]).astype(np.float32))
    every = every[np.isfinite(every)]
    middle = (every[:-1] + every[1:]) / 2
    values = np.concatenate([every, middle, np.nextafter(middle, np.float32(9)), np.nextafter(middle, np.float32(-9))])
    values = np.concatenate([values, -values, [-0.0, 1e-40, -1e-40]]).astype(np.float32)
    made = np.empty(values.size, np.uint8)
    scales = np.empty(4, np.uint8)
    grid = Grid(1, values.size, 1, values.size)
    quantize(codes, "F32", values, values + 1, made, scales, grid, 0, made, scales)
    assert scales.view(np.float32)[0] == 1
    assert np.array_equal(made, values.astype(_FLOAT8[codes]).view(np.uint8))
    kind = torch.float8_e4m3fn if codes == "F8_E4M3" else torch.float8_e5m2
    assert np.array_equal(made, torch.from_numpy(values).to(kind).view(torch.uint8).numpy())


@pytest.mark.parametrize(("codes", "scales"), [("F8_E4M3", "F32"), ("F8_E4M3", "BF16"), ("F8_E4M3", "F8_E8M0")])
def test_codes_and_scales_are_the_references(codes: str, scales: str) -> None:
    rng = np.random.default_rng(0)
    for shape, block in _SHAPES:
        values = rng.normal(0, 0.02, shape).astype(np.float32)
        values[..., : block[0], : block[1]] = 0
        wanted_codes, wanted_scales = quantized(codes, scales, values, block)
        grid = Grid(*shape[-2:], *block)
        made = np.empty(values.size, np.uint8)
        made_scales = np.empty(wanted_scales.size * SCALES[scales].itemsize, np.uint8)
        flat = values.reshape(-1)
        quantize(codes, scales, flat, flat + 1, made, made_scales, grid, 0, made, made_scales)
        assert np.array_equal(made_scales, np.ascontiguousarray(wanted_scales).reshape(-1).view(np.uint8))
        assert np.array_equal(made, wanted_codes.reshape(-1))
        # rows of blocks by themselves, the last of a matrix with fewer rows
        if len(shape) == 2:
            width = grid.across * SCALES[scales].itemsize
            for top in range(0, shape[0], block[0]):
                rows = slice(top * shape[1], min(top + block[0], shape[0]) * shape[1])
                first, last = grid.scales_of(rows.start, rows.stop)
                one, scale = np.full(rows.stop - rows.start, 99, np.uint8), np.empty(width, np.uint8)
                part = flat[rows].copy()
                quantize(codes, scales, part, part + 1, one, scale, grid, rows.start, one, scale)
                assert np.array_equal(one, made[rows])
                each = SCALES[scales].itemsize
                assert np.array_equal(scale, made_scales[first * each : last * each])


def test_blocks_that_did_not_change_keep_their_bytes() -> None:
    rng = np.random.default_rng(0)
    shape, block = (300, 200), (128, 128)
    grid = Grid(*shape, *block)
    # scales that no quantizer would choose
    old_codes = rng.integers(0, 0x70, shape, dtype=np.uint8).reshape(-1)
    old_scales = rng.uniform(0.01, 1, grid.down * grid.across).astype(np.float32).view(np.uint8)
    old = np.empty(old_codes.size, np.float32)
    dequantize("F8_E4M3", old_codes, "F32", old_scales, grid, 0, old)
    values = old.copy()
    values.reshape(shape)[130, 5] *= np.float32(1.0001)
    codes, scales = np.empty_like(old_codes), np.empty_like(old_scales)
    quantize("F8_E4M3", "F32", values, old, old_codes, old_scales, grid, 0, codes, scales)
    kept = np.ones(shape, bool)
    kept[128:256, :128] = False
    assert np.array_equal(codes.reshape(shape)[kept], old_codes.reshape(shape)[kept])
    differ = scales.view(np.float32) != old_scales.view(np.float32)
    assert differ.tolist() == [False, False, True, False, False, False]
