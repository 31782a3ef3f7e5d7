"""Merges whose thresholds are predicted from a sample: the bytes of those that count first, whatever it says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.engine.execute import execute
from ramerge.engine.executors.threads import ThreadExecutor
from ramerge.engine.reads import Passes
from ramerge.engine.record import read_record
from ramerge.methods import trim
from ramerge.planning import sample
from tests.checkpoints import read_checkpoint, recipe, write_simple
from tests.tiers import some

AGENTS = 3


@pytest.fixture(autouse=True)
def small_models_are_worth_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_WORTH_A_SAMPLE", 1)
    monkeypatch.setattr(sample, "_STRETCH", 16)
    monkeypatch.setattr(sample, "_EVERY", 2)


def merged(folder: Path, source: dict, *, predicted: bool, block: int = 100) -> ramerge.Record:
    plan = ramerge.plan(source, folder / ("guessed" if predicted else "counted"), options=ramerge.Options(cache=False))
    assert plan.details.predicted
    resources = replace(plan.details.resources, block_elements=block)
    return execute(replace(plan.details, predicted=predicted, resources=resources), ThreadExecutor(2))[0]


def same(folder: Path, source: dict, block: int = 100) -> tuple[ramerge.Record, ramerge.Record]:
    """Records of a merge with a prediction, and without, which must have the same bytes and figures."""
    predicted = merged(folder, source, predicted=True, block=block)
    counted = merged(folder, source, predicted=False)
    left, right = read_checkpoint(folder / "guessed"), read_checkpoint(folder / "counted")
    assert left.keys() == right.keys()
    for name, tensor in right.items():
        assert left[name].bits.tobytes() == tensor.bits.tobytes(), name
    assert predicted.agents == counted.agents
    assert predicted.warnings == counted.warnings
    return predicted, counted


# F16 is packed as BF16 is, and random draws know no dtype.
OTHERS = [("ties", "F16"), ("dare_ties", "F16"), ("dare_ties", "F32"), ("dare_ties", "F64")]


@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 0.9, {"code": 0.0, "tool": 0.1, "memory": 1.0}])
@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("ties", "BF16"),
        *some([("ties", "F32"), ("ties", "F64"), ("dare_ties", "BF16")], fast=()),
        *[pytest.param(*other, marks=pytest.mark.thorough) for other in OTHERS],
    ],
)
def test_the_bytes_of_two_counting_passes(method: str, density: Any, dtype: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path, dtype=dtype)
    same(tmp_path, recipe(tmp_path, names, method, parameters={"density": density}))


def _scaled(factor: float) -> Callable[[float], float]:
    return lambda threshold: float(np.float32(threshold * factor))


WRONG: dict[str, Callable[[float], float]] = {
    "half": _scaled(0.5),
    "double": _scaled(2),
    "one step up": lambda threshold: float(np.nextafter(np.float32(threshold), np.float32(np.inf))),
    "one step down": lambda threshold: float(np.nextafter(np.float32(threshold), np.float32(0))),
    "nothing": lambda threshold: float("inf"),
    "everything": lambda threshold: 0.0,
    "right": lambda threshold: threshold,
}


@pytest.mark.parametrize("wrong", list(WRONG))
@pytest.mark.parametrize("place", range(AGENTS))
def test_wrong_guesses_change_nothing(wrong: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), "ties", parameters={"density": 0.03})
    plan = replace(
        ramerge.plan(source, tmp_path / "exact", options=ramerge.Options(cache=False)).details, predicted=False
    )
    execute(plan, ThreadExecutor(2))
    exact = [agent.threshold for agent in read_record(tmp_path / "exact/ramerge.json").agents.values()]
    thresholds = [WRONG[wrong](value) if t == place else value for t, value in enumerate(map(float, exact))]

    def predict(self: trim.Fine, _sampled: trim.Trimmed) -> trim.Proof:
        return trim.Proof(self.scope, thresholds=tuple(thresholds), trimming=self.after)

    def sampled(self: Any) -> dict[Any, Any]:
        found = {key: value for key, value in original(self).items() if isinstance(key[0], trim.Fine)}
        return {key: replace(value, thresholds=tuple(thresholds)) for key, value in found.items()}

    original = Passes._sampled
    monkeypatch.setattr(Passes, "_sampled", sampled)
    monkeypatch.setattr(trim.Fine, "predict", predict)
    predicted, counted = same(tmp_path, source)
    if thresholds == exact:
        assert predicted.bytes_read < counted.bytes_read
    elif wrong in ("double", "nothing", "half"):
        assert predicted.bytes_read > counted.bytes_read


def test_a_right_guess_reads_once_and_the_plan_says_so(tmp_path: Path) -> None:
    source = recipe(
        tmp_path,
        write_simple(tmp_path, {"code": 0.05, "tool": 0.1, "memory": 0.1}),
        "ties",
        parameters={"density": 0.9},
    )
    plan = ramerge.plan(source, tmp_path / "plan", options=ramerge.Options(cache=False))
    predicted, counted = same(tmp_path, source)
    assert plan.details.passes == 1
    assert predicted.bytes_read == plan.bytes_read < counted.bytes_read


def test_what_cannot_be_repeated_is_counted_first(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), "ties")
    assert not ramerge.plan(
        {**source, "parameters": {"trim": "tensor"}}, tmp_path / "a", options=ramerge.Options(cache=False)
    ).details.predicted
    assert not ramerge.plan(
        {**source, "method": "ram+"}, tmp_path / "b", options=ramerge.Options(cache=False)
    ).details.predicted
    assert list(ramerge.plan(source, options=ramerge.Options(cache=False)).tensors())
    ramerge.analyze(source, options=ramerge.Options(cache=False))


def test_a_sweep_guesses_for_all_of_its_points(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), "ties")
    records = ramerge.sweep(
        source, tmp_path / "sweep", vary={"parameters.density": [0.02, 0.5, 0.9]}, options=ramerge.Options(cache=False)
    )
    for record in records:
        alone = {**source, "parameters": dict(record.parameters)}
        folder = tmp_path / f"density={record.parameters['density']}"
        plan = ramerge.plan(alone, folder, options=ramerge.Options(cache=False))
        execute(replace(plan.details, predicted=False), ThreadExecutor(2))
        left = (tmp_path / "sweep" / folder.name / "model.safetensors").read_bytes()
        assert left == (folder / "model.safetensors").read_bytes()
