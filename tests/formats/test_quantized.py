"""Quantized bases and agents: what is read, what is written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError
from tests.checkpoints import read_checkpoint, recipe, write_checkpoint, write_safetensors
from tests.formats.quantized import SAMPLES, dequantized, expanded, quantize_model, write_quantized
from tests.messages import Messages
from tests.reference import Stored, encode

REQUANTIZED = [name for name in SAMPLES if "4" not in name and name != "gpt-oss"]
BLOCK = {"fp8 blocks": (16, 16), "compressed channels": (1, 40), "fp8 tensors": (576, 40)}


def model(seed: int, *, moved: float = 0.0) -> dict[str, Stored]:
    """Matrices whose rows do not fill blocks, and a norm; agents move some rows of some matrices."""
    rng = np.random.default_rng(7)
    shapes = {"q_proj": (50, 40), "kv_a_proj": (72, 40), "o_proj": (24, 40)}
    made = {f"model.layers.0.{name}.weight": rng.normal(0, 0.02, shape) for name, shape in shapes.items()}
    own = np.random.default_rng(seed)
    for values in list(made.values())[:2]:
        change = own.normal(0, 0.01, values.shape) * (own.random(values.shape) < moved)
        change[20:] = 0
        values += change
    made["model.norm.weight"] = rng.normal(1, 0.1, 40)
    return {name: encode(values.astype(np.float32), "BF16") for name, values in made.items()}


def family(folder: Path, sample: str, **more: object) -> dict[str, object]:
    """A quantized base, one agent quantized like it, and one in bfloat16; the recipe."""
    write_quantized(folder / "base", sample, model(0), shards=2, **more)
    write_quantized(folder / "a", sample, model(1, moved=0.4))
    # an agent in bfloat16 that does not move the other rows has the base's numbers there
    numbers = quantize_model(sample, model(0))[1]
    own = model(2, moved=0.4)
    moved = list(numbers)[:2]
    mixed = {name: moved_rows(numbers[name], own[name]) if name in moved else numbers[name] for name in numbers}
    write_checkpoint(folder / "b", mixed)
    return recipe(folder, ["a", "b"])


def moved_rows(base: Stored, agent: Stored) -> Stored:
    """The agent's first rows of a matrix, and the base's numbers for the others."""
    values = base.numbers(np.float32).copy()
    values[:20] = agent.numbers(np.float32)[:20]
    return encode(values, "F32")


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    "stated", [{"torch_dtype": "bfloat16"}, {"dtype": "float16", "torch_dtype": None}, {"torch_dtype": None}]
)
def test_output_has_the_unquantized_dtype(stated: dict, tmp_path: Path) -> None:
    source = family(tmp_path, "fp8 blocks", config=stated)
    record = ramerge.merge(source, tmp_path / "out")
    wanted = "F16" if stated.get("dtype") else "BF16"
    made = read_checkpoint(tmp_path / "out")
    assert {tensor.dtype for name, tensor in made.items() if "proj" in name} == {wanted}
    assert made["model.norm.weight"].dtype == "BF16"
    config = config_of(tmp_path / "out")
    assert "quantization_config" not in config
    full = {"F16": "float16", "BF16": "bfloat16"}[wanted]
    assert full in (config.get("dtype"), config.get("torch_dtype"))
    assert any(
        "3 quantized tensors (float8, scales of 16 x 16 blocks) are dequantized" in note for note in record.notes
    )
    assert record.input_dtypes["base"].startswith("float8_e4m3") and record.input_dtypes["b"].startswith("float32")
    whole = ramerge.merge({**source, "dtype": "float32"}, tmp_path / "whole")
    assert whole.dtype == "float32"
    config = config_of(tmp_path / "whole")
    assert "float32" in (config.get("dtype"), config.get("torch_dtype"))
    for name, tensor in read_checkpoint(tmp_path / "whole").items():
        if "proj" in name:
            assert np.array_equal(encode(tensor.numbers(np.float32), wanted).bits, made[name].bits)


def test_text_model_declaration_is_removed_too(tmp_path: Path) -> None:
    inner = {"quantization_config": SAMPLES["fp8 blocks"].config, "dtype": "bfloat16", "hidden_size": 40}
    source = family(tmp_path, "fp8 blocks", config={"quantization_config": None, "text_config": inner})
    ramerge.merge({**source, "dtype": "float32"}, tmp_path / "out")
    assert config_of(tmp_path / "out")["text_config"] == {"dtype": "float32", "hidden_size": 40}


@pytest.mark.parametrize("spelling", ["like base", "like_base"])
def test_like_base_keeps_names_shards_and_config(spelling: str, tmp_path: Path) -> None:
    source = family(tmp_path, "fp8 blocks")
    record = ramerge.merge({**source, "dtype": spelling}, tmp_path / "out")
    base, made = read_checkpoint(tmp_path / "base"), read_checkpoint(tmp_path / "out")
    assert {name: (tensor.dtype, tensor.bits.shape) for name, tensor in made.items()} == {
        name: (tensor.dtype, tensor.bits.shape) for name, tensor in base.items()
    }
    index = "model.safetensors.index.json"
    maps = [json.loads((tmp_path / name / index).read_text())["weight_map"] for name in ("base", "out")]
    assert maps[0] == maps[1]
    assert config_of(tmp_path / "out") == config_of(tmp_path / "base")
    assert any("keep the base's codes" in note for note in record.notes)
    assert next(iter(record.agents.values())).values["updates"] > 0


@pytest.mark.parametrize("sample", REQUANTIZED)
def test_like_base_quantizes_the_float32_merge(sample: str, tmp_path: Path) -> None:
    source = family(tmp_path, sample)
    ramerge.merge({**source, "dtype": "float32"}, tmp_path / "exact")
    exact, stored = read_checkpoint(tmp_path / "exact"), read_checkpoint(tmp_path / "base")
    numbers = quantize_model(sample, model(0))[1]
    ramerge.merge({**source, "dtype": "like base"}, tmp_path / "out")
    made = read_checkpoint(tmp_path / "out")
    merged = {name: Stored("F32", tensor.bits.view(np.uint32)) for name, tensor in exact.items() if "proj" in name}
    wanted = quantize_model(sample, merged)[0]
    kept = 0
    for name in merged:
        scale = next(key for key in wanted if key.startswith(f"{name}_"))
        same = exact[name].bits == numbers[name].bits
        block = block_of(stored[scale].bits, same.shape)
        unchanged = all_in_blocks(same, block)
        codes = np.where(expanded(unchanged, same.shape, block), stored[name].bits, wanted[name].bits)
        assert np.array_equal(made[name].bits, codes)
        old, new = stored[scale].bits, wanted[scale].bits
        assert np.array_equal(made[scale].bits, np.where(unchanged.reshape(old.shape), old, new))
        kept += int(unchanged.sum())
    assert kept
    assert np.array_equal(made["model.norm.weight"].bits, stored["model.norm.weight"].bits)


def block_of(scales: NDArray, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a block, for the samples' sizes."""
    if scales.ndim < 2:
        return shape
    by_grid = {
        (-(-shape[0] // rows), -(-shape[1] // columns)): (rows, columns)
        for rows, columns in ((16, 16), (16, 8), (1, 8), (1, shape[1]))
    }
    return by_grid[scales.shape]


def all_in_blocks(flags: NDArray, block: tuple[int, int]) -> NDArray:
    """For each block, whether all flags in it are set."""
    rows, columns = flags.shape
    down, across = -(-rows // block[0]), -(-columns // block[1])
    padded = np.ones((down * block[0], across * block[1]), bool)
    padded[:rows, :columns] = flags
    return padded.reshape(down, block[0], across, block[1]).all((1, 3))


def test_like_base_bytes_ignore_blocks_and_threads(tmp_path: Path) -> None:
    source = {**family(tmp_path, "fp8 blocks"), "dtype": "like base"}
    ramerge.merge(source, tmp_path / "wanted")
    wanted = read_checkpoint(tmp_path / "wanted")
    for block, workers in ((1, 1), (100, 3), (1 << 19, 2)):
        plan = ramerge.plan(source, tmp_path / f"{block}")
        size = max(tensor.buffer_bytes(block) for tensor in plan.details.tensors)
        tight = replace(plan.details.resources, block_elements=block, buffer_bytes=size)
        execute(replace(plan.details, resources=tight), ThreadExecutor(workers))
        made = read_checkpoint(tmp_path / f"{block}")
        assert {name: tensor.bits.tobytes() for name, tensor in made.items()} == {
            name: tensor.bits.tobytes() for name, tensor in wanted.items()
        }


def test_tensors_in_memory_are_codes_and_scales(tmp_path: Path) -> None:
    source = {**family(tmp_path, "fp8 blocks"), "dtype": "like base"}
    ramerge.merge(source, tmp_path / "out")
    seen = {tensor.name: tensor.data.tobytes() for tensor in ramerge.plan(source).tensors()}
    assert seen == {name: tensor.bits.tobytes() for name, tensor in read_checkpoint(tmp_path / "out").items()}


def test_nan_in_a_shared_scale_is_refused(tmp_path: Path, messages: Messages) -> None:
    source = {**family(tmp_path, "fp8 blocks"), "method": "linear", "allow": {"non_finite": True}}
    agent = model(1, moved=0.3)
    name = next(name for name, tensor in agent.items() if tensor.bits.ndim == 2)
    agent[name].bits.reshape(-1)[5] = 0x7FC0
    write_checkpoint(tmp_path / "a", agent)
    ramerge.merge({**source, "dtype": "bfloat16"}, tmp_path / "out")
    with messages.raises(ramerge.WeightsError):
        ramerge.merge({**source, "dtype": "like base"}, tmp_path / "like")


@pytest.mark.full
def test_what_quantizing_erases_is_counted(tmp_path: Path) -> None:
    source = family(tmp_path, "fp8 blocks")
    record = ramerge.merge({**source, "method": "task_arithmetic", "dtype": "like base"}, tmp_path / "out")
    exact = tmp_path / "exact"
    ramerge.merge({**source, "method": "task_arithmetic", "dtype": "float32"}, exact)
    base, agents = (
        quantize_model("fp8 blocks", model(0))[1],
        [quantize_model("fp8 blocks", model(1, moved=0.4))[1], read_checkpoint(tmp_path / "b")],
    )
    made = read_checkpoint(tmp_path / "out")
    merged = read_checkpoint(exact)
    for agent, statistics in zip(agents, record.agents.values(), strict=True):
        updates = erased = 0
        for name, tensor in base.items():
            b, a = tensor.numbers(np.float32), agent[name].numbers(np.float32)
            if "proj" not in name:
                continue
            scales = made[f"{name}_scale_inv"].bits.view(np.float32)
            stored = dequantized("F8_E4M3", made[name].bits.reshape(-1), scales, b.shape, (16, 16))
            changed = (a != b) & (merged[name].numbers(np.float32) != b)
            updates += int(changed.sum())
            erased += int((changed & (stored == b)).sum())
        assert (statistics.values["updates"], statistics.values["erased"]) == (updates, erased)
        assert updates
    counted = ramerge.analyze({**source, "method": "task_arithmetic", "dtype": "like base"}).rounding
    for name, statistics in record.agents.items():
        assert all(counted[name][key] == statistics.values[key] for key in ("updates", "erased"))


def in_float4(values: NDArray, group: int, second: float | None) -> NDArray:
    """Numbers once they are quantized to float4, by groups, and read again; without a second scale, to MXFP4."""
    groups = values.reshape(-1, group)
    peaks = np.abs(groups).max(1)
    if second is None:
        scales = np.exp2(np.floor(np.log2(peaks)) - 2).astype(np.float32)
    else:
        local = np.minimum(peaks / np.float32(6) / np.float32(second), np.float32(448))
        scales = local.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(second)
    codes = (np.abs(groups) / scales[:, None]).clip(0, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return (np.copysign(codes, groups) * scales[:, None]).reshape(values.shape)


@pytest.mark.full
@pytest.mark.parametrize(("sample", "group"), [("modelopt nvfp4", 16), ("mxfp4", 32)])
def test_what_quantizing_to_float4_would_erase_is_counted(sample: str, group: int, tmp_path: Path) -> None:
    name, shape = "model.layers.0.q_proj.weight", (24, 64)
    rng = np.random.default_rng(0)
    start = {name: encode(rng.normal(0, 1, shape), "BF16")}
    write_quantized(tmp_path / "base", sample, start)
    stored, numbers = quantize_model(sample, start)
    base = numbers[name].numbers(np.float32)
    agents = []
    for agent in ("a", "b"):
        moved = base + np.where(rng.random(shape) < 0.02, rng.normal(0, 0.3, shape), 0).astype(np.float32)
        write_checkpoint(tmp_path / agent, {name: Stored("F32", moved.view(np.uint32))})
        agents.append(moved)
    source = {**recipe(tmp_path, ["a", "b"]), "method": "task_arithmetic", "dtype": "like base"}
    found = ramerge.analyze({key: value for key, value in source.items() if key != "parameters"})
    merged = base + ((agents[0] - base) + (agents[1] - base))
    second = float(stored[f"{name}_scale_2"].numbers(np.float32)) if "modelopt" in sample else None
    kept = (merged == base).reshape(-1, group).all(1).repeat(group).reshape(shape)
    seen = np.where(kept, base, in_float4(merged, group, second))
    for agent, moved in zip(("a", "b"), agents, strict=True):
        changed = (moved != base) & (merged != base)
        erased = int((changed & (seen == base)).sum())
        assert (found.rounding[agent]["updates"], found.rounding[agent]["erased"]) == (int(changed.sum()), erased)
        assert 0 < erased < changed.sum()


def test_activation_scales_stay_in_quantized_output(tmp_path: Path) -> None:
    source = family(tmp_path, "compressed channels")
    extra = {"model.layers.0.q_proj.input_scale": encode(np.array([0.5], np.float32), "BF16")}
    stored = {**quantize_model("compressed channels", model(0))[0], **extra}
    config = {"torch_dtype": "bfloat16", "quantization_config": SAMPLES["compressed channels"].config}
    write_checkpoint(tmp_path / "base", stored, config=config)
    for name in (tmp_path / "base").glob("model-*"):
        name.unlink()
    (tmp_path / "base/model.safetensors.index.json").unlink()
    ramerge.merge(source, tmp_path / "plain")
    assert not extra.keys() & read_checkpoint(tmp_path / "plain").keys()
    ramerge.merge({**source, "dtype": "like base"}, tmp_path / "like")
    made = read_checkpoint(tmp_path / "like")["model.layers.0.q_proj.input_scale"]
    assert made.bits.tobytes() == next(iter(extra.values())).bits.tobytes()


@pytest.mark.parametrize("sample", ["nvfp4", "mxfp4", "modelopt nvfp4"])
def test_codes_of_4_bits_are_not_written(sample: str, tmp_path: Path, messages: Messages) -> None:
    made = {"model.layers.0.q_proj.weight": encode(np.random.default_rng(0).normal(0, 1, (8, 32)), "BF16")}
    for name in ("base", "a"):
        write_quantized(tmp_path / name, sample, made)
    (problem,) = ramerge.plan({**recipe(tmp_path, ["a"]), "dtype": "like base"}).problems
    messages.check(problem)


def test_like_base_of_plain_base_is_its_dtype(tmp_path: Path) -> None:
    for name, seed in (("base", 0), ("a", 1)):
        write_checkpoint(tmp_path / name, model(seed, moved=0.3 * seed))
    ramerge.merge(recipe(tmp_path, ["a"]), tmp_path / "plain")
    ramerge.merge({**recipe(tmp_path, ["a"]), "dtype": "like base"}, tmp_path / "like")
    plain, like = (tmp_path / name / "model.safetensors" for name in ("plain", "like"))
    assert plain.read_bytes() == like.read_bytes()


def write_lora(folder: Path, module: str, height: int, width: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(5)
    made = {
        f"base_model.model.{module}.lora_{part}.weight": encode(rng.normal(0, 0.1, shape).astype(np.float32), "F32")
        for part, shape in (("A", (2, width)), ("B", (height, 2)))
    }
    write_safetensors(folder / "adapter_model.safetensors", made)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    return folder


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("method", ["passthrough", "linear"])
def test_adapted_quantized_model_is_written_unquantized(
    method: str, dtype: str | None, tmp_path: Path, messages: Messages
) -> None:
    write_quantized(tmp_path / "base", "fp8 blocks", model(0))
    both = f"{tmp_path / 'base'}+{write_lora(tmp_path / 'lora', 'model.layers.0.q_proj', 50, 40)}"
    agents = {"x": both} if method == "passthrough" else {"x": both, "y": str(tmp_path / "base")}
    source = {"method": method, "agents": agents, **({"dtype": dtype} if dtype else {})}
    ramerge.merge(source, tmp_path / "out")
    config = config_of(tmp_path / "out")
    assert "quantization_config" not in config and config["torch_dtype"] == (dtype or "bfloat16")
    made = read_checkpoint(tmp_path / "out")
    assert {tensor.dtype for tensor in made.values()} == {"F32" if dtype else "BF16"}
    (problem,) = ramerge.plan({**source, "dtype": "like base"}).problems
    messages.check(problem)


def test_like_base_keeps_codes_beside_an_adapter(tmp_path: Path) -> None:
    stored = model(0) | {"model.up.weight": encode(np.ones((4, 6), np.float32), "BF16")}
    codes = quantize_model("fp8 blocks", model(0))[0]
    config = {"torch_dtype": "bfloat16", "quantization_config": SAMPLES["fp8 blocks"].config}
    write_checkpoint(tmp_path / "base", codes | {"model.up.weight": stored["model.up.weight"]}, config=config)
    both = f"{tmp_path / 'base'}+{write_lora(tmp_path / 'lora', 'model.up', 4, 6)}"
    ramerge.convert(both, tmp_path / "out", dtype="like base")
    made = read_checkpoint(tmp_path / "out")
    assert all(made[name].bits.tobytes() == tensor.bits.tobytes() for name, tensor in codes.items())
    assert config_of(tmp_path / "out") == config_of(tmp_path / "base")
    assert made["model.up.weight"].bits.tobytes() != stored["model.up.weight"].bits.tobytes()


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2,)])
def test_scale_grids_are_told_by_shape(shape: tuple[int, ...], tmp_path: Path, messages: Messages) -> None:
    codes = Stored("F8_E4M3", np.full((2, 32), 0x38, np.uint8))  # ones
    scales = encode(np.array([1, 2], np.float32).reshape(shape), "F32")
    config = {"torch_dtype": "bfloat16", "quantization_config": {**SAMPLES["fp8 blocks"].config}}
    write_checkpoint(tmp_path / "m", {"w.weight": codes, "w.weight_scale_inv": scales}, config=config)
    if len(shape) == 1:
        with messages.raises(ramerge.RamergeError):
            ramerge.convert(tmp_path / "m", tmp_path / "out")
        return
    ramerge.convert(tmp_path / "m", tmp_path / "out", dtype="float32")
    wanted = np.repeat([1, 2], 32).reshape(2, 32) if shape == (2, 1) else np.repeat([[1, 2]], 16, 1).repeat(2, 0)
    assert (read_checkpoint(tmp_path / "out")["w.weight"].numbers(np.float32) == wanted.reshape(2, 32)).all()


def test_ue8m0_scales_stay_powers_of_two(tmp_path: Path) -> None:
    """DeepSeek-V3.1 has them in float32; kernels that take exponents would cut others off."""
    source = {**family(tmp_path, "fp8 blocks"), "dtype": "like base"}
    config = config_of(tmp_path / "base")
    config["quantization_config"]["scale_fmt"] = "ue8m0"
    (tmp_path / "base/config.json").write_text(json.dumps(config))
    (tmp_path / "a/config.json").write_text(json.dumps(config))
    ramerge.merge(source, tmp_path / "out")
    ramerge.convert(tmp_path / "out", tmp_path / "narrow", dtype="float32")
    ramerge.merge({**source, "dtype": "float32"}, tmp_path / "wide")
    before, after = read_checkpoint(tmp_path / "base"), read_checkpoint(tmp_path / "out")
    assert config_of(tmp_path / "out") == config
    changed = 0
    for name, scales in after.items():
        if "_scale" in name and scales.dtype == "F32":
            old, new = before[name].numbers(np.float32).ravel(), scales.numbers(np.float32).ravel()
            moved = new[old != new]
            changed += moved.size
            assert (np.frexp(moved)[0] == 0.5).all()
    assert changed
    narrow, wide = read_checkpoint(tmp_path / "narrow"), read_checkpoint(tmp_path / "wide")
    for name, values in wide.items():
        exact = values.numbers(np.float32)
        # three bits of a code
        assert np.abs(narrow[name].numbers(np.float32) - exact).max() <= np.abs(exact).max() / 16, name


@pytest.mark.parametrize("method", ["passthrough", "ram+"])
def test_inverted_scales_are_warned_of(method: str, tmp_path: Path) -> None:
    source = family(tmp_path, "fp8 blocks")
    if method == "passthrough":
        source = {"method": method, "agents": {"a": str(tmp_path / "a")}}
    assert not any("inverted" in warning for warning in ramerge.merge(source, tmp_path / "right").warnings)
    stored = read_checkpoint(tmp_path / "a")
    for name, tensor in stored.items():
        if "_scale" in name:
            stored[name] = encode(1 / tensor.numbers(np.float32), "F32")
    write_checkpoint(tmp_path / "a", stored, config=config_of(tmp_path / "a"))
    warnings = ramerge.merge(source, tmp_path / "out").warnings
    assert any("are its scales inverted?" in warning and "a" in warning for warning in warnings), warnings


# --- bad input -------------------------------------------------------------------------------------------------------

Q = "model.layers.0.q_proj.weight"
Change = Callable[[dict[str, Stored], dict[str, object]], None]


def lose_scales(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    del stored[f"{Q}_scale_inv"], stored[f"{Q.replace('q_', 'o_')}_scale_inv"]


def cut_scales(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    scales = stored[f"{Q}_scale_inv"]
    stored[f"{Q}_scale_inv"] = Stored("F32", np.ascontiguousarray(scales.bits[:, :-1]))


def long_scales(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    scales = stored[f"{Q}_scale_inv"]
    stored[f"{Q}_scale_inv"] = Stored("I32", scales.bits.view(np.int32))


def no_codes(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    stored.update(model(0))
    for name in list(stored):
        if name.endswith("_scale_inv"):
            del stored[name]


def lone_scales(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    stored[Q] = model(0)[Q]


def odd_blocks(_stored: dict[str, Stored], config: dict[str, object]) -> None:
    config["weight_block_size"] = [128, 0]


def unknown_method(_stored: dict[str, Stored], config: dict[str, object]) -> None:
    config["quant_method"] = "awq"


def of_integers(_stored: dict[str, Stored], config: dict[str, object]) -> None:
    config |= SAMPLES["compressed channels"].config
    config["config_groups"] = {"group_0": {"weights": {"type": "int", "num_bits": 4, "symmetric": False}}}
    config["format"] = "pack-quantized"


@pytest.mark.parametrize(
    "change",
    [
        lose_scales,
        cut_scales,
        long_scales,
        no_codes,
        lone_scales,
        odd_blocks,
        unknown_method,
        of_integers,
    ],
)
def test_what_headers_show_is_refused_by_the_plan(change: Change, tmp_path: Path, messages: Messages) -> None:
    source = family(tmp_path, "fp8 blocks")
    stored = quantize_model("fp8 blocks", model(1))[0]
    config = dict(SAMPLES["fp8 blocks"].config)
    change(stored, config)
    write_checkpoint(tmp_path / "a", stored, config={"torch_dtype": "bfloat16", "quantization_config": config})
    text = "\n".join(ramerge.plan(source).problems)
    messages.check(text)
    assert str(tmp_path / "a") in text


def modelopt(folder: Path, change: Change | None = None) -> Path:
    """A model in NVFP4 of ModelOpt: projections, and experts in one tensor."""
    rng = np.random.default_rng(0)
    shapes = {Q: (32, 64), "model.layers.0.mlp.experts.gate_up_proj": (3, 8, 32), "lm_head.weight": (8, 16)}
    tensors = {name: encode(rng.normal(0, 1, shape), "BF16") for name, shape in shapes.items()}
    stored, numbers = quantize_model("modelopt nvfp4", tensors)
    config: dict[str, object] = {**SAMPLES["modelopt nvfp4"].config, "ignore": ["lm_head*"]}
    if change is not None:
        change(stored, config)
    declared = {"quantization_config": config} if config else {}
    write_checkpoint(folder, stored, config={"torch_dtype": "bfloat16", **declared})
    write_checkpoint(folder.with_name("numbers"), numbers)
    return folder


def as_exported_before(stored: dict[str, Stored], config: dict[str, object]) -> None:
    config.clear()


def left_over(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    """Scales of a head that is not quantized, which servers drop."""
    stored["lm_head.weight_scale"] = Stored("F8_E4M3", np.full((8, 1), 0x38, np.uint8))
    stored["lm_head.weight_scale_2"] = Stored("F32", np.array(1, np.uint32))


@pytest.mark.parametrize("change", [None, as_exported_before, left_over])
def test_what_modelopt_writes(change: Change | None, tmp_path: Path) -> None:
    folder = modelopt(tmp_path / "m", change)
    if change is as_exported_before:
        stated = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
        (folder / "hf_quant_config.json").write_text(json.dumps(stated))
    ramerge.convert(folder, tmp_path / "out", dtype="float32")
    found, wanted = read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "numbers")
    assert found.keys() == wanted.keys()
    assert all(found[name].numbers(np.float32).tolist() == wanted[name].numbers(np.float32).tolist() for name in wanted)
    assert not (tmp_path / "out/hf_quant_config.json").exists()


def half_the_scales(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    scales = stored[f"{Q}_scale"]
    stored[f"{Q}_scale"] = Stored("F8_E4M3", np.ascontiguousarray(scales.bits[:, ::2]))


def no_second_scale(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    del stored[f"{Q}_scale_2"]


def smoothed(stored: dict[str, Stored], _config: dict[str, object]) -> None:
    stored[f"{Q.removesuffix('weight')}pre_quant_scale"] = encode(np.ones(64), "BF16")


def of_awq(_stored: dict[str, Stored], config: dict[str, object]) -> None:
    config["quant_algo"] = "W4A16_AWQ"


@pytest.mark.parametrize(
    "change",
    [
        half_the_scales,
        no_second_scale,
        smoothed,
        of_awq,
    ],
)
def test_exports_of_modelopt_that_cannot_be_read(change: Change, tmp_path: Path, messages: Messages) -> None:
    folder = modelopt(tmp_path / "m", change)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    messages.check(str(caught.value))


def test_float8_that_is_not_declared(tmp_path: Path, messages: Messages) -> None:
    source = family(tmp_path, "fp8 blocks")
    write_checkpoint(tmp_path / "a", quantize_model("fp8 blocks", model(1))[0])
    text = "\n".join(ramerge.plan(source).problems)
    messages.check(text)


@pytest.mark.parametrize("dtype", ["bfloat16", "like base"])
def test_a_second_declaration_stays_with_the_codes(dtype: str, tmp_path: Path) -> None:
    source = family(tmp_path, "fp8 blocks") | {"dtype": dtype}
    (tmp_path / "base/hf_quant_config.json").write_text("{}")
    record = ramerge.merge(source, tmp_path / "out")
    assert (tmp_path / "out/hf_quant_config.json").exists() is (dtype == "like base")
    assert any("'hf_quant_config.json': not copied" in note for note in record.notes) is (dtype != "like base")


@pytest.mark.parametrize("config", [{}, {"quantization": {"bits": 4, "group_size": 32}}])
def test_codes_of_mlx_are_named(config: dict[str, object], tmp_path: Path, messages: Messages) -> None:
    """They are words of 32 bits, which a model may have for other reasons."""
    source, tensors = recipe(tmp_path, ["a"]), model(1)
    write_checkpoint(tmp_path / "base", model(0))
    words = {
        "weight": Stored("U32", np.zeros((50, 5), np.int32)),
        "scales": encode(np.ones((50, 1), np.float32), "BF16"),
        "biases": encode(np.ones((50, 1), np.float32), "BF16"),
    }
    codes = {f"model.layers.0.q_proj.{part}": stored for part, stored in words.items()}
    write_checkpoint(tmp_path / "a", {**tensors, **codes}, config=config)
    (problem,) = ramerge.plan(source).problems
    messages.check(problem)
    with messages.raises(ramerge.RamergeError):
        ramerge.convert(tmp_path / "a", tmp_path / "out")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -0.01])
def test_scales_that_make_no_sense_are_all_reported(bad: float, tmp_path: Path, messages: Messages) -> None:
    source = family(tmp_path, "fp8 blocks")
    stored = quantize_model("fp8 blocks", model(1, moved=0.4))[0]
    for name in (Q, Q.replace("q_", "kv_a_")):
        scales = stored[f"{name}_scale_inv"].bits.copy()
        scales.view(np.float32)[1, 0] = bad
        stored[f"{name}_scale_inv"] = Stored("F32", scales)
    write_quantized(tmp_path / "a", "fp8 blocks", model(1))
    config = {"torch_dtype": "bfloat16", "quantization_config": SAMPLES["fp8 blocks"].config}
    write_checkpoint(tmp_path / "a", stored, config=config)
    with pytest.raises(ramerge.RamergeError) as caught:
        ramerge.merge(source, tmp_path / "out")
    text = str(caught.value)
    messages.check(text)


def test_codes_that_are_nan(tmp_path: Path, messages: Messages) -> None:
    source = family(tmp_path, "fp8 blocks")
    stored = quantize_model("fp8 blocks", model(1, moved=0.4))[0]
    codes = stored[Q].bits.copy()
    codes[3, 4:6] = 0x7F, 0xFF
    config = {"torch_dtype": "bfloat16", "quantization_config": SAMPLES["fp8 blocks"].config}
    write_checkpoint(tmp_path / "a", {**stored, Q: Stored("F8_E4M3", codes)}, config=config)
    with messages.raises(ramerge.RamergeError):
        ramerge.merge(source, tmp_path / "out")


def test_false_declaration_may_be_accepted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", model(0))
    write_checkpoint(tmp_path / "a", model(1, moved=0.3), config={"quantization_config": {"quant_method": "fp8"}})
    assert ramerge.plan(recipe(tmp_path, ["a"])).problems
    accepted = {**recipe(tmp_path, ["a"]), "allow": {"config": ["quantization_config"]}}
    assert ramerge.plan(accepted).problems == ()


def test_the_plan_counts_the_bytes_of_codes(tmp_path: Path) -> None:
    source = family(tmp_path, "fp8 blocks")
    plan = ramerge.plan(source)
    size = {name: sum(t.bits.nbytes for t in read_checkpoint(tmp_path / name).values()) for name in ("base", "a", "b")}
    assert plan.bytes_read == plan.details.passes * sum(size.values())


def test_deepseek_v4_is_refused_by_its_name(tmp_path: Path) -> None:
    stem = "layers.0.ffn.experts.0.w1"
    tensors = {
        f"{stem}.weight": Stored("I8", np.ones((16, 32), np.uint8)),
        f"{stem}.scale": Stored("F8_E8M0", np.full((16, 2), 127, np.uint8)),
    }
    for declared in ({"quantization_config": {"quant_method": "fp8"}}, {"model_type": "x"}):
        folder = write_checkpoint(tmp_path / "model", tensors, config=declared)
        with pytest.raises(CheckpointError, match="DeepSeek V4") as caught:
            open_checkpoint(folder)
        assert stem in str(caught.value)
