"""Commands that the page runs: progress, an interrupt as Ctrl-C gives it, and the same command again."""

from __future__ import annotations

import html
import re
import shlex
import threading
import time
from pathlib import Path

import pytest

from ramerge.cli.main import COMMANDS
from ramerge.core.engine.record import read_record
from ramerge.core.output.targets import ALREADY_THERE
from ramerge.demo.run import AGENTS
from ramerge.ui import views
from ramerge.ui.jobs import DONE, FAILED, RUNNING, STOPPED, Job, JobQueue
from tests.checkpoints import write_simple

pytestmark = pytest.mark.full  # Gradio

MODELS = [
    "--base",
    str(AGENTS / "base"),
    "--agent",
    f"coder={AGENTS / 'coder'}",
    "--agent",
    f"memory={AGENTS / 'memory'}",
]


def test_a_merge_tells_how_far_it_is(tmp_path: Path) -> None:
    job = Job("merged", ["merge", *MODELS, "merged"], tmp_path)
    queue = JobQueue()
    queue.add(job)
    for _ in job.follow(0.05):
        pass
    queue.close()
    assert (job.state, job.lines) == (DONE, [])
    assert job.progress["stage"] == "merging"
    assert job.progress["done"] == job.progress["total"] > 0
    assert read_record(tmp_path / "merged" / "ramerge.json").method == "ram+"


def test_a_command_line_is_what_a_user_types() -> None:
    words = ["merge", *MODELS, "--set", "parameters.r=<b> x"]
    [shown] = re.findall(r"<pre[^>]*>(.*)</pre>", views.command_html(words))
    assert shlex.split(html.unescape(re.sub(r"</?span>", "", shown))) == ["ramerge", *words]


def test_messages_name_the_controls_of_the_page() -> None:
    for said, shown in (
        (f"x: {ALREADY_THERE}", "x: exists; choose another folder, or tick “Replace what is there”"),
        ("x: is public; pass --public, or y", "x: is public; tick “Public”, or y"),
        ("--base is missing; give --base MODEL", "“Base model” is missing; fill in “Base model”"),
        ("search with --reward FILE.py:compute_score", "search with “Reward function”"),
        ("--threads 0: must be 1 or more", "--threads 0: must be 1 or more"),
        ("run `ramerge merge --overwrite`", "run `ramerge merge --overwrite`"),
        (
            "make one: ramerge merge TEACHER --method passthrough",
            "make one: ramerge merge TEACHER --method passthrough",
        ),
    ):
        assert views.in_page_words(said) == shown
    commands = [COMMANDS[name] for name in ("merge", "search", "eval", "table", "analyze", "handoff")]
    flags = {flag for command in commands for each in command.params for flag in each.opts}
    assert views.LABELS.keys() <= flags


def test_an_error_is_what_the_command_says(tmp_path: Path) -> None:
    job = Job("merged", ["merge", *MODELS, "--method", "<b>nothing</b>", "merged"], tmp_path)
    job.run()
    assert job.state == FAILED
    assert any("unknown method '<b>nothing</b>'" in line for line in job.lines)
    assert not (tmp_path / "merged").exists()


def test_progress_says_what_is_counted(tmp_path: Path) -> None:
    job = Job("search", ["search"], tmp_path, state=RUNNING)
    for event, said in (
        ({"stage": "search", "done": 3, "total": 9, "unit": "points"}, "search 3 of 9 points"),
        ({"stage": "merging", "done": 5_000_000, "total": 9_000_000, "unit": "bytes"}, "merging 5.0 MB of 9.0 MB"),
    ):
        job.progress = event
        assert f"<span>{said}</span>" in views.progress_html(job)


def test_an_analysis_gives_figures_and_its_numbers(tmp_path: Path) -> None:
    job = Job("analysis", ["analyze", *MODELS, "--json"], tmp_path)
    job.run()
    assert job.state == DONE
    assert job.output.startswith('{"schema":')


def test_stopped_jobs_do_not_start(tmp_path: Path) -> None:
    job = Job("merged", ["merge", *MODELS, "merged"], tmp_path)
    job.stop()
    job.run()
    assert job.state == STOPPED
    assert not list(tmp_path.iterdir())


@pytest.mark.full  # a merge that takes seconds
def test_a_stopped_merge_resumes(tmp_path: Path) -> None:
    write_simple(tmp_path, {"code": 0.1, "tool": 0.2}, shape=(1024, 2048))
    words = ["--base", "base", "--agent", "code=code", "--agent", "tool=tool", "--method", "wudi", "--threads", "1"]
    job = Job("merged", ["merge", *words, "merged"], tmp_path)
    runs = threading.Thread(target=job.run)
    runs.start()
    until = time.monotonic() + 60
    while not job.progress.get("done") and time.monotonic() < until:
        time.sleep(0.02)
    job.stop()
    runs.join()
    assert job.state == STOPPED
    assert "stopped by SIGINT" in job.lines[-1]
    assert not (tmp_path / "merged").exists()
    assert job.has_ended_early
    again = job.again()
    again.run()
    assert again.state == DONE
    assert any("continuing" in line for line in again.lines), again.lines
    assert read_record(tmp_path / "merged" / "ramerge.json").method == "wudi"
