"""`dtype` narrows weights, and not the tensors that the base stores wider than its other weights."""

import json
from pathlib import Path

import numpy as np
import pytest

import ramerge
from tests import reference
from tests.checkpoints import floats, read_checkpoint, recipe, simple, write_checkpoint, write_safetensors
from tests.messages import Messages
from tests.reference import Stored

WIDE = {
    "model.layers.0.mlp.gate.e_score_correction_bias": (16,),
    "model.layers.1.mixer.A_log": (8,),
    "model.layers.1.mixer.dt_bias": (8,),
}


def same(one: Stored, other: Stored) -> bool:
    return one.dtype == other.dtype and np.array_equal(one.bits, other.bits)


def with_wide(seed: int, dtype: str = "BF16", wide: str = "F32", moved: float = 0.0) -> dict[str, Stored]:
    rng = np.random.default_rng(seed)
    own = {name: floats(np.linspace(6.82, 7.06, *shape) + 1e-3 * seed, wide) for name, shape in WIDE.items()}
    return simple(rng.integers(1 << 30), dtype, moved=moved) | own


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for seed, name in enumerate(("base", "code", "tool")):
        write_checkpoint(tmp_path / name, with_wide(seed, moved=0.1 if seed else 0), shards=2)
    return tmp_path


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_the_base_stores_wider_is_not_narrowed(dtype: str, models: Path) -> None:
    source = recipe(models, ["code", "tool"], "task_arithmetic", dtype=dtype)
    ramerge.merge(source, models / "out")
    base, *agents = (read_checkpoint(models / name) for name in ("base", "code", "tool"))
    merged = read_checkpoint(models / "out")
    plain = reference.task_arithmetic(base, dict(zip(("code", "tool"), agents, strict=True)))
    for name in WIDE:
        assert merged[name].dtype == "F32" and same(merged[name], plain[name])
    assert {one.dtype for name, one in merged.items() if name not in WIDE} == {"BF16" if dtype[0] == "b" else "F16"}
    assert json.loads((models / "out/config.json").read_text())["torch_dtype"] == dtype
    (note,) = [text for text in ramerge.plan(source).notes if "not narrowed" in text]
    assert f"dtype: {dtype}: 3 tensors are stored wider" in note and all(f"{name} (float32)" in note for name in WIDE)


@pytest.mark.parametrize(
    ("stored", "wide", "dtype", "written"),
    [
        ("F32", "F32", "bfloat16", "BF16"),  # a whole checkpoint in float32
        ("F32", "F64", "bfloat16", "F64"),
        ("F16", "BF16", "float16", "F16"),  # other, but not wider
        ("BF16", "F32", "float64", "F64"),
        ("BF16", "F32", "widest", "F32"),
        ("BF16", "F32", None, "F32"),
    ],
)
def test_a_conversion(stored: str, wide: str, dtype: str | None, written: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", with_wide(0, stored, wide))
    ramerge.convert(tmp_path / "model", tmp_path / "out", dtype=dtype)
    assert {read_checkpoint(tmp_path / "out")[name].dtype for name in WIDE} == {written}


def test_a_rule_narrows_or_widens_what_it_names(models: Path, messages: Messages) -> None:
    rules = [
        {"match": "*.A_log", "dtype": "bf16"},
        {"match": "*.dt_bias", "keep": "base", "dtype": "float16"},
        {"match": "model.layers.2.weight", "dtype": "float32"},
    ]
    source = recipe(models, ["code", "tool"], dtype="bfloat16", rules=rules)
    ramerge.merge(source, models / "out")
    found = {name: one.dtype for name, one in read_checkpoint(models / "out").items()}
    bias, log, step = WIDE
    assert (found[bias], found[log], found[step]) == ("F32", "BF16", "F16")
    assert (found["model.layers.2.weight"], found["model.layers.0.weight"]) == ("F32", "BF16")
    # in float32, all other weights would take twice the memory when they are loaded
    assert json.loads((models / "out/config.json").read_text())["torch_dtype"] == "bfloat16"
    (said,) = (note for note in ramerge.plan(source).notes if note.startswith("rules: "))
    assert "1 tensor is stored wider" in said and "'model.layers.2.weight'" not in said
    assert "model.layers.2.weight (float32); transformers loads all weights in the dtype of config.json" in said
    assert ramerge.Recipe(**source).to_yaml().count("dtype:") == 4
    (note,) = [text for text in ramerge.plan(source).notes if "not narrowed" in text]
    assert "1 tensor is stored wider" in note and bias in note and "model.layers.2" not in note
    with messages.raises(ramerge.RecipeError):
        ramerge.Recipe(**{**source, "rules": [{"match": "*"}]})


def test_dtype_rule_merges_with_recipe_parameters(models: Path) -> None:
    ruled = recipe(models, ["code", "tool"], "task_arithmetic", rules=[{"match": "*", "dtype": "bfloat16"}])
    ramerge.merge(ruled, models / "ruled")
    plain = recipe(models, ["code", "tool"], "task_arithmetic")
    ramerge.merge(plain, models / "plain")
    merged, wanted = read_checkpoint(models / "ruled"), read_checkpoint(models / "plain")
    assert all(same(one, wanted[name]) for name, one in merged.items() if name not in WIDE)
    assert {merged[name].dtype for name in WIDE} == {"BF16"}


@pytest.mark.parametrize("method", ["ram+", "ties", "breadcrumbs"])
def test_dtype_rule_is_counted_with_the_rest(method: str, models: Path) -> None:
    rules = [{"match": "model.layers.2.*", "dtype": "bfloat16"}]
    ruled = ramerge.merge(recipe(models, ["code", "tool"], method, rules=rules), models / "ruled")
    plain = ramerge.merge(recipe(models, ["code", "tool"], method), models / "plain")
    merged, wanted = read_checkpoint(models / "ruled"), read_checkpoint(models / "plain")
    assert all(same(one, wanted[name]) for name, one in merged.items())
    assert not ruled.parts and {name: one.values for name, one in ruled.agents.items()} == {
        name: one.values for name, one in plain.agents.items()
    }


def test_what_an_adapter_stores_wider_is_narrowed(models: Path) -> None:
    head = floats(np.random.default_rng(0).normal(0, 1, (40, 16)), "F32")
    (models / "adapter").mkdir()
    write_safetensors(models / "adapter/adapter_model.safetensors", {"base_model.model.model.layers.2.weight": head})
    settings = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "modules_to_save": ["layers.2"]}
    (models / "adapter/adapter_config.json").write_text(json.dumps(settings))
    ramerge.convert(f"{models}/base+{models}/adapter", models / "out", dtype="bfloat16")
    found = {name: one.dtype for name, one in read_checkpoint(models / "out").items()}
    assert found["model.layers.2.weight"] == "BF16" and {found[name] for name in WIDE} == {"F32"}


def test_rule_dtype_excludes_like_base(tmp_path: Path, messages: Messages) -> None:
    from tests.formats.quantized import write_quantized

    for name in ("base", "code"):
        write_quantized(tmp_path / name, "fp8 blocks", simple(0, shape=(20, 32)))
    rules = [{"match": "*", "dtype": "bfloat16"}]
    (problem,) = ramerge.plan(recipe(tmp_path, ["code"], dtype="like base", rules=rules)).problems
    messages.check(problem)


@pytest.mark.parametrize("order", [1, -1])
def test_tie_of_dtypes_ignores_order(order: int, tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "code")):
        own = {"a.weight": floats([[0.5 + seed]], "F32"), "b.weight": floats([[0.25 + seed]], "F64")}
        write_checkpoint(tmp_path / name, dict(list(own.items())[::order]))
    ramerge.merge(recipe(tmp_path, ["code"], "task_arithmetic", dtype="float32"), tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    assert {name: one.dtype for name, one in found.items()} == {"a.weight": "F32", "b.weight": "F64"}


@pytest.mark.parametrize(
    ("match", "dtype", "stated"),
    [
        ("*.0.weight", None, "bfloat16"),
        ("*.0.weight", "bfloat16", "bfloat16"),
        ("*.0.weight", "float16", "float16"),
        ("*", None, "float32"),
        ("*.[01].weight", None, "float32"),  # most weights
    ],
)
def test_rules_override_the_stated_dtype(match: str, dtype: str | None, stated: str, tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "code", "tool")):
        write_checkpoint(tmp_path / name, simple(seed, moved=0.1 if seed else 0))
    more = {"dtype": dtype} if dtype else {}
    source = recipe(tmp_path, ["code", "tool"], rules=[{"match": match, "dtype": "float32"}], **more)
    ramerge.merge(source, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == stated


@pytest.mark.parametrize(
    ("stored", "dtype", "rules", "stated", "wider"),
    [
        ("BF16", None, {"*.0.weight": "float32", "*": "bfloat16"}, "bfloat16", "0"),
        ("F32", "bfloat16", {"*.[01].weight": "float32"}, "float32", ""),
        ("F32", "bfloat16", {"*.0.weight": "float32"}, "bfloat16", "0"),
        ("F32", None, {"*.[01].weight": "bfloat16"}, "bfloat16", "2"),  # rules narrow most, so the rest is wider
        ("BF16", None, {"*.[01].weight": "float16"}, "float16", ""),  # neither holds the other's numbers
    ],
)
def test_config_states_the_commonest_dtype(
    stored: str, dtype: str | None, rules: dict[str, str], stated: str, wider: str, tmp_path: Path
) -> None:
    for seed, name in enumerate(("base", "code")):
        write_checkpoint(tmp_path / name, simple(seed, stored, moved=0.1 if seed else 0))
    more = {"dtype": dtype} if dtype else {}
    ruled = [{"match": match, "dtype": own} for match, own in rules.items()]
    source = recipe(tmp_path, ["code"], "task_arithmetic", rules=ruled, **more)
    ramerge.merge(source, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == stated
    notes = [note for note in ramerge.plan(source).notes if note.startswith("rules: ")]
    assert len(notes) == len(wider)
    assert all(f"most weights, which are {stated}: " in note for note in notes)
    assert all(f"model.layers.{number}.weight (float32)" in note for number, note in zip(wider, notes, strict=True))
