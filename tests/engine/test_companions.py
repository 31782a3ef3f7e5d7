import json
from pathlib import Path

import numpy as np
import pytest

import ramerge
from tests.checkpoints import (
    floats,
    read_checkpoint,
    recipe,
    simple,
    write_checkpoint,
    write_safetensors,
    write_simple,
)
from tests.conformance.test_merge import same
from tests.messages import Messages


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


def test_folders_of_other_models_are_left_out(tmp_path: Path) -> None:
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


def test_companions_of_unwritten_weights_are_left_out(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    files = ("params.json", "consolidated.safetensors", "adapter_config.json", "adapter_model.safetensors")
    put(tmp_path / "base", dict.fromkeys(files, b"{}") | {"tekken.json": b"{}"})
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS | {"tekken.json"}


def test_mistral_params_stay_with_mistrals_form(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "base/model.safetensors").rename(tmp_path / "base/consolidated.safetensors")
    put(tmp_path / "base", {"params.json": b"{}"})
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert {"params.json", "consolidated.safetensors"} <= written(tmp_path / "out")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "vocab.txt", "2_Dense/model.safetensors"])
@pytest.mark.parametrize("owner", ["base", "tool"])
def test_a_pointer_of_git_lfs_is_not_copied(name: str, owner: str, tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    put(tmp_path / "base", {"modules.json": MODULES})
    put(tmp_path / owner, {"modules.json": MODULES, name: POINTER})
    source = recipe(tmp_path, names, **({"companions": "tool"} if owner == "tool" else {}))
    problems = ramerge.plan(source).problems
    assert any(f"{tmp_path / owner / name}: is a Git LFS pointer, not the file" in problem for problem in problems)
    with messages.raises(ramerge.PlanError):
        ramerge.convert(tmp_path / owner, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pointer_instead_of_picture_is_left_out(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    put(tmp_path / "base", {"figures/a.png": POINTER})
    record = ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS and any("'figures/a.png'" in note for note in record.notes)


def test_a_module_that_lacks_files_is_refused(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    files = dict.fromkeys(
        ("2_Dense/model-00001-of-00003.safetensors", "2_Dense/model-00003-of-00003.safetensors"), b"x"
    )
    put(tmp_path / "base", {"modules.json": MODULES, **files})
    (problem,) = ramerge.plan(recipe(tmp_path, names)).problems
    messages.check(problem)


@pytest.mark.parametrize("text", [b"", b"{", b"[[]]", b'{"path": "2_Dense"}', b"[" * 1000, b"\xff"])
def test_a_list_of_modules_that_is_none(text: bytes, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    put(tmp_path / "base", {"modules.json": text, "2_Dense/model.safetensors": b"x", "2_Dense/config.json": b"{}"})
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS | {"modules.json"}


PROCESSOR = "policy_preprocessor.json"
STATES = ("step_3_normalizer_processor.safetensors", "states/step_5.safetensors")


def _policy(folder: Path, mean: float, states: tuple[str, ...] = STATES, *, stored: bool = True) -> None:
    """A processor that names files of statistics, and these."""
    steps = [{"registry_name": "rename"}, *({"registry_name": "normalizer", "state_file": file} for file in states)]
    put(folder, {PROCESSOR: json.dumps({"name": "policy", "steps": steps}).encode()})
    for file in states if stored else ():
        (folder / file).parent.mkdir(exist_ok=True)
        write_safetensors(folder / file, {"action.mean": floats([mean] * 4)})


def test_statistics_that_a_processor_names_are_copied(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for name in ("base", *names):
        _policy(tmp_path / name, 0.5)
    record = ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert record.warnings == () and written(tmp_path / "out") == OURS | {PROCESSOR, *STATES}
    [told] = [text for text in record.notes if STATES[0] in text]
    assert "processor states" in told and STATES[1] in told and not any("modules" in text for text in record.notes)
    for file in STATES:
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "base" / file).read_bytes()


def test_other_statistics_of_an_agent_are_warned_of(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for name in ("base", *names):
        _policy(tmp_path / name, 0.25 if name == "tool" else 0.5)
    (warning,) = ramerge.plan(recipe(tmp_path, names)).warnings
    assert str(tmp_path / "tool" / STATES[0]) in warning and "statistics" in warning


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/passwd", "a\0b", "x" * 2000, "c:\\x.safetensors", "absent.safetensors"]
)
def test_processor_names_leading_out_or_nowhere(file: str, tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    write_safetensors(tmp_path / "secret.safetensors", {"mean": floats([1.0])})
    for name in ("base", *names):
        _policy(tmp_path / name, 0.5, (file,), stored=False)
    record = ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    (warning,) = record.warnings
    assert PROCESSOR in warning
    messages.check(warning)
    assert written(tmp_path / "out") == OURS | {PROCESSOR}


def test_statistics_linked_from_outside_are_refused(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    write_safetensors(tmp_path / "secret.safetensors", {"mean": floats([1.0])})
    _policy(tmp_path / "base", 0.5, STATES[:1])
    (tmp_path / "base" / STATES[0]).unlink()
    (tmp_path / "base" / STATES[0]).symlink_to(tmp_path / "secret.safetensors")
    with messages.raises(ramerge.PlanError):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out")


@pytest.mark.parametrize("owner", ["base", "code"])
def test_a_processor_by_a_link_is_not_read(owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, opened = write_simple(tmp_path, {"code": 0.1}), list[str]()
    (tmp_path / "secret.json").write_text(json.dumps({"steps": [{"state_file": STATES[0]}]}))
    write_safetensors(tmp_path / owner / STATES[0], {"mean": floats([1.0])})
    (tmp_path / owner / PROCESSOR).symlink_to(tmp_path / "secret.json")
    read = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *rest, **more: (opened.append(path.name), read(path, *rest, **more))[1]
    )
    ramerge.plan(recipe(tmp_path, names))
    assert not {"secret.json", PROCESSOR} & set(opened)


def test_large_and_deep_processors_name_nothing(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    write_safetensors(tmp_path / "base" / STATES[0], {"mean": floats([np.nan])})
    steps = [{"state_file": STATES[0]}]
    for text in (
        json.dumps({"steps": steps, "x": "y" * 33_000_000}),
        json.dumps({"steps": steps})[:-1] + ', "x": ' + "[" * 5000,
    ):
        put(tmp_path / "base", {PROCESSOR: text.encode()})
        assert not any(
            "'states" in text or "statistics" in text for text in ramerge.plan(recipe(tmp_path, names)).warnings
        )


def test_weights_are_not_copied_whatever_names_them(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    _policy(tmp_path / "base", 0.5, ("model.safetensors",), stored=False)
    ramerge.merge(recipe(tmp_path, names, "task_arithmetic"), tmp_path / "out")
    same(read_checkpoint(tmp_path / "out"), simple(1, moved=0.1))


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[" * 1000, b"\xff", b'{"steps": {"a": 1}}', b'{"steps": [[], {"state_file": [1]}]}', b"[]"]
)
def test_a_processor_that_is_none_names_nothing(text: bytes, tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    put(tmp_path / "base", {PROCESSOR: text})
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert written(tmp_path / "out") == OURS | {PROCESSOR}


CODE = {"AutoConfig": "configuration_x.XConfig", "AutoModel": "models.modeling_x.X", "AutoTokenizer": ["tok_x.T", None]}


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "processor_config.json"])
def test_code_that_the_output_lacks_is_named(file: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    put(tmp_path / "base", {file: json.dumps({"auto_map": CODE}).encode(), "configuration_x.py": b"", "tok_x.py": b""})
    if file == "config.json":
        put(tmp_path / "code", {file: json.dumps({"auto_map": CODE}).encode()})
    (warning,) = ramerge.merge(recipe(tmp_path, names), tmp_path / "out").warnings
    assert "'models/modeling_x.py'" in warning and file in warning and "configuration_x" not in warning
    (tmp_path / "base/models").mkdir()
    put(tmp_path / "base", {"models/modeling_x.py": b""})
    assert ramerge.merge(recipe(tmp_path, names), tmp_path / "out2").warnings == ()
    assert (tmp_path / "out2/models/modeling_x.py").is_file()


def test_code_of_another_repository_is_not_asked_for(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    auto_map = {"AutoConfig": "org/repo--configuration_x.XConfig", "AutoModel": None, "AutoX": 3}
    put(tmp_path / "base", {"tokenizer_config.json": json.dumps({"auto_map": auto_map}).encode()})
    assert ramerge.merge(recipe(tmp_path, names), tmp_path / "out").warnings == ()


def test_companions_that_only_agents_have_are_noted(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    put(tmp_path / "tool", {"generation_config.json": b"{}", "preprocessor_config.json": b"{}"})
    notes = ramerge.plan(recipe(tmp_path, names)).notes
    for file in ("generation_config.json", "preprocessor_config.json"):
        (note,) = (note for note in notes if file in note)
        assert note.startswith("tool: has ")


def test_an_adapter_next_to_a_model_is_named(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for owner in ("base", "tool"):
        put(tmp_path / owner, {"adapter_model.safetensors": b"x", "adapter_config.json": b"{}"})
    plan = ramerge.plan(recipe(tmp_path, names))
    (warning,) = plan.warnings
    assert str(tmp_path / "tool") in warning and "adapter_model.safetensors" in warning
    assert any(str(tmp_path / "base") in note and "adapter_model" in note for note in plan.notes)


HEADS = [
    ("XForSequenceClassification", "model.norm.weight", True),
    ("XForSequenceClassification", "score.weight", False),
    ("XForTokenClassification", "classifier.dense.weight", False),
    ("XForSequenceClassification", "reward_head.weight", False),
    ("XForCausalLM", "score.weight", True),
    ("XForCausalLM", "model.layers.0.score.weight", False),
    ("XForCausalLM", "lm_head.weight", False),
]


@pytest.mark.parametrize(("architecture", "tensor", "wrong"), HEADS)
def test_a_class_without_its_head(architecture: str, tensor: str, wrong: bool, tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "code")):
        tensors = simple(seed, moved=0.1 * seed) | {tensor: floats(np.ones((4, 16)))}
        write_checkpoint(tmp_path / name, tensors, config={"architectures": [architecture], "model_type": "x"})
    warnings = ramerge.plan(recipe(tmp_path, ["code"])).warnings
    assert [architecture in warning and "architectures" in warning for warning in warnings] == [True] * wrong
