"""Turns float32 into 8-bit codes and scales, block by block of a grid: the inverse of `dequantize`.

The scale of a block is max(largest magnitude, 1e-12) / largest code. A code is the number divided by the scale, clipped
to the range of codes and rounded to nearest even, all in float32; tools that write such checkpoints do the same (for
example, `tools/convert_hf_to_fp8.py` of THUDM/slime). A scale with a shorter format is rounded first: to bfloat16, or
up to a power of two, which the model's configuration may also require of other formats (`scale_fmt: ue8m0`).

A block that equals its old codes times their scale bit for bit keeps both: quantizing again would change scales in the
last place.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.dequantize import SCALES, Grid
from ramerge.core.kernels.native import Kernel

# The intrinsic that rounds to a code, and the largest number that has a code.
CODES = {"F8_E4M3": ("to_e4m3", 448.0), "F8_E5M2": ("to_e5m2", 57344.0)}
# Rounding of a scale to its stored format; afterwards `scale` is a reader's value.
STORES = {
    "F32": "scales[at] = scale",
    "BF16": """word = bf16_pack(scale, scale)
                scale = bf16_low(word)
                new_scales[TWO * at] = np.uint8(word & np.uint32(255))
                new_scales[TWO * at + ONE] = np.uint8((word >> np.uint32(8)) & np.uint32(255))""",
    "F8_E8M0": """new_scales[at] = to_e8m0(scale)
                scale = e8m0(new_scales[at])""",
}

# Rounds a scale up to a power of two, whatever its format.
_POWER = "scale = e8m0(to_e8m0(scale))"

_TEXT = """
def {name}(
    values, old, old_codes, old_scales, codes, new_scales, scales, top, rows, columns, block_rows, block_columns
):
    ONE, TWO = np.uint64(1), np.uint64(2)
    LEAST, LARGEST = np.float32(1e-12), np.float32({largest})
    total = np.uint64(values.size) // columns
    row, at = np.uint64(0), np.uint64(0)
    while row < total:
        below = min(row + min(block_rows, rows - (top + row) % rows), total)
        left = np.uint64(0)
        while left < columns:
            width = min(block_columns, columns - left)
            changed, peak = np.uint32(0), np.uint32(0)
            for r in range(row, below):
                first = r * columns + left
                for j in range(width):
                    value = values[first + j]
                    changed = or32(changed, xor32(f32_pack(value), f32_pack(old[first + j])))
                    peak = peak_f32(peak, value)
            if changed == np.uint32(0):
                for byte in range(np.uint64({itemsize})):
                    new_scales[at * np.uint64({itemsize}) + byte] = old_scales[at * np.uint64({itemsize}) + byte]
                for r in range(row, below):
                    first = r * columns + left
                    for j in range(width):
                        codes[first + j] = old_codes[first + j]
            else:
                scale = max(f32_whole(peak), LEAST) / LARGEST
                {power}
                {store}
                for r in range(row, below):
                    first = r * columns + left
                    for j in range(width):
                        value = values[first + j] / scale
                        value = LARGEST if value > LARGEST else value
                        codes[first + j] = {narrow}(-LARGEST if value < -LARGEST else value)
            at += ONE
            left += block_columns
        row = below
    return 0
"""


# New scales of groups of float4 codes, by format. In NVFP4, the second scale stays as it is; in MXFP4, scales are
# powers of two (OCP Microscaling Formats, section 6.3).
GROUPS = {
    "F8_E4M3": "e4m3(to_e4m3(min(largest / np.float32(6) * divisor / factor, np.float32(448)))) * factor / divisor",
    "F8_E8M0": "e8m0(np.uint8(max(np.int64(peak >> np.uint32(23)) - 2, 0)))",
}
_E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # magnitudes of float4, by code
_SURVIVE = """
def {name}(values, old, out, group, columns, factor, divisor):
    size = np.uint64(values.size)
    first = np.uint64(0)
    while first < size:
        end = min(first + min(group, columns - first % columns), size)
        changed, peak = np.uint32(0), np.uint32(0)
        for i in range(first, end):
            changed = or32(changed, xor32(f32_pack(values[i]), f32_pack(old[i])))
            peak = peak_f32(peak, values[i])
        largest = f32_whole(peak)
        scale = {scale}
        for i in range(first, end):
            if changed == np.uint32(0):
                out[i] = old[i]
            else:
                over = abs(values[i]) / scale if scale > np.float32(0) else np.float32(0)
                code = np.float32(6)
                {code}
                out[i] = -code * scale if values[i] < np.float32(0) else code * scale
        first = end
    return 0
"""


@cache
def _survival_kernel(scales: str) -> Kernel:
    name = f"survive_e2m1_{scales.lower()}"
    code = []
    for index in reversed(range(len(_E2M1) - 1)):  # ties go to the number with an even code
        bound, compare = (_E2M1[index] + _E2M1[index + 1]) / 2, "<" if index % 2 else "<="
        code += [f"if over {compare} np.float32({bound:g}):", f"    code = np.float32({_E2M1[index]:g})"]
    text = native.fill(_SURVIVE, name=name, scale=GROUPS[scales], code=code)
    return native.load(name, text, ("f32[]", "f32[]", "f32[]", "u64", "u64", "f32", "f32"), "i64")


def survive(
    scales: str,
    values: NDArray[np.float32],
    old: NDArray[np.float32],
    group: int,
    columns: int,
    out: NDArray[np.float32],
    *,
    factor: float = 1.0,
    divisor: float = 1.0,
) -> None:
    """Write numbers to `out` as they would read after quantization to float4 (e2m1); no codes are stored.

    Args:
        scales: format of the scales of groups: F8_E4M3 (NVFP4) or F8_E8M0 (MXFP4).
        values: 1-D, whole rows of a matrix.
        old: the numbers before the merge, of the same size. A group that equals them bit for bit does not change.
        group: elements of a group.
        columns: columns of the matrix.
        out: float32, of the same size.
        factor: multiplies every scale (the second scale of ModelOpt's NVFP4).
        divisor: divides every scale (the global scale of compressed-tensors' NVFP4).
    """
    if values.size:
        _survival_kernel(scales)(values, old, out, group, columns, factor, divisor)


@cache
def _quantization_kernel(codes: str, scales: str, powers: bool) -> Kernel:
    name = f"quantize_{codes.lower()}_{scales.lower()}{'_powers' if powers else ''}"
    narrow, largest = CODES[codes]

    text = _TEXT.format(
        name=name,
        largest=largest,
        itemsize=SCALES[scales].itemsize,
        power=_POWER if powers else "",
        store=STORES[scales],
        narrow=narrow,
    )
    return native.load(name, text, ("f32[]", "f32[]", *["u8[]"] * 4, "f32[]", *["u64"] * 5), "i64")


def quantize(
    codes: str,
    scales: str,
    values: NDArray[np.float32],
    old: NDArray[np.float32],
    old_codes: NDArray[np.uint8],
    old_scales: NDArray[np.uint8],
    grid: Grid,
    first: int,
    new_codes: NDArray[np.uint8],
    new_scales: NDArray[np.uint8],
    *,
    powers: bool = False,
) -> None:
    """Quantize whole rows of blocks of a tensor.

    Args:
        codes: format of the codes, a key of `CODES`.
        scales: format of the scales: F32, BF16 or F8_E8M0.
        values: 1-D, whole rows of blocks from a stack of matrices.
        old: the numbers that `old_codes` and `old_scales` encode, of the same size.
        old_codes: one code for each number.
        old_scales: the scales of these blocks.
        grid: the layout of the scales.
        first: index of the first element, which begins a row of blocks.
        new_codes: array for the new codes.
        new_scales: array for the new scales.
        powers: whether every new scale is rounded up to a power of two.
    """
    if values.size:
        words = new_scales.view(np.float32) if scales == "F32" else np.empty(0, np.float32)
        kernel = _quantization_kernel(codes, scales, powers)
        kernel(
            values,
            old,
            old_codes,
            old_scales,
            new_codes,
            new_scales,
            words,
            first // grid.columns,
            grid.rows,
            grid.columns,
            grid.block_rows,
            grid.block_columns,
        )
