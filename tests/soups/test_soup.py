"""`ramerge soup`: which checkpoints a run has, the recipe that is made of them, and the same bytes from every form."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.foundation.errors import EvaluationError, RecipeError
from ramerge.scoring.scores import objective_of
from ramerge.searches.search import scorer_of
from ramerge.soups.checkpoints import checkpoints_of
from ramerge.soups.ema import EMA, EmaParameters
from ramerge.soups.extrapolate import EXTRAPOLATE, ExtrapolateParameters
from ramerge.soups.greedy import GreedyResult, greedy_soup
from ramerge.soups.recipe import read_request
from ramerge.soups.scored import SCORED, ScoredParameters
from ramerge.soups.scores import means, most_relevant
from ramerge.soups.steps import SteppedParameters, steps_of
from tests.checkpoints import floats, read_checkpoint, write_checkpoint
from tests.commands import ramerge as command
from tests.messages import Messages
from tests.reference import Stored, uniform

SHAPES = {"model.embed_tokens.weight": (300, 40), "model.layers.0.w": (60, 40), "model.norm.weight": (40,)}


def write_run(folder: Path, count: int = 5, dtype: str = "BF16") -> list[dict[str, Stored]]:
    """A base, checkpoints `run/global_step_10` and so on, and the chain of their deltas."""
    rng = np.random.default_rng(5)
    values = {name: rng.normal(0, 0.05, shape) for name, shape in SHAPES.items()}
    write_checkpoint(folder / "base", {name: floats(each, dtype) for name, each in values.items()})
    below, found = folder / "base", []
    for place in range(1, count + 1):
        values = {
            name: each + np.where(rng.random(each.shape) < 0.1, rng.normal(0, 0.01, each.shape), 0)
            for name, each in values.items()
        }
        here = folder / "run" / f"global_step_{10 * place}"
        write_checkpoint(here, {name: floats(each, dtype) for name, each in values.items()}, shards=2)
        ramerge.delta(below, here, folder / "chain" / f"step_{10 * place}")
        ramerge.delta(folder / "base", here, folder / "star" / f"step_{10 * place}")
        found.append(read_checkpoint(here))
        below = here
    return found


def same(found: Path, wanted: dict[str, Stored]) -> None:
    tensors = read_checkpoint(found)
    assert tensors.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert tensors[name].bits.tobytes() == tensor.bits.tobytes(), name


@pytest.mark.parametrize("words", [["run"], ["chain", "--base", "base"], ["star", "--base", "base"]])
@pytest.mark.parametrize("last", [None, 3, 1])
def test_all_forms_of_a_run_agree(
    words: list[str], last: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = write_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    run, *flags = words
    done = command("soup", run, "out", *flags, *(["--last", str(last)] if last else []), "--quiet")
    assert done.returncode == 0, done.stderr
    taken = models[-last:] if last else models
    agents = {str(place): model for place, model in enumerate(taken)}
    same(tmp_path / "out", uniform(read_checkpoint(tmp_path / "base"), agents))
    record = json.loads((tmp_path / "out/ramerge.json").read_text())
    assert record["method"] == "uniform"
    assert [agent["weight"] for agent in record["agents"].values()] == [1 / len(taken)] * len(taken)
    again = ramerge.merge(tmp_path / "out/ramerge.yaml", tmp_path / "again")
    assert again.agents.keys() == {f"step-{10 * (5 - len(taken) + place)}" for place in range(1, len(taken) + 1)}
    same(tmp_path / "again", read_checkpoint(tmp_path / "out"))


def test_a_checkpoint_of_the_run_is_not_replaced(tmp_path: Path, messages: Messages) -> None:
    write_run(tmp_path)
    done = command("soup", tmp_path / "run", tmp_path / "run/global_step_10", "--last", "2", "--overwrite")
    assert done.returncode == 2
    messages.check(done.stderr)


def test_a_soup_is_not_written_into_its_run(tmp_path: Path, messages: Messages) -> None:
    write_run(tmp_path)
    done = command("soup", tmp_path / "run", tmp_path / "run/global_step_99")
    assert done.returncode == 2 and not (tmp_path / "run/global_step_99").exists()
    messages.check(done.stderr)


def test_what_is_no_run_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["nowhere"], "nowhere: no such folder"),
        (["base"], "base: holds no checkpoints with a step in their names"),
        (["run", "base"], "run: is no checkpoint; name one folder of checkpoints"),
    ):
        with pytest.raises(RecipeError, match=said):
            checkpoints_of(words)


def test_a_chain_of_steps_that_changed_nothing(tmp_path: Path) -> None:
    """Deltas on a model that are that model: as the first, in the middle, and as the last."""
    (moved,) = write_run(tmp_path, 1)
    models = [tmp_path / "base", tmp_path / "base", *[tmp_path / "run" / "global_step_10"] * 3]
    for step, (below, here) in enumerate(pairwise(models), 1):
        ramerge.delta(below, here, tmp_path / "still" / f"step_{step}")
    for last, steps in ((2, (3, 4)), (4, (1, 2, 3, 4))):
        out = tmp_path / f"soup-{last}"
        command("soup", str(tmp_path / "still"), str(out), "--base", str(tmp_path / "base"), "--last", str(last))
        same(out, uniform(moved, {step: read_checkpoint(models[step]) for step in steps}))


def test_a_chain_with_checkpoints_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = write_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    agents: dict[str, Any] = {
        "s2": {"delta": ["chain/step_10", "chain/step_20"]},
        "s4": {"delta": ["chain/step_30", "chain/step_40"], "over": "s2"},
        "s5": {"delta": "chain/step_50", "over": "s4"},
    }
    ramerge.merge({"method": "uniform", "base": "base", "agents": agents}, "out")
    taken = {"s2": models[1], "s4": models[3], "s5": models[4]}
    same(tmp_path / "out", uniform(read_checkpoint(tmp_path / "base"), taken))
    plan = ramerge.plan({"method": "uniform", "base": "base", "agents": agents})
    chain = sum(path.stat().st_size for path in (tmp_path / "chain").rglob("delta-*.safetensors"))
    base = sum(path.stat().st_size for path in (tmp_path / "base").rglob("*.safetensors"))
    assert plan.bytes_read < chain + base  # every link once


def test_methods_of_task_vectors_over_a_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    for name, kind in (("whole", ["run"]), ("packed", ["chain"])):
        flags = ["--strategy", "relex", "--base", "base", "--set", "at=100", "--quiet"]
        done = command("soup", *kind, name, *flags)
        assert done.returncode == 0, done.stderr
    same(tmp_path / "packed", read_checkpoint(tmp_path / "whole"))


def test_the_recipe_names_every_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 4)
    monkeypatch.chdir(tmp_path)
    flags = ["--strategy", "ema", "--set", "half_life=15", "--steps", "20:", "--write-recipe", "soup.yaml"]
    done = command("soup", "chain", "--base", "base", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "soup.yaml: recipe with all flags applied\n"
    recipe = ramerge.read_recipe("soup.yaml")
    assert recipe.parameters == {"half_life": 15, "steps": {"step-20": 20, "step-30": 30, "step-40": 40}}
    assert recipe.agents["step-20"].delta == ("./chain/step_10", "./chain/step_20")
    assert recipe.agents["step-30"].over == "step-20"
    record = ramerge.merge("soup.yaml", "out")
    half = 2 ** (-10 / 15)
    wanted = [half * half, (1 - half) * half, 1 - half]
    assert [agent.weight for agent in record.agents.values()] == pytest.approx(wanted)


def test_steps_come_from_names_or_the_trainers_state(tmp_path: Path) -> None:
    write_run(tmp_path, 2)
    source = tmp_path / "run/global_step_20"
    (tmp_path / "mixed").mkdir()
    (tmp_path / "run/global_step_10").rename(tmp_path / "mixed/iter_0000010")
    source.rename(tmp_path / "mixed/final")
    (tmp_path / "mixed/final/trainer_state.json").write_text('{"global_step": 25}')
    (tmp_path / "mixed/logs_3").mkdir()
    assert [(one.step, Path(one.model).name) for one in checkpoints_of([str(tmp_path / "mixed")])] == [
        (10, "iter_0000010"),
        (25, "final"),
    ]
    names = [str(tmp_path / "mixed/final"), str(tmp_path / "mixed/iter_0000010")]
    assert [one.step for one in checkpoints_of(names)] == [10, 25]
    assert steps_of(SteppedParameters(), ("code", "tool")) == (1, 2)


def test_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    write_run(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "final").symlink_to(tmp_path / "run/global_step_30")
    for words, text in (
        (["chain", "out"], "give the model that it is for with --base MODEL"),
        (["base", "out"], "holds no checkpoints with a step in their names"),
        (["run", "out", "--steps", "70:"], "no checkpoint is in this range; the run's steps are 10 to 30"),
        (["run", "out", "--steps", "70"], "must be A:B"),
        (["run", "out", "--set", "half_life=3"], "unknown parameter of uniform 'half_life'"),
        (["run/global_step_10", "chain/step_10", "out"], "are both of step 10"),
        (["run/global_step_10", "lost", "out"], "lost: no such folder"),
        (["run/global_step_10", "final", "out"], "final: has no step in its name, as others have"),
        (["run", "out", "--score", "x.py:f"], "--score: is for --strategy greedy, and this is uniform"),
        (["run", "out", "--strategy", "scored"], "give the logs of `ramerge eval` with --scores LOGS"),
        (["run", "out", "--strategy", "relex"], "give it with --base MODEL"),
        (["run", "out", "--html", "x.html"], "--html: is for --analyze"),
        (["run", "--analyze", "--base", "base", "--html", "base/config.json"], "it is a file of a checkpoint"),
        (["run", "--strategy", "greedy", "--write-recipe", "-"], "greedy writes its own recipe"),
        (["run", "out", "--strategy", "greedy", "--score", "x.py:f", "--as-delta"], "greedy writes a whole model"),
        (["run", "out", "--strategy", "greedy", "--score", "x.py:f", "--score-timeout", "nan"], "seconds above 0"),
        (["run", "out", "--strategy", "extrapolate", "--set", "alpha=1e300"], "alpha"),
        (["run", "out", "--write-recipe", "-"], "out: no such folder; --write-recipe and --analyze merge nothing"),
    ):
        done = command("soup", *words)
        assert done.returncode != 0
        assert text in done.stderr, done.stderr
    (tmp_path / "chain/step_20").rename(tmp_path / "gone")
    done = command("soup", "chain", "out", "--base", "base")
    messages.check(done.stderr)
    assert "step_30 start from different models" in " ".join(done.stderr.split())
    recipe = {"base": "base", "agents": {"b": {"delta": "chain/step_30", "over": "a"}, "a": "run/global_step_20"}}
    with messages.raises(RecipeError):
        ramerge.read_recipe(recipe)


def test_the_checkpoint_that_diverged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.ones((4, 8))
    for step in range(1, 21):
        values[1, 2] = np.nan if step >= 14 else step
        write_checkpoint(Path(f"run/step_{step}"), {"w": floats(values, "F32")})
    done = command("soup", "run", "out")
    expected = "step_14/model.safetensors: step-14, and perhaps others: tensor 'w' holds 1 NaN or Inf"
    assert expected in " ".join(done.stderr.split())
    done = command("soup", "run", "out", "--strategy", "extrapolate")
    assert "step_20/model.safetensors: the agents: tensor 'w' holds 1 NaN" in " ".join(done.stderr.split())
    assert not Path("out").exists()


def test_left_out_checkpoints_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    write_run(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    command("soup", "run", "last_5")
    Path("last_5").rename("run/last_5")
    command("merge", "--method", "passthrough", "--agent", "a=run/global_step_30", "run/copy_40")
    next(Path("run/global_step_20").glob("*.safetensors")).unlink()
    Path("run/global_step_30").rename("run/final")
    found = command("soup", "run", "--write-recipe", "-")
    said = " ".join(found.stderr.split())
    messages.check(said)
    assert "step-10" in found.stdout and "step-40" in found.stdout and "step-5:" not in found.stdout


def test_recipe_may_allow_refused_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    done = command("soup", "run", "--set", "allow.extra_tensors=true", "--write-recipe", "-")
    assert "extra_tensors: true" in done.stdout


def test_other_methods_say_their_limit(tmp_path: Path, messages: Messages) -> None:
    agents = {f"step-{place}": str(tmp_path) for place in range(1, 514)}
    with messages.raises(RecipeError):
        ramerge.read_recipe({"method": "ties", "base": "b", "agents": agents})
    with messages.raises(RecipeError):
        ramerge.read_recipe({"method": "uniform", "agents": agents})


def test_weights_of_strategies() -> None:
    agents = ("s10", "s20", "s40")
    assert EMA.weights(EmaParameters(decay=0.5), agents) == (0.25, 0.25, 0.5)
    assert EMA.weights(EmaParameters(half_life=10), agents) == (0.125, 0.125, 0.75)
    assert EMA.weights(EmaParameters(decay=0.5), agents[::-1]) == (0.5, 0.25, 0.25)
    assert EXTRAPOLATE.weights(ExtrapolateParameters(alpha=0.5), agents) == (-0.5, 0.0, 1.5)
    assert EXTRAPOLATE.weights(ExtrapolateParameters(at=70), agents) == (-1.0, 0.0, 2.0)
    scores = ScoredParameters(scores={"s10": 0.4, "s20": 0.5, "s40": 0.5}, temperature=0.1)
    low, high, _ = SCORED.weights(scores, agents)
    assert high / low == pytest.approx(np.e)
    assert sum(SCORED.weights(scores, agents)) == pytest.approx(1)


def near(model: Path) -> dict[str, list[float]]:
    """A score: how near a few weights are to what the soup of the first two checkpoints has."""
    values = read_checkpoint(model)["model.layers.0.w"].numbers(np.float64).reshape(-1)
    goal = np.load(model.parent.parent / "goal.npy")
    with (model.parent.parent / "scored").open("a") as count:
        count.write("x")
    return {"near": (-np.square(values - goal)).tolist()}


def test_a_greedy_soup_keeps_what_does_not_hurt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    models = write_run(tmp_path, 4, "F32")
    monkeypatch.chdir(tmp_path)
    goal = np.mean([model["model.layers.0.w"].numbers(np.float64) for model in models[:2]], axis=0)
    np.save(tmp_path / "goal.npy", goal.reshape(-1))
    flags = {"strategy": "greedy", "base": "base", "dtype": None, "rounding": None, "shard_size": None, "settings": ()}
    request = read_request(["chain"], {**flags, "last": None, "steps": None, "scores": None, "choose": None})

    def find() -> GreedyResult:
        return greedy_soup(
            request.recipe,
            request.run,
            request.checkpoints,
            tmp_path / "out",
            scorer_of(near, 60),
            objective_of("near"),
            options=ramerge.Options(),
            listen=lambda _: None,
        )

    result = find()
    assert result.members == ("step-10", "step-20")
    assert len(result.trials) == (tmp_path / "scored").stat().st_size == 7
    assert [tried.kept for tried in result.trials] == [True] * 4 + [True, False, False]
    assert all(tried.held_out is not None and tried.held_out != tried.score for tried in result.trials)
    same(tmp_path / "out/best", uniform(read_checkpoint(tmp_path / "base"), dict(zip("ab", models, strict=False))))
    ramerge.merge(tmp_path / "out/recipe.yaml", tmp_path / "again")
    same(tmp_path / "again", read_checkpoint(tmp_path / "out/best"))
    assert find() == result
    assert (tmp_path / "scored").stat().st_size == 7  # nothing is evaluated twice
    assert json.loads((tmp_path / "out/soup.json").read_text())["members"] == ["step-10", "step-20"]
    replaced = next((tmp_path / "chain").rglob("*.safetensors"))
    os.utime(replaced, ns=(1, 1))  # another file in the same place
    with messages.raises(EvaluationError):
        find()


def test_a_greedy_soup_without_any_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    write_run(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def score(model):\n    raise ValueError('no luck')\n")
    done = command("soup", "run", "out", "--strategy", "greedy", "--score", "broken.py:score", "--quiet")
    assert done.returncode != 0
    messages.check(done.stderr)
    done = command("soup", "run", "out2", "--strategy", "greedy")
    messages.check(done.stderr)


_COUNTED = """
def score(model):
    with open("scored", "a") as count:
        count.write("x")
    {}
"""


def test_wrong_objective_costs_one_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    write_run(tmp_path, 4)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text(_COUNTED.format('return {"loss": 0.3, "other": 0.5}'))
    words = ["soup", "run", "out", "--strategy", "greedy", "--score", "s.py:score", "--quiet", "--objective"]
    done = command(*words, "los=min")
    assert done.returncode == 2
    messages.check(done.stderr)
    assert (tmp_path / "scored").read_text() == "x"
    assert command(*words, "loss=min").returncode == 0
    assert (tmp_path / "scored").read_text() == "x" * 7
    assert command(*words, "other").returncode == 0  # all of the same score: the same soups
    assert (tmp_path / "scored").read_text() == "x" * 7


def test_soups_that_another_objective_tries_are_scored_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    steps = 'len(json.load(open(f"{model}/ramerge.json"))["agents"])'
    returns = f'import json; members = {steps}; return {{"fewer": 1.0 / members, "more": float(members)}}'
    (tmp_path / "s.py").write_text(_COUNTED.format(returns))
    words = ["soup", "run", "out", "--strategy", "greedy", "--score", "s.py:score", "--json", "--objective"]
    fewer, more, again = (json.loads(command(*words, figure).stdout) for figure in ("fewer", "more", "fewer"))
    assert [len(one["members"]) for one in (fewer, more, again)] == [1, 3, 1]
    assert again == fewer
    assert (tmp_path / "scored").read_text() == "x" * 6  # each alone, two of two, and all three


def test_greedy_soup_stops_after_failing_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    write_run(tmp_path, 7)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text(_COUNTED.format("raise ValueError('no luck')"))
    words = ["soup", "run", "out", "--strategy", "greedy", "--score", "s.py:score", "--quiet"]
    done = command(*words)
    assert done.returncode == 2
    messages.check(done.stderr)
    assert (tmp_path / "scored").read_text() == "x" * 5
    assert "no checkpoint got a score" in command(*words, "--most-failures", "0").stderr
    assert (tmp_path / "scored").read_text() == "x" * 12


_DROPS = """
import signal, sys
import ramerge
class Dropped:
    def __del__(self): signal.raise_signal(signal.SIGINT)
def merge(*arguments, real=ramerge.Plan.merge, **options):
    Dropped()
    return real(*arguments, **options)
ramerge.Plan.merge = merge
from ramerge.cli.main import main
main()
"""


def test_dropped_stop_ends_a_greedy_soup(tmp_path: Path) -> None:
    """As in the callback of an import's lock: the merge that is running does not even end."""
    write_run(tmp_path, 3)
    (tmp_path / "even.py").write_text('def score(model):\n    return {"even": 1.0}\n')
    words = ["soup", "run", "out", "--strategy", "greedy", "--score", "even.py:score", "--quiet"]
    command = [sys.executable, "-c", _DROPS, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    message = "error: stopped by SIGINT; nothing was scored yet\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", message)
    assert not list((tmp_path / "out").glob("trials/*"))


def test_checkpoints_with_different_strengths() -> None:
    scores = {
        "a": {"code": 60.0, "tool": 40.0},
        "b": {"code": 59.0, "tool": 40.0},
        "c": {"code": 45.0, "tool": 58.0},
        "d": {"code": 10.0, "tool": 10.0},
    }
    assert most_relevant(scores, 1) == ["c"]
    assert most_relevant(scores, 2) == ["a", "c"]
    assert most_relevant(scores, 9) == ["a", "b", "c", "d"]
    assert most_relevant({"a": {"x": 1.0}, "b": {"x": 2.0}}, 1) == ["b"]
    assert means(scores)["a"] == pytest.approx(0.5)


def test_a_launcher_that_starts_several_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    made = command("soup", tmp_path / "run", tmp_path / "out")
    assert made.returncode == 0 and "each process does all of the work" in made.stderr
