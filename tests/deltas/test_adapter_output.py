"""Merges that are written as LoRA adapters: what PEFT makes of them, what is lost, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

import ramerge
from ramerge.cli.main import cli
from ramerge.deltas import adapter_output
from tests.checkpoints import (
    floats,
    read_checkpoint,
    read_safetensors,
    recipe,
    simple,
    write_checkpoint,
    write_simple,
)
from tests.formats.test_adapters import Writer, units, values_of
from tests.formats.test_lora import UP, factors, of_embeddings, write_adapter, write_base
from tests.messages import Messages
from tests.reference import Stored
from tests.tiers import some

# PEFT uses what transformers deprecates, and warns of embeddings that are tied
pytestmark = pytest.mark.filterwarnings("ignore")

_MODULES = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
    "tied": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
}


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return Writer(tmp_path_factory.mktemp("peft"))


def drawn(writer: Writer, seed: int) -> tuple[str, dict[str, Any]]:
    """A base, and the recipe of a sum of adapters on it, as different as PEFT makes them."""
    draw = random.Random(seed)
    base = draw.choice(list(_MODULES))
    agents = {}
    for number in range(draw.randint(1, 3)):
        targets = draw.sample(_MODULES[base], draw.randint(1, len(_MODULES[base])))
        options: dict[str, Any] = {
            "r": draw.randint(1, 6),
            "lora_alpha": draw.choice([1, 8, 20]),
            "use_rslora": draw.random() < 0.5,
            "target_modules": targets,
            "fan_in_fan_out": base == "gpt2",
        }
        if draw.random() < 0.5:
            options |= {"rank_pattern": {targets[0]: draw.randint(1, 8)}, "alpha_pattern": {targets[-1]: 5}}
        agents[f"a{number}"] = str(writer.adapter(f"{seed} {number}", base, options))
    weights = {name: draw.choice([1.0, 0.3, -0.7, 2.0]) for name in agents}
    parameters: dict[str, Any] = {"weights": weights, "normalize": draw.random() < 0.3}
    method = "task_arithmetic"
    if draw.random() < 0.2 and abs(sum(weights.values())) > 0.1:
        method, parameters["normalize"] = "linear", True
    else:
        parameters["scale"] = draw.choice([1.0, 0.5, -1.5])
    allow = {"other_base": True, "swapped_base": True}  # adapters may be large
    models = {"base": str(writer.base(base)), "agents": agents, "allow": allow}
    return base, {**models, "method": method, "parameters": parameters}


@pytest.mark.needs("torch", "peft")
@pytest.mark.parametrize("seed", some(range(50), full=range(12)))
def test_peft_merges_a_sum_of_adapters_exactly(seed: int, writer: Writer, tmp_path: Path) -> None:
    base, source = drawn(writer, seed)
    record = ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter())
    ramerge.merge(source, tmp_path / "full")
    assert all(layer["exact"] and not layer["error"] for layer in record.adapter.values())
    merged, full, start = (
        writer.merged(base, tmp_path / "adapter"),
        values_of(tmp_path / "full"),
        values_of(writer.base(base)),
    )
    assert merged.keys() == full.keys()
    for name, values in full.items():
        # a product of two factors is rounded as often as it has terms, in the order that a library likes
        size = np.abs(values - start[name]).max(initial=0)
        allowed = 4e-6 * size + 2 * np.spacing(np.abs(values).max(initial=0))
        assert np.abs(merged[name] - values).max(initial=0) <= allowed
        if source["method"] != "linear":  # a mean of equal numbers is rounded
            assert (values == start[name]).all() == (merged[name] == start[name]).all()


def error(found: Any, full: Any, start: Any) -> float:
    return float(np.linalg.norm((found - full).astype(np.float64)) / np.linalg.norm((full - start).astype(np.float64)))


@pytest.mark.needs("torch", "peft")
@pytest.mark.parametrize("asked", [{"rank": 2}, {"energy": 0.9}, {"rank": 5}, {"energy": 0.999}])
@pytest.mark.parametrize("method", ["task_arithmetic", "ram+", "tsvm"])
def test_peft_loads_it_to_the_stated_error(asked: dict[str, Any], method: str, writer: Writer, tmp_path: Path) -> None:
    targets = {"a": ["q_proj", "v_proj", "lm_head"], "b": ["q_proj", "down_proj"]}
    agents = {name: str(writer.adapter(f"lossy {name}", "llama", {"target_modules": targets[name]})) for name in "ab"}
    source = {"base": str(writer.base("llama")), "agents": agents, "method": method}
    record = ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter(**asked))
    ramerge.merge(source, tmp_path / "full")
    merged, full = writer.merged("llama", tmp_path / "adapter"), values_of(tmp_path / "full")
    start = values_of(writer.base("llama"))
    moved = [name for name in full if (full[name] != start[name]).any()]
    assert [f"{module}.weight" for module in sorted(record.adapter)] == sorted(moved)
    for name in moved:
        stated = record.adapter[name.removesuffix(".weight")]
        assert error(merged[name], full[name], start[name]) == pytest.approx(stated["error"], rel=1e-3, abs=2e-5)
        if "energy" in asked:
            assert stated["error"] <= np.sqrt(1 - asked["energy"]) + 1e-6
        else:
            assert stated["rank"] <= asked["rank"]
    said = record.notes[-1]
    assert said.startswith("written as a LoRA adapter of rank")
    served = [note for note in record.notes if "vLLM serves it with --enable-lora --max-lora-rank" in note]
    assert len(served) == 1 and (said in served) == ("rank" not in asked)
    # ramerge reads it as PEFT does
    ramerge.convert(f"{writer.base('llama')}+{tmp_path / 'adapter'}", tmp_path / "read")
    found = values_of(tmp_path / "read")
    assert all(units(found[name], merged[name], start[name]) <= 2 for name in full)


@pytest.mark.needs("torch", "peft")
@pytest.mark.parametrize("base", ["llama", "tied", "gpt2"])
def test_what_is_no_matrix_is_saved_whole(base: str, writer: Writer, tmp_path: Path, messages: Messages) -> None:
    """Agents that training moved everywhere: norms, biases and embeddings, as modules_to_save."""
    start = values_of(writer.base(base))
    rng = np.random.default_rng(0)
    config = json.loads((writer.base(base) / "config.json").read_text())
    for name in "ab":
        moved = {key: floats(values + 0.01 * rng.standard_normal(values.shape), "F32") for key, values in start.items()}
        write_checkpoint(tmp_path / name, moved, config=config)
    source = recipe(tmp_path, ["a", "b"], "task_arithmetic") | {"base": str(writer.base(base))}
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=64))
    assert not (tmp_path / "adapter").exists()
    notes = " ".join(ramerge.plan(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=64)).notes)
    assert "norms, biases and embeddings are refused if the merge moves them (--save-modules saves them)" in notes
    record = ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=64, save_modules=True))
    assert all("modules_to_save" in note for note in record.notes if "vLLM" in note)
    ramerge.merge(source, tmp_path / "full")
    merged, full = writer.merged(base, tmp_path / "adapter"), values_of(tmp_path / "full")
    if base == "gpt2":  # PEFT keeps its copies apart
        assert np.array_equal(merged.pop("lm_head.weight"), merged["transformer.wte.weight"])
    assert merged.keys() == full.keys()
    for name in full:
        assert error(merged[name], full[name], start[name]) < 1e-5, name
    assert "modules_to_save; " in record.notes[-1]
    assert "vLLM does not serve adapters with modules_to_save" in record.notes[-1]


def test_changed_norms_are_refused_before_factoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    for seed, folder in enumerate(("base", "code")):
        norm = floats(np.full(16, 1 + seed), "F32")
        write_checkpoint(tmp_path / folder, simple(seed, "F32", moved=0.3) | {"model.norm.weight": norm})
    matrices: list[str] = []
    decomposed = adapter_output.decomposed
    monkeypatch.setattr(
        adapter_output, "decomposed", lambda update, name, kind: matrices.append(name) or decomposed(update, name, kind)
    )
    source = recipe(tmp_path, ["code"], "task_arithmetic")
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=2))
    assert not matrices
    ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=2, save_modules=True))
    assert len(matrices) == 3


def agents_of(folder: Path, base: str = "F32") -> dict[str, Any]:
    return recipe(folder, write_simple(folder, dtype=base), "ram+")


def adapter_in(folder: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    tensors = read_safetensors(folder / "adapter_model.safetensors")
    return tensors, json.loads((folder / "adapter_config.json").read_text())


@pytest.mark.parametrize("base", ["F32", "BF16", "F64"])
def test_decomposed_updates_of_full_agents(base: str, tmp_path: Path) -> None:
    source = agents_of(tmp_path, base)
    record = ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=4))
    ramerge.merge(source | {"dtype": "float32"}, tmp_path / "full")
    tensors, config = adapter_in(tmp_path / "adapter")
    full, start = read_checkpoint(tmp_path / "full"), read_checkpoint(tmp_path / "base")
    assert config["r"] == config["lora_alpha"] == 4
    assert not config["rank_pattern"] and not config["alpha_pattern"]
    assert config["target_modules"] == [name.removesuffix(".weight") for name in start]
    for name, tensor in start.items():
        module = name.removesuffix(".weight")
        a, b = (tensors[f"base_model.model.{module}.lora_{side}.weight"].numbers(np.float64) for side in "AB")
        update = full[name].numbers(np.float64) - tensor.numbers(np.float64)
        best = np.sqrt(np.square(np.linalg.svd(update)[1][4:]).sum()) / np.linalg.norm(update)
        assert record.adapter[module]["error"] == pytest.approx(best, rel=1e-3)
        assert np.linalg.norm(b @ a - update) / np.linalg.norm(update) == pytest.approx(best, rel=1e-3)
    kept = ramerge.merge(source, tmp_path / "kept", kind=ramerge.AsAdapter())
    assert all(layer["error"] <= 0.1 for layer in kept.adapter.values())


def test_differing_ranks_become_patterns(tmp_path: Path) -> None:
    """Programs that know no patterns, such as vLLM, scale all modules by alpha / r of the configuration: by 1, too."""
    record = ramerge.merge(agents_of(tmp_path), tmp_path / "adapter", kind=ramerge.AsAdapter(energy=0.8))
    _, config = adapter_in(tmp_path / "adapter")
    ranks = {module: layer["rank"] for module, layer in record.adapter.items()}
    assert config["r"] == config["lora_alpha"] == max(ranks.values())
    assert config["rank_pattern"] == config["alpha_pattern"]
    assert config["rank_pattern"] == {f"^{module}": rank for module, rank in ranks.items() if rank != config["r"]}


def test_bytes_do_not_depend_on_threads(tmp_path: Path) -> None:
    source = agents_of(tmp_path)
    made = []
    for threads in (1, 3):
        out = tmp_path / f"{threads}"
        ramerge.merge(source, out, kind=ramerge.AsAdapter(rank=3), options=ramerge.Options(threads=threads))
        made.append([(out / name).read_bytes() for name in ("adapter_model.safetensors", "adapter_config.json")])
    assert made[0] == made[1]
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "ramerge.json",
        "ramerge.yaml",
    ]


@pytest.mark.parametrize("stage", ["merging", "factoring"])
def test_an_interrupted_run_resumes_to_the_same_bytes(stage: str, tmp_path: Path) -> None:
    source, asked = agents_of(tmp_path), ramerge.AsAdapter(rank=3)
    ramerge.merge(source, tmp_path / "whole", kind=asked)

    def stop(progress: ramerge.Progress) -> None:
        if progress.stage == stage and progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ramerge.merge(source, tmp_path / "out", kind=asked, on_progress=stop)
    assert not (tmp_path / "out").exists()
    ramerge.merge(source, tmp_path / "out", kind=asked)
    names = ("adapter_model.safetensors", "adapter_config.json")
    assert [(tmp_path / "out" / name).read_bytes() for name in names] == [
        (tmp_path / "whole" / name).read_bytes() for name in names
    ]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".out")) == []


def test_one_tensor_that_cannot_be_factored(tmp_path: Path, messages: Messages) -> None:
    name = "model.norm.weight"
    for model, value in {"base": 0.5, "a": 0.75}.items():
        write_checkpoint(tmp_path / model, {name: floats([value] * 4, "F32")})
    source, kind = recipe(tmp_path, ["a"], "task_arithmetic"), ramerge.AsAdapter(rank=1)
    assert any("1 norm, bias or embedding is refused if" in note for note in ramerge.plan(source, kind=kind).notes)
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(source, tmp_path / "adapter", kind=kind)


def test_an_adapter_that_lacks_much_is_a_warning(tmp_path: Path, messages: Messages) -> None:
    source, kind = agents_of(tmp_path), ramerge.AsAdapter(rank=1)
    (warning,) = ramerge.merge(source, tmp_path / "adapter", kind=kind).warnings
    messages.check(warning)
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(source, tmp_path / "strict", kind=kind, options=ramerge.Options(strict=True))
    whole = ramerge.merge(source, tmp_path / "whole", kind=ramerge.AsAdapter())
    assert not whole.warnings and "; it lacks " in whole.notes[-1]


def test_the_card_is_that_of_an_adapter(tmp_path: Path) -> None:
    ramerge.merge(agents_of(tmp_path), tmp_path / "adapter", kind=ramerge.AsAdapter())
    text = (tmp_path / "adapter/README.md").read_text()
    front = YAML(typ="safe").load(text.split("---\n")[1])
    assert (front["library_name"], front["base_model_relation"], front["base_model"]) == ("peft", "adapter", ["base"])
    assert "The recipe is in `ramerge.yaml`" in text and (tmp_path / "adapter/ramerge.yaml").is_file()


@pytest.mark.needs("torch", "peft")
def test_the_snippet_of_the_card_runs(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = {"a": str(writer.adapter("snippet", "llama", {"target_modules": ["q_proj"]}))}
    source = {"base": str(writer.base("llama")), "agents": agents, "method": "task_arithmetic"}
    ramerge.merge(source, tmp_path / "my adapter", kind=ramerge.AsAdapter())
    snippet = (tmp_path / "my adapter/README.md").read_text().split("```")[1].removeprefix("python\n")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet, names)  # noqa: S102
    assert names["model"].peft_config["default"].r == 4


def test_an_update_of_nothing_is_no_adapter(tmp_path: Path, messages: Messages) -> None:
    source = agents_of(tmp_path) | {"method": "task_arithmetic", "parameters": {"scale": 0.0}}
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=2))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_updates_that_are_not_finite_have_no_factors(value: float, tmp_path: Path) -> None:
    """A single element would spread to all of both factors, and must not drop the update of the matrix either."""
    names = write_simple(tmp_path, dtype="F32")
    tensors = {name: tensor.numbers(np.float32) for name, tensor in read_checkpoint(tmp_path / names[0]).items()}
    first, second, *_ = tensors
    for name in (first, second):
        tensors[name][1, 2] = value
    write_checkpoint(tmp_path / names[0], {name: floats(values, "F32") for name, values in tensors.items()})
    source = recipe(tmp_path, names, "task_arithmetic") | {"allow": {"non_finite": True}}
    text = f"the updates of these matrices hold NaN or Inf, so they have no factors: '{first}', '{second}'; "
    with pytest.raises(ramerge.WeightsError, match=text):
        ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter())
    assert not (tmp_path / "adapter").exists()
    rules = [{"match": [first, second], "keep": "base"}]
    record = ramerge.merge(source | {"rules": rules}, tmp_path / "adapter", kind=ramerge.AsAdapter())
    assert sorted(record.adapter) == sorted(name.removesuffix(".weight") for name in list(tensors)[2:])


def test_non_finite_adapters_are_summed_unless_truncated(tmp_path: Path, messages: Messages) -> None:
    tensors = factors(*UP)
    name = f"base_model.model.{UP[0]}.lora_B.weight"
    values = tensors[name].numbers(np.float32).copy()
    values[3, 1] = np.nan
    write_base(tmp_path / "base", "F32")
    write_adapter(tmp_path / "a", tensors | {name: floats(values, "F32")})
    source = recipe(tmp_path, ["a"], "task_arithmetic") | {"allow": {"non_finite": True}}
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=2))
    ramerge.merge(source, tmp_path / "adapter", kind=ramerge.AsAdapter())
    found = adapter_in(tmp_path / "adapter")[0][name].numbers(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(values))


def test_base_with_an_adapter_gets_no_adapter(tmp_path: Path, messages: Messages) -> None:
    """PEFT would load it over the base alone, which is what its configuration and its card could name."""
    write_base(tmp_path / "base", "F32")
    for seed, name in enumerate(("below", "a")):
        write_adapter(tmp_path / name, factors(*UP, seed=seed))
    base = f"{tmp_path / 'base'}+{tmp_path / 'below'}"
    source = recipe(tmp_path, ["a"], "task_arithmetic") | {"base": base}
    (text,) = ramerge.plan(source, kind=ramerge.AsAdapter()).problems
    messages.check(text)
    ramerge.convert(base, tmp_path / "whole")
    ramerge.merge(source | {"base": str(tmp_path / "whole")}, tmp_path / "adapter", kind=ramerge.AsAdapter())
    assert adapter_in(tmp_path / "adapter")[1]["base_model_name_or_path"] == str(tmp_path / "whole")


def test_agents_that_untie_the_base_are_named(tmp_path: Path) -> None:
    write_base(tmp_path / "base", tie_word_embeddings=True)
    write_adapter(tmp_path / "a", factors(*UP))
    write_adapter(tmp_path / "unties", of_embeddings())
    source = recipe(tmp_path, ["a", "unties"], "task_arithmetic")
    for kind in ("adapter", "delta"):
        problems = ramerge.plan(source, kind=kind).problems
        where = f'kind="{kind}": unties changed the tied embeddings of '
        reason = where + f"{tmp_path / 'base'} in different ways"
        assert any(text.startswith(reason) for text in problems), problems


PROBLEMS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "rank and energy": ({}, {"rank": 1, "energy": 0.5}, "give only one"),
    "rank 0": ({}, {"rank": 0}, "rank: must be at least 1, not 0"),
    "energy": ({}, {"energy": 1.5}, "energy: must be more than 0 and at most 1, such as 0.99, not 1.5"),
    "dtype": ({"dtype": "bfloat16"}, {}, "an adapter is float32"),
    "dtype of a rule": ({"rules": [{"match": "*0*", "dtype": "float16"}]}, {}, ": an adapter is float32"),
    "wide rule": ({"rules": [{"take": "code"}, {"match": "*0*", "dtype": "float64"}]}, {}, ": an adapter is float32"),
    "no base": ({"base": None, "method": "linear"}, {}, "there is no base; name the model"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems_of_plans(case: str, tmp_path: Path) -> None:
    changes, asked, text = PROBLEMS[case]
    source = {key: value for key, value in (agents_of(tmp_path) | changes).items() if value is not None}
    plan = ramerge.plan(source, tmp_path / "adapter", kind=ramerge.AsAdapter(**asked))
    assert any(text in problem for problem in plan.problems), plan.problems


@pytest.mark.parametrize("base", ["BF16", "F64"])
def test_rules_of_float32_are_what_an_adapter_is(base: str, tmp_path: Path) -> None:
    source = agents_of(tmp_path, base) | {"rules": [{"match": "*0*", "take": "code"}]}
    wide = source | {"rules": [{"match": "*0*", "take": "code", "dtype": "float32"}]}
    for name, each in {"plain": source, "wide": wide}.items():
        ramerge.merge(each, tmp_path / name, kind=ramerge.AsAdapter(rank=3))
    plain, wide = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("plain", "wide"))
    assert plain == wide


def test_experts_are_refused(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.0.up_proj.weight"
    for seed, folder in enumerate(("base", "code")):
        tensors = {name: floats(np.random.default_rng(seed).standard_normal((4, 4)), "F32")}
        write_checkpoint(tmp_path / folder, tensors)
    plan = ramerge.plan(recipe(tmp_path, ["code"]), kind=ramerge.AsAdapter())
    assert [text for text in plan.problems if "experts" in text and name in text]


def test_the_plan_says_what_vllm_serves(tmp_path: Path) -> None:
    source = agents_of(tmp_path)
    for rank, text in ((5, "--max-lora-rank 8"), (300, "--max-lora-rank 320"), (600, "serves no rank above 512")):
        plan = ramerge.plan(source, tmp_path / "adapter", kind=ramerge.AsAdapter(rank=rank))
        assert any(text in note for note in plan.notes), plan.notes
    plan = ramerge.plan(source, tmp_path / "adapter", kind=ramerge.AsAdapter())
    assert any("vLLM serves ranks up to 512" in note for note in plan.notes)
    assert "a LoRA adapter; " in plan.explain()


def test_memory_of_decompositions_is_planned(tmp_path: Path) -> None:
    for seed, folder in enumerate(("base", "code")):
        write_checkpoint(tmp_path / folder, simple(seed, moved=float(seed), shape=(600, 3000)))
    asked = ramerge.AsAdapter(energy=0.9)
    planned = ramerge.plan(recipe(tmp_path, ["code"]), kind=asked, options=ramerge.Options(threads=1))
    small = ramerge.Options(max_memory="231MB", threads=1)
    plan = ramerge.plan(recipe(tmp_path, ["code"]), kind=asked, options=small)
    (problem,) = plan.problems
    least = -(-planned.peak_memory_bytes // 1_000_000)
    assert problem.endswith(f"bytes are too little; give at least {least}MB, or a smaller rank")
    assert planned.peak_memory_bytes > 260_000_000


def test_the_command_line(tmp_path: Path) -> None:
    agents_of(tmp_path)
    words = ["merge", "--base", str(tmp_path / "base"), "--agent", f"code={tmp_path / 'code'}"]
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "out"), "--as-adapter", "--rank", "3"])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "written as a LoRA adapter of rank 3 on 3 matrices" in text
    assert "warning: --as-adapter: the adapter lacks" in text
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "other"), "--rank", "3"])
    assert done.exit_code == 2
    assert "--rank belongs to --as-adapter" in done.output
    done = CliRunner().invoke(cli, ["plan", *words[1:], "--as-adapter", "--energy", "2"])
    assert "--energy: must be more than 0" in done.output
