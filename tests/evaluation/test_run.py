"""Whole evaluations of a toy suite against a stand-in server, whatever goes wrong."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="needs the extra eval")

from ramerge.evaluation import samples
from ramerge.evaluation.endpoint import EndpointAccess, GoneError
from ramerge.evaluation.evaluate import EvaluationRequest, evaluate
from ramerge.evaluation.progress import EvaluationProgress
from ramerge.evaluation.results import task_file
from ramerge.evaluation.suites.table import SUITES
from ramerge.evaluation.targets import EvaluationTarget, read_targets
from ramerge.foundation.errors import EndpointError, EvaluationError
from tests.evaluation.server import Answer, Body, Server, completion, refusal, serving

TARGET = EvaluationTarget("m", "stand-in")


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "toy", ("tests.evaluation.toy", "ToySuite"))


def word(body: Body) -> str:
    return str(body["messages"][0]["content"]).removeprefix("say ")


def right(body: Body) -> Answer:
    return completion(word(body))


def run(
    results: Path, server: Server, target: EvaluationTarget = TARGET, retries: int = 0, **request: Any
) -> dict[str, Any]:
    listen = request.pop("on_progress", lambda _: None)
    return evaluate(
        results,
        [target],
        EvaluationRequest(["toy"], **request),
        EndpointAccess(server.url, retries=retries),
        on_progress=listen,
    )


def lines(results: Path, task: str = "easy") -> list[dict[str, Any]]:
    text = (results / "m" / "toy" / f"{task}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def accuracy(summary: dict[str, Any], task: str = "easy") -> dict[str, Any]:
    scored: dict[str, Any] = summary["models"]["m"]["tasks"][f"toy/{task}"]
    return scored


def test_every_sample_is_scored_and_recorded(tmp_path: Path) -> None:
    with serving(right) as server:
        summary = run(tmp_path, server)
    scored = accuracy(summary)
    assert scored["metrics"]["accuracy"] == {"score": 1.0, "low": 1.0, "high": 1.0}
    assert (scored["samples"], scored["failed"], scored["complete"]) == (20, 0, True)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    samples = {line["key"]: line for line in lines(tmp_path)}
    assert set(samples) == {f"easy-{n}" for n in range(20)}
    sample = samples["easy-3"]
    assert sample["score"] == 1.0
    assert sample["parsed"] == "word3"
    assert sample["failure"] is None
    call = sample["calls"][0]
    assert call["messages"] == [{"role": "user", "content": "say word3"}]
    assert (call["output"], call["finish_reason"], call["completion_tokens"]) == ("word3", "stop", 3)
    assert len({body["seed"] for body in server.asked}) == 20
    assert server.asked[0]["stop"] == ["."]


def test_settings_reach_the_request_and_the_results(tmp_path: Path) -> None:
    with serving(right) as server:
        summary = run(tmp_path, server, settings=["toy.temperature=0.7", "toy.extra_body={top_k: 5}"], limit=2)
    assert {(body["temperature"], body["top_k"]) for body in server.asked} == {(0.7, 5)}
    suite = summary["models"]["m"]["suites"]["toy"]
    assert suite["settings"]["temperature"] == 0.7
    assert suite["versions"] == {"toy": "1"}


def test_all_tasks_run_when_asked_for(tmp_path: Path) -> None:
    with serving(right) as server:
        summary = run(tmp_path, server, tasks=["toy/all"], limit=3)
    assert {name: task["samples"] for name, task in summary["models"]["m"]["tasks"].items()} == {
        "toy/easy": 3,
        "toy/hard": 3,
    }


def test_a_second_run_asks_nothing_again_and_a_higher_limit_goes_on(tmp_path: Path) -> None:
    with serving(right) as server:
        run(tmp_path, server, limit=5)
        run(tmp_path, server, limit=5)
        assert len(server.asked) == 5
        summary = run(tmp_path, server, limit=8)
        assert len(server.asked) == 8
    assert accuracy(summary)["samples"] == 8


def test_failed_requests_count_as_wrong(tmp_path: Path) -> None:
    def answer(body: Body) -> Answer:
        return refusal(500, "kaput") if word(body) in ("word1", "word2") else right(body)

    with serving(answer) as server:
        summary = run(tmp_path, server)
    scored = accuracy(summary)
    assert (scored["samples"], scored["failed"], scored["metrics"]["accuracy"]["score"]) == (20, 2, 0.9)
    failed = {line["key"]: line for line in lines(tmp_path) if line["failure"]}
    assert set(failed) == {"easy-1", "easy-2"}
    assert "500: kaput" in failed["easy-1"]["failure"]
    assert failed["easy-1"]["score"] == 0.0


def test_failed_samples_are_asked_again_only_when_asked_for(tmp_path: Path) -> None:
    with serving(lambda body: refusal(500, "kaput") if word(body) == "word1" else right(body)) as server:
        run(tmp_path, server)
    with serving(right) as server:
        assert accuracy(run(tmp_path, server))["failed"] == 1
        assert not server.asked
        scored = accuracy(run(tmp_path, server, retry_failed=True))
        assert len(server.asked) == 1
    assert (scored["samples"], scored["failed"], scored["metrics"]["accuracy"]["score"]) == (20, 0, 1.0)


def test_answers_that_break_a_checker_are_failed_samples(tmp_path: Path) -> None:
    with serving(lambda body: completion("bomb") if word(body) == "word1" else right(body)) as server:
        scored = accuracy(run(tmp_path, server))
    assert (scored["samples"], scored["failed"]) == (20, 1)
    assert any("RecursionError: too deep" in (line["failure"] or "") for line in lines(tmp_path))


def test_answers_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    with serving(lambda body: completion("") if word(body) == "word1" else right(body)) as server:
        scored = accuracy(run(tmp_path, server))
    assert (scored["failed"], scored["unreadable"], scored["metrics"]["accuracy"]["score"]) == (0, 1, 0.95)


def test_an_endpoint_that_dies_keeps_what_is_scored_and_the_next_run_goes_on(tmp_path: Path) -> None:
    def answer(body: Body) -> Answer:
        if len(server.asked) > 7:
            server.open = False
            return Answer(silent=True)
        return right(body)

    with serving(answer) as server, pytest.raises(GoneError):
        run(tmp_path, server)
    before = lines(tmp_path)
    assert 0 < len(before) <= 7
    assert all(line["score"] == 1.0 for line in before)
    assert not accuracy(json.loads((tmp_path / "summary.json").read_text()))["complete"]
    with serving(right) as server:
        scored = accuracy(run(tmp_path, server))
    assert len(server.asked) == 20 - len(before)
    assert len(lines(tmp_path)) == 20
    assert (scored["failed"], scored["metrics"]["accuracy"]["score"]) == (0, 1.0)


def test_nothing_but_failures_stops_the_run(tmp_path: Path) -> None:
    with serving(lambda _: refusal(500, "kaput")) as server, pytest.raises(EndpointError, match="5 samples in a row"):
        run(tmp_path, server, most_failures=5)
    assert all(line["failure"] for line in lines(tmp_path))
    with serving(right) as server:
        assert accuracy(run(tmp_path, server, retry_failed=True))["metrics"]["accuracy"]["score"] == 1.0


def test_a_run_that_is_complete_needs_no_endpoint(tmp_path: Path) -> None:
    with serving(right) as server:
        before = run(tmp_path, server)
    assert run(tmp_path, server) == before


def test_a_smaller_limit_does_not_make_a_stopped_run_complete(tmp_path: Path) -> None:
    def answer(body: Body) -> Answer:
        server.open = len(server.asked) < 8
        return right(body)

    with serving(answer) as server, pytest.raises(GoneError):
        run(tmp_path, server)
    with serving(right) as server:
        assert not accuracy(run(tmp_path, server, limit=2))["complete"]


def test_progress_forgets_what_is_asked_again(tmp_path: Path) -> None:
    heard: list[EvaluationProgress] = []
    with serving(lambda body: refusal(500, "x") if word(body) == "word1" else right(body)) as server:
        run(tmp_path, server, limit=2)
    with serving(right) as server:
        run(tmp_path, server, limit=2, retry_failed=True, on_progress=heard.append)
    assert [(event.done, event.failed, event.score) for event in heard] == [(1, 0, 1.0), (2, 0, 1.0)]


def test_requests_that_a_sample_did_without_are_counted_and_asked_again(tmp_path: Path) -> None:
    twice = ["toy.twice=true"]
    with serving(lambda body: refusal(500, "x") if "once more" in str(body) else right(body)) as server:
        scored = accuracy(run(tmp_path, server, limit=2, settings=twice))
    assert (scored["failed"], scored["failed_requests"]) == (0, 2)
    with serving(right) as server:
        scored = accuracy(run(tmp_path, server, limit=2, settings=twice, retry_failed=True))
        assert len(server.asked) == 4
    assert (scored["failed"], scored["failed_requests"]) == (0, 0)


def test_what_json_cannot_hold_is_written_as_text(tmp_path: Path) -> None:
    with serving(lambda body: completion("odd")) as server:
        run(tmp_path, server, limit=1)
    assert lines(tmp_path)[0]["parsed"] == "{(1, 2): Ellipsis}"


def test_a_torn_last_line_is_asked_again(tmp_path: Path) -> None:
    with serving(right) as server:
        run(tmp_path, server)
        path = tmp_path / "m" / "toy" / "easy.jsonl"
        path.write_bytes(path.read_bytes()[:-20])
        scored = accuracy(run(tmp_path, server))
        assert len(server.asked) == 21
    assert scored["samples"] == 20
    assert len(lines(tmp_path)) == 20


def test_other_settings_or_another_model_are_not_mixed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"one")
    results = tmp_path / "results"
    target = EvaluationTarget("m", "stand-in", str(model))
    with serving(right) as server:
        run(results, server, target)
        with pytest.raises(EvaluationError, match=r"temperature = 0\.0, and now with 0\.5"):
            run(results, server, target, settings=["toy.temperature=0.5"])
        (model / "model.safetensors").write_bytes(b"other")
        with pytest.raises(EvaluationError, match="results of another model"):
            run(results, server, target)


def test_other_data_are_not_mixed(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("one")
    data = {"words": words}
    with serving(right) as server:
        run(tmp_path / "r", server, data=data, limit=2)
        run(tmp_path / "r", server, data=data)
        with pytest.raises(EvaluationError, match='now with "default"'):
            run(tmp_path / "r", server)
        words.write_text("two")
        with pytest.raises(EvaluationError, match="toy/easy was run with words"):
            run(tmp_path / "r", server, data=data)


def test_the_merge_record_goes_with_the_results(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    record = {"method": "ram", "base": "b", "statistics": {"agents": [{"name": "a", "model": "c"}]}}
    (tmp_path / "model" / "ramerge.json").write_text(json.dumps(record))
    with serving(right) as server:
        summary = run(tmp_path / "r", server, EvaluationTarget("m", "stand-in", str(tmp_path / "model")))
    assert summary["models"]["m"]["record"] == record


def test_results_without_an_answer_are_begun_anew(tmp_path: Path) -> None:
    with serving(lambda _: refusal(400, "no such model")) as server:
        run(tmp_path, server, limit=2)
        assert len(lines(tmp_path)) == 2
    with serving(right, models=["other"]) as server:
        scored = accuracy(
            run(tmp_path, server, EvaluationTarget("m", "other"), limit=3, settings=["toy.temperature=0.5"])
        )
    assert (scored["samples"], scored["failed"], scored["metrics"]["accuracy"]["score"]) == (3, 0, 1.0)


def test_results_do_not_go_into_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with serving(right) as server, pytest.raises(EvaluationError, match="is the folder of a model"):
        run(tmp_path, server)


@pytest.mark.parametrize(
    "broken",
    ["[]", '{"name": 1}', '{"name": "o", "suites": {"toy": {"settings": [1]}}}', '{"name": "o", "tasks": {"a/b": {}}}'],
)
def test_broken_results_are_refused_before_anything_runs(tmp_path: Path, broken: str) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "model.json").write_text(broken)
    with serving(right) as server, pytest.raises(EvaluationError, match=r"model\.json: "):
        run(tmp_path, server)
    assert not server.asked


def test_answers_that_are_cut_off_are_counted(tmp_path: Path) -> None:
    with serving(lambda body: completion(word(body), finish_reason="length")) as server:
        assert accuracy(run(tmp_path, server, limit=3))["cut"] == 3


def test_two_runs_do_not_write_to_one_model(tmp_path: Path) -> None:
    def answer(body: Body) -> Answer:
        with pytest.raises(EvaluationError, match="another evaluation"):
            run(tmp_path, other)
        return right(body)

    with serving(right) as other, serving(answer) as server:
        run(tmp_path, server, limit=1)


def test_progress_is_told_with_failures_and_the_running_score(tmp_path: Path) -> None:
    heard: list[EvaluationProgress] = []
    with serving(lambda body: refusal(500, "x") if word(body) == "word1" else right(body)) as server:
        run(tmp_path, server, limit=4, on_progress=heard.append)
    assert [event.done for event in heard] == [0, 1, 2, 3, 4]
    assert (heard[-1].total, heard[-1].failed, heard[-1].score) == (4, 1, 0.75)


def test_a_task_is_told_when_it_begins(tmp_path: Path) -> None:
    """So that its rate is not that of the tasks before it."""
    heard: list[EvaluationProgress] = []
    with serving(right) as server:
        run(tmp_path, server, limit=2, tasks=["toy/all"], on_progress=heard.append)
    assert [(event.task, event.done) for event in heard] == [
        (task, done) for task in ("easy", "hard") for done in range(3)
    ]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"suites": ["tol"]}, "unknown suite 'tol'; did you mean 'tool'"),
        ({"suites": ["toy", "toy"]}, "given twice"),
        ({"suites": []}, "no suite"),
        ({"tasks": ["toy/eazy"]}, "did you mean 'easy'"),
        ({"tasks": ["easy"]}, "must be SUITE/TASK"),
        ({"tasks": ["math/gsm8k"]}, "of a suite that --suite names"),
        ({"settings": ["toy.temperature"]}, "must be SUITE.KEY=VALUE"),
        ({"settings": ["toy.temperature=hot"]}, "toy.temperature=hot"),
        ({"settings": ["toy.temprature=1"]}, "did you mean 'temperature'"),
        ({"settings": ["tool.temperature=1"]}, "unknown suite 'tool'"),
        ({"settings": ["toy.words=13"]}, "thirteen words"),
        ({"settings": ["toy.extra_body={messages: []}"]}, "must not hold messages, which the suite decides"),
        ({"settings": ["toy.extra_body={a: .nan}"]}, "cannot be sent as JSON"),
        ({"settings": ["toy.extra_body=&a {b: *a}"]}, "toy.extra_body"),
        ({"data": {"wrods": Path("x")}}, "unknown data set 'wrods'; did you mean 'words'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    tmp_path: Path, request_: dict[str, Any], message: str
) -> None:
    with serving(right) as server, pytest.raises(EvaluationError, match=message):
        evaluate(
            tmp_path / "r", [TARGET], EvaluationRequest(**{"suites": ["toy"], **request_}), EndpointAccess(server.url)
        )
    assert not server.asked
    assert not (tmp_path / "r").exists()


def test_targets_of_a_command_line(tmp_path: Path) -> None:
    one = f"a={tmp_path}"
    assert read_targets([one], [], serve=True) == [EvaluationTarget("a", "a", str(tmp_path))]
    assert read_targets([one], ["x"], serve=False) == [EvaluationTarget("a", "x", str(tmp_path))]
    assert read_targets([], ["x", "b=y"], serve=False) == [EvaluationTarget("x", "x"), EvaluationTarget("b", "y")]
    assert read_targets([], ["/models/a b", "o/m-7B"], serve=False) == [
        EvaluationTarget("a-b", "/models/a b"),
        EvaluationTarget("m-7B", "o/m-7B"),
    ]
    assert read_targets([one, "b=o/m"], ["b=y"], serve=False) == [
        EvaluationTarget("a", "a", str(tmp_path)),
        EvaluationTarget("b", "y", "o/m"),
    ]


@pytest.mark.parametrize(
    ("models", "served", "serve", "message"),
    [
        (["x"], [], True, "must be NAME=FOLDER"),
        ([], [], True, "say which models"),
        ([], [], False, "say which model"),
        (["a=o/m"], ["x"], True, "needs --endpoint"),
        (["a=./not/there"], [], True, "no such folder"),
        (["a=o/m"], ["b=c"], False, "is none of the models"),
        (["../a=o/m"], [], True, "model name"),
        (["a=o/m", "a=o/n"], [], True, "given twice"),
        (["summary.json=o/m"], [], True, "model name"),
    ],
)
def test_targets_that_make_no_sense(models: list[str], served: list[str], serve: bool, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        read_targets(models, served, serve=serve)


_PROGRAM = """
import sys
from ramerge.evaluation.results import task_file
from ramerge.evaluation.suites.table import SUITES
SUITES["toy"] = ("tests.evaluation.toy", "ToySuite")
from ramerge.cli.main import main
main()
"""


def command(results: Path, server: Server, *words: str) -> list[str]:
    return [
        *(sys.executable, "-c", _PROGRAM, "eval", "--endpoint", server.url, "--served-name", "m=stand-in"),
        *("--suite", "toy", "--concurrency", "2", *words, str(results)),
    ]


def test_a_signal_inside_a_callback_of_the_loop_is_not_lost() -> None:
    program = """
import asyncio, os, signal
from ramerge.cli import main as cli
from ramerge.foundation.errors import StoppedError
from ramerge.evaluation.stopping import stoppable
signal.signal(signal.SIGTERM, cli._stop)
async def run():
    with stoppable():
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.sleep(30)
try:
    asyncio.run(run())
except StoppedError as stop:
    print(stop.number, signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("15 True\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path: Path, number: int) -> None:
    def slow(body: Body) -> Answer:
        answer = right(body)
        answer.seconds = 0.05
        return answer

    with serving(slow) as server:
        words = command(tmp_path, server, "--set", "toy.words=100")
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 300
        while len(server.asked) < 10 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
        before = len(lines(tmp_path))
        assert 0 < before < 100
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert "what was scored is kept" in said
        server.asked.clear()
        done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True, timeout=600)
        assert len(server.asked) == 100 - before
    scored = accuracy(json.loads(done.stdout))
    assert (scored["samples"], scored["complete"], scored["metrics"]["accuracy"]["score"]) == (100, True, 1.0)
    assert len({line["key"] for line in lines(tmp_path)}) == len(lines(tmp_path)) == 100


def test_the_command_shows_settings_progress_and_scores(tmp_path: Path) -> None:
    with serving(right) as server:
        done = subprocess.run(command(tmp_path, server), capture_output=True, text=True, check=True, timeout=600)
    assert "toy: temperature = 0.0" in done.stderr
    assert "m  toy/easy: 20 of 20" in done.stderr
    assert "score 100.0%" in done.stderr
    assert "100.00  100.00 to 100.00       20       0" in done.stdout


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    with serving(right, models=["other"]) as server:
        done = subprocess.run(command(tmp_path, server), capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "does not serve 'stand-in'; it serves other" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--endpoint", "http://user:pass@localhost/v1"], "must not hold a user or password"),
        (["--endpoint", "http://[::1"], "must be a URL"),
        (["--endpoint", "localhost:8000"], "must be a URL"),
        (["--endpoint", "http://localhost:abc/v1"], "must be a URL"),
        (["--endpoint", "http://localhost/v1", "--serve", "vllm"], "not both"),
        (["--endpoint", "http://localhost/v1", "--timeout", "nan"], "is no number"),
        (["--endpoint", "http://localhost/v1"], "no suite"),
        ([], "say where the models run"),
    ],
)
def test_words_that_make_no_sense(tmp_path: Path, words: list[str], message: str) -> None:
    command = [sys.executable, "-m", "ramerge.cli.main", "eval", *words, "--served-name", "m", str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert message in done.stderr
    assert "pass@" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_run_without_an_answer_fails(tmp_path: Path) -> None:
    with serving(lambda _: refusal(400, "wrong model")) as server:
        done = subprocess.run(command(tmp_path, server), capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "error: m toy/easy: no sample got an answer: answered 400: wrong model" in done.stderr


def test_an_answer_that_is_too_long_fails_its_sample_and_nothing_else(tmp_path: Path) -> None:
    def answer(body: Body) -> Answer:
        return completion("x" * 30_000) if word(body) == "word3" else right(body)

    with serving(answer) as server:
        done = subprocess.run(
            [*command(tmp_path, server), "--answer-megabytes", "0.02"], capture_output=True, text=True, timeout=600
        )
    assert done.returncode == 0
    assert "1: the answer has more than 20,000 bytes" in done.stdout
    failures = [line["failure"] for line in lines(tmp_path) if line["failure"]]
    assert failures == ["the answer has more than 20,000 bytes"]


@pytest.mark.parametrize("most", [4_000, 1_000])
def test_what_is_written_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also where answers are longer than a line may be, and nested more deeply than is read."""
    monkeypatch.setattr(samples, "MOST_BYTES", most)
    parsed: Any = []
    for _ in range(300):
        parsed = [parsed]
    sample = {"key": "a", "metrics": {"x": (1.0, 1.0)}, "failure": None, "parsed": parsed, "calls": ["y" * 3_000]}
    with task_file(tmp_path, "toy", "easy") as file:
        file.append(sample)
    with task_file(tmp_path, "toy", "easy") as file:
        assert list(file.done) == ["a"]


@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_gets_tables_of_its_width_and_a_pipe_all_columns(tmp_path: Path, columns: int) -> None:
    with serving(right) as server:
        run(tmp_path, server, tasks=["toy/all"])
    words = [sys.executable, "-m", "ramerge.cli.main", "table", str(tmp_path), "--table", "all", "--intervals"]
    environment = {**os.environ, "COLUMNS": str(columns)}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, stdout=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of what a terminal is sent
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert process.wait(600) == 0
    piped = subprocess.run(words, capture_output=True, text=True, env=environment, check=True, timeout=600).stdout
    assert piped.count("Model") == 1
    assert shown.count(b"Model") == (2 if columns == 60 else 1)
    assert columns == 200 or max(map(len, shown.decode().splitlines())) <= 60


def test_a_table_does_not_replace_results(tmp_path: Path) -> None:
    with serving(right) as server:
        run(tmp_path, server)
    for name in ("summary.json", "m/model.json", "m/toy/easy.jsonl"):
        words = ["table", str(tmp_path), "--out", str(tmp_path / name)]
        done = subprocess.run(
            [sys.executable, "-m", "ramerge.cli.main", *words], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 2
        assert "is a file of the results" in done.stderr
    assert len(lines(tmp_path)) == 20
    words = ["table", str(tmp_path), "--out", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ramerge.cli.main", *words], capture_output=True, text=True, timeout=600, cwd=tmp_path
    )
    assert "Model" in done.stdout and not (tmp_path / "-").exists()


def test_the_key_is_never_written_down(tmp_path: Path) -> None:
    with serving(right) as server:
        environment = {**os.environ, "RAMERGE_API_KEY": "very-secret"}
        subprocess.run(command(tmp_path, server), check=True, capture_output=True, env=environment, timeout=600)
    assert "very-secret" in server.headers[0]
    assert not any("very-secret" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())
