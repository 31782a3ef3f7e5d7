"""Recorded inputs of layers as architectures store them: stacked experts, transposed weights, fused projections."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from tests import reference
from tests.checkpoints import read_checkpoint, write_inputs
from tests.messages import Messages

pytestmark = [pytest.mark.full, pytest.mark.needs("torch", "transformers")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import save_file  # noqa: E402

from ramerge.calibration.inputs import InputRecorder, RecordedInputs  # noqa: E402
from ramerge.calibration.live import LiveModel  # noqa: E402
from ramerge.core.engine.gathered_from import digests_of  # noqa: E402
from ramerge.core.tensors.reader import Files, Reader  # noqa: E402

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
ROUTED = SIZES | {"num_key_value_heads": 1, "head_dim": 8, "num_experts_per_tok": 2}
MODELS = {
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**ROUTED, num_experts=4, moe_intermediate_size=8),
    "gpt_oss": lambda: transformers.GptOssConfig(**ROUTED, num_local_experts=4, intermediate_size=16),
    "llama4_text": lambda: transformers.Llama4TextConfig(
        **ROUTED, num_local_experts=4, intermediate_size=8, intermediate_size_mlp=8, interleave_moe_layer_step=1,
        attention_chunk_size=32,
    ),
    "mixtral": lambda: transformers.MixtralConfig(**ROUTED, num_local_experts=4, intermediate_size=8),
    "phi3": lambda: transformers.Phi3Config(**SIZES, intermediate_size=8, pad_token_id=0),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZES, intermediate_size=8),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0),
}  # fmt: skip
TEXTS = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
AGENTS = ("code", "tool")


def write_models(folder: Path, kind: str, *, stacked: bool = False) -> None:
    """A base and two agents, as transformers stores them, or with the stacked experts that it has in memory."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[kind]())
    base = [torch.randn_like(one) * 0.05 + (one.ndim == 1) for one in model.parameters()]
    for seed, name in enumerate(("base", *AGENTS)):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter, start in zip(model.parameters(), base, strict=True):
                parameter.copy_(start + torch.randn_like(start) * 0.01 * bool(seed))
        model.save_pretrained(folder / name)
        if stacked:
            save_file(model.state_dict(), folder / name / "model.safetensors", {"format": "pt"})


def record(folder: Path) -> RecordedInputs:
    live = LiveModel(folder, torch.device("cpu"), "float32")
    recorder = InputRecorder(live, read_checkpoint(folder), 100, 0)
    for ids in TEXTS:
        recorder.begin(list(range(len(ids))), len(ids), live.device)
        with recorder:
            live.run_layers(ids)
    tokens = sum(map(len, TEXTS))
    return recorder.result(np.full(tokens, 1 / tokens, np.float32), tokens)


def numbers(found: RecordedInputs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each weight its rows and how much each counts."""
    return {
        name: (found.rows[rows].double().numpy(), found.weights[weights].astype(np.float64))
        for name, (rows, weights) in found.places.items()
    }


def merge(folder: Path, **parameters: Any) -> tuple[dict[str, np.ndarray], dict[str, RecordedInputs]]:
    """Record both agents' inputs, and merge with them."""
    agents, recorded = {}, {}
    for name in AGENTS:
        recorded[name] = record(folder / name)
        inputs = write_inputs(
            folder / f"{name}-inputs", numbers(recorded[name]), folder / "base", recorded[name].transposed
        )
        agents[name] = {"model": str(folder / name), "inputs": str(inputs)}
    recipe = {"method": "regmean", "base": str(folder / "base"), "agents": agents, "parameters": parameters}
    ramerge.merge(recipe, folder / "merged")
    return in_float64(folder / "merged"), recorded


def in_float64(folder: Path) -> dict[str, np.ndarray]:
    return {name: one.numbers(np.float64) for name, one in read_checkpoint(folder).items()}


def assert_like_reference(folder: Path, merged: dict[str, np.ndarray], recorded: dict[str, RecordedInputs]) -> None:
    """Each recorded weight is what the formula says, to 1e-6 of the update and of rounding, and others are the sum."""
    base, *agents = (in_float64(folder / name) for name in ("base", *AGENTS))
    inputs = [numbers(recorded[name]) for name in AGENTS]
    names = {name for found in inputs for name in found}
    for key, before in base.items():
        parts = {f"{key}[{e}]": e for e in range(len(before))} if before.ndim == 3 else {key: ...}
        for name, place in parts.items():
            taus = [agent[key][place] - before[place] for agent in agents]
            wanted = sum(taus)
            if name in names:
                is_transposed = key in recorded["code"].transposed
                taus = [tau.T if is_transposed else tau for tau in taus]
                wanted = formula(taus, [found.get(name) for found in inputs])
                assert np.abs(wanted - sum(taus)).max() > 1e-4, name
                wanted = wanted.T if is_transposed else wanted
            found = merged[key][place] - before[place]
            rounding = np.abs(before[place]).max() * 2**-23
            assert np.allclose(found, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max() + rounding), name


def formula(taus: list[np.ndarray], inputs: list[Any]) -> np.ndarray:
    """The reference's result for one weight of shape (out, in)."""
    agents = {f"{place}": {"w": reference.encode(tau, "F64")} for place, tau in enumerate(taus)}
    found = {f"{place}": {"w": one} if one is not None else {} for place, one in enumerate(inputs)}
    base = {"w": reference.encode(np.zeros_like(taus[0]), "F64")}
    return reference.regmean(base, agents, inputs=found)["w"].numbers(np.float64)


@pytest.mark.parametrize(
    ("kind", "weight", "transposed"),
    [
        ("qwen3_moe", "model.layers.0.mlp.experts.gate_up_proj", False),
        ("qwen3_moe", "model.layers.0.mlp.experts.down_proj", False),
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", True),
        ("gpt_oss", "model.layers.0.mlp.experts.down_proj", True),
        ("llama4_text", "model.layers.0.feed_forward.experts.down_proj", True),
        ("phi3", "model.layers.0.self_attn.qkv_proj.weight", False),
        ("phi3", "model.layers.0.mlp.gate_up_proj.weight", False),
        ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value.weight", False),
        ("gpt2", "transformer.h.0.attn.c_attn.weight", True),
    ],
)
def test_every_layout_is_recorded_and_corrected(kind: str, weight: str, transposed: bool, tmp_path: Path) -> None:
    write_models(tmp_path, kind, stacked=".experts." in weight)
    merged, recorded = merge(tmp_path)
    assert any(place.partition("[")[0] == weight for place in recorded["code"].places)
    assert (weight in recorded["code"].transposed) == transposed
    assert_like_reference(tmp_path, merged, recorded)


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_stacked_experts_merge_as_named_experts(kind: str, tmp_path: Path) -> None:
    for folder, stacked in (("stacked", True), ("named", False)):
        write_models(tmp_path / folder, kind, stacked=stacked)
    stacked, _ = merge(tmp_path / "stacked")
    named, recorded = merge(tmp_path / "named")
    assert_like_reference(tmp_path / "named", named, recorded)
    base = in_float64(tmp_path / "stacked/base")
    stem = "model.layers.0.mlp.experts" if kind == "qwen3_moe" else "model.layers.0.block_sparse_moe.experts"
    gate, up, down = ("gate_proj", "up_proj", "down_proj") if kind == "qwen3_moe" else ("w1", "w3", "w2")
    for whole, parts in (("gate_up_proj", (gate, up)), ("down_proj", (down,))):
        found = stacked[f"model.layers.0.mlp.experts.{whole}"]
        wanted = [np.concatenate([named[f"{stem}.{e}.{part}.weight"] for part in parts]) for e in range(len(found))]
        update = np.abs(found - base[f"model.layers.0.mlp.experts.{whole}"]).max()
        assert np.abs(found - wanted).max() < 1e-6 * update


def test_prior_decides_for_rarely_used_experts(tmp_path: Path) -> None:
    write_models(tmp_path, "qwen3_moe", stacked=True)
    rng = np.random.default_rng(0)
    key = "model.layers.0.mlp.experts.down_proj"
    found = {}
    for few in (1.0, 1e-6):
        agents = {}
        for name in AGENTS:
            rows = rng.integers(-3, 4, (20, 8)).astype(np.float64)
            places = {f"{key}[{e}]": (rows, np.full(20, (few if e == 2 else 1.0) / 20)) for e in (0, 2)}
            inputs = write_inputs(tmp_path / "in" / name, places, tmp_path / "base")
            agents[name] = {"model": str(tmp_path / name), "inputs": str(inputs)}
        ramerge.merge(
            {"method": "regmean", "base": str(tmp_path / "base"), "agents": agents},
            tmp_path / "merged",
            options=ramerge.Options(overwrite=True),
        )
        found[few] = in_float64(tmp_path / "merged")[key]
    base, *taus = (in_float64(tmp_path / name)[key] for name in ("base", *AGENTS))
    total = sum(taus) - base
    for few in found:  # no inputs: the sum; many: corrected
        assert np.allclose(found[few][[1, 3]], total[[1, 3]], atol=1e-7)
        assert np.abs(found[few][0] - total[0]).max() > 1e-3
    assert np.abs(found[1.0][2] - total[2]).max() > 1e-3
    assert np.abs(found[1e-6][2] - total[2]).max() < 1e-4


def test_inputs_of_missing_expert_are_refused(tmp_path: Path) -> None:
    write_models(tmp_path, "qwen3_moe", stacked=True)
    key = "model.layers.0.mlp.experts.down_proj"
    inputs = write_inputs(tmp_path / "in", {f"{key}[4]": (np.ones((3, 8)), np.full(3, 1 / 3))}, tmp_path / "base")
    recipe = {
        "method": "regmean",
        "base": str(tmp_path / "base"),
        "agents": {name: {"model": str(tmp_path / name), "inputs": str(inputs)} for name in AGENTS},
    }
    problems = ramerge.plan(recipe).problems
    assert len(problems) == 2
    assert f"do not fit '{key}[4]' of shape [4, 16, 8]" in problems[0]


def test_separately_planned_experts_are_recognized(tmp_path: Path, messages: Messages) -> None:
    write_models(tmp_path, "qwen3_moe", stacked=True)
    rows = {"model.layers.0.mlp.experts.down_proj[1]": (np.ones((3, 8)), np.full(3, 1 / 3))}
    agents = {}
    for name in AGENTS:
        inputs = write_inputs(tmp_path / f"{name}-inputs", rows, tmp_path / "base")
        recipe = {
            "method": "passthrough", "base": str(tmp_path / "base"), "agents": {name: str(tmp_path / name)}
        }  # fmt: skip
        plan = ramerge.plan(recipe).details
        with Files(plan.inputs.files) as files:
            digests = digests_of({each.parts[0].name: each.sources[0].tensor for each in plan.tensors}, Reader(files))
        (inputs / "model.json").write_text(json.dumps({"digests": digests}))
        agents[name] = {"model": str(tmp_path / name), "inputs": str(inputs)}
    recipe = {"method": "regmean", "base": str(tmp_path / "base"), "agents": agents}
    ramerge.merge(recipe, tmp_path / "merged")
    agents["code"]["inputs"] = agents["tool"]["inputs"]
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(recipe, tmp_path / "other")
