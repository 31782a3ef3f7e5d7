"""A finished merge as the recipe and the record that it was left with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    if not isinstance(values, dict):
        raise RecipeError(f"{record}: is no record of a merge")
    return recipe, values
