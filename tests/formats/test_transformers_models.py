"""Models of transformers' own classes: merged, and loaded again: what is loaded is what NumPy merges.

The families come from transformers' mappings of models that write text, with and without other inputs. Bases are whole
models; agents are models of the same class, or text models of the class that transformers has for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ramerge
from tests import reference
from tests.formats.tiny_models import CLASSES, build, made, text_class
from tests.reference import Stored
from tests.tiers import some

pytestmark = [
    pytest.mark.full,  # torch, transformers
    pytest.mark.filterwarnings("ignore"),
]

TEXT = (
    "apertus arcee bloom cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 falcon",
    "falcon_mamba gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_neox gpt_oss granite granitemoe jamba",
    "lfm2 llama llama4_text mamba minimax minimax_m2 mistral mixtral nemotron_h olmo2 olmo3 olmoe phi phi3",
    "phimoe qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_5_moe_text qwen3_moe qwen3_next seed_oss smollm3 stablelm",
    "starcoder2",
)
VISION = (
    "aria aya_vision cohere2_vision gemma3 idefics3 internvl kimi_k25 lfm2_vl llava llava_next llava_onevision",
    "mistral3 ovis2 paligemma qwen2_audio qwen3_5 qwen3_5_moe smolvlm video_llava vipllava",
)
# The text model of these has no class of its own, or one with other modules.
WITHOUT_TEXT = (
    "glm4v glm4v_moe qwen2_5_omni_thinker qwen2_5_vl qwen2_vl qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe",
)


def kinds(*lines: tuple[str, ...]) -> list[str]:
    return [kind for line in lines for part in line for kind in part.split()]


State = dict[str, torch.Tensor]


def state(model: Any) -> State:
    return {name: values.detach().clone() for name, values in model.state_dict().items()}


def train(model: Any, seed: int) -> Any:
    """Move a third of all parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                here = torch.rand(parameter.shape, generator=generator) < 0.3
                parameter += (torch.randn(parameter.shape, generator=generator) * 0.02 * here).to(parameter.dtype)
    return model


def stored(values: torch.Tensor) -> Stored:
    bits = {torch.bfloat16: torch.uint16, torch.float32: torch.uint32}[values.dtype]
    return Stored("BF16" if values.dtype == torch.bfloat16 else "F32", values.contiguous().view(bits).numpy())


def merged(base: State, agents: list[State]) -> dict[str, np.ndarray]:
    """Task arithmetic by the reference: bits by name. What no agent has is the base's."""
    floats = {name: stored(values) for name, values in base.items() if values.is_floating_point()}
    parts = [{name: stored(agent.get(name, base[name])) for name in floats} for agent in agents]
    made = reference.task_arithmetic(floats, {str(place): part for place, part in enumerate(parts)})
    return {name: tensor.bits for name, tensor in made.items()}


def merge(folder: Path) -> Any:
    source = {
        "method": "task_arithmetic",
        "base": str(folder / "base"),
        "agents": {name: str(folder / name) for name in ("a", "b")},
    }
    plan = ramerge.plan(source)
    assert plan.problems == ()
    assert plan.warnings == ()
    assert ramerge.merge(source, folder / "out").warnings == ()
    return plan


def check(folder: Path, base: Any, agents: list[State]) -> None:
    """What transformers loads is what the reference merges, and the logits are equal."""
    start = state(base)
    other = type(base).from_pretrained(folder / "base", dtype=torch.bfloat16).eval()
    again = state(other)
    kept = {name for name, values in start.items() if torch.equal(again[name], values)}  # others are computed
    wanted = merged(start, agents)
    loaded, info = type(base).from_pretrained(folder / "out", output_loading_info=True, dtype=torch.bfloat16)
    assert not kept & set(info["missing_keys"])
    found = state(loaded.eval())
    assert (
        kept
        and {
            name
            for name in kept & wanted.keys()
            if (stored(found[name].to(start[name].dtype)).bits != wanted[name]).any()
        }
        == set()
    )
    reached = {name: torch.from_numpy(bits.copy()).view(start[name].dtype) for name, bits in wanted.items()}
    other.load_state_dict({**again, **{name: reached[name] for name in kept & reached.keys()}})
    tokens = torch.arange(1, 13)[None]
    try:
        logits = [model(input_ids=tokens).logits for model in (other, loaded)]
    except (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError):
        return  # some take no text alone, or no such tiny sizes
    assert torch.equal(*logits)


@pytest.mark.parametrize("kind", some(kinds(TEXT, VISION, WITHOUT_TEXT), full=kinds(TEXT, VISION, WITHOUT_TEXT)[::3]))
def test_agents_of_the_same_class(kind: str, tmp_path: Path) -> None:
    base = build(kind)
    base.save_pretrained(tmp_path / "base")
    start, agents = state(base), []
    for seed, name in enumerate(("a", "b"), 1):
        agent = made(type(base), base.config)
        agent.load_state_dict(start)
        agent.tie_weights()
        train(agent, seed).save_pretrained(tmp_path / name)
        agents.append(state(agent))
    merge(tmp_path)
    check(tmp_path, base, agents)


@pytest.mark.parametrize("kind", some(kinds(VISION), full=kinds(VISION)[::2]))
def test_text_agents_of_a_larger_model(kind: str, tmp_path: Path) -> None:
    base = build(kind)
    base.save_pretrained(tmp_path / "base")
    inner, head = base.get_decoder(), base.get_output_embeddings()
    prefix, output = (next(name for name, module in base.named_modules() if module is part) for part in (inner, head))
    agents = []
    for seed, name in enumerate(("a", "b"), 1):
        cls, config = text_class(base)
        agent = made(cls, config)
        text = getattr(agent, agent.base_model_prefix)
        assert not text.load_state_dict(state(inner), strict=False).missing_keys
        agent.get_output_embeddings().weight.data.copy_(head.weight.data)
        agent.tie_weights()
        train(agent, seed).save_pretrained(tmp_path / name)
        found = {f"{prefix}.{key}": values for key, values in state(text).items()}
        agents.append(found | {f"{output}.weight": state(agent.get_output_embeddings())["weight"]})
    plan = merge(tmp_path)
    assert any("parts next to the text model" in note for note in plan.notes)
    check(tmp_path, base, agents)


def test_families_are_those_of_transformers() -> None:
    assert CLASSES.keys() >= {*kinds(TEXT, VISION, WITHOUT_TEXT)}
