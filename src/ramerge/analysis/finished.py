"""A finished merge as the recipe and the record that it was left with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramerge.analysis.results import Analysis
from ramerge.errors import RecipeError


def open_finished(out: Path) -> tuple[Path, dict[str, Any]]:
    """The path of the resolved recipe, and the record.

    Raises:
        RecipeError: no merge of ramerge's is there.
    """
    recipe, record = out / "ramerge.yaml", out / "ramerge.json"
    if (out / "sweep.json").is_file():
        raise RecipeError(f"{out}: is a sweep; name one of the checkpoints in it")
    missing = [path.name for path in (recipe, record) if not path.is_file()]
    if missing:
        raise RecipeError(f"{out}: is no finished merge, there is no {' and no '.join(missing)}")
    try:
        values = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{record}: cannot be read: {error}") from error
    if not isinstance(values, dict) or not {"ramerge_version", "method", "parameters"} <= values.keys():
        raise RecipeError(f"{record}: is no record of a merge")
    return recipe, values


def with_differences(analysis: Analysis, record: Mapping[str, Any]) -> Analysis:
    """The analysis, with a note for every agent that is not what was merged, as far as the record can tell."""
    statistics = record.get("statistics")
    agents = statistics.get("agents", ()) if isinstance(statistics, Mapping) else ()
    merged = {one.get("name"): one.get("active") for one in agents if isinstance(one, Mapping)}
    changed = [
        f"{agent.name} is not what was merged: it moved {agent.active:,} elements, then {merged[agent.name]:,}"
        for agent in analysis.model.agents
        if isinstance(merged.get(agent.name), int) and merged[agent.name] != agent.active
    ]
    return replace(analysis, notes=(*analysis.notes, *changed))
