"""The functions that users call: `plan`, `merge`, `sweep`, `convert` and `clean`; `analyze` is in `analysis.run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ramerge.checkpoint import relay
from ramerge.checkpoint import stage as beside
from ramerge.checkpoint.outputs import out_of
from ramerge.checkpoint.storage.destination import Destination
from ramerge.engine.chosen import chosen_executor
from ramerge.engine.execute import execute
from ramerge.engine.planned import goes_on, stopped_at
from ramerge.engine.ranks import TIMEOUT, Executors, Rank, check_executor, chosen_rank, rank_of
from ramerge.engine.record import Record
from ramerge.engine.sinks import MergedTensor
from ramerge.foundation.errors import PlanError, RecipeError
from ramerge.foundation.events import Listener, silence
from ramerge.planning.build import make_plan
from ramerge.planning.inputs import tensors_of_base
from ramerge.planning.model import Plan
from ramerge.recipe.document import document_of
from ramerge.recipe.points import make_points
from ramerge.recipe.read import AnyRecipe, open_recipe, overriding

# Defaults of the options of a plan. The default of every other option is None.
_DEFAULTS = {"as_delta": False, "overwrite": False, "public": False, "cache": True, "strict": False}


def plan(
    recipe: AnyRecipe,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    rounding: str | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    in_memory: bool = False,
    as_delta: bool = False,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    stage: str | Path | None = None,
    public: bool = False,
    cache: bool = True,
    strict: bool = False,
    executor: Executors = "threads",
) -> Plan:
    """What a merge (with `vary`: a sweep) would read, write and need. Reads headers only.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file, in ramerge's or mergekit's form.
        out: the output folder, also in a bucket (`s3://bucket/model`, `gs://`, `az://`), or a repository of the hub
            (`hub:owner/name`, `hub:owner/name@branch`). If it is given, the plan checks it and the free space of its
            disk.
        method: replaces the recipe's method.
        parameters: override the recipe's parameters, such as `{"r": 0.05}`.
        dtype: replaces the recipe's dtype, such as `float32`.
        rounding: replaces the recipe's rounding: `nearest` or `stochastic`.
        vary: as for `sweep`.
        in_memory: whether merged tensors will be passed to a function, as in `merge(..., on_tensor=...)`.
        as_delta: whether the output will be a delta on the base, from which `apply` makes the checkpoint.
        threads: worker threads; by default one for each processor, and two more.
        max_memory: the most memory that the process may use, in bytes or as `2GB`.
        overwrite: whether an existing checkpoint at `out` would be replaced.
        stage: of outputs elsewhere, a folder on this machine in which files lie until they are sent; by default in the
            user's cache folder. With executor `ray`, and with `ranks` to the hub or for a delta, all processes must
            see it.
        public: whether everybody may see a repository that is written on the hub.
        cache: whether to use counts of earlier reads of the same files, and to store counts for later reads.
        strict: whether warnings count as problems.
        executor: what the plan is for, as in `merge`: with `ranks`, only rank 0 asks whether OUT in a bucket is free.

    Returns:
        The plan. Its `problems` say what would make the merge fail. `merge` and `sweep` carry it out.

    Raises:
        RecipeError: the recipe is wrong; all its problems are listed.
    """
    check_executor(executor)
    place = out_of(out, stage, public=public) if out is not None else None
    if isinstance(place, Destination) and executor == "ranks":
        place.joins = rank_of(os.environ).number > 0
    planned = partial(
        make_plan,
        make_points(open_recipe(recipe, overriding(method, parameters, dtype, rounding), tensors_of_base), vary),
        place,
        in_memory=in_memory,
        as_delta=as_delta,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        strict=strict,
    )
    made = planned(cache=cache)
    stopped = stopped_at(place) if made.remembered and place is not None else {}
    if not stopped:
        return made
    # a run that was stopped may have begun before these counts were known: it goes on with counts of its own
    before = planned(cache=False)
    return before if goes_on(before, stopped) else made


def merge(
    recipe: AnyRecipe | Plan,
    out: str | Path | None = None,
    *,
    on_tensor: Callable[[MergedTensor], None] | None = None,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    rounding: str | None = None,
    as_delta: bool = False,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    stage: str | Path | None = None,
    public: bool = False,
    cache: bool = True,
    strict: bool = False,
    fresh: bool = False,
    executor: Executors = "threads",
    rank_timeout: float = TIMEOUT,
    ray_init: Mapping[str, Any] | None = None,
    on_progress: Listener | None = None,
) -> Record:
    """Merge a recipe's agents into a checkpoint at `out`, which appears complete or not at all, or into memory.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file, in ramerge's or mergekit's form; or a plan. A plan
            already holds its options, so only how it is carried out can be given with it.
        out: the output folder, or a place elsewhere as for `plan`; it must not exist unless `overwrite` is set.
        on_tensor: a function that gets the merged tensors, one after another, from this thread; given instead of
            `out`. At most two tensors are in memory at a time, even if the function is slow.
        method, parameters, dtype, rounding, as_delta: as for `plan`.
        threads: worker threads; by default one for each processor, and two more. Results do not depend on it.
        max_memory: the most memory that the process may use, in bytes or as `2GB`; an error if it is not enough.
        overwrite: replace an existing checkpoint at `out`, at the end; in a bucket, before the first file is sent.
        stage, public: as for `plan`.
        cache: as for `plan`. It changes no byte of the output.
        strict: make every warning an error, before the output appears. With `on_tensor`, some of these errors come
            after the tensors.
        fresh: do all work again. By default the work of a run that was stopped is continued if nothing it depends on
            has changed.
        executor: `threads`: this process does all work; or `ranks`: it shares the work with the other processes that
            torchrun, srun or mpirun has started, over the file system. All are called alike, and none of them uses
            the cache. With `ray`, nodes of a Ray cluster do the work. They must see inputs and output under the same
            paths; of an output elsewhere, its `stage`. `threads` and `max_memory` are then limits of each task.
        rank_timeout: seconds without a sign of life after which another rank is lost, which is an error of all.
        ray_init: keywords of `ray.init`, such as `{"address": "auto", "runtime_env": {...}}`; not used if the program
            is already connected to a cluster. Without an address, one is found as `ray.init` does, or started.
        on_progress: called from this thread with a `Progress` after every block.

    Returns:
        The record, which is also `out/ramerge.json`.

    Raises:
        RecipeError: the recipe is wrong, or not exactly one of `out` and `on_tensor` is given.
        PlanError: the inputs do not fit each other, the output or the machine. All problems are listed, before weights
            are read.
        WeightsError: NaN, Inf or overflow, or integer tensors that differ; all such tensors are listed. If `strict`,
            also warnings.
        CheckpointError: an input cannot be read.
        OutputError: the disk is full or fails.
        RankError: another rank has failed or is lost.
        RayError: a Ray cluster cannot be reached, or cannot do the work.
    """
    rank = chosen_rank(executor, rank_timeout, ray_init)
    made = _planned(
        recipe,
        out,
        on_tensor,
        rank,
        method=method,
        parameters=parameters,
        dtype=dtype,
        rounding=rounding,
        as_delta=as_delta,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        stage=stage,
        public=public,
        cache=cache,
        strict=strict,
    )
    if made.is_sweep:
        raise RecipeError("this plan is for a sweep; pass it to `sweep`")
    return _carried_out(made, on_tensor, on_progress, rank, fresh, executor, ray_init)[0]


def sweep(
    recipe: AnyRecipe | Plan,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    rounding: str | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    on_tensor: Callable[[MergedTensor], None] | None = None,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    stage: str | Path | None = None,
    public: bool = False,
    cache: bool = True,
    strict: bool = False,
    fresh: bool = False,
    executor: Executors = "threads",
    rank_timeout: float = TIMEOUT,
    ray_init: Mapping[str, Any] | None = None,
    on_progress: Listener | None = None,
) -> tuple[Record, ...]:
    """Merge with every combination of parameters. Each pass reads the inputs once for all combinations.

    Args:
        recipe: as for `merge`.
        out: a folder that gets one checkpoint for each point, named by its varied parameters, and `sweep.json`; or a
            place elsewhere as for `plan`.
        method, parameters, dtype, rounding: as for `plan`.
        vary: keys to values, such as `{"parameters.r": [0, 0.1]}`; the last key varies fastest.
        on_tensor: as for `merge`. It gets one tensor for all points, in their order, before the next tensor.
        threads, max_memory, overwrite, stage, public, cache, strict, fresh: as for `merge`.
        executor, rank_timeout, ray_init, on_progress: as for `merge`.

    Returns:
        A record for each point, in order; `record.point` holds its varied parameters.

    Raises:
        RecipeError: the recipe or `vary` is wrong, or not exactly one of `out` and `on_tensor` is given.
        PlanError, WeightsError, CheckpointError, OutputError, RankError, RayError: as for `merge`.
    """
    rank = chosen_rank(executor, rank_timeout, ray_init)
    made = _planned(
        recipe,
        out,
        on_tensor,
        rank,
        method=method,
        parameters=parameters,
        dtype=dtype,
        rounding=rounding,
        vary=vary,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        stage=stage,
        public=public,
        cache=cache,
        strict=strict,
    )
    if not made.is_sweep:
        raise RecipeError("nothing varies: give keys and values, such as parameters.r=0,0.1,0.2")
    return _carried_out(made, on_tensor, on_progress, rank, fresh, executor, ray_init)


def convert(
    model: str | Path,
    out: str | Path,
    *,
    base: str | Path | None = None,
    dtype: str | None = None,
    rounding: str | None = None,
    shard_size: int | str | None = None,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    stage: str | Path | None = None,
    public: bool = False,
    strict: bool = False,
    fresh: bool = False,
    executor: Executors = "threads",
    rank_timeout: float = TIMEOUT,
    ray_init: Mapping[str, Any] | None = None,
    on_progress: Listener | None = None,
) -> Record:
    """Write one model of any format as plain safetensors, block by block.

    Args:
        model: a folder or hub id: FSDP shards, torch.distributed checkpoints, an adapter, quantised weights and so on.
        out: the output folder, or a place elsewhere as for `plan`; it must not exist unless `overwrite` is set.
        base: the model that an adapter changes. For other models it gives names, dtypes and layout of the output.
        dtype: dtype of the output, such as `bfloat16`; by default the dtypes that are stored.
        rounding: how numbers are rounded to it: `nearest`, the default, or `stochastic`.
        shard_size: bytes of an output file, or a size such as `5GB`.
        threads, max_memory, overwrite, stage, public, strict, fresh, executor, rank_timeout, ray_init, on_progress: as
            for `merge`.

    Returns:
        The record, which is also `out/ramerge.json`.

    Raises:
        RecipeError, PlanError, WeightsError, CheckpointError, OutputError, RankError, RayError: as for `merge`.
    """
    asked = {
        "base": str(base) if base is not None else None,
        "dtype": dtype,
        "rounding": rounding,
        "shard_size": shard_size,
    }
    return merge(
        document_of(str(model), "model").with_values(asked),
        out,
        threads=threads,
        max_memory=max_memory,
        overwrite=overwrite,
        stage=stage,
        public=public,
        strict=strict,
        fresh=fresh,
        executor=executor,
        rank_timeout=rank_timeout,
        ray_init=ray_init,
        on_progress=on_progress,
    )


def clean(out: str | Path, *, stage: str | Path | None = None) -> list[str]:
    """Remove what stopped runs have left beside an output, and put back an old output that they had moved.

    Args:
        out: the output folder of those runs. It is left as it is. Elsewhere, a model that is not complete is removed.
        stage: as for `plan`.

    Returns:
        What was done, in words; empty if nothing was there.

    Raises:
        OutputError: a process is writing `out`, or what is there cannot be removed.
    """
    folder = out_of(out, stage)
    if not isinstance(folder, Path):
        return relay.discard(folder)
    if not folder.name or not os.fspath(out):
        raise RecipeError(
            f"{os.fspath(out)!r}: cannot be an output folder; name the folder that the stopped runs wrote"
        )
    return beside.discard(folder)


def _planned(
    recipe: AnyRecipe | Plan,
    out: str | Path | None,
    on_tensor: Callable[[MergedTensor], None] | None,
    rank: Rank | None,
    **options: Any,
) -> Plan:
    """The plan to carry out: the given plan, or a new one for the given recipe."""
    if not isinstance(recipe, Plan):
        if (out is None) == (on_tensor is None):
            raise RecipeError("give either an output folder, or a function that takes the tensors: on_tensor=...")
        options["cache"] &= rank is None  # each machine may remember something else
        executor: Executors = "threads" if rank is None else "ranks"
        return plan(recipe, out, in_memory=on_tensor is not None, executor=executor, **options)
    given = [name for name, value in {"out": out, **options}.items() if value != _DEFAULTS.get(name)]
    if given:
        raise RecipeError(f"a plan already holds these options: pass {', '.join(given)} to `plan` instead")
    if recipe.out is None and not recipe.in_memory:
        raise RecipeError("the plan has no output folder; make it with plan(recipe, OUT), or with in_memory=True")
    if recipe.in_memory != (on_tensor is not None):
        raise RecipeError("on_tensor=... is required for a plan made with in_memory=True, and refused for other plans")
    return recipe


def _carried_out(
    made: Plan,
    on_tensor: Callable[[MergedTensor], None] | None,
    on_progress: Listener | None,
    rank: Rank | None,
    fresh: bool,
    kind: str,
    ray_init: Mapping[str, Any] | None,
) -> tuple[Record, ...]:
    if kind != "threads":
        if on_tensor is not None:
            raise RecipeError(f"executor {kind}: on_tensor cannot be called by several processes; use threads")
        made = _with_room(made, rank)
    if made.problems:
        raise PlanError(made.problems)
    with chosen_executor(kind, made.resources.workers, made.resources.memory_of, ray_init) as executor:
        return execute(made, executor, on_progress or silence, on_tensor, rank=rank, fresh=fresh)


def _with_room(made: Plan, rank: Rank | None) -> Plan:
    """With the problem that the stage is too small, if it is: several processes have more files there than one."""
    if made.out is None or isinstance(made.out, Path) or made.below is not None:
        return made
    needed = made.bytes_written  # of tasks on Ray, none knows how far sending is
    if rank is not None:
        largest = len(made.points) * max((shard.file_bytes for shard in made.shards), default=0)
        needed = relay.needed_of(needed, largest, 1 if made.out.carries else rank.world)
    return replace(made, problems=(*made.problems, *relay.room_problems(made.out, needed)))
