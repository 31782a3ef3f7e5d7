"""Element types by their names in safetensors, transformers and recipes."""

from __future__ import annotations

from collections.abc import Iterable

# safetensors' names and the bits of one element. Sub-byte types are listed so that headers with them can be checked.
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
FROM_FULL_NAME = {name: dtype for dtype, name in FULL_NAMES.items()}


def itemsize(dtype: str) -> int:
    """Bytes of one element of a type of whole bytes."""
    return BITS[dtype] // 8


def widest(dtypes: Iterable[str]) -> str:
    """The narrowest floating-point type that holds all values of all of these; bfloat16 and float16 need float32."""
    found = set(dtypes)
    if len(found) == 1:
        return found.pop()
    return "F64" if "F64" in found else "F32"


def full_name(dtype: str) -> str:
    """`bfloat16` for BF16 and so on; other types keep safetensors' name."""
    return FULL_NAMES.get(dtype, dtype)
