"""Mistakes of new users, and what they read: what is wrong, and what to do."""

from pathlib import Path

import pytest

from ramerge.demo.run import copy_models
from tests.commands import ramerge

MODELS = "--base base --agent code=coder --agent tool=tool"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of the demo, and what a new user has made next to them."""
    path = tmp_path_factory.mktemp("mistakes")
    copy_models(path, lambda _text: None)
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("merg", "error: unknown command 'merg'; did you mean 'merge'?"),
        ("evaluate", "error: unknown command 'evaluate'; did you mean 'eval'?"),
        ("xyz", "error: unknown command 'xyz'; known: analyze, apply, "),
    ],
)
def test_what_a_new_user_reads(words: str, said: str, folder: Path) -> None:
    done = ramerge(*words.split(), cwd=folder)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_without_a_command_the_help_is_shown_once() -> None:
    done = ramerge()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ramerge("--help").stdout


def test_no_sandbox_is_called_that() -> None:
    assert "local: no sandbox, with your rights" in " ".join(ramerge("eval", "--help").stdout.split())


def test_another_method_replaces_parameters_with_a_note(folder: Path) -> None:
    assert ramerge("merge", *MODELS.split(), "first", "--quiet", "--overwrite", cwd=folder).returncode == 0
    recipe = ["first/ramerge.yaml", "--method"]
    done = ramerge("plan", *recipe, "ties", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "note: --method ties replaces what is ram+'s in the recipe: parameters (epsilon, " in done.stdout
    assert "replaces" not in ramerge("plan", *recipe, "ram+", cwd=folder).stdout
    assert "density = 0.3" in ramerge("plan", *recipe, "ties", "--set", "parameters.density=0.3", cwd=folder).stdout
    assert ramerge("plan", *recipe, "auto", cwd=folder).returncode == 0
    assert "unknown method 'rma'; did you mean 'ram'?" in ramerge("plan", *recipe, "rma", cwd=folder).stderr
