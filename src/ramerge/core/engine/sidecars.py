"""Writes the files alongside the weights: record, index, companions, model card, recipe."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramerge.core.engine.card import model_card
from ramerge.core.engine.reads import Passes
from ramerge.core.engine.record import AgentStatistics, Figure, Record, Sweep
from ramerge.core.engine.result_codec import Results
from ramerge.core.engine.warn import effects, refuse_if_strict, rounding_notes, spoiled, warnings_of
from ramerge.core.formats.safetensors import index_of
from ramerge.core.formats.sidecars import companions_of
from ramerge.core.foundation.errors import WeightsError
from ramerge.core.foundation.machine import peak_memory
from ramerge.core.foundation.text import ByName, without_secrets
from ramerge.core.foundation.version import __version__
from ramerge.core.methods.base import Counts
from ramerge.core.output.staging import StagingDir
from ramerge.core.output.targets import path_style
from ramerge.core.planning.model import MergePlan
from ramerge.core.planning.soups import weights_of
from ramerge.core.recipe.model import Agent, Recipe
from ramerge.core.recipe.paths import as_relative, prompts_of
from ramerge.core.recipe.points import Point
from ramerge.core.storage.location import Location, PathStyle
from ramerge.core.storage.resolve import FoundModel


def records_of(
    plan: MergePlan, passes: Passes, bytes_written: int, warnings: Sequence[str], start: float
) -> tuple[Record, ...]:
    """Create the record of each point from the results of the passes.

    Args:
        plan: the plan that was carried out.
        passes: the passes, with their results.
        bytes_written: bytes of weights written for all points together.
        warnings: warnings from a sample of the weights.
        start: `time.monotonic()` when the run began.

    Raises:
        WeightsError: the plan is strict, and there are warnings.
    """
    records = tuple(_merge_records(plan, passes, bytes_written, warnings, start))
    try:
        refuse_if_strict(plan, (warning for record in records for warning in record.warnings))
    except WeightsError:
        passes.keep()
        raise
    return records


def _paths_of(plan: MergePlan, point: Point) -> PathStyle:
    """Return how the output's files write paths: relative to their folder; only names if the output is published."""
    return path_style(plan.output.target, point.name)


def _merge_records(
    plan: MergePlan, passes: Passes, bytes_written: int, sample_warnings: Sequence[str], start: float
) -> Iterator[Record]:
    run_warnings = [*sample_warnings, *passes.overflowing, *passes.warnings, *spoiled(passes.non_finite)]
    rules = [
        {**rule.model_dump(mode="json", exclude_none=True), "tensors": count}
        for rule, count in zip(plan.recipe.rules, plan.caught, strict=True)
    ]
    inputs = (plan.inputs.base, *plan.inputs.agents.values(), *plan.inputs.sides.values())
    places = [folder for model in inputs for folder in model.folders]
    for point, counts in zip(plan.points, passes.rounding, strict=True):
        paths = _paths_of(plan, point)
        method, parameters = point.method, point.parameters[0]
        agents, parts = _agent_statistics(plan, point, counts, passes.results, paths)
        densities = {name: agent.density for name, agent in agents.items() if "density" in agent.values}
        remarks = [(name, method.remarks(agent.values)) for name, agent in agents.items() if agent.values]
        warnings = [*warnings_of(plan, run_warnings, counts, parameters, densities)]
        warnings.append(method.warning([agent.values for agent in agents.values()]))
        yield Record(
            ramerge_version=__version__,
            point=point.varied,
            method=method.name,
            parameters=parameters.in_effect(),
            base=_name_of(plan.recipe.base, plan, paths) if plan.recipe.base is not None else None,
            rules=tuple(rules),
            counts=plan.counts.origin,
            notes=tuple(
                paths.in_text(text, places)
                for text in (
                    *plan.findings.notes,
                    *[f"{name}: {text}" for name, text in remarks if text],
                    *rounding_notes(plan, counts),
                )
            ),
            warnings=tuple(paths.in_text(text, places) for text in warnings if text),
            input_dtypes=plan.input_dtypes,
            dtype=plan.dtype,
            rounding=plan.recipe.rounding,
            rounding_seed=plan.recipe.seed,
            non_finite={label: run_warnings.count for label, run_warnings in passes.non_finite.items()},
            agents=ByName(agents),
            parts=parts,
            tensors=plan.tensors_count,
            merged_tensors=plan.merged_tensors_count,
            parameters_count=plan.parameters_count,
            device=plan.resources.device_name if any(tensor.matrix for tensor in plan.tensors) else None,
            bytes_read=passes.bytes_read,
            bytes_written=bytes_written // len(plan.points),
            seconds=round(time.monotonic() - start, 3),
            peak_memory_bytes=peak_memory(),
        )


def _name_of(model: str, plan: MergePlan, paths: PathStyle) -> str:
    return without_secrets(as_relative(model, plan.recipe.folder, paths))


def _agent_statistics(
    plan: MergePlan, point: Point, rounding: Counts, results: Results, paths: PathStyle
) -> tuple[dict[str, AgentStatistics], Mapping[str, Mapping[str, Mapping[str, Figure]]]]:
    """Return the figures of each agent, and the figures by part of the model if parts are counted separately."""
    results_by_part: dict[str, tuple[int, Any]] = {}
    for tensor in plan.tensors:
        statistic = point.reported(tensor.rule) if tensor.merged else None
        if statistic is not None:
            part = tensor.part(statistic.scope)
            results_by_part[part] = tensor.rule, results[statistic, part]
    names, method = tuple(plan.inputs.agents), point.method
    rule = next(iter(results_by_part.values()))[0] if len(results_by_part) == 1 else 0
    values = method.report(point.parameters[rule], [result for _, result in results_by_part.values()], names)
    rounding_effects: list[dict[str, Any]] = effects(rounding) if plan.rounds_updates else [{} for _ in names]
    agents = {}
    for name, figures, more in zip(names, values, rounding_effects, strict=True):
        agent = plan.recipe.agents[name]
        text = _name_of(agent.written, plan, paths)
        if agent.soup is not None:
            weights = zip(agent.soup.agents.values(), weights_of(agent.soup), strict=True)
            text = f"{agent.soup.method} of " + ", ".join(
                f"{_name_of(one.written, plan, paths)} ({weight:.4g})" for one, weight in weights
            )
        agents[name] = AgentStatistics(name, text, {**figures, **more})
    if len(results_by_part) < 2:
        return agents, {}
    return agents, {
        part or "model": dict(zip(names, method.report(point.parameters[rule], [result], names), strict=True))
        for part, (rule, result) in results_by_part.items()
    }


def write_sidecars(plan: MergePlan, records: Sequence[Record], staging: StagingDir) -> None:
    """Write index, companions, model card, recipe and record of every point; for a sweep also `sweep.json`."""
    for point, record in zip(plan.points, records, strict=True):
        folder = f"{point.name}/" if point.name else ""
        for name, content in model_sidecars(plan, point, record, always_index=staging.needs_index):
            if isinstance(content, str):
                staging.write(f"{folder}{name}", content)
            else:
                staging.copy(f"{folder}{name}", content)
    if plan.is_sweep:
        points = {point.name: record for point, record in zip(plan.points, records, strict=True)}
        staging.write("sweep.json", Sweep(__version__, plan.method.name, points).to_json())


def model_sidecars(
    plan: MergePlan, point: Point, record: Record, *, always_index: bool = False, folder: str | None = None
) -> Iterator[tuple[str, Location | str]]:
    """Yield names and contents of a merged model's files that are not weights. A content is a file to copy, or text.

    `folder`: as for `model_card`.
    """
    shards = [shard.name for shard in plan.shards]
    index_name = index_of(shards)
    if always_index or shards != [index_name.removesuffix(".index.json")]:
        parts = [part for tensor in plan.tensors for part in tensor.parts]
        index = {
            "metadata": {
                "total_parameters": plan.parameters_count,
                "total_size": sum(tensor.bytes_written for tensor in plan.tensors),
            },
            "weight_map": {part.name: part.shard for part in sorted(parts, key=lambda part: part.name)},
        }
        yield index_name, json.dumps(index, indent=2) + "\n"
    yield from companions_of(
        plan.companions,
        plan.loads_as,
        dequantized=plan.config.dequantized_to is not None,
        vocabulary=plan.config.vocabulary,
        apart=plan.config.untied,
    )
    yield "README.md", model_card(plan, point, record, folder=folder)
    paths = _paths_of(plan, point)
    paths = paths if folder is None else replace(paths, start=None)  # the file of a delta moves to its model
    yield "ramerge.yaml", resolved_recipe(plan, point, paths).to_yaml()
    yield "ramerge.json", record.to_json()


def _agent_entry(agent: Agent, model: FoundModel, paths: PathStyle) -> dict[str, Any]:
    if agent.soup is not None:
        members = {name: _agent_entry(agent.soup.agents[name], member, paths) for name, member in model.members}
        return {"soup": {**agent.soup.model_dump(), "agents": members}}
    if agent.over is None:
        return {"model": model.spelled_out(paths)}
    return {"delta": [part.spelled_out(paths) for part in model.parts], "over": agent.over}


def resolved_recipe(plan: MergePlan, point: Point, paths: PathStyle | None = None) -> Recipe:
    """Return a point's recipe for `ramerge.yaml`, with everything that it depends on spelled out.

    `paths`: how paths are written; by default, for a file in the output folder.
    """
    paths = paths or _paths_of(plan, point)
    agents = {}
    for name, model in plan.inputs.agents.items():
        agent, side = point.recipe.agents[name], plan.inputs.sides.get(name)
        values = _agent_entry(agent, model, paths)
        values |= dict.fromkeys(agent.sides, side.spelled_out(paths)) if side is not None else {}
        agents[name] = Agent(**values)
    return point.recipe.model_copy(
        update={
            "base": plan.inputs.base.spelled_out(paths) if plan.recipe.base is not None else None,
            "agents": agents,
            "prompts": prompts_of(point.recipe, paths),
            "parameters": point.parameters[0].in_effect(),
            "preset": None,
        }
    )
