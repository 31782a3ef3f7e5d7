import json
import pickle
from pathlib import Path

import pytest

import ramerge
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError
from tests.checkpoints import recipe, simple, write_simple
from tests.messages import Messages

torch = pytest.importorskip("torch")

from tests.formats import trainers  # noqa: E402  (needs torch)

pytestmark = pytest.mark.full  # torch


def test_an_index_that_disagrees_with_the_files(tmp_path: Path, messages: Messages) -> None:
    folder = trainers.write_bin(tmp_path / "x", simple(0), shards=2)
    index = folder / "pytorch_model.bin.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"]["model.layers.9.weight"] = "pytorch_model-00001-of-00002.bin"
    del listed["weight_map"]["model.layers.2.weight"]
    index.write_text(json.dumps(listed))
    with pytest.raises(CheckpointError) as found:
        open_checkpoint(folder)
    messages.check(found.value.problems[0])
    messages.check(found.value.problems[1])


def test_tied_tensors_are_read_once(tmp_path: Path) -> None:
    embedding = torch.ones(4, 4)
    state = {"embed_tokens.weight": embedding, "lm_head.weight": embedding, "turned.weight": embedding.t()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert list(open_checkpoint(tmp_path).tensors) == list(state)
    (tmp_path / "config.json").write_text('{"text_config": {"tie_word_embeddings": true}}')
    found = open_checkpoint(tmp_path)
    assert list(found.tensors) == ["embed_tokens.weight", "turned.weight"]
    assert found.shards == {"model.safetensors": ("embed_tokens.weight", "turned.weight")}
    assert "'lm_head.weight' is tied to 'embed_tokens.weight'" in found.notes[0]


def test_other_tensors_of_shared_bytes_stay(tmp_path: Path) -> None:
    both, other = torch.ones(4, 4), torch.zeros(4, 4)
    state = {"lm_head.weight": both, "embed_tokens.weight": both, "layers.0.weight": other, "layers.1.weight": other}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    assert list(open_checkpoint(tmp_path).tensors) == ["embed_tokens.weight", "layers.0.weight", "layers.1.weight"]


class Attack:
    def __reduce__(self):
        return exec, ("raise SystemExit('code ran')",)


@pytest.mark.parametrize("content", ["attack", "list", "garbage"])
def test_other_pickles_are_refused(content: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "tool" / "model.safetensors").unlink()
    path = tmp_path / "tool" / "pytorch_model.bin"
    if content == "attack":
        path.write_bytes(pickle.dumps({"a": Attack()}, protocol=2))
    elif content == "list":
        torch.save([torch.zeros(3)], path)
    else:
        path.write_bytes(b"\x80\x02garbage")
    with pytest.raises(ramerge.PlanError, match="tool"):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert not (tmp_path / "out").exists()
