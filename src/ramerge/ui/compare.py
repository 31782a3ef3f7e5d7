"""The tab Compare: each agent's skill in the merges, and the scores of all models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from statistics import fmean

import gradio as gr
import numpy as np
from gradio.blocks import Block
from markupsafe import Markup

from ramerge.scoring.evaluation import feature
from ramerge.scoring.intervals import interval
from ramerge.scoring.serving import SERVERS
from ramerge.sdk.commands import named
from ramerge.ui import ask, views
from ramerge.ui.desk import PRIVATE, Desk, act, html, problem_place, run_buttons, show_stop_while_running, text_place
from ramerge.ui.draft import agents_in
from ramerge.ui.jobs import DONE, Job
from ramerge.ui.merge import finished_merges, models_of

_TASKS = [f"ramerge/{name}" for name in ("coding", "tool", "memory", "search", "ifeval", "math")]


def build(desk: Desk, recipe: gr.Code, tab: gr.Tab) -> None:
    """Build the tab Compare."""
    info = "folders of finished merges, compared with base and agents; if none is named, those merged on this page"
    merges = gr.Dropdown([], multiselect=True, allow_custom_value=True, label="Merges", info=info)
    score, stop = run_buttons("Score on the demo's tasks")
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
            yield views.progress_html(work), gr.skip(), views.command_html(work.words), work.active_job_or_none
        if work.state == DONE:
            agents = agents_in(text, desk.roots)
            names = [name for name in models if name != "base" and name not in agents]
            view = demo_view(json.loads(work.output), names)
            yield views.progress_html(work), view, views.command_html(work.words), None

    tab.select(offer, None, merges, **PRIVATE)
    act(score.click, score_demo, [recipe, merges], outputs, problems, concurrency_limit=None)
    show_stop_while_running(job, stop)
    if not desk.public:
        with gr.Row():
            info = "for benchmarks and prompts; --serve starts a server"
            servers = [ask.ENDPOINT, *SERVERS]
            server = gr.Dropdown(servers, value=ask.ENDPOINT, label=views.LABELS["--serve"], info=info)
            info = "its key: RAMERGE_API_KEY"
            endpoint = gr.Textbox("http://127.0.0.1:8000/v1", label=views.LABELS["--endpoint"], info=info, max_lines=1)
        common = [recipe, merges, server, endpoint]
        _build_evaluation(desk, common, outputs)
        ask.build(desk, common)


# --- retention --------------------------------------------------------------------------------------------------------


def demo_view(rewards: Mapping[str, Mapping[str, Sequence[float]]], merges: Sequence[str]) -> str:
    """Return scores of the demo as HTML: how much of each task the merges keep, the worst in red; scores of all models.

    The specialist of a task is the agent with its best score.
    """
    means = {name: {task: fmean(values) for task, values in tasks.items()} for name, tasks in rewards.items()}
    agents = [name for name in rewards if name != "base" and name not in merges]
    tasks = list(next(iter(rewards.values())))
    specialists = {task: max(agents, key=lambda name: means[name][task]) for task in tasks}
    tasks = [task for task in tasks if means[specialists[task]][task]]  # nothing is kept of a skill that no agent has
    retentions = []
    for name in merges if tasks else ():
        ratios = [means[name][task] / means[specialists[task]][task] for task in tasks]
        cells = [f"{100 * ratio:.1f}" for ratio in ratios]
        worst = ratios.index(min(ratios))
        cells[worst] = Markup('<span class="worst">{}</span>').format(cells[worst])
        retentions.append((name, *cells, f"{100 * prod(ratios) ** (1 / len(ratios)):.1f}"))
    scores = [(name, *(_mean_reward(values) for values in each.values())) for name, each in rewards.items()]
    notes = [
        "Retention: the merge's score over the specialist's, in per cent; composite is the geometric mean.",
        f"Specialists: {', '.join(f'{name} ({task})' for task, name in specialists.items())}.",
        "Red: each merge's worst task. In brackets: 95 % percentile bootstrap intervals.",
    ]
    return views.block(
        "<h3>What merges have kept</h3>",
        views.table("What merges have kept", ["Model", *tasks, "Composite"], retentions),
        "<h3>All tasks</h3>",
        views.table("All tasks", ["Model", *next(iter(rewards.values()))], scores),
        views.listing(notes),
    )


def _mean_reward(rewards: Sequence[float]) -> str:
    """Format a mean reward in per cent with its interval."""
    limits = interval(np.array([[reward, 1.0] for reward in rewards]))
    return f"{100 * fmean(rewards):.1f}" + (f" [{100 * limits[0]:.1f}, {100 * limits[1]:.1f}]" if limits else "")


def _build_evaluation(desk: Desk, common: Sequence[Block], outputs: Sequence[Block]) -> None:
    """Build the part for benchmarks: `ramerge eval`, and the table of its logs from `ramerge table`."""
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
            yield views.progress_html(work), gr.skip(), views.command_html(work.words), work.active_job_or_none
        if work.state == DONE:
            view, table_words = _read_logs(desk, folder, who)
            yield views.progress_html(work), view, views.command_html(work.words, table_words), None

    def show(folder: str, who: list[str]) -> tuple[str, str]:
        view, words = _read_logs(desk, folder, who)
        return view, views.command_html(words)

    recipe = common[0]
    act(start.click, evaluate, [*common, tasks, limit, specialists, logs], outputs, problems, concurrency_limit=None)
    act(look.click, show, [logs, specialists], outputs[1:3], problems)
    for component in (tasks, recipe):
        component.change(
            partial(_specialist_choices, desk),
            [recipe, tasks, specialists],
            specialists,
            trigger_mode="always_last",
            **PRIVATE,
        )


def _specialist_choices(desk: Desk, text: str, tasks: list[str], before: list[str]) -> object:
    """Return the choices for `--specialist`: each task with each agent; earlier choices stay if possible."""
    agents = agents_in(text, desk.roots)
    names = [re.split("[/@]", task)[-1] for task in tasks or []]
    own_before = [each for each in before or [] if each.partition("=")[0] in names]
    own = [name for name in names if name in agents and not any(each.startswith(f"{name}=") for each in own_before)]
    choices = [f"{name}={agent}" for name in names for agent in agents]
    return gr.update(choices=choices, value=[*own_before, *(f"{name}={name}" for name in own)])


def _read_logs(desk: Desk, folder: str, specialists: Sequence[str]) -> tuple[str, list[str]]:
    """Return the merges' retention, from logs of `ramerge eval`, as HTML; and the command that shows the same."""
    specialist_words = [word for each in specialists or [] for word in ("--specialist", each)]
    words = ["table", desk.roots.output(folder), "--table", "merging", "--intervals", *specialist_words]
    agents = named("--specialist", specialists or [], "NAME=VALUE")
    tables = feature("score_tables", "scores on benchmarks need")(desk.roots.path(folder), agents)
    return "".join(views.block(f"<h3>{views.safe(title)}</h3>", table) for title, table in tables), words
