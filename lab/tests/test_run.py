"""A cut of the lab: it goes on after a kill, keeps what it found, and renders it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab import page
from lab.results import RESULTS, Results, keep
from lab.run import run
from lab.sizes import QUICK
from lab.store import OtherSettingsError, pack, unpack
from lab.training import Schooling

pytestmark = pytest.mark.full  # torch

CUT = replace(
    QUICK,
    seeds=1,
    schooling=Schooling(steps=3, batch=4),
    kinds={"rl": replace(QUICK.kinds["rl"], steps=2)},
    validation=5,
    test=20,
    fisher=2,
    rows=("ram+", "linear", "task_arithmetic"),
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "work"
    run(folder, CUT)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    # times differ
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix == ".safetensors" or path.parent.name == "models"
    } | {
        str(path.relative_to(folder)): json.dumps(
            {key: value for key, value in json.loads(path.read_text()).items() if key not in ("seconds", "took")}
        ).encode()
        for path in folder.glob("*/scores/*/*.json")
    }


def test_a_run_that_was_killed_goes_on_to_the_same_files(work: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(work, copy)
    whole = contents(work)
    base = copy / "seed-00" / "base" / "model.safetensors"
    first = base.stat().st_mtime_ns
    shutil.rmtree(copy / "seed-00" / "scores")
    (copy / "seed-00" / "agents" / "rl" / "sort" / "model.safetensors").unlink()
    (copy / "seed-00" / "agents" / "rl" / "sort" / ".model.safetensors.partial").write_bytes(b"half")
    run(copy, CUT)
    assert contents(copy) == whole
    assert base.stat().st_mtime_ns == first


def test_a_folder_of_other_settings_is_refused(work: Path) -> None:
    with pytest.raises(OtherSettingsError, match="other settings"):
        run(work, replace(CUT, test=21))
    run(work, replace(CUT, seeds=0))  # more or fewer seeds are no other settings


def test_what_is_kept_is_what_was_found(work: Path, tmp_path: Path) -> None:
    keep(work, CUT, tmp_path)
    outcome = Results(tmp_path).setting("three")
    assert outcome is not None and outcome.seeds == (0,) and outcome.tasks == ("add", "reverse", "sort")
    assert outcome.best.keys() == outcome.default.keys() == set(CUT.rows)
    for seed in outcome.seeds:
        row = json.loads((work / f"seed-{seed:02d}" / "scores" / "three" / "task_arithmetic.json").read_text())
        for place, task in enumerate(outcome.tasks):
            right = unpack((row["best"] or row["default"])[task], CUT.test)
            assert (outcome.best["task_arithmetic"].right[seed, place] == right).all()
    assert "## All methods" in page.pages(Results(tmp_path))["findings-tiny-agents.md"]


def test_bits_survive() -> None:
    bits = np.random.default_rng(1).random(77) < 0.5
    assert (unpack(pack(bits), 77) == bits).all()


def test_pages_are_what_the_results_say(lab_results: Results) -> None:
    for name, text in page.pages(lab_results).items():
        assert (page.DOCS / name).read_text(encoding="utf-8") == text, "render it again: python -m lab page"


def test_the_figures_are_what_the_results_say(lab_results: Results) -> None:
    from lab.figures import FIGURES, figures

    draws = dict(figures(lab_results))
    again = "render them again: python -m lab page"
    assert draws and all((FIGURES / name).read_text(encoding="utf-8") == content for name, content in draws.items()), (
        again
    )


def test_results_are_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.glob("*.json")) < 3_000_000
