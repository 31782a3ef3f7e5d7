import pickle
from pathlib import Path

import pytest

import ramerge
from tests.checkpoints import read_checkpoint, recipe, simple, write_simple

torch = pytest.importorskip("torch")


def as_torch(tensors):
    return {
        name: torch.from_numpy(tensor.bits.view("int16").copy()).view(torch.bfloat16)
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("old_format", [False, True])
def test_a_pickled_agent_merges_to_the_same_bytes(old_format: bool, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ramerge.merge(recipe(tmp_path, names), tmp_path / "expected")
    (tmp_path / "tool" / "model.safetensors").unlink()
    state = as_torch(simple(2, moved=0.4))
    torch.save(state, tmp_path / "tool" / "pytorch_model.bin", _use_new_zipfile_serialization=not old_format)
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    expected, found = read_checkpoint(tmp_path / "expected"), read_checkpoint(tmp_path / "out")
    assert all(found[name].bits.tobytes() == expected[name].bits.tobytes() for name in expected)


def test_a_pickled_base_gives_safetensors(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "base" / "model.safetensors").unlink()
    torch.save(as_torch(simple(0)), tmp_path / "base" / "pytorch_model.bin")
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert not list((tmp_path / "out").glob("*.bin"))


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
