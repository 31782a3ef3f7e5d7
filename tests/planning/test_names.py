"""What is said of agents whose tensors have other names than the base's."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

import ramerge
from ramerge.planning.names import explain
from tests.checkpoints import floats, recipe, write_checkpoint

yaml = YAML(typ="safe")
BOTH = {"missing_tensors": True, "extra_tensors": True}
LLAMA = {
    "model.embed_tokens.weight": (10, 4),
    "model.norm.weight": (4,),
    "lm_head.weight": (10, 4),
    **{
        f"model.layers.{layer}.{part}.weight": shape
        for layer in range(3)
        for part, shape in {
            "self_attn.q_proj": (4, 4),
            "self_attn.k_proj": (2, 4),
            "self_attn.v_proj": (2, 4),
            "mlp.gate_proj": (8, 4),
            "mlp.up_proj": (8, 4),
            "input_layernorm": (4,),
        }.items()
    },
}


def renamed(change: Callable[[str], str]) -> dict[str, tuple[int, ...]]:
    return {change(name): shape for name, shape in LLAMA.items()}


def fused(names: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    rest = {name: shape for name, shape in names.items() if "_proj" not in name}
    attention = {f"model.layers.{layer}.self_attn.qkv_proj.weight": (8, 4) for layer in range(3)}
    return rest | attention | {f"model.layers.{layer}.mlp.gate_up_proj.weight": (16, 4) for layer in range(3)}


def experts(single: bool) -> dict[str, tuple[int, ...]]:
    if not single:
        return {"model.layers.0.mlp.experts.gate_up_proj": (2, 4, 16)}
    return {f"model.layers.0.mlp.experts.{number}.gate_proj.weight": (8, 4) for number in range(2)}


def explained(base: Mapping[str, tuple[int, ...]], agent: Mapping[str, tuple[int, ...]]) -> str | None:
    missing = {name: shape for name, shape in base.items() if name not in agent}
    return explain(missing, {name: shape for name, shape in agent.items() if name not in base}, base)


def wrapped(name: str) -> str:
    """As FSDP does it: the model, and each layer."""
    return "_fsdp_wrapped_module." + name.replace(".self_attn.", "._fsdp_wrapped_module.self_attn.").replace(
        ".mlp.", "._fsdp_wrapped_module.mlp."
    )


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (renamed(lambda name: f"base_model.model.{name}"), "begin with 'base_model.model.' where the base's do not"),
        (renamed(lambda name: f"base_model.model.{name}"), "save what merge_and_unload() returns, or use `rename"),
        (
            renamed(lambda name: f"policy.inner.{name}"),
            r"begin with 'policy.inner.' where the base's do not: use `rename: [{from: '^policy\.inner\.', to: ''}]`",
        ),
        (
            renamed(lambda name: name.removeprefix("model.")),
            "lack the 'model.' that the base's begin with: use",
        ),
        (renamed(wrapped), "its names have '_fsdp_wrapped_module.' inside, the base's do not: use `rename"),
        (renamed(lambda name: f"net.{name}"), "21 of 21 missing tensors"),
        (fused(LLAMA), "the agent has qkv_proj as one tensor, the base has q_proj, k_proj, v_proj: convert the agent"),
        (renamed(lambda name: name + "_x"), None),
    ],
)
def test_what_the_names_show(agent: dict[str, tuple[int, ...]], words: str | None) -> None:
    said = explained(LLAMA, agent)
    assert words in said if words else said is None


def test_either_side_may_be_fused() -> None:
    assert "the base has qkv_proj as one tensor, the agent has q_proj" in str(explained(fused(LLAMA), LLAMA))
    assert "the agent has all experts" in str(explained(experts(single=True), experts(single=False)))
    assert "the base has all experts" in str(explained(experts(single=False), experts(single=True)))


def test_names_by_the_thousand_take_no_time_squared() -> None:
    missing = {f"a.{number}.weight": (4,) for number in range(5_000)}
    extra = {f"b.x{number}.weight": (4,) for number in range(5_000)} | {"c." * 50_000: (4,)}
    assert explain(missing, extra, missing) is None


def test_the_reason_takes_the_place_of_an_offer_to_accept(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", {name: floats(np.ones(shape)) for name, shape in LLAMA.items()})
    agent = renamed(lambda name: f"policy.inner.{name}")
    write_checkpoint(tmp_path / "a", {name: floats(np.full(shape, 2.0)) for name, shape in agent.items()})
    (problem,) = (one for one in ramerge.plan(recipe(tmp_path, ["a"])).problems if "lacks" in one)
    assert "allow." not in problem
    (problem,) = ramerge.plan(recipe(tmp_path, ["a"], allow=BOTH)).problems
    assert "no tensor of it is used" in problem and "in the recipe" in problem
    rule = yaml.load(problem[problem.index("[{") : problem.index("}]") + 2])  # as advised
    assert ramerge.merge(recipe(tmp_path, ["a"], rename=rule), tmp_path / "out").agents["a"].density == 1
