"""The function that users call: `analyze`. It is not with the others, because a merge needs nothing of this room."""

from __future__ import annotations

from collections.abc import Sequence

from ramerge.analysis.analyze import EPSILONS, plan_analysis
from ramerge.analysis.analyze import analyze as carry_out
from ramerge.analysis.results import Analysis
from ramerge.engine.chosen import chosen_executor
from ramerge.foundation.errors import PlanError
from ramerge.foundation.events import Listener, silence
from ramerge.options import Options
from ramerge.planning.inputs import tensors_of_base
from ramerge.recipe.read import AnyRecipe, open_recipe

_DEFAULTS = Options()


def analyze(
    recipe: AnyRecipe,
    *,
    epsilons: Sequence[float] = EPSILONS,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> Analysis:
    """What RL changed in the agents of a recipe: sparsity, overlap, angles, and how much of it merges would keep.

    The inputs are read once, and once more for each counting pass of the recipe's method. Nothing is written. What the
    recipe's method keeps of the agents is measured if it works element by element on task vectors. In place of any
    other method, RAM with the same epsilon is measured.

    Args:
        recipe: as for `merge`.
        epsilons: further thresholds of "moved" to compare.
        options, on_progress: as for `merge`. With `cache`, later merges of the same files need one read less.

    Returns:
        The same figures for the model, every layer, role and tensor.

    Raises:
        RecipeError, PlanError, WeightsError, CheckpointError, RayError: as for `merge`.

    Example:
        >>> analysis = ramerge.analyze({"base": "base", "agents": {"code": "coder", "tool": "tool"}})
        >>> [agent.name for agent in analysis.model.agents]
        ['code', 'tool']
    """
    document = open_recipe(recipe, tensors_of_base)
    if options.allow_outside_links:
        document = document.with_values({"allow.outside_links": True}, "--")
    plan, anatomy = plan_analysis(
        document,
        epsilons=epsilons,
        threads=options.threads,
        max_memory=options.max_memory,
        cache=options.cache,
        strict=options.strict,
    )
    if plan.problems:
        raise PlanError(plan.problems)
    resources = plan.resources
    with chosen_executor(options.ray, resources.workers, resources.memory_of) as carrier:
        return carry_out(plan, anatomy, carrier, on_progress or silence)
