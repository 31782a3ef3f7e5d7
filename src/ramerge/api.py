"""The functions that everything else is for: `plan`, `merge`, `sweep` and `analyze`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramerge.analysis.analyze import EPSILONS, plan_analysis
from ramerge.analysis.analyze import analyze as carry_out
from ramerge.analysis.results import Analysis
from ramerge.engine.execute import execute
from ramerge.engine.executors.threads import ThreadExecutor
from ramerge.engine.record import Record
from ramerge.engine.sinks import MergedTensor
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.events import Listener, silence
from ramerge.planning.build import make_plan
from ramerge.planning.model import Plan
from ramerge.recipe.checks import AnyRecipe, with_values


def plan(
    recipe: AnyRecipe,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
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
        threads: worker threads; by default one a processor and two more.
        max_memory: what the process may take, in bytes or as `2GB`.
        overwrite: whether an existing checkpoint at `out` would be replaced.
        cache: whether to use what earlier reads of the same files have counted, and to leave counts to later ones.
        strict: whether what is warned of is a problem.

    Returns:
        The plan. Its `problems` say what would make the merge fail.

    Raises:
        RecipeError: the recipe is wrong; every problem of it.
    """
    return make_plan(
        _changed(recipe, method, parameters, dtype),
        _place(out) if out is not None else None,
        vary=vary,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        cache=cache,
        strict=strict,
    )


def _changed(
    recipe: AnyRecipe, method: str | None, parameters: Mapping[str, Any] | None, dtype: str | None
) -> AnyRecipe:
    """The recipe with what was given besides on top of it, as the command line has it."""
    given = {f"parameters.{name}": value for name, value in (parameters or {}).items()}
    return with_values(recipe, {"method": method, "dtype": dtype, **given})


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
    """Merge a recipe's agents into a checkpoint at `out`, which appears complete or not at all.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file, in ramerge's or mergekit's form.
        out: the output folder; it must not exist unless `overwrite`.
        method: as for `plan`.
        parameters: as for `plan`.
        dtype: as for `plan`.
        threads: worker threads; by default one a processor and two more. Results do not depend on it.
        max_memory: what the process may take, in bytes or as `2GB`; refused if it cannot be kept.
        overwrite: replace an existing checkpoint at `out`, at the end.
        cache: as for `plan`. It changes no byte of the output.
        strict: refuse what is otherwise warned of, before the output appears.
        on_progress: called from this thread with a `Progress` after every block.

    Returns:
        The record, which is also `out/ramerge.json`.

    Raises:
        RecipeError: the recipe is wrong.
        PlanError: the inputs do not fit each other, the output or the machine; every problem, before weights are read.
        WeightsError: NaN, Inf or overflow, or integer tensors that differ; every tensor that holds some. If `strict`,
            also what is warned of.
        CheckpointError: an input cannot be read.
        OutputError: the disk is full or fails.
    """
    changed = _changed(recipe, method, parameters, dtype)
    made = plan(changed, out, threads=threads, max_memory=max_memory, overwrite=overwrite, cache=cache, strict=strict)
    return execute(made, ThreadExecutor(made.resources.workers), on_progress or silence)[0]


def sweep(
    recipe: AnyRecipe,
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
        method: as for `plan`.
        parameters: as for `plan`.
        dtype: as for `plan`.
        vary: keys to values, such as `{"parameters.r": [0, 0.1]}`; the last key varies fastest.
        on_tensor: instead of `out`: takes the merged tensors, one after another, from this thread; for each tensor the
            points in order. Two tensors of all points are in memory at a time.
        threads: as for `merge`.
        max_memory: as for `merge`.
        overwrite: as for `merge`.
        cache: as for `plan`.
        strict: as for `merge`. With `on_tensor`, some warnings come after the tensors.
        on_progress: as for `merge`.

    Returns:
        A record for each point, in order; `record.point` tells which.

    Raises:
        RecipeError: the recipe or what varies is wrong, or neither or both of `out` and `on_tensor` are given.
        PlanError, WeightsError, CheckpointError, OutputError: as for `merge`.
    """
    if (out is None) == (on_tensor is None):
        raise RecipeError("a sweep needs either an output folder or a function that takes the tensors")
    if out is not None and not vary:
        raise RecipeError("nothing varies: give keys and values, such as parameters.r=0,0.1,0.2")
    made = make_plan(
        _changed(recipe, method, parameters, dtype),
        _place(out) if out is not None else None,
        vary=vary,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        cache=cache,
        strict=strict,
        in_memory=on_tensor is not None,
    )
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

    One streaming read of the inputs; nothing is written. The recipe's method does not matter; its epsilon and the rules
    that keep or take tensors do.

    Args:
        recipe: as for `merge`.
        method: as for `plan`.
        parameters: as for `plan`.
        dtype: as for `plan`.
        epsilons: further thresholds of "moved" that are compared.
        threads: as for `merge`.
        max_memory: as for `merge`.
        cache: whether to leave counts to later merges of the same files, which then read them once less.
        strict: as for `merge`.
        on_progress: as for `merge`.

    Returns:
        The same figures for the model, every layer, role and tensor.

    Raises:
        RecipeError, PlanError, WeightsError, CheckpointError: as for `merge`.
    """
    changed = _changed(recipe, method, parameters, dtype)
    plan, anatomy = plan_analysis(
        changed, epsilons=epsilons, threads=threads, max_memory=max_memory, cache=cache, strict=strict
    )
    return carry_out(plan, anatomy, ThreadExecutor(plan.resources.workers), on_progress or silence)
