"""`ramerge convert` and `ramerge.convert`: one model as plain safetensors."""

import json
from pathlib import Path

import pytest

import ramerge
from tests.checkpoints import floats, read_checkpoint, simple, write_checkpoint, write_safetensors, write_simple
from tests.commands import ramerge as command
from tests.conformance.formats import ROWS, Row
from tests.conformance.test_merge import same
from tests.messages import Messages

BASES = [pytest.param(row, marks=row.marks, id=name) for name, row in ROWS.items() if row.as_base]


@pytest.mark.parametrize("format", BASES)
def test_every_format_as_it_is(format: Row, tmp_path: Path) -> None:
    tensors = simple(0, format.dtypes[0])
    model = format.write(tmp_path / "model", tensors)
    record = ramerge.convert(model, tmp_path / "out", dtype=format.dtype)
    assert record.method == "passthrough"
    plain = write_checkpoint(tmp_path / "plain", format.expand(tmp_path / "model", tensors))
    ramerge.convert(plain, tmp_path / "wanted", dtype=format.dtype)
    same(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "wanted"))


def test_dtype_shards_and_base(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", simple(0, "F32"))
    record = ramerge.convert(model, tmp_path / "out", dtype="bfloat16", values={"shard_size": "2kB"})
    assert record.dtype == "bfloat16" and len(list((tmp_path / "out").glob("*.safetensors"))) == 3
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "bfloat16"
    base = write_checkpoint(tmp_path / "base", simple(1), shards=2)
    ramerge.convert(model, tmp_path / "like", base=base)
    same(read_checkpoint(tmp_path / "like"), read_checkpoint(tmp_path / "out"))
    assert len(list((tmp_path / "like").glob("*.safetensors"))) == 2


def test_the_command(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "model", simple(0, "F32"))
    said = command("convert", str(tmp_path / "model"), str(tmp_path / "out"), "--dtype", "float16", "--json")
    assert json.loads(said.stdout)["dtype"] == "float16"
    refused = command("convert", str(tmp_path / "absent"), str(tmp_path / "other"))
    assert refused.returncode == 2
    assert not (tmp_path / "other").exists()
    messages.check(refused.stderr)


@pytest.mark.parametrize("config", [{"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}, {}])
@pytest.mark.parametrize("method", ["convert", "passthrough", "linear"])
def test_config_states_the_dtype_of_the_weights(method: str, config: dict[str, str], tmp_path: Path) -> None:
    """Otherwise transformers would round every parameter as it loads them."""
    nested = {"model_type": "test", **config, "text_config": {"x": 1, **config}}
    for seed in range(2):
        write_checkpoint(tmp_path / str(seed), simple(seed, "F32", moved=0.5), config=nested)
    if method == "convert":
        ramerge.convert(tmp_path / "0", tmp_path / "out")
    else:
        agents = {f"a{seed}": str(tmp_path / str(seed)) for seed in range(1 if method == "passthrough" else 2)}
        ramerge.merge({"method": method, "agents": agents}, tmp_path / "out")
    found = json.loads((tmp_path / "out/config.json").read_text())
    key = next(iter(config), "torch_dtype")
    assert found.pop(key) == "float32" and found["text_config"].get(key, "float32") == "float32"
    assert {**found, "text_config": {"x": 1}} == {"model_type": "test", "text_config": {"x": 1}}


def test_config_of_a_float32_router(tmp_path: Path) -> None:
    """What a model has in a wider dtype than it states is no reason to load all of it so; what training added is."""
    tensors = {**simple(0), "model.router.weight": floats([[1.0, 2.0]], "F32")}
    write_checkpoint(tmp_path / "model", tensors)
    ramerge.convert(tmp_path / "model", tmp_path / "out")
    assert (tmp_path / "out/config.json").read_bytes() == (tmp_path / "model/config.json").read_bytes()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "modules_to_save": ["router"]}
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    saved = {"base_model.model.model.router.weight": floats([[1.0, 3.0]], "F32")}
    write_safetensors(tmp_path / "adapter/adapter_model.safetensors", saved)
    ramerge.convert(f"{tmp_path / 'model'}+{tmp_path / 'adapter'}", tmp_path / "trained")
    assert json.loads((tmp_path / "trained/config.json").read_text())["torch_dtype"] == "float32"


def test_linked_weights(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "model", simple(0))
    (tmp_path / "linked").mkdir()
    for file in (tmp_path / "model").iterdir():
        (tmp_path / "linked" / file.name).symlink_to(file)
    refused = command("convert", str(tmp_path / "linked"), str(tmp_path / "out"))
    assert refused.returncode == 2
    messages.check(refused.stderr)
    done = command("convert", str(tmp_path / "linked"), str(tmp_path / "out"), "--allow-outside-links")
    assert done.returncode == 0
    ramerge.convert(tmp_path / "linked", tmp_path / "api", options=ramerge.Options(allow_outside_links=True))
    same(read_checkpoint(tmp_path / "api"), simple(0))
    same(read_checkpoint(tmp_path / "out"), simple(0))


def test_a_conversion_is_of_one_model(tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path, {"code": 0.1})
    done = command("convert", tmp_path / "code", tmp_path / "out", "--set", f"agents.x={tmp_path / 'base'}")
    assert done.returncode == 2
    messages.check(done.stderr)
    with messages.raises(ramerge.RecipeError):
        ramerge.convert(tmp_path / "code", tmp_path / "out", values={"method": "ram"})
    with messages.raises(ramerge.RecipeError):
        ramerge.convert(tmp_path / "code", tmp_path / "out", values="rounding")  # type: ignore[arg-type]


def test_names_are_mapped_to_those_of_a_base(tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path, {"code": 0.1})
    rename = {"rename": [{"from": "weight", "to": "w"}]}
    with messages.raises(ramerge.RecipeError):
        ramerge.convert(tmp_path / "code", tmp_path / "out", values=rename)
    with messages.raises(ramerge.RecipeError):
        ramerge.convert(tmp_path / "code", tmp_path / "out", dtype="float32", values={"dtype": "float16"})
