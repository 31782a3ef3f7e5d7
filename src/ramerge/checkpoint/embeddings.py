"""Input and output embeddings by name, and which of them are tied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ramerge.checkpoint.tensor import Tensor

HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "embed_in.weight",
)


def embedding_of(head: str, shape: tuple[int, ...] | None, tensors: Iterable[Tensor]) -> Tensor | None:
    """The input embedding that an output embedding of this name and shape (any, if None) would be tied to."""
    if not head.endswith(HEADS):
        return None
    candidates = [tensor for tensor in tensors if tensor.name.endswith(EMBEDDINGS)]
    return next((tensor for tensor in candidates if shape in (None, tensor.shape)), None)


def set_vocabulary(config: dict[str, Any], rows: int) -> bool:
    """Set the number of tokens that a configuration states, also of its text model. Return whether anything changed."""
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict) and "vocab_size" in part]
    changed = any(part["vocab_size"] != rows for part in parts)
    for part in parts:
        part["vocab_size"] = rows
    return changed
