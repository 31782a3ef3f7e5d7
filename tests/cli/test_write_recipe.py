"""`plan --write-recipe`: what a recipe and flags say, as a recipe of which the plan is the same."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import ramerge
from ramerge.cli.main import cli
from tests.checkpoints import floats, write_checkpoint
from tests.commands import ramerge as command
from tests.messages import Messages

NAMES = ["model.embed.weight", *[f"model.layers.{layer}.{part}.weight" for layer in range(3) for part in ("q", "up")]]
OWN = (
    "base: ../models/base\nagents: {code: ../models/code}\nparameters: {r: 0.2}\nrules: [{match: '*q*', keep: base}]\n"
)
MERGEKIT = """\
merge_method: ties
base_model: models/base
models:
  - {model: models/code, parameters: {weight: [0, 1]}}
  - {model: models/tool, parameters: {weight: 0.5, density: [{filter: up, value: 0.3}, {value: 0.6}]}}
dtype: float32
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for place, name in enumerate(("base", "code", "tool", "x", "importance of code+1")):
        config = {"model_type": "test", "num_hidden_layers": 3}
        values = floats([[0.5 + place / 8, 1.0]], "F32" if "+" in name else "BF16")
        tensors = {f"odd.{key}" if name == "x" else key: values for key in NAMES}
        write_checkpoint(folder / "models" / name, tensors, config=config)
    (folder / "recipes").mkdir()
    (folder / "recipes" / "own.yaml").write_text(OWN)
    (folder / "recipes" / "mergekit.yaml").write_text(MERGEKIT)
    return folder


def planned(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["plan", *words, "--json", "--no-cache"])
    if done.exit_code:
        raise AssertionError(f"{shlex.join(words)}: {done.output} {done.exception}")
    values: dict[str, Any] = json.loads(done.stdout)
    return values


_MODELS = ["--base", "MODELS/base", "--agent", "code=MODELS/code", "--agent", "tool=MODELS/tool"]
_INPUTS = st.sampled_from(
    [
        [*_MODELS],
        [*_MODELS, "--method", "ram+s", "--set", "parameters.epsilon.relative=1"],
        [*_MODELS, "--preset", "official"],
        [*_MODELS, "--method", "task_arithmetic", "--set", "parameters.weights={code: 1e-5, tool: 2}"],
        [*_MODELS, "--method", "linear", "--set", "parameters.normalize=false"],
        [*_MODELS[:4], "--method", "fisher", "--importance", "code=MODELS/importance of code+1"],
        ["RECIPES/own.yaml"],
        [
            "RECIPES/own.yaml",
            "--agent",
            "tool=MODELS/tool",
            "--method",
            "ties",
            "--set",
            "parameters={density: 0.3}",
        ],
        ["RECIPES/own.yaml", "--set", "agents.code.model=../models/tool"],
    ]
)
_FLAGS = {
    "--dtype": st.sampled_from(["float32", "fp16", "widest"]),
    "--rounding": st.just("stochastic"),
    "--shard-size": st.sampled_from(["1GB", "64MiB"]),
}
_SETTINGS = [
    "rounding_seed=7",
    "companions=code",
    "allow.non_finite=true",
    "allow.config=[rope_theta, 'a: b']",
]


@settings(deadline=None)
@given(
    inputs=_INPUTS,
    flags=st.fixed_dictionaries({}, optional=_FLAGS),
    chosen=st.sets(st.sampled_from(_SETTINGS)),
    home=st.sampled_from(["", "recipes", "elsewhere"]),
)
def test_written_recipe_has_the_same_plan(
    inputs: list[str], flags: dict[str, str], chosen: set[str], home: str, project: Path
) -> None:
    words = [word.replace("MODELS", f"{project}/models").replace("RECIPES", f"{project}/recipes") for word in inputs]
    words += [word for pair in flags.items() for word in pair]
    words += [word for text in sorted(chosen) for word in ("--set", text)]
    path = project / home / "written.yaml"
    path.unlink(missing_ok=True)
    before = planned(*words, "--write-recipe", str(path))
    assert same_places(planned(str(path))) == same_places(before)


def same_places(values: dict[str, Any]) -> dict[str, Any]:
    """A plan whose models have one name each, whichever way leads there; a written recipe needs no flag."""
    of_method = re.compile("is the default because|^--method ties replaces")
    values = values | {"notes": [note for note in values["notes"] if not of_method.search(note)]}
    agents = {name: str(Path(folder).resolve()) for name, folder in values["agents"].items()}
    return {**values, "base": str(Path(values["base"]).resolve()), "agents": agents}


def test_mergekit_recipe_is_written_in_our_form(project: Path, tmp_path: Path) -> None:
    written = tmp_path / "own.yaml"
    words = [str(project / "recipes" / "mergekit.yaml")]
    before = planned(*words, "--write-recipe", str(written))
    assert "method: ties" in written.read_text() and "rules:" in written.read_text()
    after = planned(str(written))
    as_filters = "filters and gradients set parameters of 5 tensors"
    same = [note.replace(as_filters, "5 rules catch 5 tensors") for note in before["notes"]]
    assert [note for note in same if "relative paths" not in note] == after["notes"]
    assert same_places({**after, "notes": []}) == same_places({**before, "notes": []})
    ramerge.merge(words[0], tmp_path / "theirs")
    ramerge.merge(written, tmp_path / "ours")
    first, second = (tmp_path / name / "model.safetensors" for name in ("theirs", "ours"))
    assert first.read_bytes() == second.read_bytes()


def test_paths_are_relative_where_the_models_lie_below(project: Path, tmp_path: Path) -> None:
    words = ["plan", "--base", "models/base", "--agent", "code=models/code", "--agent", "more=models/code+models/tool"]
    assert command(*words, "--write-recipe", "near.yaml", cwd=project).returncode == 2  # more cannot be added up
    text = (project / "near.yaml").read_text()
    assert "base: ./models/base" in text and "more: ./models/code+./models/tool" in text
    done = command(*words[:-2], "--write-recipe", "-", cwd=project)
    assert done.returncode == 0
    assert done.stdout == f"method: ram+\nbase: {project}/models/base\nagents:\n  code: {project}/models/code\n"


def test_what_exists_is_not_replaced(project: Path, tmp_path: Path, messages: Messages) -> None:
    taken = tmp_path / "taken.yaml"
    taken.write_text("mine")
    words = ["plan", project / "recipes" / "own.yaml", "--write-recipe"]
    done = command(*words, taken)
    assert done.returncode != 0
    messages.check(done.stderr)
    assert taken.read_text() == "mine"
    done = command(*words, tmp_path / "new.yaml")
    assert done.stdout.endswith(f"{tmp_path / 'new.yaml'}: recipe with all flags applied\n")
    assert "both print" in command(*words, "-", "--json").stderr
