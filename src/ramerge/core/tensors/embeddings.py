"""Input and output embeddings: their names, and whether they are tied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.tensor import Tensor
from ramerge.core.tensors.text_config import map_text, text_configs

HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "embed_in.weight",
)
_HEADS_OF = {"tok_embeddings.weight": "output.weight", "embed_in.weight": "embed_out.weight"}
# Classes of transformers with output embeddings. These are tied unless config.json says otherwise.
_WITH_HEAD = re.compile(r"\w+(?:ForCausalLM|LMHeadModel|ForConditionalGeneration)")


def is_tied(config: Mapping[str, object]) -> bool:
    """Whether `config.json` says that input and output embeddings are one tensor."""
    return any(part.get("tie_word_embeddings") for part in text_configs(config))


def tied_embedding(checkpoint: Checkpoint) -> Tensor | None:
    """The input embedding that a model also uses as its output embedding; None if its embeddings are not tied."""
    stores_head = any(name.endswith(HEADS) for name in checkpoint.tensors)
    silent = not stores_head and not any("tie_word_embeddings" in part for part in text_configs(checkpoint.config))
    names = checkpoint.config.get("architectures") if silent else None
    has_head = isinstance(names, list) and any(isinstance(name, str) and _WITH_HEAD.fullmatch(name) for name in names)
    if not is_tied(checkpoint.config) and not has_head:
        return None
    return embedding_of(HEADS[0], None, checkpoint.tensors.values())


def head_of(checkpoint: Checkpoint, embedding: Tensor) -> str:
    """The name that the output embedding for an input embedding has, or would have if it were stored."""
    if stored_head := next((name for name in checkpoint.tensors if name.endswith(HEADS)), None):
        return stored_head
    head = next((head for end, head in _HEADS_OF.items() if embedding.name.endswith(end)), HEADS[0])
    return f"language_model.{head}" if embedding.name.startswith("language_model.model.") else head


def untied(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with a separate output embedding, if its embeddings are tied; otherwise the checkpoint itself."""
    embedding = tied_embedding(checkpoint)
    if embedding is None:
        return checkpoint
    head = head_of(checkpoint, embedding)
    tensors = {**checkpoint.tensors, head: replace(embedding, name=head)}
    quantized = checkpoint.quantized and replace(checkpoint.quantized, shards={})
    config = dict(checkpoint.config)
    untie(config)
    return replace(checkpoint, tensors=tensors, shards={}, quantized=quantized, config=config, untied=True)


def untie(config: dict[str, object]) -> None:
    """Set `tie_word_embeddings` to false in a configuration, and in the configurations of its text models."""
    config |= map_text(config, lambda part: {**part, "tie_word_embeddings": False})


def embedding_of(head: str, shape: tuple[int, ...] | None, tensors: Iterable[Tensor]) -> Tensor | None:
    """The input embedding to which an output embedding of this name and shape would be tied; None allows any shape."""
    if not head.endswith(HEADS):
        return None
    candidates = [tensor for tensor in tensors if tensor.name.endswith(EMBEDDINGS)]
    return next((tensor for tensor in candidates if shape in (None, tensor.shape)), None)
