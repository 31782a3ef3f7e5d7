"""Agents whose tensors have other names: conventions that everyone uses, and the recipe's own rules."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.tensors.name_aliases import _aliases_of_name as spelled_alike
from ramerge.core.tensors.name_aliases import name_aliases
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.conformance.test_merge import same
from tests.messages import Messages
from tests.reference import Stored

Model = dict[str, np.ndarray]


def dense(seed: int) -> Model:
    rng = np.random.default_rng(seed)
    shapes = {"embed_tokens": (10, 4), "norm": (4,)}
    for layer in range(2):
        shapes |= {
            f"layers.{layer}.self_attn.{part}_proj": (rows, 4) for part, rows in {"q": 6, "k": 2, "v": 2}.items()
        }
        shapes |= {f"layers.{layer}.mlp.{part}_proj": (8, 4) for part in ("gate", "up")}
    made = {f"model.{name}.weight": rng.normal(0, 0.02, shape) for name, shape in shapes.items()}
    return made | {"lm_head.weight": rng.normal(0, 0.02, (10, 4))}


def sparse(seed: int, *, turned: bool = False) -> Model:
    """Experts as transformers 5 has them in memory: all in one tensor."""
    rng = np.random.default_rng(seed)
    stack, experts, inner, hidden = "model.layers.0.mlp", 3, 5, 4
    gate_up, down = rng.normal(0, 0.02, (experts, 2 * inner, hidden)), rng.normal(0, 0.02, (experts, hidden, inner))
    return {
        f"{stack}.gate.weight": rng.normal(0, 0.02, (experts, hidden)),
        f"{stack}.experts.gate_up_proj": gate_up.swapaxes(1, 2) if turned else gate_up,
        f"{stack}.experts.down_proj": down.swapaxes(1, 2) if turned else down,
    }


def single(model: Model, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Model:
    """Experts as files have them: each its own."""
    found: Model = {}
    for name, values in model.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert, matrix in enumerate(values):
                gate, up = np.split(matrix, 2)
                found |= {f"{stem}.{expert}.{parts[0]}.weight": gate, f"{stem}.{expert}.{parts[1]}.weight": up}
        elif last == "down_proj":
            found |= {f"{stem}.{expert}.{parts[2]}.weight": matrix for expert, matrix in enumerate(values)}
        else:
            found[name] = values
    return found


def mixtral(model: Model) -> Model:
    names = single(model, ("w1", "w3", "w2"))
    return {name.replace(".mlp.", ".block_sparse_moe."): values for name, values in names.items()}


def shared(seed: int) -> Model:
    """Experts with one that all tokens use, and a bias of the router."""
    rng = np.random.default_rng([seed, 1])
    stack, shapes = "model.layers.0.mlp", {"gate_proj": (6, 4), "up_proj": (6, 4), "down_proj": (4, 6)}
    found = sparse(seed) | {f"{stack}.gate.e_score_correction_bias": rng.normal(0, 0.02, 3)}
    return found | {
        f"{stack}.shared_experts.{name}.weight": rng.normal(0, 0.02, shape) for name, shape in shapes.items()
    }


_SHORT = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def prime(model: Model, *, one: bool = False, outside: bool = False) -> Model:
    """As prime-rl has them in training: for GLM without `.weight` and as a stack of one, for Qwen outside of `mlp`."""
    found: Model = {}
    for name, values in model.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            gate, up = np.split(values, 2, axis=1)
            found |= {f"{stem}.w1": gate, f"{stem}.w3": up}
        elif last == "down_proj":
            found[f"{stem}.w2"] = values
        elif ".shared_experts." in name:
            start, _, part = stem.rpartition(".")
            start = start.replace(".shared_experts", ".shared_expert").replace(".mlp", "" if outside else ".mlp")
            found[f"{start}.{_SHORT[part]}{'' if one else '.weight'}"] = values[None] if one else values
        else:
            name = name.replace("mlp.gate.e_score_correction_bias", "mlp.expert_bias")
            found[name.replace("mlp.gate.", "mlp.router.gate.")] = values
    return found | {"model.layers.0.mlp.tokens_per_expert": np.zeros(3)}


def fused(model: Model) -> Model:
    found = {name: values for name, values in model.items() if "_proj" not in name}
    for layer in range(2):
        for stem, parts in {"self_attn": "qkv", "mlp": ("gate", "up")}.items():
            whole = "qkv_proj" if stem == "self_attn" else "gate_up_proj"
            rows = [model[f"model.layers.{layer}.{stem}.{part}_proj.weight"] for part in parts]
            found[f"model.layers.{layer}.{stem}.{whole}.weight"] = np.concatenate(rows)
    return found


def without(model: Model, part: str) -> Model:
    return {name: values for name, values in model.items() if part not in name}


def renamed(change: Callable[[str], str]) -> Callable[[Model], Model]:
    return lambda model: {change(name): values for name, values in model.items()}


def plain(model: Model) -> Model:
    return model


def inside_vision(name: str) -> str:
    return name.replace("model.", "model.language_model.")


def wrapped(name: str) -> str:
    return "_fsdp_wrapped_module." + name.replace(".self_attn.", "._fsdp_wrapped_module.self_attn.")


def turned_single(model: Model) -> Model:
    """All experts in one tensor, with rows and columns exchanged."""
    return {name: values.swapaxes(1, 2) if values.ndim == 3 else values for name, values in model.items()}


def several(*pairs: tuple[str, str]) -> Callable[[str], str]:
    """Names with every one of these ends replaced."""

    def change(name: str) -> str:
        for old, new in pairs:
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return name

    return change


def without_gates(model: Model) -> Model:
    """Experts as in Nemotron-H: one projection up, with no gate."""
    return {
        name.replace("gate_up_proj", "up_proj"): values[:, :5] if "gate_up" in name else values
        for name, values in model.items()
    }


def without_gates_single(model: Model) -> Model:
    found: Model = {}
    for name, values in without_gates(model).items():
        stem, _, last = name.rpartition(".")
        parts = {f"{stem}.{expert}.{last}.weight": one for expert, one in enumerate(values)}
        found |= parts if ".experts." in name else {name: values}
    return found


GRANITE = several(
    ("mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
    ("mlp.experts.down_proj", "block_sparse_moe.output_linear.weight"),
    ("mlp.gate.weight", "block_sparse_moe.router.layer.weight"),
)
GRANITE_IN_MEMORY = several(
    ("mlp.experts.gate_up_proj", "block_sparse_moe.experts.gate_up_proj"),
    ("mlp.experts.down_proj", "block_sparse_moe.experts.down_proj"),
    ("mlp.gate.weight", "block_sparse_moe.router.weight"),
)
MINIMAX = several((".mlp.gate.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias"))
MINIMAX_IN_MEMORY = several((".gate.e_score_correction_bias", ".e_score_correction_bias"))
# files and memory of each; `test_transformers_layouts` has more, as transformers makes them
IN_FILES_AND_IN_MEMORY = {
    "Granite": (sparse, renamed(GRANITE), renamed(GRANITE_IN_MEMORY), "in files"),
    "MiniMax": (shared, renamed(MINIMAX), renamed(MINIMAX_IN_MEMORY), "Mixtral"),
    "Nemotron": (sparse, without_gates_single, without_gates, "in files"),
}

CASES = {
    "text agent of a vision base": (dense, renamed(inside_vision), plain, "model.language_model"),
    "vision names of a text agent": (dense, plain, renamed(inside_vision), "model.language_model"),
    "older vision names": (
        dense,
        renamed(inside_vision),
        renamed(lambda name: f"language_model.{name}"),
        "language_model.model",
    ),
    "FSDP": (dense, plain, renamed(wrapped), "_fsdp_wrapped_module"),
    "compiled, data parallel": (
        dense,
        plain,
        renamed(lambda name: f"module._orig_mod.{name}"),
        "_orig_mod",
    ),
    "without head": (
        dense,
        plain,
        renamed(lambda name: name.removeprefix("model.")),
        "'model.' is put before them, as in the base",
    ),
    "base without head": (
        dense,
        renamed(lambda name: name.removeprefix("model.")),
        plain,
        "'model.' is dropped, as the base has none",
    ),
    "projections of the agent in one": (dense, plain, fused, "qkv_proj"),
    "projections of the base in one": (dense, fused, plain, "q_proj"),
    "experts of the agent in one": (sparse, single, plain, "gate_up_proj"),
    "experts of the base in one": (sparse, plain, single, "gate_proj"),
    "experts in one, turned": (sparse, plain, turned_single, "exchanged"),
    "experts of the agent in one, turned": (sparse, single, turned_single, "gate_up_proj"),
    "experts of the base in one, turned": (sparse, turned_single, single, "gate_proj"),
    "experts in memory and in files of Mixtral": (sparse, mixtral, plain, "Mixtral"),
    "experts in files of Mixtral and in memory": (sparse, plain, mixtral, "Mixtral"),
    "prime-rl, experts of the base each its own": (shared, single, prime, "prime-rl"),
    "prime-rl, experts of the base in one": (shared, plain, partial(prime, one=True), "prime-rl"),
    "prime-rl, experts of the base in one, turned": (sparse, turned_single, prime, "prime-rl"),
    "prime-rl, shared expert outside": (shared, plain, partial(prime, outside=True), "prime-rl"),
    "prime-rl, experts of Mixtral": (sparse, mixtral, prime, "prime-rl"),
    "fused and inside a vision model": (
        sparse,
        single,
        lambda model: {inside_vision(name): values for name, values in model.items()},
        "model.language_model",
    ),
    **IN_FILES_AND_IN_MEMORY,
    **{f"{name} in memory": (model, b, a, words) for name, (model, a, b, words) in IN_FILES_AND_IN_MEMORY.items()},
}


def written(model: Model) -> dict[str, Stored]:
    return {name: floats(values) for name, values in model.items()}


@pytest.mark.parametrize("case", list(CASES))
def test_the_same_merge_under_other_names(case: str, tmp_path: Path) -> None:
    model, of_base, of_agent, words = CASES[case]
    write_checkpoint(tmp_path / "base", written(of_base(model(0))))
    for seed, name in enumerate(("a", "b"), 1):
        write_checkpoint(tmp_path / name, written(of_agent(model(seed))))
        write_checkpoint(tmp_path / "alike" / name, written(of_base(model(seed))))
    write_checkpoint(tmp_path / "alike" / "base", written(of_base(model(0))))
    made = ramerge.plan(recipe(tmp_path, ["a", "b"]))
    assert made.problems == () and any(words in note for note in made.notes)
    ramerge.merge(recipe(tmp_path, ["a", "b"]), tmp_path / "out")
    ramerge.merge(recipe(tmp_path / "alike", ["a", "b"]), tmp_path / "wanted")
    same(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "wanted"))


def test_unloaded_heads_and_towers_are_the_bases(tmp_path: Path, messages: Messages) -> None:
    more = {
        "mtp.layers.0.w": np.ones((3, 3)),
        "model.visual.blocks.0.w": np.ones(4),
        "model.layers.2.norm.weight": np.ones(4),
    }
    config = {"num_hidden_layers": 2, "vision_config": {"depth": 1}}
    write_checkpoint(tmp_path / "base", written(dense(0) | more), config=config)
    write_checkpoint(tmp_path / "a", written(dense(1)), config=config)
    notes = " ".join(ramerge.plan(recipe(tmp_path, ["a"])).notes)
    assert all(words in notes for words in ("multi-token", "images", "beyond those that config.json counts"))
    ramerge.merge(recipe(tmp_path, ["a"]), tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    assert all(found[name].bits.tobytes() == tensor.bits.tobytes() for name, tensor in written(more).items())
    # an agent that has some of them lacks the others by mistake
    some = {"mtp.layers.0.w": np.ones((3, 3)), "mtp.layers.0.v": np.ones(3)}
    write_checkpoint(tmp_path / "base", written(dense(0) | some))
    write_checkpoint(tmp_path / "a", written(dense(1) | {"mtp.layers.0.v": np.ones(3)}))
    messages.check(*ramerge.plan(recipe(tmp_path, ["a"])).problems)


def test_rules_of_the_recipe(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", written(dense(0)))
    write_checkpoint(tmp_path / "a", written(renamed(lambda name: f"x.{name}")(dense(1))))
    write_checkpoint(tmp_path / "b", written(renamed(lambda name: name.replace("layers", "blocks"))(dense(2))))
    rules = [{"from": r"^x\.", "to": "", "agent": "a"}, {"from": r"\.blocks\.(\d+)", "to": r".layers.\1"}]
    source = recipe(tmp_path, ["a", "b"], rename=rules)
    ramerge.merge(source, tmp_path / "out")
    write_checkpoint(tmp_path / "a", written(dense(1)))
    write_checkpoint(tmp_path / "b", written(dense(2)))
    ramerge.merge(recipe(tmp_path, ["a", "b"]), tmp_path / "wanted")
    same(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "wanted"))
    again = ramerge.Recipe(**source)
    assert "from: ^x" in again.to_yaml() and "from: ^x" in (tmp_path / "out" / "ramerge.yaml").read_text()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"from": "norm|embed_tokens", "to": "y"}], "several tensors the name"),
        ([{"from": "x", "to": "x"}, {"from": "nothing", "to": "y"}], "rename 2: 'nothing': matches no name"),
        ([{"from": "(", "to": "y"}], "rename 1: .*missing \\)"),
        ([{"from": "x", "to": r"\2"}], "invalid group reference"),
        ([{"from": "x", "to": "y", "agent": "c"}], "rename 1: agent: unknown agent 'c'"),
        ([{"from": "x", "too": "y"}], "rename 1: too: unknown key 'too'; did you mean 'to'"),
    ],
)
def test_rules_that_make_no_sense(rules: list, words: str, tmp_path: Path) -> None:
    for name in ("base", "a"):
        write_checkpoint(
            tmp_path / name, written({**dense(0), "model.norm.x": np.ones(4), "model.embed_tokens.x": np.ones(4)})
        )
    with pytest.raises((ramerge.RecipeError, ramerge.PlanError), match=words):
        ramerge.merge(recipe(tmp_path, ["a"], rename=rules), tmp_path / "out")


def test_two_tensors_that_may_be_the_same_one(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", written(dense(0)))
    agent = renamed(lambda name: f"module.{name}")(dense(1)) | renamed(lambda name: f"actor.{name}")(dense(2))
    write_checkpoint(tmp_path / "a", written(agent))
    text = str(ramerge.plan(recipe(tmp_path, ["a"])).problems)
    messages.check(text)


def square(seed: int) -> Model:
    """Experts whose down projection is square, as in gpt-oss."""
    rng = np.random.default_rng(seed)
    return {
        "model.layers.0.mlp.experts.gate_up_proj": rng.normal(0, 0.02, (2, 8, 4)),
        "model.layers.0.mlp.experts.down_proj": rng.normal(0, 0.02, (2, 4, 4)),
    }


@pytest.mark.parametrize(
    ("of_base", "of_agent"), [(plain, turned_single), (turned_single, single), (single, turned_single), (plain, single)]
)
def test_square_experts_are_turned_with_their_gates(
    of_base: Callable[[Model], Model], of_agent: Callable[[Model], Model], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "base", written(of_base(square(0))))
    write_checkpoint(tmp_path / "a", written(of_agent(square(1))))
    write_checkpoint(tmp_path / "alike", written(of_base(square(1))))
    ramerge.merge(recipe(tmp_path, ["a"], "linear"), tmp_path / "out")
    same(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "alike"))


def test_what_is_not_clear_is_not_matched(tmp_path: Path, messages: Messages) -> None:
    model = single(sparse(0))
    write_checkpoint(tmp_path / "base", written(model))
    more = sparse(1)
    gates = more["model.layers.0.mlp.experts.gate_up_proj"]
    more["model.layers.0.mlp.experts.gate_up_proj"] = np.concatenate([gates, gates[:1]])
    write_checkpoint(tmp_path / "a", written(more))
    messages.check(*ramerge.plan(recipe(tmp_path, ["a"])).problems)
    write_checkpoint(tmp_path / "base", written(dense(0)))
    query = "model.layers.0.self_attn.q_proj.weight"
    both = fused(dense(1)) | {query: dense(1)[query]}
    write_checkpoint(tmp_path / "a", written(both))
    messages.check(*ramerge.plan(recipe(tmp_path, ["a"])).problems)
    write_checkpoint(tmp_path / "base", written({"norm.weight": np.ones(4), "model.norm.weight": np.ones(4)}))
    write_checkpoint(tmp_path / "a", written({"model.language_model.norm.weight": np.ones(4)}))
    messages.check(*ramerge.plan(recipe(tmp_path, ["a"])).problems)


@pytest.mark.parametrize(
    ("of_agent", "lacking", "words"),
    [
        (single, ".1.", "lacks tensors of expert 1 in the base's '{}.gate_up_proj' [3, 10, 4], '{}.down_proj' "),
        (mixtral, ".2.w3", "lacks tensors of expert 2 in the base's '{}.gate_up_proj' [3, 10, 4];"),
    ],
)
def test_missing_experts_are_named(
    of_agent: Callable[[Model], Model], lacking: str, words: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "base", written(sparse(0)))
    write_checkpoint(tmp_path / "a", written(without(of_agent(sparse(1)), lacking)))
    (problem,) = ramerge.plan(recipe(tmp_path, ["a"])).problems
    assert words.replace("{}", "model.layers.0.mlp.experts") in problem


def test_a_renamed_tied_head(tmp_path: Path) -> None:
    model = dense(0)
    model["lm_head.weight"] = model["model.embed_tokens.weight"]
    base = {name: values for name, values in model.items() if name != "lm_head.weight"}
    write_checkpoint(tmp_path / "base", written(base), config={"tie_word_embeddings": True})
    write_checkpoint(tmp_path / "a", written(renamed(lambda name: f"policy.inner.{name}")(model)))
    made = ramerge.plan(recipe(tmp_path, ["a"], rename=[{"from": r"^policy\.inner\.", "to": ""}]))
    assert made.problems == () and any("ties them" in note for note in made.notes)


@pytest.mark.parametrize("base", ["one tensor", "each its own"])
def test_gates_of_gpt_oss_are_not_joined(base: str, tmp_path: Path) -> None:
    """Its rows of gate and up take turns, so joining them one below the other would be another model."""
    models = {"one tensor": sparse(0, turned=True), "each its own": single(sparse(0))}
    for name, model in models.items():
        tensors = {key: floats(values) for key, values in model.items()}
        write_checkpoint(tmp_path / name, tensors, config={"model_type": "gpt_oss"})
    (agent,) = models.keys() - {base}
    plan = ramerge.plan({"base": str(tmp_path / base), "agents": {"a": str(tmp_path / agent)}}, tmp_path / "out")
    assert any("rows of gate and up take turns" in problem for problem in plan.problems)
    for name in models:
        (tmp_path / name / "config.json").write_text('{"model_type": "llama4"}')
    plan = ramerge.plan({"base": str(tmp_path / base), "agents": {"a": str(tmp_path / agent)}}, tmp_path / "out")
    assert plan.problems == ()


def test_numbered_names_are_looked_up_once() -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.x.weight" for layer in range(50) for expert in range(100)]
    spelled_alike.cache_clear()
    found = [name_aliases(name) for name in names]
    assert spelled_alike.cache_info().misses == 1
    assert "model.language_model.layers.49.mlp.experts.7.x.weight" in found[4907]
    assert len({other for others in found for other in others}) == len(names) * len(found[0])
