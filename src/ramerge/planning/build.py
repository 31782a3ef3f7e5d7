"""From a recipe and the headers of its checkpoints to a plan. Reads no weights.

Problems are collected, not raised one by one, so that a user sees all of them at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramerge.checkpoint.hub import Model, resolve
from ramerge.checkpoint.identity import Identity, identify
from ramerge.checkpoint.index import Checkpoint, open_checkpoint
from ramerge.checkpoint.tensor import Tensor
from ramerge.foundation.errors import CheckpointError, RecipeError
from ramerge.foundation.text import message
from ramerge.methods.base import Layer, Statistic
from ramerge.planning import checks, remembered
from ramerge.planning.findings import Findings
from ramerge.planning.layout import Inputs, plan_tensors
from ramerge.planning.match import match, match_importance
from ramerge.planning.model import Plan, Point, Resources, TensorPlan, room
from ramerge.planning.points import make_points
from ramerge.planning.rounds import rounds
from ramerge.recipe.checks import AnyRecipe
from ramerge.recipe.model import Recipe, parse_size

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
    vary: Mapping[str, Sequence[Any]] | None = None,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
    in_memory: bool = False,
    observed: Sequence[Statistic] = (),
    cache: bool = True,
    strict: bool = False,
) -> Plan:
    """Plan a merge, or a sweep over parameters; `problems` of the result says what would make it fail.

    Args:
        source: a recipe, in any form that `load_recipe` takes.
        out: the output folder, if it is known.
        vary: keys of parameters to values; every combination is merged.
        threads: worker threads; by default as many as the machine has processors, and two more that wait for disks.
        max_memory: bytes, or a size such as `2GB`, that the process must not exceed.
        overwrite: whether an existing checkpoint at `out` is to be replaced.
        in_memory: whether merged tensors are handed over whole instead of being written.
        observed: statistics that will be counted instead of a merge; the plan has the memory for them.
        cache: whether to use counts that earlier reads of the same files have left, and to leave some.
        strict: whether warnings are problems.

    Raises:
        RecipeError: the recipe itself is wrong.
    """
    points = make_points(source, vary)
    recipe = points[0].recipe
    budget = _budget(max_memory)
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise RecipeError(f"threads: must be 1 to {_MOST_THREADS}, not {threads}")
    findings = Findings(recipe.document)
    _note_methods(points, findings)
    agents = {name: _find(agent.model, recipe, findings, name) for name, agent in recipe.agents.items()}
    base = _find(recipe.base, recipe, findings, "") if recipe.base is not None else next(iter(agents.values()))
    importances = {
        name: _find(agent.importance, recipe, findings, name)
        for name, agent in recipe.agents.items()
        if agent.importance is not None
    }
    plan = Plan(
        points=points,
        out=out,
        overwrite=overwrite,
        base=base,
        agents=agents,
        importances=importances,
        resources=Resources(1, _SMALLEST_BLOCK, 0, 0),
    )
    opened = _open(plan, findings)
    plan = _plan_tensors(plan, opened, findings, cache)
    fixed = _resident(opened.all, findings) + (_collected(plan) if in_memory else 0)
    resources = _cut(plan, fixed, threads, budget, observed, findings)
    free = checks.check_out(plan, findings) if out is not None else None
    problems = findings.problems + (findings.warnings if strict else [])
    return replace(
        plan,
        resources=resources,
        disk_free=free,
        strict=strict,
        notes=tuple(map(message, findings.notes)),
        warnings=() if strict else tuple(dict.fromkeys(map(message, findings.warnings))),
        problems=tuple(dict.fromkeys(map(message, problems))),
    )


def _note_methods(points: Sequence[Point], findings: Findings) -> None:
    """Say where a method of mergekit's gives other results by the same parameters."""
    noted = [point.method for point in points if any(point.method.noted(one) for one in point.parameters)]
    findings.notes += dict.fromkeys(f"{method.name}: mergekit's {method.differs}" for method in noted)


def _budget(max_memory: int | str | None) -> int | None:
    try:
        return parse_size(max_memory) if max_memory is not None else None
    except ValueError as error:
        raise RecipeError(f"--max-memory: {error}") from error


def _find(text: str, recipe: Recipe, findings: Findings, name: str) -> Model:
    """A model's folder. One that cannot be found keeps its name, and is a problem."""
    try:
        return resolve(text, recipe.folder)
    except CheckpointError as error:
        findings.error(error, name)
        return Model(text, None)


@dataclass
class _Opened:
    """The checkpoints that could be opened."""

    base: Checkpoint | None
    agents: dict[str, Checkpoint]
    importances: dict[str, Checkpoint]

    @property
    def all(self) -> list[Checkpoint]:
        return [*([self.base] if self.base else []), *self.agents.values(), *self.importances.values()]

    @property
    def files(self) -> dict[Path, Identity]:
        """Every file that was opened."""
        return {path: identity for checkpoint in self.all for path, identity in checkpoint.files.items()}


def _open(plan: Plan, findings: Findings) -> _Opened:
    """Open what can be opened; the rest is a problem."""

    def one(name: str, model: Model) -> Checkpoint | None:
        if model.directory is None:
            return None
        try:
            opened = open_checkpoint(model.directory, allow_outside_links=plan.recipe.allow.outside_links)
            checks.check_arithmetic(name, opened, plan.recipe, findings)
            return opened
        except CheckpointError as error:
            findings.error(error, name)
            return None

    def several(models: Mapping[str, Model]) -> dict[str, Checkpoint]:
        opened = {name: one(name, model) for name, model in models.items()}
        return {name: checkpoint for name, checkpoint in opened.items() if checkpoint is not None}

    agents = several(plan.agents)
    base = one("", plan.base) if plan.recipe.base is not None else next(iter(agents.values()), None)
    for name, model in plan.agents.items():
        same = model.directory and plan.base.directory and model.directory.resolve() == plan.base.directory.resolve()
        if same and plan.method.needs_base:
            findings.problem(f"{model.directory} is the base itself, so it has no task vector", name)
    _note_same(plan, findings)
    return _Opened(base, agents, several(plan.importances))


def _note_same(plan: Plan, findings: Findings) -> None:
    """Say so where agents are the same folder, which is rarely meant."""
    places: dict[Path, list[str]] = {}
    for name, model in plan.agents.items():
        if model.directory:
            places.setdefault(model.directory.resolve(), []).append(name)
    for place, names in places.items():
        if len(names) > 1:
            findings.warn(f"{' and '.join(names)} are the same folder, {place}; is one of them the wrong checkpoint?")


def _plan_tensors(plan: Plan, opened: _Opened, findings: Findings, cache: bool) -> Plan:
    """The plan with its tensors. Agents that could not be opened are problems already, the others are compared."""
    base = opened.base
    if base is None:
        return plan
    allow = plan.recipe.allow
    matched = {name: match(name, base, agent, allow, findings) for name, agent in opened.agents.items()}
    ties = tuple(tie for _, found in matched.values() for tie in found)
    checks.note_one_agent(plan, findings)
    checks.check_layers(base, findings)
    checks.check_configs(base, opened.agents, ties, plan.recipe, findings)
    importances = {
        name: match_importance(name, _merged(base, plan.recipe), checkpoint, findings)
        for name, checkpoint in opened.importances.items()
    }
    if len(opened.agents) != len(plan.agents) or len(importances) != len(plan.importances):
        return plan
    inputs = Inputs({name: source for name, (source, _) in matched.items()}, importances)
    shards, tensors = plan_tensors(base, inputs, plan.points)
    digest = remembered.digest_of(tensors, opened.files) if cache else None
    known = remembered.recall(digest, tensors, plan.points)
    counted = rounds(tensors, plan.points, known)
    reads = [[tensors[place] for place in one] for one in counted]
    plan = replace(
        plan,
        tensors=tuple(tensors),
        shards=tuple(shards),
        ties=ties,
        rounds=tuple(counted),
        inputs=digest,
        remembered=known,
        bytes_read=sum(tie.head.nbytes + tie.embedding.nbytes for tie in ties)
        + sum(tensor.bytes_read for read in (*reads, tensors) for tensor in read),
        bytes_written=sum(shard.file_bytes for shard in shards) * len(plan.points),
    )
    checks.check_rules(plan, findings)
    checks.check_shards(plan, findings)
    companions = checks.companions(plan, findings)
    return replace(plan, companions=companions, files={**identify(companions.values()), **opened.files})


def _merged(base: Checkpoint, recipe: Recipe) -> dict[str, Tensor]:
    """The tensors of the base that the method merges."""
    rules = (None, *recipe.rules)
    found = {}
    for name, tensor in base.tensors.items():
        rule = rules[recipe.rule_of(name)]
        if tensor.is_float and (rule is None or rule.parameters is not None):
            found[name] = tensor
    return found


def _cut(
    plan: Plan,
    resident: int,
    threads: int | None,
    wanted: int | None,
    observed: Sequence[Statistic],
    findings: Findings,
) -> Resources:
    """The largest blocks, then the most workers, that fit the budget.

    Args:
        plan: with its tensors.
        resident: bytes of weights that are in memory besides.
        threads: worker threads that were asked for.
        wanted: the budget in bytes; without one, blocks shrink before buffers exceed what a laptop would not notice.
        observed: what is counted besides.
        findings: told if the budget cannot be kept.
    """
    agents = len(plan.agents)
    inputs = 1 + agents + len(plan.importances)
    whole = [tensor for tensor in plan.tensors if tensor.whole]
    fixed = _BASELINE_BYTES + _BYTES_PER_AGENT * inputs + _BYTES_PER_TENSOR * len(plan.tensors) * (1 + inputs)
    fixed += resident + _scratch(plan, whole) + _kept(plan, observed)
    per_element = max((tensor.buffer_bytes_per_element for tensor in plan.tensors), default=1)
    slack = room(1) * (inputs + 2) + 8 * (inputs + 1)
    largest = max((tensor.base.elements * tensor.buffer_bytes_per_element for tensor in whole), default=0)
    partials = _partials(plan, observed)
    budget = wanted or fixed + _DEFAULT_BUFFERS
    # what works on whole matrices uses all processors by itself
    workers = 1 if whole else threads or _processors() + 2

    def resources(workers: int, block: int) -> Resources:
        buffer = max(block * per_element, largest) + slack
        return Resources(workers, block, buffer, fixed + workers * (buffer + partials) + 3 * partials)

    block = _LARGEST_BLOCK
    while block > _SMALLEST_BLOCK and resources(workers, block).peak_memory_bytes > budget:
        block //= 2
    while workers > 1 and resources(workers, block).peak_memory_bytes > budget:
        workers -= 1
    cut = resources(workers, block)
    if wanted and cut.peak_memory_bytes > wanted:
        findings.problem(f"--max-memory {_megabytes(wanted)}: at least {_megabytes(cut.peak_memory_bytes)} are needed")
    return cut


def _kept(plan: Plan, observed: Sequence[Statistic]) -> int:
    """Bytes of the results of what is observed, one for each tensor."""
    return len(plan.tensors) * sum(statistic.blank(len(plan.agents)).nbytes for statistic in observed)


def _partials(plan: Plan, observed: Sequence[Statistic]) -> int:
    """Bytes of what a block is counted in."""
    counted = [statistic for one in plan.rounds for statistics in set(one.values()) for statistic in statistics]
    counted += observed
    return max((statistic.blank(len(plan.agents)).nbytes for statistic in counted), default=0) * 2


def _scratch(plan: Plan, whole: Sequence[TensorPlan]) -> int:
    """What the method takes for the tensor that takes the most."""
    agents = len(plan.agents)
    return max(
        (
            point.method.scratch(Layer(tensor.name, tensor.base.shape), point.parameters[tensor.rule], agents)
            for tensor in whole
            for point in plan.points
        ),
        default=0,
    )


def _collected(plan: Plan) -> int:
    """Merged tensors that are put together at a time: one, and the next."""
    return 2 * len(plan.points) * max((tensor.bytes_written for tensor in plan.tensors), default=0)


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
