"""Writes models as trainers do: with the code of torch that they call. Needs torch."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.reference import Stored

Tensors = Mapping[str, Stored]
CONFIG = {"model_type": "test"}
_TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
_BITS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def torch_tensor(stored: Stored) -> torch.Tensor:
    """The same bits in torch."""
    bits = np.ascontiguousarray(stored.bits).copy()
    flat = torch.from_numpy(bits.reshape(-1).view(_BITS[bits.itemsize])).view(_TORCH[stored.dtype])
    return flat.reshape(stored.bits.shape)


def state_dict(tensors: Tensors) -> dict[str, torch.Tensor]:
    """A model in torch."""
    return {name: torch_tensor(stored) for name, stored in tensors.items()}


@contextmanager
def rank_of(rank: int, ranks: int) -> Iterator[None]:
    """A process group that computes nothing, in which this process is one rank of any number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        try:
            yield
        finally:
            dist.destroy_process_group()


def local(tensor: torch.Tensor, place: int, count: int, dim: int) -> torch.Tensor:
    """A rank's shard, as torch.chunk cuts it; of the shape that is left if there is nothing for it."""
    parts = tensor.chunk(count, dim)
    return parts[place] if place < len(parts) else tensor.narrow(dim, 0, 0)


def padded(tensor: torch.Tensor, dim_size: int) -> torch.Tensor:
    """A tensor in a storage that is longer, as FSDP2 keeps shards."""
    store = torch.zeros(max(1, dim_size) * math.prod(tensor.shape[1:]), dtype=tensor.dtype)
    store[: tensor.numel()] = tensor.reshape(-1)
    return store[: tensor.numel()].view(tensor.shape)


def sharded(
    tensors: Mapping[str, torch.Tensor], rank: int, mesh_shape: Sequence[int], dims: Mapping[str, int]
) -> dict[str, Any]:
    """A rank's state dict under FSDP2: DTensors, in padded storages. Call it in `rank_of`.

    Args:
        tensors: the model.
        rank: which rank.
        mesh_shape: (ranks,) or (replicas, ranks).
        dims: the dimension that a tensor is sharded along, if not 0. Scalars are not sharded.
    """
    names = ("ddp", "fsdp")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", tuple(mesh_shape), mesh_dim_names=names)
    count = mesh_shape[-1]
    state: dict[str, Any] = {}
    known: dict[int, Any] = {}
    for name, tensor in tensors.items():
        if not tensor.ndim:
            state[name] = tensor
            continue
        dim = dims.get(name, 0)
        if id(tensor) not in known:
            part = local(tensor, rank % count, count, dim).contiguous()
            if dim == 0:
                part = padded(part, -(-tensor.shape[0] // count))
            known[id(tensor)] = DTensor.from_local(
                part,
                mesh,
                [*[Replicate()] * (len(mesh_shape) - 1), Shard(dim)],
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            )
        state[name] = known[id(tensor)]
    return state


def write_fsdp(
    folder: Path,
    tensors: Tensors,
    *,
    ranks: int = 3,
    replicas: int = 1,
    dims: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """The folder `actor` of verl; see `sharded`."""
    actor = folder / "global_step_7" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text(json.dumps(config or CONFIG))
    world = ranks * replicas
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    whole = state_dict(tensors)
    for rank in range(world):
        with rank_of(rank, world):
            mesh = (ranks,) if replicas == 1 else (replicas, ranks)
            torch.save(sharded(whole, rank, mesh, dims or {}), actor / f"model_world_size_{world}_rank_{rank}.pt")
    for other in ("optim", "extra_state"):
        (actor / f"{other}_world_size_{world}_rank_0.pt").write_bytes(b"never opened")
    return folder


def write_bin(folder: Path, tensors: Tensors, *, shards: int = 1, config: Mapping[str, Any] | None = None) -> Path:
    """`pytorch_model.bin`, or several with an index. Matrices are stored transposed in every second place."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    state = state_dict(tensors)
    for place, (name, tensor) in enumerate(state.items()):
        if place % 2 and tensor.ndim == 2:
            state[name] = tensor.t().contiguous().t()
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return folder
    files = {name: f"pytorch_model-{place % shards + 1:05}-of-{shards:05}.bin" for place, name in enumerate(state)}
    for file in sorted(set(files.values())):
        torch.save({name: state[name] for name in state if files[name] == file}, folder / file)
    index = {"metadata": {}, "weight_map": files}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def write_dcp(folder: Path, tensors: Tensors, *, root: Sequence[str] = ("model",), optimizer: bool = True) -> Path:
    """A folder of torch.distributed.checkpoint, from one process, with an optimizer's state next to the model."""
    folder.mkdir(parents=True)
    model: Any = state_dict(tensors)
    whole = model
    for key in reversed(root):
        whole = {key: whole}
    if optimizer and root:
        whole["optim"] = {"state": {name: {"exp_avg": torch.zeros(2)} for name in model}, "lr": 0.1}
        whole["step"] = 7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(whole, storage_writer=dcp.FileSystemWriter(folder, sync_files=False), no_dist=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def write_zero(
    folder: Path,
    tensors: Tensors,
    *,
    stage: int,
    ranks: int,
    groups: Sequence[Sequence[str]] | None = None,
    frozen: Sequence[str] = (),
    buffers: Sequence[str] = (),
    shared: Mapping[str, str] | None = None,
    gap: int = 0,
    parts: int = 1,
    steps: Sequence[float] = (),
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A run of DeepSpeed, by hand from its source: `_get_fp32_state_dict_from_zero_checkpoint` in reverse.

    Args:
        folder: of the run.
        tensors: all parameters and buffers, without those that are shared.
        stage: of ZeRO.
        ranks: how many partitions there are.
        groups: names of the parameters of each group; by default one with all.
        frozen: parameters that were not trained.
        buffers: tensors that are no parameters.
        shared: names of parameters that are another parameter.
        gap: elements behind each parameter, in stages 1 and 2.
        parts: vectors that a rank of stage 3 has.
        steps: how many steps each rank's optimizer has taken; by default none.
        config: `config.json`, next to the step.
    """
    step = folder / "global_step7"
    step.mkdir(parents=True)
    (folder / "latest").write_text("global_step7")
    (folder / "zero_to_fp32.py").write_text("# never run")
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    whole = state_dict(tensors)
    groups = groups or [[name for name in tensors if name not in (*frozen, *buffers)]]
    names = [name for group in groups for name in group]
    module = {name: whole[name] if name in buffers else whole[name].bfloat16() for name in whole}
    module |= {name: module[other] for name, other in (shared or {}).items()}
    if stage == 3:
        module |= {name: torch.empty(0) for name in module if name not in buffers}
    state: dict[str, Any] = {
        "module": module,
        "buffer_names": list(buffers),
        "param_shapes": [{name: whole[name].shape for name in group} for group in groups],
        "frozen_param_shapes": {name: whole[name].shape for name in frozen},
        "shared_params": dict(shared or {}),
        "ds_config": {"bf16": {"enabled": True}},
    }
    flats = {name: whole[name].reshape(-1).float() for name in names}
    for rank in range(ranks):
        if stage == 3:
            state["frozen_param_fragments"] = {name: _share(whole[name].reshape(-1), rank, ranks) for name in frozen}
            torch.save(state, step / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
            one = torch.cat([_share(flats[name], rank, ranks) for name in names])
            found: dict[str, Any] = {"fp32_flat_groups": list(one.tensor_split(parts)), "partition_count": ranks}
        else:
            behind = torch.zeros(gap)
            vectors = [torch.cat([part for name in group for part in (flats[name], behind)]) for group in groups]
            found = {
                "single_partition_of_fp32_groups": [_aligned(vector, rank, ranks) for vector in vectors],
                "partition_count": [ranks] * len(groups),
                "param_alignment_paddings": [[gap] * len(group) for group in groups],
            }
        moments = {0: {"exp_avg": torch.zeros(3), "step": torch.tensor(float(steps[rank]) if steps else 0.0)}}
        found |= {"zero_stage": stage, "base_optimizer_state": {"state": moments}, "overflow": False}
        torch.save({"optimizer_state_dict": found}, step / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    if stage < 3:
        torch.save(state, step / "mp_rank_00_model_states.pt")
    return folder


def _share(flat: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """A rank's part of a parameter, with padding."""
    share = -(-flat.numel() // ranks)
    part = flat[rank * share : (rank + 1) * share].clone()
    return torch.cat([part, torch.full((share - part.numel(),), 7, dtype=part.dtype)])


def _aligned(flat: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """A rank's partition of a vector that is padded to a multiple of twice the ranks; the last lacks the padding."""
    unit = 2 * ranks
    share = -(-flat.numel() // unit) * unit // ranks
    return flat[rank * share : (rank + 1) * share].clone()
