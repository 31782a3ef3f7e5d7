"""The tab Look while an analysis counts, from the events that a process prints."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.analysis import cells
from ramerge.analysis.cells import CellFigures
from ramerge.analysis.report import charts
from ramerge.ui import look
from tests.checkpoints import write_simple

pytestmark = pytest.mark.full  # Gradio

HOSTILE = "<img src=x>"


@pytest.mark.parametrize("epsilon", [1e-5, {"relative": 0.5}])
def test_figures_are_drawn_while_they_are_counted(
    epsilon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_SECONDS_BETWEEN", -1.0)
    write_simple(tmp_path, {"code": 0.1, "tool": 0.2})
    agents = {"code": str(tmp_path / "code"), HOSTILE: str(tmp_path / "tool")}
    heard: list[Any] = []
    recipe = {"base": str(tmp_path / "base"), "agents": agents, "method": "ram", "parameters": {"epsilon": epsilon}}
    analysis = ramerge.analyze(recipe, on_progress=heard.append).to_dict()
    told = [json.loads(json.dumps(asdict(event))) for event in heard if isinstance(event, CellFigures)]
    assert told
    for event in told:
        for measure in charts.MEASURES:
            found, figures, heat = look._render_figures(look._partial_analysis(event), [], HOSTILE, measure)
            assert all(text in found for text in ("code", "cosine", "&lt;img"))
            assert figures.count("<svg") == 2 and heat.count("<svg") == 1
            assert "<img" not in found + figures + heat
    assert told[-1]["part"]["agents"] == analysis["model"]["agents"]
