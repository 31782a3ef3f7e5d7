"""A row for each feature of a merge: what it changes of the recipe, the inputs or the run, and of the merge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

import ramerge
from ramerge.core.methods.registry import METHODS as REGISTRY
from tests import reference
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.conformance.methods import ROWS as METHODS
from tests.conformance.test_merge import importances_for, tossed
from tests.deltas.writing import write_delta
from tests.reference import NUMBERS, Stored, encode

Tensors = Mapping[str, Stored]

NAMES = tuple(f"model.layers.{layer}.weight" for layer in range(6))
KEPT, TAKEN, APART, WIDER, LACKED, _ = NAMES
OTHER_PARAMETERS = {
    "ram+": {"epsilon": 0.004},
    "ties": {"density": 0.5},
    "task_arithmetic": {"scale": 0.3},
    "fisher": {"scale": 0.3},
}
SAFETENSORS_DTYPES = {"bfloat16": "BF16", "float32": "F32", "float16": "F16"}


@dataclass
class Case:
    """A merge that features change one after another.

    Attributes:
        folder: where the inputs are.
        base: the base's tensors.
        agents: the agents' tensors by name, as they are merged.
        recipe: what is merged.
        stored: those of agents that are stored otherwise.
        importances: the importances of agents, for a method that takes them.
        options: how it is merged.
        kind: the kind of output.
        vary: the values of a sweep.
        out: where the output is, or what was made of it.
        prepare: called before the merge.
        finish: called after it, one after another; these make checkpoints of outputs.
    """

    folder: Path
    base: Tensors
    agents: dict[str, Tensors]
    recipe: dict[str, Any]
    stored: dict[str, Tensors] = field(default_factory=dict)
    importances: dict[str, Tensors] = field(default_factory=dict)
    options: ramerge.Options = field(default_factory=ramerge.Options)
    kind: str = "checkpoint"
    vary: dict[str, list[Any]] = field(default_factory=dict)
    out: Path = Path()
    prepare: list[Callable[[Case], object]] = field(default_factory=list)
    finish: list[Callable[[Case], Path]] = field(default_factory=list)

    def add_rule(self, match: str, **rule: Any) -> None:
        """Add a rule to the recipe."""
        self.recipe.setdefault("rules", []).append({"match": match, **rule})

    def store(self, agent: str, **keys: object) -> None:
        """Say in the recipe where an agent is."""
        side = {"importance": str(self.folder / f"{agent}-importance")} if self.importances else {}
        self.recipe["agents"][agent] = {**keys, **side}

    def merge(self, **more: Any) -> object:
        """Merge what the recipe says now."""
        if self.vary:
            return ramerge.sweep(self.recipe, self.out, vary=self.vary, options=self.options, **more)
        return ramerge.merge(self.recipe, self.out, kind=self.kind, options=self.options, **more)


def new_case(folder: Path, method: str) -> Case:
    """Three agents of a base of six matrices, in bfloat16. Nothing is written yet."""
    random = np.random.default_rng(7)
    base = {name: random.normal(0, 0.02, (12, 16)) for name in NAMES}
    agents: dict[str, Tensors] = {
        agent: {
            name: floats(values + random.normal(0, 0.01, values.shape) * (random.random(values.shape) < share))
            for name, values in base.items()
        }
        for agent, share in (("code", 0.1), ("tool", 0.4), ("memory", 0.5))
    }
    source = recipe(folder, list(agents), method)
    case = Case(folder, {name: floats(values) for name, values in base.items()}, agents, source, out=folder / "out")
    if method == "fisher":
        case.importances = importances_for(agents)
        for agent in agents:
            source["agents"][agent] = {"model": str(folder / agent), "importance": str(folder / f"{agent}-importance")}
    return case


def expected(case: Case) -> dict[str, Stored]:
    """The tensors of the merge, from the reference: rules in turn, and one merge for each set of parameters."""
    method, rules = METHODS[case.recipe["method"]].reference, case.recipe.get("rules", [])
    usual = case.recipe.get("parameters", {})
    found, counted = {}, dict[str, list[str]]()
    dtype_of_output = SAFETENSORS_DTYPES.get(case.recipe.get("dtype", ""))
    dtypes = {**reference.dtypes(case.base, dtype_of_output)}
    for name, tensor in case.base.items():
        rule: dict[str, Any] = next((rule for rule in rules if fnmatch(name, rule["match"])), {})
        dtypes[name] = SAFETENSORS_DTYPES.get(rule.get("dtype", "")) or dtypes[name] or tensor.dtype
        if "keep" in rule or "take" in rule:
            whole = tensor if "keep" in rule else case.agents[rule["take"]][name]
            found[name] = encode(whole.numbers(np.float64), dtypes[name])
        else:
            counted.setdefault(repr(rule.get("parameters")), []).append(name)
    for rule in [{}, *rules]:
        names = counted.pop(repr(rule.get("parameters")), [])
        base, *agents = ({name: model[name] for name in names} for model in (case.base, *case.agents.values()))
        by_name = dict(zip(case.agents, agents, strict=True))
        side = {"importances": case.importances} if case.importances else {}
        parameters = {**usual, **rule.get("parameters", {})}
        for dtype in {dtypes[name] for name in names}:
            merged = method(base, by_name, dtype, **parameters, **side)
            nearest = {name: merged[name] for name in names if dtypes[name] == dtype}
            if case.recipe.get("rounding") == "stochastic":
                seed = case.recipe.get("rounding_seed", 0)
                nearest = tossed(case.recipe["method"], base, by_name, nearest, seed, parameters, side)
            found |= nearest
    return found


# --- what is merged ---------------------------------------------------------------------------------------------------


def kept(case: Case) -> None:
    """A tensor of the base is kept."""
    case.add_rule(KEPT, keep="base")


def taken(case: Case) -> None:
    """A tensor of an agent is taken."""
    case.add_rule(TAKEN, take="tool")


def apart(case: Case) -> None:
    """A tensor has parameters of its own, and is counted separately."""
    case.add_rule(APART, parameters=OTHER_PARAMETERS[case.recipe["method"]])


def wider(case: Case) -> None:
    """A tensor has a dtype of its own."""
    case.add_rule(WIDER, dtype="float32")


def converted(case: Case) -> None:
    """The output has another dtype."""
    case.recipe["dtype"] = "float16"


def agent_in_float32(case: Case) -> None:
    """An agent is stored in float32."""
    numbers = {name: tensor.numbers(np.float32) for name, tensor in case.agents["memory"].items()}
    case.agents["memory"] = {name: encode(values * np.float32(1.0001), "F32") for name, values in numbers.items()}


def lacking(case: Case) -> None:
    """An agent lacks a tensor, and the base's stands for it."""
    case.recipe.setdefault("allow", {})["missing_tensors"] = True
    case.agents["code"] = {**case.agents["code"], LACKED: case.base[LACKED]}
    case.stored["code"] = {name: tensor for name, tensor in case.agents["code"].items() if name != LACKED}


def extra(case: Case) -> None:
    """An agent has a tensor that the base lacks, and it is dropped."""
    case.recipe.setdefault("allow", {})["extra_tensors"] = True
    case.stored["memory"] = {**case.agents["memory"], "value_head.weight": case.base[KEPT]}


# --- how the inputs are stored ----------------------------------------------------------------------------------------


def sharded(case: Case) -> None:
    """The base is in three files, in another order."""
    write_checkpoint(case.folder / "shards", dict(reversed([*case.base.items()])), shards=3)
    case.recipe["base"] = str(case.folder / "shards")


def delta(case: Case) -> None:
    """An agent is a delta on the base."""
    out = write_delta(case.folder / "delta", case.folder / "base", case.folder / "tool")
    case.store("tool", delta=str(out))


def soup(case: Case) -> None:
    """An agent is the mean of two checkpoints that are the same."""
    both = {step: {"model": str(case.folder / "code")} for step in ("step-1", "step-2")}
    case.store("code", soup={"method": "uniform", "agents": both})


def renamed(case: Case) -> None:
    """An agent's tensors have other names."""
    tensors = case.stored.get("memory", case.agents["memory"])
    write_checkpoint(case.folder / "named", {f"inner.{name}": tensor for name, tensor in tensors.items()})
    if case.importances:
        named = {f"inner.{name}": tensor for name, tensor in case.importances["memory"].items()}
        write_checkpoint(case.folder / "memory-importance", named)
    case.store("memory", model=str(case.folder / "named"))
    case.recipe["rename"] = [{"from": r"^inner\.", "to": "", "agent": "memory"}]


# --- how the merge is run ---------------------------------------------------------------------------------------------


def small_shards(case: Case) -> None:
    """The output is in many files."""
    case.recipe["shard_size"] = 1000


def one_thread(case: Case) -> None:
    """One thread reads, merges and writes."""
    case.options = replace(case.options, threads=1)


def overwritten(case: Case) -> None:
    """The output replaces an earlier one."""
    case.options = replace(case.options, overwrite=True)
    case.prepare.insert(0, lambda case: ramerge.convert(case.folder / "tool", case.out))


def resumed(case: Case) -> None:
    """The merge is interrupted, and resumed."""

    def interrupt(case: Case) -> None:
        def stop(progress: object) -> None:
            raise KeyboardInterrupt

        try:
            case.merge(on_progress=stop)
        except KeyboardInterrupt:
            return
        raise AssertionError("the merge was not interrupted")

    case.prepare.append(interrupt)


def as_delta(case: Case) -> None:
    """The output is a delta, which is applied."""

    def applied(case: Case) -> Path:
        ramerge.apply(case.recipe["base"], case.out, case.folder / "applied")
        return case.folder / "applied"

    case.kind = "delta"
    case.finish.append(applied)


def repeated(case: Case) -> None:
    """The merge is done again from the recipe that it has recorded."""

    def again(case: Case) -> Path:
        second = case.folder / "again"
        [recorded] = case.out.rglob("ramerge.yaml")
        ramerge.merge(recorded, second, kind=case.kind)
        return second

    case.finish.insert(0, again)


def swept(case: Case) -> None:
    """The merge is one of a sweep."""
    [(name, other)] = OTHER_PARAMETERS[case.recipe["method"]].items()
    usual = REGISTRY[case.recipe["method"]].parameters.model_fields[name].default

    def point(case: Case) -> Path:
        return case.out / f"{name}={usual}"

    case.vary = {f"parameters.{name}": [other, usual]}
    case.finish.insert(0, point)


WHAT = (kept, taken, apart, wider, converted, agent_in_float32, lacking, extra)
STORED = (sharded, delta, soup, renamed)
RUN = (small_shards, one_thread, overwritten, resumed, as_delta, repeated, swept)


def outcome(case: Case, *features: Callable[[Case], None]) -> dict[str, Stored]:
    """The tensors of a merge with features, from files."""
    for feature in (each for each in WHAT if each in features):
        feature(case)
    for name, tensors in {"base": case.base, **case.agents, **case.stored}.items():
        write_checkpoint(case.folder / name, tensors)
    for agent, tensors in case.importances.items():
        write_checkpoint(case.folder / f"{agent}-importance", tensors)
    for feature in (each for each in (*STORED, *RUN) if each in features):
        feature(case)
    for step in case.prepare:
        step(case)
    case.merge()
    for finish in case.finish:
        case.out = finish(case)
    found: dict[str, Stored] = read_checkpoint(case.out)
    return found


def outcome_in_memory(case: Case, *features: Callable[[Case], None]) -> dict[str, Stored]:
    """The tensors of a merge with features, from state dicts."""
    for feature in features:
        feature(case)
    base, *agents = (arrays(case.stored.get(name, model)) for name, model in {"base": case.base, **case.agents}.items())
    more = {key: value for key, value in case.recipe.items() if key not in ("base", "agents", "method")}
    by_name = dict(zip(case.agents, agents, strict=True))
    if case.importances:
        by_name = {
            name: {"model": model, "importance": arrays(case.importances[name])} for name, model in by_name.items()
        }
    found = ramerge.merge_state_dicts(base, by_name, case.recipe["method"], recipe=more)
    return {name: floats(array, SAFETENSORS_DTYPES[array.dtype.name]) for name, array in found.items()}


def arrays(tensors: Tensors) -> dict[str, Any]:
    """Tensors as arrays of numbers."""
    return {name: tensor.bits.view(NUMBERS[tensor.dtype]) for name, tensor in tensors.items()}
