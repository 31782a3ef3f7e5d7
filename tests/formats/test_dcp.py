"""Folders of torch.distributed.checkpoint: where the model lies in them, and what is wrong with others.

Those that several processes save are in `test_fsdp`.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.header import encode_header
from ramerge.core.tensors.reader import Files, Reader
from tests.checkpoints import floats
from tests.messages import Messages

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.metadata import MetadataIndex  # noqa: E402

from tests.formats import trainers  # noqa: E402  (needs torch)

pytestmark = pytest.mark.full  # torch

RNG = np.random.default_rng(0)
MODEL = {
    "model.embed.weight": floats(RNG.normal(size=(7, 6)), "F32"),
    "model.layers.0.weight": floats(RNG.normal(size=(3, 4)), "BF16"),
}


def check(folder: Path) -> Checkpoint:
    found = open_checkpoint(folder)
    assert found.format == "dcp"
    assert set(found.tensors) == set(MODEL)
    for name, stored in MODEL.items():
        tensor = found.tensors[name]
        out = np.zeros(tensor.nbytes, np.uint8)
        with Files() as files:
            Reader(files).read(tensor, 0, tensor.elements, out)
        assert (tensor.dtype, tensor.shape) == (stored.dtype, stored.bits.shape)
        assert out.tobytes() == stored.bits.tobytes()
    return found


@pytest.mark.parametrize("root", [("model",), ("state_dict",), ("app", "model"), (), ("something",)])
def test_the_model_is_found_under_any_key(root: tuple[str, ...], tmp_path: Path) -> None:
    found = check(trainers.write_dcp(tmp_path / "x", MODEL, root=root))
    assert found.config == trainers.CONFIG


def test_folders_that_trainers_put_it_in(tmp_path: Path) -> None:
    for name in ("pytorch_model_fsdp_0", "trainer"):
        outer = tmp_path / name
        outer.mkdir()
        inner = trainers.write_dcp(outer / name, MODEL)
        (inner / "config.json").rename(outer / "config.json")
        found = check(outer)
        assert found.metadata_folder == outer


def metadata(folder: Path, change: Callable[[Any], None]) -> None:
    """Change `.metadata`."""
    path = folder / ".metadata"
    found = pickle.loads(path.read_bytes())  # noqa: S301  (it is ours)
    change(found)
    path.write_bytes(pickle.dumps(found))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return trainers.write_dcp(tmp_path / "x", MODEL)


NAME = "model.model.embed.weight"


def of(found: Any, name: str = NAME) -> Any:
    """Where a tensor is."""
    return next(info for index, info in found.storage_data.items() if index.fqn == name)


def chunks(found: Any) -> Any:
    return found.state_dict_metadata[NAME].chunks


def twice(found: Any) -> None:
    chunks(found).append(chunks(found)[0])


def moved(found: Any) -> None:
    size = torch.Size((4, 6))
    chunks(found)[0] = type(chunks(found)[0])(torch.Size((3, 0)), size)
    found.storage_data[MetadataIndex(NAME, (3, 0))] = of(found)


def larger(found: Any) -> None:
    found.state_dict_metadata[NAME].size = torch.Size((9, 6))


def deep(depth: int) -> tuple[Any, ...]:
    return (deep(depth - 1),) if depth else ()


def another_dtype(found: Any) -> None:
    found.state_dict_metadata[NAME].properties.dtype = torch.float64


def no_dtype(found: Any) -> None:
    found.state_dict_metadata[NAME].properties.dtype = "x"


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a piece twice": (twice, "are in the same bytes of a file"),
    "the same bytes for two": (
        lambda found: vars(of(found)).update(vars(of(found, "model.model.layers.0.weight"))),
        "are in the same bytes of a file",
    ),
    "a deep tuple": (lambda found: setattr(of(found), "transform_descriptors", deep(500)), "compressed or encrypted"),
    "a file without a name": (lambda found: setattr(of(found), "relative_path", (1,)), "is a tuple, not a name"),
    "a hole": (larger, "its shards lack 12 of 54 elements"),
    "another piece": (moved, "holds F32 [7, 6] where .metadata says F32 [4, 6]"),
    "another dtype": (another_dtype, "holds F32 [7, 6] where .metadata says F64"),
    "no place": (lambda found: found.storage_data.pop(MetadataIndex(NAME, (0, 0))), "at [0, 0] is in no file"),
    "a place beyond the end": (lambda found: setattr(of(found), "offset", 10**9), "beyond its end"),
    "a place of 65 bits": (lambda found: setattr(of(found), "offset", 2**64), "a place that is no list"),
    "a place in another": (
        lambda found: vars(of(found)).update(offset=of(found).offset + 1, length=of(found).length - 1),
        "not a torch.save file",
    ),
    "another file": (lambda found: setattr(of(found), "relative_path", "__9_9.distcp"), "is missing"),
    "a file outside": (lambda found: setattr(of(found), "relative_path", "../x"), "leads out of the folder"),
    "compressed": (lambda found: setattr(of(found), "transform_descriptors", ["zstd"]), "compressed or encrypted"),
    "no tensors": (lambda found: setattr(found, "state_dict_metadata", None), "does not describe tensors"),
    "no dtype": (
        lambda found: setattr(found.state_dict_metadata[NAME].properties, "dtype", "x"),
        "dtype that is known",
    ),
    "no pieces": (lambda found: setattr(found.state_dict_metadata[NAME], "chunks", 3), "no list of pieces"),
    "two models": (lambda found: renamed(found, "a", "b"), "keys with tensors: 'a', 'b'"),
}


def renamed(found: Any, *roots: str) -> None:
    for root, name in zip(roots, MODEL, strict=True):
        found.planner_data[f"model.{name}"] = (root, name)


@pytest.mark.parametrize("case", list(CHANGES))
def test_metadata_that_lies(case: str, folder: Path) -> None:
    change, words = CHANGES[case]
    metadata(folder, lambda found: change(found) and None)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    assert any(words in problem for problem in error.value.problems), error.value.problems
    assert all(str(folder) in problem for problem in error.value.problems)


def test_writers_that_do_not_say_where_tensors_were(tmp_path: Path) -> None:
    inside = trainers.write_dcp(tmp_path / "x", MODEL, root=("state_dict",))
    metadata(inside, lambda found: setattr(found, "planner_data", None))
    check(inside)


def test_only_whole_keys_are_a_trainers_state(tmp_path: Path) -> None:
    more = {name: floats(np.zeros(3), "F32") for name in ("progress_head.weight", "scheduled.weight")}
    state = {name: floats(np.zeros(3), "F32") for name in ("optimizer.step", "lr_scheduler.last", "rng_state.x")}
    folder = trainers.write_dcp(tmp_path / "x", {**MODEL, **more, **state}, root=(), optimizer=False)
    found = open_checkpoint(folder)
    assert set(found.tensors) == {*MODEL, *more}
    assert all(any(name in note and "left out" in note for note in found.notes) for name in state)


def test_files_of_other_times_are_suspect(tmp_path: Path) -> None:
    for number, offset in ((1, 0), (2, 2)):
        safetensors(tmp_path / f"shard-{number:05}-model-00001-of-00001.safetensors", [offset, 0])
    os.utime(tmp_path / "shard-00001-model-00001-of-00001.safetensors", (1e9, 1e9))
    assert any("more than 30 minutes" in text for text in open_checkpoint(tmp_path).warnings)


def test_a_checkpoint_without_metadata_is_not_complete(folder: Path, messages: Messages) -> None:
    (folder / ".metadata").unlink()
    with messages.raises(CheckpointError):
        open_checkpoint(folder)


def test_metadata_is_not_executed(folder: Path, messages: Messages) -> None:
    (folder / ".metadata").write_bytes(b"\x80\x02cos\nsystem\nX\x05\0\0\0false\x85R.")
    with messages.raises(CheckpointError):
        open_checkpoint(folder)


def test_files_of_another_checkpoint_are_refused(folder: Path, tmp_path: Path) -> None:
    other = trainers.write_dcp(tmp_path / "other", {"z": floats(np.zeros((7, 6)), "F32"), **MODEL})
    for path in other.glob("*.distcp"):
        shutil.copy(path, folder)
    with pytest.raises(CheckpointError):
        open_checkpoint(folder)


def safetensors(
    path: Path, offsets: Any, shape: tuple[int, ...] = (2, 3), text: str | None = None, name: str = "w"
) -> None:
    said = {} if offsets is None else {"DCP_SHARDING_INFO": text or json.dumps({name: {"saved_offsets": offsets}})}
    path.write_bytes(
        encode_header([(name, "F32", shape, 4 * int(np.prod(shape)))], said) + bytes(4 * int(np.prod(shape)))
    )


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([0, 0], [1, 0], "overlap"),
        ([0, 0], [3, 0], "lack 3 of 15"),
        ([0, 0], [2], "no offsets that fit"),
        ([0, 0], [-1, 0], "no offsets that fit"),
        ([0, 0], "x", "no offsets that fit"),
        ([0, 0], None, "lacks DCP_SHARDING_INFO"),
    ],
)
def test_safetensors_shards_that_lie(first: Any, second: Any, words: str, tmp_path: Path) -> None:
    safetensors(tmp_path / "shard-00001-model-00001-of-00001.safetensors", first)
    safetensors(tmp_path / "shard-00002-model-00001-of-00001.safetensors", second)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path)


def test_last_ranks_that_are_missing(tmp_path: Path, messages: Messages) -> None:
    for number in range(3):
        safetensors(
            tmp_path / f"shard-{number + 1:05}-model-00001-of-00001.safetensors",
            [2 * number, 0],
            name="model.embed_tokens.weight",
        )
    assert any("how many ranks there were" in text for text in open_checkpoint(tmp_path).warnings)
    (tmp_path / "config.json").write_text('{"vocab_size": 6}')
    assert open_checkpoint(tmp_path).warnings == ()
    (tmp_path / "shard-00003-model-00001-of-00001.safetensors").unlink()
    with messages.raises(CheckpointError):
        open_checkpoint(tmp_path)


def test_parts_that_no_rank_has(tmp_path: Path, messages: Messages) -> None:
    safetensors(tmp_path / "shard-00001-model-00001-of-00002.safetensors", [0, 0])
    with messages.raises(CheckpointError):
        open_checkpoint(tmp_path)


def test_a_part_that_only_the_last_rank_lacks(tmp_path: Path, messages: Messages) -> None:
    """Nothing lies behind it, so there is no hole; but a matrix of many rows has some on every rank."""
    for rank, part in ((1, 1), (1, 2), (2, 1), (2, 2)):
        name = f"shard-{rank:05}-model-{part:05}-of-00002.safetensors"
        safetensors(tmp_path / name, [2 * (rank - 1), 0], name=f"layers.{part}.weight")
    assert {tensor.shape for tensor in open_checkpoint(tmp_path).tensors.values()} == {(4, 3)}
    lost = tmp_path / "shard-00002-model-00001-of-00002.safetensors"
    lost.unlink()
    with messages.raises(CheckpointError):
        open_checkpoint(tmp_path)
    # of one row, the second rank has nothing
    safetensors(tmp_path / "shard-00001-model-00001-of-00002.safetensors", [0, 0], (1, 3), name="layers.1.weight")
    assert open_checkpoint(tmp_path).tensors["layers.1.weight"].shape == (1, 3)


def test_parts_of_two_saves(tmp_path: Path, messages: Messages) -> None:
    for part, of in ((1, 1), (2, 2)):
        safetensors(
            tmp_path / f"shard-00001-model-{part:05}-of-{of:05}.safetensors", [0, 0], name=f"layers.{part}.weight"
        )
    with messages.raises(CheckpointError):
        open_checkpoint(tmp_path)


def test_a_missing_safetensors_shard(tmp_path: Path, messages: Messages) -> None:
    safetensors(tmp_path / "shard-00001-model-00001-of-00001.safetensors", [0, 0])
    safetensors(tmp_path / "shard-00003-model-00001-of-00001.safetensors", [2, 0])
    with messages.raises(CheckpointError):
        open_checkpoint(tmp_path)
    safetensors(tmp_path / "shard-00002-model-00001-of-00001.safetensors", [0, 0], text="[")
    with pytest.raises(CheckpointError, match=r"DCP_SHARDING_INFO .*not JSON"):
        open_checkpoint(tmp_path)


def test_factors_of_adapters_in_a_model_are_named(tmp_path: Path, messages: Messages) -> None:
    factor, weight = "model.q_proj.lora_A.default.weight", "model.q_proj.base_layer.weight"
    folder = trainers.write_dcp(tmp_path / "x", MODEL | {factor: floats(np.ones((4, 6))), weight: floats(np.eye(6))})
    with messages.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert factor in str(caught.value)


def test_a_checkpoint_of_megatron_fsdp_is_named(tmp_path: Path) -> None:
    name = "module.decoder.layers.0.self_attention.linear_qkv.weight"
    folder = trainers.write_dcp(tmp_path / "run/iter_0000010", {name: floats(np.ones((4, 6)))})
    with pytest.raises(CheckpointError, match="fsdp_dtensor"):
        open_checkpoint(folder)
    with pytest.raises(CheckpointError, match="iter_0000010"):
        open_checkpoint(tmp_path / "run")
