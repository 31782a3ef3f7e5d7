"""`ramerge eval` through Inspect on a stand-in endpoint: tasks, logs, failures, and runs that were killed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import rich
from click.testing import CliRunner
from tests.server import Answer, Server, completion, refusal, serving
from tests.tiers import some
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from tokenizers.trainers import BpeTrainer

from ramerge.cli.main import cli
from ramerge.core.foundation.errors import EndpointError, EvaluationError, OutputError
from ramerge.demo.run import AGENTS
from ramerge.scoring.access import ModelAccess
from ramerge.scoring.serving import ModelServer, RunningServer
from ramerge_eval import logs, models
from ramerge_eval.models import EvaluationTarget, read_targets
from ramerge_eval.run import EvaluationRequest, evaluate, sample_ids
from test_memory_suite import hotpot, squad

# Inspect's own code and that of its servers warns of many things
pytestmark = [
    pytest.mark.full,  # clients of models, checkers, the sandbox
    pytest.mark.filterwarnings("ignore"),
]

REWARD = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return solution_str == ground_truth\n"
)
MINE = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

@task
def mine(count: int = 3):
    samples = [Sample(input=f"q{number}", target="yes") for number in range(count)]
    return Task(dataset=samples, solver=generate(), scorer=includes())
"""
ADD = {"question": "Add.", "test_input": ["1 2\n"], "test_output": ["3\n"]}
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    prompts(tmp_path, 6)
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "add.json").write_text(json.dumps([ADD, ADD]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prompts(folder: Path, count: int) -> None:
    records = [{"prompt": f"q{number}", "reward_model": {"ground_truth": "yes"}} for number in range(count)]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def request(**options: Any) -> EvaluationRequest:
    settings = {"rewards.prompts": "prompts.jsonl", "rewards.function": "reward.py:compute_score", "max_retries": 0}
    return EvaluationRequest(**{"tasks": ["ramerge/rewards"], "settings": settings, **options})


def run(server: Server, asked: EvaluationRequest, name: str = "m") -> bool:
    return evaluate("logs", [EvaluationTarget(name, "stand-in")], asked, ModelAccess(endpoint=server.url))


def content(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def says(right: Callable[[str], bool]) -> Callable[[dict[str, Any]], Answer]:
    return lambda body: completion("yes" if right(content(body)) else "no")


def only(name: str = "m") -> logs.Model:
    return next(model for model in logs.read(Path("logs")) if model.name == name)


def test_ours_and_a_users_task_in_one_log_folder(place: Path) -> None:
    with serving(says(lambda text: text in ("q1", "q2"))) as server:
        assert run(server, request(tasks=["ramerge/rewards", "mine.py@mine"]))
    tasks = only().tasks
    assert tasks["rewards", "prompts"].value("reward") == pytest.approx(100 * 2 / 6)
    assert tasks["task", "mine"].value("includes") == pytest.approx(100 * 2 / 3)
    assert tasks["rewards", "prompts"].tokens == 18


def test_links_in_the_logs_of_a_model_are_refused(place: Path) -> None:
    (place / "victim").write_text("mine")
    (place / "logs" / "m").mkdir(parents=True)
    (place / "logs" / "m" / "server.log").symlink_to(place / "victim")
    access = ModelAccess(endpoint="http://127.0.0.1:9/v1")
    with pytest.raises(OutputError, match=r"server\.log: is a link"):
        evaluate("logs", [EvaluationTarget("m", "m")], EvaluationRequest(["mine.py@mine"]), access)
    assert (place / "victim").read_text() == "mine"


def test_a_pipe_among_logs_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.eval")
    with pytest.raises(EvaluationError, match=r"a\.eval: is not a regular file"):
        logs.read(tmp_path)


def test_programs_run_in_bubblewrap_and_logs_show_ratios(place: Path) -> None:
    settings = {"coding.subsets": "livebench", "coding.programs": 2, "coding.tests": 0, "coding.bon": [1, 0]}
    asked = EvaluationRequest(["ramerge/coding"], settings, {"livebench": "add.json"})
    with serving(RIGHT) as server:
        assert run(server, asked)
    assert only().tasks["coding", "livebench"].value("acc") == 100
    assert [len(only().tasks["coding", "livebench"].keys), len(server.asked)] == [2, 4]
    assert {body["temperature"] for body in server.asked} == {1.0}
    assert len({body["seed"] for body in server.asked}) == 4, "each request has a seed of its own"


def test_other_sandboxes_judge_alike(place: Path) -> None:
    square = {
        "task_id": 11,
        "text": "x",
        "code": "def f(x):\n  return 4",
        "test_list": ["assert f(2) == 4"],
        "test_setup_code": "",
    }
    box = {**square, "task_id": 12, "test_list": ["assert f(box) == 1"], "test_setup_code": "box = {1}.union"}
    Path("mbpp.json").write_text(json.dumps([square, box]))
    settings = {"coding.subsets": "mbpp", "coding.programs": 1, "coding.tests": 0, "coding.bon": [1, 0]}
    program = "```python\ndef f(x):\n    return 4 if x == 2 else 1\n```"
    has_python = another_user_has_python()
    for sandbox in ("bubblewrap", "local"):
        asked = EvaluationRequest(["ramerge/coding"], settings, {"mbpp": "mbpp.json"}, sandbox=sandbox)
        with serving(program) as server:
            assert run(server, asked, sandbox) is (has_python or sandbox == "bubblewrap")
    # a function as an argument does not go from one process to the other
    assert only("bubblewrap").tasks["coding", "mbpp"].metrics["acc"].tolist() == [[1, 1], [0, 1]]
    local = only("local").tasks
    if has_python:
        assert local["coding", "mbpp"].metrics["acc"].tolist() == [[1, 1], [0, 1]]
    else:
        assert not local["coding", "mbpp"].metrics, "no sample has a score"


def another_user_has_python() -> bool:
    """Whether assertions run here without a sandbox: for root, the function that they test runs as another user."""
    ask = ["python3", "-c", "import sys; print(sys.executable)"]
    python = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run([python, "-c", ""], check=True, **({"user": 65534} if os.geteuid() == 0 else {}))
    except PermissionError:
        return False
    return True


def test_rewards_see_what_the_model_thought(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "First.\n<think>  yes, or no? </think>\n\nyes"
    (place / "reward.py").write_text(REWARD.replace("== ground_truth", f"== {said!r}"))
    with serving(said) as server:
        assert run(server, request(limit=2))
        monkeypatch.setattr(models, "_keep_texts", lambda _api: None)  # as with `inspect eval`
        (place / "reward.py").write_text(
            REWARD.replace("== ground_truth", "== '<think>yes, or no?</think>\\nFirst.\\n\\n\\nyes'")
        )
        assert run(server, request(limit=2), "other")
    assert [only(name).tasks["rewards", "prompts"].value("reward") for name in ("m", "other")] == [100, 100]


def test_settings_reach_the_server(place: Path) -> None:
    more = {"temperature": 0.5, "max_tokens": 77, "top_k": 4, "rewards.seed": 3}
    with serving("yes") as server:
        assert run(server, request(settings={**request().settings, **more}, limit=1))
    [body] = server.asked
    assert (body["temperature"], body["max_tokens"], body["top_p"]) == (0.5, 77, 1.0)


def test_nothing_is_asked_twice_and_more_can_be_asked_later(place: Path) -> None:
    with serving("yes") as server:
        assert run(server, request(limit=2)) and run(server, request(limit=2))
        assert len(server.asked) == 2
        assert run(server, request())
        assert Counter(map(content, server.asked)) == Counter(f"q{number}" for number in range(6))
    assert len(only().tasks["rewards", "prompts"].keys) == 6


def test_failed_samples_count_nothing_until_they_are_asked_again(place: Path) -> None:
    def sometimes(body: dict[str, Any]) -> Answer:
        return refusal(400, "too hot") if content(body) == "q3" and len(server.asked) < 8 else completion("yes")

    with serving(sometimes) as server:
        assert not run(server, request())
        samples = only().tasks["rewards", "prompts"]
        assert samples.value("reward") is None
        assert list(samples.failures) == ["prompts/4"] and "too hot" in samples.failures["prompts/4"]
        server.asked.extend([{}] * 8)
        assert run(server, request())
    assert only().tasks["rewards", "prompts"].value("reward") == 100
    assert not only().tasks["rewards", "prompts"].failures


def test_other_weights_are_not_mixed(place: Path) -> None:
    model = place / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with serving("yes") as server:
        target, access = EvaluationTarget("m", "stand-in", str(model)), ModelAccess(endpoint=server.url)
        assert evaluate("logs", [target], request(), access)
        (model / "config.json").write_text('{"new": 1}')
        with pytest.raises(EvaluationError, match="another model that was called m"):
            evaluate("logs", [target], request(), access)


KILLED = """
import sys
from ramerge.scoring.access import ModelAccess
from ramerge_eval.models import EvaluationTarget
from ramerge_eval.run import EvaluationRequest, evaluate
settings = {"rewards.prompts": "prompts.jsonl", "rewards.function": "reward.py:compute_score", "max_connections": 4}
request = EvaluationRequest(["ramerge/rewards"], settings)
evaluate("logs", [EvaluationTarget("m", "stand-in")], request, ModelAccess(endpoint=sys.argv[1]))
"""


def test_kill_9_in_the_middle_loses_nothing_and_asks_nothing_twice(place: Path) -> None:
    prompts(place, 40)
    answered: list[str] = []

    def slowly(body: dict[str, Any]) -> Answer:
        answered.append(content(body))
        return Answer(**{**vars(completion("yes")), "seconds": 0.05})

    with serving(slowly) as server:
        command = [sys.executable, "-c", KILLED, server.url]
        for least in (6, 14):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as killed:
                until = time.monotonic() + 120
                while len(answered) < least + 4 and time.monotonic() < until:
                    time.sleep(0.01)
                killed.send_signal(signal.SIGKILL)
        assert 10 <= len(answered) < 40
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    counts = Counter(answered)
    assert counts.keys() == {f"q{number}" for number in range(40)}
    # those under way when it was killed: at most one for each connection, twice
    assert sum(counts.values()) - 40 <= 8
    assert len(only().tasks["rewards", "prompts"].keys) == 40


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGTERM], full=[signal.SIGTERM]))
def test_a_signal_ends_a_run_whose_endpoint_is_gone(place: Path, number: signal.Signals) -> None:
    def only_twice(_body: dict[str, Any]) -> Answer:
        return completion("yes") if len(server.asked) <= 2 else refusal(503, "overloaded")

    with serving(only_twice) as server:
        words = ["eval", "logs", "--task", "ramerge/rewards", "--endpoint", server.url, "--served-name", "m", "--quiet"]
        for setting in ("prompts=prompts.jsonl", "function=reward.py:compute_score", "max_retries=100"):
            words += ["--task-set", f"rewards.{setting}"]
        command = [sys.executable, "-m", "ramerge", *words]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as stopped:
            while len(server.asked) < 7 and stopped.poll() is None:
                time.sleep(0.01)
            began = time.monotonic()
            stopped.send_signal(number)
            _, said = stopped.communicate(timeout=100)
    assert (stopped.returncode, said.splitlines()) == (
        128 + number,
        [f"error: stopped by {number.name}; what was scored is kept in logs, and the same command resumes there"],
    )
    assert time.monotonic() - began < 20
    assert len(only().tasks["rewards", "prompts"].keys) >= 2


@pytest.fixture
def stand_in() -> Iterator[Server]:
    with serving("yes") as server:
        yield server


def command(*words: str) -> Any:
    rich.reconfigure(quiet=False)  # as in a new process: Inspect turns it off for all that follows
    return CliRunner().invoke(cli, list(words), standalone_mode=False)


def test_the_command_and_its_table(place: Path, stand_in: Server) -> None:
    words = ["eval", "logs", "--task", "ramerge/rewards", "--endpoint", stand_in.url, "--served-name", "a=stand-in"]
    words += ["--task-set", "rewards.prompts=prompts.jsonl", "--task-set", "rewards.function=reward.py:compute_score"]
    done = command(*words)
    assert done.exception is None and "100.00" in done.output and "Rewards" in done.output
    as_json = json.loads(command(*words, "--json").output)
    assert as_json["a"]["rewards/prompts"]["metrics"]["reward"]["score"] == 1.0
    assert len(stand_in.asked) == 6
    table = command("table", "logs", "--format", "csv").output
    assert "rewards,prompts,reward,100.0" in table


def test_a_server_has_as_long_to_start_as_it_is_given(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = place / "vllm"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr("ramerge.scoring.serving._program", lambda kind: str(program))
    words = ["eval", "logs", "--task", "ramerge/rewards", "--serve", "vllm", "--model", "m=org/x"]
    words += ["--task-set", "rewards.prompts=prompts.jsonl", "--task-set", "rewards.function=reward.py:compute_score"]
    done = command(*words, "--serve-timeout", "0.5")
    assert isinstance(done.exception, EndpointError)
    assert "was not ready within 0.5 seconds (--serve-timeout)" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--task", "ramerge/rewards"], "say where the models run"),
        (["--endpoint", "ftp://x", "--served-name", "m"], "must be a URL"),
        (["--endpoint", "http://me:pw@x/v1", "--served-name", "m"], "must not hold a user"),
        (["--endpoint", "http://x/v1"], "say which model"),
        (["--endpoint", "http://x/v1", "--served-name", "m"], "say what is asked"),
        (["--serve", "vllm", "--model", "m=/nowhere/x"], "no such folder"),
        (["--serve", "vllm", "--model", "m=org/x", "--serve-args", "'"], "No closing quotation"),
        (["--endpoint", "http://x/v1", "--served-name", "m", "--serve-args", "--x"], "is for --serve"),
        (["--endpoint", "http://x/v1", "--served-name", "m", "--task", "ramerge/nope"], "ramerge/nope"),
        (
            ["--endpoint", "http://x/v1", "--served-name", "m", "--task", "a", "--task-set", "max_tokenz=1"],
            "--task-set max_tokenz: unknown setting 'max_tokenz'; did you mean 'max_tokens'?",
        ),
        (["--endpoint", "http://x/v1", "--served-name", "m", "--task", "a", "--task-set", "b.c=1"], "is called b"),
        (["--endpoint", "http://x/v1", "--served-name", "m", "--task", "ramerge/math", "--data", "x=y"], "data set"),
        (
            ["--endpoint", "http://x/v1", "--served-name", "m", "--task", "ramerge/math", "--data", "fewshots=y"],
            "--data fewshots: unknown data set 'fewshots'; known: gsm8k, gsm8k_train, math500",
        ),
        (["--serve", "vllm", "--model", "m=org/x", "--task", "ramerge/agreement"], "needs --data calibration=FOLDER"),
        (["--serve", "vllm", "--model", "m=org/x", "--task", "ramerge/rewards"], "needs --data prompts=FILE"),
        (
            ["--endpoint", "http://x/v1", "--served-name", "m", "--task", "ramerge/math", "--task-set", "math.few=1"],
            "--task-set math.few: unknown parameter of math 'few'",
        ),
    ],
)
def test_wrong_words_are_refused_before_anything_runs(
    place: Path, words: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramerge.scoring.serving._program", lambda kind: kind)
    done = command("eval", "logs", *words)
    assert isinstance(done.exception, EvaluationError) and problem in "\n".join(done.exception.messages)
    assert not list(Path().rglob("*.eval"))


def test_an_endpoint_that_is_not_there_is_said_at_once(place: Path) -> None:
    access = ModelAccess(endpoint="http://127.0.0.1:9/v1")
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9/v1: cannot be reached"):
        evaluate("logs", [EvaluationTarget("m", "m")], request(), access)


def test_a_model_of_the_hub_has_no_folder() -> None:
    [target] = read_targets(["m=org/model"], [], serve=True)
    assert (target.name, target.model, target.folder) == ("m", "org/model", None)


def test_ids_of_samples_without_asking(place: Path, stand_in: Server) -> None:
    target = EvaluationTarget("m", "stand-in")
    assert sample_ids("ramerge/rewards", target, request(limit=2)) == ["prompts/1", "prompts/2"]
    assert sample_ids("mine.py@mine", target, request(settings={"mine.count": 2})) == ["1", "2"]
    assert run(stand_in, request(samples=["prompts/2", "prompts/5"]))
    assert sorted(map(content, stand_in.asked)) == ["q1", "q4"]


def test_inspect_itself_runs_our_tasks_by_name(place: Path, stand_in: Server) -> None:
    words = ["eval", "ramerge/rewards", "--model", "openai-api/stand/stand-in", "--model-base-url", stand_in.url]
    words += ["-T", f"prompts={place / 'prompts.jsonl'}", "-T", f"function={place / 'reward.py'}:compute_score"]
    environment = {**os.environ, "STAND_API_KEY": "x", "INSPECT_LOG_DIR": str(place / "logs")}
    done = subprocess.run(
        [sys.executable, "-m", "inspect_ai", *words, "--display", "none"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert only("stand-in").tasks["rewards", "prompts"].value("reward") == 100
    assert threading.active_count() >= 1


def page_words(program: str) -> list[list[str]]:
    """The words of the commands of the guide to table 1 that begin with a program's name and command."""
    page = Path(__file__).parents[3] / "docs" / "guides" / "table-1.md"
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words[1:] for line in lines if (words := shlex.split(line, comments=True)) and line.startswith(program)]


def test_the_guide_leads_to_table_1(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bfcl_eval")
    tokenizer = Tokenizer(tokenizer_models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        ["Number 1 is thing 1. More of it follows. Title It has Its name is"], BpeTrainer(special_tokens=["<unk>"])
    )
    for name in ("base", "coder", "tool", "memory"):
        shutil.copytree(AGENTS / name, name)
        Path(name, "chat_template.jinja").write_text("{{ messages[-1].content }}")
    for name in ("ram", "ram-plus"):
        [words] = [words for words in page_words("ramerge merge") if words[-1] == f"MERGES/{name}"]
        done = command(*words)
        assert done.exception is None, done.exception
    for folder in (*map(Path, ("base", "coder", "tool", "memory")), *Path("MERGES").iterdir()):
        tokenizer.save(str(folder / "tokenizer.json"))
    data = {"livebench": [ADD], "livecodebench": [ADD], "hotpotqa": hotpot(), "squad": squad(2000)}
    for name, content in data.items():
        Path(f"{name}.json").write_text(json.dumps(content))
    [words] = page_words("ramerge eval")
    others = [f"{name}=MERGES/{name}" for name in ("ta", "ties", "dare-ta", "dare-ties", "fisher")]
    words = [word for pair in pairwise([*words, ""]) for word in pair[:1] if not {*pair[:2]} & {*others}]
    words += [word for name in data for word in ("--data", f"{name}={name}.json")]
    with serving(RIGHT) as server:
        running = RunningServer(ModelServer("vllm"), server.url, "stand-in", place / "log", cast("Any", Alive()))
        monkeypatch.setattr(ModelServer, "check", lambda self: [])
        monkeypatch.setattr(models, "serving", lambda *_: nullcontext(running))
        done = command(*words, "--limit", "2")
        assert done.exception is None, done.exception
    main, *more = page_words("ramerge table")
    shown = command(*main, "--format", "csv").output.splitlines()
    own = [line for line in shown if ",no," in line and "Avg" not in line]
    assert len(own) == 6 * 6, "two items: coding has one of each subset, with two metrics"
    assert {line.split(",")[4] for line in own} == {"coding", "tool", "memory"}
    assert sum(line.startswith("RAM+ (paper)") for line in shown) > 12
    for words in more:
        assert command(*words).exception is None
    assert "RAM+ (paper)" in Path("table1.md").read_text()


class Alive:
    """A process that runs."""

    def poll(self) -> None:
        return None
