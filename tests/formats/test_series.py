"""Numbered files: whether all of a series are there, with an index and without."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramerge
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.formats.series import gaps, renumbered
from ramerge.core.foundation.errors import CheckpointError
from tests.checkpoints import (
    floats,
    read_checkpoint,
    read_safetensors,
    recipe,
    simple,
    write_checkpoint,
    write_safetensors,
    write_simple,
)
from tests.conformance.test_merge import same
from tests.messages import Messages
from tests.reference import Stored

INDEX = "model.safetensors.index.json"


def shard(number: int, of: int = 3) -> str:
    return f"model-{number:05}-of-{of:05}.safetensors"


def sharded(folder: Path, *, index: bool = True, shards: int = 3) -> Path:
    write_checkpoint(folder, simple(0), shards=shards)
    if not index:
        (folder / INDEX).unlink()
    return folder


def unlisted(folder: Path, name: str) -> None:
    """Take a file out of the index."""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = {tensor: file for tensor, file in index["weight_map"].items() if file != name}
    (folder / INDEX).write_text(json.dumps(index))


def refused(folder: Path, messages: Messages) -> None:
    with messages.raises(CheckpointError):
        open_checkpoint(folder)
    with pytest.raises(ramerge.RamergeError):
        ramerge.convert(folder, folder.parent / "out")
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("absent", [[1], [2], [3], [1, 2], [2, 3]])
def test_a_series_without_an_index_lacks_files(absent: Sequence[int], tmp_path: Path, messages: Messages) -> None:
    folder = sharded(tmp_path / "m", index=False)
    for number in absent:
        (folder / shard(number)).unlink()
    refused(folder, messages)


def test_a_number_beyond_the_total(tmp_path: Path, messages: Messages) -> None:
    folder = sharded(tmp_path / "m", index=False)
    write_safetensors(folder / shard(4), {"more.weight": floats([1.0])})
    refused(folder, messages)


def test_a_complete_series_without_an_index(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", index=False)
    assert open_checkpoint(folder).tensors.keys() == simple(0).keys()
    ramerge.convert(folder, tmp_path / "out")
    same(read_checkpoint(tmp_path / "out"), simple(0))


@pytest.mark.parametrize("is_there", [True, False])
def test_index_of_a_part_of_a_series(is_there: bool, tmp_path: Path, messages: Messages) -> None:
    folder = sharded(tmp_path / "m")
    unlisted(folder, shard(2))
    if not is_there:
        (folder / shard(2)).unlink()
    refused(folder, messages)


def test_files_of_an_earlier_save_are_named(tmp_path: Path, messages: Messages) -> None:
    folder = sharded(tmp_path / "m")
    for number in (1, 2):
        write_safetensors(folder / shard(number, of=2), simple(number))
    (warning,) = open_checkpoint(folder).warnings
    messages.check(warning)
    (folder / shard(1, of=2)).unlink()
    (warning,) = open_checkpoint(folder).warnings
    messages.check(warning)
    (folder / INDEX).unlink()
    refused(folder, messages)


def test_single_file_beside_a_series(tmp_path: Path, messages: Messages) -> None:
    """vLLM would read all of them."""
    folder = sharded(tmp_path / "m", index=False)
    write_safetensors(folder / "model.safetensors", simple(1))
    opened = open_checkpoint(folder)
    assert list(opened.shards) == ["model.safetensors"]
    messages.check(*opened.warnings)


def test_unnumbered_unread_files_are_noted(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    write_safetensors(folder / "mtp.safetensors", simple(1))
    opened = open_checkpoint(folder)
    assert opened.warnings == ()
    assert any("'mtp.safetensors': not read: the model is in" in note for note in opened.notes)


@pytest.mark.parametrize(("names", "lost"), [(["part0", "part2"], "part1"), (["m_rank2", "m_rank3"], "m_rank1")])
def test_numbers_without_a_total(names: Sequence[str], lost: str, tmp_path: Path) -> None:
    tensors = simple(0)
    for name, tensor in zip(names, tensors, strict=False):
        write_safetensors(tmp_path / f"{name}.safetensors", {tensor: tensors[tensor]})
    with pytest.raises(CheckpointError, match=f"its files lack '{lost}.safetensors'"):
        open_checkpoint(tmp_path)


def test_files_of_mistral_are_the_model_once_more(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", index=False)
    write_safetensors(folder / "consolidated.safetensors", {"layers.0.wq": next(iter(simple(0).values()))})
    assert open_checkpoint(folder).tensors.keys() == simple(0).keys()
    for path in folder.glob("model-*"):
        path.unlink()
    assert list(open_checkpoint(folder).tensors) == ["layers.0.wq"]


@pytest.mark.needs("torch")
def test_a_pickled_series_without_an_index(tmp_path: Path, messages: Messages) -> None:
    from tests.formats import trainers

    folder = trainers.write_bin(tmp_path / "m", simple(0), shards=3)
    (folder / "pytorch_model.bin.index.json").unlink()
    assert open_checkpoint(folder).tensors.keys() == simple(0).keys()
    (folder / "pytorch_model-00002-of-00003.bin").unlink()
    refused(folder, messages)


def test_file_of_scales_leaves_no_gap(tmp_path: Path) -> None:
    """The model without quantization has none, and what ramerge writes is a complete series, too."""
    codes, scales = Stored("F8_E4M3", np.full((8, 8), 0x38, np.uint8)), floats(np.ones((1, 1)), "F32")
    name, files = "layers.0.mlp.up_proj.weight", {}
    for number, tensors in enumerate(({name: codes}, {f"{name}_scale_inv": scales}, {"norm.weight": scales}), 1):
        (tmp_path / "m").mkdir(exist_ok=True)
        write_safetensors(tmp_path / "m" / shard(number), tensors)
        files |= dict.fromkeys(tensors, shard(number))
    (tmp_path / "m" / INDEX).write_text(json.dumps({"weight_map": files}))
    declared = {"quant_method": "fp8", "weight_block_size": [8, 8]}
    (tmp_path / "m/config.json").write_text(json.dumps({"quantization_config": declared, "dtype": "float32"}))
    ramerge.convert(tmp_path / "m", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.safetensors")) == [shard(1, of=2), shard(2, of=2)]
    assert read_checkpoint(tmp_path / "out").keys() == {name, "norm.weight"}


def _renamed(folder: Path, stem: str) -> None:
    """Give the files of a sharded model, and its index, another stem."""
    text = (folder / INDEX).read_text()
    (folder / INDEX).unlink()
    for path in folder.glob("model-*"):
        path.rename(path.with_name(path.name.replace("model", stem, 1)))
    (folder / f"{stem}.safetensors.index.json").write_text(text.replace('"model-', f'"{stem}-'))


@pytest.mark.parametrize("stem", ["diffusion_pytorch_model", "consolidated"])
@pytest.mark.parametrize("more", [{}, {"shard_size": 1500}])
def test_the_index_is_named_like_its_files(stem: str, more: dict[str, object], tmp_path: Path) -> None:
    sharded(tmp_path / "base")
    write_checkpoint(tmp_path / "code", simple(1, moved=0.1), shards=3)
    for name in ("base", "code"):
        _renamed(tmp_path / name, stem)
    # a copy in another precision is no part of the model that the index names
    write_safetensors(tmp_path / "base" / f"{stem}.fp16.safetensors", simple(0, "F16"))
    source = recipe(tmp_path, ["code"], "task_arithmetic", **more)
    assert not any(f"'{stem}-" in warning for warning in ramerge.plan(source).warnings)
    ramerge.merge(source, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("*index.json")] == [f"{stem}.safetensors.index.json"]
    weight_map = json.loads((tmp_path / "out" / f"{stem}.safetensors.index.json").read_text())["weight_map"]
    assert set(weight_map.values()) == {path.name for path in (tmp_path / "out").glob(f"{stem}-*.safetensors")}
    written = {name: read_safetensors(tmp_path / "out" / file)[name] for name, file in weight_map.items()}
    same(written, simple(1, moved=0.1))
    ramerge.convert(tmp_path / "out", tmp_path / "again")


def test_files_of_mlx_are_named(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    convolution = np.random.default_rng(0).normal(0, 0.02, (4, 3, 2))
    for name, values in (("base", convolution), ("code", convolution.transpose(0, 2, 1))):
        stored = read_checkpoint(tmp_path / name) | {"model.conv.weight": floats(values)}
        write_safetensors(tmp_path / name / "model.safetensors", stored)
    (problem,) = ramerge.plan(recipe(tmp_path, names)).problems
    assert "model.conv.weight" in problem and "MLX" in problem
    data = (tmp_path / "code/model.safetensors").read_bytes()
    (tmp_path / "code/model.safetensors").write_bytes(data.replace(b'{"format": "pt"}', b'{"format":"mlx"}', 1))
    assert any("MLX" in note for note in open_checkpoint(tmp_path / "code").notes)
    assert not open_checkpoint(tmp_path / "base").notes


def test_one_file_of_diffusers_needs_no_index(tmp_path: Path) -> None:
    write_simple(tmp_path, {"code": 0.1})
    (tmp_path / "base/model.safetensors").rename(tmp_path / "base/diffusion_pytorch_model.safetensors")
    ramerge.merge(recipe(tmp_path, ["code"]), tmp_path / "out")
    assert (tmp_path / "out/diffusion_pytorch_model.safetensors").is_file()
    assert not list((tmp_path / "out").glob("*index.json"))


def _overlaid(folder: Path, values: float | None) -> str:
    """Give a tensor of a sharded model to a later file, and its first file another value, or the same one."""
    name = next(iter(simple(0)))
    index = json.loads((sharded(folder, shards=2) / INDEX).read_text())
    write_safetensors(folder / "model-overlay-00001.safetensors", {name: simple(0)[name]})
    if values is not None:
        older = folder / index["weight_map"][name]
        write_safetensors(older, read_safetensors(older) | {name: floats(np.full((40, 16), values))})
    index["weight_map"][name] = "model-overlay-00001.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    return name


def test_an_index_says_which_copy_is_read(tmp_path: Path, messages: Messages) -> None:
    name = _overlaid(tmp_path / "other", 3.0)
    _overlaid(tmp_path / "equal", None)
    for folder, copies in (("other", [name]), ("equal", [])):
        opened = open_checkpoint(tmp_path / folder)
        assert opened.warnings == ()
        assert [any(each in note for note in opened.notes) for each in copies] == [True] * len(copies)
        assert bool(opened.notes) == bool(copies)
        ramerge.convert(tmp_path / folder, tmp_path / f"{folder}-out")
        same(read_checkpoint(tmp_path / f"{folder}-out"), simple(0))
    index = json.loads((tmp_path / "other" / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = shard(2, of=2)
    index["weight_map"][name] = shard(2, of=2)
    (tmp_path / "other" / INDEX).write_text(json.dumps(index))
    refused(tmp_path / "other", messages)


def test_remaining_files_are_renumbered() -> None:
    whole = {shard(number): number for number in (1, 2, 3)}
    assert renumbered(whole) == whole
    assert renumbered({shard(1): 1, shard(3): 3}) == {shard(1, of=2): 1, shard(2, of=2): 3}
    assert renumbered({shard(2): 2}) == {"model.safetensors": 2}


@pytest.mark.parametrize("kind", ["other numbers", "fewer tensors", "more tensors", "exchanged"])
def test_stale_index_beside_complete_files(kind: str, tmp_path: Path, messages: Messages) -> None:
    folder = sharded(tmp_path / "m", shards=2)
    index = json.loads((folder / INDEX).read_text())
    files = index["weight_map"]
    index["weight_map"] = {
        "other numbers": {name: file.replace("of-00002", "of-00003") for name, file in files.items()},
        "fewer tensors": dict(list(files.items())[:2]),
        "more tensors": files | {"model.extra.weight": shard(1, of=2)},
        "exchanged": dict(zip(files, reversed(files.values()), strict=True)) | {"model.extra.weight": shard(2, of=2)},
    }[kind]
    (folder / INDEX).write_text(json.dumps(index))
    refused(folder, messages)


CASES: list[tuple[list[str], list[tuple[list[str], int]]]] = [
    (["model-00000-of-00002.bin", "model-00001-of-00002.bin"], []),
    (["model-00001-of-000003.x", "model-00003-of-000003.x"], [(["model-00002-of-000003.x"], 1)]),
    (["model-9-of-10.x"], [(["model-1-of-10.x", "model-2-of-10.x", "model-3-of-10.x"], 9)]),
    (["model-1-of-999999999.x"], [([f"model-{n}-of-999999999.x" for n in (2, 3, 4)], 999_999_998)]),
    (["qwen2.5-7b.safetensors"], []),
    (["a1.x", "a999999999.x"], [(["a2.x", "a3.x", "a4.x"], 999_999_997)]),
    (["rank-0-part-0.x", "rank-0-part-1.x", "rank-2-part-0.x"], [(["rank-1-part-0.x"], 1)]),
    (["model-1-of-2.x", "model-2-of-2.x", "head-1-of-1.x"], []),
]


@pytest.mark.parametrize(("names", "wanted"), CASES)
def test_gaps(names: list[str], wanted: list[tuple[list[str], int]]) -> None:
    assert list(gaps(names)) == wanted


@given(st.integers(1, 40).flatmap(lambda total: st.tuples(st.just(total), st.sets(st.integers(1, total), min_size=1))))
def test_gaps_are_what_is_missing(case: tuple[int, set[int]]) -> None:
    total, present = case
    found = list(gaps([shard(number, total) for number in sorted(present)], counted_only=True))
    missing = [shard(number, total) for number in range(1, total + 1) if number not in present]
    assert found == ([(missing[:3], len(missing))] if missing else [])
