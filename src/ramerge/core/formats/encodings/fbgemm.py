"""Decodes float8 as fbgemm writes it: `weight`, and `weight_scale` with a scale for each row.

transformers, `integrations/fbgemm_fp8.py`: code times scale. The experts of Llama 4 are stored as (experts, in, out),
so their scales belong to columns: `gate_up_proj_scale` has the shape (experts, 1, out), and `down_proj_scale`
(experts, out, 1).
"""

from __future__ import annotations

from ramerge.core.formats.encodings.encoding import FLOAT8, Decoding, Encoding, block_grid, row_grid


def decode(decoding: Decoding) -> None:
    """Decode fbgemm's float8 codes and scales, or note problems."""
    for name, tensor in decoding.encoded_tensors.items():
        if tensor.dtype in FLOAT8:
            shape = tensor.shape
            decoding.put_with_scales(
                name, tensor, f"{name}_scale", [block_grid(shape, 1 << 62, 1) if len(shape) == 3 else row_grid(shape)]
            )


ENCODING = Encoding("fbgemm_fp8", lambda _: "float8, scales of rows", decode)
