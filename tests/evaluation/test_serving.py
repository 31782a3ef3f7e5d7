"""Servers that a run starts: waited for, and gone afterwards."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import list_eval_logs, read_eval_log

from ramerge.core.foundation.errors import EndpointError, EvaluationError
from ramerge.demo.run import AGENTS
from ramerge.evaluation import children
from ramerge.evaluation import serving as module
from ramerge.evaluation.logs import read
from ramerge.evaluation.models import EvaluationTarget, ModelAccess
from ramerge.evaluation.run import EvaluationRequest, evaluate
from ramerge.evaluation.samples import Samples
from ramerge.evaluation.serving import ModelServer, serving

pytestmark = pytest.mark.full  # httpx

_FAKE = """#!{python}
import http.server, os, signal, subprocess, sys, time
mode = {mode!r}
print("loading", *sys.argv[1:], flush=True)
if mode == "rude":
    sys.exit("\\x1b[2J" + "x" * 100_000 + "\\n\\x1b[2Jready")
if mode == "broken":
    sys.exit("no such model: " + sys.argv[2])
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("worker", worker.pid, flush=True)
if mode == "slow":
    time.sleep(60)
if mode == "no http":
    import socket
    listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
    while True:
        talk = listening.accept()[0]
        talk.sendall(b"\\x1b[2J" * 9 + b"\\r\\n\\r\\n")
        talk.close()
if mode == "drip":
    import socket
    listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
    while True:
        talk = listening.accept()[0]
        try:
            for byte in b"HTTP/1.1 200 OK" * 9:
                time.sleep(0.1)
                talk.sendall(bytes([byte]))
        except OSError:
            pass
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: str) -> None:
    """A program that stands in for `vllm`."""
    program = folder / "vllm"
    program.write_text(_FAKE.format(python=sys.executable, mode=mode))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(module, "_program", lambda kind: str(program))


def ends(pid: int) -> bool:
    """Whether a process that was killed is gone, or soon is."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def worker(log: Path) -> int:
    return int(log.read_text().split("worker ")[1].split()[0])


@pytest.mark.parametrize("mode", ["good", "stubborn"])
def test_a_server_runs_while_the_block_does_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    install(monkeypatch, tmp_path, mode)
    monkeypatch.setattr(children, "_SECONDS_TO_STOP", 0.5)
    log = tmp_path / "log"
    server = ModelServer("vllm", ["--dtype", "bfloat16"], timeout=300)
    with serving(server, "MODEL", "merged", log) as running:
        assert running.model == "merged"
        with urllib.request.urlopen(f"{running.url}/models", timeout=60) as answer:
            assert answer.status == 200
    assert "loading serve MODEL --host 127.0.0.1" in log.read_text()
    assert "--served-model-name merged --dtype bfloat16" in log.read_text()
    assert ends(worker(log))


def test_a_server_that_ends_is_an_error_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "broken")
    server = ModelServer("vllm", timeout=300)
    said = r"exit code 1[\s\S]*no such model: MODEL"
    with pytest.raises(EndpointError, match=said), serving(server, "MODEL", "merged", tmp_path / "log"):
        pass


def test_what_a_server_printed_is_shown_without_what_a_terminal_would_obey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "rude")
    server = ModelServer("vllm", timeout=300)
    with pytest.raises(EndpointError) as caught, serving(server, "MODEL", "merged", tmp_path / "log"):
        pass
    assert "?[2Jready" in str(caught.value) and "\x1b" not in str(caught.value) and len(str(caught.value)) < 2000


@pytest.mark.parametrize("mode", ["slow", "no http", "drip"])
def test_a_server_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    install(monkeypatch, tmp_path, mode)
    monkeypatch.setattr(module, "_SECONDS_TO_SAY", 0.5)
    server = ModelServer("vllm", timeout=2)
    said = "not ready within 2 seconds"
    with pytest.raises(EndpointError, match=said), serving(server, "MODEL", "merged", tmp_path / "log"):
        pass
    if "worker" in (tmp_path / "log").read_text():  # a busy machine may not have come so far
        assert ends(worker(tmp_path / "log"))


def test_a_server_that_is_not_installed_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_program", lambda kind: None)
    assert "pip install vllm" in ModelServer("vllm").check()[0]
    with (
        pytest.raises(EvaluationError, match="pip install vllm"),
        serving(ModelServer("vllm"), "M", "m", tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_named(seconds: float) -> None:
    first, *_ = ModelServer("transformers", timeout=seconds).check()
    assert first.startswith(f"--serve-timeout {seconds:g}: must")


def test_a_server_dies_with_a_run_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "good")
    log = tmp_path / "log"
    program = f"""
import os
from pathlib import Path
from ramerge.evaluation import serving
serving._program = lambda kind: {str(tmp_path / "vllm")!r}
with serving.serving(serving.ModelServer("vllm", timeout=300), "MODEL", "merged", Path({str(log)!r})):
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=600).returncode == -9
    port = log.read_text().split("--port ")[1].split()[0]
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
            time.sleep(0.05)
        except OSError:
            break
    else:
        pytest.fail("the server outlived the run")
    os.kill(worker(log), 9)  # what a killed server leaves behind itself is its own affair


_STRICT = """#!{python}
import http.server, json, os, sys
path, port = sys.argv[2], int(sys.argv[sys.argv.index("--port") + 1])
mode = {mode!r}
fields = {{"model", "seed", "temperature", "top_p", "max_tokens", "stop", "generation_config"}}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def say(self, status, values):
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.say(200, {{"status": "ok"}})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("asked " + json.dumps([self.path, body]), file=open({asked!r}, "a"))
        is_chat = self.path == "/v1/chat/completions"
        if mode == "dies":
            sys.stderr.write("terminate called: CUDA out of memory\\n")
            os._exit(3)
        if mode == "broken" or is_chat and not os.path.exists(path + "/chat_template.jinja"):
            print("Traceback (most recent call last):\\n  File x", flush=True)
            print("ValueError: tokenizer.chat_template is not set\\nINFO: POST 500 Internal Server Error", flush=True)
            return self.say(500, {{}})
        if body["model"] != path or set(body) - fields - {{"messages" if is_chat else "prompt"}}:
            return self.say(422, {{"detail": "Unexpected fields in the request"}})
        sampled = json.loads(body.get("generation_config", "{{}}")).get("do_sample") and body["temperature"] > 0
        text = "sampled" if sampled else "greedy"
        content = {{"message": {{"role": "assistant", "content": text}}}} if is_chat else {{"text": text}}
        choice = {{"index": 0, "finish_reason": "stop", **content}}
        kind = "chat.completion" if is_chat else "text_completion"
        self.say(200, {{"object": kind, "id": "x", "created": 0, "model": "x", "choices": [choice]}})
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a reward; rewards are 1 where a reply is `greedy`."""
    shutil.copytree(AGENTS / "memory", tmp_path / "model")
    (tmp_path / "reward.py").write_text(_REWARD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


_REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str == ground_truth)
"""


def strict(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: str = "good") -> Callable[[], list[tuple[str, Any]]]:
    """Install a program that refuses what `transformers serve` refuses; the requests that it got so far."""
    program, journal = folder / "program", folder / "requests"
    program.write_text(_STRICT.format(python=sys.executable, mode=mode, asked=str(journal)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(module, "_program", lambda kind: str(program))
    return lambda: [json.loads(line.partition(" ")[2]) for line in journal.read_text().splitlines()]


def rewards(prompts: Sequence[object], *, logs_folder: str = "logs", **settings: object) -> Samples:
    """Rewards of replies to prompts, from a model that is served."""
    truths = [{"prompt": prompt, "reward_model": {"ground_truth": "greedy"}} for prompt in prompts]
    Path("prompts.jsonl").write_text("".join(f"{json.dumps(truth)}\n" for truth in truths))
    task = {"rewards.prompts": "prompts.jsonl", "rewards.function": "reward.py:compute_score"}
    request = EvaluationRequest(["ramerge/rewards"], {**task, **settings})
    server = ModelServer("transformers", ["--device", "cpu"], timeout=600)
    evaluate(logs_folder, [EvaluationTarget("m", "m", "model")], request, ModelAccess(server))
    return read(Path(logs_folder))[0].tasks["rewards", "prompts"]


@pytest.mark.needs("inspect_ai")
@pytest.mark.filterwarnings("ignore")
def test_prompts_are_raw_without_a_template(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = strict(monkeypatch, place)
    assert rewards(["#5281704=", [{"role": "user", "content": "#12="}]], temperature=0).value("reward") == 100
    assert [(path, body["prompt"]) for path, body in requests()] == [
        ("/v1/completions", "#5281704="),
        ("/v1/completions", "#12="),
    ]
    Path("model/chat_template.jinja").write_text(_TEMPLATE)
    assert rewards(["#5281704="], logs_folder="more", temperature=0).value("reward") == 100
    assert requests()[-1][0] == "/v1/chat/completions"


@pytest.mark.needs("inspect_ai")
@pytest.mark.filterwarnings("ignore")
def test_sampling_is_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = strict(monkeypatch, place)
    assert rewards(["#1=", "#2="], temperature=0.7).value("reward") == 0
    generation = [json.loads(body["generation_config"]) for _, body in requests()]
    assert [(each["do_sample"], each["eos_token_id"], each["top_k"]) for each in generation] == [(True, 1, 0)] * 2
    assert len({body["seed"] for _, body in requests()}) == 2


@pytest.mark.needs("inspect_ai")
@pytest.mark.filterwarnings("ignore")
def test_chats_without_a_template_start_no_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict(monkeypatch, place)
    chat = [{"role": "system", "content": "Sort."}, {"role": "user", "content": "#21="}]
    with pytest.raises(EvaluationError, match=r"m: has no chat template.* \(system, user\)"):
        rewards(["#1=", chat])
    assert not list(place.rglob("server.log"))


@pytest.mark.needs("inspect_ai")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("broken", "logs/m/server.log: ValueError: tokenizer.chat_template is not set"),
        ("dies", "logs/m/server.log: the server ended with exit code 3: terminate called: CUDA out of memory"),
    ],
)
def test_few_requests_fail_alike_with_their_cause(
    place: Path, monkeypatch: pytest.MonkeyPatch, mode: str, cause: str
) -> None:
    requests = strict(monkeypatch, place, mode)
    samples = rewards([f"#{number}=" for number in range(30)])
    assert (len(requests()), len(samples.failures)) == (1 if mode == "dies" else 5, 30)
    assert samples.value("reward") is None
    assert cause in samples.failures["prompts/1"] and cause in samples.failure
    assert samples.failures["prompts/9"].startswith("EndpointError('not asked, because 5 requests in a row failed")


@pytest.mark.parametrize("module_name", ["accelerate", "uvicorn"])
def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, module_name: str) -> None:
    monkeypatch.setattr(module, "_own_program", lambda kind: Path(sys.executable))
    monkeypatch.setattr(module, "_MODULES", (f"no_{module_name}",))
    [problem] = ModelServer("transformers").check()
    assert f"no-{module_name}" in problem and "[eval-serve]" in problem


NEEDED = ("accelerate", "torch", "transformers", "fastapi", "uvicorn", "openai")
ABSENT = [name for name in NEEDED if find_spec(name) is None]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(bool(ABSENT), reason=f"transformers serve needs {', '.join(ABSENT)}: the extra eval-serve")
@pytest.mark.parametrize("template", [None, "{% for message in messages %}: {{ message.content }}{% endfor %}"])
def test_a_real_server_answers_as_the_model(place: Path, template: str | None) -> None:
    if template is not None:
        Path("model/chat_template.jinja").write_text(template)
    prompts = ["#5281704=", "#21=", "#3309="]
    replies_at = {}
    settings = {"max_tokens": 8, "rewards.prompts": "prompts.jsonl", "rewards.function": "reward.py:compute_score"}
    records = [{"prompt": prompt, "reward_model": {"ground_truth": "x"}} for prompt in prompts]
    Path("prompts.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    server = ModelServer("transformers", ["--device", "cpu", "--dtype", "float32"], timeout=600)
    assert server.check() == []
    target = EvaluationTarget("m", "m", "model")
    with serving(server, target.location, "m", Path("log")) as running:
        for temperature in (0.0, 3.0):
            request = EvaluationRequest(["ramerge/rewards"], {**settings, "temperature": temperature, "top_p": 0.9})
            assert evaluate(f"logs{temperature}", [target], request, ModelAccess(running))
            replies, seeds = replies_in(Path(f"logs{temperature}"))
            assert replies == generated(prompts, seeds, temperature, template is not None)
            replies_at[temperature] = replies
    assert replies_at[0.0] != replies_at[3.0]


def replies_in(folder: Path) -> tuple[list[str], list[int]]:
    """Replies and seeds of the requests in the logs of a folder."""
    [info] = list_eval_logs(str(folder), recursive=True)
    samples = sorted(read_eval_log(info.name).samples or [], key=lambda sample: str(sample.id))
    events = [next(event for event in sample.events if event.event == "model") for sample in samples]
    return [sample.output.completion for sample in samples], [int(event.config.seed or 0) for event in events]


def generated(prompts: Sequence[str], seeds: Sequence[int], temperature: float, has_template: bool) -> list[str]:
    """Replies by a loop of `model.generate`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained("model")
    sampling = {"do_sample": temperature > 0, "temperature": temperature or None, "top_p": 0.9, "top_k": 0}
    replies = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        chat = [{"role": "user", "content": prompt}]
        text = prompt
        if has_template:
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text, return_tensors="pt", add_special_tokens=not has_template)
        torch.manual_seed(seed)
        ids = model.generate(**inputs, max_new_tokens=8, **sampling)[0, inputs["input_ids"].shape[1] :]
        replies.append(tokenizer.decode(ids, skip_special_tokens=True))
    return replies
