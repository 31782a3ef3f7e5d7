import json
import os
from pathlib import Path

import pytest

from ramerge.core.formats import files as files_module
from ramerge.core.formats import open as open_module
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError
from tests.checkpoints import floats, simple, write_checkpoint, write_safetensors
from tests.messages import Messages


def refused(folder: Path, messages: Messages) -> tuple[str, ...]:
    with messages.raises(CheckpointError) as raised:
        open_checkpoint(folder)
    return raised.value.problems


def change_index(folder: Path, change) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def test_single_and_sharded_hold_the_same_tensors(tmp_path: Path) -> None:
    one = open_checkpoint(write_checkpoint(tmp_path / "one", simple(0)))
    many = open_checkpoint(write_checkpoint(tmp_path / "many", simple(0), shards=2))
    assert set(one.tensors) == set(many.tensors) == set(simple(0))
    assert list(many.shards) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert one.config["model_type"] == "test"


def test_an_index_that_lies(tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0), shards=2)
    name = "model.layers.0.weight"

    def lie(index):
        index["weight_map"][name] = "model-00002-of-00002.safetensors"
        index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
        del index["weight_map"]["model.layers.2.weight"]

    change_index(folder, lie)
    refused(folder, messages)


def test_an_index_that_names_missing_files(tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, messages)


@pytest.mark.parametrize(
    "path", ["../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "C:\\x.safetensors"]
)
def test_a_shard_path_that_climbs_out(path: str, tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0), shards=2)
    change_index(folder, lambda index: index["weight_map"].update({"model.layers.0.weight": path}))
    refused(folder, messages)


def test_a_link_that_leads_outside(tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0))
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    refused(folder, messages)
    assert open_checkpoint(folder, allow_outside_links=True).tensors


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "{}"]
)
def test_a_broken_index(content: str, tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    refused(tmp_path, messages)


def test_what_is_no_checkpoint(tmp_path: Path, messages: Messages) -> None:
    refused(tmp_path / "absent", messages)
    write_checkpoint(tmp_path / "agents", simple(0))
    refused(tmp_path / "agent", messages)
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", messages)
    refused(tmp_path / "agents" / "model.safetensors", messages)
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "x.gguf").touch()
    refused(tmp_path / "gguf", messages)
    (tmp_path / "outer").mkdir()
    write_checkpoint(tmp_path / "outer" / "checkpoint-10", simple(0))
    refused(tmp_path / "outer", messages)


def test_a_tensor_in_two_files(tmp_path: Path, messages: Messages) -> None:
    write_safetensors(tmp_path / "a.safetensors", simple(0))
    write_safetensors(tmp_path / "b.safetensors", simple(0))
    refused(tmp_path, messages)


def test_many_duplicate_tensors_are_summarized(tmp_path: Path) -> None:
    tensors = {f"{number}.weight": floats([1.0]) for number in range(300)}
    for name in "abc":
        write_safetensors(tmp_path / f"{name}.safetensors", tensors)
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(tmp_path)
    *named, rest = raised.value.problems
    assert len(named) == 100 and "b.safetensors: 200 " in rest


def test_problems_of_all_files_are_listed(tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0), shards=3)
    for shard in list(folder.glob("model-*"))[:2]:
        shard.write_bytes(shard.read_bytes()[:-1])
    (folder / "config.json").write_text("{")
    refused(folder, messages)


def test_pipes_and_devices_are_not_read(tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0))
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refused(folder, messages)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    refused(folder, messages)


def test_a_configuration_that_links_outside(tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0))
    (folder / "config.json").rename(tmp_path / "elsewhere.json")
    (folder / "config.json").symlink_to(tmp_path / "elsewhere.json")
    refused(folder, messages)


def test_links_that_lead_round(tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0))
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
        (folder / name).symlink_to(name)
    refused(folder, messages)


def test_a_shard_name_that_no_file_can_have(tmp_path: Path, messages: Messages) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0), shards=2)
    change_index(folder, lambda index: index["weight_map"].update({"x": "y" * 300 + ".safetensors"}))
    assert len(refused(folder, messages)[0]) < 400


def test_more_files_or_tensors_than_a_model_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    folder = write_checkpoint(tmp_path / "m", simple(0), shards=2)
    monkeypatch.setattr(open_module, "_MOST_TENSORS", 2)
    refused(folder, messages)
    monkeypatch.setattr(files_module, "_MOST_FILES", 1)
    refused(folder, messages)


def test_file_outside_the_index_is_warned_of(tmp_path: Path, messages: Messages) -> None:
    """transformers reads the file, and vLLM those of the index."""
    folder = write_checkpoint(tmp_path / "m", simple(0), shards=2)
    assert open_checkpoint(folder).warnings == ()
    write_checkpoint(folder, simple(1))
    (warning,) = open_checkpoint(folder).warnings
    messages.check(warning)
    change_index(folder, lambda index: index["weight_map"].update(dict.fromkeys(simple(0), "model.safetensors")))
    (warning,) = open_checkpoint(folder).warnings
    messages.check(warning)
    for shard in folder.glob("model-*"):
        shard.unlink()
    assert open_checkpoint(folder).warnings == ()
