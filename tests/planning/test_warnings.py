"""Warnings: what can be merged and probably is not what is wanted; with `strict` an error."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.foundation.errors import InputError
from ramerge.core.foundation.text import markdown
from ramerge.core.methods.registry import METHODS
from ramerge.demo.run import AGENTS
from tests.analysis.families import BASE, FAMILIES, sparse, trained, weights, write_family
from tests.checkpoints import floats, read_checkpoint, recipe, simple, write_checkpoint, write_simple
from tests.cli.test_cli import ramerge as command
from tests.messages import Messages
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


def test_nearly_unmoved_agent_is_warned_of(little: dict, tmp_path: Path, messages: Messages) -> None:
    record = ramerge.merge(little, tmp_path / "out")
    assert len(record.warnings) == 1
    messages.check(record.warnings[0])
    assert json.loads((tmp_path / "out/ramerge.json").read_text())["warnings"] == list(record.warnings)
    assert markdown(" ".join(record.warnings[0].split())) in (tmp_path / "out/README.md").read_text()
    assert ramerge.plan(little).warnings == record.warnings
    assert ramerge.analyze(little).warnings == record.warnings


def test_layers_that_are_cut_off_are_named(tmp_path: Path, messages: Messages) -> None:
    for name, layers in (("base", 3), ("deep", 5), ("flat", 2)):
        tensors = {f"model.layers.{layer}.w": floats(np.ones(4) * len(name)) for layer in range(layers)}
        write_checkpoint(tmp_path / name, tensors | {f"{name}.layers.0.w": floats(np.ones(4))})
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": layers}))
    allow = {"missing_tensors": True, "extra_tensors": True, "config": ["num_hidden_layers"]}
    for name in ("deep", "flat"):
        warnings = ramerge.plan(recipe(tmp_path, [name], allow=allow)).warnings
        messages.check(*(text for text in warnings if "depth" in text))


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
        assert plain.stdout.splitlines()[-1] == (
            "problems: 1" if strict else "ready to merge; the merge checks the weights"
        )
        assert (told["problems"], told["warnings"]) == (([forecast], []) if strict else ([], [forecast]))
        assert plain.stderr == values.stderr == f"{'error' if strict else 'warning'}: {forecast}\n"


def test_an_agent_that_adds_nothing_is_refused(tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path, {"code": 0.1})
    write_checkpoint(tmp_path / "tool", {"other.weight": floats(np.ones(10))})
    with messages.raises(ramerge.PlanError):
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
            "swudi",
            {"filter_type": "none", "exp_time": 0.1},
            [],
            ["parameters.exp_time: has no effect with filter_type: none; only filter_type: exponential uses it"],
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


def test_sweep_warns_of_parameters_without_effect(tmp_path: Path) -> None:
    document = recipe(tmp_path, write_simple(tmp_path))
    density = {"parameters.density": [0.2, 0.5]}
    assert ramerge.plan(document, vary=density).warnings == (f"--vary parameters.density=0.2: {IDLE}",)
    assert ramerge.plan(document, vary={"parameters.shared": ["mean", "ties"], **density}).warnings == ()


def test_preset_parameters_are_not_warned_of(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for name, preset in (
        (name, preset) for name, method in METHODS.items() for preset in method.presets if method.side is None
    ):
        assert ramerge.plan(recipe(tmp_path, names, name, preset=preset)).warnings == ()


# --- agents that are not what they are taken for ----------------------------------------------------------------------

PLAUSIBLE = {"sparse and disjoint", "sparse and shared", "of unequal density", "dense", "dense and strong", "alike"}
PLAUSIBLE |= {"single"}
UNRELATED = ("foreign", "unrelated, of another spread", "unrelated, single")
SUSPECT = {
    "foreign": "agents.memory: {}/memory: its weights correlate with the base's by only",
    "unrelated, of another spread": "agents.memory: {}/memory: its weights correlate",
    "unrelated, single": "agents.code: {}/code: its weights correlate",
    "swapped, sparse": "base: {}/base: where code differs from the base, the other agents have the values of code",
    "swapped, of unequal density": "base: {}/base: where code differs from the base",
    "swapped, dense agent": "base: {}/base: where memory differs from the base",
    "swapped, dense": "base: {}/base: measured from the base, the other models moved in a common direction",
    "swapped, two": "base: {}/base: where code differs from the base",
    "of another base": "base: {}/base: the agents differ from the base in the same way",
    "of another base, dense": "base: {}/base: the agents differ from the base in the same way",
    "equal to the base": "agents.memory: {}/memory: every merged tensor equals the base's",
    "equal to each other": "code and memory hold the same values",
}


def test_the_table_is_complete() -> None:
    assert PLAUSIBLE | set(SUSPECT) == set(FAMILIES)


def _suspicions(record: ramerge.Record) -> list[str]:
    """Warnings, without those of dense agents: the threshold, and the rounding of bfloat16 ones."""
    return [
        text
        for text in record.warnings
        if not text.startswith(("epsilon = ", "training moved ", "the base is float32"))
    ]


@pytest.mark.parametrize("dtypes", [("BF16", "BF16"), ("F32", "F32"), ("F32", "BF16")], ids="/".join)
@pytest.mark.parametrize("kind", FAMILIES)
def test_suspect_agents_are_named(kind: str, dtypes: tuple[str, str], tmp_path: Path) -> None:
    names = write_family(tmp_path, kind, *dtypes)
    allow = {"swapped_base": kind.startswith("swapped"), "other_base": kind in UNRELATED}
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
    allow = {"non_finite": True, "swapped_base": True, "other_base": True}
    source = recipe(tmp_path, names, "ram", dtype="float32", allow=allow)
    found = _suspicions(ramerge.merge(source, tmp_path / "out"))
    assert len(found) == (kind in SUSPECT) and all(SUSPECT[kind].format(tmp_path) in text for text in found)


@pytest.mark.parametrize("size", [1e-5, 1e-4])
def test_rounded_copy_does_not_accuse_the_base(size: float, tmp_path: Path) -> None:
    """They share a way of noise, as two agents would; but one of them holds the base where the other moved it."""
    base = {name: floats(values).numbers(np.float64) for name, values in BASE.items()}
    fine = trained(base, 1, 1.0, size)
    for name, model in (("base", base), ("code", fine)):
        write_checkpoint(tmp_path / name, {key: floats(one, "F32") for key, one in model.items()})
    write_checkpoint(tmp_path / "tool", {key: floats(one) for key, one in fine.items()})
    assert not _suspicions(ramerge.merge(recipe(tmp_path, ["code", "tool"]), tmp_path / "out"))


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind.startswith("swapped")])
def test_swapped_base_is_refused_before_reading(kind: str, tmp_path: Path, messages: Messages) -> None:
    names = write_family(tmp_path, kind)
    stages: list[object] = []
    for method in ("ram+", "task_arithmetic", "ties"):
        with messages.raises(ramerge.WeightsError):
            ramerge.merge(recipe(tmp_path, names, method), tmp_path / "out", on_progress=stages.append)
    assert not stages and not (tmp_path / "out").exists()
    assert any("swapped" in text for text in ramerge.analyze(recipe(tmp_path, names)).warnings)


@pytest.mark.parametrize("kind", UNRELATED)
def test_unrelated_agent_is_refused_before_reading(kind: str, tmp_path: Path, messages: Messages) -> None:
    names = write_family(tmp_path, kind)
    stages: list[object] = []
    for method in ("ram+", "task_arithmetic", "relex"):
        with messages.raises(ramerge.WeightsError):
            ramerge.merge(recipe(tmp_path, names, method), tmp_path / "out", on_progress=stages.append)
    assert not stages and not (tmp_path / "out").exists()
    assert any("correlate" in text for text in ramerge.analyze(recipe(tmp_path, names)).warnings)
    with pytest.raises(ramerge.WeightsError, match="correlate"):
        ramerge.merge(recipe(tmp_path, names, allow={"swapped_base": True}), tmp_path / "out")


def test_an_unrelated_agent_among_many_is_refused(tmp_path: Path) -> None:
    many = {f"a{n}": trained(BASE, n, 0.05) for n in range(20)} | {"stranger": weights(5)}
    for name, tensors in {"base": BASE, **many}.items():
        write_checkpoint(tmp_path / name, {key: floats(one) for key, one in tensors.items()})
    source = recipe(tmp_path, list(many), "task_arithmetic")
    with pytest.raises(ramerge.WeightsError, match=r"agents\.stranger.*correlate") as caught:
        ramerge.merge(source, tmp_path / "out")
    assert len(caught.value.problems) == 1
    del source["agents"]["stranger"]
    assert not ramerge.merge(source, tmp_path / "out").warnings


PAIRS = [(a, b) for a in (0.003, 0.03, 0.3, 0.6) for b in (0.003, 0.03, 0.3, 0.6)]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("densities", PAIRS)
def test_swapped_base_is_refused_at_any_density(densities: tuple[float, float], dtype: str, tmp_path: Path) -> None:
    models = dict(zip(("base", "code", "tool"), (BASE, *sparse(densities)), strict=True))
    for name, tensors in models.items():
        write_checkpoint(tmp_path / name, {key: floats(one, dtype) for key, one in tensors.items()})
    swapped = {**recipe(tmp_path, ["base", "tool"]), "base": str(tmp_path / "code")}
    with pytest.raises(ramerge.WeightsError, match=r"allow\.swapped_base"):
        ramerge.merge(swapped, tmp_path / "out")
    right = recipe(tmp_path, ["code", "tool"], "task_arithmetic", dtype="float32")
    assert not _suspicions(ramerge.merge(right, tmp_path / "out"))


@pytest.mark.parametrize("sizes", [(2e-4, 2e-4), (2e-4, 1e-4), (4e-4, 1.2e-4), (1e-4, 2e-4)])
def test_dense_pair_with_swapped_base_is_refused(sizes: tuple[float, float], tmp_path: Path) -> None:
    agents = [trained(BASE, seed, 1.0, size) for seed, size in enumerate(sizes, 1)]
    for name, tensors in zip(("base", "code", "tool"), (BASE, *agents), strict=True):
        write_checkpoint(tmp_path / name, {key: floats(one, "F32") for key, one in tensors.items()})
    swapped = {**recipe(tmp_path, ["base", "tool"]), "base": str(tmp_path / "code")}
    with pytest.raises(ramerge.WeightsError, match=r"allow\.swapped_base"):
        ramerge.merge(swapped, tmp_path / "out")
    assert not _suspicions(ramerge.merge(recipe(tmp_path, ["code", "tool"], "ram", dtype="float32"), tmp_path / "out"))


def test_swapped_base_of_parallel_agents_is_undecided(tmp_path: Path) -> None:
    far, own = trained(BASE, 1, 1.0, 2e-4), trained(BASE, 2, 1.0, 1e-4)
    near = {name: BASE[name] + (far[name] - BASE[name]) / 2 + (own[name] - BASE[name]) / 2 for name in BASE}
    for name, tensors in {"base": BASE, "code": far, "tool": near}.items():
        write_checkpoint(tmp_path / name, {key: floats(one, "F32") for key, one in tensors.items()})
    swapped = {**recipe(tmp_path, ["base", "code"], "ram", dtype="float32"), "base": str(tmp_path / "tool")}
    assert not [text for text in ramerge.merge(swapped, tmp_path / "out").warnings if "swapped" in text]


# --- a part of the weights that is not where it belongs ---------------------------------------------------------------

HEADS, WIDTH = 16, 512
MATRICES = {
    **{f"model.layers.{n}.self_attn.{x}_proj.weight": (WIDTH, WIDTH) for n in range(3) for x in "qo"},
    **{f"model.layers.{n}.mlp.experts.{e}.up_proj.weight": (64, WIDTH) for n in range(3) for e in range(8)},
    "model.layers.0.mlp.experts.gate_up_proj": (8, 64, WIDTH),
    "model.embed_tokens.weight": (256, WIDTH),
    "model.norm.weight": (WIDTH,),
}
QUERIES, EXPERT = "model.layers.1.self_attn.q_proj.weight", "model.layers.2.mlp.experts.{}.up_proj.weight"
STACK = "model.layers.0.mlp.experts.gate_up_proj"


def exchange_heads(model: dict) -> set[str]:
    heads = model[QUERIES].reshape(HEADS, -1)
    heads[[2, 9]] = heads[[9, 2]]
    return {QUERIES}


def exchange_experts(model: dict) -> set[str]:
    one, other = EXPERT.format(0), EXPERT.format(5)
    model[one], model[other] = model[other], model[one]
    return {one, other}


def exchange_in_a_stack(model: dict) -> set[str]:
    model[STACK][[1, 6]] = model[STACK][[6, 1]]
    return {STACK}


def transpose(model: dict) -> set[str]:
    model[QUERIES] = model[QUERIES].T
    return {QUERIES}


def interleave(model: dict) -> set[str]:
    """The order of rotary halves of another implementation, in all layers."""
    names = {name for name in MATRICES if "q_proj" in name}
    for name in names:
        model[name] = model[name].reshape(HEADS, 2, -1, WIDTH).swapaxes(1, 2).reshape(WIDTH, WIDTH)
    return names


def strong(model: dict, seed: int, size: float) -> dict:
    rng = np.random.default_rng(seed)
    return {name: values + rng.normal(0, size * values.std(), values.shape) for name, values in model.items()}


@pytest.fixture(scope="module")
def matrices() -> dict:
    rng = np.random.default_rng(0)
    return {name: rng.normal(1 if "norm" in name else 0, 0.02, shape) for name, shape in MATRICES.items()}


@pytest.mark.parametrize("harm", [exchange_heads, exchange_experts, exchange_in_a_stack, transpose, interleave])
def test_misplaced_weights_are_named(harm: Callable, matrices: dict, tmp_path: Path, messages: Messages) -> None:
    agents = {name: strong(matrices, seed, 0.05) for seed, name in enumerate(("code", "tool"), 1)}
    names = harm(agents["tool"])
    for name, tensors in {"base": matrices, **agents}.items():
        write_checkpoint(tmp_path / name, {key: floats(one) for key, one in tensors.items()})
    (warning,) = [
        text for text in ramerge.merge(recipe(tmp_path, agents), tmp_path / "out").warnings if "parts" in text
    ]
    messages.check(warning)
    assert {name for name in MATRICES if f"'{name}'" in warning} == names
    least = float(re.search(r"'[\w.]+' \((-?[\d.]+) in \d+% of its sample", warning)[1])
    assert abs(least) < 0.3


@pytest.mark.parametrize("size", [0.05, 0.3, 1.0, 1.5])
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_strong_updates_replace_no_weights(size: float, dtype: str, matrices: dict, tmp_path: Path) -> None:
    agents = {name: strong(matrices, seed, size) for seed, name in enumerate(("code", "tool"), 1)}
    hot = agents["code"][QUERIES]
    hot[:32] += np.random.default_rng(7).normal(0, 0.2, hot[:32].shape)  # ten times the weights
    agents["code"][STACK][3] *= 0.3
    agents["tool"]["model.embed_tokens.weight"][5:40] = 0.02  # tokens that were initialized again
    for name, tensors in {"base": matrices, **agents}.items():
        write_checkpoint(tmp_path / name, {key: floats(one, dtype) for key, one in tensors.items()})
    assert not [text for text in ramerge.merge(recipe(tmp_path, agents), tmp_path / "out").warnings if "parts" in text]


def test_strict_refuses_them_before_the_first_pass(tmp_path: Path, messages: Messages) -> None:
    names = write_family(tmp_path, "swapped, sparse")
    stages: list[object] = []
    with messages.raises(ramerge.WeightsError):
        ramerge.merge(
            recipe(tmp_path, names), tmp_path / "out", on_progress=stages.append, options=ramerge.Options(strict=True)
        )
    assert not stages
    assert not (tmp_path / "out").exists()
    with messages.raises(ramerge.WeightsError):
        ramerge.analyze(recipe(tmp_path, names), options=ramerge.Options(strict=True))


def test_methods_without_a_base_have_nothing_to_compare(tmp_path: Path) -> None:
    names = write_family(tmp_path, "foreign")
    assert not ramerge.merge(recipe(tmp_path, names, "linear"), tmp_path / "out").warnings


def test_the_shipped_agents_are_plausible() -> None:
    agents = {name: str(AGENTS / name) for name in ("coder", "tool", "memory")}
    assert not ramerge.analyze({"base": str(AGENTS / "base"), "agents": agents}).warnings


def test_difference_outside_the_sample_counts(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0, 0.02, 100_000)
    write_checkpoint(tmp_path / "base", {"w": floats(values)})
    for place in (0, -1):
        moved = values.copy()
        moved[place] += 1
        write_checkpoint(tmp_path / f"a{-place}", {"w": floats(moved)})
    assert not ramerge.merge(recipe(tmp_path, ["a0", "a1"]), tmp_path / "out").warnings


@pytest.mark.parametrize(("cosine", "ratio"), [(0.0, 0.0), (0.1, 0.182), (0.5, 0.667)])
def test_model_stock_reports_its_ratio(cosine: float, ratio: float, tmp_path: Path) -> None:
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


def test_model_stock_of_unmoved_agents(tmp_path: Path) -> None:
    for name in ("base", "code", "tool"):
        write_checkpoint(tmp_path / name, {"a.weight": floats(np.zeros(2), "F32")})
    record = ramerge.merge(recipe(tmp_path, ["code", "tool"], "model_stock"), tmp_path / "out")
    assert next(iter(record.agents.values())).values["ratio"] is None
    assert not any("nearly the base" in text for text in record.warnings)


STATISTICS = {"running_mean": 0.5, "running_var": 0.05, "min_val": 0.25, "cluster_size": 4.0}


def _with_statistics(folder: Path, name: str, share: float, batches: int) -> None:
    """A model with a batch norm, of which the statistics are a share of the base's."""
    tensors = simple(batches, moved=0.1 if name != "base" else 0)
    tensors |= {f"audio.norm.{key}": floats(np.full(8, value * share), "F32") for key, value in STATISTICS.items()}
    tensors["audio.norm.num_batches_tracked"] = Stored("I64", np.array(batches))
    write_checkpoint(folder / name, tensors)


@pytest.mark.parametrize("method", ["task_arithmetic", "ram", "ties"])
def test_statistics_are_the_base_s(method: str, tmp_path: Path) -> None:
    for name, share, batches in (("base", 1, 5), ("code", 0.2, 7), ("tool", 0.2, 9)):
        _with_statistics(tmp_path, name, share, batches)
    source = recipe(tmp_path, ["code", "tool"], method)
    record = ramerge.merge(source, tmp_path / "out")
    base, out = read_checkpoint(tmp_path / "base"), read_checkpoint(tmp_path / "out")
    for key in (*STATISTICS, "num_batches_tracked"):
        assert np.array_equal(out[f"audio.norm.{key}"].bits, base[f"audio.norm.{key}"].bits)
    (note,) = (note for note in record.notes if "statistics of inputs" in note)
    assert "audio.norm.running_var" in note and not record.warnings
    taken = {**source, "rules": [{"match": "audio.*", "take": "code"}]}
    assert not any("statistics" in note for note in ramerge.merge(taken, tmp_path / "taken").notes)
    agent, out = read_checkpoint(tmp_path / "code"), read_checkpoint(tmp_path / "taken")
    assert np.array_equal(out["audio.norm.running_var"].bits, agent["audio.norm.running_var"].bits)


def test_models_without_statistics_get_no_note(tmp_path: Path) -> None:
    plan = ramerge.plan(recipe(tmp_path, write_simple(tmp_path)))
    assert not any("statistics" in note for note in plan.notes)


def _norms(folder: Path, name: str, change: Callable[[np.ndarray], np.ndarray], only: str = "") -> None:
    """A model with norms, of which the base's are changed."""
    stored, rng = simple(len(name), moved=0.1 if name != "base" else 0), np.random.default_rng(7)
    for layer in range(3):
        for kind in ("input_layernorm", "q_norm"):
            gains = rng.normal(0.4, 0.2, 32)
            key = f"model.layers.{layer}.{kind}.weight"
            stored[key] = floats(change(gains) if only in key else gains)
    write_checkpoint(folder / name, stored)


def _noise(size: float) -> np.ndarray:
    return np.random.default_rng(3).normal(0, size, 32)


@pytest.mark.parametrize(
    ("change", "only", "words"),
    [
        (lambda gains: gains + 1 + _noise(0.02), "", "plus 1"),
        (lambda gains: gains - 1, "", "minus 1"),
        (lambda gains: gains + 1 + _noise(0.02), "q_norm", "plus 1"),
        (lambda gains: gains + 0.5, "", "plus 0.5"),
        (lambda gains: gains * 4, "", "times 4"),
    ],
)
def test_norms_in_another_convention_are_named(
    change: Callable[[np.ndarray], np.ndarray], only: str, words: str, tmp_path: Path, messages: Messages
) -> None:
    for name, changed in (("base", lambda gains: gains), ("coder", change), ("tool", change)):
        _norms(tmp_path, name, changed, only)
    warnings = ramerge.merge(recipe(tmp_path, ["coder", "tool"]), tmp_path / "out").warnings
    for name in ("coder", "tool"):
        (warning,) = (text for text in warnings if "norm" in text and f"agents.{name}" in text)
        assert f"the base's {words}" in warning
        messages.check(warning)
        assert ("input_layernorm" in warning) == (only == "")


@pytest.mark.parametrize(
    "change",
    [
        lambda gains: gains,
        lambda gains: gains + _noise(0.3),
        lambda gains: gains + 0.03,
        lambda gains: gains * 0.95,
        lambda gains: gains * (1 + _noise(0.5)),
        lambda gains: np.where(gains > 0.4, gains + 1, gains),
    ],
)
def test_trained_norms_are_not_warned_of(change: Callable[[np.ndarray], np.ndarray], tmp_path: Path) -> None:
    for name, changed in (("base", lambda gains: gains), ("coder", change), ("tool", lambda gains: gains)):
        _norms(tmp_path, name, changed)
    assert ramerge.merge(recipe(tmp_path, ["coder", "tool"]), tmp_path / "out").warnings == ()
