"""Partitions of DeepSpeed's ZeRO. They are written by hand from its source; see `tests.formats.trainers.write_zero`."""

import math
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.reader import Files, Reader
from tests.checkpoints import floats, write_checkpoint
from tests.messages import Messages
from tests.reference import Stored

torch = pytest.importorskip("torch")

from tests.formats import trainers  # noqa: E402  (needs torch)

pytestmark = pytest.mark.full  # torch

RNG = np.random.default_rng(0)
SHAPES = {"embed_tokens.weight": (7, 6), "a.weight": (5, 3), "a.bias": (5,), "norm.weight": (1,), "b.weight": (2, 3, 4)}
MODEL = {name: floats(RNG.normal(size=shape), "F32") for name, shape in SHAPES.items()}
FROZEN = {"frozen.weight": floats(RNG.normal(size=(3, 5)), "BF16")}
BUFFERS = {"steps": floats(RNG.normal(size=(3,)), "F32")}
ALL = {**MODEL, **FROZEN, **BUFFERS}
GROUPS = (("embed_tokens.weight", "a.weight", "b.weight"), ("a.bias", "norm.weight"))
MORE: dict[str, Any] = {"groups": GROUPS, "frozen": tuple(FROZEN), "buffers": tuple(BUFFERS)}


def check(found: Checkpoint, tensors: dict[str, Stored]) -> None:
    assert found.format == "deepspeed"
    assert set(found.tensors) == set(tensors)
    with Files(found.files) as files:
        for name, stored in tensors.items():
            tensor = found.tensors[name]
            assert (tensor.name, tensor.dtype, tensor.shape) == (name, stored.dtype, stored.bits.shape)
            whole = stored.bits.reshape(-1)
            for start, stop in ((0, whole.size), (whole.size // 3, whole.size - whole.size // 4)):
                out = np.zeros((stop - start) * whole.itemsize, np.uint8)
                Reader(files).read(tensor, start, stop, out)
                assert out.tobytes() == whole[start:stop].tobytes(), name


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_world_sizes(ranks: int, stage: int, tmp_path: Path) -> None:
    folder = trainers.write_zero(tmp_path / "x", ALL, stage=stage, ranks=ranks, **MORE)
    found = open_checkpoint(folder)
    check(found, ALL)
    assert found.config == trainers.CONFIG
    assert any(f"ZeRO-{stage}, in partitions of {ranks} rank" in note for note in found.notes)
    check(open_checkpoint(folder / "global_step7"), ALL)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_of_other_steps(stage: int, tmp_path: Path, messages: Messages) -> None:
    trainers.write_zero(tmp_path / "same", MODEL, stage=stage, ranks=3, steps=(30, 30, 30))
    check(open_checkpoint(tmp_path / "same"), MODEL)
    trainers.write_zero(tmp_path / "mixed", MODEL, stage=stage, ranks=3, steps=(30, 30, 20))
    with messages.raises(CheckpointError):
        open_checkpoint(tmp_path / "mixed")


def test_more_ranks_than_elements(tmp_path: Path) -> None:
    for stage in (2, 3):
        check(open_checkpoint(trainers.write_zero(tmp_path / f"{stage}", MODEL, stage=stage, ranks=64)), MODEL)


@pytest.mark.parametrize("gap", [1, 5])
def test_gaps_behind_parameters(gap: int, tmp_path: Path) -> None:
    check(open_checkpoint(trainers.write_zero(tmp_path / "x", ALL, stage=2, ranks=3, gap=gap, **MORE)), ALL)


@pytest.mark.parametrize("parts", [2, 5])
def test_parameters_over_several_vectors_of_a_rank(parts: int, tmp_path: Path) -> None:
    check(open_checkpoint(trainers.write_zero(tmp_path / "x", ALL, stage=3, ranks=3, parts=parts, **MORE)), ALL)


@pytest.mark.parametrize("stage", [2, 3])
def test_shared_parameters(stage: int, tmp_path: Path) -> None:
    shared = {"lm_head.weight": "embed_tokens.weight"}
    both = {**MODEL, "lm_head.weight": MODEL["embed_tokens.weight"]}
    check(open_checkpoint(trainers.write_zero(tmp_path / "x", MODEL, stage=stage, ranks=2, shared=shared)), both)
    config = {**trainers.CONFIG, "tie_word_embeddings": True}
    folder = trainers.write_zero(tmp_path / "tied", MODEL, stage=stage, ranks=2, shared=shared, config=config)
    check(open_checkpoint(folder), MODEL)


def test_shared_parameters_that_are_not_listed(tmp_path: Path) -> None:
    folder = trainers.write_zero(
        tmp_path / "x", MODEL, stage=2, ranks=2, shared={"lm_head.weight": "embed_tokens.weight"}
    )
    change(folder, MODEL_FILE, lambda state: state.pop("shared_params"))
    check(open_checkpoint(folder), {**MODEL, "lm_head.weight": MODEL["embed_tokens.weight"]})


def test_config_is_the_bases_or_missing(tmp_path: Path) -> None:
    folder = trainers.write_zero(tmp_path / "x", MODEL, stage=3, ranks=2)
    (folder / "config.json").unlink()
    assert open_checkpoint(folder).config == {}
    base = open_checkpoint(write_checkpoint(tmp_path / "base", MODEL))
    found = open_checkpoint(folder, base=base)
    assert (found.config, found.metadata_folder) == (base.config, base.metadata_folder)
    assert any("that of the base" in note for note in found.notes)


def test_all_damaged_files_are_named(tmp_path: Path) -> None:
    folder = trainers.write_zero(tmp_path / "x", MODEL, stage=3, ranks=4)
    damaged = [folder / "global_step7" / OPTIMIZER.replace("rank_1", f"rank_{rank}") for rank in (1, 3)]
    for path in damaged:
        path.write_bytes(b"PK")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    assert [problem.split(": ")[0] for problem in error.value.problems] == list(map(str, damaged))


def test_the_actor_of_openrlhf(tmp_path: Path) -> None:
    trainers.write_zero(tmp_path / "_actor", MODEL, stage=3, ranks=2)
    check(open_checkpoint(tmp_path), MODEL)


MODEL_FILE = "mp_rank_00_model_states.pt"
OPTIMIZER = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"


def change(folder: Path, name: str, act: Callable[[Any], object]) -> None:
    """Change a file of torch.save that the tests wrote."""
    path = folder / "global_step7" / name
    state = torch.load(path, weights_only=False)
    act(state)
    torch.save(state, path)


def optimizer(act: Callable[[Any], object]) -> Callable[[Path], None]:
    return lambda folder: change(folder, OPTIMIZER, lambda state: act(state["optimizer_state_dict"]))


def of_model(act: Callable[[Any], object]) -> Callable[[Path], None]:
    return lambda folder: change(folder, MODEL_FILE, act)


def added(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "global_step7" / name).write_bytes(b"x")


def removed(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "global_step7" / name).unlink()


def cut_off(folder: Path) -> None:
    path = folder / "global_step7" / OPTIMIZER
    path.write_bytes(path.read_bytes()[:-50])


def halved(state: Any) -> None:
    state["single_partition_of_fp32_groups"] = [part[:2].clone() for part in state["single_partition_of_fp32_groups"]]


def enlarged(state: Any) -> None:
    state["param_shapes"][0]["embed_tokens.weight"] = torch.Size((2**40, 2**20))


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a rank": (removed(OPTIMIZER), "has no *_optim_states.pt file of rank 1, so the model is not complete"),
    "the last rank": (removed(OPTIMIZER.replace("_1_", "_2_")), "one of 3 partitions, but there are files of 2 ranks"),
    "all ranks": (lambda f: [p.unlink() for p in f.glob("*/*optim*")], "holds no *_optim_states.pt, in which"),
    "the model": (removed(MODEL_FILE), "has no mp_rank_00_model_states.pt, which says what"),
    "an earlier run's": (added(OPTIMIZER.replace("_1_", "_3_")), "not a file of torch.save"),
    "truncated": (cut_off, "truncated: the end of the archive is missing"),
    "tensor parallel": (added("mp_rank_01_model_states.pt"), "tensor parallelism, which is not read; DeepSpeed conv"),
    "optimizers of it": (added(OPTIMIZER.replace("mp_rank_00", "mp_rank_01")), "python {run}/zero_to_fp32.py {run}"),
    "experts": (added("layer_0_expert_0_mp_rank_00_model_states.pt"), "experts were spread over ranks"),
    "optimizers of experts": (added("expp_rank_0_mp_rank_00_optim_states.pt"), "experts were spread over ranks"),
    "pipelines": (added("layer_00-model_00-model_states.pt"), "layers (a pipeline) were spread over ranks"),
    "experts of AutoEP": (of_model(lambda s: s.update(ds_autoep_layers=[{}])), "layers of experts that were spread"),
    "another world": (optimizer(lambda s: s.update(partition_count=[4, 4])), "one of 4 partitions, but there are"),
    "another stage": (optimizer(lambda s: s.update(zero_stage=1)), "is of ZeRO-1 with 2 groups, but"),
    "no stage": (optimizer(lambda s: s.pop("zero_stage")), "holds no float32 weights of ZeRO"),
    "no weights": (optimizer(lambda s: s.pop("single_partition_of_fp32_groups")), "holds no float32 weights of ZeRO"),
    "counts of text": (optimizer(lambda s: s.update(partition_count=["3", 3])), "holds no float32 weights of ZeRO"),
    "short": (optimizer(halved), "elements of group 0, which has"),
    "bfloat16": (
        optimizer(lambda s: s.update(single_partition_of_fp32_groups=[torch.zeros(3).bfloat16()] * 2)),
        "not float32 vectors",
    ),
    "gaps below 0": (optimizer(lambda s: s.update(param_alignment_paddings=[[-1]])), "are not counts"),
    "gaps of text": (optimizer(lambda s: s.update(param_alignment_paddings="xx")), "are no lists"),
    "no shapes": (of_model(lambda s: s.pop("param_shapes")), "does not say which parameters"),
    "no model": (of_model(lambda s: s.pop("module")), "does not say which parameters"),
    "a group less": (of_model(lambda s: s["param_shapes"].pop()), "says 1 groups of [3] parameters, but"),
    "another model": (of_model(lambda s: s["param_shapes"][0].pop("a.weight")), "the files are of different runs"),
    "a larger model": (of_model(enlarged), "elements of group 0, which has 81; the files"),
    "twice": (of_model(lambda s: s["param_shapes"][1].update({"module.a": (5,)})), "are of different runs"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    act, words = CASES[case]
    folder = trainers.write_zero(tmp_path / "x", ALL, stage=2, ranks=3, **MORE)
    act(folder)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    words = words.format(run=folder)
    assert any(words in problem for problem in error.value.problems), error.value.problems
    assert all(str(folder) in problem for problem in error.value.problems)


STAGE_3 = "zero_pp_rank_1_mp_rank_00_model_states.pt"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (removed(STAGE_3), "has no *_model_states.pt file of rank 1"),
        (removed(STAGE_3.replace("_1_", "_2_")), "holds 3 files *_optim_states.pt, but 2 files"),
        (lambda f: change(f, STAGE_3, lambda s: s["frozen_param_fragments"].clear()), "lacks the frozen parameter"),
        (
            lambda f: change(
                f, STAGE_3, lambda s: s["frozen_param_fragments"].update({"frozen.weight": torch.ones(2)})
            ),
            "has 2 elements in F32 of the frozen parameter 'frozen.weight', not 5 in BF16",
        ),
        (optimizer(lambda s: s.update(fp32_flat_groups=[torch.zeros(3)])), "which has 3; the files are of different"),
        (optimizer(lambda s: s.update(fp32_flat_groups=[])), "with 0 groups"),
    ],
)
def test_what_is_refused_of_stage_3(act: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    folder = trainers.write_zero(tmp_path / "x", ALL, stage=3, ranks=3, **MORE)
    act(folder)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    assert any(words in problem for problem in error.value.problems), error.value.problems


class Attack:
    """What a stranger's pickle asks for."""

    def __reduce__(self) -> tuple[Any, ...]:
        return math.sqrt, (4.0,)


@pytest.mark.parametrize("name", [MODEL_FILE, OPTIMIZER])
def test_nothing_is_executed(name: str, tmp_path: Path, messages: Messages) -> None:
    folder = trainers.write_zero(tmp_path / "x", ALL, stage=2, ranks=3, **MORE)
    change(folder, name, lambda state: state.update(client_state=Attack()))
    with messages.raises(CheckpointError):
        open_checkpoint(folder)


class ZeroStageEnum(IntEnum):
    """As DeepSpeed has it."""

    weights = 3


def test_classes_of_deepspeed_are_names_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("deepspeed.runtime.zero.config")
    monkeypatch.setattr(module, "ZeroStageEnum", ZeroStageEnum, raising=False)
    monkeypatch.setattr(ZeroStageEnum, "__module__", module.__name__)
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    folder = trainers.write_zero(tmp_path / "x", ALL, stage=3, ranks=3, **MORE)
    for rank in range(3):
        name = OPTIMIZER.replace("rank_1", f"rank_{rank}")
        change(folder, name, lambda s: s["optimizer_state_dict"].update(zero_stage=ZeroStageEnum.weights))
        assert module.__name__.encode() in (folder / "global_step7" / name).read_bytes()
    monkeypatch.undo()
    check(open_checkpoint(folder), ALL)
