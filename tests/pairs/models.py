"""Tiny models that are drawn: a base, agents and a recipe, to which features are added one after another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.methods.registry import METHODS
from tests import reference
from tests.checkpoints import floats, write_checkpoint, write_safetensors
from tests.conformance.methods import ROWS
from tests.conformance.test_merge import importances_for, tossed
from tests.deltas.writing import write_delta
from tests.formats.quantized import SAMPLES, quantize_model
from tests.formats.test_lora import write_adapter
from tests.reference import NUMBERS, Stored, encode

Tensors = Mapping[str, Stored]
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
SHAPES = {
    EMBEDDING: (10, 32),
    "model.layers.0.self_attn.q_proj.weight": (8, 32),
    "model.layers.0.mlp.down_proj.weight": (6, 32),
    "model.layers.1.self_attn.q_proj.weight": (8, 32),
    "model.layers.1.mlp.down_proj.weight": (6, 32),
    NORM: (32,),
    HEAD: (10, 32),
}
MATRICES = tuple(name for name in SHAPES if ".layers." in name)
EXPERTS, COUNT = "model.layers.1.mlp.experts", 3
EXPERT_SHAPES = {"gate": (5, 32), "up": (5, 32), "down": (32, 5)}
SAFETENSORS_DTYPES = {"bfloat16": "BF16", "float32": "F32", "float16": "F16"}
TOKENS = {f"t{number}": number for number in range(8)}

# Methods of each kind, and values of their parameters that are not the defaults.
PARAMETERS: dict[str, dict[str, list[Any]]] = {
    "ram": {"epsilon": [1e-3, 0.0, {"relative": 0.5}], "shared": ["agree_max"]},
    "ram+": {"r": [0.0, 0.37], "alpha": [0.3], "epsilon": [1e-3], "scope": ["layer", "tensor"]},
    "ram+s": {"r": [0.37], "shared": ["ties"]},
    "task_arithmetic": {"scale": [0.3, -0.5], "normalize": [True]},
    "linear": {"normalize": [False]},
    "uniform": {},
    "ties": {"density": [0.5, 0.2], "scale": [0.7]},
    "dare": {"p": [0.1], "seed": [3]},
    "breadcrumbs": {"density": [0.5], "gamma": [0.2]},
    "fisher": {"scale": [0.3]},
    "slerp": {"t": [0.3]},
    "tsvm": {"scale": [0.7]},
}


@dataclass
class Family:
    """A base and its agents, which features change one after another.

    Attributes:
        folder: where the inputs are.
        base: the base's tensors.
        agents: the agents' tensors by name, as they are merged.
        recipe: what is merged.
        stored: those of agents that are stored otherwise.
        importances: the importances of agents, for a method that takes them.
        random: decides what features draw.
        configs: `config.json` of models, where it is not the usual one.
        added: tokens that models have besides the usual ones; models without a tokenizer are not here.
        shards: how many files models have.
        later: what is written once all models are written, in turn.
        own: agents that have a form of their own.
        features: the names of the features that were added.
        has_reference: whether `expected` gives the tensors of the merge.
        in_memory: whether the models can be state dicts.
    """

    folder: Path
    base: Tensors
    agents: dict[str, Tensors]
    recipe: dict[str, Any]
    stored: dict[str, Tensors] = field(default_factory=dict)
    importances: dict[str, Tensors] = field(default_factory=dict)
    random: Random = field(default_factory=Random)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    added: dict[str, list[str]] = field(default_factory=dict)
    shards: dict[str, int] = field(default_factory=dict)
    later: list[Callable[[], object]] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
    features: list[str] = field(default_factory=list)
    has_reference: bool = True
    in_memory: bool = True

    def add_rule(self, match: str, **rule: Any) -> None:
        """Add a rule to the recipe."""
        self.recipe.setdefault("rules", []).append({"match": match, **rule})

    def store(self, agent: str, **keys: object) -> None:
        """Say in the recipe where an agent is."""
        side = {"importance": str(self.folder / f"{agent}-importance")} if self.importances else {}
        self.recipe["agents"][agent] = {**keys, **side}

    def own_form(self) -> str | None:
        """An agent that has no form of its own yet, and has one now; None if all have one."""
        free = [agent for agent in self.agents if agent not in self.own]
        if not free:
            return None
        chosen = self.random.choice(free)
        self.own.add(chosen)
        return chosen

    def allow(self, **keys: Any) -> None:
        """Allow what is otherwise refused."""
        self.recipe.setdefault("allow", {}).update(keys)

    def changed(self, values: NDArray[np.float64], size: float = 0.01, share: float = 0.5) -> NDArray[np.float64]:
        """Numbers, some of which have moved."""
        rng = np.random.default_rng(self.random.getrandbits(32))
        moved: NDArray[np.float64] = values + rng.normal(0, size, values.shape) * (rng.random(values.shape) < share)
        return moved

    def write(self) -> None:
        """Write all models, and then those that have another form."""
        usual = {"model_type": "test", "torch_dtype": "bfloat16"}
        for name, tensors in {"base": self.base, **self.agents, **self.stored}.items():
            config = {**usual, **self.configs.get(name, {})}
            shards = self.shards.get(name, 1)
            ordered = dict(reversed(tensors.items())) if shards > 1 else tensors
            folder = write_checkpoint(self.folder / name, ordered, shards=shards, config=config)
            if name in self.added:
                tokens = [{"id": len(TOKENS) + place, "content": text} for place, text in enumerate(self.added[name])]
                text = json.dumps({"model": {"vocab": TOKENS}, "added_tokens": tokens})
                (folder / "tokenizer.json").write_text(text)
        if self.recipe["method"] == "fisher":
            self.importances = importances_for(self.agents)
            for agent, tensors in self.importances.items():
                write_checkpoint(self.folder / f"{agent}-importance", tensors)
                self.store(agent, model=str(self.folder / agent))
        for step in self.later:
            step()


def new_family(folder: Path, random: Random) -> Family:
    """One to three agents of a base of seven tensors in bfloat16, and a method. Nothing is written yet."""
    rng = np.random.default_rng(random.getrandbits(32))
    method = random.choice(list(PARAMETERS))
    fewest, most = METHODS[method].fewest, min(METHODS[method].most or 3, 3)
    names = ["code", "tool", "memory"][: random.randint(fewest, most)]
    base = {name: rng.normal(0, 0.02, shape) for name, shape in SHAPES.items()}
    source: dict[str, Any] = {
        "method": method,
        "base": str(folder / "base"),
        "agents": {name: str(folder / name) for name in names},
    }
    family = Family(folder, {name: floats(values) for name, values in base.items()}, {}, source, random=random)
    for agent, share in zip(names, (0.1, 0.4, 0.8), strict=False):
        family.agents[agent] = {name: floats(family.changed(values, share=share)) for name, values in base.items()}
    return family


def numbers(tensor: Stored) -> NDArray[np.float64]:
    """The elements in float64."""
    values: NDArray[np.float64] = tensor.numbers(np.float64)
    return values


def expected(family: Family) -> dict[str, Stored]:
    """The tensors of the merge, from the reference: rules in turn, and one merge for each set of parameters."""
    method, rules = ROWS[family.recipe["method"]].reference, family.recipe.get("rules", [])
    usual = family.recipe.get("parameters", {})
    found, counted = {}, dict[str, list[str]]()
    dtype_of_output = SAFETENSORS_DTYPES.get(family.recipe.get("dtype", ""))
    dtypes = {**reference.dtypes(family.base, dtype_of_output)}
    for name, tensor in family.base.items():
        rule: dict[str, Any] = next((rule for rule in rules if fnmatch(name, rule["match"])), {})
        dtypes[name] = SAFETENSORS_DTYPES.get(rule.get("dtype", "")) or dtypes[name] or tensor.dtype
        if "keep" in rule or "take" in rule:
            whole = tensor if "keep" in rule else family.agents[rule["take"]][name]
            found[name] = encode(whole.numbers(np.float64), dtypes[name])
        else:
            counted.setdefault(repr(rule.get("parameters")), []).append(name)
    for rule in [{}, *rules]:
        names = counted.pop(repr(rule.get("parameters")), [])
        base, *agents = ({name: model[name] for name in names} for model in (family.base, *family.agents.values()))
        by_name = dict(zip(family.agents, agents, strict=True))
        side = {"importances": family.importances} if family.importances else {}
        parameters = {**usual, **rule.get("parameters", {})}
        for dtype in {dtypes[name] for name in names}:
            merged = method(base, by_name, dtype, **parameters, **side)
            nearest = {name: merged[name] for name in names if dtypes[name] == dtype}
            if family.recipe.get("rounding") == "stochastic":
                seed = family.recipe.get("rounding_seed", 0)
                nearest = tossed(family.recipe["method"], base, by_name, nearest, seed, parameters, side)
            found |= nearest
    return found


Feature = Callable[[Family], None]
FEATURES: dict[str, tuple[str, Feature]] = {}
"""By name: the group, of which a draw takes one feature at most unless the group is empty, and the function."""


def feature(group: str = "") -> Callable[[Feature], Feature]:
    """Add a feature. They are applied in this order."""

    def add(function: Feature) -> Feature:
        FEATURES[function.__name__] = group, function
        return function

    return add


# --- what models hold -------------------------------------------------------------------------------------------------


@feature()
def experts(family: Family) -> None:
    """A layer has experts, a tensor for each of their matrices; some agent may store them as one tensor."""
    rng = np.random.default_rng(family.random.getrandbits(32))
    each = {
        f"{EXPERTS}.{expert}.{kind}_proj.weight": rng.normal(0, 0.02, shape)
        for kind, shape in EXPERT_SHAPES.items()
        for expert in range(COUNT)
    }
    family.base = {**family.base, **{name: floats(values) for name, values in each.items()}}
    for agent, tensors in family.agents.items():
        family.agents[agent] = {**tensors, **{name: floats(family.changed(values)) for name, values in each.items()}}
    for name in ("base", *family.agents):
        family.configs.setdefault(name, {}).update(model_type="qwen3_moe", num_experts=COUNT)


@feature("head")
def tied(family: Family) -> None:
    """The head is the embedding; some agent may store it again."""
    family.base = {name: tensor for name, tensor in family.base.items() if name != HEAD}
    for agent, tensors in family.agents.items():
        family.agents[agent] = {name: tensor for name, tensor in tensors.items() if name != HEAD}
    for name in ("base", *family.agents):
        family.configs.setdefault(name, {})["tie_word_embeddings"] = True


@feature("dtype")
def base_in_float32(family: Family) -> None:
    """All models are stored in float32."""
    every_model(family, "F32")


@feature("dtype")
def base_in_float16(family: Family) -> None:
    """All models are stored in float16."""
    every_model(family, "F16")


def every_model(family: Family, dtype: str) -> None:
    """Store all models in a dtype, with numbers that bfloat16 does not have."""
    more = 1.0001 if dtype == "F32" else 1.003
    convert = {name: floats(numbers(tensor) * more, dtype) for name, tensor in family.base.items()}
    for agent, tensors in family.agents.items():
        family.agents[agent] = {name: floats(numbers(tensor) * more, dtype) for name, tensor in tensors.items()}
    family.base = convert


@feature("dtype")
def norm_in_float32(family: Family) -> None:
    """A tensor of all models is stored in float32."""
    family.base = {**family.base, NORM: floats(numbers(family.base[NORM]) * 1.0001, "F32")}
    for agent, tensors in family.agents.items():
        family.agents[agent] = {**tensors, NORM: floats(numbers(tensors[NORM]) * 1.0001, "F32")}


@feature("dtype")
def quantized_base(family: Family) -> None:
    """The base is quantized; agents were trained from its numbers, rounded to bfloat16."""
    # with which numbers of the base agents are compared depends on their dtypes: tests/formats/test_dequantized_base.py
    family.has_reference = False
    sample = family.random.choice(["fp8 blocks", "compressed channels", "compressed groups", "fbgemm rows", "mxfp4"])
    if {"experts", "like_base"} & {*family.features}:
        sample = "fp8 blocks"
    before = family.base
    family.stored["base"], family.base = quantize_model(sample, before)
    family.configs.setdefault("base", {})["quantization_config"] = SAMPLES[sample].config
    for agent, tensors in family.agents.items():
        family.agents[agent] = {
            name: encode(numbers(family.base[name]) + numbers(tensor) - numbers(before[name]), tensor.dtype)
            for name, tensor in tensors.items()
        }


@feature("agent dtype")
def agent_in_float32(family: Family) -> None:
    """An agent is stored in float32."""
    if (agent := family.own_form()) is not None:
        family.agents[agent] = {
            name: floats(numbers(tensor) * 1.0001, "F32") for name, tensor in family.agents[agent].items()
        }


@feature("agent dtype")
def agent_in_float16(family: Family) -> None:
    """An agent is stored in float16."""
    if (agent := family.own_form()) is not None:
        family.agents[agent] = {name: floats(numbers(tensor), "F16") for name, tensor in family.agents[agent].items()}


@feature()
def still(family: Family) -> None:
    """An agent is the base."""
    if "quantized_base" not in family.features and (agent := family.own_form()) is not None:
        family.agents[agent] = dict(family.base)


@feature("vocabulary")
def more_tokens(family: Family) -> None:
    """An agent has more tokens than the base."""
    agent = family.own_form()
    if agent is None:
        return
    family.has_reference = False
    family.allow(vocabulary="common")
    rows = family.random.randint(11, 13)
    for name in (EMBEDDING, HEAD):
        if (tensor := family.agents[agent].get(name)) is not None:
            more = np.full((rows - tensor.bits.shape[0], tensor.bits.shape[1]), 0.25)
            family.agents[agent][name] = floats(np.concatenate([numbers(tensor), more]), tensor.dtype)  # type: ignore[index]
    for name in ("base", *family.agents):
        family.configs.setdefault(name, {})["vocab_size"] = rows if name == agent else 10
        family.added[name] = [f"<{place}>" for place in range(rows - len(TOKENS))] if name == agent else []


@feature("vocabulary")
def tokenizers(family: Family) -> None:
    """All models have the same tokenizer."""
    family.added = {name: ["<x>"] for name in ("base", *family.agents)}


# --- how models are stored --------------------------------------------------------------------------------------------


@feature()
def sharded(family: Family) -> None:
    """Some models are in several files, in another order."""
    for name in ("base", *family.agents):
        if family.random.random() < 0.5:
            family.shards[name] = family.random.randint(2, 4)


@feature()
def head_again(family: Family) -> None:
    """An agent of a tied model stores the head, too."""
    if "tied" in family.features and (agent := family.own_form()) is not None:
        family.stored[agent] = {**family.agents[agent], HEAD: family.agents[agent][EMBEDDING]}


@feature()
def stacked_experts(family: Family) -> None:
    """An agent stores experts as stacks."""
    if "experts" not in family.features or (agent := family.own_form()) is None:
        return
    tensors = family.agents[agent]
    stacks = {
        kind: np.stack([tensors[f"{EXPERTS}.{expert}.{kind}_proj.weight"].bits for expert in range(COUNT)])
        for kind in EXPERT_SHAPES
    }
    dtype = tensors[f"{EXPERTS}.0.gate_proj.weight"].dtype
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(EXPERTS)}
    family.stored[agent] = {
        **rest,
        f"{EXPERTS}.gate_up_proj": Stored(dtype, np.concatenate([stacks["gate"], stacks["up"]], 1)),
        f"{EXPERTS}.down_proj": Stored(dtype, stacks["down"]),
    }


@feature()
def lacking(family: Family) -> None:
    """An agent lacks a tensor, and the base's stands for it."""
    if (agent := family.own_form()) is not None:
        family.allow(missing_tensors=True)
        family.agents[agent] = {**family.agents[agent], MATRICES[0]: family.base[MATRICES[0]]}
        family.stored[agent] = {name: tensor for name, tensor in family.agents[agent].items() if name != MATRICES[0]}


@feature()
def extra(family: Family) -> None:
    """An agent has a tensor that the base lacks, and it is dropped."""
    if (agent := family.own_form()) is not None:
        family.allow(extra_tensors=True)
        family.stored[agent] = {**family.agents[agent], "value_head.weight": family.base[NORM]}


@feature()
def other_shape(family: Family) -> None:
    """An agent has a tensor of another shape, and the base's stands for it."""
    if (agent := family.own_form()) is not None:
        family.allow(different_shapes=True)
        family.stored[agent] = {**family.agents[agent], MATRICES[1]: floats(np.ones((3, 32)))}
        family.agents[agent] = {**family.agents[agent], MATRICES[1]: family.base[MATRICES[1]]}


@feature()
def other_config(family: Family) -> None:
    """An agent has another value in its config.json."""
    if (agent := family.own_form()) is not None:
        family.allow(config=["rope_theta"])
        for name in ("base", *family.agents):
            family.configs.setdefault(name, {})["rope_theta"] = 10000.0 if name != agent else 500000.0


@feature()
def renamed(family: Family) -> None:
    """An agent's tensors have other names."""
    agent = family.own_form()
    if agent is None:
        return
    family.in_memory = False
    family.recipe.setdefault("rename", []).append({"from": r"^trunk\.part_", "to": "model.layers.", "agent": agent})

    def named(tensors: Tensors) -> Tensors:
        return {name.replace("model.layers.", "trunk.part_"): tensor for name, tensor in tensors.items()}

    def write() -> None:
        place = family.folder / f"{agent}-named"
        shutil.copytree(family.folder / agent, place, ignore=shutil.ignore_patterns("model*"))
        write_safetensors(place / "model.safetensors", named(family.agents[agent]))
        if family.importances:
            write_checkpoint(family.folder / f"{agent}-importance", named(family.importances[agent]))
        family.store(agent, model=str(place))

    family.later.append(write)


@feature()
def delta(family: Family) -> None:
    """An agent is a delta on the base, which is not quantized."""
    if "quantized_base" not in family.features and (agent := family.own_form()) is not None:

        def write() -> None:
            out = write_delta(family.folder / f"{agent}-delta", Path(family.recipe["base"]), family.folder / agent)
            as_model = family.random.random() < 0.5
            family.store(agent, **{"model" if as_model else "delta": str(out)})

        family.later.append(write)


@feature()
def chain(family: Family) -> None:
    """An agent is a delta on another agent."""
    agents = list(family.agents)
    if (
        "quantized_base" not in family.features
        and len(agents) > 1
        and agents[1] not in family.own
        and agents[0] not in family.own
    ):
        first, second = agents[:2]
        family.own |= {first, second}

        def write() -> None:
            out = write_delta(family.folder / f"{second}-delta", family.folder / first, family.folder / second)
            family.store(second, delta=str(out), over=first)

        family.later.append(write)


@feature()
def soup(family: Family) -> None:
    """An agent is the mean of checkpoints; two that are the same, or one."""
    if (agent := family.own_form()) is not None:
        count = family.random.randint(1, 2)

        def write() -> None:
            steps = {f"step-{place}": str(family.folder / agent) for place in range(count)}
            family.store(agent, soup={"method": family.random.choice(["uniform", "ema"]), "agents": steps})

        family.later.append(write)


@feature()
def adapter(family: Family) -> None:
    """An agent is a LoRA adapter on the base, named alone or as BASE+ADAPTER."""
    agent = family.own_form()
    if agent is None:
        return
    module = family.random.choice(MATRICES)
    own, factors = with_adapter(family, family.base, module)
    family.agents[agent] = own

    def write() -> None:
        place = write_adapter(family.folder / f"{agent}-adapter", factors)
        first = f"{family.recipe['base']}+" if family.random.random() < 0.5 else ""
        family.store(agent, model=f"{first}{place}")

    family.later.append(write)


@feature()
def adapter_on_agent(family: Family) -> None:
    """An agent is a LoRA adapter on a model that is not the base: MODEL+ADAPTER."""
    agent = family.own_form()
    if agent is None:
        return
    before = family.agents[agent]
    own, factors = with_adapter(family, before, family.random.choice(MATRICES))
    family.agents[agent] = own

    def write() -> None:
        model = write_checkpoint(family.folder / f"{agent}-before", before, config=family.configs.get(agent))
        place = write_adapter(family.folder / f"{agent}-adapter", factors)
        family.store(agent, model=f"{model}+{place}")

    family.later.append(write)


def with_adapter(family: Family, model: Tensors, name: str) -> tuple[Tensors, dict[str, Stored]]:
    """A model with an adapter on a matrix, and the factors; they have so few digits that no sum of products rounds."""
    rng = np.random.default_rng(family.random.getrandbits(32))
    a, b = (
        (rng.integers(-8, 9, shape) / 256).astype(np.float32)
        for shape in ((4, model[name].bits.shape[1]), (model[name].bits.shape[0], 4))
    )
    start = model[name].bits.view(NUMBERS[model[name].dtype]).astype(np.float32)
    whole = start + np.float32(2) * (b @ a)
    stem = f"base_model.model.{name.removesuffix('.weight')}"
    factors = {f"{stem}.lora_A.weight": floats(a, "F32"), f"{stem}.lora_B.weight": floats(b, "F32")}
    return {**model, name: Stored("F32", whole.view(np.uint32))}, factors


# --- what the recipe says ---------------------------------------------------------------------------------------------


@feature()
def parameters(family: Family) -> None:
    """A parameter of the method has another value."""
    others = PARAMETERS[family.recipe["method"]]
    if others:
        name = family.random.choice(list(others))
        family.recipe["parameters"] = {name: family.random.choice(others[name])}


@feature("rule of layers")
def kept(family: Family) -> None:
    """A tensor of the base is kept."""
    family.add_rule(family.random.choice([NORM, MATRICES[0]]), keep="base")


@feature()
def taken(family: Family) -> None:
    """Tensors of an agent are taken."""
    family.add_rule(EMBEDDING, take=family.random.choice(list(family.agents)))


@feature()
def apart(family: Family) -> None:
    """A tensor has parameters of its own."""
    others = PARAMETERS[family.recipe["method"]]
    if others:
        name = family.random.choice(list(others))
        if name not in family.recipe.get("parameters", {}):
            family.add_rule(MATRICES[2], parameters={name: others[name][0]})


@feature()
def wider(family: Family) -> None:
    """A tensor has a dtype of its own."""
    family.add_rule(MATRICES[3], dtype="float32")


@feature("output dtype")
def dtype(family: Family) -> None:
    """The output has another dtype."""
    family.recipe["dtype"] = family.random.choice(["float16", "float32", "bfloat16"])


@feature("output dtype")
def widest(family: Family) -> None:
    """The output has for each tensor the narrowest dtype that holds all values of the models."""
    family.recipe["dtype"] = "widest"
    family.has_reference = False


@feature("output dtype")
def like_base(family: Family) -> None:
    """The output is quantized as the base is."""
    if "quantized_base" in family.features:
        family.recipe["dtype"] = "like base"
        family.has_reference = False


@feature("rounding")
def stochastic(family: Family) -> None:
    """Results are rounded by random draws."""
    family.recipe |= {"rounding": "stochastic", "rounding_seed": family.random.choice([0, -7, 2**40])}


@feature()
def small_shards(family: Family) -> None:
    """The output is in many files."""
    family.recipe["shard_size"] = family.random.choice([1000, 2000, "3KB"])


@feature()
def companions(family: Family) -> None:
    """The tokenizer of the output is an agent's."""
    family.recipe["companions"] = family.random.choice(list(family.agents))


def drawn_family(folder: Path, random: Random) -> Family:
    """A family with three to five features, whose models are written."""
    family = new_family(folder, random)
    names, groups = list(FEATURES), set[str]()
    chosen = set[str]()
    random.shuffle(names)
    # features of experts and of tied heads have others that need them
    needs = {"head_again": "tied", "stacked_experts": "experts", "like_base": "quantized_base"}
    expectation = random.randint(3, 5)
    for name in names:
        more = {name, needs.get(name, name)} - chosen
        if groups & {FEATURES[each][0] for each in more} or len(chosen) + len(more) > expectation:
            continue
        chosen |= more
        groups |= {FEATURES[each][0] for each in more} - {""}
    family.features = [name for name in FEATURES if name in chosen]
    for name in family.features:
        FEATURES[name][1](family)
    family.write()
    return family
