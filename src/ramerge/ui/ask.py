"""The lower part of the tab Compare: one prompt for base, agents and merges, with their answers side by side."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
from gradio.blocks import Block

from ramerge import EndpointError, EvaluationError, ModelAccess, ModelServer
from ramerge.scoring.serving import server_command, serving
from ramerge.sdk.text import brief, shown
from ramerge.ui import views
from ramerge.ui.desk import Desk, act, html, problem_place, text_place
from ramerge.ui.merge import models_of

ENDPOINT = "an endpoint"
_SECONDS = 300.0


def build(desk: Desk, common: Sequence[Block]) -> None:
    """Build the lower part of the tab Compare, for questions to models.

    `common`: the controls of recipe, merges, server and endpoint.
    """
    with gr.Accordion("Ask side by side", open=False):
        prompt = gr.Textbox("", label="Prompt", lines=3)
        with gr.Row():
            info = "of an endpoint, with commas between them; empty: base, agents and merges"
            names = gr.Textbox("", label="Served names", info=info, max_lines=1)
            most = gr.Number(256, precision=0, minimum=1, maximum=32768, label="Tokens", info="at most")
        ask = gr.Button("Ask")
        problems = problem_place()
        answers = html("Answers")
        command = text_place("Command line")

    def answer(
        text: str,
        merges: list[str],
        serve: str,
        url: str,
        question: str,
        served_names: str,
        tokens: float,
        request: gr.Request,
    ) -> Iterator[tuple[str, str]]:
        answers: dict[str, str] = {}
        names = [name.strip() for name in served_names.split(",") if name.strip()]
        models = dict.fromkeys(names, "") if names and serve == ENDPOINT else models_of(desk, text, merges, request)
        check(serve, url)
        for name, model in models.items():
            body = {"model": name, "messages": [{"role": "user", "content": question}], "max_tokens": int(tokens)}
            yield _answers_as_html({**answers, name: "…"}), gr.skip()
            folder = desk.roots.home / model
            answers[name], lines = complete(serve, url, str(folder) if folder.is_dir() else model, body)
            yield _answers_as_html(answers), views.copyable("Command line", lines)

    act(ask.click, answer, [*common, prompt, names, most], [answers, command], problems, concurrency_limit=1)


def check(server: str, url: str) -> None:
    """Raise `EvaluationError` if models cannot be queried."""
    if server == ENDPOINT:
        ModelAccess(endpoint=url.strip()).check()
    elif problems := ModelServer(server).check():
        raise EvaluationError(problems)


def complete(server: str, url: str, model: str, body: dict[str, Any]) -> tuple[str, str]:
    """Query one model; return its answer and the command lines for the query. A server started for it is stopped."""
    import httpx

    variable = ModelAccess().key_variable
    key = os.environ.get(variable) if server == ENDPOINT else None
    with ExitStack() as running:
        lines, server_model = [], None
        if server != ENDPOINT:
            model_server = ModelServer(server)
            log = Path(running.enter_context(TemporaryDirectory(prefix="ramerge-ui-"))) / "server.log"
            server_model = running.enter_context(serving(model_server, model, body["model"], log))
            url, body = server_model.url, {**body, "model": server_model.model}
            folder = Path(model) if Path(model).is_dir() else None
            if ModelAccess(model_server).is_raw(folder):  # a prompt is sent as it is
                body["prompt"] = body.pop("messages")[0]["content"]
            program, *words = server_command(model_server, model, body["model"], urlsplit(url).port or 0)
            lines = [shlex.join([Path(program).name, *words])]
        where = f"{url.strip().rstrip('/')}/{'completions' if 'prompt' in body else 'chat/completions'}"
        with_key = f' -H "Authorization: Bearer ${variable}"' if key else ""
        lines += [shlex.join(["curl", where, "--json", json.dumps(body)]) + with_key]
        try:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            answer = httpx.post(where, json=body, headers=headers, timeout=_SECONDS, trust_env=False)
            if answer.is_error:
                cause = f"; {server_model.cause()}" if server_model else ""
                reason = f"{answer.status_code}: {shown(answer.text, 500)}{cause}"
                raise EndpointError(f"{url}: {body['model']}: gave no answer ({reason})")
            choice = answer.json()["choices"][0]
            return str(choice["text"] if "prompt" in body else choice["message"]["content"]), "\n".join(lines)
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise EndpointError(f"{url}: {body['model']}: gave no answer ({shown(error)})") from error


def _answers_as_html(texts: Mapping[str, str]) -> str:
    parts = [
        f"<article><h3>{views.safe(name)}</h3>{views.safe(brief(text, 20_000))}</article>"
        for name, text in texts.items()
    ]
    return views.block(f'<div class="answers">{"".join(parts)}</div>')
