"""Opens a finished merge as its recipe and its record, for `ramerge report` and the tab Share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ramerge import RecipeError, Record
from ramerge.analysis.results import Analysis
from ramerge.core.storage.own_files import COMPANIONS, SEARCH_DESCRIPTION, is_unfinished_search
from ramerge.sdk.files import no_such_folder
from ramerge.sdk.records import read_record, refuse_sweep


def open_merge(out: Path) -> tuple[Path, Record]:
    """Return the path of a finished merge's resolved recipe, and its record. The merge may be a delta."""
    if not out.is_dir():
        raise RecipeError(no_such_folder(out))
    recipe, record, recipe_of_adapter = out / "ramerge.yaml", out / "ramerge.json", out / COMPANIONS / "ramerge.yaml"
    if not recipe.is_file() and recipe_of_adapter.is_file():
        recipe = recipe_of_adapter
    refuse_sweep(out)
    if is_unfinished_search(out):
        raise RecipeError(f"{out}: is a search or greedy soup that has not ended; the same command resumes it")
    if (out / SEARCH_DESCRIPTION).is_file():
        page = f", and {out / 'search.html'} shows all that were tried" if (out / "search.html").is_file() else ""
        raise RecipeError(f"{out}: is a search or greedy soup; name its best merge, {out / 'best'}{page}")
    missing = [path.name for path in (recipe, record) if not path.is_file()]
    if missing:
        raise RecipeError(
            f"{out}: is not a finished merge: {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing"
        )
    return recipe, read_record(record)


def add_difference_notes(analysis: Analysis, record: Record) -> Analysis:
    """Add a note to the analysis of a finished merge for every agent whose files differ from the record."""
    active_then = {agent.name: agent.values.get("active") for agent in record.agents.values()}
    changes = [
        f"{agent.name} is not what was merged: it moved {agent.active:,} elements, then {active_then[agent.name]:,}"
        for agent in analysis.model.agents
        if isinstance(active_then.get(agent.name), int) and active_then[agent.name] != agent.active
    ]
    return replace(analysis, notes=(*analysis.notes, *changes))
