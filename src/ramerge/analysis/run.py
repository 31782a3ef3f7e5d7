"""The function that users call: `analyze`. It is not with the others, because a merge needs nothing of this room."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramerge.analysis.analyze import EPSILONS, plan_analysis
from ramerge.analysis.analyze import analyze as carry_out
from ramerge.analysis.results import Analysis
from ramerge.checkpoint.outputs import Out, out_of, path_of
from ramerge.checkpoint.storage.destination import Destination
from ramerge.checkpoint.storage.table import is_destination
from ramerge.engine.chosen import chosen_executor
from ramerge.engine.ranks import TIMEOUT, Executors, chosen_rank
from ramerge.foundation.errors import PlanError, RecipeError
from ramerge.foundation.events import Listener, silence
from ramerge.planning.inputs import tensors_of_base
from ramerge.recipe.read import AnyRecipe, open_recipe, overriding


def analyze(
    recipe: AnyRecipe,
    *,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    rounding: str | None = None,
    epsilons: Sequence[float] = EPSILONS,
    threads: int | None = None,
    max_memory: int | str | None = None,
    cache: bool = True,
    strict: bool = False,
    executor: Executors = "threads",
    rank_timeout: float = TIMEOUT,
    ray_init: Mapping[str, Any] | None = None,
    meet: str | Path | None = None,
    on_progress: Listener | None = None,
) -> Analysis:
    """What RL changed in the agents of a recipe: sparsity, overlap, angles, and how much of it merges would keep.

    The inputs are read once, and once more for each counting pass of the recipe's method. Nothing is written. What the
    recipe's method keeps of the agents is measured if it works element by element on task vectors. In place of any
    other method, RAM with the same epsilon is measured.

    Args:
        recipe: as for `merge`.
        method, parameters, dtype, rounding: as for `plan`.
        epsilons: further thresholds of "moved" to compare.
        threads, max_memory: as for `merge`.
        cache: whether to store counts for later merges of the same files, which then need one read less.
        strict, executor, rank_timeout, ray_init, on_progress: as for `merge`.
        meet: a folder that all ranks share, here or in a bucket; needed with `executor="ranks"`. They use a hidden
            folder in it.

    Returns:
        The same figures for the model, every layer, role and tensor.

    Raises:
        RecipeError, PlanError, WeightsError, CheckpointError, RankError, RayError: as for `merge`.
        OutputError: the folder `meet` cannot be used.
    """
    rank = chosen_rank(executor, rank_timeout, ray_init)
    if (rank is None) != (meet is None):
        needs = "executor ranks needs a folder in which ranks meet: --meet FOLDER, here or in a bucket"
        raise RecipeError(needs if meet is None else "meet: is only of use with executor ranks")
    document = open_recipe(recipe, overriding(method, parameters, dtype, rounding), tensors_of_base)
    plan, anatomy = plan_analysis(
        document,
        epsilons=epsilons,
        threads=threads,
        max_memory=max_memory,
        cache=cache and rank is None,
        strict=strict,
    )
    listen, folder = on_progress or silence, _meeting_place(meet) if meet is not None else None
    if plan.problems:
        raise PlanError(plan.problems)
    resources = plan.resources
    with chosen_executor(executor, resources.workers, resources.memory_of, ray_init) as carrier:
        return carry_out(plan, anatomy, carrier, listen, rank=rank, meet=folder)


def _meeting_place(meet: str | Path) -> Out:
    if not is_destination(os.fspath(meet)):
        return path_of(meet, "a folder in which ranks meet")
    place = out_of(meet)
    if isinstance(place, Destination) and not place.carries:
        raise RecipeError(f"meet: {meet}: ranks cannot meet there; give a folder that all share, or one of a bucket")
    return place
