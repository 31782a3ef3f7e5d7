"""The tab Compare: what merges have kept of each agent's skill, a search's Pareto front, answers side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
import numpy as np

from ramerge.demo.tasks import TASKS
from ramerge.evaluation.models import SERVERS, ModelAccess
from ramerge.evaluation.samples import Model, Samples
from ramerge.evaluation.tables import merging
from ramerge.evaluation.tables.render import table_html
from ramerge.evaluation.tables.roles import GivenRoles
from ramerge.evaluation.tables.scores import Table
from ramerge.foundation.errors import EndpointError, EvaluationError, RecipeError
from ramerge.foundation.text import brief, shown
from ramerge.selection.report.charts import figures_of
from ramerge.selection.results import SearchResult, read_search
from ramerge.selection.serving import ModelServer, serving
from ramerge.selection.text import findings, ranking_rows
from ramerge.ui import views
from ramerge.ui.desk import PRIVATE, Desk, html, text_place, told, told_often
from ramerge.ui.draft import checked_draft
from ramerge.ui.jobs import DONE, Job
from ramerge.ui.run import finished

_NONE = "an endpoint"
_TASKS = [f"ramerge/{name}" for name in ("coding", "tool", "memory", "search", "ifeval", "math")]
_SECONDS = 300.0


def build(desk: Desk, recipe: gr.Code) -> None:
    """The tab's components and events."""
    with gr.Row():
        score = gr.Button("Score on the demo's tasks", variant="primary")
        stop = gr.Button("Stop")
    state = html("Progress")
    table = html("What merges have kept")
    command = text_place("Command line")
    job = gr.State(None)
    outputs = [state, table, command, job]

    def score_demo(text: str, request: gr.Request) -> Iterator[tuple[Any, ...]]:
        models = _folders(desk, text, request)
        words = [word for name, path in models.items() for word in ("--score", f"{name}={path}")]
        work = desk.queue.add(Job("Scores", ["demo", *words, "--json"], desk.roots.home))
        for _ in work.follow():
            yield views.progress(work), gr.skip(), views.command(work.words), work
        if work.state == DONE:
            merges = list(finished(desk, request))
            kept = _demo_table(json.loads(work.output), merges)
            yield views.progress(work), retention_table(kept), views.command(work.words), None

    score.click(told_often(score_demo), recipe, outputs, concurrency_limit=None, **PRIVATE)
    if not desk.public:
        _evaluation(desk, recipe, outputs)
    stop.click(lambda work: work.stop() if work is not None else None, job, None, **PRIVATE)
    _search(desk)
    if not desk.public:
        _questions(desk, recipe)


# --- retention --------------------------------------------------------------------------------------------------------


def _folders(desk: Desk, text: str, request: gr.Request | None) -> dict[str, str]:
    """Base, agents and finished merges, as names and folders or hub ids."""
    recipe = checked_draft(text, desk.roots)
    merges = {name: path for name, path in finished(desk, request).items() if (path / "config.json").is_file()}
    agents = {name: agent.written for name, agent in recipe.agents.items()}
    found = {**({"base": recipe.base} if recipe.base else {}), **agents}
    if not merges:
        raise RecipeError("no merge is complete yet; begin one in the tab Run")
    if taken := [name for name in merges if name in found]:
        raise RecipeError(f"{name}: is an agent's name, too; choose another output" for name in taken)
    return {**found, **{name: name for name in merges}}


def _demo_table(rewards: Mapping[str, Mapping[str, Sequence[float]]], merges: Sequence[str]) -> Table:
    """Retention of merges on the demo's tasks. The specialist of a task is the agent that is best at it."""
    models = [_scored(name, tasks) for name, tasks in rewards.items()]
    agents = [name for name in rewards if name != "base" and name not in merges]
    best = {task.name: max(agents, key=lambda name: sum(rewards[name][task.name])) for task in TASKS}
    return merging.retention(models, GivenRoles("base" if "base" in rewards else None, best, merges))


def _scored(name: str, tasks: Mapping[str, Sequence[float]]) -> Model:
    found = {}
    for task, values in tasks.items():
        keys = tuple(f"{place:06}" for place in range(len(values)))
        pairs = np.array([[value, 1.0] for value in values])
        found[task, "exact"] = Samples(keys, {"exact": pairs}, asked=len(keys))
    return Model(name, None, None, found)


def retention_table(kept: Table) -> str:
    """A table of retentions, each merge's worst task in red."""
    return views.block(f"<h3>{views.safe(kept.title)}</h3>", table_html(kept, intervals=True))


def _evaluation(desk: Desk, recipe: gr.Code, outputs: Sequence[Any]) -> None:
    """Benchmarks, with `ramerge eval`, and what its logs say."""
    with gr.Accordion("Score on benchmarks", open=False):
        tasks = gr.Dropdown(_TASKS, multiselect=True, allow_custom_value=True, label="Tasks", info="of Inspect's")
        with gr.Row():
            limit = gr.Number(20, precision=0, minimum=0, label="Samples of each task", info="0: all")
            serve = gr.Dropdown([_NONE, *SERVERS], value=_NONE, label="Models run on", info="--serve starts a server")
            endpoint = gr.Textbox("", label="Endpoint", info="http://127.0.0.1:8000/v1", max_lines=1)
            logs = gr.Textbox("scores", label="Folder of logs", max_lines=1)
        with gr.Row():
            start = gr.Button("Score")
            look = gr.Button("Show what the logs say")

    def evaluate(
        text: str, chosen: list[str], most: float, server: str, url: str, folder: str, request: gr.Request
    ) -> Iterator[tuple[Any, ...]]:
        models = _folders(desk, text, request)
        base = ["--base", models.pop("base")] if "base" in models else []
        words = [
            "eval",
            desk.roots.output(folder),
            *(word for task in chosen or [] for word in ("--task", task)),
            *base,
        ]
        words += [word for name, path in models.items() for word in ("--model", f"{name}={path}")]
        words += ["--limit", str(int(most))] if most else []
        words += ["--endpoint", url] if server == _NONE else ["--serve", server]
        work = desk.queue.add(Job("Scores", [*words, "--json"], desk.roots.home))
        for _ in work.follow():
            yield views.progress(work), gr.skip(), views.command(work.words), work
        if work.state == DONE:
            yield views.progress(work), show_logs(folder)[0], views.command(work.words), None

    def show_logs(folder: str) -> tuple[str, str]:
        try:
            from ramerge.evaluation.logs import read
        except ImportError as error:
            raise EvaluationError("logs are read with the extra eval: pip install 'ramerge[eval]'") from error
        words = ["table", desk.roots.output(folder), "--table", "merging", "--intervals"]
        return retention_table(merging.retention(read(desk.roots.path(folder)))), desk.command(words)

    inputs = [recipe, tasks, limit, serve, endpoint, logs]
    start.click(told_often(evaluate), inputs, outputs, concurrency_limit=None, **PRIVATE)
    look.click(told(show_logs), logs, [outputs[1], outputs[2]], **PRIVATE)


# --- a search ---------------------------------------------------------------------------------------------------------


def _search(desk: Desk) -> None:
    """The points of a search, and its Pareto front."""
    with gr.Accordion("Show a search", open=False):
        folder = gr.Textbox("", label="Folder of a search", info="what ramerge search has written", max_lines=1)
        look = gr.Button("Show the search")
        found = html("Search")
        command = text_place("Command line")

    def show(text: str) -> tuple[str, str]:
        result = read_search(desk.roots.path(f"{text}/search.json"))
        words = ["search", "RECIPE", text, "--vary", "KEY=VALUE,VALUE", "--score", "FILE.py:FUNCTION"]
        return search_view(result), desk.command(words)

    look.click(told(show), folder, [found, command], **PRIVATE)


def search_view(result: SearchResult) -> str:
    """What a search found: sentences, points, and figures."""
    head, rows = ranking_rows(result)
    drawn = [figure for figure in figures_of(result) if figure.name in ("front", "ranking", "course")]
    return views.block(views.listing(findings(result)), views.table("Points", head, rows), views.figures(drawn))


# --- a prompt ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """A model that is asked: where it answers, under which name."""

    url: str
    served: str


def _questions(desk: Desk, recipe: gr.Code) -> None:
    """A prompt for base, agents and merges, side by side."""
    with gr.Accordion("Ask side by side", open=False):
        prompt = gr.Textbox("", label="Prompt", lines=3)
        with gr.Row():
            serve = gr.Dropdown([_NONE, *SERVERS], value=_NONE, label="Models run on", info="--serve starts a server")
            endpoint = gr.Textbox("", label="Endpoint", info="http://127.0.0.1:8000/v1", max_lines=1)
            names = gr.Textbox("", label="Served names", info="of the endpoint, with commas between them", max_lines=1)
            most = gr.Number(256, precision=0, minimum=1, maximum=32768, label="Tokens", info="at most")
        ask = gr.Button("Ask")
        answers = html("Answers")
        command = text_place("Command line")

    def answer(
        text: str, question: str, server: str, url: str, served: str, tokens: float, request: gr.Request
    ) -> Iterator[tuple[str, str]]:
        found: dict[str, str] = {}
        for name, words, asked in _asked(desk, text, server, url, served, request):
            with asked as where:
                found[name] = _complete(where, question, int(tokens))
            yield _answers(found), views.copyable("Command line", words)

    inputs = [recipe, prompt, serve, endpoint, names, most]
    ask.click(told_often(answer), inputs, [answers, command], concurrency_limit=1, api_visibility="private")


def _asked(
    desk: Desk, text: str, server: str, url: str, served: str, request: gr.Request | None
) -> Iterator[tuple[str, str, AbstractContextManager[_Asked]]]:
    """Each model with the command that serves it, and where it answers once the context is entered."""
    if server == _NONE:
        ModelAccess(endpoint=url.strip()).check()
        names = [name.strip() for name in served.split(",") if name.strip()]
        if not names:
            raise EvaluationError("Served names: say which models the endpoint has")
        for name in names:
            yield name, f"curl {url.rstrip('/')}/chat/completions", nullcontext(_Asked(url.rstrip("/"), name))
        return
    if problems := ModelServer(server).check():
        raise EvaluationError(problems)
    for name, model in _folders(desk, text, request).items():
        yield name, f"{server} serve {model}", _served(server, str(desk.roots.home / model), name)


@contextmanager
def _served(server: str, model: str, name: str) -> Iterator[_Asked]:
    """A server of one model, while the context lasts."""
    with (
        TemporaryDirectory(prefix="ramerge-ui-") as folder,
        serving(ModelServer(server), model, name, Path(folder) / "server.log") as url,
    ):
        yield _Asked(url, model if server == "transformers" else name)


def _complete(asked: _Asked, prompt: str, tokens: int) -> str:
    import httpx

    body = {"model": asked.served, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    try:
        answer = httpx.post(f"{asked.url}/chat/completions", json=body, timeout=_SECONDS, trust_env=False)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise EndpointError(f"{asked.url}: {asked.served}: gave no answer ({shown(error)})") from error


def _answers(found: Mapping[str, str]) -> str:
    parts = [
        f"<article><h3>{views.safe(name)}</h3>{views.safe(brief(text, 20_000))}</article>"
        for name, text in found.items()
    ]
    return views.block(f'<div class="answers">{"".join(parts)}</div>')
