"""The functions that everything else is for: `plan`, `merge`, `sweep` and `analyze`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramerge.analysis.analyze import EPSILONS, plan_analysis
from ramerge.analysis.analyze import analyze as carry_out
from ramerge.analysis.results import Analysis
from ramerge.checkpoint.outputs import path_of
from ramerge.engine.execute import execute
from ramerge.engine.executors.threads import ThreadExecutor
from ramerge.engine.record import Record
from ramerge.engine.sinks import MergedTensor
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.events import Listener, silence
from ramerge.planning.build import make_plan
from ramerge.planning.model import Plan
from ramerge.recipe.points import make_points
from ramerge.recipe.read import AnyRecipe, open_recipe

# What a plan is made with; those that are not here are None unless they are given.
_DEFAULTS = {"overwrite": False, "cache": True, "strict": False}


def plan(
    recipe: AnyRecipe,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    in_memory: bool = False,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    cache: bool = True,
    strict: bool = False,
) -> Plan:
    """What a merge, or with `vary` a sweep, would read, write and take, from headers alone.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file, in ramerge's or mergekit's form.
        out: the output folder, if the plan is to check it and the free disk.
        method: instead of the recipe's.
        parameters: on top of the recipe's, such as `{"r": 0.05}`.
        dtype: instead of the recipe's, such as `float32`.
        vary: as for `sweep`.
        in_memory: whether merged tensors will be handed to a function, as by `merge(..., on_tensor=...)`.
        threads: worker threads; by default one a processor and two more.
        max_memory: what the process may take, in bytes or as `2GB`.
        overwrite: whether an existing checkpoint at `out` would be replaced.
        cache: whether to use what earlier reads of the same files have counted, and to leave counts to later ones.
        strict: whether what is warned of is a problem.

    Returns:
        The plan. Its `problems` say what would make the merge fail. `merge` and `sweep` carry it out.

    Raises:
        RecipeError: the recipe is wrong; every problem of it.
    """
    return make_plan(
        make_points(open_recipe(recipe, _set(method, parameters, dtype)), vary),
        path_of(out) if out is not None else None,
        in_memory=in_memory,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        cache=cache,
        strict=strict,
    )


def _set(method: str | None, parameters: Mapping[str, Any] | None, dtype: str | None) -> dict[str, Any]:
    """What is set on top of a recipe, by its key, as flags of the command line do."""
    return {
        "method": method,
        "dtype": dtype,
        **{f"parameters.{name}": value for name, value in (parameters or {}).items()},
    }


def merge(
    recipe: AnyRecipe | Plan,
    out: str | Path | None = None,
    *,
    on_tensor: Callable[[MergedTensor], None] | None = None,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    cache: bool = True,
    strict: bool = False,
    on_progress: Listener | None = None,
) -> Record:
    """Merge a recipe's agents into a checkpoint at `out`, which appears complete or not at all; or into memory.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file, in ramerge's or mergekit's form; or a plan, which is
            carried out as it was made: nothing but `on_tensor` and `on_progress` can be given then.
        out: the output folder; it must not exist unless `overwrite`.
        on_tensor: instead of `out`: takes the merged tensors, one after another, from this thread. Two tensors are in
            memory at a time, however slow the function is.
        method, parameters, dtype: as for `plan`.
        threads: worker threads; by default one a processor and two more. Results do not depend on it.
        max_memory: what the process may take, in bytes or as `2GB`; refused if it cannot be kept.
        overwrite: replace an existing checkpoint at `out`, at the end.
        cache: as for `plan`. It changes no byte of the output.
        strict: refuse what is otherwise warned of, before the output appears. With `on_tensor`, some refusals come
            after the tensors.
        on_progress: called from this thread with a `Progress` after every block.

    Returns:
        The record, which is also `out/ramerge.json`.

    Raises:
        RecipeError: the recipe is wrong, or neither or both of `out` and `on_tensor` are given.
        PlanError: the inputs do not fit each other, the output or the machine; every problem, before weights are read.
        WeightsError: NaN, Inf or overflow, or integer tensors that differ; every tensor that holds some. If `strict`,
            also what is warned of.
        CheckpointError: an input cannot be read.
        OutputError: the disk is full or fails.
    """
    made = _planned(
        recipe,
        out,
        on_tensor,
        method=method,
        parameters=parameters,
        dtype=dtype,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        cache=cache,
        strict=strict,
    )
    if made.is_sweep:
        raise RecipeError("the plan is of a sweep; `sweep` carries it out")
    return _carried_out(made, on_tensor, on_progress)[0]


def sweep(
    recipe: AnyRecipe | Plan,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    on_tensor: Callable[[MergedTensor], None] | None = None,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    cache: bool = True,
    strict: bool = False,
    on_progress: Listener | None = None,
) -> tuple[Record, ...]:
    """Merge with every combination of parameters, reading all inputs once a pass however many there are.

    Args:
        recipe: as for `merge`.
        out: a folder that gets one checkpoint for each point, named by what varies, and `sweep.json`.
        method, parameters, dtype: as for `plan`.
        vary: keys to values, such as `{"parameters.r": [0, 0.1]}`; the last key varies fastest.
        on_tensor: as for `merge`; it gets each tensor of all points in order, before the next tensor.
        threads, max_memory, overwrite, cache, strict, on_progress: as for `merge`.

    Returns:
        A record for each point, in order; `record.point` tells which.

    Raises:
        RecipeError: the recipe or what varies is wrong, or neither or both of `out` and `on_tensor` are given.
        PlanError, WeightsError, CheckpointError, OutputError: as for `merge`.
    """
    made = _planned(
        recipe,
        out,
        on_tensor,
        method=method,
        parameters=parameters,
        dtype=dtype,
        vary=vary,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        cache=cache,
        strict=strict,
    )
    if not made.is_sweep:
        if on_tensor is None:
            raise RecipeError("nothing varies: give keys and values, such as parameters.r=0,0.1,0.2")
        text = "a sweep in which nothing varies will be refused: use merge(recipe, on_tensor=...)"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    return _carried_out(made, on_tensor, on_progress)


def _planned(
    recipe: AnyRecipe | Plan,
    out: str | Path | None,
    on_tensor: Callable[[MergedTensor], None] | None,
    **options: Any,
) -> Plan:
    """The plan to carry out: a recipe's, or the one that was given."""
    if not isinstance(recipe, Plan):
        if (out is None) == (on_tensor is None):
            raise RecipeError("either an output folder is needed, or a function that takes the tensors: on_tensor=...")
        return plan(recipe, out, in_memory=on_tensor is not None, **options)
    given = [name for name, value in {"out": out, **options}.items() if value != _DEFAULTS.get(name)]
    if given:
        raise RecipeError(f"a plan is carried out as it was made: give {', '.join(given)} to `plan`")
    if recipe.in_memory != (on_tensor is not None):
        raise RecipeError("a plan that is made with in_memory=True is carried out with on_tensor=..., and no other is")
    return recipe


def _carried_out(
    made: Plan, on_tensor: Callable[[MergedTensor], None] | None, on_progress: Listener | None
) -> tuple[Record, ...]:
    return execute(made, ThreadExecutor(made.resources.workers), on_progress or silence, on_tensor)


def analyze(
    recipe: AnyRecipe,
    *,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    epsilons: Sequence[float] = EPSILONS,
    threads: int | None = None,
    max_memory: int | str | None = None,
    cache: bool = True,
    strict: bool = False,
    on_progress: Listener | None = None,
) -> Analysis:
    """What RL changed in the agents of a recipe: sparsity, overlap, angles, and what merges would leave of it.

    The inputs are read once, or as often as the recipe's method must count first; nothing is written. What the recipe's
    own method leaves of the agents is measured if it works element by element on task vectors; other methods are read
    as RAM with the same epsilon.

    Args:
        recipe: as for `merge`.
        method, parameters, dtype: as for `plan`.
        epsilons: further thresholds of "moved" that are compared.
        threads, max_memory: as for `merge`.
        cache: whether to leave counts to later merges of the same files, which then read them once less.
        strict, on_progress: as for `merge`.

    Returns:
        The same figures for the model, every layer, role and tensor.

    Raises:
        RecipeError, PlanError, WeightsError, CheckpointError: as for `merge`.
    """
    document = open_recipe(recipe, _set(method, parameters, dtype))
    plan, anatomy = plan_analysis(
        document, epsilons=epsilons, threads=threads, max_memory=max_memory, cache=cache, strict=strict
    )
    return carry_out(plan, anatomy, ThreadExecutor(plan.resources.workers), on_progress or silence)
