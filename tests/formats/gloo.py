"""`python -m tests.formats.gloo FOLDER`: four processes train nothing and save one model in every way that torch has.

The calls are those of verl's checkpoint manager and of torch.distributed.checkpoint. The same model, as
`save_pretrained` writes it, is in FOLDER/plain.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

RANKS = 4
CONFIG = {
    "hidden_size": 12,
    "intermediate_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 37,
    "tie_word_embeddings": True,
}


def model(dtype: torch.dtype = torch.float32) -> Any:
    """The same in every process."""
    torch.manual_seed(0)
    made = Qwen2ForCausalLM(Qwen2Config(**CONFIG)).to(dtype)
    made.register_buffer("steps", torch.arange(3))
    return made


def save(folder: Path, state: Any, rank: int) -> None:
    """As verl does."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / f"model_world_size_{RANKS}_rank_{rank}.pt")
    if rank == 0:
        Qwen2Config(**CONFIG).save_pretrained(folder / "huggingface")


def second(rank: int, mesh: Any, dtype: torch.dtype = torch.float32) -> Any:
    """A model under FSDP2."""
    made = model(dtype)
    for layer in made.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    return made


def first(rank: int, **more: Any) -> Any:
    """A model's state under FSDP1."""
    wrapped = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=False, **more)
    with FullyShardedDataParallel.state_dict_type(
        wrapped, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True)
    ):
        return wrapped.state_dict()


def run(rank: int, out: Path) -> None:
    """What one process does."""
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=RANKS)
    line = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))
    if rank == 0:
        model().save_pretrained(out / "plain")
        torch.save(model().state_dict(), out / "plain" / "pytorch_model.bin")
    save(out / "fsdp2", second(rank, line).state_dict(), rank)
    save(out / "fsdp2 in bf16", second(rank, line, torch.bfloat16).state_dict(), rank)
    save(out / "fsdp2 with replicas", second(rank, grid).state_dict(), rank)
    save(out / "fsdp1", first(rank), rank)
    save(out / "fsdp1 with a mesh", first(rank, device_mesh=line), rank)

    trained = second(rank, line)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.0, weight_decay=0.0)
    trained(torch.arange(4)[None], labels=torch.arange(4)[None]).loss.backward()
    optimizer.step()
    state = {"model": get_model_state_dict(trained), "optim": get_optimizer_state_dict(trained, optimizer), "step": 3}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(out / "dcp", sync_files=False))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    tiles = {
        name: distribute_tensor(value, both, [Shard(0), Shard(1)]) if value.ndim == 2 else value
        for name, value in deepcopy(model().state_dict()).items()
    }
    dcp.save({"app": {"model": tiles}}, storage_writer=dcp.FileSystemWriter(out / "dcp in tiles", sync_files=False))
    writer = dcp.HuggingFaceStorageWriter(path=str(out / "dcp in safetensors"), save_distributed=True)
    untied = get_model_state_dict(trained)
    del untied["lm_head.weight"]  # safetensors takes no tied tensors
    dcp.save(untied, storage_writer=writer)
    dist.barrier()
    dist.destroy_process_group()


def main(out: Path) -> None:
    """Fork, because importing torch takes longer than all of this."""
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if not child:
            code = 1
            try:
                run(rank, out)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
