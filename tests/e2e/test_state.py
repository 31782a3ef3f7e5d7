"""State that features leave in a folder and read again, where somebody else has changed it since."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.core.foundation.errors import OutputError, RamergeError
from ramerge.core.foundation.files import check_state, read_regular
from ramerge.demo.run import AGENTS
from tests.messages import Messages
from tests.searches.scorers import known

pytestmark = [
    pytest.mark.full,  # Optuna, torch
    pytest.mark.needs("torch", "transformers", "optuna"),
]

BASE, AGENT = str(AGENTS / "base"), str(AGENTS / "coder")


def score(model: Path) -> list[float]:
    """A score without a model: the same for each."""
    return [float(bool(model.name))] * 4


def search(folder: Path) -> object:
    recipe = {"method": "ram+", "base": BASE, "agents": {"a": AGENT, "b": str(AGENTS / "tool")}}
    settings = ramerge.SearchSettings(html=False)
    return ramerge.search(recipe, folder, known, vary={"parameters.r": [0.1, 0.2]}, settings=settings)


def greedy_soup(folder: Path) -> object:
    from ramerge.scoring.scores import objective_of
    from ramerge.searches.search import scorer_of
    from ramerge.soups.greedy import greedy_soup
    from ramerge.soups.recipe import read_request

    flags = {"strategy": "greedy", "base": BASE, "dtype": None, "rounding": None, "shard_size": None, "settings": ()}
    request = read_request([AGENT, BASE], {**flags, "last": None, "steps": None, "scores": None, "choose": None})
    return greedy_soup(
        request.recipe,
        request.run,
        request.checkpoints,
        folder,
        scorer_of(score, 60),
        objective_of("score"),
        options=ramerge.Options(),
        listen=lambda _: None,
    )


def calibrate(folder: Path) -> object:
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f("}\n{"prompt": "def g("}\n')
    recipe = {"base": BASE, "agents": {"code": AGENT}, "prompts": {"code": str(prompts)}}
    settings = ramerge.CalibrationSettings(count=2, max_new=4, gather="all", device="cpu")
    return ramerge.calibrate(recipe, folder, settings=settings)


FEATURES: dict[str, Callable[[Path], object]] = {
    "search": search,
    "greedy soup": greedy_soup,
    "calibration": calibrate,
}


@pytest.fixture(scope="module", params=FEATURES)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A feature, and the folder that it has left."""
    folder = tmp_path_factory.mktemp("state") / "S"
    FEATURES[request.param](folder)
    return request.param, folder


def entries(folder: Path) -> list[str]:
    """All files and folders in a folder, and the folders' journals of an interrupted run."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    journals = [f".{name}.replies.jsonl" for name in names if (folder / name / "replies.jsonl").exists()]
    return sorted([*names, *journals])


def copied(finished: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished, folder)
    return folder


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


REPLACEMENTS: dict[str, Callable[[Path, Path], None]] = {
    "link to a file or folder": lambda path, victim: path.symlink_to(victim),
    "pipe": lambda path, victim: os.mkfifo(path),
}


@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_state_that_is_no_file_is_refused(finished: tuple[str, Path], kind: str, tmp_path: Path) -> None:
    feature, whole = finished
    for name in entries(whole):
        folder = copied(whole, tmp_path / "S")
        victim = tmp_path / "victim"
        remove(victim)
        if (folder / name).is_dir():
            shutil.copytree(folder / name, victim)
        else:
            victim.write_text("{}")
        before = [path.stat().st_mtime_ns for path in (victim, *victim.rglob("*"))]
        remove(folder / name)
        REPLACEMENTS[kind](folder / name, victim)
        with pytest.raises(OutputError, match=f"{name}: is "):
            FEATURES[feature](folder)
        assert [path.stat().st_mtime_ns for path in (victim, *victim.rglob("*"))] == before


def variants(values: object, step: int) -> list[object]:
    """Values of a JSON file in which one of every `step` has another type, or leads out of the folder."""
    if not isinstance(values, dict):
        return [{"a": 1}, [[[]]], None]
    wrong: list[object] = [None, 1, "x", [1], {"x": None}, {"../../victim": "x"}, {"/dev/zero": "x"}]
    replaced = [values | {key: wrong[place % len(wrong)]} for place, key in enumerate(values)]
    return [*replaced[::step], {}, [values]]


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.thorough)])  # each runs the feature once more
def test_values_of_another_type_are_no_defect(finished: tuple[str, Path], step: int, tmp_path: Path) -> None:
    feature, whole = finished
    files = [name for name in entries(whole) if name.endswith((".json", ".jsonl", ".log"))]
    own = [name for name in files if (whole / name).is_file() and not name.startswith("best/")]
    assert own
    for name in own:
        first, *rest = (whole / name).read_text().splitlines() if name.endswith((".jsonl", ".log")) else [""]
        for values in variants(json.loads(first or (whole / name).read_text()), step):
            folder = copied(whole, tmp_path / "S")
            (folder / name).write_text("\n".join([json.dumps(values), *rest]) + "\n")
            try:
                FEATURES[feature](folder)
            except RamergeError as error:
                assert str(error)


def test_state_is_read_up_to_a_limit(tmp_path: Path, messages: Messages) -> None:
    file: Any = tmp_path / "file"
    file.write_bytes(b"1234")
    assert read_regular(file, 4) == b"1234"
    with messages.raises(ValueError):
        read_regular(file, 3)
    os.mkfifo(tmp_path / "pipe")
    with messages.raises(ValueError):
        read_regular(tmp_path / "pipe", 3)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "link", 3)
    check_state(tmp_path / "missing", file)
