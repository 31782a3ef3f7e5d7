"""Methods that solve for whole matrices, with LoRA adapters as agents: defaults of their own, and warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ramerge
from ramerge.cli.main import cli
from ramerge.core.methods.moved import WHERE_TO_BEGIN
from ramerge.core.methods.registry import METHODS
from tests.checkpoints import floats, read_checkpoint
from tests.formats.test_lora import SHAPES, UP, Q, write_adapter, write_base

MODULES = (*UP, Q)


def alike(folder: Path, seed: int, rank: int = 2) -> Path:
    """An adapter that began from the same A as others: trained, the As differ a little, and the Bs wholly."""
    common, own = np.random.default_rng(0), np.random.default_rng(seed)
    tensors = {}
    for module in MODULES:
        out, width = SHAPES[f"{module}.weight"]
        a = common.normal(0, 0.1, (rank, width)) + own.normal(0, 0.003, (rank, width))
        tensors[f"base_model.model.{module}.lora_A.weight"] = floats(a, "F32")
        tensors[f"base_model.model.{module}.lora_B.weight"] = floats(own.normal(0, 0.1, (out, rank)), "F32")
    return write_adapter(folder, tensors, r=rank, lora_alpha=2 * rank)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Any]:
    agents = {name: str(alike(tmp_path / name, seed)) for seed, name in enumerate(("code", "tool", "text"), 1)}
    return {"base": str(write_base(tmp_path / "base", "F32")), "agents": agents, "dtype": "float32"}


def length(recipe: dict[str, Any], method: str, **parameters: Any) -> float:
    """How far a merge moves the matrices."""
    chosen = recipe | {"method": method, "parameters": parameters}
    merged = ramerge.plan(chosen, options=ramerge.Options(cache=False)).tensors()
    found = {tensor.name: tensor.numpy().ravel() for tensor in merged}
    base = read_checkpoint(Path(recipe["base"]))
    names = [f"{module}.weight" for module in MODULES]
    moved = [found[name] - base[name].bits.view(np.float32).ravel() for name in names]
    return float(np.sqrt(sum(np.square(one).sum() for one in moved)))


def test_default_time_amplifies_no_common_directions(
    models: dict[str, Any],
) -> None:
    total = length(models, "task_arithmetic")
    assert length(models, "swudi", exp_time=300.0) > 2 * total
    assert length(models, "swudi") < 1.1 * total
    assert length(models, "swudi") == length(models, "swudi", exp_time=1.0)
    assert length(models, "aswudi", auto_rank_method="participation_sqrt") > 2 * length(models, "aswudi")
    assert length(models, "aswudi") < 1.1 * total


def test_plan_and_record_state_the_default(models: dict[str, Any], tmp_path: Path) -> None:
    plan = ramerge.plan(models | {"method": "swudi"})
    assert not plan.problems and not plan.warnings
    (note,) = (note for note in plan.notes if "exp_time" in note)
    assert "code, tool and text are LoRA adapters of rank 2" in note
    assert "exp_time: 1.0 as its default, not 300.0" in note
    record = ramerge.merge(models | {"method": "swudi"}, tmp_path / "out")
    assert record.parameters["exp_time"] == 1.0
    again = CliRunner().invoke(cli, ["merge", str(tmp_path / "out/ramerge.yaml"), str(tmp_path / "again")])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "out/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("swudi", {"exp_time": 300.0}),
        ("swudi", {"filter_type": "none"}),
        ("aswudi", {"auto_rank_method": "entropy"}),
        ("wudi", {}),
        ("iso_c", {}),
        ("iso_cts", {}),
        ("resmerge", {}),
    ],
)
def test_what_harms_adapters_is_warned_of_from_headers(
    models: dict[str, Any], method: str, parameters: dict[str, Any]
) -> None:
    asked = models | {"method": method, "parameters": parameters}
    (warning,) = ramerge.plan(asked).warnings
    assert f"LoRA adapters of rank 2, and {method} " in warning and WHERE_TO_BEGIN in warning
    assert ramerge.plan(asked, options=ramerge.Options(strict=True)).problems
    page, section = warning.rpartition("(")[2].partition(")")[0].split(", ")
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    assert f"\n## {json.loads(section)}\n" in text


@pytest.mark.parametrize("method", ["tsvm", "psa", "knots", "ties", "task_arithmetic"])
def test_what_does_not_is_not(models: dict[str, Any], method: str) -> None:
    assert not ramerge.plan(models | {"method": method}).warnings


def test_one_adapter_or_whole_models_change_no_default(models: dict[str, Any], tmp_path: Path) -> None:
    for agents in ({"code": models["agents"]["code"]}, {"a": str(write_base(tmp_path / "a", "F32"))}):
        plan = ramerge.plan(models | {"agents": agents, "method": "swudi"})
        assert plan.details.parameters.exp_time == 300.0 and not any("exp_time" in note for note in plan.notes)


def test_given_parameters_override_adapter_defaults(models: dict[str, Any]) -> None:
    swept = ramerge.plan(models | {"method": "swudi"}, vary={"parameters.exp_time": [300.0, 2.0]})
    assert [point.parameters[0].exp_time for point in swept.details.points] == [300.0, 2.0]
    rule = {"layers": 0, "parameters": {"exp_time": 5.0}}
    ruled = ramerge.plan(models | {"method": "swudi", "rules": [rule]})
    assert [one.exp_time for one in ruled.details.points[0].parameters] == [1.0, 5.0]


def test_defaults_for_adapters_are_parameters_and_are_described() -> None:
    for method in METHODS.values():
        for name, value in method.for_adapters.items():
            field = method.parameters.model_fields[name]
            assert method.parameters(**{name: value}) and value != field.default
            assert "LoRA adapters" in (field.description or "")
            assert not method.harms_adapters(method.parameters(**method.for_adapters))
