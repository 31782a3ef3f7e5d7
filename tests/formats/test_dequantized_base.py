"""A quantized base, and agents of 16 bits that trainers have trained from its numbers, dequantized and rounded."""

import json
from pathlib import Path

import numpy as np
import pytest

import ramerge
from tests import reference
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.formats.quantized import SAMPLES, quantize_model, write_quantized
from tests.messages import Messages
from tests.reference import Stored, encode

SAMPLE = "fp8 blocks"
Tensors = dict[str, Stored]


def original() -> Tensors:
    rng = np.random.default_rng(3)
    shapes = {"q_proj": (64, 96), "up_proj": (128, 64)}
    made = {f"model.layers.{n}.{name}.weight": rng.normal(0, 0.02, s) for n in range(2) for name, s in shapes.items()}
    return {name: floats(values) for name, values in made.items()} | {"model.norm.weight": floats(np.ones(96))}


def dequantized(sample: str = SAMPLE, dtype: str = "BF16") -> Tensors:
    return {name: encode(t.numbers(np.float32), dtype) for name, t in quantize_model(sample, original())[1].items()}


def trained(start: Tensors, seed: int, density: float = 0.05) -> Tensors:
    """An agent in the dtype of its start, of which so much was moved, and by more than a step."""
    made = {}
    for place, (name, tensor) in enumerate(start.items()):
        rng = np.random.default_rng([seed, place])
        values = tensor.numbers(np.float32)
        here = rng.random(values.shape) < density
        made[name] = encode(np.where(here, values * np.float32(1.25) + np.float32(0.01), values), tensor.dtype)
    return made


def write(folder: Path, agents: dict[str, Tensors], sample: str = SAMPLE, **more: object) -> dict[str, object]:
    write_quantized(folder / "base", sample, original(), **more)
    for name, tensors in agents.items():
        write_checkpoint(folder / name, tensors)
    return recipe(folder, list(agents))


def notes_of(source: dict) -> list[str]:
    return [text for text in ramerge.plan(source).notes if "dequantize such a base" in text]


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample != "gpt-oss"])  # has other shapes
def test_statistics_are_of_the_rounded_base(sample: str, tmp_path: Path) -> None:
    start = dequantized(sample)
    agents = {name: trained(start, seed) for seed, name in enumerate(("code", "tool"), 1)}
    source = write(tmp_path, agents, sample)
    record = ramerge.merge(source, tmp_path / "out")
    plain = write_checkpoint(tmp_path / "plain", start)
    wanted = ramerge.merge({**source, "base": str(plain)}, tmp_path / "wanted")
    assert record.parameters == wanted.parameters and not record.warnings
    for name, agent in record.agents.items():
        assert agent.values == wanted.agents[name].values
    made, same = read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "wanted")
    assert all(tensor.dtype == "BF16" and np.array_equal(tensor.bits, same[name].bits) for name, tensor in made.items())
    (note,) = notes_of(source)
    assert "4 of its tensors are compared as rounded to bfloat16" in note and "code and tool are bfloat16" in note
    assert not any("float32" in text for text in ramerge.plan(source).warnings if "rounding by itself" in text)


def test_task_vector_joins_the_rounded_base(tmp_path: Path) -> None:
    start = dequantized()
    agents = {name: trained(start, seed) for seed, name in enumerate(("code", "tool"), 1)}
    source = {**write(tmp_path, agents), "method": "task_arithmetic", "dtype": "float32"}
    ramerge.merge(source, tmp_path / "out")
    wanted = reference.task_arithmetic(start, agents, "F32")
    made = read_checkpoint(tmp_path / "out")
    assert all(np.array_equal(made[name].bits, tensor.bits) for name, tensor in wanted.items())


def test_what_a_rule_keeps_is_the_exact_base(tmp_path: Path) -> None:
    source = write(tmp_path, {"code": trained(dequantized(), 1)})
    source |= {"dtype": "float32", "rules": [{"match": "*q_proj*", "keep": "base"}]}
    ramerge.merge(source, tmp_path / "out")
    made, exact = read_checkpoint(tmp_path / "out"), quantize_model(SAMPLE, original())[1]
    assert all(np.array_equal(made[name].bits, exact[name].bits) for name in made if "q_proj" in name)


@pytest.mark.parametrize("stated", ["bfloat16", "float16", "float32", None])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_outputs_dtype_is_the_stated_one(stated: str | None, rounding: str, tmp_path: Path) -> None:
    start = dequantized()
    agent = trained(start, 1)
    source = {**write(tmp_path, {"code": agent}, config={"torch_dtype": stated}), "rounding": rounding}
    ramerge.merge(source, tmp_path / "out")
    made = read_checkpoint(tmp_path / "out")
    dtype = {"float16": "F16", "float32": "F32"}.get(stated or "", "BF16")
    for name, tensor in made.items():
        assert tensor.dtype == (dtype if "proj" in name else "BF16")
        still = start[name].bits == agent[name].bits
        kept = encode(start[name].numbers(np.float32), tensor.dtype)
        assert np.array_equal(tensor.bits[still], kept.bits[still])


def test_like_base_keeps_codes_where_nothing_moved(tmp_path: Path) -> None:
    start = dequantized()
    agent = {name: Stored(t.dtype, t.bits.copy()) for name, t in start.items()}
    moved = "model.layers.0.q_proj.weight"
    first = encode(start[moved].numbers(np.float32)[:16] + np.float32(0.125), "BF16")
    agent[moved].bits[:16] = first.bits
    source = {**write(tmp_path, {"code": agent}), "dtype": "like base", "method": "task_arithmetic"}
    record = ramerge.merge(source, tmp_path / "out")
    stored, made = read_checkpoint(tmp_path / "base"), read_checkpoint(tmp_path / "out")
    assert stored.keys() == made.keys()
    for name, tensor in stored.items():
        same = tensor.bits == made[name].bits
        rows = same.shape[0] // 4 if name.startswith(moved) else 0  # of the first of four blocks
        assert same[rows:].all() and (not rows or not same[:rows].all())
    values = record.agents["code"].values
    assert (values["updates"], values["erased"]) == (16 * 96, 0)


@pytest.mark.full
def test_requantized_agent_is_rounded_likewise(tmp_path: Path) -> None:
    start = dequantized()
    source = write(tmp_path, {"code": trained(start, 1)})
    write_quantized(tmp_path / "tool", SAMPLE, original())
    made = ramerge.analyze(recipe(tmp_path, ["code", "tool"]))
    assert made.agents["tool"].density == 0 and 0.04 < made.agents["code"].density < 0.06
    assert "code is bfloat16" in notes_of(source)[0]


def test_agent_of_the_unquantized_model_is_warned_of(tmp_path: Path, messages: Messages) -> None:
    source = write(tmp_path, {"code": trained(original(), 1), "tool": trained(dequantized(), 2)})
    (warning,) = [text for text in ramerge.merge(source, tmp_path / "out").warnings if "sample" in text]
    messages.check(warning)


def test_float32_agents_name_their_base(tmp_path: Path) -> None:
    agents = {
        name: {key: encode(t.numbers(np.float32), "F32") for key, t in trained(dequantized(), seed).items()}
        for seed, name in enumerate(("code", "tool"), 1)
    }
    source = {**write(tmp_path, agents), "dtype": "float32"}
    warnings = [text for text in ramerge.merge(source, tmp_path / "out").warnings if "rounded to bfloat16" in text]
    assert len(warnings) == 2 and all(f"convert {tmp_path}/base OUT --dtype bfloat16" in text for text in warnings)
    ramerge.convert(tmp_path / "base", tmp_path / "start", dtype="bfloat16")
    record = ramerge.merge({**source, "base": str(tmp_path / "start")}, tmp_path / "right")
    assert not any("rounded" in text for text in record.warnings)
    assert "quantization_config" not in json.loads((tmp_path / "right/config.json").read_text())


def test_a_soup_of_quantized_checkpoints_is_compared_exactly(tmp_path: Path) -> None:
    """As the same soup in float32 is: no trainer has rounded the base for it."""
    source = {**write(tmp_path, {}), "dtype": "float32"}
    for seed, name in enumerate(("early", "late", "tool")):
        write_quantized(tmp_path / name, SAMPLE, trained(original(), seed))
    run = {name: str(tmp_path / name) for name in ("early", "late")}
    tool = {"tool": str(tmp_path / "tool")}
    ramerge.merge({**source, "method": "uniform", "agents": run}, tmp_path / "mean")
    ramerge.merge({**source, "agents": {"code": str(tmp_path / "mean"), **tool}}, tmp_path / "wanted")
    soup = {**source, "agents": {"code": {"soup": {"agents": run}}, **tool}}
    assert notes_of(soup) == [] and ramerge.plan(soup).details.input_dtypes["code"].startswith("float8")
    ramerge.merge(soup, tmp_path / "out")
    weights = "model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (tmp_path / "wanted" / weights).read_bytes()
