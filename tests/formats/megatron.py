"""Writes models as Megatron's `torch_dist` does, by hand from its source: names, layouts and pieces. Needs torch.

The files are laid out as those that megatron-core 0.16.1 writes: archives of torch.save one after the other, and
`.metadata`. Names and layouts are from `sharded_state_dict` of its modules, for Transformer Engine's layers.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from tests.formats.trainers import Tensors, torch_tensor
from tests.reference import Stored

DENSE = {
    "model_type": "qwen2",
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 11,
}
MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 8,
    "head_dim": 6,
    "moe_intermediate_size": 4,
    "num_experts": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 11,
}


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The names and shapes in transformers' files."""
    hidden, words = config["hidden_size"], config["vocab_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = (config[f"num_{kind}_heads"] * head for kind in ("attention", "key_value"))
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (words, hidden)}
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}"
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{stem}.self_attn.{part}_proj.weight"] = (rows, hidden)
            if config["model_type"] == "qwen2":
                found[f"{stem}.self_attn.{part}_proj.bias"] = (rows,)
        found[f"{stem}.self_attn.o_proj.weight"] = (hidden, queries)
        if config["model_type"].startswith("qwen3"):
            found |= {f"{stem}.self_attn.{part}_norm.weight": (head,) for part in "qk"}
        found |= {f"{stem}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        experts = config.get("num_experts", 0)
        inner = config["moe_intermediate_size" if experts else "intermediate_size"]
        for mlp in [f"{stem}.mlp.experts.{expert}" for expert in range(experts)] or [f"{stem}.mlp"]:
            found |= {f"{mlp}.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
            found[f"{mlp}.down_proj.weight"] = (hidden, inner)
        if experts:
            found[f"{stem}.mlp.gate.weight"] = (experts, hidden)
    return {**found, "model.norm.weight": (hidden,), "lm_head.weight": (words, hidden)}


def model(config: Mapping[str, Any], numbers: NDArray[Any], dtype: str) -> dict[str, Stored]:
    """A model in transformers' layout, of as many of the given bits as it needs."""
    found, start = {}, 0
    for name, shape in shapes(config).items():
        size = int(np.prod(shape))
        found[name] = Stored(dtype, numbers[start : start + size].reshape(shape))
        start += size
    assert start <= numbers.size
    return found


def in_megatron(config: Mapping[str, Any], tensors: Tensors, padded: int = 16) -> dict[str, NDArray[Any]]:
    """Bits by Megatron's names, layer by layer, experts too."""
    bits = {name: stored.bits for name, stored in tensors.items()}
    groups = config["num_key_value_heads"]

    def rows(name: str) -> NDArray[Any]:
        return np.pad(bits[name], ((0, padded - len(bits[name])), (0, 0)))

    found = {
        "embedding.word_embeddings.weight": rows("model.embed_tokens.weight"),
        "output_layer.weight": rows("lm_head.weight"),
        "decoder.final_layernorm.weight": bits["model.norm.weight"],
    }
    for layer in range(config["num_hidden_layers"]):
        old, new = f"model.layers.{layer}", f"decoder.layers.{layer}"
        for kind in ("weight", "bias"):
            parts = [bits.get(f"{old}.self_attn.{part}_proj.{kind}") for part in "qkv"]
            if parts[0] is not None:
                fused = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
                qkv = np.concatenate(fused, axis=1)
                found[f"{new}.self_attention.linear_qkv.{kind}"] = qkv.reshape(-1, *qkv.shape[2:])
        found[f"{new}.self_attention.linear_proj.weight"] = bits[f"{old}.self_attn.o_proj.weight"]
        found[f"{new}.self_attention.linear_qkv.layer_norm_weight"] = bits[f"{old}.input_layernorm.weight"]
        for part in "qk":
            if (norm := bits.get(f"{old}.self_attn.{part}_norm.weight")) is not None:
                found[f"{new}.self_attention.{part}_layernorm.weight"] = norm
        norm = bits[f"{old}.post_attention_layernorm.weight"]
        if experts := config.get("num_experts", 0):
            found[f"{new}.pre_mlp_layernorm.weight"] = norm
            found[f"{new}.mlp.router.weight"] = bits[f"{old}.mlp.gate.weight"]
        else:
            found[f"{new}.mlp.linear_fc1.layer_norm_weight"] = norm
        for expert in range(experts) or [None]:
            inside = "" if expert is None else f".experts.{expert}"
            mlp = f"{new}.mlp" if expert is None else f"{new}.mlp.experts.experts.{expert}"
            first = [bits[f"{old}.mlp{inside}.{part}_proj.weight"] for part in ("gate", "up")]
            found[f"{mlp}.linear_fc1.weight"] = np.concatenate(first)
            found[f"{mlp}.linear_fc2.weight"] = bits[f"{old}.mlp{inside}.down_proj.weight"]
    return found


Pieces = dict[str, tuple[tuple[int, ...], list[tuple[tuple[int, ...], NDArray[Any]]]]]
"""By name: the whole shape, and offsets and bits of each piece."""


def _cuts(key: str, bits: NDArray[Any], parallel: int) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
    """The parts of a tensor on the ranks of tensor parallelism. Gate and up are cut each for itself."""
    columns = key.endswith(("linear_proj.weight", "linear_fc2.weight"))
    if parallel == 1 or (bits.ndim < 2 and not key.endswith("bias")) or "router" in key:
        yield (0,) * bits.ndim, bits
        return
    halves = 2 if "linear_fc1.weight" in key and not key.endswith(("_w", "_v")) else 1
    start = 0
    for part in np.split(bits, parallel * halves, axis=int(columns)):
        yield (0, start) if columns else (start, *(0,) * (bits.ndim - 1)), np.ascontiguousarray(part)
        start += part.shape[int(columns)]


def in_pieces(config: Mapping[str, Any], found: Mapping[str, NDArray[Any]], *, stacked: bool, parallel: int) -> Pieces:
    """The pieces that ranks save.

    Args:
        config: of the model.
        found: bits by name; see `in_megatron`.
        stacked: whether layers and experts lie along dimensions in front, as by default; otherwise
            `singleton_local_shards`: each has its own name, and gate and up are two tensors.
        parallel: how many ranks of tensor parallelism there are.
    """
    pieces: Pieces = {}
    counts = {"layers": config["num_hidden_layers"], "experts": config.get("num_experts", 0)}
    for full, bits in found.items():
        key, places = full, []
        if stacked:
            words = full.split(".")
            places = [(counts[words[i - 1]], int(word)) for i, word in enumerate(words) if word.isdecimal()]
            key = ".".join(word for word in words if not word.isdecimal())
            parts = {key: bits}
        elif "linear_fc1.weight" in key:
            parts = dict(zip((f"{key}_w", f"{key}_v"), np.split(bits, 2), strict=True))
        else:
            parts = {key: bits}
        front = tuple(place for _, place in places)
        for name, part in parts.items():
            shape = (*(count for count, _ in places), *part.shape)
            _, known = pieces.setdefault(name, (shape, []))
            for offsets, cut in _cuts(name, part, parallel):
                known.append(((*front, *offsets), cut.reshape((1,) * len(front) + cut.shape)))
    return pieces


def write_pieces(folder: Path, pieces: Pieces, dtype: str, ranks: int = 2) -> Path:
    """The files of a checkpoint: of the model, and of what is never read."""
    folder.mkdir(parents=True)
    described: dict[str, Any] = {
        "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2": BytesStorageMetadata(),
        "optimizer.state.exp_avg.decoder.final_layernorm.weight": _described((8,), [((0,), (8,))], torch.float32),
    }
    stored: dict[Any, Any] = {}
    data: list[bytes] = [b"" for _ in range(ranks)]
    for name, (shape, parts) in pieces.items():
        boxes = [(offsets, bits.shape) for offsets, bits in parts]
        described[name] = _described(shape, boxes, torch_tensor(Stored(dtype, parts[0][1])).dtype)
        for place, (offsets, bits) in enumerate(parts):
            file = io.BytesIO()
            torch.save(torch_tensor(Stored(dtype, bits)), file)
            rank = place % ranks
            info = _StorageInfo(f"__{rank}_0.distcp", len(data[rank]), len(file.getvalue()))
            stored[MetadataIndex(name, torch.Size(offsets), place)] = info
            data[rank] += file.getvalue()
    for rank, content in enumerate(data):
        (folder / f"__{rank}_0.distcp").write_bytes(content)
    found = Metadata(described, storage_data=stored, storage_meta=StorageMeta())
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    (folder / "common.pt").write_bytes(b"never opened")
    return folder


def _described(shape: Sequence[int], boxes: Sequence[Any], dtype: torch.dtype) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in boxes]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(shape), chunks)


def write_torch_dist(
    folder: Path, config: Mapping[str, Any], tensors: Tensors, *, stacked: bool = True, parallel: int = 1
) -> Path:
    """The folder `actor` of verl."""
    pieces = in_pieces(config, in_megatron(config, tensors), stacked=stacked, parallel=parallel)
    write_pieces(folder / "actor" / "dist_ckpt", pieces, next(iter(tensors.values())).dtype)
    (folder / "actor" / "huggingface").mkdir()
    (folder / "actor" / "huggingface" / "config.json").write_text(json.dumps(config))
    return folder / "actor"
