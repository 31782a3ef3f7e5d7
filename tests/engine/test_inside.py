"""Models inside of an output, which replacing the output would remove."""

from pathlib import Path

import pytest

import ramerge
from ramerge.core.storage.own_files import model_inside
from tests.checkpoints import recipe, write_simple
from tests.messages import Messages

MODEL = ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("names", "sweep", "found"),
    [
        (["ramerge.json", *MODEL], {}, None),
        ([*MODEL, *(f"sub/{name}" for name in MODEL)], {}, "sub"),
        ([*MODEL, "deep/er/ramerge.json"], {}, "deep/er"),
        ([*MODEL, "1_Pooling/config.json"], {}, None),  # a part of a pipeline has no weights of its own
        (["sweep.json", "r=0/ramerge.json"], {"points": {"r=0": {}}}, None),
        (["sweep.json", "r=0/ramerge.json", "mine/ramerge.json"], {"points": {"r=0": {}}}, "mine"),
        (["sweep.json", "r=0/ramerge.json"], {"points": 3}, "r=0"),
        (["delta.safetensors.index.json", "companions/ramerge.json"], {}, None),
        (["ramerge.json", "companions/ramerge.json"], {}, "companions"),
    ],
)
def test_what_is_a_model_of_its_own(names: list[str], sweep: dict, found: str | None) -> None:
    assert model_inside(names, sweep) == found


def test_merge_with_a_nested_merge_is_not_replaced(tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    ramerge.merge(source, tmp_path / "out")
    ramerge.merge(source, tmp_path / "out/sub")
    with messages.raises(ramerge.PlanError):
        ramerge.merge(source, tmp_path / "out", options=ramerge.Options(overwrite=True))
    assert (tmp_path / "out/sub/ramerge.json").is_file()


def test_outputs_with_folders_of_their_own_are_replaced(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    for _ in range(2):
        ramerge.sweep(
            source, tmp_path / "sweep", vary={"parameters.r": [0.1, 0.2]}, options=ramerge.Options(overwrite=True)
        )
        ramerge.merge(source, tmp_path / "delta", kind="delta", options=ramerge.Options(overwrite=True))
    ramerge.merge(source, tmp_path / "sweep", options=ramerge.Options(overwrite=True))
    ramerge.merge(source, tmp_path / "delta", options=ramerge.Options(overwrite=True))
    for name in ("sweep", "delta"):
        assert not [place for place in (tmp_path / name).iterdir() if place.is_dir()]
        assert (tmp_path / name / "ramerge.json").is_file()
