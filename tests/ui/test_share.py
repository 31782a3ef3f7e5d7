"""Uploads and handoffs of finished merges: the command line's words, the places that they take, and a Space."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import ramerge
from ramerge.cli.main import cli
from ramerge.core.foundation.errors import RamergeError, RecipeError
from ramerge.demo.run import AGENTS, copy_models
from ramerge.ui import views
from ramerge.ui.desk import Desk
from ramerge.ui.jobs import DONE, FAILED, Job
from ramerge.ui.merge import merge_job
from ramerge.ui.roots import Roots
from ramerge.ui.share import handoff_views, handoff_words, upload_job
from ramerge.ui.space import space_desk
from tests.messages import Messages
from tests.storage.memory import Memory

pytestmark = pytest.mark.full  # Gradio, obstore

RECIPE = {"base": str(AGENTS / "base"), "agents": {name: str(AGENTS / name) for name in ("coder", "memory")}}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Desk(Roots((tmp_path.resolve(), AGENTS.resolve())))


@pytest.mark.parametrize("as_delta", [False, True])
def test_what_is_uploaded_is_the_finished_merge(
    as_delta: bool, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    monkeypatch.setattr("obstore.store.GCSStore", memory.open)
    ramerge.merge(RECIPE | {"parameters": {"r": 0.3}}, tmp_path / "merged", kind="delta" if as_delta else "checkpoint")
    job = upload_job(desk, "merged", " gs://models/mine ")
    assert job.words[-1] == "gs://models/mine"
    assert ("--as-delta" in job.words, "parameters.r=0.3" in job.words) == (as_delta, True)
    assert memory.files("mine") == {}, "nothing is sent before it is confirmed"
    done = CliRunner().invoke(cli, [*job.words, "--quiet"], standalone_mode=False)
    assert done.exit_code == 0, done.exception
    weights = [path.read_bytes() for path in (tmp_path / "merged").glob("*.safetensors")]
    assert weights == [data for name, data in memory.files("mine").items() if name.endswith(".safetensors")]


@pytest.mark.parametrize(
    "place", ["", "folder", "/tmp/x", "ftp://host/x", "s3://key:secret@bucket/x", "hub:", "hub:a:b"]
)
def test_other_places_are_refused(place: str, desk: Desk, tmp_path: Path) -> None:
    ramerge.merge(RECIPE, tmp_path / "merged")
    with pytest.raises(RamergeError) as refused:
        upload_job(desk, "merged", place)
    assert "secret" not in str(refused.value)


def test_only_finished_merges_below_the_roots_are_uploaded(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such folder"):
        upload_job(desk, "nothing", "hub:me/mine")
    with pytest.raises(RecipeError, match="is not in a folder that this page may read"):
        upload_job(desk, "..", "hub:me/mine")
    ramerge.merge(RECIPE, tmp_path / "merged")
    recipe = tmp_path / "merged" / "ramerge.yaml"
    recipe.write_text(re.sub(r"\S*agents/memory", "/etc", recipe.read_text()))
    with pytest.raises(RecipeError, match="is not in a folder that this page may read"):
        upload_job(desk, "merged", "hub:me/mine")
    recipe.unlink()
    recipe.symlink_to("/etc/hostname")
    with pytest.raises(RecipeError, match="is not in a folder that this page may read"):
        upload_job(desk, "merged", "hub:me/mine")


def test_a_space_uploads_nothing(tmp_path: Path, messages: Messages) -> None:
    desk = space_desk(tmp_path)
    (tmp_path / "own").mkdir()
    ramerge.merge(RECIPE, tmp_path / "own" / "merged")
    for place in ("hub:me/mine", "s3://bucket/mine"):
        with messages.raises(RecipeError):
            upload_job(desk, "own/merged", place)
        with messages.raises(RecipeError):
            desk.roots.output(place)


def test_the_command_of_a_public_repository_says_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"base: {AGENTS}/base\nagents: {{coder: {AGENTS}/coder, memory: {AGENTS}/memory}}\n"
    monkeypatch.setattr("ramerge.core.storage.hub_upload.HubUpload.problems", lambda *_words, **_more: [])
    job = merge_job(desk, text, "hub:me/mine", "model", public=True)
    assert list(job.words[-2:]) == ["--public", "hub:me/mine"] and job.out is None


# --- distillation -----------------------------------------------------------------------------------------------------

LINES = "code=demo/code.jsonl\n\n tool = demo/tool.jsonl\n"


@pytest.fixture
def merged(desk: Desk) -> Path:
    """A merge of the demo's agents, which lie with their prompts below the first root."""
    home = desk.roots.home
    copy_models(home / "demo", lambda _: None)
    agents = {"code": f"{home}/demo/coder", "tool": f"{home}/demo/tool"}
    ramerge.merge({"base": f"{home}/demo/base", "agents": agents}, home / "merged")
    return home / "merged"


def ran(desk: Desk, words: list[str]) -> Job:
    job = Job("Handoff", words, desk.roots.home)
    job.run()
    return job


def test_a_merge_is_handed_to_a_trainer(desk: Desk, merged: Path) -> None:
    words = handoff_words(desk, "merged", LINES, "verl", "student", overwrite=False)
    files = ["--prompts", "code=demo/code.jsonl", "--prompts", "tool=demo/tool.jsonl"]
    usual = ["--hold-out", "0", "--max-new", "1024"]
    assert words == ["handoff", "merged", "student", "--for", "verl", *files, *usual, "--json"]
    job = ran(desk, words)
    assert job.state == DONE, job.lines
    html, command = handoff_views(json.loads(job.output), "student")
    written = sorted(path.name for path in merged.with_name("student").iterdir())
    assert "handoff.json" in written and all(f"student/{name}" in html for name in written)
    assert "prompts: code 8, tool 8" in html and "main_ppo" in command
    assert ran(desk, words).state == FAILED, "an earlier handoff is not replaced"
    assert ran(desk, handoff_words(desk, "merged", LINES, "trl", "student", overwrite=True)).state == DONE


def test_the_command_for_an_agent_that_is_an_adapter_stays_whole(desk: Desk, merged: Path) -> None:
    (desk.roots.home / "adapter").mkdir()
    (desk.roots.home / "adapter" / "adapter_config.json").write_text("{}")
    recipe = merged / "ramerge.yaml"
    recipe.write_text(re.sub(r"\S*demo/tool", "../demo/base+../adapter", recipe.read_text()))
    job = ran(desk, handoff_words(desk, "merged", LINES, "trl", "student", overwrite=False))
    assert job.state == FAILED
    assert "TEACHER --method passthrough --set parameters.agent=tool" in views.progress_html(job)


def test_teachers_held_out_prompts_and_the_length_of_replies_are_the_commands(desk: Desk, merged: Path) -> None:
    shutil.copytree(desk.roots.home / "demo/tool", desk.roots.home / "copy")
    words = handoff_words(
        desk, "merged", LINES, "verl", "student", overwrite=False, teachers=" tool = copy\n", held_out=2, longest=64
    )
    job = ran(desk, words)
    assert job.state == DONE, job.lines
    record = json.loads(job.output)
    assert record["teachers"]["tool"].endswith("/copy") and record["held_out"] == {"code": 2, "tool": 2}
    assert "max_response_length: 64" in merged.with_name("student").joinpath("mopd.yaml").read_text()


def test_a_handoff_reads_and_writes_below_the_roots(desk: Desk, merged: Path, tmp_path: Path) -> None:
    def refused(name: str = "merged", lines: str = LINES, folder: str = "student", teachers: str = "") -> None:
        with pytest.raises(RecipeError):
            handoff_words(desk, name, lines, "trl", folder, overwrite=False, teachers=teachers)

    for teacher in ("/etc", "..", ""):
        refused(teachers=f"tool={teacher}")

    for name in ("", "..", "/etc", "nothing", "demo/base", "s3://bucket/merged"):
        refused(name=name)
    for file in ("", "/etc/passwd", "../outside.jsonl", "nothing.jsonl"):
        refused(lines=f"code={file}\ntool=demo/tool.jsonl")
    for folder in ("", ".", "..", "/tmp/x", "s3://bucket/student"):
        refused(folder=folder)
    recipe = merged / "ramerge.yaml"
    recipe.write_text(re.sub(r"\S*demo/tool", "/etc", recipe.read_text()))
    refused()
