"""Gradients over layers and filters in mergekit's form: every tensor gets what mergekit would give it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramerge
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.recipe.checks import check
from ramerge.core.recipe.document import Document
from ramerge.mergekit.translate import translate
from tests.checkpoints import read_checkpoint, write_checkpoint
from tests.messages import Messages
from tests.reference import Stored

LAYERS = 5
PARTS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm")
NAMES = [
    "model.embed_tokens.weight",
    *[f"model.layers.{layer}.{part}.weight" for layer in range(LAYERS) for part in PARTS],
    "model.norm.weight",
    "lm_head.weight",
]


def theirs(name: str, levels: Sequence[Any], default: float) -> float:
    """What mergekit's ConfigReader gives a tensor: written down from its description, not from our code."""
    inside = name.split(".")[2] if ".layers." in name else None
    place = 0.0 if inside is None else int(inside) / (LAYERS - 1)

    def value(setting: Any) -> float | None:
        if isinstance(setting, dict):
            setting = [setting]
        if not isinstance(setting, list):
            return setting
        if setting and isinstance(setting[0], dict):
            for entry in setting:
                if entry.get("filter") in (None, "*") or entry["filter"] in name:
                    return value(entry["value"])
            return None
        scaled = place * (len(setting) - 1)
        left = int(scaled)
        right = min(left + 1, len(setting) - 1)
        return (1 - (scaled - left)) * setting[left] + (scaled - left) * setting[right]

    found = (value(level) for level in levels if level is not None)
    return next((one for one in found if one is not None), default)


_NUMBERS = st.sampled_from([0.0, 0.25, 0.5, 1.0])
_SCALES = _NUMBERS | st.lists(_NUMBERS, min_size=1, max_size=6)
_TEXTS = st.sampled_from(["self_attn", "mlp", "q_proj", "attn.o", "layers.3", "norm", "embed", "weight", "_proj", "*"])
_CASES = st.lists(
    st.fixed_dictionaries({"value": _SCALES}, optional={"filter": _TEXTS | st.none()}), min_size=1, max_size=4
)
_SETTINGS = _SCALES | _CASES


@given(
    own=st.lists(st.none() | _SETTINGS, min_size=1, max_size=3),
    shared=st.none() | _SETTINGS,
    scale=st.none() | _SETTINGS,
    in_slice=st.none() | _SETTINGS,
)
def test_every_tensor_gets_what_mergekit_would_give_it(own: list[Any], shared: Any, scale: Any, in_slice: Any) -> None:
    span = {"layer_range": [0, LAYERS]}
    sources = [
        {"model": f"m{i}", **span, "parameters": {"weight": 1, **({} if one is None else {"density": one})}}
        for i, one in enumerate(own)
    ]
    common = {name: value for name, value in (("density", shared), ("lambda", scale)) if value is not None}
    values = {
        "merge_method": "breadcrumbs",
        "base_model": "base",
        "slices": [{"sources": sources, "parameters": {} if in_slice is None else {"density": in_slice}}],
        "parameters": common,
    }
    found = check(translate(Document(values), lambda _document: NAMES))
    for name in NAMES:
        rule = found.rule_of(name)
        parameters = {**found.parameters, **(found.rules[rule - 1].parameters or {} if rule else {})}
        assert parameters["scale"] == theirs(name, [scale], 1.0)
        densities = parameters["density"]
        for i, one in enumerate(own):
            wanted = theirs(name, [one, in_slice, shared], 1.0)
            assert (densities[f"m{i}"] if isinstance(densities, dict) else densities) == wanted, name


SLERP = """\
merge_method: slerp
base_model: ./base
models:
  - model: ./a
parameters:
  t:
    - filter: self_attn
      value: [0, 0.5, 1]
    - filter: mlp
      value: [1, 0.5, 0]
    - value: 0.5
"""


def test_the_usual_recipe_of_slerp(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("base", "a"):
        tensors = {key: Stored("F32", rng.normal(size=(4, 4)).astype(np.float32).view(np.uint32)) for key in NAMES}
        write_checkpoint(tmp_path / name, tensors, config={"num_hidden_layers": LAYERS})
    path = tmp_path / "recipe.yaml"
    path.write_text(SLERP)
    record = ramerge.merge(path, tmp_path / "out")
    assert record.parameters["t"] == 0.5
    found, base = read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "base")
    for name in NAMES:
        at_base = found[name].bits.tobytes() == base[name].bits.tobytes()
        assert at_base == ((".0." in name and "self_attn" in name) or (".4." in name and "mlp" in name)), name
    # the recipe in ramerge's own words gives the same
    ramerge.merge(tmp_path / "out" / "ramerge.yaml", tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "out/model.safetensors").read_bytes()


def varying(density: Any, names: Sequence[str] = NAMES) -> dict[str, Any]:
    models = [{"model": "a"}]
    values = {"merge_method": "ties", "base_model": "b", "models": models, "parameters": {"weight": 1, **density}}
    return translate(Document(values), lambda _document: names).as_dict()


def test_rules_are_as_few_as_can_be() -> None:
    assert varying({"density": [0.5, 1]})["rules"] == [
        {"layers": str(layer), "parameters": {"density": density}}
        for layer, density in enumerate((0.625, 0.75, 0.875, 1.0), 1)
    ]
    found = varying({"density": [{"filter": "mlp", "value": 0.5}, {"value": 0.2}]})
    assert found["rules"] == [{"match": ["*mlp*"], "parameters": {"density": 0.5}}]
    assert found["parameters"]["density"] == 0.2
    found = varying({"density": [{"filter": "mlp", "value": [0, 0, 1]}, {"value": 0.2}]})
    assert found["rules"][0] == {"match": ["*mlp*"], "layers": "0-2", "parameters": {"density": 0.0}}


@pytest.mark.parametrize(
    ("given_", "names", "message"),
    [
        ({"weight": {"filter": "mlp", "value": 1}}, NAMES, "has no value for 'model.embed_tokens.weight'"),
        ({"density": [0, 1]}, ["v.0.w", "t.0.w", "t.1.w"], "needs one stack of layers, and the model has t, v"),
    ],
)
def test_refused(given_: dict[str, Any], names: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        varying(given_, names)


def test_unmatched_filters_are_warned_of(tmp_path: Path) -> None:
    for name in ("base", "a"):
        write_checkpoint(tmp_path / name, {"w": Stored("F32", np.full(4, len(name), np.float32).view(np.uint32))})
    path = tmp_path / "recipe.yaml"
    path.write_text(SLERP)
    plan = ramerge.plan(path)
    assert plan.problems == ()
    for text in ("self_attn", "mlp"):
        [warning] = [warning for warning in plan.warnings if text in warning]
        assert f"parameters.t: filter {text!r}: no tensor's name holds it" in warning
    assert len(ramerge.plan(path, options=ramerge.Options(strict=True)).problems) == 2


def test_one_layer_is_the_last_one() -> None:
    found = varying({"density": [0.2, 0.6]}, ["model.layers.0.w", "norm"])
    assert found["parameters"]["density"] == 0.2
    assert found["rules"] == [{"layers": "0", "parameters": {"density": 0.6}}]


def test_a_base_that_cannot_be_opened_is_said(tmp_path: Path, messages: Messages) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(SLERP)
    with messages.raises(RecipeError):
        ramerge.plan(path)


def test_a_base_that_is_an_agent_too_is_missing_once(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("merge_method: slerp\nbase_model: ./base\nmodels: [{model: ./a}, {model: ./b}]\nparameters: {t: 1}")
    with pytest.raises(RecipeError) as caught:
        ramerge.plan(path)
    assert sum("base: no such folder" in problem for problem in caught.value.problems) == 1
