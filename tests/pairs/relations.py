"""Relations between ways to the same model: a row for each relation, with its sides."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.methods.registry import METHODS as REGISTRY
from tests.checkpoints import write_checkpoint
from tests.commands import in_process
from tests.conformance.methods import ROWS as METHODS
from tests.conformance.test_memory import _TYPES, arrays, bits, bits_of, with_sides
from tests.pairs.models import PARAMETERS, Family, expected
from tests.plans import planned
from tests.storage.memory import Memory

Side = Callable[[], Mapping[str, Any]]
Relation = Callable[[Family], "dict[str, Side] | None"]
RELATIONS: dict[str, Relation] = {}
"""By name: gives the sides, each of which is called once and must give the same tensors and files; None where the
relation says nothing of such a family."""

OPTIONS = ramerge.Options(cache=False, threads=1)
_RECORDS = ("ramerge.json", "ramerge.yaml", "README.md", "model.safetensors.index.json")


def relation(name: str) -> Callable[[Relation], Relation]:
    """Add a relation."""

    def add(function: Relation) -> Relation:
        RELATIONS[name] = function
        return function

    return add


# --- ways to merge ----------------------------------------------------------------------------------------------------


def command(*words: object) -> str:
    """Run a command in this process, and give what it prints."""
    return in_process(*words)[0]


def files(folder: Path) -> dict[str, Any]:
    """Tensors and other files of a checkpoint, but for records of how it was made."""
    others = {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix != ".safetensors" and path.name not in _RECORDS
    }
    return {**bits_of(folder), **others}


def tensors_of(folder: Path) -> dict[str, Any]:
    """Tensors of a checkpoint."""
    return dict(bits_of(folder))


def merge(family: Family, name: str, recipe: Any = None, **options: Any) -> Path:
    """Merge in Python. Returns the folder."""
    out = family.folder / name
    ramerge.merge(family.recipe if recipe is None else recipe, out, options=replace(OPTIONS, **options))
    return out


def as_file(family: Family, name: str = "recipe.yaml") -> Path:
    """The recipe as a file, with paths that start at its folder."""
    text = json.dumps(family.recipe).replace(f'"{family.folder}/', '"').replace(f"+{family.folder}/", "+")
    path = family.folder / name
    path.write_text(text)
    return path


def as_flags(family: Family) -> list[str]:
    """The recipe as flags, with `--set` for what has no flag of its own."""
    words: list[str] = []
    # agents that are set come after those of --agent, and sums are computed in order
    by_flag = all(isinstance(agent, str) or "model" in agent for agent in family.recipe["agents"].values())
    for key, value in family.recipe.items():
        if key == "agents" and by_flag:
            for agent, model in value.items():
                entry = {"model": model} if isinstance(model, str) else model
                words += ["--agent", f"{agent}={entry['model']}"]
                words += ["--importance", f"{agent}={entry['importance']}"] if "importance" in entry else []
        elif key in ("method", "base", "preset", "dtype", "rounding", "shard_size"):
            words += [f"--{key.replace('_', '-')}", str(value)]
        elif isinstance(value, dict):
            for inner, text in value.items():
                words += ["--set", f"{key}.{inner}={json.dumps(text)}"]
        else:
            words += ["--set", f"{key}={json.dumps(value)}"]
    return words


def direct(family: Family) -> Side:
    """The merge itself, by one of the doors: a mapping, a `Recipe`, a file, a command with a file."""
    door = family.random.choice(["mapping", "object", "file", "command"])

    def side() -> dict[str, Any]:
        out = family.folder / "direct"
        if door == "command":
            command("merge", as_file(family, "direct.yaml"), out, "--quiet", "--no-cache")
            return files(out)
        recipe: Any = family.recipe
        if door == "object":
            recipe = ramerge.read_recipe(family.recipe)
        elif door == "file":
            recipe = as_file(family, "direct.yaml")
        return files(merge(family, "direct", recipe))

    return side


# --- the reference, and how a merge is carried out --------------------------------------------------------------------


@relation("the slow reference")
def slow_reference(family: Family) -> dict[str, Side] | None:
    """The bytes of the reference."""
    if not family.has_reference or not METHODS[family.recipe["method"]].exact:
        return None

    def reference() -> Mapping[str, Any]:
        return {
            name: (tensor.dtype, tensor.bits.shape, tensor.bits.tobytes()) for name, tensor in expected(family).items()
        }

    return {"merge": lambda: tensors_of(merge(family, "out")), "reference": reference}


@relation("any threads and blocks")
def threads_and_blocks(family: Family) -> dict[str, Side]:
    """Any number of threads, and blocks of any size."""
    threads, block = family.random.randint(1, 5), family.random.choice([5, 64, 1000])

    def other() -> Mapping[str, Any]:
        plan = planned(family.recipe, family.folder / "other", cache=False)
        plan = replace(plan, resources=replace(plan.resources, block_elements=block))
        if plan.findings.problems:
            raise ramerge.PlanError(plan.findings.problems)
        execute(plan, ThreadExecutor(threads))
        return files(family.folder / "other")

    return {"merge": direct(family), f"{threads} threads, blocks of {block}": other}


@relation("any memory")
def any_memory(family: Family) -> dict[str, Side]:
    """A limit of memory."""
    limit = f"{family.random.choice([1, 2, 4])}GB"
    return {"merge": direct(family), limit: lambda: files(merge(family, "less", max_memory=limit, threads=2))}


@relation("any shards")
def any_shards(family: Family) -> dict[str, Side]:
    """Shards of any size."""
    size = family.random.choice([1000, 1500, "1MB"])
    changed = {**family.recipe, "shard_size": size}
    return {"merge": direct(family), f"shards of {size}": lambda: files(merge(family, "shards", changed))}


@relation("order of two agents")
def order(family: Family) -> dict[str, Side] | None:
    """Sums of two agents do not depend on their order; soups do in float32, as they start at their first checkpoint."""
    agents = family.recipe["agents"]
    symmetric = ("ram", "ram+", "ram+s", "task_arithmetic", "linear", "fisher", "ties")
    if len(agents) != 2 or family.recipe["method"] not in symmetric:
        return None
    if any(isinstance(agent, dict) and "over" in agent for agent in agents.values()):
        return None
    changed = {**family.recipe, "agents": dict(reversed(agents.items()))}
    return {
        "merge": lambda: tensors_of(merge(family, "one")),
        "reversed": lambda: tensors_of(merge(family, "two", changed)),
    }


@relation("an interrupted merge resumes")
def resumed(family: Family) -> dict[str, Side]:
    """A merge that was interrupted at some block, and resumed, is a fresh one."""
    after = family.random.randint(1, 6)

    def interrupted() -> Mapping[str, Any]:
        out, left = family.folder / "resumed", iter(range(after))

        def stop(_progress: object) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            ramerge.merge(family.recipe, out, options=replace(OPTIONS, threads=1), on_progress=stop)
            return files(out)
        ramerge.merge(family.recipe, out, options=OPTIONS)
        return files(out)

    return {"merge": direct(family), f"after {after}": interrupted}


@relation("an overwritten output")
def overwritten(family: Family) -> dict[str, Side]:
    """A merge that replaces another one, with cached counts."""

    def over() -> Mapping[str, Any]:
        for _ in range(2):
            out = merge(family, "over", overwrite=True, cache=True)
        return files(out)

    return {"merge": direct(family), "over": over}


@relation("tensors of a plan")
def streamed(family: Family) -> dict[str, Side]:
    """Tensors that a plan gives are those that are written."""

    def stream() -> Mapping[str, Any]:
        plan = ramerge.plan(family.recipe, options=OPTIONS)
        return {each.name: (each.dtype, each.shape, each.data.tobytes()) for each in plan.tensors()}

    return {"merge": lambda: tensors_of(merge(family, "out")), "plan.tensors": stream}


@relation("memory is disk")
def in_memory(family: Family) -> dict[str, Side] | None:
    """State dicts give the bytes of folders."""
    keys = ("dtype", "preset", "rounding", "rounding_seed", "rules", "allow")
    source = {key: value for key, value in family.recipe.items() if key in keys}
    if not family.in_memory or "more_tokens" in family.features:
        return None
    if {"soup", "widest"} <= {*family.features}:  # a soup is float32, whatever its checkpoints are
        return None
    # what an adapter leaves of a quantized base is in memory a tensor in float32, which is compared with other numbers
    if "quantized_base" in family.features and {"adapter", "adapter_on_agent", "still"} & {*family.features}:
        return None
    if isinstance(source.get("allow"), dict):
        source["allow"] = {key: value for key, value in source["allow"].items() if key != "config"}
    base = family.stored.get("base", family.base)
    extra = {"importances": family.importances} if family.importances else {}

    def memory() -> Mapping[str, Any]:
        models = {name: arrays(family.stored.get(name, tensors)) for name, tensors in family.agents.items()}
        results = ramerge.merge_state_dicts(
            arrays(base),
            with_sides(models, extra),
            family.recipe["method"],
            config={"model_type": "test", "torch_dtype": "bfloat16", **family.configs.get("base", {})},
            recipe=source,
            **family.recipe.get("parameters", {}),
        )
        return bits(results)

    return {"merge": lambda: tensors_of(merge(family, "out")), "state dicts": memory}


# --- forms of a recipe ------------------------------------------------------------------------------------------------


@relation("flags are YAML")
def flags(family: Family) -> dict[str, Side]:
    """A recipe as flags is the recipe as a file."""

    def by_flags() -> Mapping[str, Any]:
        out = family.folder / "flags"
        command("merge", *as_flags(family), out, "--quiet", "--no-cache")
        return files(out)

    def by_file() -> Mapping[str, Any]:
        out = family.folder / "file"
        command("merge", as_file(family), out, "--quiet", "--no-cache")
        return files(out)

    return {"file": by_file, "flags": by_flags}


@relation("a written recipe")
def written_recipe(family: Family) -> dict[str, Side]:
    """The file of `plan --write-recipe` is the recipe."""

    def again() -> Mapping[str, Any]:
        path = family.folder / "written" / "recipe.yaml"
        path.parent.mkdir()
        command("plan", *as_flags(family), "--write-recipe", path, "--quiet", "--no-cache")
        return files(merge(family, "again", path))

    return {"merge": direct(family), "again": again}


@relation("the record repeats")
def record(family: Family) -> dict[str, Side]:
    """The recipe in the output repeats the merge."""

    def again() -> Mapping[str, Any]:
        out = merge(family, "recorded")
        return files(merge(family, "again", out / "ramerge.yaml"))

    return {"merge": direct(family), "again": again}


@relation("a point of a sweep")
def sweep(family: Family) -> dict[str, Side] | None:
    """A point of a sweep is a merge."""
    others = PARAMETERS[family.recipe["method"]]
    if not others:
        return None
    name = family.random.choice(list(others))
    value, usual = others[name][0], REGISTRY[family.recipe["method"]].parameters.model_fields[name].default
    chosen = {**family.recipe, "parameters": {**family.recipe.get("parameters", {}), name: value}}
    by_command = family.random.random() < 0.5
    vary = [usual, value]

    def point() -> Mapping[str, Any]:
        out = family.folder / "sweep"
        if by_command:
            given = f"parameters.{name}={json.dumps(vary)}"
            command("sweep", as_file(family), out, "--vary", given, "--quiet", "--no-cache")
        else:
            ramerge.sweep(family.recipe, out, vary={f"parameters.{name}": vary}, options=OPTIONS)
        [*_, results] = [path for path in sorted(out.iterdir()) if path.is_dir() and point_of(path).get(name) == value]
        return files(results)

    return {"merge": lambda: files(merge(family, "chosen", chosen)), "point": point}


def point_of(folder: Path) -> dict[str, Any]:
    """The parameters in a merge's record."""
    parameters: dict[str, Any] = json.loads((folder / "ramerge.json").read_text())["parameters"]
    return parameters


@relation("the best of a search")
def search(family: Family) -> dict[str, Side] | None:
    """The best model of a search is its recipe merged, and its point merged."""
    others = PARAMETERS[family.recipe["method"]]
    if not others:
        return None
    name = family.random.choice(list(others))
    values = [value for value in others[name] if not isinstance(value, dict)]
    out = family.folder / "search"

    def best() -> Mapping[str, Any]:
        ramerge.search(
            family.recipe,
            out,
            score,
            vary={f"parameters.{name}": values},
            settings=ramerge.SearchSettings(html=False),
            options=OPTIONS,
        )
        return files(out / "best")

    def again() -> Mapping[str, Any]:
        if not (out / "recipe.yaml").exists():  # the search was refused, and so must be the merge
            return files(merge(family, "again"))
        return files(merge(family, "again", out / "recipe.yaml"))

    def point() -> Mapping[str, Any]:
        if not (out / "recipe.yaml").exists():
            return files(merge(family, "point"))
        winner = json.loads((out / "search.json").read_text())
        value = next(one for one in winner["points"] if one["number"] == winner["best"])["point"][f"parameters.{name}"]
        chosen = {**family.recipe, "parameters": {**family.recipe.get("parameters", {}), name: value}}
        return files(merge(family, "point", chosen))

    return {"best": best, "recipe": again, "point": point}


def score(model: Path) -> dict[str, float]:
    """A number that only the bytes decide."""
    weights = b"".join(path.read_bytes() for path in sorted(model.glob("*.safetensors")))
    return {"hash": int.from_bytes(hashlib.sha256(weights).digest()[:4], "big") / 2**32}


# --- forms of models --------------------------------------------------------------------------------------------------


@relation("as delta, then applied")
def as_delta(family: Family) -> dict[str, Side] | None:
    """A merge that is written as a delta, and applied, is the merge."""
    if "quantized_base" in family.features:  # no base of a delta
        return None

    def applied() -> Mapping[str, Any]:
        delta, out = family.folder / "as-delta", family.folder / "applied"
        if family.random.random() < 0.5:
            ramerge.merge(family.recipe, delta, kind="delta", options=OPTIONS)
            ramerge.apply(family.recipe["base"], delta, out, options=OPTIONS)
        else:
            command("merge", as_file(family), delta, "--as-delta", "--quiet", "--no-cache")
            command("apply", "--base", family.recipe["base"], delta, out, "--quiet")
        return files(out)

    return {"merge": direct(family), "applied": applied}


@relation("delta of a merge, applied")
def delta_of_merge(family: Family) -> dict[str, Side] | None:
    """The delta of a merged model gives the model back."""
    if "quantized_base" in family.features:  # no base of a delta
        return None

    def applied() -> Mapping[str, Any]:
        merged = merge(family, "whole")
        delta, out = family.folder / "delta-of", family.folder / "applied"
        if family.random.random() < 0.5:
            ramerge.delta(family.recipe["base"], merged, delta, options=OPTIONS)
            ramerge.apply(family.recipe["base"], delta, out, options=OPTIONS)
        else:
            command("delta", "--base", family.recipe["base"], "--agent", f"a={merged}", delta, "--quiet")
            command("apply", "--base", family.recipe["base"], delta, out, "--quiet")
        return files(out)

    return {"merge": direct(family), "applied": applied}


@relation("agents converted first")
def converted(family: Family) -> dict[str, Side] | None:
    """Agents that are written as plain safetensors first, in float32, give the bytes of a merge from their forms."""
    agents = family.recipe["agents"]
    if any(isinstance(agent, dict) and agent.keys() & {"soup", "over"} for agent in agents.values()):
        return None
    if family.recipe.get("dtype") == "widest" or "rename" in family.recipe or "allow" in family.recipe:
        return None
    # an agent in bfloat16 is compared with the numbers of a quantized base in bfloat16, and one in float32 is not
    if "quantized_base" in family.features:
        return None

    def plain() -> Mapping[str, Any]:
        changed: dict[str, Any] = {}
        for name, agent in agents.items():
            entry = {"model": agent} if isinstance(agent, str) else dict(agent)
            place = entry.pop("delta", None) or entry.pop("model")
            out = family.folder / f"{name}-converted"
            if family.random.random() < 0.5:
                ramerge.convert(place, out, base=family.recipe["base"], dtype="float32", options=OPTIONS)
            else:
                words = ["convert", place, out, "--base", family.recipe["base"], "--dtype", "float32", "--quiet"]
                command(*words, "--no-cache")
            changed[name] = {"model": str(out), **entry}
        return tensors_of(merge(family, "plain", {**family.recipe, "agents": changed}))

    return {"merge": lambda: tensors_of(merge(family, "out")), "converted": plain}


@relation("a soup of one is convert")
def soup_of_one(family: Family) -> dict[str, Side] | None:
    """The soup of one checkpoint, by the command and as an agent, is that checkpoint converted."""
    name = family.random.choice(list(family.agents))
    agent = family.recipe["agents"][name]
    entry = {"model": agent} if isinstance(agent, str) else dict(agent)
    if entry.keys() & {"soup", "over"} or "rename" in family.recipe or "allow" in family.recipe:
        return None
    entry.pop("importance", None)
    place = entry.get("delta") or entry["model"]
    keys = {key: family.recipe[key] for key in ("dtype", "rounding", "shard_size") if key in family.recipe}
    more = [word for key, value in keys.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    base = family.recipe["base"]

    def convert() -> Mapping[str, Any]:
        out = family.folder / "converted"
        ramerge.convert(place, out, base=base, values=keys, options=OPTIONS)
        return files(out)

    def command_convert() -> Mapping[str, Any]:
        out = family.folder / "converted-2"
        command("convert", place, out, "--base", base, *more, "--quiet", "--no-cache")
        return files(out)

    def soup() -> Mapping[str, Any]:
        out = family.folder / "soup"
        recipe = {"method": "uniform", "base": base, "agents": {"step-1": entry}, **keys}
        ramerge.merge(recipe, out, options=OPTIONS)
        return files(out)

    def command_soup() -> Mapping[str, Any]:
        out, run = family.folder / "soup-2", family.folder / "run"
        run.mkdir()
        shutil.copytree(place, run / "global_step_1")
        command("soup", run, out, "--base", base, *more, "--quiet", "--no-cache")
        return files(out)

    sides: dict[str, Side] = {"convert": convert, "command": command_convert, "uniform": soup}
    if "+" not in place:
        sides["soup"] = command_soup
    return sides


@relation("the delta of an agent")
def delta_of_agent(family: Family) -> dict[str, Side] | None:
    """The delta of an agent of any form gives what converting it gives."""
    name = family.random.choice(list(family.agents))
    agent = family.recipe["agents"][name]
    entry = {"model": agent} if isinstance(agent, str) else dict(agent)
    if entry.keys() & {"soup", "over"} or {"quantized_base", "renamed", "lacking", "extra"} & {*family.features}:
        return None
    place, base = entry.get("delta") or entry["model"], family.recipe["base"]

    def converted() -> Mapping[str, Any]:
        # without a base, so that its dtypes stay; an adapter or a delta needs one
        out = family.folder / "converted"
        plain = place == str(family.folder / name)
        ramerge.convert(
            place, out, base=None if plain else base, dtype="widest" if not plain else None, options=OPTIONS
        )
        return tensors_of(out)

    def applied() -> Mapping[str, Any]:
        delta, out = family.folder / "the-delta", family.folder / "applied"
        command("delta", "--base", base, "--agent", f"a={place}", delta, "--quiet")
        command("apply", "--base", base, delta, out, "--quiet")
        return tensors_of(out)

    return {"convert": converted, "delta": applied}


@relation("soups are written first")
def nested_soup(family: Family) -> dict[str, Side] | None:
    """An agent that is a soup of others gives what the soup gives that is written in float32, or by the command."""
    names = [name for name, agent in family.recipe["agents"].items() if isinstance(agent, str) and "+" not in agent]
    # rules of agents' names, and what is allowed, are of the merge and not of the soup
    if len(names) < 2 or family.recipe.keys() & {"allow", "rename", "companions"} or family.importances:
        return None
    if {"quantized_base", "taken", "chain", "more_tokens"} & {*family.features}:
        return None
    # a soup is made of checkpoints that hold the same tensors, where a merge fits agents to the base
    if {"head_again", "stacked_experts"} & {*family.features}:
        return None
    if family.recipe.get("dtype") == "widest" or family.recipe["method"] == "slerp":
        return None
    agents = {name: family.recipe["agents"][name] for name in names}
    base = family.recipe["base"]
    by_command = family.random.random() < 0.5

    def nested() -> Mapping[str, Any]:
        soup = {"soup": {"agents": dict(agents)}}
        return tensors_of(merge(family, "nested", {**family.recipe, "agents": {"both": soup}}))

    def first() -> Mapping[str, Any]:
        out = family.folder / "soup"
        if by_command:
            run = family.folder / "run"
            run.mkdir()
            for place, model in enumerate(agents.values(), 1):
                shutil.copytree(model, run / f"global_step_{place}")
            command("soup", run, out, "--base", base, "--dtype", "float32", "--quiet", "--no-cache")
        else:
            recipe = {"method": "uniform", "base": base, "agents": dict(agents), "dtype": "float32"}
            ramerge.merge(recipe, out, options=OPTIONS)
        return tensors_of(merge(family, "plain", {**family.recipe, "agents": {"both": str(out)}}))

    return {"nested": nested, "written": first}


@relation("a bucket is local")
def bucket(family: Family) -> dict[str, Side] | None:
    """Models from and to a bucket give the bytes of folders."""
    if "+" in json.dumps(family.recipe["agents"]):
        return None

    def remote() -> Mapping[str, Any]:
        memory = Memory()
        with mock.patch("obstore.store.GCSStore", memory.open):
            placed: dict[str, str] = {}

            def there(value: Any) -> Any:
                if isinstance(value, dict):
                    return {key: inner if key in ("method", "over") else there(inner) for key, inner in value.items()}
                if value not in placed:
                    placed[value] = memory.put(Path(value), f"inputs/{Path(value).name}")
                return placed[value]

            source = {**family.recipe, "base": there(family.recipe["base"]), "agents": there(family.recipe["agents"])}
            staging = ramerge.Upload(staging_dir=family.folder / "staging")
            ramerge.merge(source, "gs://models/out", options=replace(OPTIONS, upload=staging))
            out = family.folder / "downloaded"
            out.mkdir()
            for name, data in memory.files("out").items():
                (out / name).write_bytes(data)
        return tensors_of(out)

    return {"merge": lambda: tensors_of(merge(family, "out")), "bucket": remote}


@relation("as adapter, then on the base")
def as_adapter(family: Family) -> dict[str, Side] | None:
    """A merge that is written as an adapter of full rank is, on the base, the merge but for rounding."""
    # these are no factors; and of a merge that is the base there are none
    if {"like_base", "experts", "more_tokens", "still"} & {*family.features}:
        return None
    kind = ramerge.AsAdapter(rank=64, save_modules=True)

    def whole() -> Mapping[str, Any]:
        return near(merge(family, "out", {**family.recipe, "dtype": "float32", "rounding": "nearest"}))

    def applied() -> Mapping[str, Any]:
        place, out = family.folder / "as-adapter", family.folder / "applied"
        base, recipe = family.recipe["base"], {**family.recipe, "dtype": "float32", "rounding": "nearest"}
        try:
            ramerge.merge(recipe, place, kind=kind, options=OPTIONS)
        except ramerge.WeightsError as error:  # breadcrumbs of few numbers may drop them all: the merge is the base
            if "changes nothing of the base" not in str(error):
                raise
            ramerge.convert(base, out, dtype="float32", options=OPTIONS)
        else:
            ramerge.convert(place, out, base=base, dtype="float32", options=OPTIONS)
        return near(out)

    return {"merge": whole, "applied": applied}


def near(folder: Path) -> dict[str, Any]:
    """Tensors whose numbers are compared, and not their bytes."""
    return {
        name: Near(np.frombuffer(data, _TYPES[dtype]).astype(np.float64))
        for name, (dtype, _, data) in bits_of(folder).items()
    }


@dataclass(frozen=True)
class Near:
    """Numbers that equal others which are near."""

    values: NDArray[np.float64]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Near) and bool(np.allclose(self.values, other.values, rtol=2**-7, atol=3e-4))


# --- what others read -------------------------------------------------------------------------------------------------


@relation("a plan foresees refusals")
def foreseen(family: Family) -> dict[str, Side]:
    """A merge whose plan has no problems is refused only for what its weights hold."""

    def plan() -> Mapping[str, Any]:
        problems = ramerge.plan(family.recipe, family.folder / "planned", options=OPTIONS).problems
        if problems:
            raise ramerge.PlanError(problems)
        return {}

    def merged() -> Mapping[str, Any]:
        merge(family, "merged")
        return {}

    return {"plan": plan, "merge": merged}


@relation("strict refuses what warns")
def strict(family: Family) -> dict[str, Side]:
    """With `strict`, a merge is refused if it warns, and is the same otherwise."""

    def usual() -> Mapping[str, Any]:
        record = ramerge.merge(family.recipe, family.folder / "usual", options=OPTIONS)
        if record.warnings:
            raise ramerge.WeightsError(record.warnings)
        return files(family.folder / "usual")

    return {"merge": usual, "strict": lambda: files(merge(family, "strict", strict=True))}


def is_surveyed(family: Family) -> bool:
    """Whether an analysis needs one of few kernels: each takes up to 20 seconds to compile."""
    dtypes = {tensor.dtype for model in (family.base, *family.agents.values()) for tensor in model.values()}
    others = {"dtype", "widest", "wider", "like_base", "quantized_base"} & {*family.features}
    return dtypes == {"BF16"} and not others and len(family.agents) < 3


@relation("consumers end")
def consumers(family: Family) -> dict[str, Side] | None:
    """Whoever reads what a merge reads ends with a result where the merge does."""
    # importances of another vocabulary are refused by the merge, and an analysis reads none
    if not is_surveyed(family) or (family.recipe["method"] == "fisher" and "more_tokens" in family.features):
        return None
    page = family.folder / "analysis.json"

    def merged() -> Mapping[str, Any]:
        merge(family, "merged")
        return {}

    def analyzed() -> Mapping[str, Any]:
        command("analyze", as_file(family, "a.yaml"), "--json-file", page, "--quiet", "--no-cache")
        return {} if page.stat().st_size else {"analysis": None}

    def recommended() -> Mapping[str, Any]:
        results = json.loads(command("recommend", as_file(family, "b.yaml"), "--json", "--quiet", "--no-cache"))
        return {} if results["method"] else {"recommendation": None}

    def reported() -> Mapping[str, Any]:
        out, page = merge(family, "reported"), family.folder / "report.html"
        command("report", out, "--html", page, "--quiet", "--no-cache")
        return {} if page.stat().st_size else {"report": None}

    sides: dict[str, Side] = {"merge": merged, "analyze": analyzed, "report": reported}
    return {**sides, "recommend": recommended} if len(family.agents) > 1 else sides  # of one there is no merge


@relation("any form is a plain model")
def plain_models(family: Family) -> dict[str, Side] | None:
    """An analysis of agents in any form is that of the same agents as plain folders."""
    # steps of a soup are those of float32, whatever its checkpoints are
    if not family.has_reference or not is_surveyed(family) or "soup" in family.features:
        return None

    def figures(recipe: Any) -> Mapping[str, Any]:
        results = ramerge.analyze(recipe, options=OPTIONS).to_dict()
        return {each["name"]: repr(each) for each in results["tensors"]}

    def plain() -> Mapping[str, Any]:
        keys = {key: value for key, value in family.recipe.items() if key not in ("rename", "allow")}
        write_checkpoint(family.folder / "plain" / "base", family.base)
        keys["base"], keys["agents"] = str(family.folder / "plain" / "base"), {}
        for name, tensors in family.agents.items():
            write_checkpoint(family.folder / "plain" / name, tensors)
            sides = {"importance": str(family.folder / f"{name}-plain")} if family.importances else {}
            if sides:
                write_checkpoint(family.folder / f"{name}-plain", family.importances[name])
            keys["agents"][name] = {"model": str(family.folder / "plain" / name), **sides}
        return figures(keys)

    return {"forms": lambda: figures(family.recipe), "plain": plain}


@relation("analyze counts what merge counts")
def analyzed(family: Family) -> dict[str, Side] | None:
    """The densities of an analysis are those of the record."""
    # an analysis counts all tensors, and a merge those of the method
    if not family.recipe["method"].startswith("ram") or "rules" in family.recipe or not is_surveyed(family):
        return None

    def analysis() -> Mapping[str, Any]:
        results = ramerge.analyze(family.recipe, options=OPTIONS)
        return {name: round(agent.density, 12) for name, agent in results.agents.items()}

    def by_command() -> Mapping[str, Any]:
        results = json.loads(command("analyze", as_file(family), "--json", "--quiet", "--no-cache"))
        return {agent["name"]: round(agent["density"], 12) for agent in results["model"]["agents"]}

    def merged() -> Mapping[str, Any]:
        record = ramerge.merge(family.recipe, family.folder / "out", options=OPTIONS)
        return {name: round(agent.density, 12) for name, agent in record.agents.items()}

    return {"analyze": analysis, "command": by_command, "merge": merged}
