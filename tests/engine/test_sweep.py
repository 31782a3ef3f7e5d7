"""Sweeps: the bytes of single merges, one read for all points, tensors handed to a function; and rules by tensor."""

import gc
import hashlib
import json
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.engine import worker
from ramerge.core.engine.operators import read_rows
from tests.checkpoints import floats, read_checkpoint, recipe, simple, write_checkpoint, write_inputs, write_simple
from tests.messages import Messages

RANGES = {"parameters.r": [0, 0.1, 0.2], "parameters.alpha": [1, 2]}


def test_sweep_points_share_one_read(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    source = recipe(tmp_path, names)
    records = ramerge.sweep(source, tmp_path / "out", vary=RANGES)
    assert [list(record.point.values()) for record in records] == [[r, a] for r in (0, 0.1, 0.2) for a in (1, 2)]
    for record in records:
        r, alpha = record.point.values()
        single = tmp_path / f"{r}-{alpha}"
        one = ramerge.merge({**source, "parameters": {"r": r, "alpha": alpha}}, single)
        folder = tmp_path / "out" / f"r={r},alpha={alpha}"
        assert (folder / "model.safetensors").read_bytes() == (single / "model.safetensors").read_bytes()
        assert {name: agent.values for name, agent in record.agents.items()} == {
            name: agent.values for name, agent in one.agents.items()
        }
        assert record.bytes_read == one.bytes_read
        assert json.loads((folder / "ramerge.json").read_text())["point"] == record.point
    table = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert list(table["points"]) == [f"r={r},alpha={a}" for r in (0, 0.1, 0.2) for a in (1, 2)]


def test_a_sweep_over_thresholds(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    source = recipe(tmp_path, names, "ties")
    ramerge.sweep(source, tmp_path / "out", vary={"parameters.density": [0.1, 0.3], "parameters.scale": [0.5, 1]})
    for density in (0.1, 0.3):
        ramerge.merge(
            {**source, "parameters": {"density": density, "scale": 0.5}},
            tmp_path / "one",
            options=ramerge.Options(overwrite=True),
        )
        swept = tmp_path / "out" / f"density={density},scale=0.5" / "model.safetensors"
        assert swept.read_bytes() == (tmp_path / "one" / "model.safetensors").read_bytes()


def test_solved_point_follows_a_rounded_one(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0, 0.02, (3, 96, 64))
    for name, step in zip(("base", "a", "b"), (0, 1, 2), strict=True):
        write_checkpoint(tmp_path / name, {"w": floats(values[0] + 0.1 * step * values[step])})
    source = recipe(tmp_path, ["a", "b"], "model_stock")
    records = ramerge.sweep(source, tmp_path / "out", vary={"parameters.per": ["tensor", "row"]})
    for record, per in zip(records, ("tensor", "row"), strict=True):
        one = ramerge.merge({**source, "parameters": {"per": per}}, tmp_path / per)
        swept = tmp_path / "out" / f"per={per}" / "model.safetensors"
        assert swept.read_bytes() == (tmp_path / per / "model.safetensors").read_bytes()
        assert [agent.values for agent in record.agents.values()] == [agent.values for agent in one.agents.values()]


def test_tensors_are_handed_over_one_after_another(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    source = recipe(tmp_path, names)
    seen = list(ramerge.plan(source, vary={"parameters.r": [0, 0.2]}).tensors())
    assert {(tensor.point["parameters.r"], tensor.name) for tensor in seen} == {
        (r, name) for r in (0, 0.2) for name in simple(0)
    }
    ramerge.merge({**source, "parameters": {"r": 0.2}}, tmp_path / "out")
    merged = read_checkpoint(tmp_path / "out")
    for tensor in seen:
        if tensor.point["parameters.r"] == 0.2:
            assert tensor.data.tobytes() == merged[tensor.name].bits.tobytes()
            assert tensor.shape == merged[tensor.name].bits.shape


@pytest.mark.parametrize("points", [1, 2])
def test_slow_loop_holds_two_tensors(points: int, tmp_path: Path) -> None:
    size, workers = 250_000, 4
    values = np.random.default_rng(0).normal(0, 0.02, (10, size))
    for name, factor in (("base", 1.0), ("a", 1.01)):
        write_checkpoint(tmp_path / name, {f"w{place}": floats(row * factor) for place, row in enumerate(values)})
    source = recipe(tmp_path, ["a"], "task_arithmetic")
    vary = {"parameters.scale": [0.5, 2.0][:points]}
    plan = ramerge.plan(source, vary=vary, options=ramerge.Options(threads=workers))
    assert list(plan.tensors())  # what stays is loaded
    buffers = workers * plan.details.resources.buffer_bytes
    held: list[int] = []
    taken: dict[tuple[str, float], bytes] = {}

    tracemalloc.start()
    try:
        for tensor in plan.tensors():
            time.sleep(0.05)  # in which workers that nothing holds back would go on
            held.append(tracemalloc.get_traced_memory()[0])
            digest = hashlib.sha256(tensor.data).digest()
            taken[tensor.name, tensor.point["parameters.scale"]] = digest
    finally:
        tracemalloc.stop()
    assert max(held) <= buffers + 2 * points * size * 2 + 1_000_000
    for scale in vary["parameters.scale"]:
        ramerge.merge(
            {**source, "parameters": {"scale": scale}}, tmp_path / "out", options=ramerge.Options(overwrite=True)
        )
        for name, tensor in read_checkpoint(tmp_path / "out").items():
            assert hashlib.sha256(tensor.bits.tobytes()).digest() == taken.pop((name, scale))
    assert not taken


def test_a_loop_that_fails_ends_it(tmp_path: Path, messages: Messages) -> None:
    before = threading.active_count()
    with messages.raises(KeyError):
        for _tensor in ramerge.plan(recipe(tmp_path, write_simple(tmp_path))).tensors():
            raise KeyError("no such weight")
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ({"parameters.r": [0, -1], "parameters.alpha": [-2]}, ['"parameters.r": -1', '"parameters.alpha": -2']),
        ({"dtype": ["float32"]}, ["only parameters"]),
        ({"parameters.r": []}, ["needs values"]),
        ({"parameters.r": [1, 1]}, ["twice"]),
        ({"parameters.nonsense": [1]}, ["nonsense"]),
        ({"parameters.r": list(range(2000))}, ["2,000 points"]),
        ({}, ["nothing varies"]),
    ],
)
def test_what_cannot_be_swept(vary: dict, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ramerge.RecipeError) as raised:
        ramerge.sweep(recipe(tmp_path, write_simple(tmp_path)), tmp_path / "out", vary=vary)
    assert all(word in str(raised.value) for word in words)
    assert not (tmp_path / "out").exists()


def test_the_disk_for_all_points_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    import shutil

    source = recipe(tmp_path, write_simple(tmp_path))
    one = ramerge.plan(source, tmp_path / "out")
    usage = shutil.disk_usage(tmp_path)._replace(free=one.bytes_written * 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert ramerge.plan(source, tmp_path / "out").problems == ()
    with messages.raises(ramerge.PlanError):
        ramerge.sweep(source, tmp_path / "out", vary=RANGES)


# --- rules -----------------------------------------------------------------------------------------------------------


def test_rules_keep_take_and_change_parameters(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    rules = [
        {"match": "*.layers.0.*", "keep": "base"},
        {"match": "*", "layers": "1", "take": "tool"},
        {"match": ["*.layers.2.*"], "parameters": {"r": 0.0}},
    ]
    source = recipe(tmp_path, names, rules=rules)
    plan = ramerge.plan(source)
    assert plan.details.caught == [1, 1, 1]
    assert "rule 1 (*.layers.0.*) catches 1 tensor" in plan.notes
    record = ramerge.merge(source, tmp_path / "out")
    found, base = read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "base")
    tool = read_checkpoint(tmp_path / "tool")
    ramerge.merge(recipe(tmp_path, names, "ram"), tmp_path / "ram")
    ram = read_checkpoint(tmp_path / "ram")
    for layer, wanted in enumerate((base, tool, ram)):
        name = f"model.layers.{layer}.weight"
        assert np.array_equal(found[name].bits, wanted[name].bits), name
    assert record.merged_tensors == 1
    assert next(iter(record.agents.values())).total == 640
    assert [rule["tensors"] for rule in record.rules] == [1, 1, 1]
    again = ramerge.merge(tmp_path / "out" / "ramerge.yaml", tmp_path / "again")
    assert again.agents == record.agents


def test_first_rule_wins_and_unused_agents_stay_unread(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    rules = [{"match": "*.0.weight", "keep": "base"}, {"parameters": {"alpha": 0.5}}]
    plan = ramerge.plan(recipe(tmp_path, names, rules=rules))
    whole = ramerge.plan(recipe(tmp_path, names))
    assert plan.details.caught == [1, 2]
    assert plan.bytes_read < whole.bytes_read


def test_rules_convert_to_the_dtype_that_is_wanted(tmp_path: Path) -> None:
    names = write_simple(tmp_path, dtype="F32")
    rules = [{"match": "*.0.*", "keep": "base"}, {"match": "*", "take": "code"}]
    ramerge.merge(recipe(tmp_path, names, rules=rules, dtype="float16"), tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    wanted = [read_checkpoint(tmp_path / "base"), *[read_checkpoint(tmp_path / "code")] * 2]
    for layer, source in enumerate(wanted):
        name = f"model.layers.{layer}.weight"
        assert np.array_equal(found[name].bits.view(np.float16), source[name].numbers(np.float32).astype(np.float16))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"match": "nothing.*", "keep": "base"}], ["rule 1: matches no tensor: nothing.*", "no such tensor"]),
        (
            [{"match": "*", "keep": "base"}, {"match": "*", "take": "code"}],
            ["rule 2: matches no tensor", "earlier rules"],
        ),
    ],
)
def test_rules_that_catch_nothing(rules: list, words: list[str], tmp_path: Path) -> None:
    problems = ramerge.plan(recipe(tmp_path, write_simple(tmp_path), rules=rules)).problems
    assert len(problems) == 1
    assert all(word in problems[0] for word in words)


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ({"match": "*"}, "one of keep"),
        ({"match": "*", "keep": "base", "take": "code"}, "one of keep"),
        ({"match": "*", "take": "nobody"}, "rule 1: take: unknown agent 'nobody'"),
        ({"match": "*", "keep": "agent"}, "base"),
        ({"match": "", "keep": "base"}, "empty"),
        ({"layers": "7-3", "keep": "base"}, "layers"),
        ({"match": "*", "parameters": {"r": -1}}, "rule 1: parameters.r: "),
        ({"match": "*", "parameters": {"p": 0.5}}, "belongs to dare"),
        ({"matches": "*", "keep": "base"}, "did you mean 'match'"),
    ],
)
def test_rules_that_make_no_sense(rule: dict, word: str, tmp_path: Path) -> None:
    with pytest.raises(ramerge.RecipeError, match=word):
        ramerge.plan(recipe(tmp_path, write_simple(tmp_path), rules=[rule]))


# --- methods without a base, and with importances --------------------------------------------------------------------


def test_linear_needs_no_base(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    source = recipe(tmp_path, names, "linear")
    ramerge.merge(source, tmp_path / "with")
    ramerge.merge({key: value for key, value in source.items() if key != "base"}, tmp_path / "without")
    found, wanted = read_checkpoint(tmp_path / "without"), read_checkpoint(tmp_path / "with")
    assert all(np.array_equal(found[name].bits, wanted[name].bits) for name in wanted)
    with messages.raises(ramerge.RecipeError):
        ramerge.plan({"method": "ties", "agents": source["agents"]})


def test_importances_are_asked_for_and_checked(tmp_path: Path, messages: Messages) -> None:
    from tests.checkpoints import floats

    names = write_simple(tmp_path, {"a": 0.2})
    with messages.raises(ramerge.RecipeError):
        ramerge.plan(recipe(tmp_path, names, "fisher"))
    tensors = {name: floats(np.ones((40, 16)), "F32") for name in simple(0)}
    agents = {"a": {"model": str(tmp_path / "a"), "importance": str(tmp_path / "f")}}
    source = {"method": "fisher", "base": str(tmp_path / "base"), "agents": agents}
    with messages.raises(ramerge.RecipeError):
        ramerge.plan({**source, "method": "ram"})
    short = dict(list(tensors.items())[1:])
    write_checkpoint(tmp_path / "f", {**short, "model.layers.1.weight": floats(np.ones((3, 3)), "F32")})
    problems = "\n".join(ramerge.plan(source).problems)
    assert "lacks importances of" in problems
    assert "shapes differ" in problems
    for bad in (-1.0, np.nan, np.inf):
        write_checkpoint(tmp_path / "f", {**tensors, "model.layers.1.weight": floats(np.full((40, 16), bad), "F32")})
        with pytest.raises(ramerge.WeightsError, match="640 importances"):
            ramerge.merge(source, tmp_path / "out")


# --- what varies, and what is refused --------------------------------------------------------------------------------


def test_key_and_its_part_cannot_both_vary(tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), "ties")
    vary = {"parameters.weights.code": [1, 2], "parameters.weights": [1, 2]}
    with messages.raises(ramerge.RecipeError):
        ramerge.sweep(source, tmp_path / "out", vary=vary)


def test_long_or_equal_folder_names_are_numbered(tmp_path: Path) -> None:
    write_simple(tmp_path)
    alike = {"a b": str(tmp_path / "code"), "a/b": str(tmp_path / "tool")}
    long = {"x" * 200: str(tmp_path / "code"), "y": str(tmp_path / "tool")}
    for agents in (alike, long):
        first, second = agents
        # once made fit for a file's name, the mappings of the agents that are alike read the same
        weights = [{first: 1, second: 2}, {second: 1, first: 2}]
        source = {"method": "ties", "base": str(tmp_path / "base"), "agents": agents}
        ramerge.sweep(
            source, tmp_path / "out", vary={"parameters.weights": weights}, options=ramerge.Options(overwrite=True)
        )
        found = sorted(path.parent.name for path in (tmp_path / "out").glob("*/model.safetensors"))
        assert found == ["point-1", "point-2"]


def test_changed_copy_of_a_recipe_is_merged(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    read = ramerge.plan(recipe(tmp_path, names)).recipe
    copy = read.model_copy(update={"method": "task_arithmetic"})
    (record,) = ramerge.sweep(copy, tmp_path / "out", vary={"parameters.scale": [0.5]})
    assert (record.method, record.parameters["scale"]) == ("task_arithmetic", 0.5)


# --- notes ------------------------------------------------------------------------------------------------------------


def test_notes_are_in_the_record(tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path)
    source = recipe(tmp_path, ["code"], rules=[{"match": "*", "keep": "base"}])
    source["agents"] = {"code": str(tmp_path / "code"), "again": str(tmp_path / "code")}
    record = ramerge.merge(source, tmp_path / "out")
    messages.check(*record.warnings)
    assert any("leave nothing to merge" in note for note in record.notes)
    assert json.loads((tmp_path / "out/ramerge.json").read_text())["notes"] == list(record.notes)


def test_only_parameters_that_take_effect_are_recorded(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    record = ramerge.merge(source, tmp_path / "out")
    assert list(record.parameters) == ["epsilon", "shared", "r", "scope", "alpha"]
    record = ramerge.merge(
        {**source, "parameters": {"shared": "ties"}}, tmp_path / "out", options=ramerge.Options(overwrite=True)
    )
    assert {"density", "trim"} <= record.parameters.keys()


@pytest.mark.parametrize(
    ("method", "parameters", "word"),
    [
        ("linear", {"weights": 0.0}, "sum to 0"),
        ("linear", {"weights": {"code": 1, "tool": -1, "memory": 0}}, "sum to 0"),
        ("fisher", {"weights": -1.0}, "0 or more"),
        ("ties", {"weights": {"code": "1", "tool": None, "memory": 1}}, "code: must be a number, not '1'; tool: must"),
        ("ties", {"weights": float("nan")}, "must be a finite number"),
        ("ties", {"weights": {"x": 10**400}}, "x: must be a number that a float holds"),
    ],
)
def test_parameters_that_make_no_sense(method: str, parameters: dict, word: str, tmp_path: Path) -> None:
    with pytest.raises(ramerge.RecipeError) as caught:
        ramerge.plan({**recipe(tmp_path, write_simple(tmp_path), method), "parameters": parameters})
    assert word in str(caught.value)


def test_without_a_base_none_can_be_kept(tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), "linear", rules=[{"match": "*.0.*", "keep": "base"}])
    del source["base"]
    with messages.raises(ramerge.RecipeError):
        ramerge.plan(source)


def test_layers_may_be_numbers(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    counts = [
        ramerge.plan(recipe(tmp_path, names, rules=[{"layers": layers, "keep": "base"}])).details.caught
        for layers in ("0", 0, [0])
    ]
    assert counts[0] == counts[1] == counts[2] != [0]


def test_unmerged_tensors_need_no_importances(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    part = {name: floats(np.ones(stored.bits.shape), "F32") for name, stored in simple(0).items() if ".0." in name}
    write_checkpoint(tmp_path / "part", part)
    source = recipe(tmp_path, names, "fisher")
    source["agents"] = {name: {"model": str(tmp_path / name), "importance": str(tmp_path / "part")} for name in names}
    assert ramerge.plan(source).problems
    rules = [{"match": "*.0.*", "parameters": {}}, {"match": "*", "keep": "base"}]
    assert not ramerge.plan({**source, "rules": rules}).problems


def test_importances_that_cannot_be_added_up_are_refused(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    huge = {name: floats(np.full(stored.bits.shape, 3e38), "F32") for name, stored in simple(0).items()}
    write_checkpoint(tmp_path / "huge", huge)
    source = recipe(tmp_path, names, "fisher")
    source["agents"] = {name: {"model": str(tmp_path / name), "importance": str(tmp_path / "huge")} for name in names}
    with pytest.raises(ramerge.WeightsError, match="overflows"):
        ramerge.merge(source, tmp_path / "out")


def test_recorded_inputs_are_prepared_once_per_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, shape = "model.layers.0.mlp.up_proj.weight", (3 << 12, 128)  # several blocks
    for place, name in enumerate(("base", "one", "two")):
        first, moved = (np.random.default_rng(seed).standard_normal(shape) for seed in (0, place))
        write_checkpoint(tmp_path / name, {key: floats(first + 0.01 * moved * bool(place))})
    rows = {key: (np.ones((2, 128)), np.full(2, 0.5))}
    inputs = str(write_inputs(tmp_path / "inputs", rows, tmp_path / "base"))
    agents = {name: {"model": str(tmp_path / name), "inputs": inputs} for name in ("one", "two")}
    made: list[Any] = []
    monkeypatch.setattr(worker, "read_rows", lambda *given: made.append(given) or read_rows(*given))
    recipe = {"method": "regmean", "base": str(tmp_path / "base"), "agents": agents}
    vary = {"parameters.ridge": [0.01, 0.1, 1.0]}
    ramerge.sweep(recipe, tmp_path / "out", vary=vary, options=ramerge.Options(threads=1))
    assert len(made) == 3 * len(agents)
