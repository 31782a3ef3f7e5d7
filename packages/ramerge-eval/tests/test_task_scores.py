"""Tasks on a server that stays: new weights for each point, items kept apart, and servers that die."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server import install_server

import ramerge
from ramerge.core.recipe.document import Document
from ramerge.demo.run import AGENTS
from ramerge.scoring.serving import KeptServer, ModelServer
from ramerge.searches.folder import Folder
from ramerge.searches.results import SearchResult
from ramerge.searches.run import PlannedPoints, search
from ramerge.searches.space import Axis, Choices, Space
from ramerge_eval.run import EvaluationRequest
from ramerge_eval.task_scores import TaskScore, TaskScorer, split_of

pytest.importorskip("optuna")
pytest.importorskip("inspect_ai")
# Inspect's own code warns of many things
pytestmark = [
    pytest.mark.full,  # Optuna, clients of models
    pytest.mark.filterwarnings("ignore"),
]

_SERVER = """
def note(text):
    print(text, file=open(log, "a"))
def load():
    global r
    r = json.load(open(os.path.join(path, "ramerge.json")))["parameters"]["r"]
    note(f"{words[0]} r {r}")
note("start " + os.environ.get("VLLM_SERVER_DEV_MODE", "-"))
load()
def answer(route, body):
    if route == "/v1/completions":
        if r == dies:
            os._exit(1)
        text = "yes" if int(body["prompt"]) % 10 >= 10 * r else "no"
        choice = {"index": 0, "finish_reason": "stop", "text": text, "logprobs": None}
        return 200, {"object": "text_completion", "id": "x", "created": 0, "model": "x", "choices": [choice]}
    note(route + " " + json.dumps(body))
    if route in ("/collective_rpc", "/update_weights_from_disk"):
        if route != reload_route:
            return 404, {}
        load()
    return 200, {"success": True}
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, route: str, dies: float = -1) -> Path:
    """A program that stands in for a server; the file of what it was asked."""
    log = folder / "asked.log"
    install_server(monkeypatch, folder / "server", _SERVER, log=str(log), reload_route=route, dies=dies)
    return log


def found(folder: Path, kind: str, values: tuple[float, ...], *, prompts: int = 60, **options: Any) -> SearchResult:
    (folder / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return solution_str == ground_truth\n"
    )
    lines = [json.dumps({"prompt": str(number), "reward_model": {"ground_truth": "yes"}}) for number in range(prompts)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    request = EvaluationRequest(
        ["ramerge/rewards"],
        settings={
            "rewards.prompts": str(folder / "prompts.jsonl"),
            "rewards.function": f"{folder / 'reward.py'}:compute_score",
            "max_retries": 0,
        },
    )

    def scorer(out: Folder, _on_load: object) -> TaskScorer:
        return TaskScorer(TaskScore(request, ModelServer(kind, timeout=60), 2), out.root)

    agents = {name: str(AGENTS / name) for name in ("coder", "memory")}
    recipe = Document({"method": "ram+", "base": str(AGENTS / "base"), "agents": agents})
    space = Space(("ram+",), (Axis("parameters.r", Choices(values)),))
    points = PlannedPoints(recipe, ramerge.Options(), folder / "out")
    settings = ramerge.SearchSettings(sampler="grid", **options)
    return search(points, folder / "out", space, settings, scorer)


@pytest.mark.parametrize(
    ("kind", "route", "asked"),
    [
        ("vllm", "/collective_rpc", ['/collective_rpc {"method": "reload_weights"}', "/reset_prefix_cache null"]),
        ("sglang", "/update_weights_from_disk", ['/update_weights_from_disk {"model_path": "OUT/served"}']),
        ("vllm", "none", ['/collective_rpc {"method": "reload_weights"}', "start 1"]),
        ("transformers", "none", ["start -"]),
    ],
    ids=["vllm", "sglang", "vllm that refuses", "transformers"],
)
def test_a_server_takes_one_point_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, route: str, asked: list[str]
) -> None:
    log = install(monkeypatch, tmp_path, route)
    result = found(tmp_path, kind, (0.5, 0.2))
    lines = log.read_text().replace(str(tmp_path / "out"), "OUT").splitlines()
    first = "start 1" if kind == "vllm" else "start -"
    # the two points, and the best one again for the test
    again = [line for r in ("0.2", "0.2") for line in _with_load(asked, f"serve r {r}")]
    assert lines == [first, "serve r 0.5", *again]
    keys = [f"prompts/{number}" for number in range(1, 61)]
    for split, measured in (("validation", result.winner.objectives), ("test", result.test)):
        numbers = [int(key.partition("/")[2]) - 1 for key in keys if split_of(key) == split]
        assert measured is not None
        assert measured[0].value == pytest.approx(sum(number % 10 >= 2 for number in numbers) / len(numbers))
    assert result.winner.point == {"method": "ram+", "parameters.r": 0.2} and list(result.scores) == ["rewards/prompts"]


def _with_load(asked: list[str], load: str) -> list[str]:
    place = next(i for i, line in enumerate(asked) if line.startswith(("start", "/collective", "/update")))
    if any(line.startswith("start") for line in asked):
        return [*asked, load]
    return [*asked[: place + 1], load, *asked[place + 1 :]]


def test_a_server_that_dies_costs_its_point_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "/collective_rpc", dies=0.2)
    result = found(tmp_path, "vllm", (0.5, 0.2, 0.1), prompts=12)  # Inspect spends a second on every failed one
    assert [point.state for point in result.points] == ["complete", "failed", "complete"]
    assert "failed" in str(result.points[1].failure)
    assert result.winner.point == {"method": "ram+", "parameters.r": 0.1}


def test_another_configuration_starts_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = install(monkeypatch, tmp_path, "/collective_rpc")
    for name, config in (("one", "{}"), ("two", '{"dtype": "float32"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
        (tmp_path / name / "ramerge.json").write_text('{"parameters": {"r": 0}}')
    kept = KeptServer(ModelServer("vllm", timeout=60), tmp_path / "served", tmp_path / "server.log")
    try:
        for name in ("one", "one", "two"):
            kept.load(tmp_path / name)
    finally:
        kept.close()
    assert [line.partition(" ")[0] for line in log.read_text().splitlines()].count("start") == 2
