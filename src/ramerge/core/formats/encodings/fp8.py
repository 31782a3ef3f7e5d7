"""Decodes float8 as DeepSeek and Qwen write it: `weight`, and `weight_scale_inv` with a scale per 128 x 128 block.

https://github.com/deepseek-ai/DeepSeek-V3, `inference/kernel.py` (`weight_dequant`): codes times scales, in float32.
Blocks at the lower and right edges may be smaller. Without `weight_block_size`, a tensor or a row has one scale.
"""

from __future__ import annotations

from functools import lru_cache

from ramerge.core.formats.encodings.encoding import FLOAT8, Config, Decoding, Encoding, block_grid, row_grid, whole_grid
from ramerge.core.kernels.dequantize import Grid

_SUFFIXES = ("_scale_inv", "_scale")


def _size_of_blocks(config: Config) -> tuple[int, int] | None:
    """Return rows and columns of a block; None if the configuration states no valid size."""
    size = config.get("weight_block_size")
    if isinstance(size, list) and len(size) == 2 and all(type(extent) is int and extent > 0 for extent in size):
        return size[0], size[1]
    return None


def decode(decoding: Decoding) -> None:
    """Decode DeepSeek's and Qwen's float8 codes and scales, or note problems."""
    size = _size_of_blocks(decoding.config)
    if decoding.config.get("weight_block_size") is not None and size is None:
        decoding.problems.append("config.json: weight_block_size must be two whole numbers above 0")
        return
    for name, tensor in decoding.encoded_tensors.items():
        if tensor.dtype in FLOAT8:
            names = [name + suffix for suffix in _SUFFIXES]
            scales = next((each for each in names if each in decoding.encoded_tensors), names[0])
            decoding.put_with_scales(name, tensor, scales, _grids(tensor.shape, size))
        elif tensor.dtype == "I8" and name.endswith(".weight") and name + "_scale_inv" in decoding.encoded_tensors:
            decoding.problem(tensor, "weights of 4 bits next to float8 (expert_dtype: fp4) are not supported")


@lru_cache(1024)  # a large model has thousands of tensors of each shape
def _grids(shape: tuple[int, ...], size: tuple[int, int] | None) -> tuple[Grid, ...]:
    return *([block_grid(shape, *size)] if size else []), whole_grid(shape), row_grid(shape)


def _title(config: Config) -> str:
    size = _size_of_blocks(config)
    return f"float8, scales of {size[0]} x {size[1]} blocks" if size else "float8"


ENCODING = Encoding("fp8", _title, decode)
