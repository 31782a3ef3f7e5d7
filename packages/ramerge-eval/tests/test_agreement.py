"""`ramerge/agreement`: the likelihood of agents' replies, from an endpoint and in process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from inspect_ai.log import list_eval_logs, read_eval_log
from tests.server import Answer, Body, Server, refusal, serving

import ramerge
from ramerge.calibration.exchanges import Exchange, to_lines
from ramerge.cli.main import cli
from ramerge.demo.run import AGENTS
from ramerge.scoring.access import ModelAccess
from ramerge.scoring.serving import ModelServer
from ramerge_eval import logs
from ramerge_eval.models import EvaluationTarget
from ramerge_eval.run import EvaluationRequest, evaluate
from ramerge_eval.tables.build import build

pytestmark = [
    pytest.mark.full,  # Inspect
    pytest.mark.needs("inspect_ai"),
    pytest.mark.filterwarnings("ignore"),
]


def calibration(folder: Path, **agents: list[Exchange]) -> Path:
    """A folder as `calibrate` writes it."""
    for name, exchanges in agents.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "replies.jsonl").write_text(to_lines(exchanges))
        counts = dict.fromkeys(("held_out", "generated", "rewarded", "tokens", "rows", "layers", "importances"), 0)
        record = ramerge.CalibrationRecord(
            ramerge_version="0",
            agent=name,
            fingerprint="",
            prompts=len(exchanges),
            **counts,
            device="cpu",
            dtype="float32",
            seconds=0.0,
            notes=(),
        )
        (folder / name / "calibration.json").write_text(record.to_json())
    return folder


def exchange(*ids: int, start: int = 2, **how: Any) -> Exchange:
    return Exchange(f"p.jsonl: line {ids[0]}", ids, start, "reply", held_out=True, **how)


def echo(logprob: Callable[[int], float | None], more: int = 1) -> Callable[[Body], Answer]:
    """An endpoint that gives each token of the prompt, and `more` after it, a log-probability by its id."""

    def answer(body: Body) -> Answer:
        ids = body["prompt"]
        found = [None, *map(logprob, ids[1:])] + [-9.0] * more
        about = {"tokens": [""] * len(found), "token_logprobs": found, "top_logprobs": None, "text_offset": []}
        choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": about}
        whole = {"id": "c", "object": "text_completion", "created": 0, "model": "stand-in", "choices": [choice]}
        return Answer(body=json.dumps(whole).encode())

    return answer


def run(server: Server, folder: Path, **settings: Any) -> bool:
    asked = EvaluationRequest(
        ["ramerge/agreement"], {"max_retries": 0, **settings}, {"calibration": str(folder)}, display="none"
    )
    return evaluate("logs", [EvaluationTarget("m", "stand-in")], asked, ModelAccess(endpoint=server.url))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("more", [0, 1])
def test_an_endpoint_is_asked_for_the_likelihood_of_replies(place: Path, more: int) -> None:
    replies = {"code": [exchange(1, 2, 10, 20), exchange(3, 2, 30)], "tool": [exchange(5, 6, 7, 40, start=3)]}
    folder = calibration(place / "c", **replies)
    with serving(echo(lambda token: -token / 100, more)) as server:
        assert run(server, folder)
    assert {body["prompt"][0] for body in server.asked} == {1, 3, 5}
    assert all(head.startswith("POST /v1/completions ") for head in server.headers)
    wanted = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0.0, "model": "stand-in"}
    assert all(body == {**wanted, "prompt": body["prompt"]} for body in server.asked)
    (model,) = logs.read(Path("logs"))
    shares = {"code": (math.exp(-0.15) + math.exp(-0.3)) / 2, "tool": math.exp(-0.4)}
    for name, share in shares.items():
        assert model.tasks["agreement", name].value("agreement") == pytest.approx(100 * share)
    log = read_eval_log(list_eval_logs("logs", recursive=True)[0].name)
    assert log.results is not None and log.eval.metadata is not None
    nll = next(score.metrics for score in log.results.scores if "nll" in str(score.metrics))
    assert nll["code/nll"].value == pytest.approx((0.3 + 0.3) / 3)
    assert {sample.scores["ramerge/agreement"].metadata["tokens"] for sample in log.samples or []} == {1, 2}
    assert log.eval.metadata["agreement"]["rewarded"] is False
    table = build([model])
    assert any("Agreement is no skill" in note for note in table.notes)
    assert [column.title for column in table.columns] == ["Agreement code", "Agreement tool"]


def test_only_right_replies_count_where_rewards_are_known(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [exchange(1, 2, 10, reward=1.0), exchange(3, 2, 30, reward=0.0), exchange(4, 2, 50, reward=0.5)]
    folder = calibration(place / "c", code=some)
    with serving(echo(lambda token: -1.0)) as server:
        assert run(server, folder)
        assert [body["prompt"] for body in server.asked] == [[1, 2, 10]]
        assert run(server, folder, **{"agreement.right_at": 0.5})
        assert sorted(body["prompt"][0] for body in server.asked) == [1, 1, 4], "each setting has a log of its own"
    assert "no rewards are known" not in capsys.readouterr().err


def test_without_rewards_a_warning_says_what_it_cannot_see(place: Path) -> None:
    folder = calibration(place / "c", code=[exchange(1, 2, 10)])
    with serving(echo(lambda token: -1.0)) as server:
        words = ["eval", "logs", "--task", "ramerge/agreement", "--data", f"calibration={folder}"]
        done = CliRunner().invoke(cli, [*words, "--endpoint", server.url, "--served-name", "m"])
    assert done.exit_code == 0, done.output
    assert "no rewards are given, so all replies count, right or wrong" in done.stderr
    assert "Agreement is no skill" in done.stdout
    assert "36.79" in done.stdout


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda body: refusal(400, "token id is out of vocabulary"), "out of vocabulary"),
        (lambda body: Answer(body=b'{"choices": [{"index": 0, "text": "x", "logprobs": null}]}'), "must support echo"),
        (lambda body: echo(lambda _: -1.0)({"prompt": [1]}), "must support echo"),
        (echo(lambda token: None), "no finite number"),
        (echo(lambda token: 3.0), "no finite number up to 0"),
    ],
)
def test_replies_without_a_likelihood_are_named_and_asked_again(
    place: Path, answer: Callable[[Body], Answer], problem: str
) -> None:
    folder = calibration(place / "c", code=[exchange(1, 2, 10, 20), exchange(3, 2, 30)])
    with serving(answer) as server:
        assert not run(server, folder)
    samples = logs.read(Path("logs"))[0].tasks["agreement", "code"]
    assert len(samples.failures) == 2 and problem in next(iter(samples.failures.values()))
    with serving(echo(lambda token: 0.0)) as server:
        assert run(server, folder)
    assert logs.read(Path("logs"))[0].tasks["agreement", "code"].value("agreement") == 100


def test_other_replies_are_asked_although_the_folder_has_the_same_name(place: Path) -> None:
    folder = calibration(place / "c", code=[exchange(1, 2, 10)])
    with serving(echo(lambda token: -token / 100)) as server:
        assert run(server, folder)
        (folder / "code/replies.jsonl").write_text(to_lines([exchange(1, 2, 20)]))
        assert run(server, folder)
        assert [body["prompt"] for body in server.asked] == [[1, 2, 10], [1, 2, 20]]


@pytest.mark.parametrize(
    ("data", "problem"),
    [({}, "needs --data calibration=FOLDER"), ({"calibration": "."}, "holds no calibration; run `ramerge calibrate`")],
)
def test_bad_folders(place: Path, data: dict[str, str], problem: str) -> None:
    asked = EvaluationRequest(["ramerge/agreement"], {}, data)
    with serving("x") as server, pytest.raises(ramerge.EvaluationError, match=problem):
        evaluate("logs", [EvaluationTarget("m", "m")], asked, ModelAccess(endpoint=server.url))


@pytest.mark.needs("torch", "transformers")
def test_in_process_it_is_the_agreement_of_the_function(place: Path) -> None:
    prompts = place / "sort.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"sort {text}="}) + "\n" for text in ("312", "21", "5432", "14")))
    recipe = {
        "base": str(AGENTS / "base"),
        "agents": {"memory": str(AGENTS / "memory")},
        "prompts": {"memory": str(prompts)},
    }
    settings = ramerge.CalibrationSettings(gather="replies", hold_out=True, max_new=8, device="cpu")
    ramerge.calibrate(recipe, "c", settings=settings)
    expected = ramerge.agreement(AGENTS / "base", AGENTS / "coder", "c", settings=settings)["memory"]
    asked = EvaluationRequest(["ramerge/agreement"], {}, {"calibration": "c"})
    target = EvaluationTarget("coder", "coder", str(AGENTS / "coder"))
    access = ModelAccess(ModelServer("transformers", ["--device", "cpu", "--dtype", "float32"]))
    assert evaluate("logs", [target], asked, access)
    log = read_eval_log(list_eval_logs("logs", recursive=True)[0].name)
    assert log.results is not None
    nll = next(score.metrics for score in log.results.scores if "nll" in str(score.metrics))
    assert nll["memory/nll"].value == pytest.approx(expected.nll, abs=1e-5)
    assert len(log.samples or []) == expected.prompts == 2
