"""Decodes compressed-tensors (https://github.com/vllm-project/compressed-tensors) with floating-point codes.

`float-quantized`, `naive-quantized`, `mxfp8-quantized`: float8 `weight`, and `weight_scale` per tensor, channel, group
or block. `nvfp4-pack-quantized`: pairs of e2m1 codes in `weight_packed`, low nibble first, an e4m3 scale per 16 codes,
and a `weight_global_scale` by which the scales are divided. `mxfp4-pack-quantized`: the same with an exponent per 32
codes. The tensors show which modules are quantized; only sizes of groups are taken from the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ramerge.core.formats.encodings.encoding import FLOAT8, Config, Decoding, Encoding, block_grid, row_grid, whole_grid
from ramerge.core.foundation.text import quoted
from ramerge.core.kernels.dequantize import Grid
from ramerge.core.tensors.tensor import Tensor

_FORMATS = (
    "dense",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
)
_PACKED_SUFFIX = ".weight_packed"


def decode(decoding: Decoding) -> None:
    """Decode the codes and scales of compressed-tensors, or note problems."""
    config = decoding.config
    decoding.problems += [f"config.json: {text}" for text in _refusals(config)]
    if decoding.problems:
        return
    schemes = list(_weight_schemes(config))
    for name, tensor in decoding.encoded_tensors.items():
        if tensor.dtype in FLOAT8 and not name.endswith("_scale"):
            grids = dict.fromkeys(grid for scheme in schemes for grid in _grids(tensor.shape, scheme))
            decoding.put_with_scales(name, tensor, f"{name}_scale", list(grids))
        elif name.endswith(_PACKED_SUFFIX) and tensor.dtype == "U8":
            _decode_packed_weights(decoding, name.removesuffix("_packed"), tensor, schemes)
        else:
            continue
        own = name.removesuffix("_packed")
        for suffix in ("_zero_point", "_g_idx"):
            if f"{own}{suffix}" in decoding.encoded_tensors:
                decoding.problem(tensor, f"has {quoted(own + suffix)}; only symmetric weights are supported")


def _decode_packed_weights(decoding: Decoding, own: str, tensor: Tensor, schemes: Sequence[Config]) -> None:
    if not tensor.shape:
        decoding.problem(tensor, "must have dimensions")
        return
    shape = (*tensor.shape[:-1], 2 * tensor.shape[-1])
    has_global = f"{own}_global_scale" in decoding.encoded_tensors
    sizes = [size for scheme in schemes if (size := _size(scheme.get("group_size")))]
    grids = [block_grid(shape, 1, size) for size in (*sizes, 16 if has_global else 32)]
    scales = decoding.encoded_tensors.get(f"{own}_scale")
    has_divisor = has_global or (scales is not None and scales.dtype == "F8_E4M3")
    divisor = f"{own}_global_scale" if has_divisor else None
    decoding.put(own, tensor, "E2M1", shape, f"{own}_scale", grids, divisor=divisor)


def _grids(shape: tuple[int, ...], scheme: Config) -> Iterator[Grid]:
    strategy, structure, size = scheme.get("strategy"), scheme.get("block_structure"), _size(scheme.get("group_size"))
    if strategy == "tensor":
        yield whole_grid(shape)
    elif strategy == "channel":
        yield row_grid(shape)
    elif strategy in ("group", "tensor_group") and size:
        yield block_grid(shape, 1, size)
    elif strategy == "block" and isinstance(structure, list) and len(structure) == 2 and all(map(_size, structure)):
        yield block_grid(shape, *structure)


def _size(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _weight_schemes(config: Config) -> Iterator[Config]:
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            yield weights


def _refusals(config: Config) -> Iterator[str]:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        yield "config_groups must say how weights are quantized"
        return
    formats = [group.get("format") for group in groups.values() if isinstance(group, Mapping)]
    for format in (config.get("format"), *formats):
        if format is not None and format not in _FORMATS:
            yield f"weights in the format {quoted(format)} cannot be merged; known are {', '.join(_FORMATS)}"
    for scheme in _weight_schemes(config):
        kind, bits = scheme.get("type"), scheme.get("num_bits")
        if kind != "float" or bits not in (4, 8):
            yield f"weights of type {quoted(kind)} with {quoted(bits)} bits cannot be merged, only floats of 8 and 4"
        if scheme.get("symmetric") is False:
            yield "weights with zero points (symmetric: false) cannot be merged"
    if config.get("transform_config"):
        yield "transform_config: weights that are rotated cannot be merged"
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format") not in (None, "dense"):
        yield f"sparsity_config: weights in the format {quoted(sparsity['format'])} cannot be merged"


def _title(config: Config) -> str:
    descriptions = [
        f"{scheme.get('num_bits')} bits, scales of a {scheme.get('strategy')}" for scheme in _weight_schemes(config)
    ]
    return f"compressed-tensors, {'; '.join(dict.fromkeys(map(str, descriptions)))}"


ENCODING = Encoding("compressed-tensors", _title, decode)
