"""Shards of FSDP: those of the real code in four processes, those of any number of ranks, and those that are wrong."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.core.formats.format import Opening
from ramerge.core.formats.fsdp import find, open_folder
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.formats.sharded import part_of
from ramerge.core.formats.torchfile.instructions import Name, RefusedError, Stub
from ramerge.core.formats.torchfile.load import TorchStorage, View
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.reader import Files, Reader
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.messages import Messages
from tests.reference import Stored

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.formats import trainers  # noqa: E402  (needs torch)

pytestmark = pytest.mark.full  # torch

SAMPLES = {
    "fsdp2": "fsdp",
    "fsdp2 in bf16": "fsdp",
    "fsdp2 with replicas": "fsdp",
    "fsdp1": "fsdp",
    "fsdp1 with a mesh": "fsdp",
    "dcp": "dcp",
    "dcp in tiles": "dcp",
    "dcp in safetensors": "dcp",
}


@pytest.mark.parametrize("steps", [(10, 10), (10, 20)])
def test_ranks_of_other_steps(steps: tuple[int, int], tmp_path: Path, messages: Messages) -> None:
    """verl saves the schedule of the learning rate for each rank, next to states of random numbers."""
    import random

    trainers.write_fsdp(tmp_path, {"model.w.weight": floats(np.ones((4, 2)), "F32")}, ranks=2)
    for rank, step in enumerate(steps):
        schedule = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), lambda _: 1.0)
        schedule.last_epoch = step
        rng = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
        extra = {"lr_scheduler": schedule.state_dict(), "rng": rng}
        torch.save(extra, next(tmp_path.rglob(f"*rank_{rank}.pt")).parent / f"extra_state_world_size_2_rank_{rank}.pt")
    if steps[0] == steps[1]:
        assert open_checkpoint(tmp_path).tensors
        return
    with messages.raises(CheckpointError):
        open_checkpoint(tmp_path)


def elements(checkpoint: Checkpoint, name: str) -> NDArray:
    found = checkpoint.tensors[name]
    out = np.zeros(found.nbytes, np.uint8)
    with Files() as files:
        Reader(files).read(found, 0, found.elements, out)
    return out


def test_the_model_that_four_processes_save(tmp_path: Path) -> None:
    """One test, because it is the processes that take the time."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.formats.gloo", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    wanted = read_checkpoint(tmp_path / "plain")
    for folder, format in SAMPLES.items():
        found = open_checkpoint(tmp_path / folder)
        assert found.format == format
        # the head too, where no configuration says that it is tied
        assert set(wanted) <= set(found.tensors) <= {*wanted, "lm_head.weight"}, folder
        for name, stored in wanted.items():
            values = stored.bits
            if "bf16" in folder and stored.dtype == "F32":
                values = stored.numbers(np.float32).astype(ml_dtypes.bfloat16)
            assert found.tensors[name].shape == values.shape, (folder, name)
            assert elements(found, name).tobytes() == values.tobytes(), (folder, name)
        if format == "fsdp":
            assert found.config["vocab_size"] == 37
        if folder.startswith("fsdp2"):  # FSDP1 saves it twice
            assert "lm_head.weight" not in found.tensors
            assert any("lm_head.weight" in note and "tied" in note for note in found.notes)
    (tmp_path / "plain" / "model.safetensors").unlink()
    pickled = open_checkpoint(tmp_path / "plain")
    assert pickled.format == "bin"
    assert all(elements(pickled, name).tobytes() == stored.bits.tobytes() for name, stored in wanted.items())


RNG = np.random.default_rng(0)
MODEL = {
    "model.embed.weight": floats(RNG.normal(size=(7, 6)), "F32"),
    "model.norm.weight": floats(RNG.normal(size=1), "F32"),
    "model.experts.down_proj": floats(RNG.normal(size=(3, 5, 4)), "BF16"),
    "model.empty": Stored("F32", np.zeros((0, 3), np.uint32)),
    "model.scalar": Stored("I64", np.array(3)),
}


def check(folder: Path, tensors: dict[str, Stored] = MODEL) -> Checkpoint:
    found = open_checkpoint(folder)
    assert list(found.tensors) == list(tensors)
    for name, stored in tensors.items():
        assert (found.tensors[name].dtype, found.tensors[name].shape) == (stored.dtype, stored.bits.shape)
        assert elements(found, name).tobytes() == stored.bits.tobytes(), name
    return found


@pytest.mark.parametrize(("ranks", "replicas"), [(1, 1), (2, 1), (5, 1), (64, 1), (3, 2), (1, 4)])
def test_any_number_of_ranks(ranks: int, replicas: int, tmp_path: Path) -> None:
    check(trainers.write_fsdp(tmp_path / "run", MODEL, ranks=ranks, replicas=replicas))


def test_shards_along_another_dimension(tmp_path: Path) -> None:
    dims = {"model.embed.weight": 1, "model.experts.down_proj": 1}
    check(trainers.write_fsdp(tmp_path / "run", MODEL, ranks=3, dims=dims))
    check(trainers.write_fsdp(tmp_path / "more", MODEL, ranks=4, dims={"model.experts.down_proj": 2}))


@pytest.fixture
def actor(tmp_path: Path) -> Path:
    return trainers.write_fsdp(tmp_path / "run", MODEL, ranks=3) / "global_step_7" / "actor"


def test_which_folder_a_user_names(actor: Path, messages: Messages) -> None:
    step, run = actor.parent, actor.parent.parent
    for named in (actor, step, run):
        found = check(named)
        assert found.directory == named
        assert found.metadata_folder == actor / "huggingface"
        assert "shards of 3 ranks" in found.notes[0]
        assert not any(path.name.startswith(("optim", "extra_state")) for path in found.files)
    actor.rename(step / "policy")
    (run / "latest_checkpointed_iteration.txt").rename(run / "latest_ckpt_global_step.txt")
    check(run)
    (run / "latest_ckpt_global_step.txt").write_text("../../etc")
    assert find(run) is None
    with messages.raises(CheckpointError):
        open_checkpoint(run)


def rank(actor: Path, number: int, of: int = 3) -> Path:
    return actor / f"model_world_size_{of}_rank_{number}.pt"


def problems(actor: Path) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as found:
        open_folder(actor, Opening())
    return found.value.problems


def other(tmp_path: Path, tensors: dict[str, Stored], ranks: int = 3) -> Path:
    return trainers.write_fsdp(tmp_path / "other", tensors, ranks=ranks) / "global_step_7" / "actor"


def test_missing_ranks_are_named(actor: Path, messages: Messages) -> None:
    rank(actor, 0).unlink()
    rank(actor, 2).unlink()
    assert [text.split(":")[0] for text in problems(actor)] == [str(rank(actor, 0)), str(rank(actor, 2))]
    rank(actor, 1).rename(rank(actor, 3))
    messages.check(problems(actor)[0])


def test_ranks_of_another_world(actor: Path, messages: Messages) -> None:
    shutil.copy(rank(actor, 0), rank(actor, 0, 2))
    messages.check(*problems(actor))
    (actor / "fsdp_config.json").write_text(json.dumps({"world_size": 5}))
    messages.check(*problems(actor))
    (actor / "fsdp_config.json").unlink()
    for number in range(3):
        rank(actor, number).unlink()
    rank(actor, 0, 2).rename(rank(actor, 0, 1))
    messages.check(*problems(actor))


def test_a_rank_that_was_copied_over_another(actor: Path, messages: Messages) -> None:
    shutil.copy(rank(actor, 0), rank(actor, 1))
    messages.check(*problems(actor))


def test_ranks_of_another_model(actor: Path, tmp_path: Path, messages: Messages) -> None:
    changed = {**MODEL, "model.embed.weight": floats(np.zeros((8, 6)), "F32"), "model.more": floats(np.zeros(4), "F32")}
    changed["model.norm.weight"] = floats(np.zeros(1), "BF16")
    shutil.copy(rank(other(tmp_path, changed), 1), rank(actor, 1))
    messages.check(*problems(actor))
    shutil.copy(rank(other(tmp_path / "again", {**MODEL, "model.more": floats(np.zeros(4), "F32")}), 1), rank(actor, 1))
    messages.check(*problems(actor))


def test_ranks_of_another_step_are_noticed(tmp_path: Path, messages: Messages) -> None:
    replicas = {"ranks": 1, "replicas": 2}
    folder = trainers.write_fsdp(tmp_path / "run", MODEL, **replicas) / "global_step_7" / "actor"
    later = {
        **MODEL,
        "model.embed.weight": floats(RNG.normal(size=(7, 6)), "F32"),
        "model.scalar": Stored("I64", np.array(4)),
    }
    after = trainers.write_fsdp(tmp_path / "later", later, **replicas) / "global_step_7" / "actor"
    shutil.copy(rank(after, 1, 2), rank(folder, 1, 2))
    messages.check(*problems(folder))


def test_files_of_other_times_are_suspect(actor: Path) -> None:
    assert open_checkpoint(actor).warnings == ()
    os.utime(rank(actor, 1), (1e9, 1e9))
    assert any("more than 30 minutes" in text for text in open_checkpoint(actor).warnings)


def test_all_problems_of_all_files_are_listed(actor: Path) -> None:
    rank(actor, 0).write_bytes(b"")
    rank(actor, 1).write_bytes(rank(actor, 1).read_bytes()[:-100])
    torch.save([1, 2], rank(actor, 2))
    found = problems(actor)
    assert [text.split(":")[0] for text in found] == [str(rank(actor, number)) for number in range(3)]


def test_adapters_in_shards_are_refused_with_advice(tmp_path: Path, messages: Messages) -> None:
    lora = {"base_model.model.model.q_proj.lora_A.default.weight": MODEL["model.embed.weight"], **MODEL}
    actor = other(tmp_path, lora)
    messages.check(*problems(actor))
    (actor / "lora_adapter").mkdir()
    messages.check(*problems(actor))


def test_other_objects_and_placements_are_refused(actor: Path, messages: Messages) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import _StridedShard

    with trainers.rank_of(1, 3):
        mesh = init_device_mesh("cpu", (3,))
        part = DTensor.from_local(torch.zeros(2, 6), mesh, [_StridedShard(0, split_factor=2)], run_check=False)
        torch.save(
            {"model.embed.weight": part, "step": 3, "model.turned": torch.zeros(2, 3, 4).permute(2, 0, 1)},
            rank(actor, 1),
        )
    messages.check(*problems(actor))


def test_a_tensor_in_odd_strides_is_refused(tmp_path: Path, messages: Messages) -> None:
    torch.save(
        {"a": torch.zeros(2, 3, 4).permute(2, 0, 1), "b": torch.zeros(4, 4)[:, :2]}, tmp_path / "pytorch_model.bin"
    )
    with pytest.raises(CheckpointError) as found:
        open_checkpoint(tmp_path)
    assert len(found.value.problems) == 2
    messages.check(found.value.problems[1])


def test_links_that_lead_out_are_refused(actor: Path, tmp_path: Path, messages: Messages) -> None:
    rank(actor, 1).rename(tmp_path / "elsewhere.pt")
    rank(actor, 1).symlink_to(tmp_path / "elsewhere.pt")
    with messages.raises(CheckpointError):
        open_checkpoint(actor)
    open_checkpoint(actor, allow_outside_links=True)
    (tmp_path / "elsewhere.pt").replace(rank(actor, 1))
    config = actor / "huggingface" / "config.json"
    config.rename(tmp_path / "config.json")
    config.symlink_to(tmp_path / "config.json")
    with messages.raises(CheckpointError):
        open_checkpoint(actor)


def test_folders_that_link_out_are_refused(actor: Path, tmp_path: Path, messages: Messages) -> None:
    inner = actor / "huggingface"
    inner.rename(tmp_path / "secret")
    (tmp_path / "secret" / "config.json").unlink()
    inner.symlink_to(tmp_path / "secret")
    for named in (actor, actor.parent):
        with messages.raises(CheckpointError):
            open_checkpoint(named)
    assert open_checkpoint(actor, allow_outside_links=True).metadata_folder == inner
    inner.unlink()
    actor.rename(tmp_path / "moved")
    actor.symlink_to(tmp_path / "moved")
    open_checkpoint(actor)
    with messages.raises(CheckpointError):
        open_checkpoint(actor.parent)


def test_run_of_links_in_the_hub_cache(actor: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    for path in [path for path in actor.rglob("*") if path.is_file()]:
        link = snapshot / "actor" / path.relative_to(actor)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.rename(blobs / path.name))
    check(snapshot)


def test_float32_shards_move_a_bf16_base(tmp_path: Path) -> None:
    values = RNG.normal(size=(40, 16)) * 0.02
    base = {"model.layers.0.weight": floats(values, "BF16")}
    moved = base["model.layers.0.weight"].numbers(np.float32) + np.float32(2e-5)
    agent = {"model.layers.0.weight": floats(moved, "F32")}
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "plain", agent)
    trainers.write_fsdp(tmp_path / "run", agent, ranks=3)
    for name in ("plain", "run"):
        ramerge.merge({**recipe(tmp_path, [name]), "method": "task_arithmetic"}, tmp_path / f"out-{name}")
    expected, found = read_checkpoint(tmp_path / "out-plain"), read_checkpoint(tmp_path / "out-run")
    assert all(found[name].bits.tobytes() == expected[name].bits.tobytes() for name in expected)


def dtensor(mesh: dict[str, object], package: str, offsets: list[int]) -> Stub:
    """A DTensor as older versions of torch write it: by hand, from their sources."""
    held = TorchStorage(Path("x"), 0, 24, 0)
    spec = {
        "mesh": Stub("torch.distributed.device_mesh.DeviceMesh", (), {"_coordinate_on_dim": offsets, **mesh}),
        "placements": (
            Stub(f"{package}.placement_types.Replicate", ()),
            Stub(f"{package}.placement_types.Shard", (), {"dim": 0}),
        ),
        "tensor_meta": Stub(f"{package}.placement_types.TensorMeta", ((7, 2), (2, 1), Name("torch.float32"))),
    }
    state = {"_local_tensor": View(held, "F32", (3, 2), (2, 1), 0), "_spec": Stub("spec", (), spec)}
    return Stub(f"{package}.DTensor", (), state)


@pytest.mark.parametrize("package", ["torch.distributed._tensor.api", "torch.distributed.tensor"])
@pytest.mark.parametrize(
    "mesh",
    [
        {"mesh": View(TorchStorage(Path("x"), 0, 48, 0), "I64", (2, 3), (3, 1), 0)},
        {"_layout": Stub("layout", (), {"shape": (2, 3), "stride": (3, 1)})},
        {"_layout": Stub("layout", (), {"axes": tuple(Stub("axis", (), {"shape": (n,)}) for n in (2, 3))})},
    ],
)
def test_meshes_of_older_versions_of_torch(mesh: dict[str, object], package: str, messages: Messages) -> None:
    part = part_of(dtensor(mesh, package, [1, 1]))
    assert (part.shape, part.dtype, part.boxes[0][0]) == ((7, 2), "F32", (3, 0))
    with messages.raises(RefusedError):
        part_of(dtensor(mesh, package, [1, 2]))
    with messages.raises(RefusedError):
        part_of(dtensor(mesh, package, [1, 3]))
