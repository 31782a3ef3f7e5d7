"""Models on a server of ours: raw prompts and chats, sampling, failures with their cause; a real generation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import list_eval_logs, read_eval_log
from tests.server import install_server

from ramerge.core.foundation.errors import EvaluationError
from ramerge.demo.run import AGENTS
from ramerge.scoring.access import ModelAccess
from ramerge.scoring.serving import ModelServer, serving
from ramerge_eval.logs import read
from ramerge_eval.models import EvaluationTarget
from ramerge_eval.run import EvaluationRequest, evaluate
from ramerge_eval.samples import Samples

pytestmark = pytest.mark.full  # httpx

_STRICT = """
fields = {"model", "seed", "temperature", "top_p", "max_tokens", "stop", "generation_config"}
def answer(route, body):
    print("asked " + json.dumps([route, body]), file=open(journal, "a"))
    is_chat = route == "/v1/chat/completions"
    if mode == "dies":
        sys.stderr.write("terminate called: CUDA out of memory\\n")
        os._exit(3)
    if mode == "broken" or is_chat and not os.path.exists(path + "/chat_template.jinja"):
        print("Traceback (most recent call last):\\n  File x", flush=True)
        print("ValueError: tokenizer.chat_template is not set\\nINFO: POST 500 Internal Server Error", flush=True)
        return 500, {}
    if body["model"] != path or set(body) - fields - {"messages" if is_chat else "prompt"}:
        return 422, {"detail": "Unexpected fields in the request"}
    sampled = json.loads(body.get("generation_config", "{}")).get("do_sample") and body["temperature"] > 0
    text = "sampled" if sampled else "greedy"
    content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    choice = {"index": 0, "finish_reason": "stop", **content}
    kind = "chat.completion" if is_chat else "text_completion"
    return 200, {"object": kind, "id": "x", "created": 0, "model": "x", "choices": [choice]}
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
    journal = folder / "requests"
    install_server(monkeypatch, folder / "program", _STRICT, mode=mode, journal=str(journal))
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


@pytest.mark.filterwarnings("ignore")
def test_sampling_is_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = strict(monkeypatch, place)
    assert rewards(["#1=", "#2="], temperature=0.7).value("reward") == 0
    generation = [json.loads(body["generation_config"]) for _, body in requests()]
    assert [(each["do_sample"], each["eos_token_id"], each["top_k"]) for each in generation] == [(True, 1, 0)] * 2
    assert len({body["seed"] for _, body in requests()}) == 2


@pytest.mark.filterwarnings("ignore")
def test_chats_without_a_template_start_no_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict(monkeypatch, place)
    chat = [{"role": "system", "content": "Sort."}, {"role": "user", "content": "#21="}]
    with pytest.raises(EvaluationError, match=r"m: has no chat template.* \(system, user\)"):
        rewards(["#1=", chat])
    assert not list(place.rglob("server.log"))


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
