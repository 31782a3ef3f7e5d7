"""The tab Compare of the page: what merges have kept of each agent's skill, and the scores of all models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import gradio as gr
import numpy as np
from gradio.blocks import Block

from ramerge.demo.tasks import TASKS
from ramerge.evaluation.extra import require_extra
from ramerge.evaluation.samples import Model, Samples
from ramerge.evaluation.serving import SERVERS
from ramerge.evaluation.tables import merging
from ramerge.evaluation.tables.build import build as build_table
from ramerge.evaluation.tables.render import table_html
from ramerge.evaluation.tables.roles import GivenRoles
from ramerge.sdk.commands import named
from ramerge.ui import ask, views
from ramerge.ui.desk import PRIVATE, Desk, act, html, problem_place, text_place, while_running
from ramerge.ui.draft import agents_in
from ramerge.ui.jobs import DONE, Job
from ramerge.ui.merge import finished_merges, models_of

_TASKS = [f"ramerge/{name}" for name in ("coding", "tool", "memory", "search", "ifeval", "math")]


def build(desk: Desk, recipe: gr.Code, tab: gr.Tab) -> None:
    """Build the tab Compare."""
    info = "folders of finished merges, compared with base and agents; if none is named, those merged on this page"
    merges = gr.Dropdown([], multiselect=True, allow_custom_value=True, label="Merges", info=info)
    with gr.Row():
        score = gr.Button("Score on the demo's tasks", variant="primary")
        stop = gr.Button("Stop", visible=False)
    problems = problem_place()
    state = html("Progress")
    table = html("Scores")
    command = text_place("Command line")
    job = gr.State(None)
    outputs = [state, table, command, job]

    def offer(request: gr.Request) -> object:
        return gr.update(choices=list(finished_merges(desk, request)))

    def score_demo(text: str, names_of_merges: list[str], request: gr.Request) -> Iterator[tuple[object, ...]]:
        models = models_of(desk, text, names_of_merges, request)
        words = [word for name, path in models.items() for word in ("--score", f"{name}={path}")]
        work = desk.queue.add(Job("Scores", ["demo", *words, "--json"], desk.roots.home))
        for _ in work.follow():
            yield views.progress(work), gr.skip(), views.command(work.words), work.while_active
        if work.state == DONE:
            agents = agents_in(text, desk.roots)
            names = [name for name in models if name != "base" and name not in agents]
            view = scores_view(*_of_demo(json.loads(work.output), names))
            yield views.progress(work), view, views.command(work.words), None

    tab.select(offer, None, merges, **PRIVATE)
    act(score.click, score_demo, [recipe, merges], outputs, problems, concurrency_limit=None)
    while_running(job, stop)
    if not desk.public:
        with gr.Row():
            info = "for benchmarks and prompts; --serve starts a server"
            servers = [ask.ENDPOINT, *SERVERS]
            server = gr.Dropdown(servers, value=ask.ENDPOINT, label=views.LABELS["--serve"], info=info)
            info = "its key: RAMERGE_API_KEY"
            endpoint = gr.Textbox("http://127.0.0.1:8000/v1", label=views.LABELS["--endpoint"], info=info, max_lines=1)
        common = [recipe, merges, server, endpoint]
        _evaluation(desk, common, outputs)
        ask.build(desk, common)


# --- retention --------------------------------------------------------------------------------------------------------


def _of_demo(
    rewards: Mapping[str, Mapping[str, Sequence[float]]], merges: Sequence[str]
) -> tuple[list[Model], GivenRoles]:
    """Scores on the demo's tasks as models with samples. The specialist of a task is the agent that is best at it."""
    models = []
    for name, tasks in rewards.items():
        samples = {}
        for task, values in tasks.items():
            keys = tuple(f"{place:06}" for place in range(len(values)))
            pairs = np.array([[value, 1.0] for value in values])
            samples[task, "exact"] = Samples(keys, {"exact": pairs}, asked=len(keys))
        models.append(Model(name, None, None, samples))
    agents = [name for name in rewards if name != "base" and name not in merges]
    best = {task.name: max(agents, key=lambda name: sum(rewards[name][task.name])) for task in TASKS}
    return models, GivenRoles("base" if "base" in rewards else None, best, merges)


def scores_view(models: Sequence[Model], roles: GivenRoles) -> str:
    """Tables of what merges have kept as HTML, each one's worst task in red, and of the scores of all models."""
    tables = merging.retention(models, roles), build_table(models, given=roles)
    return "".join(
        views.block(f"<h3>{views.safe(each.title)}</h3>", table_html(each, intervals=True)) for each in tables
    )


def _evaluation(desk: Desk, common: Sequence[Block], outputs: Sequence[Block]) -> None:
    """Build the part of benchmarks: `ramerge eval`, and what its logs say, by `ramerge table`.

    Args:
        desk: of the page.
        common: recipe, merges, server and endpoint.
        outputs: progress, table, command line and job.
    """
    with gr.Accordion("Score on benchmarks", open=False):
        with gr.Row():
            tasks = gr.Dropdown(
                _TASKS, multiselect=True, allow_custom_value=True, label=views.LABELS["--task"], info="of Inspect's"
            )
            limit = gr.Number(20, precision=0, minimum=0, label=views.LABELS["--limit"], info="--limit; 0: all")
        with gr.Row():
            specialists = gr.Dropdown(
                [],
                multiselect=True,
                allow_custom_value=True,
                label=views.LABELS["--specialist"],
                info="TASK=AGENT: the agent trained for a task; what merges keep is measured against it",
            )
            logs = gr.Textbox("scores", label="Logs", info="the folder of all scores", max_lines=1)
        with gr.Row():
            start = gr.Button("Score")
            look = gr.Button("Show what the logs say")
        problems = problem_place()

    def evaluate(
        text: str,
        merges: list[str],
        serve: str,
        url: str,
        names: list[str],
        most: float,
        who: list[str],
        folder: str,
        request: gr.Request,
    ) -> Iterator[tuple[object, ...]]:
        models = models_of(desk, text, merges, request)
        words = ["eval", desk.roots.output(folder), *(word for task in names or [] for word in ("--task", task))]
        words += [word for each in models.items() for word in ("--model", "=".join(each))]
        words += ["--limit", str(int(most))] if most else []
        words += ["--endpoint", url] if serve == ask.ENDPOINT else ["--serve", serve]
        work = desk.queue.add(Job("Scores", [*words, "--json"], desk.roots.home))
        for _ in work.follow():
            yield views.progress(work), gr.skip(), views.command(work.words), work.while_active
        if work.state == DONE:
            view, table_words = _logs(desk, folder, who)
            yield views.progress(work), view, views.command(work.words, table_words), None

    def show(folder: str, who: list[str]) -> tuple[str, str]:
        view, words = _logs(desk, folder, who)
        return view, views.command(words)

    recipe = common[0]
    act(start.click, evaluate, [*common, tasks, limit, specialists, logs], outputs, problems, concurrency_limit=None)
    act(look.click, show, [logs, specialists], outputs[1:3], problems)
    for component in (tasks, recipe):
        component.change(
            partial(_specialists, desk),
            [recipe, tasks, specialists],
            specialists,
            trigger_mode="always_last",
            **PRIVATE,
        )


def _specialists(desk: Desk, text: str, tasks: list[str], before: list[str]) -> object:
    """Each task with each agent, as `--specialist` takes them; what was chosen before stays where it can."""
    agents = agents_in(text, desk.roots)
    names = [re.split("[/@]", task)[-1] for task in tasks or []]
    own_before = [each for each in before or [] if each.partition("=")[0] in names]
    own = [name for name in names if name in agents and not any(each.startswith(f"{name}=") for each in own_before)]
    choices = [f"{name}={agent}" for name in names for agent in agents]
    return gr.update(choices=choices, value=[*own_before, *(f"{name}={name}" for name in own)])


def _logs(desk: Desk, folder: str, specialists: Sequence[str]) -> tuple[str, list[str]]:
    """Retention of merges by the logs of `ramerge eval` as HTML, and the words that show the same."""
    require_extra("ramerge table needs", "pandas")
    from ramerge.evaluation.logs import read

    specialist_words = [word for each in specialists or [] for word in ("--specialist", each)]
    words = ["table", desk.roots.output(folder), "--table", "merging", "--intervals", *specialist_words]
    roles = GivenRoles(specialists=named("--specialist", specialists or [], "NAME=VALUE"))
    return scores_view(read(desk.roots.path(folder)), roles), words
