import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ramerge
from ramerge.core.engine.outputs import OUTPUT_KINDS
from ramerge.core.planning.model import MergePlan, PlannedCounts
from ramerge.core.planning.rounds import without_cache
from ramerge.deltas.kinds import AsAdapter
from tests.checkpoints import floats, read_checkpoint, recipe, simple, write_checkpoint, write_safetensors, write_simple
from tests.conformance.methods import ROWS, one_of_each_kind
from tests.conformance.test_merge import plain
from tests.messages import Messages
from tests.plans import planned as plan
from tests.reference import Stored


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    made = plan(recipe(tmp_path, names), tmp_path / "out")
    weights = 3 * 640 * 2
    assert made.findings.problems == ()
    assert (made.passes, made.bytes_read) == (2, 2 * 4 * weights)
    assert plan(recipe(tmp_path, names, "ram")).bytes_read == 4 * weights
    record = ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    assert record.bytes_read == made.bytes_read
    assert record.bytes_written == made.bytes_written == (tmp_path / "out/model.safetensors").stat().st_size


def test_agents_that_are_coarser_than_the_base(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", simple(0, "F32"))
    for name, dtype in (("a", "BF16"), ("b", "F32")):
        write_checkpoint(tmp_path / name, simple(1, dtype))
    messages.check(*plan(recipe(tmp_path, ["a", "b"])).findings.warnings)
    assert not plan(recipe(tmp_path, ["b"])).findings.warnings


def test_another_architecture_is_said_first_and_alone(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"good": 0.1})
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8}
    write_checkpoint(tmp_path / "base", simple(0), config=config)
    write_checkpoint(tmp_path / "good", simple(1), config=config)
    other = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16}
    write_checkpoint(tmp_path / "alien", {"wte.weight": floats(np.ones((5, 5)))}, config=other)
    source = recipe(tmp_path, [*names, "alien"])
    made = plan(source)
    (problem,) = made.findings.problems
    assert "the agent is GPT2LMHeadModel (gpt2), the base LlamaForCausalLM (llama)" in problem and len(problem) < 500
    assert not any("alien" in note for note in made.findings.notes)
    accepted = plan(source | {"allow": {"config": ["model_type", "architectures"]}})
    assert any("lacks" in problem for problem in accepted.findings.problems)


def test_equal_notes_of_agents_are_one(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"a": 0.1, "b": 0.2, "c": 0.3})
    for name in names[:2]:
        (tmp_path / name / "config.json").unlink()
    notes = [note for note in plan(recipe(tmp_path, names)).findings.notes if "config.json" in note]
    assert notes == ["a and b: has no config.json to compare with the base's"]


def test_every_problem_of_every_input_at_once(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.1})
    (tmp_path / "a" / "model.safetensors").unlink()
    tensors = simple(1)
    tensors["extra"] = tensors.pop("model.layers.0.weight")
    tensors["model.layers.1.weight"] = floats(np.zeros((3, 3)))
    write_checkpoint(tmp_path / "b", tensors, config={"hidden_size": 7})
    write_checkpoint(tmp_path / "base", simple(0), config={"hidden_size": 8})
    (tmp_path / "d" / "config.json").write_text("nonsense")
    (tmp_path / "out").mkdir()
    source = recipe(tmp_path, names)
    source["agents"]["c"] = str(tmp_path / "base")
    text = "\n".join(plan(source, tmp_path / "out").findings.problems)
    for words in ("has no weights", "is not JSON", "is the base itself", "out: exists"):
        assert words in text
    source["agents"] = {"b": source["agents"]["b"]}
    text = "\n".join(plan(source).findings.problems)
    for words in (
        "lacks 'model.layers.0.weight' [40, 16]; the agent may not have been trained from this base",
        "unknown to the base: 'extra' [40, 16]; the agent may not",
        "'model.layers.1.weight': the base has [40, 16], the agent [3, 3]; the agent may not",
        "hidden_size: base has 8, agent has 7 (allow.config: [hidden_size]",
    ):
        assert words in text
    with pytest.raises(ramerge.PlanError) as raised:
        ramerge.merge(source, tmp_path / "new")
    assert len(raised.value.problems) == 4
    assert not (tmp_path / "new").exists()


def test_policies_accept_what_they_say(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"a": 0.5, "b": 0.5})
    tensors = simple(2, moved=0.5)
    tensors["extra"] = tensors.pop("model.layers.0.weight")
    tensors["model.layers.1.weight"] = floats(np.ones((3, 3)))
    write_checkpoint(tmp_path / "b", tensors)
    allow = {"missing_tensors": True, "extra_tensors": True, "different_shapes": True}
    ramerge.merge(recipe(tmp_path, names, "ram", allow=allow), tmp_path / "out")
    found, base = read_checkpoint(tmp_path / "out"), simple(0)
    a = read_checkpoint(tmp_path / "a")
    assert set(found) == set(base)
    for layer in (0, 1):  # only `a` has moved anything here
        name = f"model.layers.{layer}.weight"
        assert found[name].bits.tobytes() == a[name].bits.tobytes()


@pytest.mark.parametrize("shape", [(0,), (0, 16)])
def test_weights_that_were_not_gathered(shape: tuple[int, ...], tmp_path: Path, messages: Messages) -> None:
    """To keep the base's for them would make a model that is trained in part."""
    names = write_simple(tmp_path, {"a": 0.5, "b": 0.5})
    write_checkpoint(tmp_path / "b", {**simple(2), "model.layers.1.weight": floats(np.zeros(shape))})
    for allow in ({}, {"different_shapes": True}):
        (problem,) = plan(recipe(tmp_path, names, allow=allow)).findings.problems
        messages.check(problem)


def test_model_not_gathered_from_shards(tmp_path: Path, messages: Messages) -> None:
    model = write_checkpoint(tmp_path / "a", {**simple(0), "model.layers.1.weight": floats(np.zeros(0))})
    with messages.raises(ramerge.PlanError):
        ramerge.convert(model, tmp_path / "out")
    write_checkpoint(tmp_path / "b", simple(1))
    messages.check(*plan({"base": str(model), "agents": {"b": str(tmp_path / "b")}}).findings.problems)


def test_vocabularies_that_differ_say_by_how_many_rows(tmp_path: Path, messages: Messages) -> None:
    for name, rows in (("base", 100), ("a", 97)):
        write_checkpoint(tmp_path / name, {"model.embed_tokens.weight": floats(np.zeros((rows, 4)))})
    messages.check(*plan(recipe(tmp_path, ["a"])).findings.problems)


def test_head_equal_to_embedding_is_dropped(tmp_path: Path, messages: Messages) -> None:
    embedding = {"model.embed_tokens.weight": floats(np.arange(8.0).reshape(4, 2))}
    write_checkpoint(tmp_path / "base", embedding, config={"tie_word_embeddings": True})
    moved = {"model.embed_tokens.weight": floats(np.arange(8.0).reshape(4, 2) + 1)}
    both = {**moved, "lm_head.weight": moved["model.embed_tokens.weight"]}
    write_checkpoint(tmp_path / "a", both, config={"tie_word_embeddings": True})
    made = plan(recipe(tmp_path, ["a"], "ram"))
    assert made.findings.problems == () and "is dropped" in made.findings.notes[0]
    record = ramerge.merge(recipe(tmp_path, ["a"], "ram"), tmp_path / "out")
    assert next(iter(record.agents.values())).total == 8
    assert read_checkpoint(tmp_path / "out").keys() == embedding.keys()
    both["lm_head.weight"] = embedding["model.embed_tokens.weight"]
    write_checkpoint(tmp_path / "a", both, config={"tie_word_embeddings": True})
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(recipe(tmp_path, ["a"], "ram"), tmp_path / "out2")


def test_tied_agent_of_an_untied_base(tmp_path: Path) -> None:
    embedding = floats(np.arange(8.0).reshape(4, 2))
    both = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    write_checkpoint(tmp_path / "base", both, config={"tie_word_embeddings": True})
    moved = floats(np.arange(8.0).reshape(4, 2) + 1)
    write_checkpoint(tmp_path / "a", {"model.embed_tokens.weight": moved}, config={"tie_word_embeddings": True})
    ramerge.merge(recipe(tmp_path, ["a"], "ram"), tmp_path / "out")
    assert read_checkpoint(tmp_path / "out")["lm_head.weight"].bits.tobytes() == moved.bits.tobytes()


@pytest.mark.parametrize("dtype", ["F8_E4M3", "C64", "F8_E8M0"])
def test_dtypes_without_arithmetic(dtype: str, tmp_path: Path, messages: Messages) -> None:
    for name in ("base", "a"):
        size = 8 if dtype == "C64" else 1
        write_checkpoint(tmp_path / name, {"w": Stored(dtype, np.zeros((4, size), np.uint8))})
        path = tmp_path / name / "model.safetensors"
        data = path.read_bytes().replace(f'"shape": [4, {size}]'.encode(), b'"shape": [4]   ')
        path.write_bytes((len(data) - 4 * size - 8).to_bytes(8, "little") + data[8:])
    text = "\n".join(plan(recipe(tmp_path, ["a"])).findings.problems)
    messages.check(text)


def test_quantized_checkpoints(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"a": 0.1, "b": 0.1})
    (tmp_path / "a/config.json").write_text(json.dumps({"quantization_config": {"quant_method": "gptq"}}))
    write_checkpoint(tmp_path / "b", {"l.qweight": Stored("I32", np.zeros(3, np.int32))})
    text = "\n".join(plan(recipe(tmp_path, names)).findings.problems)
    assert "(gptq)" in text and "qweight" in text


def test_integer_and_float_do_not_mix(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", {"w": floats([1.0])})
    write_checkpoint(tmp_path / "a", {"w": Stored("I64", np.zeros(1, np.int64))})
    messages.check(*plan(recipe(tmp_path, ["a"])).findings.problems)


def test_places_where_the_output_cannot_be(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    source = recipe(tmp_path, names)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").touch()
    cases = {
        "code": "is one of the inputs",
        "base/deep/out": "is inside the input",
        ".": "holds the input",
        "file": "is a file",
        "file/out": "is a file",
        "folder": "exists",
    }
    for out, words in cases.items():
        assert words in "\n".join(plan(source, tmp_path / out).findings.problems), out
    for here in (".", "/"):
        assert plan(source, here).findings.problems
    with messages.raises(ramerge.RecipeError):
        plan(source, "")
    (tmp_path / "link").symlink_to(tmp_path / "base")
    assert "is one of the inputs" in plan(source, tmp_path / "link", overwrite=True).findings.problems[0]


@pytest.mark.parametrize(
    ("names", "replaced"),
    [
        ([], True),
        (["config.json", "pytorch_model.bin"], True),
        (["model.safetensors"], True),
        (["id_ed25519", "known_hosts"], False),
        (["thesis.tex"], False),
        (["config.json", "chapters/"], False),
        (["ramerge.json"], False),
    ],
)
def test_only_models_and_empty_folders_are_replaced(names: list[str], replaced: bool, tmp_path: Path) -> None:
    source, out = recipe(tmp_path, write_simple(tmp_path)), tmp_path / "out"
    out.mkdir()
    for name in names:
        (out / name).mkdir() if name.endswith("/") else (out / name).write_text("{}")
    problems = plan(source, out, overwrite=True).findings.problems
    assert not problems if replaced else "exists and may hold more than a model" in problems[0]
    [problem] = plan(source, out).findings.problems
    assert ("pass --overwrite" if replaced else "never replaced, to protect your files") in problem


def test_a_folder_without_the_right_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr("os.access", lambda path, _: Path(path).name != "closed")  # root may write everywhere
    assert "no permission" in plan(recipe(tmp_path, names), tmp_path / "closed" / "out").findings.problems[0]
    (problem,) = plan(recipe(tmp_path, names), "/proc/out").findings.problems
    messages.check(problem)


def test_a_budget_that_cannot_be_kept(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    text = plan(recipe(tmp_path, names), max_memory="20MB").findings.problems[0]
    messages.check(text)
    needed = text.split("at least ")[1].split()[0]
    assert plan(recipe(tmp_path, names), max_memory=needed).findings.problems == ()
    with pytest.raises(ramerge.RecipeError, match="max_memory"):
        plan(recipe(tmp_path, names), max_memory="lots")


@pytest.mark.parametrize("method", one_of_each_kind(ROWS))
def test_memory_that_messages_name_suffices(method: str, tmp_path: Path) -> None:
    source, _, _, _ = plain(tmp_path, method)
    for kind in [*OUTPUT_KINDS.usable().values(), AsAdapter(rank=2), AsAdapter(energy=0.5)]:
        for threads in (None, 1):
            (problem,) = plan(source, kind=kind, threads=threads, max_memory="1MB").findings.problems
            figure = problem.split("give at least ")[1].split("MB")[0]
            enough = plan(source, kind=kind, threads=threads, max_memory=f"{figure}MB")
            assert enough.findings.problems == ()
            assert int(figure) - 1 < enough.resources.peak_memory_bytes / 1e6 <= int(figure)


def least_memory(source, threads: int) -> int:
    """Bytes that a merge takes with one worker and the smallest blocks."""
    refused = plan(source, threads=threads, max_memory="1MB")
    assert len(refused.findings.problems) == 1 and refused.resources.workers == 1
    return refused.resources.peak_memory_bytes


def test_small_budget_shrinks_blocks_then_workers(tmp_path: Path) -> None:
    names = ["base", "a", "b"]
    for name in names:
        write_checkpoint(tmp_path / name, {"w": floats(np.zeros((1 << 10, 1 << 9)))})
    source, threads = recipe(tmp_path, names[1:]), 64
    least = least_memory(source, threads)
    free = plan(source, threads=threads).resources
    budgets = [least + int((free.peak_memory_bytes - least) * 0.6**step) for step in range(32)]
    found = [plan(source, threads=threads, max_memory=budget) for budget in budgets]
    assert all(one.findings.problems == () for one in found)
    cut = [one.resources for one in found]
    assert (cut[0], cut[-1].workers) == (free, 1)
    smallest = cut[-1].block_elements
    for budget, one, tighter in zip(budgets, cut, [*cut[1:], cut[-1]], strict=True):
        assert one.peak_memory_bytes <= budget
        assert tighter.block_elements <= one.block_elements and tighter.workers <= one.workers
        assert one.workers == threads or one.block_elements == smallest
    assert len({one.block_elements for one in cut}) > 3
    assert len({one.workers for one in cut}) > 3


@pytest.mark.parametrize("method", ["ram+", "ties"])
def test_fewer_workers_give_the_same_bytes(method: str, tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), method)
    least = least_memory(source, 8)
    assert [plan(source, threads=8, max_memory=most).resources.workers for most in (None, least)] == [8, 1]
    ramerge.merge(source, tmp_path / "free", options=ramerge.Options(threads=8))
    ramerge.merge(source, tmp_path / "tight", options=ramerge.Options(threads=8, max_memory=least))
    assert (tmp_path / "tight/model.safetensors").read_bytes() == (tmp_path / "free/model.safetensors").read_bytes()


def test_too_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = write_simple(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=1000, free=100))
    assert "of disk, but only 100 are free" in plan(recipe(tmp_path, names), tmp_path / "out").findings.problems[0]


def test_shards_of_a_given_size(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ramerge.merge(recipe(tmp_path, names, "ram", shard_size=2 * 640 * 2), tmp_path / "out")
    ramerge.merge(recipe(tmp_path, names, "ram", shard_size="1GB"), tmp_path / "one")
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert shards == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert {n: t.bits.tobytes() for n, t in read_checkpoint(tmp_path / "out").items()} == {
        n: t.bits.tobytes() for n, t in read_checkpoint(tmp_path / "one").items()
    }
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_parameters": 1920, "total_size": 3840}


def test_several_loose_files_get_an_index(tmp_path: Path) -> None:
    for name, moved in (("base", 0.0), ("a", 0.5)):
        (tmp_path / name).mkdir()
        for place, (key, tensor) in enumerate(simple(place_of(name), moved=moved).items()):
            write_safetensors(tmp_path / name / f"part{place}.safetensors", {key: tensor})
    ramerge.merge(recipe(tmp_path, ["a"], "ram"), tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").glob("*.safetensors")} == {f"part{i}.safetensors" for i in range(3)}
    assert read_checkpoint(tmp_path / "out").keys() == simple(0).keys()


def place_of(name: str) -> int:
    return 0 if name == "base" else 1


@pytest.mark.parametrize("allowed", ["rope_theta", "rope_parameters"])
def test_rotary_keys_are_allowed_under_any_name(allowed: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"a": 0.1})
    (tmp_path / "base/config.json").write_text(json.dumps({"rope_theta": 10000.0}))
    (tmp_path / "a/config.json").write_text(json.dumps({"rope_parameters": {"rope_theta": 5e5}}))
    assert "rope_theta" in plan(recipe(tmp_path, names)).findings.problems[0]
    assert plan(recipe(tmp_path, names, allow={"config": [allowed]})).findings.problems == ()


def test_failed_merge_removes_created_folders(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"a": 0.1})
    write_checkpoint(tmp_path / "a", {**simple(1), "model.layers.0.weight": floats(np.full((40, 16), np.nan))})
    with pytest.raises(ramerge.WeightsError):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "new" / "deep" / "out")
    assert not (tmp_path / "new").exists()


def test_parts_have_their_own_lambdas_in_the_record(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    record = ramerge.merge(recipe(tmp_path, names, parameters={"scope": "layer"}), tmp_path / "out")
    parts = record.to_dict()["parts"]
    assert list(parts) == [f"model.layers.{layer}" for layer in range(3)]
    assert all(1 < figures["lambda"] <= 1.2 for agents in parts.values() for figures in agents.values())
    assert all(agent.lambda_ is None for agent in record.agents.values())


def test_a_size_of_shards_that_misses_its_unit(tmp_path: Path, messages: Messages) -> None:
    base = write_checkpoint(tmp_path / "base", {"w": floats(np.zeros((3000, 2000)))})
    made = plan({"base": str(base), "agents": {"a": str(base)}, "shard_size": 1000})
    messages.check(*made.findings.problems)


def test_values_override_the_recipe(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    values = recipe(tmp_path, names, parameters={"r": 0.3, "alpha": 1.0})
    given = ramerge.read_recipe(values)
    made = plan(given.with_(dtype="float32", parameters={"r": 0.05}, method="ram+"))
    assert (made.dtype, made.points[0].parameters[0].r, made.points[0].parameters[0].alpha) == ("float32", 0.05, 1.0)
    assert values["parameters"] == {"r": 0.3, "alpha": 1.0}
    record = ramerge.merge(ramerge.Recipe(**values).with_(dtype="fp32"), tmp_path / "out")
    assert (record.method, record.dtype) == ("ram+", "float32")
    assert "dtype: float32" in (tmp_path / "out/ramerge.yaml").read_text()
    records = ramerge.sweep(given.with_(dtype="float16"), tmp_path / "swept", vary={"parameters.r": [0, 0.1]})
    assert {one.dtype for one in records} == {"float16"}
    assert ramerge.analyze(given.with_(parameters={"epsilon": 1e-3})).epsilon == 1e-3
    with messages.raises(ramerge.RecipeError):
        given.with_(dtype="float61")
    with pytest.raises(ramerge.RecipeError, match=r"parameters\.r=much"):
        plan(given.with_(parameters={"r": "much"}))


def test_cached_counts_do_not_change_plans(tmp_path: Path) -> None:
    """But for what is read: an interrupted run that began before counts were cached is resumed with its own."""
    source = recipe(tmp_path, write_simple(tmp_path), "ties")
    counting = plan(source, cache=False)
    cached = replace(counting, counts=PlannedCounts(cached={(object(), ""): 0}))  # type: ignore[dict-item]
    assert (cached.passes, cached.counts.origin) == (1, "earlier read")
    assert cached.bytes_read < counting.bytes_read
    assert without_cache(cached) == counting


def test_a_plan_is_data() -> None:
    """Few fields, of which only findings and identities are text; what it says is made of it by `planning.explain`."""
    assert len(fields(MergePlan)) <= 16
    members = {name for kind in MergePlan.__mro__[:-1] for name in vars(kind) if not name.startswith("_")}
    assert not members & {"explain", "to_dict", "forecast", "objections", "doubts"}


@pytest.mark.parametrize("way", ["link", "prompts", "recipe"])
def test_a_file_that_is_read_is_not_replaced(way: str, tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    source, out = recipe(tmp_path, names), tmp_path / "out"
    ramerge.merge(source, out)
    inside = out / "inside"
    if way == "link":
        (tmp_path / names[0] / "model.safetensors").rename(inside)
        (tmp_path / names[0] / "model.safetensors").symlink_to(inside)
        source["allow"] = {"outside_links": True}
    elif way == "prompts":
        inside.write_text('{"prompt": "a"}')
        source["prompts"] = {names[0]: str(inside)}
    else:
        inside.write_text(json.dumps(source))
    read: object = inside if way == "recipe" else source
    with messages.raises(ramerge.PlanError):
        ramerge.merge(read, out, options=ramerge.Options(overwrite=True))
    assert inside.exists()


def test_a_finished_merge_is_repeated_in_its_place(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ramerge.merge(recipe(tmp_path, write_simple(tmp_path)), out)
    ramerge.merge(out / "ramerge.yaml", out, options=ramerge.Options(overwrite=True))
    assert (out / "ramerge.yaml").exists()


def test_importances_are_not_replaced(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    agents = {}
    for name in names:
        write_checkpoint(tmp_path / f"{name}-importance", simple(0, "F32"))
        agents[name] = {"model": str(tmp_path / name), "importance": str(tmp_path / f"{name}-importance")}
    source = recipe(tmp_path, names, "fisher") | {"agents": agents}
    (problem,) = plan(source, tmp_path / f"{names[0]}-importance", overwrite=True).findings.problems
    messages.check(problem)
