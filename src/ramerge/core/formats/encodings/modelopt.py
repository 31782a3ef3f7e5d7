"""Decodes checkpoints of NVIDIA's ModelOpt (`modelopt.torch.export` of nvidia-modelopt).

Tensors are `weight` and `weight_scale`, or, if one tensor holds all experts, `gate_up_proj` and
`gate_up_proj_weight_scale`:

    NVFP4   pairs of e2m1 codes, low nibble first, an e4m3 scale per 16 codes, times the float32 `weight_scale_2`
    MXFP4   the same with an exponent per 32 codes, and no second scale
    FP8     e4m3 codes with float32 scales per tensor, row or block; MXFP8 with an exponent per 32 codes

ModelOpt's recipes mix these with unquantized weights, so the encoding of each tensor is inferred from the tensor.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from ramerge.core.formats.encodings.encoding import FLOAT8, Decoding, Encoding, block_grid, row_grid, whole_grid
from ramerge.core.foundation.text import quoted

# Algorithms with integer weights, or weights divided by scales of their inputs.
_UNSUPPORTED_ALGORITHMS = ("AWQ", "INT4", "INT8", "SQ", "SVDQUANT")
_SMOOTHED = "pre_quant_scale"
_BLOCK = 128


def decode(decoding: Decoding) -> None:
    """Decode ModelOpt's codes and scales, or note problems."""
    algorithm = str(decoding.config.get("quant_algo"))
    smoothed = next((name for name in decoding.encoded_tensors if name.endswith(_SMOOTHED)), None)
    if smoothed or any(part in _UNSUPPORTED_ALGORITHMS for part in algorithm.upper().split("_")):
        why = f"({quoted(smoothed)} and others)" if smoothed else "(integers, or weights smoothed by their inputs)"
        decoding.problems.append(f"config.json: quant_algo {quoted(algorithm)} {why} cannot be merged")
        return
    # modules that ModelOpt's recipe does not quantize
    lists = [part for key in ("ignore", "exclude_modules") if isinstance(part := decoding.config.get(key), list)]
    exclusions = [pattern for part in lists for pattern in part if isinstance(pattern, str) and len(pattern) < 200]
    for name, tensor in decoding.encoded_tensors.items():
        scales = f"{name}_scale" if name.endswith("weight") else f"{name}_weight_scale"
        shape = tensor.shape
        if tensor.dtype in FLOAT8 and not name.endswith("_scale"):
            inverse_scales = f"{name}_scale_inv"
            grids = [whole_grid(shape), row_grid(shape), block_grid(shape, _BLOCK, _BLOCK), block_grid(shape, 1, 32)]
            decoding.put_with_scales(
                name, tensor, inverse_scales if inverse_scales in decoding.encoded_tensors else scales, grids
            )
        elif tensor.dtype == "U8" and scales in decoding.encoded_tensors:
            if not shape:
                decoding.problem(tensor, "must have dimensions")
                continue
            shape = (*shape[:-1], 2 * shape[-1])
            if decoding.encoded_tensors[scales].dtype == "U8":
                decoding.put(name, tensor, "E2M1", shape, scales, [block_grid(shape, 1, 32)])
            else:
                decoding.put(name, tensor, "E2M1", shape, scales, [block_grid(shape, 1, 16)], factor=f"{scales}_2")
        elif tensor.is_float and any(fnmatchcase(name.removesuffix(".weight"), pattern) for pattern in exclusions):
            # left over from a module that was quantized only for calibration
            decoding.hidden_names |= {scales, f"{scales}_2"} & decoding.encoded_tensors.keys()


ENCODING = Encoding("modelopt", lambda config: f"ModelOpt, {config.get('quant_algo', 'quantized')}", decode)
