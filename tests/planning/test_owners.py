"""Owners of tensors: an agent called `base` is like any other, and without a base the first agent stands for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.planning.explain import doubts
from ramerge.core.planning.headers import read_headers
from ramerge.core.planning.owners import ALL_AGENTS, BASE
from ramerge.core.recipe.document import Document
from tests.checkpoints import floats, write_checkpoint, write_simple
from tests.messages import Messages
from tests.planning.test_vocabulary import COMMON, write


def family(folder: Path) -> dict[str, str]:
    values = np.random.default_rng(0).normal(0, 0.02, 64)
    for name, dtype in (("one", "BF16"), ("two", "F32")):
        write_checkpoint(folder / name, {"w": floats(values, dtype)}, config={"torch_dtype": "bfloat16"})
    return {"one": str(folder / "one"), "two": str(folder / "two")}


def test_its_dtype_is_reported(tmp_path: Path) -> None:
    models = family(tmp_path)
    plan = ramerge.plan({"method": "linear", "agents": {"code": models["one"], "base": models["two"]}})
    assert plan.details.input_dtypes == {"code": "bfloat16", "base": "float32"}
    assert [tensor.narrowed for tensor in plan.details.tensors] == [("base",)]
    assert any("base is float32, the output is bfloat16" in warning for warning in doubts(plan.details))
    assert "where a message says base, it is code, the first agent" in plan.explain()


@pytest.mark.parametrize("method", ["linear", "ram"])
def test_its_rows_and_tokens_are_its_own(method: str, tmp_path: Path) -> None:
    """The bytes, findings and tokenizer do not depend on what an agent is called, even next to a base."""
    write(tmp_path / "first", 0, 12)
    write(tmp_path / "a", 1, 10)
    write(tmp_path / "b", 2, 14, ["<x>", "<y>"])
    base = {"base": str(tmp_path / "first")} if method == "ram" else {}
    for name in ("base", "tool"):
        agents = {"code": str(tmp_path / "a"), name: str(tmp_path / "b")}
        source = {"method": method, **base, "agents": agents, "allow": COMMON}
        made = ramerge.plan(source)
        assert made.problems == ()
        assert any(f"to 13 are in {name} only" in note for note in made.notes)
        ramerge.merge(source, tmp_path / f"out-{name}")
        assert "<y>" in (tmp_path / f"out-{name}/tokenizer.json").read_text()
        ramerge.merge({**source, "companions": name}, tmp_path / f"chosen-{name}")
        is_the_agents = "<y>" in (tmp_path / f"chosen-{name}/tokenizer.json").read_text()
        assert is_the_agents == (name == "tool" or not base)  # next to a base, `companions: base` is the base's
    first, second = ((tmp_path / f"out-{name}/model.safetensors").read_bytes() for name in ("base", "tool"))
    assert first == second


def test_a_delta_is_not_opened_over_it(tmp_path: Path) -> None:
    """Only the recipe's base is what a delta is opened over before anything is planned."""
    write_simple(tmp_path, {"code": 0.1})
    ramerge.delta(tmp_path / "base", tmp_path / "code", tmp_path / "delta")
    delta = {"code": str(tmp_path / "delta")}
    base, code = read_headers(Document({"agents": {"base": str(tmp_path / "base"), **delta}}))
    _, same = read_headers(Document({"agents": {"other": str(tmp_path / "base"), **delta}}))
    assert base.name == "base" and base.problems == ()
    assert code == same


@pytest.mark.parametrize("name", [BASE, ALL_AGENTS])
def test_no_agent_can_be_called_like_an_owner(name: str, messages: Messages) -> None:
    with messages.raises(ramerge.RecipeError):
        ramerge.Recipe(agents={name: "code"})
