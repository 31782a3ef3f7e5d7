"""Reads distributed checkpoints of Megatron (`torch_dist`), as slime and verl write them.

The files are those of torch.distributed.checkpoint, so the parallel layout of the training does not matter. Names and
layouts are Megatron's: q, k and v in one matrix, group by group; gate and up in one matrix; layers and experts often
stacked along leading dimensions; padded embeddings. A table maps Megatron's names to the model's, and `config.json`
has the sizes. Sources: `sharded_state_dict` in Megatron-LM's core, `megatron_to_hf` in slime, Megatron-Bridge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from shlex import quote

from ramerge.core.formats import dcp, unread
from ramerge.core.formats.files import about_model, tag_of
from ramerge.core.formats.format import Format, Opening, local
from ramerge.core.formats.torchfile.load import suspend_garbage_collection
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import few_quoted, quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.origins import reshaped, rows_of, stack
from ramerge.core.tensors.tensor import Tensor

_PLACES = ("", "dist_ckpt", "model/dist_ckpt", "actor/dist_ckpt", "actor/model/dist_ckpt")
# Architectures with the layers of the table. Others use the same names for other layers.
_MODELS = ("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
_NO_MODEL = re.compile(r"(^|\.)(optimizer|chained_\d+|rng_state|rerun_state_machine_state)\b|_extra_state")


# --- the table of names ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes from `config.json`: the numbers of layers, experts, heads and groups of heads, and dimensions."""

    layers: int
    experts: int
    heads: int
    groups: int
    head: int
    vocabulary: int

    @staticmethod
    def from_config(config: Mapping[str, object]) -> Sizes:
        """Read the sizes from `config.json`. Raises ValueError for an unsupported model or invalid sizes."""
        kind = config.get("model_type")
        if kind not in _MODELS:
            raise ValueError(f"is of a {quoted(kind)} model; those of Megatron that are read are {', '.join(_MODELS)}")
        heads = _config_number(config, "num_attention_heads")
        groups = _config_number(config, "num_key_value_heads", default=heads)
        if heads % groups:
            raise ValueError(f"says {heads} heads in {groups} groups, which is no whole number of heads in each")
        return Sizes(
            layers=_config_number(config, "num_hidden_layers"),
            experts=_config_number(config, "num_experts", "num_local_experts") if kind.endswith("_moe") else 0,
            heads=heads,
            groups=groups,
            head=_config_number(config, "head_dim", default=_config_number(config, "hidden_size") // heads),
            vocabulary=_config_number(config, "vocab_size"),
        )


def _config_number(config: Mapping[str, object], *keys: str, default: int | None = None) -> int:
    value = next((config[key] for key in keys if config.get(key) is not None), default)
    if type(value) is not int or not 0 < value < 1 << 31:
        raise ValueError(f"has no usable {' or '.join(keys)} ({quoted(value)})")
    return value


_Split = Callable[[Tensor, Sizes], list[Tensor]]
"""Splits a Megatron tensor into tensors of the model. Raises ValueError if its shape does not fit the sizes."""


def _split_gate_up(tensor: Tensor, _sizes: Sizes) -> list[Tensor]:
    """Split a tensor into gate and up."""
    half, rest = divmod(tensor.shape[0] if tensor.shape else 1, 2)
    if rest:
        raise ValueError(f"should be gate and up, one below the other, but has shape {list(tensor.shape)}")
    return [rows_of(tensor, 0, half), rows_of(tensor, half, 2 * half)]


def _split_qkv(tensor: Tensor, sizes: Sizes) -> list[Tensor]:
    """Split a tensor into queries, keys and values. A group has rows of its queries, then its key, then its value."""
    queries = sizes.heads // sizes.groups
    height = (queries + 2) * sizes.head
    if not tensor.shape or tensor.shape[0] != sizes.groups * height:
        raise ValueError(
            f"should have {sizes.groups} groups of {queries} + 2 heads of {sizes.head} rows, but has shape "
            f"{list(tensor.shape)}; config.json may be of another model, or its attention has gates, which is not read"
        )
    ends = [0, queries * sizes.head, (queries + 1) * sizes.head, height]
    parts = []
    for begin, end in pairwise(ends):
        starts = range(0, sizes.groups * height, height)
        parts.append(stack(tensor.name, [rows_of(tensor, start + begin, start + end) for start in starts]))
    return parts


def _remove_padding_rows(tensor: Tensor, sizes: Sizes) -> list[Tensor]:
    """Remove the rows that Megatron adds to embeddings so that all ranks have equally many."""
    if not tensor.shape or tensor.shape[0] < sizes.vocabulary:
        raise ValueError(
            f"has shape {list(tensor.shape)}, but vocab_size in config.json is {sizes.vocabulary:,}; it belongs to "
            "another model"
        )
    return [rows_of(tensor, 0, sizes.vocabulary)]


@dataclass(frozen=True)
class _TensorTargets:
    """The targets of a Megatron tensor.

    Attributes:
        parts: names of the tensors in transformers, with fields `{layer}` and `{expert}`.
        split: splits the Megatron tensor into these tensors.
    """

    parts: tuple[str, ...]
    split: _Split = lambda tensor, _: [tensor]


_LAYER = "model.layers.{layer}."
_ATTENTION = f"{_LAYER}self_attn."
_EXPERT = f"{_LAYER}mlp.experts.{{expert}}."
_SHARED_EXPERT = f"{_LAYER}mlp.shared_expert."


def _mlp_targets(stem: str, prefix: str) -> dict[str, _TensorTargets]:
    """Return rows for two linear layers, the first with gate and up fused, or apart with `singleton_local_shards`."""
    rows: dict[str, _TensorTargets] = {}
    for kind in ("weight", "bias"):
        gate, up, down = (f"{prefix}{name}_proj.{kind}" for name in ("gate", "up", "down"))
        rows |= {
            f"{stem}linear_fc1.{kind}": _TensorTargets((gate, up), _split_gate_up),
            f"{stem}linear_fc1.{kind}_w": _TensorTargets((gate,)),
            f"{stem}linear_fc1.{kind}_v": _TensorTargets((up,)),
            f"{stem}linear_fc2.{kind}": _TensorTargets((down,)),
        }
    return rows


_OUTSIDE = {
    "embedding.word_embeddings.weight": _TensorTargets(("model.embed_tokens.weight",), _remove_padding_rows),
    "decoder.final_layernorm.weight": _TensorTargets(("model.norm.weight",)),
    "output_layer.weight": _TensorTargets(("lm_head.weight",), _remove_padding_rows),
}
# Norms are named after the layer that Transformer Engine fuses them with, or after the layer that follows them.
_IN_A_LAYER = {
    "input_layernorm.weight": _TensorTargets((f"{_LAYER}input_layernorm.weight",)),
    "self_attention.linear_qkv.layer_norm_weight": _TensorTargets((f"{_LAYER}input_layernorm.weight",)),
    "pre_mlp_layernorm.weight": _TensorTargets((f"{_LAYER}post_attention_layernorm.weight",)),
    "mlp.linear_fc1.layer_norm_weight": _TensorTargets((f"{_LAYER}post_attention_layernorm.weight",)),
    **{
        f"self_attention.linear_qkv.{kind}": _TensorTargets(
            tuple(f"{_ATTENTION}{part}_proj.{kind}" for part in "qkv"), _split_qkv
        )
        for kind in ("weight", "bias")
    },
    "self_attention.linear_proj.weight": _TensorTargets((f"{_ATTENTION}o_proj.weight",)),
    "self_attention.linear_proj.bias": _TensorTargets((f"{_ATTENTION}o_proj.bias",)),
    "self_attention.q_layernorm.weight": _TensorTargets((f"{_ATTENTION}q_norm.weight",)),
    "self_attention.k_layernorm.weight": _TensorTargets((f"{_ATTENTION}k_norm.weight",)),
    **_mlp_targets("mlp.", f"{_LAYER}mlp."),
    "mlp.router.weight": _TensorTargets((f"{_LAYER}mlp.gate.weight",)),
    "mlp.shared_experts.gate_weight": _TensorTargets((f"{_LAYER}mlp.shared_expert_gate.weight",)),
    **_mlp_targets("mlp.shared_experts.", _SHARED_EXPERT),
}
_OF_AN_EXPERT = _mlp_targets("", _EXPERT)

_IN_LAYERS = re.compile(r"decoder\.layers\.(?:(?P<layer>\d{1,6})\.)?(?P<rest>.+)")
_IN_EXPERTS = re.compile(r"mlp\.experts\.experts\.(?:(?P<expert>\d{1,6})\.)?(?P<rest>.+)")


@dataclass(frozen=True)
class _KnownTensor:
    """A Megatron tensor with its row in the table.

    Attributes:
        row: the row.
        layer: the layer's index; None if layers are stacked, or outside of layers.
        expert: the expert's index; None if experts are stacked, or outside of experts.
        stack_axes: the stacked leading dimensions: `layer`, `expert`, both or neither.
    """

    row: _TensorTargets
    layer: int | None = None
    expert: int | None = None
    stack_axes: tuple[str, ...] = ()

    @staticmethod
    def by_name(key: str) -> _KnownTensor | None:
        """Look up a Megatron name; None if the table does not have it."""
        if key in _OUTSIDE:
            return _KnownTensor(_OUTSIDE[key])
        if (match := _IN_LAYERS.fullmatch(key)) is None:
            return None
        layer, rest = match["layer"], match["rest"]
        over = () if layer else ("layer",)
        number = int(layer) if layer else None
        if rest in _IN_A_LAYER:
            return _KnownTensor(_IN_A_LAYER[rest], number, None, over)
        if (match := _IN_EXPERTS.fullmatch(rest)) is None or match["rest"] not in _OF_AN_EXPERT:
            return None
        expert = match["expert"]
        over = over if expert else (*over, "expert")
        return _KnownTensor(_OF_AN_EXPERT[match["rest"]], number, int(expert) if expert else None, over)


def _renamed_parts(tensor: Tensor, kind_of_tensor: _KnownTensor, sizes: Sizes) -> Iterator[Tensor]:
    """Yield the model's tensors that a Megatron tensor contains."""
    if kind_of_tensor.stack_axes:
        kind, *others = kind_of_tensor.stack_axes
        count = sizes.layers if kind == "layer" else sizes.experts
        if not tensor.shape or tensor.shape[0] != count:
            raise ValueError(f"should hold {count} {kind}s, as config.json says, but has shape {list(tensor.shape)}")
        inner = tensor.shape[1:]
        for number in range(count):
            one = reshaped(rows_of(tensor, number, number + 1), inner)
            this = replace(kind_of_tensor, stack_axes=tuple(others))
            this = replace(this, layer=number) if kind == "layer" else replace(this, expert=number)
            yield from _renamed_parts(one, this, sizes)
        return
    for position, count, kind in (
        (kind_of_tensor.layer, sizes.layers, "layer"),
        (kind_of_tensor.expert, sizes.experts, "expert"),
    ):
        if position is not None and position >= count:
            raise ValueError(f"is of {kind} {position}, but config.json says {count} {kind}s")
    parts = kind_of_tensor.row.split(tensor, sizes)
    for template, part in zip(kind_of_tensor.row.parts, parts, strict=True):
        name = template.format(layer=kind_of_tensor.layer, expert=kind_of_tensor.expert)
        yield replace(part, name=name)


# --- folders ---------------------------------------------------------------------------------------------------------


def find(folder: Location) -> Location | None:
    """Find Megatron's distributed checkpoint: in this folder, inside of it, or in a run's latest step."""
    latest = tag_of(folder / "latest_checkpointed_iteration.txt") or ""
    steps = [f"iter_{latest:0>7}", f"global_step_{latest}"] if latest.isdecimal() else []
    candidates = (folder / step / place for step in ("", *steps) for place in _PLACES)
    iterations: Iterator[Location] = folder.glob("iter_*")
    for candidate in (*candidates, *sorted(iterations, key=str)[-1:]):
        # Megatron writes `metadata.json` in addition to torch's files
        if (candidate / "metadata.json").is_file() and (
            (candidate / dcp.METADATA).is_file() or any(candidate.glob("*.distcp"))
        ):
            return candidate
    return None


def open_folder(folder: Path, opening: Opening) -> Contents:
    """Open a Megatron checkpoint with its tensors mapped to the model's."""
    inner = [place / "huggingface" for place in (folder, *folder.parents[:2])]
    about = about_model(folder, (folder, *inner, folder.parent), opening)
    if not about.config:
        raise CheckpointError(
            f"{folder}: is a checkpoint of Megatron, which cannot be read without the model's config.json, and there "
            "is none; put config.json and the tokenizer of the model that was trained there, or give that model as the "
            "base"
        )
    with suspend_garbage_collection():
        metadata = dcp.read_metadata(folder, modules=("megatron",))
        model_tensors = {tensor.key: tensor for tensor in metadata.tensors if not _NO_MODEL.search(tensor.key)}
        sizes, known_tensors = _layout_of(folder, about.metadata_folder, about.config, model_tensors)
        model = dcp.read_distcp(folder, metadata, model_tensors, opening)
        tensors: dict[str, Tensor] = {}
        for tensor in model.tensors:
            try:
                for part in _renamed_parts(tensor, known_tensors[tensor.name], sizes):
                    if part.name in tensors:
                        raise ValueError(f"is {quoted(part.name)}, which another tensor is too")
                    tensors[part.name] = part
            except ValueError as error:
                model.problems.append(f"{folder}: tensor {quoted(tensor.name)}: {error}")
    queries = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(sizes.layers))
    if problems := model.problems or [
        f"{folder}: holds nothing that becomes {quoted(name)}, so the model is not complete"
        for name in ("model.embed_tokens.weight", "model.norm.weight", *queries)
        if name not in tensors
    ]:
        raise CheckpointError(problems)
    order = {name: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)] for name in tensors}
    tensors_in_order = {name: tensors[name] for name in sorted(tensors, key=order.__getitem__)}
    return Contents(
        tensors_in_order, {**model.files, **about.files}, about.config, about.metadata_folder, notes=about.notes
    )


def _layout_of(
    folder: Path,
    metadata_folder: Location,
    config: Mapping[str, object],
    descriptions: Mapping[str, dcp.TensorDescription],
) -> tuple[Sizes, dict[str, _KnownTensor]]:
    problems = []
    try:
        sizes = Sizes.from_config(config)
    except ValueError as error:
        problems.append(f"{metadata_folder / 'config.json'}: {error}; convert {folder}: {_conversion_command(folder)}")
    by_key = {key: _KnownTensor.by_name(key) for key in descriptions}
    if others := [key for key, tensor in by_key.items() if tensor is None]:
        problems.append(
            unread.adapter_of_megatron(folder, others)
            or unread.fsdp_of_megatron(folder, others)
            or f"{folder}: holds tensors whose layout is not known: {few_quoted(others)}; "
            f"convert it: {_conversion_command(folder)}"
        )
    if not problems and not by_key:
        problems.append(f"{folder}: holds no tensors of a model; give the folder that has them")
    if problems:
        raise CheckpointError(problems)
    return sizes, {key: tensor for key, tensor in by_key.items() if tensor is not None}


def _conversion_command(folder: Path) -> str:
    actor = next((place for place in (folder, *folder.parents[:3]) if (place / "huggingface").is_dir()), None)
    actor = actor or next((place for place in folder.parents[:3] if (place / "model" / "huggingface").is_dir()), None)
    if actor is not None:
        return (
            f"python -m verl.model_merger merge --backend megatron --local_dir {quote(str(actor))} "
            f"--target_dir {quote(f'{folder}-hf')}"
        )
    return (
        f"python tools/convert_torch_dist_to_hf.py --input-dir {quote(str(folder))} --output-dir "
        f"{quote(f'{folder}-hf')} --origin-hf-dir BASE --vocab-size N, in slime's repository; BASE is the model that "
        "training began with, and N the vocab_size of its config.json"
    )


# tried before dcp, which would recognize its files
FORMAT = Format("megatron", "torch_dist of Megatron", find, local(open_folder), priority=40)
