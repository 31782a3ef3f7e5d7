"""What is advised for embeddings that do not fit is followed here, and works."""

import json
from pathlib import Path

import numpy as np
import pytest

import ramerge
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.messages import Messages
from tests.reference import Stored

EMBEDDING, HEAD, LAYER = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.weight"
Tensors = dict[str, Stored]


def tensors(rows: int = 12, shift: float = 0.0, head: bool = False) -> Tensors:
    values = np.arange(rows * 4.0).reshape(rows, 4) / 64
    found = {EMBEDDING: floats(values + shift), LAYER: floats(np.arange(8.0).reshape(2, 4) / 8 + shift)}
    return found | ({HEAD: floats(values + 2 * shift)} if head else {})


def config(tied: bool, rows: int = 12, nested: bool = False) -> dict[str, object]:
    values = {"tie_word_embeddings": tied, "vocab_size": rows}
    return {"model_type": "test", "text_config": values} if nested else {"model_type": "test", **values}


def problems(source: dict[str, object], out: Path) -> str:
    with pytest.raises(ramerge.core.foundation.errors.InputError) as caught:
        ramerge.merge(source, out)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("says_so", [False, True])
def test_an_untied_head(nested: bool, says_so: bool, tmp_path: Path) -> None:
    """`a` stores a head of its own, whether its configuration says so or not; `b` ties it, as the base does."""
    out = tmp_path / "out"
    write_checkpoint(tmp_path / "base", tensors(), config=config(True, nested=nested))
    write_checkpoint(tmp_path / "a", tensors(shift=0.5, head=True), config=config(not says_so, nested=nested))
    write_checkpoint(tmp_path / "b", tensors(shift=0.25), config=config(True, nested=nested))
    source = recipe(tmp_path, ["a", "b"], "ram")
    untie = "set tie_word_embeddings to false in its config.json, and store 'lm_head.weight' in it as a copy of its"
    text = problems(source, out)
    assert untie in text
    # as advised
    write_checkpoint(tmp_path / "untied", tensors(head=True), config=config(False, nested=nested))
    source["base"] = str(tmp_path / "untied")
    if not says_so:  # which of its two embeddings counts is not clear
        key = "text_config.tie_word_embeddings" if nested else "tie_word_embeddings"
        assert f"allow.config: [{key}] accepts it" in problems(source, out)
        source["allow"] = {"config": [key]}
    ramerge.merge(source, out)
    merged, first, second = (read_checkpoint(tmp_path / name) for name in ("out", "a", "b"))
    mean = (first[HEAD].numbers(np.float64) + second[EMBEDDING].numbers(np.float64)) / 2
    assert merged[HEAD].bits.tobytes() == floats(mean).bits.tobytes()
    assert merged[EMBEDDING].bits.tobytes() != merged[HEAD].bits.tobytes()


def test_an_equal_head_is_accepted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", tensors(), config=config(True))
    agent = tensors(shift=0.5)
    write_checkpoint(tmp_path / "a", agent | {HEAD: agent[EMBEDDING]}, config=config(False))
    source = recipe(tmp_path, ["a"], "ram")
    assert any("tie_word_embeddings" in note for note in ramerge.plan(source).notes)
    ramerge.merge(source, tmp_path / "out")
    assert read_checkpoint(tmp_path / "out")[EMBEDDING].bits.tobytes() == agent[EMBEDDING].bits.tobytes()


@pytest.mark.parametrize("rows", [9, 15])
@pytest.mark.parametrize("head", [False, True])
def test_a_vocabulary_of_another_size(rows: int, head: bool, tmp_path: Path, messages: Messages) -> None:
    base = tensors(head=head)
    write_checkpoint(tmp_path / "base", base, config=config(not head))
    agent = tensors(rows, 0.5, head)
    write_checkpoint(tmp_path / "a", agent, config=config(not head, rows))
    source = recipe(tmp_path, ["a"], "ram")
    text = problems(source, tmp_path / "out")
    messages.check(text)
    # the one advice: keep the base's
    ramerge.merge({**source, "allow": {"different_shapes": True}}, tmp_path / "kept")
    kept = read_checkpoint(tmp_path / "kept")
    assert kept[EMBEDDING].bits.tobytes() == base[EMBEDDING].bits.tobytes()
    assert kept[LAYER].bits.tobytes() == agent[LAYER].bits.tobytes()
    # the other: give the agent the base's rows
    for name in (EMBEDDING, HEAD) if head else (EMBEDDING,):
        bits = agent[name].bits
        agent[name] = Stored("BF16", bits[:12] if rows > 12 else np.concatenate([bits, base[name].bits[rows:]]))
    write_checkpoint(tmp_path / "a", agent, config=config(not head))
    ramerge.merge(source, tmp_path / "out")
    assert read_checkpoint(tmp_path / "out")[EMBEDDING].bits.tobytes() == agent[EMBEDDING].bits.tobytes()
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 12
