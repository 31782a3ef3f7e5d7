"""Quantized weights by their references' formulas, in NumPy, written to be obvious."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import write_checkpoint
from tests.reference import Stored

FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}


def expanded(scales: NDArray, shape: tuple[int, ...], block: tuple[int, int]) -> NDArray:
    """Every scale repeated over its block of a stack of matrices, and cut to the tensor."""
    rows, columns = shape[-2:]
    wide = np.repeat(np.repeat(scales, block[0], -2), block[1], -1)
    return wide[..., :rows, :columns].reshape(shape)


def dequantized(
    codes: str,
    code_bytes: NDArray[np.uint8],
    scales: NDArray,
    shape: tuple[int, ...],
    block: tuple[int, int],
    divisor: float = 1.0,
) -> NDArray[np.float32]:
    """Codes times scales in float32; two codes of 4 bits in a byte, the low one first."""
    if codes == "E2M1":
        nibbles = np.stack([code_bytes & 15, code_bytes >> 4], -1).reshape(-1)[: int(np.prod(shape))]
        values = FLOAT4[nibbles].reshape(shape)
    else:
        values = code_bytes.view(_FLOAT8[codes]).astype(np.float32).reshape(shape)
    allowed = scales.astype(np.float32)
    least = allowed >= 0 if scales.dtype == ml_dtypes.float8_e4m3fn else allowed > 0
    allowed = np.where(least & np.isfinite(allowed), allowed, np.float32(np.nan))
    return values * expanded(allowed / np.float32(divisor), shape, block)


def quantized(codes: str, scales: str, values: NDArray, block: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray]:
    """Codes (uint8, the tensor's shape) and scales (of a stack of grids) as tools/convert_hf_to_fp8.py of slime makes
    them, in float32: the largest magnitude of each block, filled up with zeros, over the largest code."""
    kind = _FLOAT8[codes]
    largest = np.float32(ml_dtypes.finfo(kind).max)
    rows, columns = values.shape[-2:]
    stack = values.astype(np.float32).reshape(-1, rows, columns)
    down, across = -(-rows // block[0]), -(-columns // block[1])
    padded = np.zeros((len(stack), down * block[0], across * block[1]), np.float32)
    padded[:, :rows, :columns] = stack
    peaks = np.abs(padded).reshape(len(stack), down, block[0], across, block[1]).max((2, 4))
    wanted = np.maximum(peaks, np.float32(1e-12)) / largest
    if scales == "BF16":
        stored = wanted.astype(ml_dtypes.bfloat16)
    elif scales == "F8_E8M0":
        stored = np.exp2(np.ceil(np.log2(wanted.astype(np.float64)))).astype(ml_dtypes.float8_e8m0fnu)
    else:
        stored = wanted
    over = stack / expanded(stored.astype(np.float32), stack.shape, block)
    made = np.clip(over, -largest, largest).astype(kind).view(np.uint8)
    lead = values.shape[:-2]
    return made.reshape(values.shape), stored.reshape(*lead, down, across)


# --- models ----------------------------------------------------------------------------------------------------------

Bits = NDArray[np.uint8]


@dataclass(frozen=True)
class Sample:
    """A way to quantize a model.

    Attributes:
        config: what `config.json` says about it.
        make: of a name and float32 numbers: the stored tensors, and the numbers that they say.
    """

    config: Mapping[str, object]
    make: Callable[[str, NDArray], tuple[dict[str, Stored], NDArray]]


def _float8(
    block: Callable[[tuple[int, ...]], tuple[int, int]],
    scales: str = "F32",
    codes: str = "F8_E4M3",
    suffix: str = "_scale_inv",
    shape: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda shape: shape,
    written: str = "",
) -> Callable[[str, NDArray], tuple[dict[str, Stored], NDArray]]:
    def make(name: str, values: NDArray) -> tuple[dict[str, Stored], NDArray]:
        size = block(values.shape)
        made, scale = quantized(codes, scales, values, size)
        numbers = dequantized(codes, made.reshape(-1), scale, values.shape, size)
        bits = scale.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[scale.itemsize]).reshape(shape(scale.shape))
        return {name: Stored(codes, made), name + suffix: Stored(written or scales, bits)}, numbers

    return make


def _float4(group: int, *, is_global: bool, turned: bool = False) -> Callable[..., tuple[dict[str, Stored], NDArray]]:
    """Pairs of codes; scales of groups of 16 in e4m3 with a global scale, or exponents of groups of 32."""

    def make(name: str, values: NDArray) -> tuple[dict[str, Stored], NDArray]:
        rows = np.swapaxes(values, -1, -2) if turned else values
        groups = rows.reshape(*rows.shape[:-1], -1, group)
        peaks = np.abs(groups).max(-1)
        if is_global:
            by = np.float32(448 * 6 / np.abs(values).max())
            scale = (peaks / 6 * by).astype(ml_dtypes.float8_e4m3fn)
            real = scale.astype(np.float32) / by
        else:
            by = np.float32(1)
            scale = np.exp2(np.floor(np.log2(peaks)) - 2).astype(ml_dtypes.float8_e8m0fnu)
            real = scale.astype(np.float32)
        over = groups / real[..., None]
        nibbles = np.abs(over[..., None] - FLOAT4).argmin(-1).astype(np.uint8).reshape(rows.shape)
        pairs = (nibbles[..., ::2] | nibbles[..., 1::2] << 4).astype(np.uint8)
        numbers = dequantized("E2M1", pairs.reshape(-1), scale, rows.shape, (1, group), float(by))
        bits = scale.view(np.uint8)
        if turned:
            stored = {
                f"{name}_blocks": Stored("U8", pairs.reshape(*rows.shape[:-1], -1, group // 2)),
                f"{name}_scales": Stored("U8", bits),
            }
            return stored, np.ascontiguousarray(np.swapaxes(numbers, -1, -2))
        stored = {
            f"{name}_packed": Stored("U8", pairs),
            f"{name}_scale": Stored("F8_E4M3" if is_global else "U8", bits),
        }
        if is_global:
            stored[f"{name}_global_scale"] = Stored("F32", np.array([by], np.float32).view(np.uint32))
        return stored, numbers

    return make


def _modelopt(name: str, values: NDArray) -> tuple[dict[str, Stored], NDArray]:
    """NVFP4 of ModelOpt: scales of groups of 16 in e4m3, times a second scale; of a stack, one for each matrix."""
    matrices = values.reshape(-1, *values.shape[-2:])
    groups = matrices.reshape(*matrices.shape[:-1], -1, 16)
    second = (np.abs(matrices).max((1, 2)) / np.float32(448 * 6)).astype(np.float32)
    scale = (np.abs(groups).max(-1) / 6 / second[:, None, None]).astype(ml_dtypes.float8_e4m3fn)
    real = scale.astype(np.float32) * second[:, None, None]
    nibbles = np.abs((groups / real[..., None])[..., None] - FLOAT4).argmin(-1).astype(np.uint8)
    numbers = (FLOAT4[nibbles] * real[..., None]).reshape(values.shape)
    flat = nibbles.reshape(values.shape)
    first = name if name.endswith("weight") else f"{name}_weight"
    lead = values.shape[:-2]
    stored = {
        name: Stored("U8", (flat[..., ::2] | flat[..., 1::2] << 4).astype(np.uint8)),
        f"{first}_scale": Stored("F8_E4M3", scale.view(np.uint8).reshape(*values.shape[:-1], -1)),
        f"{first}_scale_2": Stored("F32", second.view(np.uint32).reshape(lead)),
        f"{first.removesuffix('weight')}input_scale": Stored("F32", np.array(1, np.uint32)),
    }
    return stored, numbers


def _compressed(strategy: str, format: str = "float-quantized", bits: int = 8, **more: object) -> dict[str, object]:
    """A configuration as compressed-tensors writes it."""
    weights = {"num_bits": bits, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False, **more}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ["lm_head"]}


SAMPLES = {
    "fp8 blocks": Sample({"quant_method": "fp8", "weight_block_size": [16, 16]}, _float8(lambda _: (16, 16))),
    "fp8 blocks, exponents": Sample(
        {"quant_method": "fp8", "weight_block_size": [16, 16], "scale_fmt": "ue8m0"},
        _float8(lambda _: (16, 16), "F8_E8M0"),
    ),
    "fp8 blocks, exponents as bytes": Sample(
        {"quant_method": "fp8", "weight_block_size": [16, 16], "scale_fmt": "ue8m0"},
        _float8(lambda _: (16, 16), "F8_E8M0", written="U8"),
    ),
    "fp8 tensors": Sample({"quant_method": "fp8"}, _float8(lambda shape: shape[-2:], shape=lambda shape: shape[2:])),
    "compressed channels": Sample(
        _compressed("channel"), _float8(lambda shape: (1, shape[-1]), "BF16", suffix="_scale")
    ),
    "compressed groups": Sample(_compressed("group", group_size=8), _float8(lambda _: (1, 8), "BF16", suffix="_scale")),
    "compressed blocks": Sample(
        _compressed("block", block_structure=[16, 8]), _float8(lambda _: (16, 8), suffix="_scale")
    ),
    "compressed tensors": Sample(
        _compressed("tensor"), _float8(lambda shape: shape[-2:], suffix="_scale", shape=lambda _: (1,))
    ),
    "fbgemm rows": Sample({"quant_method": "fbgemm_fp8"}, _float8(lambda shape: (1, shape[-1]), suffix="_scale")),
    "modelopt nvfp4": Sample({"quant_method": "modelopt", "quant_algo": "NVFP4"}, _modelopt),
    "modelopt fp8": Sample(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
        _float8(lambda shape: shape[-2:], suffix="_scale", shape=lambda shape: shape[:-2]),
    ),
    "nvfp4": Sample(_compressed("tensor_group", "nvfp4-pack-quantized", 4, group_size=16), _float4(16, is_global=True)),
    "mxfp4": Sample(_compressed("group", "mxfp4-pack-quantized", 4, group_size=32), _float4(32, is_global=False)),
    "gpt-oss": Sample({"quant_method": "mxfp4"}, _float4(32, is_global=False, turned=True)),
}


def quantize_model(sample: str, tensors: Mapping[str, Stored]) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """The stored tensors of a model, and its expansion in float32. Tensors with fewer than two dimensions stay."""
    stored: dict[str, Stored] = {}
    numbers: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        if tensor.bits.ndim < 2 or "norm" in name or "lm_head" in name:
            stored[name] = numbers[name] = tensor
            continue
        made, values = SAMPLES[sample].make(name, tensor.numbers(np.float32))
        stored |= made
        numbers[name] = Stored("F32", np.ascontiguousarray(values, np.float32).view(np.uint32))
    return stored, numbers


def write_quantized(folder: Path, sample: str, tensors: Mapping[str, Stored], **more: Any) -> Path:
    """A checkpoint of a model that is quantized by the formulas above."""
    config = {"model_type": "test", "torch_dtype": "bfloat16", "quantization_config": SAMPLES[sample].config}
    return write_checkpoint(folder, quantize_model(sample, tensors)[0], config=config | more.pop("config", {}), **more)
