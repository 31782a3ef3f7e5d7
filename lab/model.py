"""A small Llama as plain functions over a dictionary of weights, whose names are those of Hugging Face checkpoints.

One thread and few operations a token: for models of this size the overhead of a framework would be most of the time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch.nn import functional

from lab.tasks import EOS, IDS, PAD, VOCABULARY
from ramerge.core.foundation.files import write_file
from ramerge.demo.tasks import Example

WIDTH, LAYERS, HEADS, INNER = 64, 2, 4, 192
HEAD = WIDTH // HEADS
LONGEST = 20
_EPS = 1e-6
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(VOCABULARY),
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": LONGEST,
    "tie_word_embeddings": True,
    "rms_norm_eps": _EPS,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": None,
}

Weights = dict[str, torch.Tensor]

_EMBEDDING, _POSITIONS, _NORM = "model.embed_tokens.weight", "model.embed_positions.weight", "model.norm.weight"


def fresh(seed: int) -> Weights:
    """Weights of a model that was not trained."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (len(VOCABULARY), WIDTH), _POSITIONS: (LONGEST, WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"}
        shapes[f"{at}.mlp.up_proj.weight"] = (INNER, WIDTH)
        shapes[f"{at}.mlp.down_proj.weight"] = (WIDTH, INNER)
    weights = {name: torch.randn(shape, generator=generator) / math.sqrt(WIDTH) for name, shape in shapes.items()}
    for name in (_EMBEDDING, _POSITIONS):
        weights[name] *= 0.5
    norms = [f"model.layers.{layer}.{name}_layernorm.weight" for layer in range(LAYERS) for name in _NORMS]
    return weights | {name: torch.ones(WIDTH) for name in (*norms, _NORM)}


_NORMS = ("input", "post_attention")
Cache = list[tuple[torch.Tensor, torch.Tensor]]


def logits(weights: Mapping[str, torch.Tensor], ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
    """Logits of shape (rows, columns, vocabulary) for token ids of shape (rows, columns), all positions in use.

    Args:
        weights: float32, by their names.
        ids: the tokens, after those that `cache` has seen.
        cache: keys and values of earlier tokens, which is extended; empty for the first.
    """
    rows, columns = ids.shape
    start = cache[0][0].shape[2] if cache else 0
    x = weights[_EMBEDDING][ids] + weights[_POSITIONS][start : start + columns]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        h = functional.rms_norm(x, (WIDTH,), weights[f"{at}.input_layernorm.weight"], _EPS)
        qkv = torch.cat([weights[f"{at}.self_attn.{name}_proj.weight"] for name in "qkv"])
        q, k, v = functional.linear(h, qkv).view(rows, columns, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if layer < len(cache):
                k, v = torch.cat([cache[layer][0], k], 2), torch.cat([cache[layer][1], v], 2)
                cache[layer] = k, v
            else:
                cache.append((k, v))
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=columns > 1)
        attention = attention.transpose(1, 2).reshape(rows, columns, WIDTH)
        x = x + functional.linear(attention, weights[f"{at}.self_attn.o_proj.weight"])
        h = functional.rms_norm(x, (WIDTH,), weights[f"{at}.post_attention_layernorm.weight"], _EPS)
        inner = functional.relu(functional.linear(h, weights[f"{at}.mlp.up_proj.weight"]))
        x = x + functional.linear(inner, weights[f"{at}.mlp.down_proj.weight"])
    return functional.linear(functional.rms_norm(x, (WIDTH,), weights[_NORM], _EPS), weights[_EMBEDDING])


# --- Text and tokens. ---


def token_ids(texts: Sequence[str]) -> torch.Tensor:
    """Token ids of texts of one length."""
    return torch.tensor([[IDS[character] for character in text] for text in texts])


def targets(answers: Sequence[str]) -> torch.Tensor:
    """Token ids of answers, each with its end, filled up on the right."""
    width = max(map(len, answers)) + 1
    rows = [[*(IDS[character] for character in answer), EOS] for answer in answers]
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


class Questions:
    """Prompts of one task with their answers, as tokens."""

    def __init__(self, examples: Sequence[Example]) -> None:
        """Encode them once."""
        self.prompts = token_ids([example.prompt for example in examples])
        self.answers = targets([example.answer for example in examples])

    def right(self, weights: Mapping[str, torch.Tensor], batch: int = 250) -> torch.Tensor:
        """Which prompts are answered exactly by greedy decoding, as booleans.

        Greedy decoding gives the answer if and only if each of its tokens is the likeliest after those before it. So
        one pass over prompt and answer tells, without decoding.
        """
        whole = torch.cat([self.prompts, self.answers], 1)
        first = self.prompts.shape[1] - 1
        with torch.inference_mode():
            predictions = [logits(weights, part[:, :-1])[:, first:].argmax(-1) for part in whole.split(batch)]
        return ((torch.cat(predictions) == self.answers) | (self.answers == PAD)).all(1)


def sample(
    weights: Mapping[str, torch.Tensor], prompts: torch.Tensor, length: int, generator: torch.Generator
) -> torch.Tensor:
    """Completions of `length` tokens, drawn from the model's own distribution; what follows an end is padding."""
    cache: Cache = []
    tokens, ends = prompts, torch.zeros(len(prompts), 1, dtype=torch.bool)
    pieces = []
    for _ in range(length):
        with torch.no_grad():
            probabilities = logits(weights, tokens, cache)[:, -1].softmax(-1)
        tokens = torch.multinomial(probabilities, 1, generator=generator)
        pieces.append(tokens.masked_fill(ends, PAD))
        ends = ends | (tokens == EOS)
    return torch.cat(pieces, 1)


# --- Checkpoints. ---


def write_model(folder: Path, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
    """A checkpoint that transformers and ramerge read. The file of weights appears last, and completely."""
    write_file(folder / "config.json", json.dumps(CONFIG | {"torch_dtype": str(dtype)[6:]}, indent=2) + "\n")
    tensors = {name: weight.detach().to(dtype).contiguous() for name, weight in weights.items()}
    write_file(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))


def read_model(folder: Path) -> Weights:
    """A checkpoint's weights, widened to float32."""
    content: dict[str, Any] = load((folder / "model.safetensors").read_bytes())
    return {name: weight.float() for name, weight in content.items()}
