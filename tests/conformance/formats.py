"""A row for each format: how tests write a model in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.checkpoints import read_checkpoint, simple, write_checkpoint, write_safetensors
from tests.deltas import foreign
from tests.deltas.writing import write_delta
from tests.formats.quantized import SAMPLES, quantize_model, write_quantized
from tests.reference import NUMBERS, Stored, encode

Tensors = Mapping[str, Stored]


@dataclass(frozen=True)
class Row:
    """How a format is tested.

    Attributes:
        write: `write(folder, tensors)` writes a model into a new folder, and returns what a recipe names.
        expand: the tensors that ramerge must see; other than those that were written only where the format rounds, or
            computes its tensors.
        dtypes: the dtypes that the format can hold.
        as_base: whether the format can hold a base.
        dtype: the recipe's `dtype`, where the output would otherwise have another one than that of the expansion.
        needs: libraries that write it.
    """

    write: Callable[[Path, Tensors], Path | str]
    expand: Callable[[Path, Tensors], Tensors] = lambda _folder, tensors: tensors
    dtypes: tuple[str, ...] = ("BF16", "F32", "F16", "F64")
    as_base: bool = True
    dtype: str | None = None
    needs: tuple[str, ...] = ()

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """Of a test of the format."""
        return [pytest.mark.needs(*self.needs)] if self.needs else []


def in_shards(folder: Path, tensors: Tensors, **more: Any) -> Path:
    """Three safetensors files and an index."""
    return write_checkpoint(folder, tensors, shards=3, **more)


def _live(folder: Path, tensors: Tensors) -> Path:
    """Safetensors files that an engine has patched, and that are complete."""
    made = in_shards(folder / "weights", tensors)
    (folder / ".skyrl_weight_sync").mkdir()
    (folder / ".skyrl_weight_sync/state.json").write_text('{"version": 2, "write_in_progress": false}')
    return made


# the matrices of `tests.checkpoints.simple`
SECOND = {f"model.layers.{layer}.weight": 1 for layer in range(4)}


def trained(writer: str, *, dtypes: tuple[str, ...] = Row.dtypes, **more: Any) -> Row:
    """What a writer of `tests.formats.trainers` writes."""

    def write(folder: Path, tensors: Tensors) -> Path:
        from tests.formats import trainers

        made: Path = getattr(trainers, writer)(folder, tensors, **more)
        return made

    return Row(write, dtypes=dtypes, needs=("torch",))


def _shaped(sample: str, tensors: Tensors) -> Tensors:
    """Matrices of a width that every sample can hold, and a norm that no sample quantizes."""
    shape = {"gpt-oss": (2, 32, 10)}.get(sample, (20, 32))
    made = {name: Stored(tensor.dtype, tensor.bits.reshape(shape)) for name, tensor in tensors.items()}
    first = next(iter(tensors.values()))
    return {**made, "model.norm.weight": Stored(first.dtype, first.bits.reshape(-1)[:33])}


def _quantized(sample: str) -> Row:
    """A model in three safetensors files, quantized; what must be seen is its exact expansion in float32."""
    return Row(
        lambda folder, tensors: write_quantized(folder, sample, _shaped(sample, tensors), shards=3),
        lambda _folder, tensors: quantize_model(sample, _shaped(sample, tensors))[1],
        ("BF16",),
        dtype="float32",
    )


def _trained_from_quantized(sample: str) -> Row:
    """A quantized base, and agents that were trained from its expansion rounded to bfloat16, which must be seen."""

    def seen(folder: Path, tensors: Tensors) -> Tensors:
        base = _shaped(sample, simple(0))
        start = {
            name: encode(tensor.numbers(np.float32), "BF16") for name, tensor in quantize_model(sample, base)[1].items()
        }
        own = _shaped(sample, tensors)
        return {
            name: Stored("BF16", np.where(own[name].bits == base[name].bits, tensor.bits, own[name].bits))
            for name, tensor in start.items()
        }

    def write(folder: Path, tensors: Tensors) -> Path:
        if folder.name == "base":
            return write_quantized(folder, sample, _shaped(sample, tensors), shards=3)
        return in_shards(folder, seen(folder, tensors))

    return Row(write, seen, ("BF16",))


def _factors(tensor: Stored) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A and B of rank 3, with so few digits that no sum of products is rounded."""
    rng = np.random.default_rng(int(tensor.bits.reshape(-1)[0]))
    rows, columns = tensor.bits.shape
    return tuple((rng.integers(-8, 9, shape) / 256).astype(np.float32) for shape in ((3, columns), (rows, 3)))


def as_adapter(folder: Path, tensors: Tensors) -> Path:
    """A LoRA adapter that changes the first tensor, replaces the last one, and leaves the others as the base's."""
    first, *_, last = tensors
    a, b = _factors(tensors[first])
    module = f"base_model.model.{first.removesuffix('.weight')}"
    folder.mkdir()
    stored = {
        f"{module}.lora_A.weight": Stored("F32", a.view(np.uint32)),
        f"{module}.lora_B.weight": Stored("F32", b.view(np.uint32)),
        f"base_model.model.{last}": tensors[last],
    }
    write_safetensors(folder / "adapter_model.safetensors", stored)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6}))
    return folder


def of_adapter(folder: Path, tensors: Tensors) -> Tensors:
    """The tensors of the whole agent."""
    base = read_checkpoint(folder.parent / "base")
    first, *_, last = tensors
    a, b = _factors(tensors[first])
    whole = base[first].bits.view(NUMBERS[base[first].dtype]).astype(np.float32) + np.float32(2) * (b @ a)
    return {**base, first: Stored("F32", whole.view(np.uint32)), last: tensors[last]}


def as_foreign(write: Callable[..., Path], **more: Any) -> Callable[[Path, Tensors], Path]:
    """A trainer's delta from the base; one of its tensors is the base's."""

    def one(folder: Path, tensors: Tensors) -> Path:
        return write(folder, 1, read_checkpoint(folder.parent / "base"), of_delta(folder, tensors), **more)

    return one


def as_foreign_chain(folder: Path, tensors: Tensors) -> Path:
    """Two versions, of which the first changes every other tensor; the folder with both."""
    base, wanted = read_checkpoint(folder.parent / "base"), of_delta(folder, tensors)
    half = {name: base[name] if place % 2 else wanted[name] for place, name in enumerate(wanted)}
    foreign.write_slime(folder, 1, base, half, encoding="overwrite")
    foreign.write_slime(folder, 2, half, wanted)
    return folder


def as_delta(folder: Path, tensors: Tensors) -> Path:
    """What changed of the base; one of its tensors is the base's."""
    full = write_checkpoint(folder.with_name(f"{folder.name}-full"), of_delta(folder, tensors), shards=2)
    return write_delta(folder, folder.parent / "base", full)


def as_chain(folder: Path, tensors: Tensors) -> str:
    """Two deltas, one on the other: to half of the agent, and to the agent."""
    base, wanted = read_checkpoint(folder.parent / "base"), of_delta(folder, tensors)
    half = {name: base[name] if place % 2 else wanted[name] for place, name in enumerate(wanted)}
    first, second = (folder.with_name(f"{folder.name}-{version}") for version in (1, 2))
    write_checkpoint(folder.with_name(f"{folder.name}-half"), half)
    write_checkpoint(folder.with_name(f"{folder.name}-full"), wanted)
    write_delta(first, folder.parent / "base", folder.with_name(f"{folder.name}-half"))
    write_delta(second, folder.with_name(f"{folder.name}-half"), folder.with_name(f"{folder.name}-full"))
    return f"{first}+{second}"


def of_delta(folder: Path, tensors: Tensors) -> Tensors:
    """The tensors of the whole agent."""
    base = read_checkpoint(folder.parent / "base")
    _, second, *_ = tensors
    return {**tensors, second: base[second]}


def _in_megatron(**more: Any) -> Row:
    """Megatron has only tensors that it knows, so the same elements become a small Qwen3-MoE."""

    def shaped(tensors: Tensors) -> dict[str, Stored]:
        from tests.formats import megatron

        every = np.concatenate([tensor.bits.reshape(-1) for tensor in tensors.values()])
        return megatron.model(megatron.MOE, np.tile(every, 2), next(iter(tensors.values())).dtype)

    def write(folder: Path, tensors: Tensors) -> Path:
        made = shaped(tensors)
        from tests.formats import megatron

        return megatron.write_torch_dist(folder, megatron.MOE, made, **more)

    return Row(write, lambda _folder, tensors: shaped(tensors), needs=("torch",))


# By the name of the format, and what varies. Every format needs a row.
ROWS: dict[str, Row] = {
    "safetensors": Row(in_shards),
    "bin": trained("write_bin"),
    "bin, three files": trained("write_bin", shards=3),
    "fsdp, three ranks": trained("write_fsdp", ranks=3, dtypes=("F32", "BF16", "F16", "F64")),
    "fsdp, sixty-four ranks": trained("write_fsdp", ranks=64),
    "fsdp, replicas": trained("write_fsdp", ranks=2, replicas=2),
    "fsdp, second dimension": trained("write_fsdp", ranks=3, dims=SECOND),
    "dcp": trained("write_dcp"),
    "dcp, no root": trained("write_dcp", root=(), dtypes=("F32", "BF16", "F16", "F64")),
    "deepspeed, stage 2": trained("write_zero", stage=2, ranks=3, dtypes=("F32",)),
    "deepspeed, stage 3": trained("write_zero", stage=3, ranks=7, parts=2, dtypes=("F32",)),
    "megatron": _in_megatron(parallel=2),
    "megatron, a name for each layer": _in_megatron(stacked=False),
    **{f"quantized, {sample}": _quantized(sample) for sample in SAMPLES},
    **{f"quantized, {sample}, agents in BF16": _trained_from_quantized(sample) for sample in SAMPLES},
    "live": Row(_live),
    "slime": Row(as_foreign(foreign.write_slime), of_delta, as_base=False),
    "slime, a chain": Row(as_foreign_chain, of_delta, as_base=False),
    "skyrl": Row(as_foreign(foreign.write_skyrl), of_delta, as_base=False),
    "grail, version 2": Row(as_foreign(foreign.write_grail, version=2), of_delta, ("BF16", "F32"), as_base=False),
    "grail, version 3.1": Row(as_foreign(foreign.write_grail), of_delta, ("BF16", "F32"), as_base=False),
    "adapter": Row(as_adapter, of_adapter, ("BF16", "F32", "F16"), as_base=False),
    "delta": Row(as_delta, of_delta, as_base=False),
    "delta, a chain": Row(as_chain, of_delta, as_base=False),
}
