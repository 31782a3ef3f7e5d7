"""Calibration of the demo's agents: what is recorded, what a merge makes of it, and what bad input gets."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import ramerge
from ramerge.demo.run import AGENTS
from ramerge.demo.tasks import DEMO_AGENTS, TASKS, prompts
from tests.checkpoints import read_checkpoint
from tests.messages import Messages

pytestmark = [
    pytest.mark.full,  # torch
    pytest.mark.needs("torch", "transformers"),
]
torch = pytest.importorskip("torch")

from ramerge.calibration.agreement import UNREWARDED, replies_of  # noqa: E402
from ramerge.calibration.exchanges import Exchange, read_exchanges, to_lines  # noqa: E402
from ramerge.calibration.inputs import InputRecorder, chosen_positions  # noqa: E402
from ramerge.calibration.live import LiveModel, SeededDraws  # noqa: E402
from ramerge.calibration.live_base import LiveBase  # noqa: E402
from ramerge.core.foundation import extras  # noqa: E402

BASE = str(AGENTS / "base")
MODELS = {agent.task.name: str(AGENTS / agent.folder) for agent in DEMO_AGENTS}
SETTINGS = ramerge.CalibrationSettings(count=6, max_new=12, device="cpu")


def calibrate(
    base: str, agents: Mapping[str, Any], prompts: Mapping[str, Any], out: Any, **how: Any
) -> dict[str, ramerge.CalibrationRecord]:
    """`ramerge.calibrate` of a recipe with these models and prompts."""
    return ramerge.calibrate({"base": base, "agents": dict(agents), "prompts": dict(prompts)}, out, **how)


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Path]:
    """A file of prompts for each agent."""
    found = {}
    for task in TASKS:
        found[task.name] = tmp_path / f"{task.name}.jsonl"
        records = [{"prompt": example.prompt} for example in prompts(task, "train", 6, 1)]
        found[task.name].write_text("".join(json.dumps(record) + "\n" for record in records))
    return found


def numbers(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """The tensors of a folder of recorded inputs, and whose they are."""
    from safetensors.torch import load_file

    tensors = {name: one.float().numpy() for name, one in load_file(folder / "inputs.safetensors").items()}
    return tensors, json.loads((folder / "inputs.json").read_text())["inputs"]


def test_inputs_are_those_of_the_layers(tasks: dict[str, Path], tmp_path: Path) -> None:
    settings = replace(SETTINGS, rows=10_000)
    record = calibrate(BASE, {"sort": MODELS["sort"]}, {"sort": tasks["sort"]}, tmp_path / "out", settings=settings)
    tensors, places = numbers(tmp_path / "out/sort")
    assert record["sort"].layers == len(places) == 28  # seven in each of four layers
    model = LiveModel(Path(MODELS["sort"]), torch.device("cpu"), "float32").model
    replies = read_exchanges(tmp_path / "out/sort/replies.jsonl")
    for name in ("layers.0.self_attn.k_proj", "layers.3.mlp.down_proj"):
        seen: list[Any] = []
        layer = model.get_submodule(f"model.{name}")
        hook = layer.register_forward_hook(lambda _layer, inputs, _out, seen=seen: seen.append(inputs[0][0]))
        for each in replies:
            with torch.no_grad():
                model(torch.tensor([each.ids[:-1]]))
        hook.remove()
        rows, weights = places[f"model.{name}.weight"]
        expected = torch.cat(seen).to(torch.bfloat16).float().numpy()
        counted = tensors[weights][:, None] * tensors[rows] ** 2
        assert np.allclose(counted.sum(0), (expected**2).mean(0), rtol=1e-4)
    assert places["model.layers.0.self_attn.q_proj.weight"] == places["model.layers.0.self_attn.v_proj.weight"]
    assert places["model.layers.0.mlp.gate_proj.weight"] == places["model.layers.0.mlp.up_proj.weight"]
    assert not any("embed" in name or "norm" in name or "lm_head" in name for name in places)
    assert tensors["weights"].sum() == pytest.approx(1)


@pytest.mark.parametrize("most", [3, 8, 100])
def test_common_prefix_is_recorded_once(most: int) -> None:
    sequences = [[1, 2, 3, 4], [1, 2, 5], [1, 2, 6, 7, 8]]
    positions, weights = chosen_positions(sequences, [4, 4, 4], most, 0)
    assert positions[1][:1] != [0]
    assert len(weights) == sum(map(len, positions)) == min(most, 8)
    assert weights.sum() == pytest.approx(1)
    if most >= 8:
        assert positions == [[0, 1, 2, 3], [2], [2, 3, 4]]
        assert (12 * weights).round(4).tolist() == [3, 3, 1, 1, 1, 1, 1, 1]


def test_batches_and_what_else_is_asked_change_nothing(tasks: dict[str, Path], tmp_path: Path) -> None:
    for batch in (1, 5):
        calibrate(
            BASE,
            {"add": MODELS["add"]},
            {"add": tasks["add"]},
            tmp_path / str(batch),
            settings=replace(SETTINGS, batch=batch),
        )
    one, five = (read_exchanges(tmp_path / name / "add/replies.jsonl") for name in ("1", "5"))
    assert [each.ids for each in one] == [each.ids for each in five]
    left, right = (numbers(tmp_path / name / "add")[0] for name in ("1", "5"))
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_correction_beats_the_sum_on_replies(tasks: dict[str, Path], tmp_path: Path) -> None:
    settings = replace(SETTINGS, hold_out=True)
    calibrate(BASE, MODELS, tasks, tmp_path / "out", settings=settings)
    agents = {name: {"model": model, "inputs": str(tmp_path / "out" / name)} for name, model in MODELS.items()}
    ramerge.merge({"method": "regmean", "base": BASE, "agents": agents}, tmp_path / "merged")
    ramerge.merge({"method": "linear", "base": BASE, "agents": MODELS}, tmp_path / "mean")
    found = {name: ramerge.agreement(BASE, tmp_path / name, tmp_path / "out") for name in ("merged", "mean")}
    assert found["merged"]["sort"].prompts == 3
    means = {name: sum(one.nll for one in each.values()) / 3 for name, each in found.items()}
    assert means["merged"] < means["mean"]


def test_adapters_and_deltas_are_read_as_in_merges(tasks: dict[str, Path], tmp_path: Path) -> None:
    ramerge.delta(BASE, MODELS["add"], tmp_path / "delta")
    agents = {"add": MODELS["add"], "again": {"delta": str(tmp_path / "delta")}}
    calibrate(BASE, agents, dict.fromkeys(agents, tasks["add"]), tmp_path / "out", settings=SETTINGS)
    left, right = (numbers(tmp_path / "out" / name)[0] for name in agents)
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_wider_agent_is_not_rounded(tmp_path: Path) -> None:
    ramerge.merge(
        {"base": BASE, "agents": {"sort": MODELS["sort"]}, "parameters": {"scale": 0.37}, "method": "task_arithmetic"}
        | {"dtype": "float32"},
        tmp_path / "exact",
    )
    expected = load_file(tmp_path / "exact/model.safetensors")
    settings = replace(SETTINGS, dtype="float32")
    models = ramerge.Recipe(method="uniform", base=BASE, agents={"exact": tmp_path / "exact"})
    with LiveBase(models, settings, ramerge.Options()) as base:
        base.put_agent("exact")
        found = {name: one.detach().numpy() for name, one in base.live.model.named_parameters()}
        for name, values in found.items():
            assert np.array_equal(values, expected[name]), name


def test_matching_inputs_are_kept_others_refused(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    agents, place = {"add": MODELS["add"]}, tmp_path / "out"
    first = calibrate(BASE, agents, {"add": tasks["add"]}, place, settings=SETTINGS)
    assert calibrate(BASE, agents, {"add": tasks["add"]}, place, settings=SETTINGS) == first
    other = replace(SETTINGS, rows=5)
    with messages.raises(ramerge.PlanError):
        calibrate(BASE, agents, {"add": tasks["add"]}, place, settings=other)
    again = calibrate(
        BASE, agents, {"add": tasks["add"]}, place, settings=other, options=ramerge.Options(overwrite=True)
    )
    assert again["add"].rows == 5
    shutil.rmtree(place / "add")
    (place / "add").mkdir()
    with messages.raises(ramerge.PlanError):
        calibrate(BASE, agents, {"add": tasks["add"]}, place, settings=SETTINGS)


def test_a_refused_folder_stays_as_it_is(
    tasks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    agents, place = {"add": MODELS["add"]}, tmp_path / "models"
    (place / "add").mkdir(parents=True)
    with messages.raises(ramerge.PlanError):
        calibrate(BASE, agents, {"add": tasks["add"]}, place, settings=SETTINGS)
    assert [path.name for path in place.iterdir()] == ["add"]

    def full(*_: object) -> None:
        raise ramerge.WeightsError("no room")

    (place / "add").rmdir()
    monkeypatch.setattr(LiveBase, "put_agent", full)
    with messages.raises(ramerge.WeightsError):
        calibrate(BASE, agents, {"add": tasks["add"]}, place, settings=SETTINGS)
    assert not list(place.iterdir())


def test_an_interrupted_run_asks_no_prompt_twice(
    tasks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    generate = LiveModel.generate

    def interrupted(self: LiveModel, tasks: Sequence[Sequence[int]], *rest: Any) -> list[list[int]]:
        calls.append(len(tasks))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(self, tasks, *rest)

    monkeypatch.setattr(LiveModel, "generate", interrupted)
    settings = replace(SETTINGS, batch=2)
    arguments: Any = (BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        calibrate(*arguments, settings=settings)
    assert not (tmp_path / "out/add").exists()
    assert calibrate(*arguments, settings=settings)["add"].prompts == 6
    assert calls == [2, 2, 2, 2]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock", "add"]


def test_sampled_replies_depend_on_seed_not_batch(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    def replies(name: str, **how: Any) -> list[tuple[int, ...]]:
        calibrate(
            BASE,
            {"add": MODELS["add"]},
            {"add": tasks["add"]},
            tmp_path / name,
            settings=replace(SETTINGS, **how),
        )
        return [each.ids for each in read_exchanges(tmp_path / name / "add/replies.jsonl")]

    one = replies("one", temperature=2.0, batch=1)
    assert replies("five", temperature=2.0, batch=5) == one
    assert replies("greedy") != one != replies("other", temperature=2.0, reply_seed=1)
    assert replies("cold", temperature=1e-4) == replies("again")
    with messages.raises(ramerge.PlanError):
        replies("one", temperature=1.9)
    with messages.raises(ramerge.RecipeError):
        replies("bad", temperature=float("nan"))


def test_samples_are_distributed_as_the_model_says() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1e9]]).expand(4000, 4)
    draws = SeededDraws(0.5, [str(place) for place in range(4000)])
    drawn = draws(torch.empty(4000, 0), logits).argmax(1)
    shares = torch.bincount(drawn, minlength=4) / 4000
    assert torch.allclose(shares, torch.softmax(logits[0] / 0.5, 0), atol=0.025)
    assert shares[3] == 0


@pytest.mark.parametrize("fits", [0, 1, 3])
def test_short_memory_asks_fewer_prompts_at_once(
    fits: int, tasks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    calls: list[int] = []
    generate = LiveModel.generate

    def short(self: LiveModel, tasks: Sequence[Sequence[int]], *rest: Any) -> list[list[int]]:
        calls.append(len(tasks))
        if len(tasks) > fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return generate(self, tasks, *rest)

    whole = calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "whole", settings=SETTINGS)
    monkeypatch.setattr(LiveModel, "generate", short)
    arguments: Any = (BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out")
    if not fits:
        with messages.raises(ramerge.PlanError):
            calibrate(*arguments, settings=SETTINGS)
        assert calls == [6, 3, 1]
        return
    assert calibrate(*arguments, settings=SETTINGS)["add"].fingerprint == whole["add"].fingerprint
    assert calls == ([6, 3, 3] if fits == 3 else [6, 3, 1, 1, 1, 1, 1, 1])
    files = [(tmp_path / place / "add/replies.jsonl").read_text() for place in ("whole", "out")]
    assert files[0] == files[1]


def test_too_long_prompt_is_named_with_its_length(
    tasks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)

    def losses(self: LiveModel, ids: Sequence[int], start: int) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LiveModel, "losses", losses)
    with messages.raises(ramerge.PlanError):
        ramerge.agreement(BASE, MODELS["add"], tmp_path / "out", settings=SETTINGS)


@pytest.mark.parametrize("raised", [ValueError("no experts\nfor it"), KeyError()])
def test_error_of_model_code_is_named(
    raised: Exception, tasks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    def forward(self: Any, x: Any) -> Any:
        raise raised

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    text = "ValueError: no experts;" if raised.args else "KeyError;"
    place = r"LlamaForCausalLM, fails in a forward pass \(test_calibrate\.py, line .*\): "
    with pytest.raises(ramerge.CheckpointError, match=place + text):
        calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)


def test_replies_to_other_prompts_are_not_reused(tasks: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.add.replies.jsonl").write_text(
        '{"fingerprint": "other"}\n' + to_lines([Exchange("x", (1, 2), 1, "no", key="k")])
    )
    record = calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    assert record["add"].prompts == 6
    assert all(each.text != "no" for each in read_exchanges(tmp_path / "out/add/replies.jsonl"))


def test_rollouts_are_reused_and_the_best_counts(tmp_path: Path) -> None:
    records = [
        {"input": f"{number}+100=", "output": str(number + 100 - wrong), "score": 1 - wrong}
        for number in (111, 222, 333, 444)
        for wrong in (1, 0)
    ]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = replace(SETTINGS, hold_out=True)
    record = calibrate(BASE, {"add": MODELS["add"]}, {"add": path}, tmp_path / "out", settings=settings)["add"]
    assert (record.generated, record.rewarded, record.held_out) == (0, 4, 2)
    replies = read_exchanges(tmp_path / "out/add/replies.jsonl")
    assert [each.text for each in replies] == ["211", "322", "433", "544"]
    replies = replies_of(tmp_path / "out")
    assert replies.rewarded
    assert any("the choice is unreliable; give more prompts" in note for note in replies.notes)


def test_only_right_replies_count_where_rewards_are_known(tmp_path: Path, messages: Messages) -> None:
    def exchange(place: int, reward: float | None, held_out: bool = True) -> Exchange:
        return Exchange(f"p{place}", (1, 2), 1, "x", reward, held_out=held_out, key=str(place))

    def kept(**agents: Sequence[Exchange]) -> Path:
        for name, exchanges in agents.items():
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            (folder / "replies.jsonl").write_text(to_lines(exchanges))
        return tmp_path

    names = ["a", "b"]
    found = replies_of(
        kept(a=[exchange(1, 1.0), exchange(2, 0.5), exchange(3, 1.0, False)], b=[exchange(1, 0.5)]), names
    )
    assert [each.place for each in found.exchanges["a"]] == ["p1"]
    assert list(found.exchanges) == ["a"]
    assert "b: of 1 reply, none earned 1" in found.notes[0]
    assert list(replies_of(tmp_path, names, 0.5).exchanges) == names
    assert replies_of(kept(a=[exchange(1, None)], b=[exchange(1, None)]), names).notes[0] == UNREWARDED
    with messages.raises(ramerge.InputError):
        replies_of(kept(a=[]), names)


def test_different_replies_to_common_prompts_are_reported_without_rewards(tmp_path: Path, messages: Messages) -> None:
    def notes(replies: str, reward: float | None = None) -> tuple[str, ...]:
        for name, text in (("a", "xxxx"), ("b", replies)):
            (tmp_path / name).mkdir(exist_ok=True)
            exchanges = [Exchange("p", (1, 2), 1, one, reward, key=str(place)) for place, one in enumerate(text)]
            (tmp_path / name / "replies.jsonl").write_text(to_lines(exchanges))
        return tuple(note for note in replies_of(tmp_path, ["a", "b"]).notes if "common prompt" in note)

    assert notes("xxxx") == () and notes("yyyy", 1.0) == ()
    messages.check(*notes("yxxx"))


def test_a_reward_function_scores_generated_replies(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "r.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth=None, **more):\n    return len(solution_str)\n"
    )
    settings = replace(SETTINGS, reward=f"{tmp_path / 'r.py'}:compute_score")
    record = calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=settings)
    assert record["add"].rewarded == 6
    replies = read_exchanges(tmp_path / "out/add/replies.jsonl")
    assert [each.reward for each in replies] == [len(each.text) for each in replies]
    bad = replace(SETTINGS, reward=f"{tmp_path / 'r.py'}:nothing")
    with messages.raises(ramerge.RecipeError):
        calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "bad", settings=bad)


def test_inputs_of_another_model_are_refused(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    agents = {"sort": {"model": MODELS["sort"], "inputs": str(tmp_path / "out/add")}}
    agents |= {"add": {"model": MODELS["add"], "inputs": str(tmp_path / "out/add")}}
    with messages.raises(ramerge.WeightsError) as caught:
        ramerge.merge({"method": "regmean", "base": BASE, "agents": agents}, tmp_path / "merged")
    assert len(caught.value.problems) == 1
    assert not (tmp_path / "merged").exists()


def test_rules_may_keep_tensors_of_agents_with_inputs(
    tasks: dict[str, Path], tmp_path: Path, messages: Messages
) -> None:
    """What is read of the agent is compared."""
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    agents = {"add": {"model": MODELS["add"], "inputs": str(tmp_path / "out/add")}}
    kept = {"match": "*.mlp.*", "keep": "base"}
    ramerge.merge({"method": "regmean", "base": BASE, "agents": agents, "rules": [kept]}, tmp_path / "merged")
    merged, base = read_checkpoint(tmp_path / "merged"), read_checkpoint(Path(BASE))
    equal = {name for name, one in merged.items() if one.bits.tobytes() == base[name].bits.tobytes()}
    assert equal >= {name for name in base if ".mlp." in name} and equal != base.keys()
    agents["add"]["model"] = MODELS["sort"]
    with messages.raises(ramerge.WeightsError):
        ramerge.merge({"method": "regmean", "base": BASE, "agents": agents, "rules": [kept]}, tmp_path / "other")


def test_importances_of_another_model_are_refused(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    settings = replace(SETTINGS, gather="importance")
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=settings)
    agents = {"sort": {"model": MODELS["sort"], "importance": str(tmp_path / "out/add/importance")}}
    agents |= {"add": {"model": MODELS["add"], "importance": str(tmp_path / "out/add/importance")}}
    with messages.raises(ramerge.WeightsError) as caught:
        ramerge.merge({"method": "fisher", "base": BASE, "agents": agents}, tmp_path / "merged")
    assert len(caught.value.problems) == 1
    del agents["sort"]
    ramerge.merge({"method": "fisher", "base": BASE, "agents": agents}, tmp_path / "merged")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model.nothing.weight": ["rows.x", "weights"]}, "names weights that the base does not have: 'model.nothing"),
        ({"model.layers.0.self_attn.q_proj.weight": ["rows.x", "weights"]}, "lacks the tensor 'rows.x'"),
    ],
)
def test_plan_refuses_inputs_of_missing_weights(
    change: dict[str, list[str]], problem: str, tasks: dict[str, Path], tmp_path: Path
) -> None:
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    places = json.loads((tmp_path / "out/add/inputs.json").read_text())
    (tmp_path / "out/add/inputs.json").write_text(json.dumps({**places, "inputs": {**places["inputs"], **change}}))
    agents = {"add": {"model": MODELS["add"], "inputs": str(tmp_path / "out/add")}}
    found = ramerge.plan({"method": "regmean", "base": BASE, "agents": agents}).problems
    assert len(found) == 1 and problem in found[0]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda whole: whole[:-100], "truncated: tensors run 100 bytes past the file's end"),
        (lambda whole: bytes(len(whole)), "the header is not JSON"),
    ],
)
def test_plan_refuses_damaged_inputs(damage: Any, problem: str, tasks: dict[str, Path], tmp_path: Path) -> None:
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    file = tmp_path / "out/add/inputs.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    agents = {"add": {"model": MODELS["add"], "inputs": str(tmp_path / "out/add")}}
    (found,) = ramerge.plan({"method": "regmean", "base": BASE, "agents": agents}).problems
    assert problem in found


def test_inputs_without_a_model_are_refused(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    (tmp_path / "out/add/model.json").unlink()
    agents = {"add": {"model": MODELS["add"], "inputs": str(tmp_path / "out/add")}}
    with messages.raises(ramerge.WeightsError):
        ramerge.merge({"method": "regmean", "base": BASE, "agents": agents}, tmp_path / "merged")


def test_base_inputs_serve_every_agent(tasks: dict[str, Path], tmp_path: Path) -> None:
    settings = replace(SETTINGS, source="base")
    agents = {name: MODELS[name] for name in ("add", "sort")}
    calibrate(BASE, agents, {name: tasks[name] for name in agents}, tmp_path / "out", settings=settings)
    recipe = {name: {"model": model, "inputs": str(tmp_path / "out" / name)} for name, model in agents.items()}
    record = ramerge.merge({"method": "regmean", "base": BASE, "agents": recipe}, tmp_path / "merged")
    assert (record.method, list(record.agents)) == ("regmean", list(agents))


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"prompts": {"add": "P", "nobody": "P"}}, ramerge.RecipeError, "nobody"),
        ({"prompts": {}}, ramerge.RecipeError, "add: has no prompts"),
        (
            {"settings": replace(SETTINGS, count=0)},
            ramerge.RecipeError,
            "count: 0 must be a whole number of at least 1",
        ),
        ({"settings": replace(SETTINGS, device="tpu")}, ramerge.RecipeError, "'tpu' is not one of"),
        ({"settings": replace(SETTINGS, dtype="int8")}, ramerge.RecipeError, "dtype: 'int8' must be one of"),
    ],
)
def test_bad_arguments(
    change: dict[str, Any], error: type[Exception], problem: str, tasks: dict[str, Path], tmp_path: Path
) -> None:
    files = dict.fromkeys(change.get("prompts", {"add": ""}), tasks["add"])
    with pytest.raises(error, match=problem):
        calibrate(BASE, {"add": MODELS["add"]}, files, tmp_path / "out", settings=change.get("settings", SETTINGS))


def test_one_prompt_cannot_be_held_out(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "1+1="}\n')
    settings = replace(SETTINGS, hold_out=True)
    with messages.raises(ramerge.InputError):
        calibrate(BASE, {"add": MODELS["add"]}, {"add": tmp_path / "p.jsonl"}, tmp_path / "out", settings=settings)


def test_prompts_beyond_the_context_are_cut(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "1+1=" * 40}) + "\n")
    record = calibrate(BASE, {"add": MODELS["add"]}, {"add": tmp_path / "p.jsonl"}, tmp_path / "out", settings=SETTINGS)
    (reply,) = read_exchanges(tmp_path / "out/add/replies.jsonl")
    assert reply.truncated
    assert len(reply.ids) <= 64
    assert any("were cut" in note for note in record["add"].notes)


def test_messages_without_a_chat_template_are_refused_once(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": f"{n}+1="}]}) + "\n" for n in range(3))
    )
    with messages.raises(ramerge.InputError) as error:
        calibrate(BASE, {"add": MODELS["add"]}, {"add": tmp_path / "p.jsonl"}, tmp_path / "out", settings=SETTINGS)
    assert len(error.value.problems) == 1


def test_a_model_that_transformers_cannot_load_is_named(
    tasks: dict[str, Path], tmp_path: Path, messages: Messages
) -> None:
    for name in ("base", "coder"):
        shutil.copytree(AGENTS / name, tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps({**config, "model_type": "of-tomorrow"}))
    with messages.raises(ramerge.CheckpointError):
        calibrate(
            tmp_path / "base",
            {"add": str(tmp_path / "coder")},
            {"add": tasks["add"]},
            tmp_path / "out",
            settings=SETTINGS,
        )


def test_weights_that_are_not_finite_are_found(
    tasks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    put = LiveModel.put

    def damaged(self: LiveModel, tensors: Any) -> None:
        put(self, tensors)
        self.targets["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")

    monkeypatch.setattr(LiveModel, "put", damaged)
    with messages.raises(ramerge.WeightsError):
        calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    assert not (tmp_path / "out/add").exists()


def test_without_torch_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    text = re.escape(f"prompts need torch and transformers, which are not installed: {extras.install_command('torch')}")
    with pytest.raises(ramerge.RecipeError, match=f"^{text}$"):
        calibrate(BASE, {}, {}, "out")


def test_experts_are_recorded_by_themselves(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        hidden_size=16, intermediate_size=32, moe_intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_experts=4, num_experts_per_tok=2, vocab_size=32,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    live = LiveModel(tmp_path, torch.device("cpu"), "float32")
    recorder = InputRecorder(live, live.targets, 100, 0)
    recorder.begin([0, 1, 2, 3, 4], 5, live.device)
    with recorder:
        live.run_layers([1, 2, 3, 4, 5])
    found = recorder.result(np.full(5, 0.2, np.float32), 5)
    names = [
        f"model.layers.0.mlp.experts.{expert}.{kind}_proj.weight"
        for expert in range(4)
        for kind in ("gate", "up", "down")
    ]
    seen = [name for name in names if name in found.places]
    assert len(seen) >= 6
    weights = sum(found.weights[found.places[name][1]].sum() for name in seen if "gate" in name)
    assert weights == pytest.approx(2)  # each token goes to two experts
    for name in seen:
        assert found.rows[found.places[name][0]].shape[1] == (8 if "down" in name else 16)
        assert found.places[name.replace("gate", "up")] == found.places[name.replace("up", "gate")] or "down" in name
    assert "model.layers.0.mlp.gate.weight" in found.places


@pytest.mark.parametrize("kind", ["minimax_m2", "glm4_moe"])
def test_agent_buffers_enter_the_model(kind: str, tmp_path: Path) -> None:
    """Biases that balance the use of experts are buffers; the names of MiniMax's differ in files and in memory."""
    transformers = pytest.importorskip("transformers")
    experts = {"n_routed_experts": 4} if kind == "glm4_moe" else {"num_local_experts": 4}
    config = transformers.AutoConfig.for_model(
        kind, **experts, hidden_size=16, intermediate_size=8, moe_intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts_per_tok=2, vocab_size=32,
        first_k_dense_replace=0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name in ("base", "agent"):
        for tensor in model.state_dict().values():
            tensor.normal_()
        model.save_pretrained(tmp_path / name)
    models = ramerge.Recipe(method="uniform", base=tmp_path / "base", agents={"agent": tmp_path / "agent"})
    with LiveBase(models, SETTINGS, ramerge.Options()) as base:
        base.put_agent("agent")
        found = base.live.model.state_dict()
    assert any(name.endswith("e_score_correction_bias") for name in found)
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../out", ".hidden", "n" * 200])
def test_names_leading_out_are_refused(name: str, tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    with messages.raises(ramerge.RecipeError):
        calibrate(BASE, {name: MODELS["add"]}, {name: tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_model_is_refused(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    shutil.copytree(AGENTS / "coder", tmp_path / "model")
    before = sorted(path.name for path in (tmp_path / "model").iterdir())
    with messages.raises(ramerge.PlanError):
        calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "model", settings=SETTINGS)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == before


def test_truncated_journal_is_continued(tasks: dict[str, Path], tmp_path: Path) -> None:
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "one", settings=SETTINGS)
    first = read_exchanges(tmp_path / "one/add/replies.jsonl")
    record = json.loads((tmp_path / "one/add/calibration.json").read_text())
    (tmp_path / "two").mkdir()
    journal = json.dumps({"fingerprint": record["fingerprint"]}) + "\n" + to_lines(first)[:-30]
    (tmp_path / "two/.add.replies.jsonl").write_text(journal)
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "two", settings=SETTINGS)
    assert read_exchanges(tmp_path / "two/add/replies.jsonl") == first


def test_any_changed_weight_is_another_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from ramerge.core.engine.gathered_from import digests_of
    from ramerge.core.formats.open import open_checkpoint
    from ramerge.core.tensors.reader import Files, Reader

    def digests() -> dict[str, str]:
        opened = open_checkpoint(tmp_path / "add")
        with Files(opened.files) as files:
            return digests_of(opened.tensors, Reader(files))

    shutil.copytree(AGENTS / "coder", tmp_path / "add")
    before = digests()
    tensors = load_file(tmp_path / "add/model.safetensors")
    for name in tensors:
        changed = {**tensors, name: tensors[name].clone()}
        changed[name].view(-1)[-1] += 1
        save_file(changed, tmp_path / "add/model.safetensors")
        after = digests()
        assert [one for one in before if after[one] != before[one]] == [name]


def test_prompts_without_the_truth_of_a_reward(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    function = tmp_path / "r.py"
    function.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n")
    settings = replace(SETTINGS, reward=f"{function}:compute_score")
    with pytest.raises(ramerge.InputError) as caught:
        calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=settings)
    [problem] = caught.value.problems
    messages.check(problem)
    assert not (tmp_path / "out").exists(), "no agent was asked"
    records = [json.loads(line) for line in tasks["add"].read_text().splitlines()]
    with_truth = [{**record, "reward_model": {"ground_truth": "1"}} for record in records]
    tasks["add"].write_text("".join(f"{json.dumps(record)}\n" for record in with_truth))
    record = calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=settings)
    assert record["add"].rewarded == 6


def test_non_numeric_reward_is_refused(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "r.py").write_text("def compute_score(**about):\n    return float('nan')\n")
    settings = replace(SETTINGS, reward=f"{tmp_path / 'r.py'}:compute_score")
    with messages.raises(ramerge.InputError):
        calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=settings)
    with messages.raises(ramerge.RecipeError):
        ramerge.agreement(BASE, MODELS["add"], tmp_path / "out", settings=replace(SETTINGS, right_at=float("nan")))


def test_an_edited_reward_function_scores_again(
    tasks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    settings = replace(SETTINGS, reward=f"{tmp_path / 'r.py'}:compute_score")
    for reward in (1.0, 0.5):
        (tmp_path / "r.py").write_text(f"def compute_score(**about):\n    return {reward}\n")
        os.utime(tmp_path / "r.py", (1e9, 1e9))  # to Python's cache of compiled files, the same file
        options = ramerge.Options(overwrite=True)
        arguments: Any = (BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out")
        calibrate(*arguments, settings=settings, options=options)
        assert {each.reward for each in read_exchanges(tmp_path / "out/add/replies.jsonl")} == {reward}


def test_the_agent_s_own_chat_template_is_used(tmp_path: Path) -> None:
    shutil.copytree(AGENTS / "coder", tmp_path / "chat")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    config = json.loads((tmp_path / "chat/tokenizer_config.json").read_text())
    (tmp_path / "chat/tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "347+586="}]}\n')
    agents = {"add": str(tmp_path / "chat")}
    calibrate(BASE, agents, {"add": tmp_path / "p.jsonl"}, tmp_path / "out", settings=SETTINGS)
    (reply,) = read_exchanges(tmp_path / "out/add/replies.jsonl")
    assert reply.text == "933"


def test_replies_of_another_base_are_refused(tasks: dict[str, Path], tmp_path: Path, messages: Messages) -> None:
    calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    path = tmp_path / "out/add/replies.jsonl"
    replies = read_exchanges(path)
    path.write_text(to_lines([replace(replies[0], ids=(99_999, *replies[0].ids[1:]))]))
    with messages.raises(ramerge.InputError):
        ramerge.agreement(BASE, MODELS["add"], tmp_path / "out", settings=SETTINGS)


def test_inputs_that_were_cut_off_are_recorded_again(tasks: dict[str, Path], tmp_path: Path) -> None:
    agents = {"add": MODELS["add"]}
    calibrate(BASE, agents, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    file = tmp_path / "out/add/inputs.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    options = ramerge.Options(overwrite=True)
    calibrate(BASE, agents, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS, options=options)
    assert file.read_bytes() == whole


def test_inputs_that_count_nothing_are_refused(tasks: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    agents = {"add": MODELS["add"]}
    calibrate(BASE, agents, {"add": tasks["add"]}, tmp_path / "out", settings=SETTINGS)
    tensors = load_file(tmp_path / "out/add/inputs.safetensors")
    save_file({**tensors, "weights": tensors["weights"] * 0}, tmp_path / "out/add/inputs.safetensors")
    inputs = {"add": {"model": MODELS["add"], "inputs": str(tmp_path / "out/add")}}
    with pytest.raises(ramerge.WeightsError, match="only zero weights"):
        ramerge.merge({"method": "regmean", "base": BASE, "agents": inputs}, tmp_path / "merged")


def test_empty_given_reply_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "add.jsonl"
    path.write_text('{"prompt": "1+2=", "reply": ""}\n{"prompt": "3+4=", "reply": "7"}\n')
    record = calibrate(BASE, {"add": MODELS["add"]}, {"add": path}, tmp_path / "out", settings=SETTINGS)["add"]
    assert (record.prompts, record.generated) == (2, 1)


def test_decoded_prompts_that_no_template_writes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "add.jsonl"  # as verl dumps rollouts: special tokens are left out
    path.write_text('{"input": "user\\n1+2=\\nassistant\\n", "output": "3", "score": 1.0, "step": 1}\n')
    record = calibrate(BASE, {"add": MODELS["add"]}, {"add": path}, tmp_path / "out", settings=SETTINGS)["add"]
    assert any("1 of 1 prompts are taken as plain text" in note for note in record.notes)


def test_long_reply_limit_does_not_cut_prompts(tasks: dict[str, Path], tmp_path: Path) -> None:
    settings = ramerge.CalibrationSettings(count=2, device="cpu")  # the model has fewer positions than replies may have
    record = calibrate(BASE, {"add": MODELS["add"]}, {"add": tasks["add"]}, tmp_path / "out", settings=settings)["add"]
    assert not record.notes
    texts = {each.text for each in read_exchanges(tmp_path / "out/add/replies.jsonl")}
    assert all(len(text) in (3, 4) and text.isdigit() for text in texts)
