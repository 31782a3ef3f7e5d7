"""What was left behind is read through what wrote it."""

import json
from pathlib import Path

import pytest

import ramerge
from ramerge.analysis.finished import open_merge
from ramerge.analysis.results import analysis_of
from ramerge.core.engine.record import read_record, read_sweep
from ramerge.core.foundation.errors import PlanError, RecipeError
from tests.checkpoints import recipe, write_simple
from tests.messages import Messages


def test_records_come_back(tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path, {"code": 0.1, "tool": 0.2}))
    by_part = source | {"parameters": {"scope": "tensor"}, "rules": [{"match": "*.0.*", "keep": "base"}]}
    record = ramerge.merge(by_part, tmp_path / "out")
    assert read_record(tmp_path / "out/ramerge.json").to_dict() == record.to_dict()
    records = ramerge.sweep(source, tmp_path / "sweep", vary={"parameters.r": [0, 0.1]})
    found = read_sweep(tmp_path / "sweep/sweep.json")
    assert [one.to_dict() for one in found.points.values()] == [one.to_dict() for one in records]
    assert found.to_json() == (tmp_path / "sweep/sweep.json").read_text()
    with messages.raises(RecipeError):
        open_merge(tmp_path / "sweep")


def test_a_record_of_an_earlier_version(tmp_path: Path) -> None:
    ramerge.merge(recipe(tmp_path, write_simple(tmp_path, {"code": 0.1})), tmp_path / "out")
    path = tmp_path / "out/ramerge.json"
    values = json.loads(path.read_text()) | {"of_a_later_version": 1}
    path.write_text(json.dumps(values))
    assert read_record(path).warnings == ()


@pytest.mark.parametrize(
    "change",
    [
        {"agents": {"a": {"model": "b", "rho": []}}},
        {"agents": [5]},
        {"agents": None},
        {"notes": "x"},
        {"tensors": "many"},
        {"bytes_read": 0.5},
    ],
)
def test_damaged_records(change: dict[str, object], tmp_path: Path, messages: Messages) -> None:
    ramerge.merge(recipe(tmp_path, write_simple(tmp_path, {"code": 0.1})), tmp_path / "out")
    path = tmp_path / "out/ramerge.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with messages.raises(RecipeError):
        read_record(path)


def test_analyses_come_back(tmp_path: Path) -> None:
    text = ramerge.analyze(
        recipe(tmp_path, write_simple(tmp_path, {"code": 0.1, "tool": 0.0, "memory": 0.2}))
    ).to_json()
    assert analysis_of(text).to_json() == text


@pytest.mark.parametrize("text", ["[" * 5000, '{"ramerge_version": ' + "1" * 5000 + "}", "[]", '{"ramerge_version": 1'])
def test_folder_with_damaged_record_is_no_merge(text: str, tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path, {"code": 0.1}))
    (tmp_path / "out/inner").mkdir(parents=True)
    (tmp_path / "out/ramerge.json").write_text(text)
    with messages.raises(PlanError):
        ramerge.merge(source, tmp_path / "out", options=ramerge.Options(overwrite=True))
