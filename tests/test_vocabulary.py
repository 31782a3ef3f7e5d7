"""Embeddings with different numbers of rows: common rows are merged, and others come from where they are."""

import json
from pathlib import Path

import numpy as np
import pytest

import ramerge
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.reference import Stored

COMMON = {"vocabulary": "common"}
TOKENS = [f"t{number}" for number in range(8)]


def model(seed: int, rows: int, dtype: str = "BF16", *, tied: bool = False) -> dict[str, Stored]:
    base, rng = np.random.default_rng(0).normal(0, 0.02, (3, 16, 4)), np.random.default_rng(seed)
    moved = base + rng.normal(0, 1e-2, base.shape) * (seed > 0)
    found = {"model.embed_tokens.weight": moved[0, :rows], "model.layers.0.w": moved[1]}
    return {
        name: floats(v, dtype) for name, v in (found if tied else found | {"lm_head.weight": moved[2, :rows]}).items()
    }


def write(folder: Path, seed: int, rows: int, added: list[str] | None = None, **more: object) -> Path:
    write_checkpoint(folder, model(seed, rows, **more), config={"vocab_size": rows, "torch_dtype": "bfloat16"})
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    tokens = [{"id": len(TOKENS) + place, "content": text} for place, text in enumerate(added or [])]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens}))
    return folder


def numbers(folder: Path, name: str) -> np.ndarray:
    return read_checkpoint(folder)[name].bits


@pytest.mark.parametrize("method", ["ram+", "linear", "ties"])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_padded_base_and_an_agent_with_new_tokens(method: str, name: str, tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 12)
    write(tmp_path / "a", 1, 10)
    write(tmp_path / "b", 2, 14, ["<x>", "<y>", "<z>", "<u>", "<v>"], dtype="F32")
    source = recipe(tmp_path, ["a", "b"], method, allow=COMMON)
    made = ramerge.plan(source)
    assert made.problems == ()
    assert any("rows 12 to 13 are in b only" in note for note in made.notes)
    record = ramerge.merge(source, tmp_path / "out")
    assert record.tensors == 3
    found = numbers(tmp_path / "out", name)
    assert found.shape == (14, 4)
    # rows that only b has are b's, rounded to the base's dtype
    assert (found[12:] == floats(model(2, 14, "F32")[name].numbers(np.float64)[12:]).bits).all()
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["vocab_size"] == 14
    assert "<v>" in (tmp_path / "out/tokenizer.json").read_text()
    # the common rows are those of a merge of models that have only these
    for model_name, seed in (("base", 0), ("a", 1), ("b", 2)):
        dtype = "F32" if model_name == "b" else "BF16"
        write_checkpoint(tmp_path / "cut" / model_name, model(seed, 10, dtype))
    if method == "linear":  # what other methods count of the model depends on all rows
        ramerge.merge(recipe(tmp_path / "cut", ["a", "b"], method), tmp_path / "cut" / "out")
        assert (numbers(tmp_path / "cut" / "out", name) == found[:10]).all()


def test_an_agent_without_padding(tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 14)
    write(tmp_path / "a", 1, 9)
    ramerge.merge(recipe(tmp_path, ["a"], "task_arithmetic", allow=COMMON), tmp_path / "out")
    found, base = (numbers(tmp_path / one, "lm_head.weight") for one in ("out", "base"))
    assert (found[9:] == base[9:]).all() and not (found[:9] == base[:9]).all()
    assert (tmp_path / "out/config.json").read_bytes() == (tmp_path / "base/config.json").read_bytes()


def test_whole_tensors_in_memory_and_counts_that_are_remembered(tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 10)
    for name, seed in (("a", 1), ("b", 2)):
        write(tmp_path / name, seed, 12 + seed)
    source = recipe(tmp_path, ["a", "b"], allow=COMMON)
    found: dict[str, np.ndarray] = {}
    ramerge.merge(source, on_tensor=lambda one: found.update({one.name: one.data}))
    ramerge.merge(source, tmp_path / "out")
    ramerge.merge(source, tmp_path / "again")
    for name, tensor in read_checkpoint(tmp_path / "out").items():
        assert found[name].tobytes() == tensor.bits.tobytes()
        assert numbers(tmp_path / "again", name).tobytes() == tensor.bits.tobytes()
    ramerge.analyze(source)


def test_other_tokens_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 8)
    write(tmp_path / "a", 1, 10, ["<call>"])
    write(tmp_path / "b", 2, 10, ["<think>"])
    (problem,) = ramerge.plan(recipe(tmp_path, ["a", "b"], allow=COMMON)).problems
    assert "8 is '<think>', but '<call>' in a" in problem
    TOKENS[3] = "other"
    try:
        write(tmp_path / "b", 2, 10, ["<call>"])
    finally:
        TOKENS[3] = "t3"
    (problem,) = ramerge.plan(recipe(tmp_path, ["a", "b"], allow=COMMON)).problems
    assert "3 is 'other', but 't3' in base" in problem


def test_equal_numbers_of_rows_with_other_tokens(tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 10)
    write(tmp_path / "a", 1, 10, ["<call>"])
    write(tmp_path / "b", 2, 10, ["<think>"])
    assert "8 is '<think>'" in str(ramerge.plan(recipe(tmp_path, ["a", "b"], allow=COMMON)).problems)


def test_rules_choose_whose_rows(tmp_path: Path) -> None:
    for name, seed, rows in (("base", 0, 4), ("a", 1, 6), ("b", 2, 8)):
        write(tmp_path / name, seed, rows)
    taken = recipe(tmp_path, ["a", "b"], allow=COMMON, rules=[{"match": "*", "take": "b"}])
    ramerge.merge(taken, tmp_path / "out")
    assert (numbers(tmp_path / "out", "lm_head.weight") == numbers(tmp_path / "b", "lm_head.weight")).all()


def test_not_without_being_asked(tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 8)
    write(tmp_path / "a", 1, 10)
    text = str(ramerge.plan(recipe(tmp_path, ["a"])).problems)
    assert "2 rows of vocabulary more" in text and "allow.vocabulary: common" in text
