"""`rounding: stochastic` in recipes, flags and records, and what records say of rounding, against NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.foundation.errors import InputError
from ramerge.core.kernels import effect
from tests import reference
from tests.checkpoints import floats, read_checkpoint, read_safetensors, recipe, simple, write_checkpoint, write_simple
from tests.commands import ramerge as command
from tests.conformance.test_merge import run, same
from tests.engine.test_precision import METHODS, SHAPES, SOME, family
from tests.messages import Messages


def sample_of(size: int) -> np.ndarray:
    """Which elements of a tensor are in the sample, as documented."""
    chunks = np.arange(-(-size // 4096), dtype=np.uint64)
    return np.repeat(chunks * np.uint64(2654435769) % np.uint64(2**32) < 2**22, 4096)[:size]


def figures(folder: Path, agents: list[str], exact: Path, out: Path, beyond: float) -> list[dict[str, float]]:
    """What the record must say of a sample, from the merge before and after rounding."""
    base, wide, stored = (read_checkpoint(path) for path in (folder / "base", exact, out))
    own = [read_checkpoint(folder / name) for name in agents]
    sums = [
        {"sampled": 0, "grown": 0, "alone": 0, "size": 0.0, "wanted": 0.0, "got": 0.0, "missed": 0.0} for _ in agents
    ]
    for name, tensor in base.items():
        inside = sample_of(tensor.bits.size)
        taus = [tau.reshape(-1)[inside] for tau in reference.task_vectors(tensor, [agent[name] for agent in own])]
        moved = [np.abs(tau) > tau.dtype.type(beyond) for tau in taus]
        alone = sum(m.astype(int) for m in moved) == 1
        b, r, s = (one[name].numbers(np.float64).reshape(-1)[inside] for one in (base, wide, stored))
        kept = floats(b, stored[name].dtype).numbers(np.float64)
        for t, found in enumerate(sums):
            update, mine, sign = moved[t] & (r != b), moved[t] & alone, np.sign(taus[t]).astype(np.float64)
            found["sampled"] += int(update.sum())
            found["grown"] += int((update & (np.abs(s - kept) > np.abs(r - b))).sum())
            found["alone"] += int(mine.sum())
            found["size"] += float(np.abs(taus[t][mine]).astype(np.float64).sum())
            found["wanted"] += float((sign * (r - b))[mine].sum())
            found["got"] += float((sign * (s - kept))[mine].sum())
            found["missed"] += float(((s - kept) - (r - b))[mine] @ ((s - kept) - (r - b))[mine])
    return sums


# What is counted does not know the method, so that one of each kind meets every combination of dtypes.
FORMATS = [
    ("BF16", ("BF16", "BF16"), None),
    ("BF16", ("F32", "F32"), None),
    ("F16", ("F32", "BF16"), None),
    ("F32", ("F32", "F32"), "bfloat16"),
    ("F64", ("F64", "F64"), "float16"),
]
CASES = [
    pytest.param(method, *formats, marks=[] if formats is FORMATS[0] or method in SOME else [pytest.mark.thorough])
    for method in ("ram+", "ties", "dare", "wudi")
    for formats in FORMATS
]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(("method", "base", "agents", "dtype"), CASES)
def test_the_record_says_what_rounding_did(
    method: str, base: str, agents: tuple[str, str], dtype: str | None, rounding: str, tmp_path: Path
) -> None:
    parameters, beyond = METHODS[method]
    names = family(tmp_path, base, dict(zip(("code", "tool"), agents, strict=True)))
    source = recipe(tmp_path, names, method, parameters=parameters)
    exact = "float64" if "F64" in (base, *agents) else "float32"
    ramerge.merge({**source, "dtype": exact}, tmp_path / "exact")
    more = {"dtype": dtype} if dtype else {}
    record = run(tmp_path, {**source, **more, "rounding": rounding}, "out", block=100)
    wanted = figures(tmp_path, names, tmp_path / "exact", tmp_path / "out", beyond)
    for agent, found in zip(record.agents.values(), wanted, strict=True):
        assert (agent.sampled, agent.alone) == (found["sampled"], found["alone"])
        assert agent.grown_share == found["grown"] / found["sampled"]
        assert agent.nominal_lambda == pytest.approx(found["wanted"] / found["size"], rel=1e-9)
        assert agent.effective_lambda == pytest.approx(found["got"] / found["size"], rel=1e-9)
        assert agent.effective_error == pytest.approx(found["missed"] ** 0.5 / found["size"], rel=1e-5)
    assert any(agent.grown_share for agent in record.agents.values())


def test_the_sample_depends_on_the_elements_only(tmp_path: Path) -> None:
    size = 700 * 4096 + 5
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.02, size)
    write_checkpoint(tmp_path / "base", {"w": floats(values)})
    for name in ("code", "tool"):
        change = np.where(rng.random(size) < 0.3, rng.normal(0, 1e-3, size), 0)
        write_checkpoint(tmp_path / name, {"w": floats(values + change)})
    assert 1 < sample_of(size).sum() // 4096 < 4
    source = recipe(tmp_path, ["code", "tool"])
    one, many = run(tmp_path, source, "one"), run(tmp_path, source, "many", block=5003, workers=2)
    assert [agent.values for agent in one.agents.values()] == [agent.values for agent in many.agents.values()]
    ramerge.merge({**source, "dtype": "float32"}, tmp_path / "exact")
    wanted = figures(tmp_path, ["code", "tool"], tmp_path / "exact", tmp_path / "one", 1e-5)
    assert [agent.alone for agent in one.agents.values()] == [found["alone"] for found in wanted]


def test_stretches_of_the_sample() -> None:
    whole = list(effect.sample_ranges(0, 10**7))
    assert whole[0] == (0, 4096) and 10**7 / 4096 / 1024 * 0.5 < len(whole) < 10**7 / 4096 / 1024 * 2
    cut = [part for start in range(0, 10**7, 1002) for part in effect.sample_ranges(start, start + 1002)]
    assert sum(stop - start for start, stop in cut) == sum(stop - start for start, stop in whole)


def test_sums_do_not_depend_on_their_order() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (5, 4000)) * 10.0 ** rng.integers(-12, 3, (5, 4000))
    base, agent, result, stored, kept = values

    def counted(order: np.ndarray, size: int) -> list[dict[str, float | int | None]]:
        counts = np.zeros((effect.ROWS, 1), np.int64)
        for start in range(0, 4000, size):
            part = order[start : start + size]
            b, k, (a,), r, s = base[part], kept[part], [agent[part]], result[part], stored[part]
            effect.measure("F64", b, k, [a], r, s, (0.0,), counts)
        return effect.figures(counts)

    wanted = counted(np.arange(4000), 4000)
    assert counted(rng.permutation(4000), 7) == wanted == counted(np.arange(4000)[::-1], 1)
    tau = agent - base
    exact = float((np.sign(tau) * (result - base)).sum() / np.abs(tau).sum())
    assert wanted[0]["nominal_lambda"] == pytest.approx(exact, rel=1e-9)


def test_what_is_not_finite_is_left_out() -> None:
    values = np.array([1.0, np.nan, np.inf, 3.0], np.float32)
    counts = np.zeros((effect.ROWS, 1), np.int64)
    effect.measure("F32", np.zeros(4, np.float32), np.zeros(4, np.float32), [values], values, values, (0.0,), counts)
    (found,) = effect.figures(counts)
    assert (found["sampled"], found["alone"], found["effective_lambda"]) == (2, 2, 1.0)


def test_an_agent_that_never_moved_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    for name in ("code", "tool"):
        write_checkpoint(tmp_path / name, simple(1, moved=0.5))
    record = ramerge.merge(recipe(tmp_path, ["code", "tool"]), tmp_path / "out")
    assert next(iter(record.agents.values())).effective_lambda is None
    assert json.loads((tmp_path / "out/ramerge.json").read_text())["agents"]["code"]["nominal_lambda"] is None
    assert "| 0.0% | - |" in (tmp_path / "out/README.md").read_text()


# --- the recipe's key ------------------------------------------------------------------------------------------------


def test_mergekit_recipes_may_round_stochastically(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    mergekit = {
        "merge_method": "ram",
        "base_model": str(tmp_path / "base"),
        "models": [{"model": str(tmp_path / name)} for name in names],
        "dtype": "bfloat16",
        "rounding": "stochastic",
        "rounding_seed": 7,
    }
    assert ramerge.merge(mergekit, tmp_path / "mergekit").rounding_seed == 7


def test_plans_say_how_results_are_rounded(tmp_path: Path) -> None:
    names = family(tmp_path, "BF16", {"code": "F32", "tool": "F32"})
    source = recipe(tmp_path, names)
    made = ramerge.plan({**source, "rounding": "stochastic"})
    assert made.to_dict()["rounding"] == "stochastic" and made.to_dict()["rounding_seed"] == 0
    assert any("a draw decides" in note for note in made.notes)
    assert not any("are lost" in text for text in made.forecast)
    assert any("are lost" in text for text in ramerge.plan(source).forecast)
    nothing = ramerge.plan({**source, "rounding": "stochastic", "dtype": "float32"})
    assert any("changes nothing here" in note for note in nothing.notes)
    with pytest.raises(ramerge.RecipeError, match="rounding"):
        ramerge.plan({**source, "rounding": "up"})
    with pytest.raises(ramerge.RecipeError, match="rounding_seed"):
        ramerge.plan({**source, "rounding_seed": 0.5})


def test_unmoved_elements_stay_copies_round_nearest(tmp_path: Path) -> None:
    names = family(tmp_path, "BF16", {"code": "F32", "tool": "F32"})
    rules = [{"match": "*.1.*", "take": "code"}, {"match": "*norm*", "keep": "base"}]
    source = recipe(tmp_path, names, "ram", rules=rules, parameters={"epsilon": 3e-5})
    ramerge.merge(source, tmp_path / "nearest")
    ramerge.merge({**source, "rounding": "stochastic"}, tmp_path / "tossed")
    base, nearest, tossed = (read_checkpoint(tmp_path / name) for name in ("base", "nearest", "tossed"))
    agents = [read_checkpoint(tmp_path / name) for name in names]
    for name in ("model.layers.1.weight", "model.norm.weight"):
        assert np.array_equal(tossed[name].bits, nearest[name].bits)
    name = "model.layers.0.weight"
    taus = reference.task_vectors(base[name], [agent[name] for agent in agents])
    unmoved = ~np.logical_or.reduce(reference.masks(taus, 3e-5))
    assert 0.2 < unmoved.mean() < 0.8
    assert np.array_equal(tossed[name].bits[unmoved], base[name].bits[unmoved])
    assert not np.array_equal(tossed[name].bits, nearest[name].bits)


def test_tiny_updates_are_kept_on_average(tmp_path: Path) -> None:
    names = family(tmp_path, "BF16", {"code": "F32", "tool": "F32"}, step=1e-5)
    source = recipe(tmp_path, names, "task_arithmetic")
    nearest, tossed = (ramerge.merge({**source, "rounding": how}, tmp_path / how) for how in ("nearest", "stochastic"))
    (warning,) = [warning for warning in nearest.warnings if "erases much" in warning]
    assert "of the changes of code" in warning and "`--rounding stochastic`" in warning
    assert not any("changes the factor" in note for note in nearest.notes)  # the warning has said it
    assert not tossed.warnings
    base, exact = read_checkpoint(tmp_path / "base"), 0.0
    ramerge.merge({**source, "dtype": "float32"}, tmp_path / "wide")
    wide, found = read_checkpoint(tmp_path / "wide"), {"nearest": 0.0, "stochastic": 0.0}
    for name in SHAPES:
        b, r = base[name].numbers(np.float64), wide[name].numbers(np.float64)
        exact += float(np.abs(r - b).sum())
        for how in found:
            out = read_checkpoint(tmp_path / how)[name].numbers(np.float64)
            found[how] += float((np.sign(r - b) * (out - b)).sum())
    # the draws are those of seed 0: their error here is 7 %
    assert found["nearest"] < 0.6 * exact and abs(found["stochastic"] - exact) < 0.3 * exact


def test_a_lambda_that_rounding_undoes_is_noted(tmp_path: Path) -> None:
    """Agents that moved by one step of bfloat16, as after saving: 1.2 steps round to one."""
    rng = np.random.default_rng(0)
    base = floats(rng.normal(0, 0.02, (200, 200)))
    write_checkpoint(tmp_path / "base", {"w": base})
    for place, name in enumerate(("code", "tool")):
        up = np.random.default_rng(place + 1).random(base.bits.shape) < 0.5
        write_checkpoint(tmp_path / name, {"w": reference.Stored("BF16", base.bits + up.astype(np.uint16))})
    source = recipe(tmp_path, ["code", "tool"], parameters={"epsilon": 0.0, "r": 0.2})
    record = ramerge.merge(source, tmp_path / "out")
    (note,) = [note for note in record.notes if "changes the factor of unique updates (ram+" in note]
    assert "code 1.000 instead of 1.2" in note and "`rounding: stochastic`" in note and "`dtype: float32`" in note
    assert not record.warnings
    tossed = ramerge.merge({**source, "rounding": "stochastic"}, tmp_path / "tossed")
    assert not [note for note in tossed.notes if "changes the factor" in note]
    for agent in tossed.agents.values():
        assert abs(agent.effective_lambda - agent.nominal_lambda) <= 4 * agent.effective_error < 0.1
    analysis = ramerge.analyze(source)
    assert note in analysis.notes
    assert analysis.rounding["code"]["effective_lambda"] == next(iter(record.agents.values())).effective_lambda
    said = command("analyze", str(tmp_path / "out/ramerge.yaml"))
    assert "1.000 of 1.20" in said.stdout
    assert "  erased: share of the agent's changes in a ram+ merge that rounding to bfloat16 undoes\n" in said.stdout
    assert "  effective: factor on the agent's update after rounding, of that before it; " in said.stdout
    said = command("analyze", str(tmp_path / "out/ramerge.yaml"), "--rounding", "stochastic")
    assert "rounding to bfloat16 undoes; others grew instead, so the mean is kept\n" in said.stdout
    cards = [(tmp_path / name / "README.md").read_text() for name in ("out", "tossed")]
    assert ["others grew instead, so the mean is kept" in card for card in cards] == [False, True]
    assert all("share of the agent's changes that rounding to bfloat16 undoes" in card for card in cards)


def test_convert_tosses_too(tmp_path: Path) -> None:
    """A single model has no base, so that every number that is between two others is drawn for."""
    model = write_checkpoint(tmp_path / "model", simple(0, "F32"))
    ramerge.convert(model, tmp_path / "out", dtype="bfloat16", values={"rounding": "stochastic"})
    said = command("convert", str(model), str(tmp_path / "said"), "--dtype", "bfloat16", "--rounding", "stochastic")
    assert said.returncode == 0 and "warning" not in said.stderr
    tensors = read_checkpoint(model)
    wanted = reference.stochastic(
        {name: floats(one.numbers(np.float64), "F64") for name, one in tensors.items()},
        None,
        [tensors],
        dict.fromkeys(tensors, "BF16"),
        0,
    )
    same(read_safetensors(tmp_path / "out/model.safetensors"), wanted)
    same(read_checkpoint(tmp_path / "said"), wanted)
    ramerge.convert(tmp_path / "out", tmp_path / "again", values={"rounding": "stochastic"})
    same(read_checkpoint(tmp_path / "again"), wanted)


def test_a_quantized_output_is_refused(tmp_path: Path, messages: Messages) -> None:
    from tests.formats.test_quantized import family as quantized

    source = {**quantized(tmp_path, "fp8 blocks"), "dtype": "like base", "rounding": "stochastic"}
    with messages.raises(InputError):
        ramerge.merge(source, tmp_path / "out")


def _finer(tensor: reference.Stored, rng: np.random.Generator) -> reference.Stored:
    """The tensor in float32, moved a little where it is not large, so that the scales of blocks stay as they are."""
    values = tensor.numbers(np.float64)
    return floats(values + np.where(np.abs(values) < 1, rng.normal(0, 1e-4, values.shape), 0), "F32")


@pytest.mark.full  # compiles for 10 seconds
def test_stochastic_rounding_not_advised_for_quantized_output(tmp_path: Path) -> None:
    """As it is refused there."""
    from tests.formats.quantized import quantize_model, write_quantized

    rng, shape = np.random.default_rng(0), (64, 64)
    base = {"model.layers.0.q_proj.weight": floats(rng.normal(0, 1, shape), "F32")}
    base["model.norm.weight"] = floats(rng.normal(0, 1, 64), "BF16")
    write_quantized(tmp_path / "base", "fp8 blocks", base)
    stored = {**base, **quantize_model("fp8 blocks", base)[1]}
    for name in ("code", "tool"):
        write_checkpoint(tmp_path / name, {key: _finer(one, rng) for key, one in stored.items()})
    for dtype, how in (("bfloat16", True), ("like base", False)):
        source = recipe(tmp_path, ["code", "tool"], "task_arithmetic", dtype=dtype)
        record = ramerge.merge(source, tmp_path / dtype)
        texts = [text for text in record.warnings if "erases much" in text]
        texts += [text for text in ramerge.analyze(source).warnings if "erases much" in text]
        forecast = ramerge.plan(source).to_dict()["warnings"]
        assert isinstance(forecast, list)
        texts += [text for text in forecast if "half a step" in text]
        assert len(texts) == 3 and all("float32`" in text for text in texts)
        assert all(("stochastic" in text) is how for text in texts)
        advice = ramerge.recommend(source)
        assert advice.rounding == ("stochastic" if how else None) and advice.rounding_loss is not None
        assert ("round stochastically" in advice.rounding_loss) is how and "write float32" in advice.rounding_loss
        assert ramerge.plan(advice.applied(source)).problems == ()


def test_overflow_is_refused_as_with_nearest(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", {"w": floats([1.0, 2.0], "F32")})
    for value, overflows in ((65519.0, False), (65520.0, True)):
        write_checkpoint(tmp_path / "code", {"w": floats([value, 2.0], "F32")})
        source = recipe(tmp_path, ["code"], "task_arithmetic", dtype="float16", rounding="stochastic")
        if overflows:
            with pytest.raises(ramerge.WeightsError, match="overflows F16"):
                ramerge.merge(source, tmp_path / "out", options=ramerge.Options(overwrite=True))
        else:
            ramerge.merge(source, tmp_path / "out")
            assert read_checkpoint(tmp_path / "out")["w"].numbers(np.float64)[0] == 65504.0
