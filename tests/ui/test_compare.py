"""What the tab Compare shows: retentions with the worst in red, and answers of an endpoint as text."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import ramerge
from ramerge.core.foundation.errors import EndpointError, EvaluationError, RecipeError
from ramerge.demo.run import AGENTS
from ramerge.ui import ask, compare
from ramerge.ui.desk import Desk
from ramerge.ui.jobs import FAILED, Job
from ramerge.ui.merge import models_of
from ramerge.ui.roots import Roots
from tests.messages import Messages

pytestmark = pytest.mark.full  # Gradio, Optuna


def test_the_demo_shows_what_merges_have_kept_with_the_worst_in_red() -> None:
    right = {"base": (2, 2), "coder": (8, 2), "user": (2, 5), "ram": (4, 4), "<b>sum</b>": (8, 1)}
    rewards = {
        name: {task: [1.0] * each + [0.0] * (10 - each) for task, each in zip(("code", "tool"), counts, strict=True)}
        for name, counts in right.items()
    }
    html = compare.demo_view(rewards, ["ram", "<b>sum</b>"])
    assert re.findall(r'class="worst">([\d.]+)<', html) == ["50.0", "20.0"]
    assert "&lt;b&gt;sum&lt;/b&gt;" in html and "<b>" not in html
    assert "Specialists: coder (code), user (tool)." in html
    scores = html[html.index("All tasks") :]
    shown = re.findall(r'<th scope="row">(.*?)</th>.*?data-label="code"[^>]*>([\d.]+) \[', scores)
    assert dict(shown) == {
        "base": "20.0", "coder": "80.0", "user": "20.0", "ram": "40.0", "&lt;b&gt;sum&lt;/b&gt;": "80.0"
    }  # fmt: skip


def test_a_task_that_no_agent_can_do_has_no_retention() -> None:
    rewards = {name: {task: [float(task == "code"), 1.0] for task in ("code", "tool")} for name in ("base", "a", "ram")}
    rewards |= {name: {**each, "memory": [0.0, 0.0]} for name, each in rewards.items()}
    kept, scores = compare.demo_view(rewards, ["ram"]).split("<h3>All tasks</h3>")
    assert "memory" not in kept and 'data-label="memory"' in scores


def test_merges_below_the_roots_can_be_compared(tmp_path: Path, messages: Messages) -> None:
    desk = Desk(Roots((tmp_path.resolve(), AGENTS.resolve())))
    text = f"base: {AGENTS}/base\nagents: {{coder: {AGENTS}/coder, memory: {AGENTS}/memory}}\n"
    with messages.raises(RecipeError):
        models_of(desk, text, [], None)
    # a merge of yesterday is there, and one that failed leaves the merge that was there before
    (tmp_path / "text.yaml").write_text(text)
    ramerge.merge(tmp_path / "text.yaml", tmp_path / "merged")
    ramerge.merge(tmp_path / "text.yaml", tmp_path / "packed", kind="delta")
    assert models_of(desk, text, ["merged"], None)["merged"] == "merged"
    desk.keep(None, [Job("merged", [], tmp_path, tmp_path / "merged", state=FAILED)])
    assert list(models_of(desk, text, [], None)) == ["base", "coder", "memory", "merged"]
    for name, why in (("packed", "is a delta"), ("../merged", "no complete merge"), ("base", "no complete merge")):
        with pytest.raises(RecipeError, match=why):
            models_of(desk, text, [name], None)


class _Endpoint(BaseHTTPRequestHandler):
    """Answers with the model's name; one of them in a form that is none."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = f"<img src=x>{asked['model']}: {asked['messages'][0]['content']}, {asked['max_tokens']}"
        text += self.headers.get("Authorization", "") if asked["model"] == "keyed" else ""
        body = {"choices": [] if asked["model"] == "broken" else [{"message": {"content": text}}]}
        content = json.dumps(body).encode()
        self.send_response(500 if asked["model"] == "failing" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_models_of_an_endpoint_answer(endpoint: str) -> None:
    body = {"model": "merged", "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 8}
    text, command = ask.complete(ask.ENDPOINT, f" {endpoint}/", "", body)
    assert text == "<img src=x>merged: 2 + 2?, 8"
    assert shlex.split(command)[:2] == ["curl", f"{endpoint}/chat/completions"]
    assert json.loads(shlex.split(command)[3]) == body
    html = ask._answers_as_html({"<b>": text})
    assert "&lt;img src=x&gt;merged: 2 + 2?, 8" in html and "<img" not in html and "<b>" not in html


def test_endpoint_key_is_sent_but_hidden(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMERGE_API_KEY", "secret")
    body = {"model": "keyed", "messages": [{"role": "user", "content": "?"}], "max_tokens": 8}
    text, command = ask.complete(ask.ENDPOINT, endpoint, "", body)
    assert text.endswith("Bearer secret")
    assert "secret" not in command and command.endswith('-H "Authorization: Bearer $RAMERGE_API_KEY"')


def test_endpoints_that_give_no_answer_are_named(endpoint: str) -> None:
    for name, url in (("broken", endpoint), ("failing", endpoint), ("x", "http://127.0.0.1:1/v1")):
        with pytest.raises(EndpointError, match=name):
            ask.complete(ask.ENDPOINT, url, "", {"model": name, "messages": [{"content": ""}], "max_tokens": 1})


@pytest.mark.parametrize("url", ["", "file:///etc/passwd", "http://user:secret@127.0.0.1/v1", "nowhere"])
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(EvaluationError):
        ask.check(ask.ENDPOINT, url)
