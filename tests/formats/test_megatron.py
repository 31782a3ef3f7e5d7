"""Megatron's distributed checkpoints: layouts, names, the places of config.json, and what is refused.

They are written by hand; see `tests.formats.megatron`.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.formats import megatron as megatron_format
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.reader import Files, Reader
from tests.checkpoints import floats, read_checkpoint, write_checkpoint
from tests.reference import Stored

pytest.importorskip("torch")

from tests.formats import megatron  # needs torch
from tests.messages import Messages

pytestmark = pytest.mark.full  # torch

NUMBERS = floats(np.random.default_rng(0).normal(size=4000), "BF16").bits


def check(found: Checkpoint, tensors: dict[str, Stored]) -> None:
    assert found.format == "megatron"
    assert set(found.tensors) == set(tensors)
    with Files(found.files) as files:
        for name, stored in tensors.items():
            tensor = found.tensors[name]
            assert (tensor.name, tensor.dtype, tensor.shape) == (name, stored.dtype, stored.bits.shape)
            out = np.zeros(tensor.nbytes, np.uint8)
            Reader(files).read(tensor, 0, tensor.elements, out)
            assert out.tobytes() == stored.bits.tobytes(), name


def config_of(kind: str) -> dict[str, Any]:
    return {
        "llama": {**megatron.DENSE, "model_type": "llama"},
        "one group": {**megatron.DENSE, "num_key_value_heads": 1},
        "a group for every head": {**megatron.DENSE, "num_key_value_heads": 4},
        "qwen2": megatron.DENSE,
        "qwen3": {**megatron.DENSE, "model_type": "qwen3", "head_dim": 6},
        "qwen3_moe": megatron.MOE,
    }[kind]


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("kind", ["llama", "one group", "a group for every head", "qwen2", "qwen3", "qwen3_moe"])
def test_layouts(kind: str, stacked: bool, parallel: int, tmp_path: Path) -> None:
    config = config_of(kind)
    tensors = megatron.model(config, NUMBERS, "BF16")
    folder = megatron.write_torch_dist(tmp_path / "x", config, tensors, stacked=stacked, parallel=parallel)
    found = open_checkpoint(folder)
    check(found, tensors)
    assert found.config == config
    assert found.metadata_folder == folder / "huggingface"
    assert all(path.suffix in (".distcp", ".json", "") for path in found.files)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", megatron_format._MODELS)
def test_the_keys_that_transformers_writes(kind: str, tmp_path: Path) -> None:
    """Transformers renames keys of config.json: since version 5 it writes Qwen3's num_experts as num_local_experts."""
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 77}
    more = {"num_experts": 6} if kind.endswith("_moe") else {}
    config = transformers.AutoConfig.for_model(kind, hidden_size=64, head_dim=8, **sizes, **more)
    config.save_pretrained(tmp_path)
    read = megatron_format.Sizes.from_config(json.loads((tmp_path / "config.json").read_text()))
    assert read == megatron_format.Sizes(3, more.get("num_experts", 0), 8, 4, 8, 77)


@pytest.mark.parametrize("stacked", [True, False])
def test_experts_under_the_key_of_transformers_5(stacked: bool, tmp_path: Path) -> None:
    config = {("num_local_experts" if key == "num_experts" else key): value for key, value in megatron.MOE.items()}
    tensors = megatron.model(megatron.MOE, NUMBERS, "BF16")
    folder = megatron.write_torch_dist(tmp_path / "x", megatron.MOE, tensors, stacked=stacked, parallel=2)
    (folder / "huggingface/config.json").write_text(json.dumps(config))
    check(open_checkpoint(folder), tensors)


def test_a_shared_expert(tmp_path: Path) -> None:
    config = {**megatron.MOE, "model_type": "qwen2_moe"}
    tensors = megatron.model(config, NUMBERS, "BF16")
    pieces = megatron.in_pieces(config, megatron.in_megatron(config, tensors), stacked=False, parallel=1)
    bits = {part: NUMBERS[i * 48 : i * 48 + 48].reshape(6, 8) for i, part in enumerate(("gate", "up", "down"))}
    for layer in range(2):
        mlp = f"decoder.layers.{layer}.mlp.shared_experts."
        for name, value in (
            ("linear_fc1.weight", np.concatenate([bits["gate"], bits["up"]])),
            ("linear_fc2.weight", bits["down"].reshape(8, 6)),
            ("gate_weight", NUMBERS[:8].reshape(1, 8)),
        ):
            pieces[mlp + name] = (value.shape, [((0, 0), value)])
        new = f"model.layers.{layer}.mlp.shared_expert"
        tensors |= {f"{new}.{part}_proj.weight": Stored("BF16", bits[part]) for part in ("gate", "up")}
        tensors[f"{new}.down_proj.weight"] = Stored("BF16", bits["down"].reshape(8, 6))
        tensors[f"{new}_gate.weight"] = Stored("BF16", NUMBERS[:8].reshape(1, 8))
    folder = megatron.write_pieces(tmp_path / "x", pieces, "BF16")
    (folder / "config.json").write_text(json.dumps(config))
    check(open_checkpoint(folder), tensors)


@dataclass
class Model:
    """A written model, and the parts that it was written from."""

    config: dict[str, Any]
    tensors: dict[str, Stored]
    pieces: megatron.Pieces


@pytest.fixture
def dense() -> Model:
    tensors = megatron.model(megatron.DENSE, NUMBERS, "BF16")
    whole = megatron.in_megatron(megatron.DENSE, tensors)
    pieces = megatron.in_pieces(megatron.DENSE, whole, stacked=True, parallel=2)
    return Model({**megatron.DENSE}, tensors, pieces)


def test_tied_embeddings(dense: Model, tmp_path: Path) -> None:
    del dense.pieces["output_layer.weight"], dense.tensors["lm_head.weight"]
    folder = megatron.write_pieces(tmp_path / "x", dense.pieces, "BF16")
    (folder / "config.json").write_text(json.dumps({**dense.config, "tie_word_embeddings": True}))
    check(open_checkpoint(folder), dense.tensors)


def test_a_run_and_its_latest_step(dense: Model, tmp_path: Path) -> None:
    for step in (3, 20, 100):
        megatron.write_pieces(tmp_path / f"iter_{step:07}", dense.pieces, "BF16")
    (tmp_path / "config.json").write_text(json.dumps(dense.config))
    assert open_checkpoint(tmp_path).tensors["lm_head.weight"].path.parent.name == "iter_0000100"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20\n")
    found = open_checkpoint(tmp_path)
    check(found, dense.tensors)
    assert found.tensors["lm_head.weight"].path.parent.name == "iter_0000020"


@pytest.mark.parametrize("place", ["dist_ckpt", "model/dist_ckpt"])
def test_both_layouts_of_verl(place: str, dense: Model, tmp_path: Path) -> None:
    actor = tmp_path / "global_step_7" / "actor"
    folder = megatron.write_pieces(actor / place, dense.pieces, "BF16")
    (folder.parent / "huggingface").mkdir()
    (folder.parent / "huggingface" / "config.json").write_text(json.dumps(dense.config))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    for given in (actor, actor.parent, tmp_path):
        check(open_checkpoint(given), dense.tensors)


def test_the_config_of_the_base(dense: Model, tmp_path: Path, messages: Messages) -> None:
    folder = megatron.write_pieces(tmp_path / "agent", dense.pieces, "BF16")
    with messages.raises(CheckpointError):
        open_checkpoint(folder)
    write_checkpoint(tmp_path / "base", dense.tensors, config=dense.config)
    base = open_checkpoint(tmp_path / "base")
    found = open_checkpoint(folder, base=base)
    check(found, dense.tensors)
    assert found.metadata_folder == base.metadata_folder
    assert any("there is no config.json; that of the base" in note for note in found.notes)
    ramerge.convert(folder, tmp_path / "out", base=tmp_path / "base")
    for name, stored in read_checkpoint(tmp_path / "out").items():
        assert stored.bits.tobytes() == dense.tensors[name].bits.tobytes()


def renamed(model: Model) -> None:
    model.pieces["decoder.layers.mlp.router.expert_bias"] = model.pieces.pop("decoder.final_layernorm.weight")


def shorter(model: Model, key: str, rows: int) -> None:
    shape, _ = model.pieces[key]
    bits = np.zeros((*shape[: len(shape) - 2], rows, shape[-1]), np.uint16)
    model.pieces[key] = bits.shape, [((0,) * bits.ndim, bits)]


def later(model: Model) -> None:
    shape, parts = model.pieces["decoder.final_layernorm.weight"]
    model.pieces["decoder.layers.5.pre_mlp_layernorm.weight"] = shape, parts


def hole(model: Model) -> None:
    model.pieces["decoder.layers.mlp.linear_fc1.weight"][1].pop(3)


def twice(model: Model) -> None:
    shape, parts = model.pieces["decoder.layers.self_attention.linear_qkv.layer_norm_weight"]
    model.pieces["decoder.layers.input_layernorm.weight"] = shape, parts


CHANGES: dict[str, tuple[Callable[[Model], object], str]] = {
    "an unknown name": (renamed, "not known: 'decoder.layers.mlp.router.expert_bias'; convert it: python tools/conv"),
    "another architecture": (lambda m: m.config.update(model_type="gemma3"), "is of a 'gemma3' model; those"),
    "no heads": (lambda m: m.config.pop("num_attention_heads"), "no usable num_attention_heads"),
    "negative heads": (lambda m: m.config.update(num_attention_heads=-4), "no usable num_attention_heads"),
    "heads of text": (lambda m: m.config.update(num_attention_heads="4"), "no usable num_attention_heads ('4')"),
    "heads in no groups": (lambda m: m.config.update(num_key_value_heads=3), "no whole number of heads"),
    "other heads": (lambda m: m.config.update(head_dim=3), "should have 2 groups of 2 + 2 heads of 3 rows"),
    "other layers": (lambda m: m.config.update(num_hidden_layers=3), "should hold 3 layers"),
    "a larger vocabulary": (lambda m: m.config.update(vocab_size=17), "vocab_size in config.json is 17"),
    "an odd gate and up": (lambda m: shorter(m, "decoder.layers.mlp.linear_fc1.weight", 3), "gate and up, one below"),
    "a layer too many": (later, "is of layer 5, but config.json says 2"),
    "a missing piece": (hole, "its shards lack 24 of 192 elements"),
    "a norm twice": (twice, "which another tensor is too"),
    "no embeddings": (lambda m: m.pieces.pop("embedding.word_embeddings.weight"), "that becomes 'model.embed_tokens"),
    "no tensors": (lambda m: m.pieces.clear(), "holds no tensors of a model"),
}


@pytest.mark.parametrize("case", list(CHANGES))
def test_what_is_refused(case: str, dense: Model, tmp_path: Path) -> None:
    change, words = CHANGES[case]
    change(dense)
    folder = megatron.write_pieces(tmp_path / "x", dense.pieces, "BF16")
    (folder / "config.json").write_text(json.dumps(dense.config))
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    assert any(words in problem for problem in error.value.problems), error.value.problems
    assert all(str(folder) in problem for problem in error.value.problems)


def test_files_that_are_missing_or_cut_off(dense: Model, tmp_path: Path, messages: Messages) -> None:
    folder = megatron.write_pieces(tmp_path / "x", dense.pieces, "BF16")
    (folder / "config.json").write_text(json.dumps(dense.config))
    kept = shutil.copytree(folder, tmp_path / "kept")
    (folder / "__1_0.distcp").unlink()
    with messages.raises(CheckpointError):
        open_checkpoint(folder)
    (kept / "__1_0.distcp").write_bytes((kept / "__1_0.distcp").read_bytes()[:-100])
    with messages.raises(CheckpointError):
        open_checkpoint(kept)
    (kept / ".metadata").unlink()
    with messages.raises(CheckpointError):
        open_checkpoint(kept)


def test_the_command_of_verl(dense: Model, tmp_path: Path) -> None:
    renamed(dense)
    megatron.write_pieces(tmp_path / "actor" / "dist_ckpt", dense.pieces, "BF16")
    (tmp_path / "actor" / "huggingface").mkdir()
    (tmp_path / "actor" / "huggingface" / "config.json").write_text(json.dumps(dense.config))
    command = f"python -m verl.model_merger merge --backend megatron --local_dir {tmp_path / 'actor'}"
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path / "actor")
    assert command in str(error.value)
