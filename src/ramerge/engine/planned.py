"""What a plan builds: its files, and all that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ramerge.checkpoint.outputs import Out
from ramerge.checkpoint.relay import Relay, work_of
from ramerge.checkpoint.stage import hidden_folder
from ramerge.checkpoint.storage.place import Place
from ramerge.checkpoint.write import Writer
from ramerge.engine import facts
from ramerge.engine.journal import left_in
from ramerge.engine.patches import slots_of
from ramerge.engine.sending import Relayed
from ramerge.engine.sinks import Shards, all_shards
from ramerge.engine.site import Building, Site
from ramerge.planning.model import Plan
from ramerge.planning.remembered import facts as values_of


def built_of(plan: Plan) -> Building:
    """What a plan with an output folder builds."""
    assert plan.out is not None
    if plan.below is not None:
        slots = slots_of(plan, plan.below)
        return Building(plan.out, plan.overwrite, facts_of(plan), plan.bytes_read, slots=slots)
    files = {shard.name: shard.file_bytes for shard in all_shards(plan)}
    return Building(plan.out, plan.overwrite, facts_of(plan), plan.bytes_read, files)


def stopped_at(out: Out) -> Mapping[str, str]:
    """The facts of a run that was stopped and has left work beside an output; empty if there is none."""
    return left_in(hidden_folder(out) if isinstance(out, Path) else work_of(out))


def goes_on(plan: Plan, stopped: Mapping[str, str]) -> bool:
    """Whether a plan would go on with the work of a run with these facts."""
    return all(stopped.get(name) == value for name, value in facts_of(plan).items())


def shards_of(plan: Plan, site: Site) -> Shards:
    """A plan's files, in the folder that is built."""
    stage = site.stage
    writer = Writer(stage, all_shards(plan), site.journal.before_sync)
    return Relayed(plan, writer, stage, site.team) if isinstance(stage, Relay) else Shards(plan, writer)


def facts_of(plan: Plan, further: object = None) -> dict[str, str]:
    """The facts of a plan. `further` is what else is done with it."""
    known = sorted(repr(key) for key in plan.remembered)
    return {
        **facts.versions(),
        **dict(_recipe(plan)),
        **facts.files(plan.files),
        "the size of blocks (--threads, --max-memory)": f"{plan.resources.block_elements}, {plan.resources.run_bytes}",
        "what is known of earlier reads (--no-cache)": _digest(known),
        "what is read and written": _digest(list(_work(plan)), further),
    }


def _recipe(plan: Plan) -> Iterator[tuple[str, str]]:
    for point in plan.points:
        of = f" of {point.name}" if point.name else " of the recipe"
        values = point.recipe.model_dump(mode="json")
        for key, value in _flat(values):
            yield f"{key}{of}", repr(value)
        yield f"parameters in effect{of}", repr([parameters.in_effect() for parameters in point.parameters])


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, values


def _work(plan: Plan) -> Iterator[object]:
    @cache
    def named(path: Place) -> str:
        return str(path.resolve())

    for tensor in plan.tensors:
        yield values_of(tensor, named)
    yield from ((shard.name, shard.header, shard.file_bytes) for shard in plan.shards)
    yield plan.rounds, plan.guessed, sorted(plan.companions), plan.below is not None


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()
