"""Decodes MXFP4 of gpt-oss: pairs of e2m1 codes in `X_blocks`, and exponents in `X_scales`, one per 32 codes.

transformers, `integrations/mxfp4.py` (`convert_moe_packed_tensors`): ldexp(value, exponent - 127), low nibble first;
then the last two dimensions are swapped, because the model stores `X` as (experts, in, out).
"""

from __future__ import annotations

from dataclasses import replace

from ramerge.core.formats.encodings.encoding import Decoding, Encoding, block_grid
from ramerge.core.tensors.origins import Transposed

_GROUP, _BYTES = 32, 16


def decode(decoding: Decoding) -> None:
    """Decode gpt-oss's codes and exponents, or note problems."""
    for name, tensor in decoding.encoded_tensors.items():
        if name.endswith("_blocks") and tensor.dtype == "U8":
            own = name.removesuffix("_blocks")
            if len(tensor.shape) != 4 or tensor.shape[-1] != _BYTES:
                decoding.problem(tensor, f"must have four dimensions, the last of {_BYTES}, not {list(tensor.shape)}")
                decoding.hidden_names.add(f"{own}_scales")
                continue
            experts, out, groups, _ = tensor.shape
            shape = (experts, out, groups * _GROUP)
            weights = decoding.put(own, tensor, "E2M1", shape, f"{own}_scales", [block_grid(shape, 1, _GROUP)])
            if weights is not None:
                transposed_shape = (experts, groups * _GROUP, out)
                decoding.tensors[name] = replace(weights, shape=transposed_shape, origin=Transposed(weights))


ENCODING = Encoding("mxfp4", lambda _: "MXFP4", decode)
