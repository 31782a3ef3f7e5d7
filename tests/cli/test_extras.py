"""Every command where no extra is installed: it works, or says what it needs and which command installs that."""

from importlib.util import find_spec
from pathlib import Path
from shutil import copytree

import pytest

from ramerge.cli.main import COMMANDS
from ramerge.core.foundation.extras import evaluation_command, install_command
from ramerge.demo.run import copy_models
from tests.commands import ramerge

EXTRAS = (
    *("torch", "transformers", "ray", "blake3", "obstore", "optuna", "cmaes", "gradio"),
    *("altair", "itables", "jinja2", "vl_convert"),
    *("ramerge_eval", "pandas"),
)
"""Modules of all extras; httpx is left, because some versions of huggingface_hub need it."""

MODELS = "--base base --agent code=coder --agent tool=tool"
PROMPTS = "--prompts code=code.jsonl --prompts tool=tool.jsonl"
LINE = "runs/code OUT --strategy"

# Of each command, words that go on without extras, and words that need one, with its name.
WORDS: dict[str, list[tuple[str, str]]] = {
    "analyze": [(MODELS, ""), (f"{MODELS} --html -", "report"), (f"{MODELS} --figures figures", "report")],
    "apply": [("--base base DELTA APPLIED", "")],
    "calibrate": [(f"{MODELS} {PROMPTS} OUT", "torch")],
    "clean": [("OUT", "")],
    "convert": [("coder CONVERTED", "")],
    "delta": [("--base base --agent code=coder DELTA_TOO", "")],
    "demo": [("", "")],
    "eval": [("LOGS --task ramerge/tool --model x=base --serve transformers", "eval")],
    "handoff": [(f"MERGED HANDOFF {PROMPTS}", "")],
    "merge": [
        (f"{MODELS} MERGED_TOO", ""),
        (f"{MODELS} OUT --ray", "ray"),
        (f"{MODELS} OUT --method wudi --device cuda", "torch"),
        (f"{MODELS} {PROMPTS} --method regmean OUT", "torch"),
        (f"{MODELS} s3://bucket/out", "remote"),
    ],
    "methods": [("ram", "")],
    "plan": [(MODELS, ""), ("--base s3://bucket/base --agent code=coder", "remote")],
    "recommend": [(MODELS, ""), (f"{MODELS} {PROMPTS}", "torch")],
    "report": [("MERGED", "report")],
    "search": [
        (f"{MODELS} OUT --score scores.py:score --vary method=ram,ties", ""),
        (f"{MODELS} OUT --score scores.py:score --vary method=ram,ties --sampler tpe", "search"),
        (f"{MODELS} OUT --score ramerge/tool --serve transformers --vary method=ram,ties", "eval"),
        (f"{MODELS} {PROMPTS} OUT", "torch"),
        (f"{MODELS} {PROMPTS} OUT --sampler tpe", "torch,search"),
    ],
    "soup": [
        ("runs/code SOUP", ""),
        (f"{LINE} uniform --choose 1 --scores LOGS", "eval"),
        (f"{LINE} scored --scores LOGS", "eval"),
        ("runs/code --base base --analyze --html -", "report"),
    ],
    "sweep": [(f"{MODELS} SWEEP --vary parameters.r=0,0.1", "")],
    "table": [("LOGS", "eval")],
    "ui": [("", "ui")],
}


def test_every_command_is_here() -> None:
    assert set(WORDS) == {name for name in COMMANDS.usable() if ":" not in name} | {"eval", "table"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of the demo, a run, a merge, a delta and a folder for logs."""
    path = tmp_path_factory.mktemp("extras")
    copy_models(path, lambda _text: None)
    copytree(path / "coder", path / "runs/code/global_step_10")
    copytree(path / "tool", path / "runs/code/global_step_20")
    (path / "LOGS").mkdir()
    (path / "scores.py").write_text("def score(folder):\n    return {'figure': 1.0}\n")
    for words in (f"merge {MODELS} MERGED", "delta --base base --agent code=coder DELTA"):
        done = ramerge(*words.split(), cwd=path)
        assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (f"{name} {words}", extra)
        for name, each in WORDS.items()
        for words, extra in each
        if extra != "eval" or find_spec("ramerge_eval") is None  # `make test` has no ramerge-eval
    ],
)
def test_a_command_without_extras(words: str, extra: str, folder: Path) -> None:
    done = ramerge(*words.split(), cwd=folder, without=EXTRAS)
    assert "defect of ramerge" not in done.stderr and "Traceback" not in done.stderr
    if extra:
        assert done.returncode == 2, done.stderr
        assert (
            f"ramerge-eval, which is not installed: {evaluation_command()}\n"
            if extra == "eval"
            else install_command(extra)
        ) in done.stderr
    else:
        assert done.returncode == 0, done.stderr
