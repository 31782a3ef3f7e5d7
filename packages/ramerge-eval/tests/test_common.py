"""What all tasks share, in runs of Inspect's: samples, answers, failures and figures."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, task
from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalLog
from inspect_ai.model import GenerateConfig, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import TaskState

from ramerge.core.foundation.errors import EvaluationError
from ramerge_eval.tasks.common import (
    Count,
    Seed,
    Subsets,
    answer,
    choice,
    for_each,
    is_failed,
    sample,
    score_of,
    shares,
    text_of,
    with_validation,
)

pytestmark = [
    pytest.mark.full,  # clients of models, checkers, the sandbox
    pytest.mark.filterwarnings("ignore"),  # Inspect's own code warns of many things
]


@task
@with_validation
def echoes(subsets: Subsets = "short", count: Count = 2, seed: Seed = 0) -> Task:
    """Words to say again; a sample counts as many as its number."""
    names = choice(subsets, ("short", "long"))
    samples = for_each(names, lambda name: [sample(name, str(n), f"{name}{n}", n=n) for n in range(1, count + 1)])
    return Task(
        dataset=[each for found in samples.values() for each in found],
        solver=answer(seed),
        scorer=said(),
        config=GenerateConfig(temperature=0.5),
    )


@scorer(metrics=[shares()])
def said() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        number = state.metadata["n"]
        if is_failed(state):
            return score_of(state, {"said": (0.0, number)}, problem="failed")
        text = text_of(state.output)
        return score_of(state, {"said": (number * (text == state.input), number)}, text, n=1)

    return score


def output(text: str, stop: Any = "stop") -> ModelOutput:
    made = ModelOutput.from_content("mockllm/model", text, stop_reason=stop)
    made.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return made


def run(made: Task, outputs: Sequence[ModelOutput], folder: Path) -> EvalLog:
    model = get_model("mockllm/model", custom_outputs=list(outputs))
    options: dict[str, Any] = {"display": "none", "max_connections": 1, "max_samples": 1, "score_on_error": True}
    [log] = inspect_eval(made, model=model, log_dir=str(folder), fail_on_error=False, **options)
    gc.collect()  # streams that Inspect leaves open warn here, and not in another test
    return log


def test_samples_answers_and_figures(tmp_path: Path) -> None:
    log = run(echoes("all"), [output(text) for text in ("short1", "no", "long1", "long2")], tmp_path)
    assert log.results is not None and log.samples is not None
    assert sorted(str(each.id) for each in log.samples) == ["long/1", "long/2", "short/1", "short/2"]
    metrics = {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}
    assert metrics == {"short/said": pytest.approx(1 / 3), "long/said": 1.0}
    [score] = next(each.scores or {} for each in log.samples if each.id == "short/2").values()
    assert (score.value, score.answer) == ({"said": 0.0}, "no")
    assert score.metadata == {"ratios": {"said": [0.0, 2.0]}, "subset": "short", "n": 1}


def test_what_was_cut_off_and_what_failed_is_noted(tmp_path: Path) -> None:
    refused = output("")
    refused.error = "too hot"
    log = run(echoes(), [output("short1", "max_tokens"), refused], tmp_path)
    assert log.samples is not None
    [cut] = (log.samples[0].scores or {}).values()
    assert (cut.metadata or {})["cut"] == 1
    assert log.samples[1].error is not None and "too hot" in log.samples[1].error.message
    [failed] = (log.samples[1].scores or {}).values()
    assert (failed.metadata or {})["ratios"] == {"said": [0.0, 2.0]}


def test_every_request_has_its_own_seed_and_the_same_in_every_run(tmp_path: Path) -> None:
    seeds = []
    for part in ("a", "b"):
        log = run(echoes(), [output("x"), output("y")], tmp_path / part)
        calls = [event for each in log.samples or () for event in each.events if event.event == "model"]
        seeds.append([call.config.seed for call in calls])
    assert seeds[0] == seeds[1] and len({*seeds[0]}) == 2 and None not in seeds[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subsets": "shirt"}, "subset.*shirt"),
        ({"count": 0}, "ramerge/echoes: count"),
        ({"heat": 1}, "ramerge/echoes: heat"),
    ],
)
def test_wrong_parameters_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        echoes(**arguments)
