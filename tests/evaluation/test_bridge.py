"""A benchmark as an Inspect task: what becomes of samples, answers, failures and figures."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from ramerge.evaluation.benchmark import Benchmark, BenchmarkSettings, Chat, Item, Subset, Verdict
from ramerge.evaluation.tasks.bridge import as_score, benchmark_task

from ramerge.foundation.errors import EvaluationError

pytestmark = pytest.mark.filterwarnings("ignore")  # Inspect's own code warns of many things


class Echoes(Benchmark[BenchmarkSettings]):
    """Words to say again; a sample counts as many as its number."""

    name = "echoes"
    data: ClassVar[Mapping[str, str]] = {"words": "words"}

    def subsets(self) -> Sequence[Subset]:
        return Subset("short", "Short", ("said",)), Subset("long", "Long", ("said",), headline=False)

    def check(self, subsets: Sequence[str]) -> None:
        pass

    def items(self, subset: str) -> Iterator[Item]:
        for number in (1, 2):
            yield Item(str(number), (f"{subset}{number}", number))

    async def ask(self, subset: str, item: Item, chat: Chat) -> Any:
        return (await chat([{"role": "user", "content": item.value[0]}])).text

    async def score(self, subset: str, item: Item, answers: Any) -> Verdict:
        return Verdict({"said": (item.value[1] * (answers == item.value[0]), item.value[1])}, answers, details={"n": 1})

    def failed(self, subset: str, item: Item) -> Mapping[str, tuple[float, float]]:
        return {"said": (0.0, item.value[1])}

    def target(self, subset: str, item: Item) -> str:
        return str(item.value[0])


def task(subsets: str | None = None, **parameters: Any) -> Task:
    return benchmark_task(Echoes, subsets, {}, parameters)


def output(text: str, stop: Any = "stop") -> ModelOutput:
    said = ModelOutput.from_content("mockllm/model", text, stop_reason=stop)
    said.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return said


def run(made: Task, outputs: Sequence[ModelOutput], folder: Path) -> EvalLog:
    model = get_model("mockllm/model", custom_outputs=list(outputs))
    [log] = inspect_eval(made, model=model, log_dir=str(folder), display="none", max_connections=1, max_samples=1)
    gc.collect()  # streams that Inspect leaves open warn here, and not in another test
    return log


def test_samples_answers_and_figures(tmp_path: Path) -> None:
    made = task("all", temperature=0.5)
    assert [(sample.id, sample.target) for sample in made.dataset] == [
        *(("short/1", "short1"), ("short/2", "short2"), ("long/1", "long1"), ("long/2", "long2"))
    ]
    assert (made.config.temperature, made.config.max_tokens) == (0.5, 1024)
    log = run(made, [output(text) for text in ("short1", "no", "long1", "long2")], tmp_path)
    assert log.results is not None and log.samples is not None
    metrics = {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}
    assert metrics == {"short/said": pytest.approx(1 / 3), "long/said": 1.0}
    [score] = next(sample.scores or {} for sample in log.samples if sample.id == "short/2").values()
    assert (score.value, score.answer) == ({"said": 0.0}, "no")
    assert score.metadata == {"ratios": {"said": [0.0, 2.0]}, "subset": "short", "n": 1}


def test_what_was_cut_off_and_what_failed_is_noted(tmp_path: Path) -> None:
    refused = output("")
    refused.error = "too hot"
    log = run(task(), [output("short1", "max_tokens"), refused], tmp_path)
    assert log.samples is not None
    [cut] = (log.samples[0].scores or {}).values()
    assert (cut.metadata or {})["cut"] == 1
    assert log.samples[1].error is not None and "too hot" in log.samples[1].error.message


def test_every_request_has_its_own_seed_and_the_same_in_every_run(tmp_path: Path) -> None:
    seeds = []
    for part in ("a", "b"):
        log = run(task("short"), [output("x"), output("y")], tmp_path / part)
        calls = [event for sample in log.samples or () for event in sample.events if event.event == "model"]
        seeds.append([call.config.seed for call in calls])
    assert seeds[0] == seeds[1] and len({*seeds[0]}) == 2 and None not in seeds[0]


def test_a_figure_without_weight_has_no_share() -> None:
    assert as_score(Verdict({"said": (0.0, 0.0)}), "short").value == {"said": None}


@pytest.mark.parametrize(
    ("subsets", "data", "parameters", "message"),
    [
        ("shirt", {}, {}, "subset of ramerge/echoes"),
        (None, {"wards": "x"}, {}, "data of ramerge/echoes"),
        (None, {"words": "/nowhere/x"}, {}, "does not exist"),
        (None, {}, {"temperature": -1}, "ramerge/echoes: temperature"),
        (None, {}, {"heat": 1}, "ramerge/echoes: heat"),
    ],
)
def test_wrong_parameters_are_named(
    subsets: str | None, data: dict[str, str], parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(EvaluationError, match=message):
        benchmark_task(Echoes, subsets, data, parameters)
