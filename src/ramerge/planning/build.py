"""From a recipe and the headers of its checkpoints to a plan. Reads no weights.

Problems are collected, not raised one by one, so that a user sees all of them at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ramerge.checkpoint.hub import Model, resolve
from ramerge.checkpoint.index import Checkpoint, open_checkpoint
from ramerge.errors import CheckpointError, RecipeError
from ramerge.methods import METHODS, complete
from ramerge.planning import checks
from ramerge.planning.findings import Findings
from ramerge.planning.layout import plan_tensors
from ramerge.planning.match import match
from ramerge.planning.model import Plan, Resources, room
from ramerge.planning.recipes import AnyRecipe, load_recipe
from ramerge.recipe import Recipe, parse_size

# Resident memory of the process before any buffer: Python, NumPy, numba, and compiling the kernels, which grow with the
# number of agents; and what the plan takes for each tensor of each input. Measured; tests hold peaks against plans.
_BASELINE_BYTES = 170_000_000
_BYTES_PER_AGENT = 6_000_000
_BYTES_PER_TENSOR = 700

# Blocks of this many elements keep the buffers of all workers in the last level of cache; smaller ones cost more in
# calls than they gain, larger ones spill.
_LARGEST_BLOCK = 1 << 19
_SMALLEST_BLOCK = 1 << 12
_DEFAULT_BUFFERS = 150_000_000
_MOST_THREADS = 1024
# What importing torch adds, which reads pickled checkpoints.
_TORCH_BYTES = 260_000_000


def make_plan(
    source: AnyRecipe,
    out: Path | None = None,
    *,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
) -> Plan:
    """Plan a merge; `problems` of the result says what would make it fail.

    Args:
        source: a recipe, in any form that `load_recipe` takes.
        out: the output folder, if it is known.
        threads: worker threads; by default as many as the machine has processors, and two more that wait for disks.
        max_memory: bytes, or a size such as `2GB`, that the process must not exceed.
        overwrite: whether an existing checkpoint at `out` is to be replaced.

    Raises:
        RecipeError: the recipe itself is wrong.
    """
    recipe = load_recipe(source)
    budget = _budget(max_memory)
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise RecipeError(f"threads: must be 1 to {_MOST_THREADS}, not {threads}")
    method = METHODS[recipe.method]
    findings = Findings(recipe.document)
    base, agents = _resolve(recipe, findings)
    plan = Plan(
        recipe=recipe,
        method=method,
        parameters=method.parameters(**complete(method, recipe.preset, recipe.parameters)),
        out=out,
        overwrite=overwrite,
        base=base,
        agents=agents,
        resources=Resources(1, _SMALLEST_BLOCK, 0, 0),
    )
    opened = _open(plan, findings)
    base_checkpoint = opened.pop("", None)
    if base_checkpoint is not None:
        plan = _plan_tensors(plan, base_checkpoint, opened, findings)
        opened[""] = base_checkpoint
    resident = _resident(list(opened.values()), findings)
    resources = _cut(plan, resident, threads, budget, findings)
    free = checks.check_out(plan, findings) if out is not None else None
    return replace(
        plan,
        resources=resources,
        disk_free=free,
        notes=tuple(findings.notes),
        problems=tuple(dict.fromkeys(findings.problems)),
    )


def _budget(max_memory: int | str | None) -> int | None:
    try:
        return parse_size(max_memory) if max_memory is not None else None
    except ValueError as error:
        raise RecipeError(f"--max-memory: {error}") from error


def _resolve(recipe: Recipe, findings: Findings) -> tuple[Model, dict[str, Model]]:
    """The folders of base and agents. One that cannot be found keeps its name, and is a problem."""

    def find(name: str, text: str) -> Model:
        try:
            return resolve(text, recipe.folder)
        except CheckpointError as error:
            findings.error(error, name)
            return Model(text, None)

    return find("", recipe.base), {name: find(name, agent.model) for name, agent in recipe.agents.items()}


def _open(plan: Plan, findings: Findings) -> dict[str, Checkpoint]:
    """Those of the agents, and of the base under the name "", that can be opened."""
    opened: dict[str, Checkpoint] = {}
    for name, model in {"": plan.base, **plan.agents}.items():
        if model.directory is None:
            continue
        try:
            opened[name] = open_checkpoint(model.directory, allow_outside_links=plan.recipe.allow.outside_links)
            checks.check_arithmetic(name, opened[name], plan.recipe, findings)
        except CheckpointError as error:
            findings.error(error, name)
    for name, model in plan.agents.items():
        if model.directory and plan.base.directory and model.directory.resolve() == plan.base.directory.resolve():
            findings.problem(f"{model.directory} is the base itself, so it has no task vector", name)
    return opened


def _plan_tensors(plan: Plan, base: Checkpoint, agents: dict[str, Checkpoint], findings: Findings) -> Plan:
    """The plan with its tensors. Agents that could not be opened are problems already, the others are compared."""
    matched = {name: match(name, base, agent, plan.recipe.allow, findings) for name, agent in agents.items()}
    checks.check_configs(base, agents, plan.recipe, findings)
    if len(agents) != len(plan.agents):
        return plan
    sources = {name: source for name, (source, _) in matched.items()}
    ties = tuple(tie for _, found in matched.values() for tie in found)
    shards, tensors = plan_tensors(base, sources, plan.recipe, plan.parameters.counted_over)
    passes = 2 if plan.method.needs_counts else 1
    tied = sum(tie.head.nbytes + tie.embedding.nbytes for tie in ties)
    plan = replace(
        plan,
        tensors=tuple(tensors),
        shards=tuple(shards),
        ties=ties,
        passes=passes,
        bytes_read=tied + sum(tensor.bytes_read * (passes if tensor.merged else 1) for tensor in tensors),
        bytes_written=sum(shard.file_bytes for shard in shards),
    )
    return replace(plan, companions=checks.companions(plan, findings))


def _cut(plan: Plan, resident: int, threads: int | None, wanted: int | None, findings: Findings) -> Resources:
    """The largest blocks, then the most workers, that fit the budget.

    Args:
        plan: with its tensors.
        resident: bytes of weights that are in memory already.
        threads: worker threads that were asked for.
        wanted: the budget in bytes; without one, blocks shrink before buffers exceed what a laptop would not notice.
        findings: told if the budget cannot be kept.
    """
    agents = len(plan.agents)
    fixed = (
        _BASELINE_BYTES + _BYTES_PER_AGENT * agents + _BYTES_PER_TENSOR * len(plan.tensors) * (2 + agents) + resident
    )
    per_element = max((tensor.buffer_bytes_per_element for tensor in plan.tensors), default=1)
    slack = room(1) * (agents + 3) + 8 * (agents + 2)
    budget = wanted or fixed + _DEFAULT_BUFFERS
    workers = threads or _processors() + 2

    def resources(workers: int, block: int) -> Resources:
        buffer = block * per_element + slack
        return Resources(workers, block, buffer, fixed + workers * buffer)

    block = _LARGEST_BLOCK
    while block > _SMALLEST_BLOCK and resources(workers, block).peak_memory_bytes > budget:
        block //= 2
    while workers > 1 and resources(workers, block).peak_memory_bytes > budget:
        workers -= 1
    cut = resources(workers, block)
    if wanted and cut.peak_memory_bytes > wanted:
        findings.problem(f"--max-memory {_megabytes(wanted)}: at least {_megabytes(cut.peak_memory_bytes)} are needed")
    return cut


def _resident(checkpoints: Sequence[Checkpoint], findings: Findings) -> int:
    """Bytes that are in memory before the merge begins because checkpoints are pickled: torch, and what it loaded."""
    if not any(checkpoint.is_pickled for checkpoint in checkpoints):
        return 0
    loaded = sum(checkpoint.resident_bytes for checkpoint in checkpoints)
    if loaded:
        findings.notes.append(f"{loaded:,} bytes of old pickles are held in memory; safetensors would be streamed")
    return _TORCH_BYTES + loaded


def _processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _megabytes(size: int) -> str:
    """Rounded up, so that a budget copied from a message is enough."""
    return f"{-(-size // 1_000_000)}MB"
