import json
from pathlib import Path

import pytest

import ramerge
from tests.checkpoints import recipe, write_simple


def test_companions_are_copied_byte_for_byte(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    files = {
        "tokenizer.json": b'{"x":  1}',
        "chat_template.jinja": b"{{ a }}",
        "generation_config.json": b"{ }\r\n",
        "LICENSE": b"mine",
        "modeling_x.py": b"pass",
        "chat_templates/tool.jinja": b"t",
    }
    others = [
        "pytorch_model.bin",
        "optimizer.pt",
        "README.md",
        ".gitattributes",
        "trainer_state.json",
        "x.gguf",
        ".git/HEAD",
    ]
    for name, content in {**files, **dict.fromkeys(others, b"no")}.items():
        path = tmp_path / "base" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    for name, content in files.items():
        assert (tmp_path / "out" / name).read_bytes() == content
    written = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    ours = {"model.safetensors", "config.json", "README.md", "ramerge.json", "ramerge.yaml"}
    assert written == set(files) | ours
    assert (tmp_path / "out/config.json").read_bytes() == (tmp_path / "base/config.json").read_bytes()


def test_tokenizer_and_template_of_an_agent(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for owner in ("base", "tool"):
        (tmp_path / owner / "tokenizer.json").write_text(owner)
        (tmp_path / owner / "generation_config.json").write_text(owner)
        (tmp_path / owner / "NOTICE").write_text(owner)
    (tmp_path / "base" / "merges.txt").write_text("base")
    (tmp_path / "tool" / "chat_template.jinja").write_text("tool")
    ramerge.merge(recipe(tmp_path, names, companions="tool"), tmp_path / "out")
    content = {
        p.name: p.read_text() for p in (tmp_path / "out").iterdir() if p.suffix in (".json", ".jinja", "", ".txt")
    }
    assert content["tokenizer.json"] == content["generation_config.json"] == content["chat_template.jinja"] == "tool"
    assert content["NOTICE"] == "base"
    assert "merges.txt" not in content


def test_the_dtype_in_the_configuration_follows(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    config = {"model_type": "test", "dtype": "bfloat16", "text_config": {"torch_dtype": "bfloat16"}, "é": [1]}
    for owner in ("base", *names):
        (tmp_path / owner / "config.json").write_text(json.dumps(config))
    ramerge.merge(recipe(tmp_path, names, dtype="float32"), tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written == {**config, "dtype": "float32", "text_config": {"torch_dtype": "float32"}}
    assert list(written) == list(config)


def test_a_companion_that_links_outside(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "base" / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(ramerge.PlanError, match="outside_links"):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out")


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def written(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


OURS = {"model.safetensors", "config.json", "README.md", "ramerge.json", "ramerge.yaml"}
MODULES = b'[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "../x"}, {"path": 3}, 4]'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9085657\n"


def test_modules_with_weights_of_their_own_are_complete(tmp_path: Path) -> None:
    """Those of sentence-transformers, which loads each from its folder."""
    names = write_simple(tmp_path)
    files = {
        "modules.json": MODULES,
        "1_Pooling/config.json": b"{}",
        "2_Dense/config.json": b"{}",
        "2_Dense/model.safetensors": b"weights",
        "2_Dense/pytorch_model.bin": b"the same",
    }
    put(tmp_path / "base", files)
    record = ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS | files.keys()
    assert all((tmp_path / "out" / name).read_bytes() == content for name, content in files.items())
    assert any("have weights of their own, which are the base's and are not merged: 2_Dense" in x for x in record.notes)


def test_folders_of_other_models_are_left_out_and_named(tmp_path: Path) -> None:
    """What is left of them without their weights would look like a model."""
    names = write_simple(tmp_path)
    other = {
        "original/params.json": b"{}",
        "original/consolidated.00.pth": b"weights",
        "original/mp16/consolidated.00.pth": b"weights",
        "onnx/model.onnx": b"weights",
        "voices/a/b.npy": b"weights",
        "spk_dict.pt": b"weights",
        "model-q4.gguf": b"weights",
    }
    kept = {"voices/README.txt": b"text", "assets/config.json": b"{}"}
    put(tmp_path / "base", other | kept | {"optimizer.pt": b"state", "training_args.bin": b"state"})
    plan = ramerge.plan(recipe(tmp_path, names))
    (note,) = [note for note in plan.notes if "not copied, because they are or belong to weights" in note]
    assert all(f"'{name}'" in note for name in ("model-q4.gguf", "onnx/", "original/")) and "and 2 more" in note
    assert not any(name in note for name in ("mp16", "optimizer", "training_args", "model.safetensors"))
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS | kept.keys()


def test_what_belongs_to_weights_that_are_not_written_is_left_out(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    files = ("params.json", "consolidated.safetensors", "adapter_config.json", "adapter_model.safetensors")
    put(tmp_path / "base", dict.fromkeys(files, b"{}") | {"tekken.json": b"{}"})
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS | {"tekken.json"}


def test_the_parameters_of_mistrals_own_form_stay_with_it(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "base/model.safetensors").rename(tmp_path / "base/consolidated.safetensors")
    put(tmp_path / "base", {"params.json": b"{}"})
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert {"params.json", "consolidated.safetensors"} <= written(tmp_path / "out")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "vocab.txt", "2_Dense/model.safetensors"])
@pytest.mark.parametrize("owner", ["base", "tool"])
def test_a_pointer_of_git_lfs_is_not_copied(name: str, owner: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    put(tmp_path / "base", {"modules.json": MODULES})
    put(tmp_path / owner, {"modules.json": MODULES, name: POINTER})
    source = recipe(tmp_path, names, **({"companions": "tool"} if owner == "tool" else {}))
    problems = ramerge.plan(source).problems
    assert any(f"{tmp_path / owner / name}: is a Git LFS pointer, not the file" in problem for problem in problems)
    with pytest.raises(ramerge.PlanError, match="git lfs pull"):
        ramerge.convert(tmp_path / owner, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_picture_that_is_a_pointer_is_left_out_and_named(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    put(tmp_path / "base", {"figures/a.png": POINTER})
    record = ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS and any("'figures/a.png'" in note for note in record.notes)


def test_a_module_that_lacks_files_is_refused(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    files = dict.fromkeys(
        ("2_Dense/model-00001-of-00003.safetensors", "2_Dense/model-00003-of-00003.safetensors"), b"x"
    )
    put(tmp_path / "base", {"modules.json": MODULES, **files})
    (problem,) = ramerge.plan(recipe(tmp_path, names)).problems
    assert "lacks '2_Dense/model-00002-of-00003.safetensors', so the module 2_Dense is not complete" in problem


@pytest.mark.parametrize("text", [b"", b"{", b"[[]]", b'{"path": "2_Dense"}', b"[" * 1000, b"\xff"])
def test_a_list_of_modules_that_is_none(text: bytes, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    put(tmp_path / "base", {"modules.json": text, "2_Dense/model.safetensors": b"x", "2_Dense/config.json": b"{}"})
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS | {"modules.json"}
