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
