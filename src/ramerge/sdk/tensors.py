"""Tensors: name, dtype, shape and the origin of their elements; readers of many of them at once.

>>> from ramerge.sdk.tensors import itemsize
>>> itemsize("BF16")
2
"""

from ramerge.core.foundation.dtypes import (
    BITS,
    FLOATS,
    FROM_FULL_NAME,
    TORCH_NAMES,
    full_dtype,
    full_name,
    itemsize,
    widest,
)
from ramerge.core.tensors.access import Identity, access
from ramerge.core.tensors.arena import Arena, room
from ramerge.core.tensors.checkpoint import Checkpoint, Contents
from ramerge.core.tensors.embeddings import EMBEDDINGS, HEADS, head_of, tied_embedding
from ramerge.core.tensors.header import Header, HeaderEntry, header_bytes, parse_header, read_header
from ramerge.core.tensors.identity import check_unchanged, identify, state_of
from ramerge.core.tensors.lowrank import LowRank
from ramerge.core.tensors.reader import MOST_KEPT, Files, Reader, Span, Wanted, threads_for
from ramerge.core.tensors.tensor import Origin, Stored, Tensor
from ramerge.core.tensors.text_config import text_configs

__all__ = [
    "BITS",
    "EMBEDDINGS",
    "FLOATS",
    "FROM_FULL_NAME",
    "HEADS",
    "MOST_KEPT",
    "TORCH_NAMES",
    "Arena",
    "Checkpoint",
    "Contents",
    "Files",
    "Header",
    "HeaderEntry",
    "Identity",
    "LowRank",
    "Origin",
    "Reader",
    "Span",
    "Stored",
    "Tensor",
    "Wanted",
    "access",
    "check_unchanged",
    "full_dtype",
    "full_name",
    "head_of",
    "header_bytes",
    "identify",
    "itemsize",
    "parse_header",
    "read_header",
    "room",
    "state_of",
    "text_configs",
    "threads_for",
    "tied_embedding",
    "widest",
]
