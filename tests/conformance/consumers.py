"""Whoever reads a recipe or models, by what it reads, and every key of a recipe: how each is tried, and what it does.

A cell of the table says what a consumer does with a key: `applies`, `noted` (it says that it has no use for it),
`refused` (by a message that names it), `ignored` (in silence, which may only become rarer), or that there is no way to
give it the key.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ramerge
from ramerge.calibration.live_base import LiveBase
from ramerge.sdk.recipes import models_only, open_recipe
from tests.analysis.families import write_family
from tests.checkpoints import floats, read_checkpoint, read_safetensors, write_checkpoint, write_inputs
from tests.commands import REFUSALS, in_process
from tests.conformance.test_memory import arrays, bits, bits_of
from tests.conformance.test_merge import importances_for, inputs_for
from tests.deltas.writing import write_delta
from tests.formats.test_lora import write_adapter
from tests.reference import Stored

CELLS = Path(__file__).with_name("cells.json")
"""The table; docs/reference/keys.md shows it."""
Tensors = Mapping[str, Stored]
EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"
NAMES = tuple(f"model.layers.{layer}.weight" for layer in range(3))
OPTIONS = ramerge.Options(cache=False, threads=1)


@dataclass
class Try:
    """A recipe with a key, the same without it, and where there is one a recipe without it that means the same."""

    recipe: dict[str, Any]
    without: dict[str, Any]
    plain: dict[str, Any] | None = None


@dataclass
class Outcome:
    """The result of a consumer with a recipe.

    Attributes:
        values: what is compared.
        output: all that it printed and recorded.
        tensors: of a consumer that merges, the merged tensors.
        places: where the models are, which tells a recipe from another whose models hold the same.
    """

    values: Any
    output: str = ""
    tensors: Any = None
    places: Any = None


class NotTakenError(Exception):
    """There is no way to give a consumer what a recipe says."""


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass
class Models:
    """A base and two agents under a folder, of which keys change some.

    Attributes:
        folder: where they are.
        base, code, tool: their tensors.
    """

    folder: Path
    base: Tensors = field(default_factory=dict)
    code: Tensors = field(default_factory=dict)
    tool: Tensors = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(3)
        shapes = {EMBEDDING: (10, 16), **dict.fromkeys(NAMES, (12, 16)), NORM: (16,)}
        base = {name: rng.normal(0, 0.02, shape) for name, shape in shapes.items()}
        for name, share in (("base", 0.0), ("code", 0.3), ("tool", 0.6)):
            moved = {
                key: floats(value + rng.normal(0, 0.01, value.shape) * (rng.random(value.shape) < share))
                for key, value in base.items()
            }
            setattr(self, name, moved)
            self.write(name, moved)
        self.base, self.code, self.tool = (read_checkpoint(self.folder / name) for name in ("base", "code", "tool"))

    def write(self, name: str, tensors: Tensors, **config: Any) -> str:
        """Write a model, with files that go with it."""
        usual = {"model_type": "test", "torch_dtype": "bfloat16", "vocab_size": tensors[EMBEDDING].bits.shape[0]}
        place = write_checkpoint(self.folder / name, tensors, config={**usual, **config})
        self.tokens(name)
        (place / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "_from": name}))
        return str(place)

    def tokens(self, name: str, *others: str) -> None:
        """Give a model a tokenizer, with other tokens in its last rows."""
        words = {f"t{place}": place for place in range(10 - len(others))}
        added = [{"id": len(words) + place, "content": text} for place, text in enumerate(others)]
        text = json.dumps({"model": {"vocab": words}, "added_tokens": added})
        (self.folder / name / "tokenizer.json").write_text(text)

    def recipe(self, **keys: Any) -> dict[str, Any]:
        """The recipe of all models, with some keys."""
        agents = {name: str(self.folder / name) for name in ("code", "tool")}
        return {"method": "ram+", "base": str(self.folder / "base"), "agents": agents, **keys}

    def code_as(self, entry: Any, **keys: Any) -> dict[str, Any]:
        """The recipe with another agent `code`."""
        recipe = self.recipe(**keys)
        recipe["agents"] = {**recipe["agents"], "code": entry}
        return recipe


# --- keys -------------------------------------------------------------------------------------------------------------

KEYS: dict[str, Callable[[Models], Try]] = {}
"""By name, as a recipe spells it: how it is tried."""


def key(name: str) -> Callable[[Callable[[Models], Try]], Callable[[Models], Try]]:
    """Add a key."""

    def add(function: Callable[[Models], Try]) -> Callable[[Models], Try]:
        KEYS[name] = function
        return function

    return add


def plainly(name: str, *, start: Mapping[str, Any] | None = None, **value: Any) -> None:
    """Add keys whose effect shows without other models."""

    def tried(models: Models) -> Try:
        before = models.recipe(**(start or {}))
        return Try({**before, **value}, before)

    key(name)(tried)


plainly("method", method="ram")
plainly("parameters", parameters={"r": 0.9})
plainly("preset", preset="official")
plainly("dtype", dtype="float16")
plainly("companions", companions="tool")
plainly("shard_size", shard_size=1500)
plainly("rules.match", rules=[{"match": NAMES[0], "keep": "base"}])
plainly("rules.keep", rules=[{"match": NAMES[0], "keep": "base"}])
plainly("rules.take", rules=[{"match": NAMES[0], "take": "tool"}])
plainly("rules.parameters", rules=[{"match": NAMES[0], "parameters": {"r": 0.9}}])
plainly("rules.dtype", rules=[{"match": NAMES[0], "dtype": "float16"}])
plainly("rules.layers", rules=[{"layers": "0", "keep": "base"}])


def _wide(models: Models) -> str:
    """An agent in float32, with numbers that bfloat16 does not have."""
    wide = {name: floats(tensor.numbers(np.float64) * 1.001, "F32") for name, tensor in models.code.items()}
    return models.write("wide", wide)


@key("rounding")
def _rounding(models: Models) -> Try:
    wide = _wide(models)
    return Try(models.code_as(wide, rounding="stochastic"), models.code_as(wide))


@key("rounding_seed")
def _seed(models: Models) -> Try:
    wide = _wide(models)
    drawn = models.code_as(wide, rounding="stochastic", rounding_seed=5)
    return Try(drawn, models.code_as(wide, rounding="stochastic"))


@key("base")
def _base(models: Models) -> Try:
    other = models.write("other-base", {**models.base, NORM: models.tool[NORM]})
    return Try(models.recipe(base=other), models.recipe())


@key("agents")
def _agents(models: Models) -> Try:
    other = models.write("other", {**models.code, NORM: models.base[NORM]})
    return Try(models.code_as(other), models.recipe())


def _factors(models: Models) -> tuple[Path, str]:
    """An adapter, and the model that it gives, whose numbers bfloat16 has."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(-1, 2, (4, 16)), rng.integers(-8, 9, (12, 4)) / 256
    stem = f"base_model.model.{NAMES[0].removesuffix('.weight')}"
    factors = {f"{stem}.lora_A.weight": floats(a, "F32"), f"{stem}.lora_B.weight": floats(b, "F32")}
    start = rng.integers(-32, 33, (12, 16)) / 256
    models.write("base", {**models.base, NAMES[0]: floats(start)})
    whole = {**models.base, NAMES[0]: floats(start + 2 * (b @ a))}
    return write_adapter(models.folder / "adapter", factors), models.write("whole", whole)


@key("agents: ADAPTER")
def _adapter(models: Models) -> Try:
    adapter, whole = _factors(models)
    return Try(models.code_as(str(adapter)), models.recipe(), models.code_as(whole))


@key("agents: MODEL+ADAPTER")
def _on_base(models: Models) -> Try:
    adapter, whole = _factors(models)
    return Try(models.code_as(f"{models.folder / 'base'}+{adapter}"), models.recipe(), models.code_as(whole))


@key("agents.delta")
def _delta(models: Models) -> Try:
    other = models.write("other", {**models.code, NORM: models.base[NORM]})
    delta = write_delta(models.folder / "delta", models.folder / "base", Path(other))
    return Try(models.code_as({"delta": str(delta)}), models.recipe(), models.code_as(other))


@key("agents.over")
def _over(models: Models) -> Try:
    other = models.write("other", {**models.tool, NORM: models.base[NORM]})
    delta = write_delta(models.folder / "delta", models.folder / "code", Path(other))
    recipe, plain = models.recipe(), models.recipe()
    recipe["agents"]["tool"] = {"delta": str(delta), "over": "code"}
    plain["agents"]["tool"] = other
    return Try(recipe, models.recipe(), plain)


@key("agents.soup")
def _soup(models: Models) -> Try:
    other = models.write("other", {**models.code, NORM: models.base[NORM]})
    soup = {"soup": {"method": "uniform", "agents": {"step-1": other, "step-2": other}}}
    return Try(models.code_as(soup), models.recipe(), models.code_as(other))


@key("agents.importance")
def _importance(models: Models) -> Try:
    recipe = models.recipe(method="fisher")
    for name, tensors in importances_for({"code": models.code, "tool": models.tool}).items():
        place = write_checkpoint(models.folder / f"{name}-importance", tensors)
        recipe["agents"][name] = {"model": recipe["agents"][name], "importance": str(place)}
    return Try(recipe, models.recipe(method="fisher"))


@key("agents.inputs")
def _inputs(models: Models) -> Try:
    recipe = models.recipe(method="regmean")
    for place, (name, tensors) in enumerate({"code": models.code, "tool": models.tool}.items()):
        recorded = {weight: rows for weight, rows in inputs_for(tensors, place).items() if "layers" in weight}
        folder = write_inputs(models.folder / f"{name}-inputs", recorded, models.folder / name)
        recipe["agents"][name] = {"model": recipe["agents"][name], "inputs": str(folder)}
    return Try(recipe, models.recipe(method="regmean"))


@key("prompts")
def _prompts(models: Models) -> Try:
    for name in ("code", "tool"):
        (models.folder / f"{name}.jsonl").write_text(json.dumps({"prompt": "t1 t2"}) + "\n")
    prompts = {name: str(models.folder / f"{name}.jsonl") for name in ("code", "tool")}
    return Try(models.recipe(prompts=prompts), models.recipe())


@key("rename")
def _rename(models: Models) -> Try:
    named = {name.replace("model.layers.", "trunk.part_"): each for name, each in models.code.items()}
    place = write_checkpoint(models.folder / "named", named)
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        shutil.copyfile(models.folder / "code" / name, place / name)
    rename = [{"from": r"^trunk\.part_", "to": "model.layers."}]
    return Try(models.code_as(str(place), rename=rename), models.code_as(str(place)), models.recipe())


def _allowed(models: Models, value: Any, read: Any, seen: Any = None, **keys: Any) -> Try:
    plain = None if seen is None else models.code_as(seen)
    return Try(models.code_as(read, allow=value, **keys), models.code_as(read, **keys), plain)


@key("allow.missing_tensors")
def _missing(models: Models) -> Try:
    lacking = {name: tensor for name, tensor in models.code.items() if name != NAMES[0]}
    read = models.write("lacking", lacking)
    seen = models.write("seen", {**models.code, NAMES[0]: models.base[NAMES[0]]})
    return _allowed(models, {"missing_tensors": True}, read, seen)


@key("allow.extra_tensors")
def _extra(models: Models) -> Try:
    read = models.write("more", {**models.code, "value_head.weight": models.base[NORM]})
    return _allowed(models, {"extra_tensors": True}, read, str(models.folder / "code"))


@key("allow.different_shapes")
def _shapes(models: Models) -> Try:
    read = models.write("shapes", {**models.code, NAMES[0]: floats(np.ones((3, 16)))})
    seen = models.write("seen", {**models.code, NAMES[0]: models.base[NAMES[0]]})
    return _allowed(models, {"different_shapes": True}, read, seen)


@key("allow.different_tokens")
def _tokens(models: Models) -> Try:
    read = models.write("tokens", models.code)
    models.tokens("tokens", "<x>")
    return _allowed(models, {"different_tokens": True}, read, str(models.folder / "code"))


@key("allow.vocabulary")
def _vocabulary(models: Models) -> Try:
    rows = np.concatenate([models.code[EMBEDDING].numbers(np.float64), np.full((2, 16), 0.25)])
    read = models.write("vocabulary", {**models.code, EMBEDDING: floats(rows)})
    return _allowed(models, {"vocabulary": "common"}, read)


@key("allow.config")
def _config(models: Models) -> Try:
    models.write("base", models.base, rope_theta=10000.0)
    models.write("tool", models.tool, rope_theta=10000.0)
    models.write("code", models.code, rope_theta=10000.0)
    read = models.write("rope", models.code, rope_theta=500000.0)
    return _allowed(models, {"config": ["rope_theta"]}, read, str(models.folder / "code"))


@key("allow.non_finite")
def _non_finite(models: Models) -> Try:
    values = models.code[NAMES[0]].numbers(np.float64)
    values[0, 0] = np.inf
    return _allowed(models, {"non_finite": True}, models.write("inf", {**models.code, NAMES[0]: floats(values)}))


@key("allow.outside_links")
def _links(models: Models) -> Try:
    read = Path(models.write("linked", models.code))
    (read / "model.safetensors").unlink()
    (read / "model.safetensors").symlink_to(models.folder / "code" / "model.safetensors")
    return _allowed(models, {"outside_links": True}, str(read), str(models.folder / "code"))


@key("allow.swapped_base")
def _swapped(models: Models) -> Try:
    """The base is an agent, and an agent the base that all were trained from."""
    swapped = models.code_as(str(models.folder / "base"), base=str(models.folder / "code"))
    return Try({**swapped, "allow": {"swapped_base": True}}, swapped)


@key("allow.other_base")
def _other_base(models: Models) -> Try:
    """An agent was trained from another model; only larger ones tell."""
    for name in ("base", *write_family(models.folder, "foreign")):
        models.tokens(name)
        (models.folder / name / "generation_config.json").write_text("{}")
    return _allowed(models, {"other_base": True}, str(models.folder / "memory"))


# --- consumers --------------------------------------------------------------------------------------------------------

Consumer = Callable[[Path, "dict[str, Any]"], Outcome]
CONSUMERS: dict[str, Consumer] = {}
"""By name, as a column of the table: reads a recipe, and writes into a new folder."""
NO_CONSUMERS = {
    "clean": "reads no model",
    "demo": "merges models of its own with `merge`",
    "eval": "asks servers of models",
    "handoff": "names the models of a finished merge for a trainer, and opens none",
    "methods": "reads no model",
    "table": "reads scores",
    "ui": "runs the functions of the other commands",
}
"""Commands that read neither recipes nor weights, and why."""


def consumer(name: str) -> Callable[[Consumer], Consumer]:
    """Add a consumer."""

    def add(function: Consumer) -> Consumer:
        CONSUMERS[name] = function
        return function

    return add


def as_file(folder: Path, recipe: Mapping[str, Any]) -> Path:
    """A recipe's file in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder / "recipe.yaml"


def files(folder: Path) -> dict[str, Any]:
    """A checkpoint's tensors, how many files they are in, and the files that go with them."""
    others = {name: (folder / name).read_bytes() for name in ("tokenizer.json", "generation_config.json")}
    return {**bits_of(folder), **others, "shards": len([*folder.glob("*.safetensors")])}


def notes_of(folder: Path) -> str:
    """All that the record of a merge says of it."""
    results = json.loads((folder / "ramerge.json").read_text())
    return "\n".join([*results.get("notes", []), *results.get("warnings", [])])


@consumer("merge")
def _merge(folder: Path, recipe: dict[str, Any]) -> Outcome:
    out = folder / "out"
    output = in_process("merge", as_file(folder, recipe), out, "--no-cache")
    return Outcome(files(out), "\n".join([*output, notes_of(out)]), bits_of(out))


@consumer("plan")
def _plan(folder: Path, recipe: dict[str, Any]) -> Outcome:
    output = in_process("plan", as_file(folder, recipe), "--json", "--no-cache")
    results = json.loads(output[0])
    notes = "\n".join([*results.pop("notes"), *results.pop("warnings")])
    kept = (
        "method",
        "parameters",
        "tensors",
        "merged_tensors",
        "rounding",
        "rounding_seed",
        "dtypes",
        "shards",
        "rules",
    )
    values = {name: results[name] for name in (*kept, "bytes_written")}
    return Outcome(values, "\n".join([output[1], notes]), places=[results["base"], results["agents"]])


USUAL = {"fisher": ("scale", 1.0), "regmean": ("ridge", 0.01)}
"""By method a parameter and its default; of the others it is `epsilon`."""


@consumer("sweep")
def _sweep(folder: Path, recipe: dict[str, Any]) -> Outcome:
    name, usual = USUAL.get(recipe["method"], ("epsilon", 1e-5))
    out, values = folder / "out", [usual, 0.5 * usual]
    output = in_process("sweep", as_file(folder, recipe), out, "--no-cache", "--vary", f"parameters.{name}={values}")
    points = [path.parent for path in sorted(out.glob("*/ramerge.json"))]
    records = [json.loads((point / "ramerge.json").read_text())["parameters"][name] for point in points]
    notes = notes_of(points[0])
    point = bits_of(points[records.index(usual)])
    return Outcome([files(point) for point in points], "\n".join([*output, notes]), point)


def _figures(results: Mapping[str, Any]) -> Any:
    """The figures of an analysis that follow from what was read."""
    parts = [{key: value for key, value in part.items() if key != "file"} for part in results["tensors"]]
    return [parts, results["dtype"], results["rounding"], results["thresholds"], results["method"], results["layers"]]


@consumer("analyze")
def _analyze(folder: Path, recipe: dict[str, Any]) -> Outcome:
    output = in_process("analyze", as_file(folder, recipe), "--json", "--no-cache")
    results = json.loads(output[0])
    return Outcome(_figures(results), "\n".join([output[1], *results["notes"], *results["warnings"]]))


@consumer("recommend")
def _recommend(folder: Path, recipe: dict[str, Any]) -> Outcome:
    output = in_process("recommend", as_file(folder, recipe), "--json", "--no-cache")
    results = json.loads(output[0])
    kept = {name: value for name, value in results.items() if name not in ("merge", "search", "notes")}
    command = results["merge"].partition(" OUT")[0].replace(str(folder), "")
    return Outcome(_without_paths(kept, recipe), "\n".join([output[1], *results["notes"]]), places=command)


def _without_paths(results: Any, recipe: Mapping[str, Any]) -> Any:
    """Values without the names of models."""
    text = json.dumps(results)
    for place in (recipe["base"], *recipe["agents"].values()):
        if isinstance(place, str):
            text = text.replace(place, "MODEL")
    return text


@consumer("report")
def _report(folder: Path, recipe: dict[str, Any]) -> Outcome:
    out = folder / "out"
    ramerge.merge(recipe, out, options=OPTIONS)
    output = in_process("report", out, "--json", "--html", folder / "page.html", "--no-cache")
    results = json.loads(output[0])
    return Outcome(_figures(results), "\n".join([output[1], *results["notes"], *results["warnings"]]))


@consumer("search")
def _search(folder: Path, recipe: dict[str, Any]) -> Outcome:
    out = folder / "out"
    name, usual = USUAL.get(recipe["method"], ("epsilon", 1e-5))
    folder.mkdir(parents=True, exist_ok=True)
    results = ramerge.search(
        recipe,
        out,
        lambda model: {"size": 1.0},
        vary={f"parameters.{name}": [usual]},
        settings=ramerge.SearchSettings(html=False),
        options=OPTIONS,
    )
    best = out / "best"
    return Outcome(files(best), "\n".join([*results.notes, notes_of(best)]), bits_of(best))


@consumer("calibrate")
def _calibrate(folder: Path, recipe: dict[str, Any]) -> Outcome:
    prompts = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name in recipe["agents"]:
        (folder / f"{name}.jsonl").write_text(json.dumps({"prompt": "t1 t2"}) + "\n")
        prompts[name] = str(folder / f"{name}.jsonl")
    whole = {"prompts": prompts, **recipe}
    output = in_process("calibrate", as_file(folder, whole), "--dry-run", "--json")
    reader = LiveBase(models_only(open_recipe(whole)), ramerge.CalibrationSettings(), OPTIONS)
    read = {
        name: {
            each.name: (each.dtype, each.data.tobytes())
            for each in reader._plan_without_problems(reader._recipe_of_agent(name)).tensors()
        }
        for name in recipe["agents"]
    }
    base = {
        each.name: each.data.tobytes() for each in reader._plan_without_problems(reader._recipe_of_base()).tensors()
    }
    return Outcome([read, base], output[1])


def _flags(recipe: Mapping[str, Any], *names: str) -> list[str]:
    """The flags of a recipe's keys for a command that has these.

    Raises:
        NotTakenError: the recipe has other keys.
    """
    rest = {
        name: value
        for name, value in recipe.items()
        if name not in ("base", "agents") and (name, value) != ("method", "ram+")
    }
    if others := rest.keys() - {*names}:
        raise NotTakenError(*others)
    return [word for name, value in rest.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _one(recipe: Mapping[str, Any], name: str = "code") -> str:
    """The text that names an agent, of a recipe of which all agents have one.

    Raises:
        NotTakenError: there is none.
    """
    for agent in recipe["agents"].values():
        if isinstance(agent, Mapping) and agent.keys() != {"delta"}:
            raise NotTakenError(*agent)
    agent = recipe["agents"][name]
    return str(agent["delta"] if isinstance(agent, Mapping) else agent)


@consumer("soup")
def _make_soup(folder: Path, recipe: dict[str, Any]) -> Outcome:
    out, run, rest = folder / "out", folder / "run", dict(recipe)
    allowed = [
        word for name, value in rest.pop("allow", {}).items() for word in ("--set", f"allow.{name}={json.dumps(value)}")
    ]
    words = _flags(rest, "dtype", "rounding", "shard_size")
    run.mkdir(parents=True)
    for place, name in enumerate(recipe["agents"], 1):
        if "+" in (model := _one(recipe, name)):
            raise NotTakenError(model)
        shutil.copytree(model, run / f"global_step_{place}", symlinks=True)
    output = in_process("soup", run, out, "--base", recipe["base"], *words, *allowed, "--no-cache")
    return Outcome(files(out), "\n".join([*output, notes_of(out)]))


@consumer("convert")
def _convert(folder: Path, recipe: dict[str, Any]) -> Outcome:
    options = {key: recipe[key] for key in ("dtype", "rounding", "shard_size") if key in recipe}
    words = _flags(options, *options)
    for key in sorted(recipe.keys() - {"base", "agents", *options}):
        if key in ("parameters", "preset", "prompts") or (key == "method" and recipe[key] != "ram+"):
            raise NotTakenError(key)
        words += ["--set", f"{key}={json.dumps(recipe[key])}"] if key != "method" else []
    output = in_process("convert", _one(recipe), folder / "out", "--base", recipe["base"], *words, "--no-cache")
    return Outcome(files(folder / "out"), "\n".join([*output, notes_of(folder / "out")]))


@consumer("delta, apply")
def _delta_and_apply(folder: Path, recipe: dict[str, Any]) -> Outcome:
    words = ["--base", recipe["base"], *_flags(recipe)]
    output = in_process("delta", *words, "--agent", f"code={_one(recipe)}", folder / "delta")
    again = in_process("apply", *words, folder / "delta", folder / "out")
    size = sum(path.stat().st_size for path in (folder / "delta").glob("*.safetensors"))
    return Outcome(bits_of(folder / "out"), "\n".join([*output, *again]), places=size)


@consumer("as-delta")
def _as_delta(folder: Path, recipe: dict[str, Any]) -> Outcome:
    output = in_process("merge", as_file(folder, recipe), folder / "delta", "--as-delta", "--no-cache")
    ramerge.apply(recipe["base"], folder / "delta", folder / "out")
    notes = "".join(path.read_text() for path in (folder / "delta").glob("ramerge.json"))
    return Outcome(files(folder / "out"), "\n".join([*output, notes]), bits_of(folder / "out"))


@consumer("as-adapter")
def _as_adapter(folder: Path, recipe: dict[str, Any]) -> Outcome:
    words = ["--as-adapter", "--save-modules", "--rank", "16"]
    output = in_process("merge", as_file(folder, recipe), folder / "adapter", *words, "--no-cache")
    ramerge.convert(folder / "adapter", folder / "out", base=recipe["base"], dtype="float32", options=OPTIONS)
    names = [path.name for path in (folder / "adapter").iterdir()]
    stored = {name: tensor[0] for name, tensor in _adapter_tensors(folder / "adapter").items()}
    others = {name: (folder / "adapter" / name).read_bytes() for name in names if name.startswith(("tok", "gen"))}
    return Outcome([bits_of(folder / "out"), stored, others], "\n".join([*output, notes_of(folder / "adapter")]))


def _adapter_tensors(folder: Path) -> dict[str, Any]:
    """Dtype and shape of each tensor of an adapter."""
    return {
        name: (one.dtype, one.bits.shape)
        for name, one in read_safetensors(folder / "adapter_model.safetensors").items()
    }


@consumer("state dicts")
def _state_dicts(folder: Path, recipe: dict[str, Any]) -> Outcome:
    rest = {name: value for name, value in recipe.items() if name not in ("base", "agents", "method", "parameters")}
    agents: dict[str, Any] = {}
    for name, agent in recipe["agents"].items():
        entry = {"model": agent} if isinstance(agent, str) else dict(agent)
        for side in ("model", "importance"):
            with suppress(KeyError):
                if not (Path(entry[side]) / "model.safetensors").exists():
                    raise NotTakenError(entry[side])
                entry[side] = arrays(read_checkpoint(Path(entry[side])))
        if "inputs" in entry:
            raise NotTakenError("inputs")  # of rows in memory: tests/conformance/test_memory.py
        agents[name] = entry if entry.keys() != {"model"} else entry["model"]
    base = arrays(read_checkpoint(Path(recipe["base"])))
    parameters = recipe.get("parameters", {})
    results = ramerge.merge_state_dicts(base, agents, recipe["method"], recipe=rest, options=OPTIONS, **parameters)
    return Outcome(bits(results), "\n".join([*results.record.notes, *results.record.warnings]), bits(results))


# --- cells ------------------------------------------------------------------------------------------------------------

SAME_AS_MERGE = ("sweep", "search", "as-delta", "state dicts")
"""Consumers whose tensors are those of `merge` of the same recipe."""


TRIED_ELSEWHERE = {("prompts", "recommend"), ("prompts", "search"), ("prompts", "calibrate")}
"""Cells that apply, for which agents reply: tests/calibration/test_allowed.py, tests/searches/test_prompted.py."""
OTHER_FORM = {
    (key, consumer)
    for key in ("agents: ADAPTER", "agents: MODEL+ADAPTER")
    for consumer in ("recommend", "delta, apply")
}
"""Cells that apply, where the form itself counts: adapters are recommended other methods; their deltas are float32."""


def cell(tried_key: Try, folder: Path, name: str, consumer: str) -> str:
    """Try what a consumer does with a key: `applies`, `noted`, `refused`, `ignored`, or `-` if it cannot be given.

    Args:
        tried_key: how the key is tried.
        folder: a new folder, but for `merge`, where the merge of the recipe is once it is recipe.
        name: the key.
        consumer: the consumer.

    Raises:
        AssertionError: it applies, but not as for a merge, or not as models do that hold the same.
    """
    if (name, consumer) in TRIED_ELSEWHERE:
        return "applies"
    consume, place = CONSUMERS[consumer], folder / consumer.partition(",")[0]
    try:
        outcome = consume(place / "with", tried_key.recipe)
    except NotTakenError:
        return "-"
    except REFUSALS as error:
        output = str(error)
        words = (name.rpartition(".")[2], name.partition(".")[0], name.rpartition(" ")[2].lower())
        assert any(word in output for word in words), output
        return "refused"
    if consumer in SAME_AS_MERGE:
        assert outcome.tensors == bits_of(folder / "merge/with/out"), "its tensors are not those of the merge"
    try:
        before = consume(place / "without", tried_key.without)
    except REFUSALS:
        before = Outcome(None)
    is_same = before.values == outcome.values and before.places == outcome.places
    if tried_key.plain is not None and not is_same and (name, consumer) not in OTHER_FORM:
        plain = consume(place / "plain", tried_key.plain)
        assert outcome.values == plain.values, "its result is not that of models that hold the same"
    if not is_same:
        return "applies"
    others = {line.replace(str(place / "without"), "") for line in before.output.splitlines()}
    lines = [line.replace(str(place / "with"), "") for line in outcome.output.splitlines()]
    key = name.rpartition(".")[2]
    noted = any(
        key in line and (line not in others or "has no effect" in line or "have no effect" in line) for line in lines
    )
    return "noted" if noted else "ignored"


def row(folder: Path, name: str, consumers: Iterable[str]) -> dict[str, str]:
    """The cells of a key, in a new folder; an assertion that fails is a cell, too."""
    tried_key, results = KEYS[name](Models(folder / "models")), {}
    for consumer in dict.fromkeys(["merge", *consumers]):
        try:
            results[consumer] = cell(tried_key, folder, name, consumer)
        except AssertionError as error:
            results[consumer] = f"wrong: {error}"
    return results


def write(keys: Iterable[str]) -> None:
    """Try some keys with all consumers, and write their rows."""
    rows = json.loads(CELLS.read_text()) if CELLS.exists() else {}
    for name in keys:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = row(Path(folder), name, CONSUMERS)
        CELLS.write_text(json.dumps({name: rows[name] for name in KEYS if name in rows}, indent=1) + "\n")
        print(name, rows[name], flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with np.errstate(all="ignore"):
        write(sys.argv[1:] or KEYS)
