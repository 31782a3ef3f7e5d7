"""The two functions that everything else is for: `plan` and `merge`."""

from __future__ import annotations

import os
from pathlib import Path

from ramerge.errors import RecipeError
from ramerge.executors.threads import ThreadExecutor
from ramerge.planning.build import make_plan
from ramerge.planning.model import Plan
from ramerge.planning.recipes import AnyRecipe
from ramerge.record import Record
from ramerge.run import Listener, execute


def plan(
    recipe: AnyRecipe,
    out: str | Path | None = None,
    *,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
) -> Plan:
    """What a merge would read, write and take, from headers alone.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file.
        out: the output folder, if the plan is to check it and the free disk.
        threads: worker threads; by default one a processor and two more.
        max_memory: what the process may take, in bytes or as `2GB`.
        overwrite: whether an existing checkpoint at `out` would be replaced.

    Returns:
        The plan. Its `problems` say what would make the merge fail.

    Raises:
        RecipeError: the recipe is wrong; every problem of it.
    """
    return make_plan(
        recipe, _place(out) if out is not None else None, threads=threads, max_memory=max_memory, overwrite=overwrite
    )


def _place(out: str | Path) -> Path:
    """The output folder; of a link, what it leads to, because that is what is replaced."""
    try:
        place = Path(out).expanduser()
        str(place).encode()
        return place.resolve() if place.is_symlink() else place
    except (ValueError, RuntimeError, OSError) as error:
        raise RecipeError(f"{os.fspath(out)!r}: cannot be an output folder: {error}") from error


def merge(
    recipe: AnyRecipe,
    out: str | Path,
    *,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    on_progress: Listener | None = None,
) -> Record:
    """Merge a recipe's agents into a checkpoint at `out`, which appears complete or not at all.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file.
        out: the output folder; it must not exist unless `overwrite`.
        threads: worker threads; by default one a processor and two more. Results do not depend on it.
        max_memory: what the process may take, in bytes or as `2GB`; refused if it cannot be kept.
        overwrite: replace an existing checkpoint at `out`, at the end.
        on_progress: called from this thread with a `Progress` after every block.

    Returns:
        The record, which is also `out/ramerge.json`.

    Raises:
        RecipeError: the recipe is wrong.
        PlanError: the inputs do not fit each other, the output or the machine; every problem, before weights are read.
        WeightsError: NaN, Inf or overflow, or integer tensors that differ; every tensor that holds some.
        CheckpointError: an input cannot be read.
        OutputError: the disk is full or fails.
    """
    made = plan(recipe, out, threads=threads, max_memory=max_memory, overwrite=overwrite)
    return execute(made, ThreadExecutor(made.resources.workers), on_progress or (lambda _: None))
