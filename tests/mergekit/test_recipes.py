"""Recipes of mergekit's form: what they become, and what is said about those that cannot be had."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramerge
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.methods.registry import METHODS
from ramerge.core.recipe.checks import check
from ramerge.core.recipe.document import Document, read_document
from ramerge.core.recipe.read import dialect_of, recipe_document
from ramerge.mergekit.translate import DIALECT, translate
from tests.checkpoints import floats, write_checkpoint
from tests.messages import Messages

MODELS = [{"model": "org/code", "parameters": {"weight": 0.5}}, {"model": "./tool", "parameters": {"weight": 1}}]


def recipe(method: str = "ties", **more: Any) -> dict[str, Any]:
    return {"merge_method": method, "base_model": "base", "models": MODELS, **more}


def said(values: dict[str, Any]) -> dict[str, Any]:
    return translate(Document(values)).as_dict()


def problems(values: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as raised:
        translate(Document(values))
    return raised.value.problems


def read(folder: Path, text: str) -> Document:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return read_document(path)


@pytest.mark.parametrize("key", ["merge_method", "models", "slices", "modules", "experts", "genome"])
def test_the_form_is_told_by_its_keys(key: str) -> None:
    assert dialect_of({key: None}) is DIALECT
    assert dialect_of({"method": "ram", "base": "b", "agents": {}, "parameters": {}, "dtype": "float32"}) is None


WEIGHTS = {"weights": {"code": 0.5, "tool": 1.0}}
ARITHMETIC = {**WEIGHTS, "scale": 1.0, "normalize": False}
CRUMBS = {**ARITHMETIC, "density": 1.0, "gamma": 0.01, "rescale": False}
DARE = {**ARITHMETIC, "p": 0.0, "rescale": True}


@pytest.mark.parametrize(
    ("theirs", "given", "ours", "parameters"),
    [
        ("task_arithmetic", {}, "task_arithmetic", ARITHMETIC),
        ("task_arithmetic", {"density": 0.3, "rescale": True, "int8_mask": True}, "task_arithmetic", ARITHMETIC),
        ("task_arithmetic", {"lambda": 0.4, "normalize": 1}, "task_arithmetic", {"scale": 0.4, "normalize": True}),
        ("ties", {}, "ties", {**ARITHMETIC, "normalize": True, "density": 1.0, "trim": "tensor"}),
        ("ties", {"density": 0.2, "normalize": False}, "ties", {"density": 0.2, "normalize": False}),
        ("ties", {"density": 0, "rescale": False, "int8_mask": 0}, "ties", {"density": 0.0}),
        ("dare_linear", {}, "dare", DARE),
        ("dare_linear", {"density": 0.3}, "dare", {"p": 0.7}),
        ("dare_linear", {"density": 0.7, "rescale": "off"}, "dare", {"p": 0.3, "rescale": False}),
        (
            "dare_linear",
            {"density": 1, "normalize": "yes", "seed": 7},
            "dare",
            {"p": 0.0, "normalize": True, "seed": 7},
        ),
        ("dare_ties", {}, "dare_ties", {**DARE, "density": 1.0, "trim": "tensor"}),
        ("dare_ties", {"density": "9e-1", "lambda": "2"}, "dare_ties", {"p": 0.1, "density": 1.0, "scale": 2.0}),
        ("breadcrumbs", {}, "breadcrumbs", CRUMBS),
        ("breadcrumbs_ties", {}, "breadcrumbs_ties", CRUMBS),
        ("breadcrumbs", {"density": 0.3, "gamma": 0.1}, "breadcrumbs", {"density": 0.3, "gamma": 0.1}),
        ("della_linear", {}, "della_linear", {**ARITHMETIC, "density": 1.0, "epsilon": 0.15, "rescale": "l1"}),
        ("della", {"rescale": False}, "della", {"normalize": True, "rescale": "none"}),
        ("multislerp", {}, "multislerp", {**WEIGHTS, "normalize": True, "eps": 1e-8}),
        ("nuslerp", {}, "nuslerp", {**WEIGHTS, "per": "tensor"}),
        ("nuslerp", {"nuslerp_flatten": False}, "nuslerp", {**WEIGHTS, "per": "row"}),
        ("nuslerp", {"nuslerp_flatten": 0, "nuslerp_row_wise": True}, "nuslerp", {**WEIGHTS, "per": "column"}),
        ("nuslerp", {"nuslerp_row_wise": True}, "nuslerp", {**WEIGHTS, "per": "tensor"}),
    ],
)
def test_methods_of_task_vectors(theirs: str, given: dict[str, Any], ours: str, parameters: dict[str, Any]) -> None:
    found = said(recipe(theirs, parameters=given))
    assert (found["method"], found["base"], found["agents"]) == (ours, "base", {"code": "org/code", "tool": "./tool"})
    assert parameters.items() <= found["parameters"].items()
    if not given:
        assert parameters == found["parameters"]


@pytest.mark.parametrize(
    ("theirs", "given", "ours", "parameters"),
    [
        ("ram", None, "ram", {"epsilon": 1e-5}),
        ("ram", {"epsilon": "1e-6"}, "ram", {"epsilon": 1e-6}),
        ("ramplus_tl", {}, "ram+", {"epsilon": 1e-5, "r": 0.1, "alpha": 0.2, "scope": "tensor"}),
        ("ramplus_tl", {"alpha": 2, "r": 0}, "ram+", {"epsilon": 1e-5, "r": 0.0, "alpha": 2.0, "scope": "tensor"}),
    ],
)
def test_reinforced_agent_merging(theirs: str, given: object, ours: str, parameters: dict[str, Any]) -> None:
    models = [{"model": "base"}, {"model": "code"}, {"model": "tool", "parameters": None}]
    found = said(recipe(theirs, models=models, parameters=given))
    assert found == {
        "method": ours,
        "base": "base",
        "agents": {"code": "code", "tool": "tool"},
        "parameters": parameters,
    }


@pytest.mark.parametrize(
    "method", ["linear", "task_arithmetic", "ties", "dare_linear", "dare_ties", "ram", "ramplus_tl"]
)
@pytest.mark.parametrize("own", [{}, {"weight": 0.5, "density": 0.25}])
def test_what_comes_of_it_is_a_recipe(method: str, own: dict[str, float]) -> None:
    if method.startswith("ram"):
        own, shared = {}, {"epsilon": "1e-4"}
    else:
        own = {name: value for name, value in own.items() if name == "weight" or method != "linear"}
        shared = {"weight": 1, "normalize": True}
    models = [{"model": "code", "parameters": own}, {"model": "tool"}]
    document = translate(Document(recipe(method, models=models, parameters=shared, dtype="float16")))
    checked = check(recipe_document(document))
    assert checked.parameters == document.as_dict()["parameters"]
    # RAM's variants of its own, which mergekit does not have, stay at the paper's
    left = {"shared", "density", "trim"} if method.startswith("ram") else {"seed"}
    assert set(METHODS[checked.method].parameters.model_fields) - set(checked.parameters) <= left


@pytest.mark.parametrize(
    ("theirs", "given", "agents", "parameters"),
    [
        ("slerp", {"t": 0.3}, ["base", "code"], {"t": 0.3}),
        ("karcher", {}, ["code", "base"], {"max_iter": 10, "tol": 1e-5}),
        ("sce", {"select_topk": 0.5, "int8_mask": True}, ["code"], {"select_topk": 0.5}),
        ("model_stock", {"filter_wise": True}, ["code"], {"per": "row"}),
        ("arcee_fusion", {}, ["code"], {}),
    ],
)
def test_where_the_base_stands(theirs: str, given: dict[str, Any], agents: list[str], parameters: object) -> None:
    for models in ([{"model": "code"}], [{"model": "code"}, {"model": "base"}]):
        found = said(recipe(theirs, models=models, parameters=given))
        assert (found["method"], found["base"], list(found["agents"])) == (theirs, "base", agents)
        assert found["parameters"] == parameters


def test_methods_with_an_optional_base() -> None:
    for method in ("nuslerp", "multislerp"):
        assert "base" not in said(recipe(method, base_model=None))
        found = said(recipe(method, models=[*MODELS, {"model": "base"}]))
        assert (found["base"], list(found["agents"])) == ("base", ["code", "tool"])


def test_passthrough() -> None:
    models = [{"model": "code", "parameters": {"scale": 0.5}}]
    wanted = {"method": "passthrough", "agents": {"code": "code"}, "parameters": {"scale": 0.5}}
    assert said({"merge_method": "passthrough", "models": models}) == wanted
    assert said({"merge_method": "passthrough", "base_model": "code", "models": models}) == {**wanted, "base": "code"}


def test_linear() -> None:
    plain = {"merge_method": "linear", "models": MODELS}
    assert said(plain) == {
        "method": "linear",
        "agents": {"code": "org/code", "tool": "./tool"},
        "parameters": {**WEIGHTS, "normalize": True},
    }
    listed = [{"model": "base", "parameters": {"weight": 2}}, *MODELS]
    found = said({**plain, "base_model": "base", "models": listed, "parameters": {"normalize": False}})
    assert found["base"] == "base"
    assert list(found["agents"]) == ["base", "code", "tool"]
    assert found["parameters"] == {"weights": {"base": 2.0, "code": 0.5, "tool": 1.0}, "normalize": False}
    # a base that is not listed counts all the same, as the last of the models
    found = said({**plain, "base_model": "org/start@v1", "parameters": {"weight": 3}})
    assert found["agents"] == {"code": "org/code", "tool": "./tool", "start": "org/start@v1"}
    assert found["parameters"]["weights"] == {"code": 0.5, "tool": 1.0, "start": 3.0}
    assert (
        "base_model: weight is missing: mergekit merges this model like the others"
        in problems({**plain, "base_model": "base"})[0]
    )


def test_model_keys_precede_general_keys() -> None:
    models = [
        {"model": "base", "parameters": {"weight": 9, "density": 0.9}},
        {"model": "a", "parameters": {"weight": 2}},
        {"model": "b", "parameters": {"density": 0.25}},
    ]
    found = said(recipe("ties", models=models, parameters={"weight": 1, "density": 0.5}))["parameters"]
    assert found["weights"] == {"a": 2.0, "b": 1.0}
    assert found["density"] == {"a": 0.5, "b": 0.25}
    found = said(recipe("dare_ties", models=models, parameters={"weight": 1}))["parameters"]
    assert found["p"] == {"a": 0.0, "b": 0.75}
    assert found["density"] == 1.0
    found = said(recipe("dare_ties", models=[{"model": "a"}, {"model": "b"}], parameters={"weight": 1, "density": 0.8}))
    assert (found["parameters"]["weights"], found["parameters"]["p"]) == (1.0, 0.2)


@given(st.floats(0, 1, exclude_min=True))
def test_drop_rates_have_no_noise(density: float) -> None:
    values = recipe("dare_linear", parameters={"density": density})
    if 1 - density == 1:
        assert "must be above 0" in problems(values)[0]
    else:
        rate = said(values)["parameters"]["p"]
        assert 0 <= rate < 1
        assert math.isclose(rate, 1 - density, abs_tol=2**-53)
        assert len(repr(rate)) <= max(len(repr(density)), 3) or density < 1e-3


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["org/Qwen2.5-7B@main"], ["Qwen2.5-7B"]),
        (["./runs/coder/", "../coder", "other/coder"], ["coder", "coder-2", "coder-3"]),
        (["x/a-2", "x/a", "y/a", "z/a"], ["a-2", "a", "a-3", "a-4"]),
        (["/models/my model (1)", "."], ["my-model-1", "model"]),
        (["C:\\models\\tool", "/", "日本"], ["tool", "model", "model-2"]),
        (["org/m@refs/pr/3"], ["m"]),
        ([{"model": {"path": "a+b", "revision": None}}, {"model": "org/c@v2", "lora": None}], ["a-b", "c"]),
        ([Path("runs/tool")], ["tool"]),
    ],
)
def test_agents_have_the_names_of_their_models(models: list[Any], names: list[str]) -> None:
    found = said(recipe("ram", models=[{"model": model} for model in models]))["agents"]
    assert list(found) == names
    texts = [model for model in models if isinstance(model, str)]
    assert [found[name] for name in names][: len(texts)] == texts


def test_adapters_on_models() -> None:
    texts = ["org/base+org/lora@v2", "base@main+a+b"]
    mappings = [{"model": "x", "lora": {"path": "runs/y", "revision": None}}, {"model": "x@v1", "lora": "z@v2"}]
    found = said(recipe("ram", models=[{"model": model} for model in [*texts, *mappings]]))["agents"]
    assert list(found.values()) == [*texts, "x+runs/y", "x@v1+z@v2"]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ({}, None),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float32", "out_dtype": "float16"}, "float16"),
        ({"dtype": "torch.float64", "out_dtype": "auto"}, "float64"),
        ({"dtype": "auto", "out_dtype": None}, None),
        ({"dtype": "bf16"}, "bfloat16"),
    ],
)
def test_dtypes(given: dict[str, Any], dtype: str | None) -> None:
    assert said(recipe(**given)).get("dtype") == dtype


@pytest.mark.parametrize(
    ("given", "computes"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16", "out_dtype": "float32"}, "float16"),
        ({"dtype": "float32", "out_dtype": "bfloat16"}, None),
        ({"out_dtype": "bfloat16"}, None),
        ({}, None),
    ],
)
def test_less_exact_mergekit_dtype_is_noted(tmp_path: Path, given: dict[str, Any], computes: str | None) -> None:
    for name in ("base", "code", "tool"):
        write_checkpoint(tmp_path / name, {"w": floats([1.0, 2.0], "F32")})
    (tmp_path / "recipe.yaml").write_text(
        json.dumps(recipe("karcher", models=[{"model": "code"}, {"model": "tool"}], **given))
    )
    notes = [note for note in ramerge.plan(tmp_path / "recipe.yaml").notes if "mergekit computes in it" in note]
    assert len(notes) == (computes is not None) and all(note.startswith(f"dtype: {computes}:") for note in notes)
    assert all("by karcher about a third" in note and "stock" not in note for note in notes)
    assert not translate(Document(recipe("ties", **given))).notes


@pytest.mark.parametrize(
    ("more", "chosen"),
    [
        ({"tokenizer_source": "base"}, True),
        ({"tokenizer_source": None, "tokenizer": None, "chat_template": None, "slices": None, "modules": {}}, False),
        ({"tokenizer": {"source": "base"}}, True),
        ({"chat_template": "auto"}, False),
        ({"tokenizer": {"source": "base", "tokens": {}, "pad_to_multiple_of": None}}, True),
    ],
)
def test_what_means_the_bases_tokenizer_is_accepted(more: dict[str, Any], chosen: bool) -> None:
    assert said(recipe(**more)) == said(recipe()) | ({"companions": "base"} if chosen else {})
    assert said(recipe(**more, companions="code"))["companions"] == "code"


@pytest.mark.parametrize("template", ["alpaca", "chatml", "exaone", "llama3", "mistral", "{{ messages }}"])
def test_templates_are_ignored_with_a_note(template: str) -> None:
    translated = translate(Document(recipe(chat_template=template)))
    assert translated.as_dict() == translate(Document(recipe())).as_dict()
    [note] = [note for note in translated.notes if note.startswith("chat_template: ")]
    assert "is ignored" in note and "companions: AGENT" in note


def test_names_are_ignored_with_a_note() -> None:
    translated = translate(Document(recipe(name="my-merge")))
    assert translated.as_dict() == translate(Document(recipe())).as_dict()
    assert "name: 'my-merge' is ignored: the output has the name of its folder" in translated.notes


@pytest.mark.parametrize(
    "key",
    [
        *("merge_method", "base_model", "models", "slices", "parameters", "dtype", "out_dtype"),
        *("tokenizer_source", "tokenizer", "chat_template", "name"),
    ],
)
def test_misspelled_keys_of_mergekit_are_corrected(key: str, messages: Messages) -> None:
    with messages.raises(RecipeError):
        translate(Document(recipe(**{f"{key}x": "x"})))


def test_a_missing_base_is_one_problem() -> None:
    with pytest.raises(RecipeError) as caught:
        said(recipe(base_model=None, tokenizer_source="org/base"))
    assert caught.value.problems == ("base_model: is missing; ties needs it",)


def test_whose_tokenizer_the_base_has() -> None:
    assert said(recipe(base_model="org/base", tokenizer_source="org/base"))["companions"] == "base"
    models = [{"model": "code", "parameters": {"weight": 1}}, {"model": "tool", "parameters": {"weight": 1}}]
    values = {"merge_method": "linear", "models": models, "tokenizer_source": "base"}
    assert said(values)["companions"] == "code"


def test_our_keys_beyond_mergekits() -> None:
    more = {"companions": "code", "shard_size": "5GB", "allow": {"non_finite": True}}
    found = said(recipe(**more))
    assert more.items() <= found.items()


ALL_WRONG = """\
merge_method: ties
base_model: org/base+org/adapter
modles: []
models:
  - model: org/code+org/lora
    layer_range: [0, 4]
    parameters:
      weight: [0, half, 1]
      density: 1.5
  - model: org/tool
    parameters:
      weight:
        - filtre: mlp
          value: 0.5
        - value: 1
      normalize: true
  - model: org/memory
  - org/chat
  - model: org/tool
    parameters: {weight: heavy, gamma: 0.1}
  - parameters: {weight: 1}
parameters:
  rescale: true
  int8_mask: 5
  lamda: 0.5
  epsilon: 0.1
  density: {filter: 5, value: 0.5}
dtype: bf17
out_dtype: int64
tokenizer_source: org/other
tokenizer: {source: base, tokens: {x: {source: base}}}
chat_template: chatml2
slices: [{sources: []}]
modules: {text: {}}
method: ties
"""


def test_everything_at_once_and_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as raised:
        translate(read(tmp_path, ALL_WRONG))
    found = list(raised.value.problems)
    for line, words in (
        (3, "unknown key 'modles'; did you mean 'models'?"),
        (6, "unknown key 'layer_range'; known: model, parameters"),
        (8, "models.0.parameters.weight: must be a number, not 'half'"),
        (9, "models.0.parameters.density: must be from 0 to 1, not 1.5"),
        (12, "models.1.parameters.weight: must be a list of {filter: TEXT, value: VALUE}, not with {'filtre'"),
        (16, "models.1.parameters.normalize: is not possible for a single model in mergekit"),
        (17, "models.2.model: weight is missing"),
        (18, "models.3: must be a mapping such as {model: ./coder}, not 'org/chat'"),
        (19, "models.4.model: org/tool is listed twice"),
        (20, "models.4.parameters.weight: must be a number, not 'heavy'"),
        (20, "models.4.parameters.gamma: unknown parameter of ties 'gamma'"),
        (21, "models.5.model: is missing"),
        (23, "parameters.rescale: true is not supported for ties"),
        (24, "parameters.int8_mask: must be true or false, not 5"),
        (25, "unknown parameter of ties 'lamda'; did you mean 'lambda'?"),
        (26, "(epsilon belongs to ram, ramplus_tl, della, della_linear)"),
        (27, "parameters.density: filter must be a part of tensors' names, not 5"),
        (28, "unknown dtype 'bf17'"),
        (29, "unknown dtype 'int64'"),
        (30, "tokenizer_source: 'org/other' is neither base, union nor a model of this recipe"),
        (31, "tokenizer: tokens is not supported: ramerge moves no rows of embeddings. Leave it out"),
        (32, "unknown chat template 'chatml2'; did you mean 'chatml'"),
        (33, "slices: sources must be a list"),
        (34, "modules: is not supported"),
        (35, "method: does not belong in a recipe of mergekit's form: use merge_method"),
    ):
        [problem] = [problem for problem in found if words in problem]
        assert f"recipe.yaml:{line}: " in problem or f"{line} | " in problem, problem
        found.remove(problem)
    assert not found


def sliced(first: object = (0, 4), second: object = (0, 4), **more: Any) -> dict[str, Any]:
    """A recipe whose models stand in one slice."""
    spans = [{"layer_range": list(one) if isinstance(one, tuple) else one} for one in (first, second)]
    sources = [{**model, **span} for model, span in zip(MODELS, spans, strict=True)]
    return {"merge_method": "ties", "base_model": "base", "slices": [{"sources": sources, **more}]}


def test_a_slice_of_all_layers_is_the_models() -> None:
    assert said(sliced()) == said(recipe())
    assert translate(Document(sliced())).layers == 4
    assert said(sliced(parameters={"density": 0.3})) == said(recipe(parameters={"density": 0.3}))
    both = sliced(parameters={"density": 0.3}) | {"parameters": {"density": 0.9, "lambda": 2}}
    assert said(both) == said(recipe(parameters={"density": 0.3, "lambda": 2}))
    # to the models of a slice mergekit does not add the base
    assert list(said(sliced() | {"merge_method": "linear"})["agents"]) == ["code", "tool"]


def test_slices_are_checked_against_the_base(tmp_path: Path) -> None:
    for name in ("base", "a"):
        config = {"model_type": "test", "num_hidden_layers": 2}
        write_checkpoint(tmp_path / name, {"w": floats([0.5])}, config=config)
    path = tmp_path / "recipe.yaml"
    for stop, problems in ((2, ()), (1, ("slices: take layers 0 to 1, but the base has 2",))):
        source = f"{{model: ./a, layer_range: [0, {stop}], parameters: {{weight: 1}}}}"
        path.write_text(f"merge_method: ties\nbase_model: ./base\nslices:\n  - sources: [{source}]\n")
        found = ramerge.plan(path).problems
        assert len(found) == len(problems) and all(words in one for one, words in zip(found, problems, strict=True))
        assert all("recipe.yaml:3" in one for one in found)


@pytest.mark.parametrize(
    "value",
    [
        [0.5],
        [0.5, 0.5, 0.5],
        [{"value": 0.5}],
        {"value": 0.5},
        [{"filter": "mlp", "value": 0.5}, {"value": 0.5}],
        [{"filter": "mlp", "value": [0.5, 0.5]}, {"filter": "*", "value": 0.5}, {"filter": "attn", "value": 1}],
    ],
)
def test_values_that_are_the_same_everywhere(value: object) -> None:
    assert said(recipe(parameters={"density": value})) == said(recipe(parameters={"density": 0.5}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            recipe(parameters={"density": [0.5, 0.6]}),
            "density: depends on the tensor, and the model's tensors are not known",
        ),
        (recipe(parameters={"density": []}), "a gradient over layers"),
        (recipe(parameters={"density": [{"filter": "mlp", "value": 0.5}]}), "depends on the tensor"),
        (recipe(parameters={"density": [{"filter": "mlp", "value": 0.5}, {"value": 1}]}), "depends on the tensor"),
        (recipe(parameters={"density": [{"value": 0.5, "odd": 1}]}), "must be a list of {filter: TEXT, value: VALUE}"),
        (recipe(parameters={"normalize": [True, False]}), "a gradient over layers is of numbers"),
        (sliced((0, 4), (0, 3)), "slices: with different layers are not supported; only whole models can be merged"),
        (sliced((1, 4), (1, 4)), "layer_range [1, 4] is not supported"),
        (sliced(None, None), "layer_range None is not supported"),
        (sliced((0, True), (0, True)), "layer_range [0, True] is not supported"),
        (sliced(residual_scale=0.5), "slices: are not supported"),
        (sliced() | {"slices": sliced()["slices"] * 2}, "to stack layers (a frankenmerge), use mergekit"),
        (sliced() | {"models": MODELS}, "slices: cannot be used together with models"),
        (recipe(merge_method=None), "merge_method: is missing; known: linear, task_arithmetic, ties"),
        (recipe("nearswap"), "merge_method: mergekit has nearswap, ramerge does not: use mergekit for it, or another"),
        (recipe(random_seed=42), "random_seed: is a flag of mergekit's, not a key of recipes: leave it out: every run"),
        (recipe(lazy_unpickle=True), "lazy_unpickle: is a flag of mergekit's, not a key of recipes: leave it out"),
        (recipe(seed=7), "seed: is a parameter of methods; write it under parameters, as in parameters: {seed: VALUE}"),
        (recipe(density=0.5), "density: is a parameter of methods; write it under parameters"),
        (recipe("slerp", models=[{"model": "a"}]), "parameters: t is missing"),
        (recipe("slerp", base_model=None, models=[{"model": "a"}]), "base_model: is missing; slerp needs it"),
        (recipe("passthrough"), "unknown parameter of passthrough 'weight'"),
        (recipe("passthrough", models=[{"model": "a"}]), "models: passthrough takes exactly 1 model, not 2"),
        (recipe("slerp", models=[{"model": "a"}], parameters={"t": 1.5}), "parameters.t: must be from 0 to 1, not 1.5"),
        (recipe("tis"), "unknown method 'tis'; did you mean 'ties'?"),
        (recipe("xyz"), "unknown method 'xyz'; known: linear"),
        (recipe(merge_method=5), "merge_method: unknown method '5'"),
        (recipe(base_model=None), "base_model: is missing; ties needs it"),
        (recipe(base_model=5), "base_model: must be a path or a hub id, not 5"),
        (recipe("ram", base_model="", models=[{"model": "a"}]), "base_model: is missing; ram needs it"),
        (recipe(models=None), "models: is missing"),
        (recipe(models=[]), "models: must be a list"),
        (recipe(models={"a": "b"}), "models: must be a list"),
        (recipe(models=[{"model": "base"}]), "models: only the base model is listed"),
        (recipe(models=[{"model": "a@b@c"}], parameters={"weight": 1}), "at most one @revision"),
        (recipe(models=[{"model": {"path": "a"}}], parameters={"weight": 1}), "of another architecture"),
        (recipe(models=[{"model": {"model": 5}}], parameters={"weight": 1}), "must be a path or a hub id, not 5"),
        (recipe(models=[*MODELS, {"model": "a", "parameters": 5}], parameters={"weight": 1}), "must be a mapping"),
        (recipe(parameters=[]), "parameters: must be a mapping"),
        (recipe(parameters={"lambda": None}), "must be a number, not None"),
        (recipe(parameters={"lambda": "nan"}), "must be a finite number, not 'nan'"),
        (recipe(parameters={"normalize": "maybe"}), "must be true or false, not 'maybe'"),
        (recipe("dare_ties", parameters={"density": 0}), "must be above 0, not 0"),
        (recipe("dare_ties", parameters={"density": -0.5}), "must be from 0 to 1, not -0.5"),
        (
            recipe("della", parameters={"weight": 1, "density": []}),
            "parameters.density: a gradient over layers needs numbers",
        ),
        (recipe(tokenizer={"pad_to_multiple_of": 8}), "tokenizer: pad_to_multiple_of is not supported: ramerge"),
        (recipe(tokenizer="base"), "tokenizer: must be a mapping such as {source: base}, not 'base'"),
        (recipe(dtype=["float32"]), "unknown dtype"),
        (recipe(preset="paper"), "preset: does not belong in"),
        (recipe(rules=[{"match": "*", "keep": "base"}]), "rules: does not belong in"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    assert message in "\n".join(problems(values))


MIXTURE = {"base_model": "b", "gate_mode": "hidden", "experts": [{"source_model": "a", "positive_prompts": ["x"]}]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (MIXTURE, "experts: this is a recipe of mergekit-moe, which builds a mixture of experts; ramerge does not"),
        ({"genome": {"models": ["a"], "merge_method": "ties"}}, "genome: this is a recipe of mergekit-evolve"),
        (
            sliced(parameters={"t": 0.5}) | {"merge_method": "slerp", "slices": [{"parameters": {"t": 0.5}}] * 2},
            "slices: are not supported",
        ),
    ],
)
def test_the_only_problem(values: dict[str, Any], message: str) -> None:
    [problem] = problems(values)
    assert message in problem


GOOD = """\
merge_method: dare_ties
base_model: base
models:
  - model: base
  - model: org/code
    parameters:
      weight: 0.5
  - {model: org/tool, parameters: {density: 0.5}}
parameters:
  weight: 1
  lambda: 0.9
allow: {config: [rope_theta]}
dtype: float32
out_dtype: bfloat16
"""


def test_later_messages_point_at_the_original(tmp_path: Path) -> None:
    given = read(tmp_path, GOOD)
    before = given.as_dict()
    document = translate(given)
    assert given.as_dict() == before
    assert document.source == str(tmp_path / "recipe.yaml")
    for key, line, theirs in (
        (("method",), 1, "merge_method"),
        (("base",), 2, "base_model"),
        (("agents",), 3, "models"),
        (("agents", "code"), 5, "models.1.model"),
        (("agents", "tool"), 8, "models.2.model"),
        (("parameters",), 9, "parameters"),
        (("parameters", "weights", "code"), 7, "models.1.parameters.weight"),
        (("parameters", "weights", "tool"), 10, "parameters.weight"),
        (("parameters", "p"), 3, "models"),
        (("parameters", "p", "tool"), 8, "models.2.parameters.density"),
        (("parameters", "scale"), 11, "parameters.lambda"),
        (("parameters", "rescale"), 1, "merge_method"),
        (("allow", "config"), 12, "allow.config"),
        (("dtype",), 14, "out_dtype"),
    ):
        text = GOOD.splitlines()[line - 1]
        message = document.where(key, "is wrong")
        assert message == f"{document.source}:{line}: {theirs}: is wrong\n    {line} | {text}"


def test_flags(tmp_path: Path, messages: Messages) -> None:
    given = read(tmp_path, GOOD)
    for key, value in (
        (("parameters", "lambda"), 0.5),
        (("parameters", "seed"), 3),
        (("dtype",), "float16"),
        (("allow", "non_finite"), True),
        (("shard_size",), "1GB"),
    ):
        given.set(key, value, f"--set {'.'.join(key)}")
    document = translate(given)
    assert document.as_dict()["parameters"]["scale"] == 0.5
    assert document.as_dict()["parameters"]["seed"] == 3
    assert document.as_dict()["dtype"] == "float16"
    assert document.as_dict()["allow"] == {"config": ["rope_theta"], "non_finite": True}
    assert document.where(("parameters", "scale"), "is wrong") == "--set parameters.lambda: is wrong"
    assert document.where(("dtype",), "is wrong") == "--set dtype: is wrong"
    assert document.where(("allow", "non_finite"), "is wrong") == "--set allow.non_finite: is wrong"
    assert document.where(("shard_size",), "is wrong") == "--set shard_size: is wrong"
    given.set(("agents", "new"), "./new", "--agent new=./new")
    with messages.raises(RecipeError):
        translate(given)


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3) | st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["base", "union", "1e-5", "ties", "linear", "dare_ties", "ram", "float32", "a+b", "a@b", "org/a"]),
)
_NAMES = st.sampled_from(
    [
        *("merge_method", "base_model", "models", "parameters", "dtype", "out_dtype", "slices", "modules"),
        *("tokenizer_source", "tokenizer", "chat_template", "name", "model", "path", "revision", "lora", "source"),
        *("weight", "density", "lambda", "normalize", "rescale", "int8_mask", "epsilon", "r", "alpha", "seed"),
        *("value", "filter", "method", "agents", "allow", "companions"),
    ]
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.text(max_size=3), inner, max_size=4),
)
_NUMBERS = st.dictionaries(_NAMES, st.floats(0, 1) | st.booleans() | _SCALARS, max_size=3)
_ENTRY = st.fixed_dictionaries({"model": st.sampled_from(["base", "a", "x/a", "b"])}, optional={"parameters": _NUMBERS})
_LIKELY = st.fixed_dictionaries(
    {
        "merge_method": st.sampled_from(["linear", "task_arithmetic", "ties", "dare_linear", "dare_ties", "ram", "no"]),
        "base_model": st.sampled_from(["base", "a", None]),
        "models": st.lists(
            st.fixed_dictionaries(
                {"model": st.sampled_from(["base", "a", "x/a", "b"])}, optional={"parameters": _NUMBERS}
            )
            | _ANYTHING,
            max_size=4,
        )
        | _ANYTHING,
    },
    optional={"parameters": _NUMBERS, "dtype": _SCALARS, "tokenizer": _ANYTHING},
)


@given(st.dictionaries(_NAMES, _ANYTHING, max_size=5) | _LIKELY)
def test_anything_becomes_a_document_or_a_recipe_error(values: dict[str, Any]) -> None:
    try:
        document = translate(Document(values))
    except RecipeError as error:
        assert error.problems
        assert all(isinstance(problem, str) and problem for problem in error.problems)
    else:
        found = document.as_dict()
        assert found["method"]
        assert found["agents"]
        each = [value for value in found["parameters"].values() if isinstance(value, dict)]
        assert all(set(value) == set(found["agents"]) for value in each)


_PER_MODEL = {"weight": (st.floats(-2, 2), "weights"), "density": (st.floats(0.1, 1), "density")}
_FOR_ALL = {"lambda": (st.floats(0, 3), "scale"), "normalize": (st.booleans(), "normalize")}


def _some(parameters: dict[str, tuple[st.SearchStrategy[Any], str]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: values for name, (values, _) in parameters.items()})


@given(
    st.lists(_some(_PER_MODEL), min_size=1, max_size=4),
    _some(_PER_MODEL | _FOR_ALL),
    st.integers(0, 4),
)
def test_every_agent_gets_what_mergekit_would_give_it(
    own: list[dict[str, Any]], shared: dict[str, Any], base_at: int
) -> None:
    models: list[dict[str, Any]] = [{"model": f"m{i}", "parameters": one} for i, one in enumerate(own)]
    models.insert(base_at, {"model": "base"})
    values = recipe("ties", models=models, parameters=shared)
    defaults = {"density": 1.0, "lambda": 1.0, "normalize": True}
    lacking = [one for one in own if "weight" not in {**shared, **one}]
    if lacking:
        assert len(problems(values)) == len(lacking)
        return
    found = said(values)["parameters"]
    for name, (_, ours) in _FOR_ALL.items():
        assert found[ours] == {**defaults, **shared}[name]
    for name, (_, ours) in _PER_MODEL.items():
        for i, one in enumerate(own):
            value = found[ours][f"m{i}"] if isinstance(found[ours], dict) else found[ours]
            assert value == {**defaults, **shared, **one}[name]


def test_missing_model_is_named_by_original_key(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", {"w": floats([0.5])})
    path = tmp_path / "recipe.yaml"
    path.write_text("merge_method: ram\nbase_model: ./base\nmodels:\n  - model: ./tol\n")
    [problem] = ramerge.plan(path).problems
    messages.check(problem)
