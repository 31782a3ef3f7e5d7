"""Warnings: what can be merged and probably is not what is wanted; with `strict` an error."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.demo.run import AGENTS
from ramerge.foundation.errors import InputError
from ramerge.foundation.text import markdown
from ramerge.methods.registry import METHODS
from tests.analysis.families import BASE, FAMILIES, trained, write_family
from tests.checkpoints import floats, read_checkpoint, recipe, simple, write_checkpoint, write_simple
from tests.cli.test_cli import ramerge as command
from tests.reference import Stored, encode

LAX = {"allow": {"missing_tensors": True, "extra_tensors": True}}


@pytest.fixture
def little(tmp_path: Path) -> dict[str, object]:
    """A recipe of an agent of which hardly anything is used."""
    write_simple(tmp_path, {"code": 0.1, "tool": 0.1})
    tensors = simple(2, moved=0.1)
    name = next(iter(tensors))
    write_checkpoint(tmp_path / "tool", {name: tensors[name], "other.weight": floats(np.ones(100_000))})
    return recipe(tmp_path, ["code", "tool"], **LAX)


def test_an_agent_that_adds_next_to_nothing_is_warned_of(little: dict, tmp_path: Path) -> None:
    record = ramerge.merge(little, tmp_path / "out")
    assert len(record.warnings) == 1 and "only 640 of its 100,640 elements are used" in record.warnings[0]
    assert "agents.tool" in record.warnings[0]
    assert json.loads((tmp_path / "out/ramerge.json").read_text())["warnings"] == list(record.warnings)
    assert markdown(" ".join(record.warnings[0].split())) in (tmp_path / "out/README.md").read_text()
    assert ramerge.plan(little).warnings == record.warnings
    assert ramerge.analyze(little).warnings == record.warnings


@pytest.mark.parametrize(
    "run",
    [
        lambda one, out: ramerge.merge(one, out, options=ramerge.Options(strict=True)),
        lambda one, out: ramerge.sweep(one, out, vary={"parameters.r": [0, 0.1]}, options=ramerge.Options(strict=True)),
        lambda one, _: ramerge.analyze(one, options=ramerge.Options(strict=True)),
    ],
)
def test_strict_makes_an_error_of_it(run: Callable[[dict, Path], object], little: dict, tmp_path: Path) -> None:
    (warning,) = ramerge.plan(little).warnings
    with pytest.raises(InputError) as caught:
        run(little, tmp_path / "out")
    assert caught.value.problems == (warning,)
    assert not (tmp_path / "out").exists()
    made = ramerge.plan(little, options=ramerge.Options(strict=True))
    assert made.problems == (warning,) and not made.warnings


def test_no_flag_hides_warnings(little: dict, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(little))
    (warning,) = ramerge.plan(path).warnings
    for words in (("plan", path, "--json"), ("merge", path, tmp_path / "out", "--quiet")):
        done = command(*words)
        assert (done.returncode, done.stderr) == (0, f"warning: {warning}\n")
    done = command("merge", path, tmp_path / "other", "--quiet", "--strict")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {warning}\n")


def test_a_strict_plan_counts_warnings_as_problems(tmp_path: Path) -> None:
    for name in ("base", "code"):
        write_checkpoint(tmp_path / name, {"w": encode(np.ones(8) + (name != "base"), "F32")})
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({**recipe(tmp_path, ["code"]), "dtype": "bfloat16"}))
    (forecast,) = ramerge.plan(path).forecast
    for strict, flags in ((False, []), (True, ["--strict"])):
        plain, values = command("plan", path, *flags), command("plan", path, *flags, "--json")
        told = json.loads(values.stdout)
        assert plain.returncode == values.returncode == (2 if strict else 0)
        assert plain.stdout.splitlines()[-1] == ("problems: 1" if strict else "ready to merge")
        assert (told["problems"], told["warnings"]) == (([forecast], []) if strict else ([], [forecast]))
        assert plain.stderr == values.stderr == f"{'error' if strict else 'warning'}: {forecast}\n"


def test_an_agent_that_adds_nothing_is_refused(tmp_path: Path) -> None:
    write_simple(tmp_path, {"code": 0.1})
    write_checkpoint(tmp_path / "tool", {"other.weight": floats(np.ones(10))})
    with pytest.raises(ramerge.PlanError, match=r"agents\.tool.*no tensor of it is used"):
        ramerge.merge(recipe(tmp_path, ["code", "tool"], **LAX), tmp_path / "out")


IDLE = "has no effect with shared: mean; only shared: ties uses it"


@pytest.mark.parametrize(
    ("method", "given", "rules", "said"),
    [
        ("ram+", {"density": 0.3, "trim": "model"}, [], [f"parameters.density: {IDLE}", f"parameters.trim: {IDLE}"]),
        ("ram", {"density": 0.3, "shared": "ties"}, [], []),
        ("ram", {"density": 0.3}, [{"shared": "ties"}], []),
        ("ram", {"density": 0.3}, [{"shared": "ties", "density": 0.5}], [f"parameters.density: {IDLE}"]),
        ("ram", {"shared": "ties"}, [{"shared": "mean", "density": 1}], [f"rule 1: parameters.density: {IDLE}"]),
        (
            "wudi",
            {"solver": "adam", "proximity": 0.1},
            [],
            ["parameters.proximity: has no effect with solver: adam; only solver: closed_form uses it"],
        ),
        ("swudi", {"exp_time": 3.0}, [], []),
    ],
)
def test_parameters_that_change_nothing_are_named(
    tmp_path: Path, method: str, given: dict, rules: list[dict], said: list[str]
) -> None:
    names = write_simple(tmp_path)
    made = recipe(
        tmp_path, names, method, parameters=given, rules=[{"match": "*", "parameters": each} for each in rules]
    )
    assert list(ramerge.plan(made).warnings) == said
    assert list(ramerge.plan(made, options=ramerge.Options(strict=True)).problems) == said


def test_a_sweep_warns_of_parameters_that_change_nothing_at_any_point(tmp_path: Path) -> None:
    document = recipe(tmp_path, write_simple(tmp_path))
    density = {"parameters.density": [0.2, 0.5]}
    assert ramerge.plan(document, vary=density).warnings == (f"--vary parameters.density=0.2: {IDLE}",)
    assert ramerge.plan(document, vary={"parameters.shared": ["mean", "ties"], **density}).warnings == ()


def test_a_preset_does_not_warn_of_its_own_parameters(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for name, preset in (
        (name, preset) for name, method in METHODS.items() for preset in method.presets if method.side is None
    ):
        assert ramerge.plan(recipe(tmp_path, names, name, preset=preset)).warnings == ()


# --- agents that are not what they are taken for ----------------------------------------------------------------------

PLAUSIBLE = {"sparse and disjoint", "sparse and shared", "of unequal density", "dense", "dense and strong", "alike"}
PLAUSIBLE |= {"single"}
SUSPECT = {
    "foreign": "agents.memory: {}/memory: its weights correlate with the base's by only",
    "unrelated, of another spread": "agents.memory: {}/memory: its weights correlate",
    "unrelated, single": "agents.code: {}/code: its weights correlate",
    "swapped, sparse": "base: {}/base: where code differs from the base, the other agents hold its values",
    "swapped, of unequal density": "base: {}/base: where code differs from the base",
    "swapped, dense agent": "base: {}/base: where memory differs from the base",
    "swapped, dense": "base: {}/base: the other models differ from code in different directions",
    "swapped, two": "base: {}/base: where code differs from the base",
    "of another base": "base: {}/base: the agents differ from the base in the same way",
    "of another base, dense": "base: {}/base: the agents differ from the base in the same way",
    "equal to the base": "agents.memory: {}/memory: every merged tensor equals the base's",
    "equal to each other": "code and memory hold the same values",
}


def test_the_table_is_complete() -> None:
    assert PLAUSIBLE | set(SUSPECT) == set(FAMILIES)


def _suspicions(record: ramerge.Record) -> list[str]:
    """Warnings, without those of dense float32 agents, which are about the threshold."""
    return [text for text in record.warnings if not text.startswith("epsilon = ")]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_suspect_agents_are_named(kind: str, dtype: str, tmp_path: Path) -> None:
    names = write_family(tmp_path, kind, dtype)
    allow = {"swapped_base": kind.startswith("swapped")}
    # nothing is rounded away, which would be warned of too
    source = recipe(tmp_path, names, "ram", dtype="float32", allow=allow)
    found = _suspicions(ramerge.merge(source, tmp_path / "out"))
    if kind in PLAUSIBLE:
        assert found == []
    else:
        (warning,) = found
        assert SUSPECT[kind].format(tmp_path) in warning


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("kind", ["dense", "foreign", "of another base, dense", "swapped, dense"])
def test_numbers_that_are_not_finite_are_left_out(kind: str, bad: float, tmp_path: Path) -> None:
    names = write_family(tmp_path, kind)
    for name in ("base", *names):
        tensors = {key: Stored(one.dtype, one.bits.copy()) for key, one in read_checkpoint(tmp_path / name).items()}
        for tensor in tensors.values():
            tensor.bits.reshape(-1)[::50] = floats([bad]).bits[0]
        write_checkpoint(tmp_path / name, tensors)
    source = recipe(tmp_path, names, "ram", dtype="float32", allow={"non_finite": True, "swapped_base": True})
    found = _suspicions(ramerge.merge(source, tmp_path / "out"))
    assert len(found) == (kind in SUSPECT) and all(SUSPECT[kind].format(tmp_path) in text for text in found)


@pytest.mark.parametrize("size", [1e-5, 1e-4])
def test_an_agent_beside_its_rounded_self_says_nothing_of_the_base(size: float, tmp_path: Path) -> None:
    """They share a way of noise, as two agents would; but one of them holds the base where the other moved it."""
    base = {name: floats(values).numbers(np.float64) for name, values in BASE.items()}
    fine = trained(base, 1, 1.0, size)
    for name, weights in (("base", base), ("code", fine)):
        write_checkpoint(tmp_path / name, {key: floats(one, "F32") for key, one in weights.items()})
    write_checkpoint(tmp_path / "tool", {key: floats(one) for key, one in fine.items()})
    assert not _suspicions(ramerge.merge(recipe(tmp_path, ["code", "tool"]), tmp_path / "out"))


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind.startswith("swapped")])
def test_a_swapped_base_is_refused_before_the_first_pass(kind: str, tmp_path: Path) -> None:
    names = write_family(tmp_path, kind)
    stages: list[object] = []
    for method in ("ram+", "task_arithmetic", "ties"):
        with pytest.raises(ramerge.WeightsError, match=r"swapped with the base, or .*\? \(allow\.swapped_base: true"):
            ramerge.merge(recipe(tmp_path, names, method), tmp_path / "out", on_progress=stages.append)
    assert not stages and not (tmp_path / "out").exists()
    assert any("swapped" in text for text in ramerge.analyze(recipe(tmp_path, names)).warnings)


def test_strict_refuses_them_before_the_first_pass(tmp_path: Path) -> None:
    names = write_family(tmp_path, "swapped, sparse")
    stages: list[object] = []
    with pytest.raises(ramerge.WeightsError, match="is it swapped with the base"):
        ramerge.merge(
            recipe(tmp_path, names), tmp_path / "out", on_progress=stages.append, options=ramerge.Options(strict=True)
        )
    assert not stages
    assert not (tmp_path / "out").exists()
    with pytest.raises(ramerge.WeightsError, match="is it swapped with the base"):
        ramerge.analyze(recipe(tmp_path, names), options=ramerge.Options(strict=True))


def test_methods_without_a_base_have_nothing_to_compare(tmp_path: Path) -> None:
    names = write_family(tmp_path, "foreign")
    assert not ramerge.merge(recipe(tmp_path, names, "linear"), tmp_path / "out").warnings


def test_the_shipped_agents_are_plausible() -> None:
    agents = {name: str(AGENTS / name) for name in ("add", "reverse", "sort")}
    assert not ramerge.analyze({"base": str(AGENTS / "base"), "agents": agents}).warnings


def test_an_agent_that_differs_outside_of_the_sample_is_not_called_equal(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0, 0.02, 100_000)
    write_checkpoint(tmp_path / "base", {"w": floats(values)})
    for place in (0, -1):
        moved = values.copy()
        moved[place] += 1
        write_checkpoint(tmp_path / f"a{-place}", {"w": floats(moved)})
    assert not ramerge.merge(recipe(tmp_path, ["a0", "a1"]), tmp_path / "out").warnings


@pytest.mark.parametrize(("cosine", "ratio"), [(0.0, 0.0), (0.1, 0.182), (0.5, 0.667)])
def test_model_stock_says_what_is_left_of_the_agents(cosine: float, ratio: float, tmp_path: Path) -> None:
    directions = np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]])
    write_checkpoint(
        tmp_path / "base", {"a.weight": floats(np.zeros(2), "F32"), "b.weight": floats(np.zeros(2), "F32")}
    )
    for name, tau in zip(("code", "tool"), directions, strict=True):
        write_checkpoint(tmp_path / name, {"a.weight": floats(tau, "F32"), "b.weight": floats(3 * tau, "F32")})
    record = ramerge.merge(recipe(tmp_path, ["code", "tool"], "model_stock"), tmp_path / "out")
    assert [agent.values["ratio"] for agent in record.agents.values()] == pytest.approx([ratio] * 2, abs=1e-3)
    said = [text for text in record.warnings if "nearly the base" in text]
    assert len(said) == (ratio < 0.2) and all(
        f"{next(iter(record.agents.values())).values['ratio']:.1%}" in text for text in said
    )


def test_model_stock_of_agents_that_moved_nothing_has_no_ratio(tmp_path: Path) -> None:
    for name in ("base", "code", "tool"):
        write_checkpoint(tmp_path / name, {"a.weight": floats(np.zeros(2), "F32")})
    record = ramerge.merge(recipe(tmp_path, ["code", "tool"], "model_stock"), tmp_path / "out")
    assert next(iter(record.agents.values())).values["ratio"] is None
    assert not any("nearly the base" in text for text in record.warnings)
