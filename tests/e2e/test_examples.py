"""The examples do what they say, on the agents of `ramerge demo`."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ramerge
from tests.checkpoints import read_checkpoint

pytestmark = pytest.mark.full  # torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def patch_model() -> ModuleType:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("patch_model", EXAMPLES / "patch_model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_live_model_gets_weights_of_each_merge(
    patch_model: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from ramerge.demo import scoring

    accuracy, score = scoring.accuracy, patch_model.score
    scored: list[dict[str, Any]] = []

    def keeping(model: Any, tokenizer: Any) -> float:
        scored.append({name: weight.clone() for name, weight in model.state_dict().items()})
        return score(model, tokenizer)

    monkeypatch.setattr(scoring, "accuracy", lambda *of, **more: accuracy(*of, **{**more, "examples": 16}))
    monkeypatch.setattr(patch_model, "score", keeping)
    recipe = EXAMPLES / "demo.yaml"
    words = [str(recipe), "--method", "task_arithmetic", "--vary", "parameters.scale", "0", "1"]
    monkeypatch.setattr(sys, "argv", ["patch_model.py", *words])
    patch_model.main()

    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[0] for line in said] == [f"task_arithmetic, parameters.scale = {x}" for x in "01"]
    shares = [float(line.rpartition(": ")[2].removesuffix("%")) for line in said]
    assert shares[0] + 15 < shares[1]
    for scale, weights in zip((0.0, 1.0), scored, strict=True):
        ramerge.merge(
            ramerge.read_recipe(recipe).with_(method="task_arithmetic", parameters={"scale": scale}),
            tmp_path / "out",
            options=ramerge.Options(overwrite=True),
        )
        for name, tensor in read_checkpoint(tmp_path / "out").items():
            expected = torch.from_numpy(tensor.bits.view("int16").copy()).view(torch.bfloat16).float()
            assert torch.equal(weights[name], expected), name
