"""The function that users call: `analyze`. It is not with the others, because a merge needs nothing of this room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramerge.analysis.analyze import EPSILONS, plan_analysis
from ramerge.analysis.analyze import analyze as carry_out
from ramerge.analysis.results import Analysis
from ramerge.engine.executors.threads import ThreadExecutor
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
        strict, on_progress: as for `merge`.

    Returns:
        The same figures for the model, every layer, role and tensor.

    Raises:
        RecipeError, PlanError, WeightsError, CheckpointError: as for `merge`.
    """
    document = open_recipe(recipe, overriding(method, parameters, dtype, rounding), tensors_of_base)
    plan, anatomy = plan_analysis(
        document, epsilons=epsilons, threads=threads, max_memory=max_memory, cache=cache, strict=strict
    )
    return carry_out(plan, anatomy, ThreadExecutor(plan.resources.workers), on_progress or silence)
