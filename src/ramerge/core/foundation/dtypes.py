"""Names and sizes of dtypes in safetensors, transformers, torch and recipes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Bits of an element, by safetensors' names. Sub-byte types are listed so that headers with them can be checked.
BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
}

FLOATS = {"BF16", "F16", "F32", "F64"}
INTEGERS = {"BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64"}

# names in recipes and in config.json
FULL_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
# codes of quantized weights, for messages
_CODES = {"F8_E4M3": "float8_e4m3", "F8_E5M2": "float8_e5m2", "E2M1": "float4_e2m1"}
FROM_FULL_NAME = {name: dtype for dtype, name in FULL_NAMES.items()}
# Short names of dtypes, as in the flags of training and serving tools.
_SHORT_DTYPES = {
    "bf16": "bfloat16",
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    "like_base": "like base",
}


def itemsize(dtype: str) -> int:
    """Return the bytes of an element, for dtypes of whole bytes."""
    return BITS[dtype] // 8


def widest(dtypes: Iterable[str]) -> str:
    """Return the narrowest floating-point dtype that holds all values of these; bfloat16 and float16 need float32."""
    distinct = set(dtypes)
    if len(distinct) == 1:
        return distinct.pop()
    return "F64" if "F64" in distinct else "F32"


def full_name(dtype: str) -> str:
    """Return a dtype's full name, such as `bfloat16` for BF16; dtypes without one keep safetensors' name."""
    return FULL_NAMES.get(dtype) or _CODES.get(dtype, dtype)


def full_dtype(value: Any) -> Any:
    """Return a dtype's full name: `bfloat16` for `bf16`, `BF16` and `torch.bfloat16`. Other values are not changed."""
    name = value.lower().removeprefix("torch.") if isinstance(value, str) else value
    return _SHORT_DTYPES.get(name, name) if isinstance(name, str) else value


# torch's names
TORCH_NAMES = FULL_NAMES | {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
    "C64": "complex64",
}


def torch_dtypes() -> dict[str, Any]:
    """Return the dtypes of the installed torch by safetensors' names. Imports torch."""
    import torch

    return {dtype: getattr(torch, name) for dtype, name in TORCH_NAMES.items() if hasattr(torch, name)}
