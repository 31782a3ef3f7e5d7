"""Every option that names a path to write, against everything that the run reads."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from ramerge.cli.main import COMMANDS
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.output.targets import claim_files, claim_folder
from tests.checkpoints import write_simple
from tests.commands import ramerge as command
from tests.messages import Messages

READS = {
    *(f"{name} --base" for name in COMMANDS if name not in ("clean", "demo", "handoff", "methods", "report", "table")),
    *(f"{name} paths" for name in ("analyze", "recommend")),
    "convert model",
    "handoff merged",
    "search --space",
    "soup --scores",
    "table logs",
    "ui --root",
}
WRITES = {
    "analyze --html": "analyze r.yaml --html PATH",
    "analyze --figures": "analyze r.yaml --figures PATH",
    "analyze --json-file": "analyze r.yaml --json-file PATH",
    "analyze --csv": "analyze r.yaml --csv PATH",
    "apply out": "apply --base base delta PATH --overwrite",
    "convert out": "convert code PATH --overwrite",
    "delta out": "delta --base base --agent code=code PATH --overwrite",
    "demo --models": "demo --models PATH",
    "demo --out": "demo --out PATH",
    "eval logs": "eval PATH --task ramerge/tool --base base --model merged=code",
    "handoff out": "handoff out PATH --prompts code=code.jsonl --prompts tool=code.jsonl --overwrite",
    "merge paths": "merge r.yaml PATH --overwrite",
    "plan paths": "plan r.yaml PATH --overwrite",
    "plan --write-recipe": "plan r.yaml --write-recipe PATH",
    "report out": "report PATH",
    "report --html": "report out --html PATH",
    "report --figures": "report out --figures PATH",
    "report --json-file": "report out --json-file PATH",
    "report --csv": "report out --csv PATH",
    "soup words": "soup code tool PATH --overwrite",
    "soup --html": "soup code tool --base base --analyze --html PATH",
    "soup --write-recipe": "soup code tool --base base --write-recipe PATH",
    "sweep paths": "sweep r.yaml PATH --overwrite --vary parameters.r=0,0.1",
    "table --out": "table logs --out PATH",
}
# names of folders that are no option of the type of a path, because they are words among others
WORDS = {
    "calibrate": "calibrate r.yaml PATH --overwrite",
    "search": "search r.yaml PATH --vary parameters.r=0,0.1 --score scores.py:score",
    "soup, greedy": "soup code tool PATH --strategy greedy --score scores.py:score",
}


def test_every_path_option_is_read_or_written() -> None:
    paths = {
        f"{name} {each.name if isinstance(each, click.Argument) else each.opts[0]}"
        for name, one in COMMANDS.items()
        for each in one.params
        if isinstance(each.type, click.Path)
    }
    assert paths == {path for path in READS | WRITES.keys() if path.split()[0] in COMMANDS}


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models, a recipe with prompts, a finished merge, a delta and logs; and other spellings of them."""
    monkeypatch.chdir(tmp_path)
    write_simple(tmp_path, {"code": 0.2, "tool": 0.4})
    (tmp_path / "scores.py").write_text("def score(model):\n    return 1.0\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log.eval").write_text("log")
    (tmp_path / "code.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    recipe = "base: base\nagents: {code: code, tool: tool}\nprompts: {code: code.jsonl, tool: code.jsonl}\n"
    (tmp_path / "r.yaml").write_text(recipe)
    merged = command("merge", "--base", "base", "--agent", "code=code", "--agent", "tool=tool", "out", "--quiet")
    assert merged.returncode == 0, merged.stderr
    assert command("delta", "--base", "base", "--agent", "code=code", "delta", "--quiet").returncode == 0
    os.link(tmp_path / "code.jsonl", tmp_path / "linked.jsonl")
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    return tmp_path


FOLDERS = ("base", "code", "tool", "out", "logs")


@pytest.mark.full  # a process for each path
@pytest.mark.parametrize("option", [*WRITES, *WORDS])
def test_nothing_that_is_read_is_replaced(option: str, inputs: Path) -> None:
    arguments = (WRITES | WORDS)[option].split()
    if option in ("demo --models", "demo --out", "report out"):
        return  # they read nothing, or add a page to what they read
    with_recipe = "r.yaml" in arguments
    models = [name for name in FOLDERS[:3] if with_recipe or name in " ".join(arguments).replace("=", " ").split()]
    names = ["linked.jsonl", "elsewhere/r.yaml"] if with_recipe else []
    names += [f"elsewhere/{models[-1]}", f"elsewhere/{models[0]}/new.json"] if models else []
    names += ["elsewhere/logs/log.eval"] if "logs" in arguments else []
    names += ["elsewhere/out/ramerge.yaml", "elsewhere/base/config.json"] if "out" in arguments else []
    assert names
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    for name in names:
        done = command(*[name if word == "PATH" else word for word in arguments])
        assert done.returncode != 0, (name, done.stdout)
        after = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
        assert after == before, (name, done.stderr)


@pytest.mark.parametrize(
    "name",
    [
        "code.jsonl",
        "linked.jsonl",
        "elsewhere/code.jsonl",
        "out/../code.jsonl",
        "elsewhere/code",
        "code/new/numbers.json",
    ],
)
def test_every_spelling_of_an_input_is_refused(name: str, inputs: Path) -> None:
    with pytest.raises(RecipeError, match=r"is one of the inputs|is inside the input|it is a folder"):
        claim_files([inputs / "code.jsonl", inputs / "code"], {"--html": inputs / name})


def test_files_of_others_are_kept(tmp_path: Path, messages: Messages) -> None:
    notes, page = tmp_path / "notes.html", tmp_path / "page.html"
    notes.write_text("<p>my notes</p>")
    page.write_text('<html><meta name="generator" content="ramerge 0.1">')
    with messages.raises(RecipeError):
        claim_files([], {"--html": notes})
    claim_files([], {"--html": notes}, overwrite=True)
    claim_files([], {"--html": page, "--json-file": tmp_path / "new.json"})


def test_a_staging_directory_is_no_place_for_files(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(RecipeError):
        claim_files([], {"--html": tmp_path / ".out.ramerge-partial" / "page.html"})


def test_a_folder_of_state_holds_no_input(tmp_path: Path, messages: Messages) -> None:
    prompts = tmp_path / "S" / "code.jsonl"
    prompts.parent.mkdir()
    prompts.touch()
    with messages.raises(RecipeError):
        claim_folder(tmp_path / "S", [prompts])
    claim_folder(tmp_path / "T", [prompts])
