"""Make a plan from a checked recipe and the headers of its checkpoints, without reading weights.

Problems are collected instead of raised one by one, so that a user sees all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ramerge.core.formats.encodings.decode import stated_dtype
from ramerge.core.foundation.settings import read_limits
from ramerge.core.foundation.text import message
from ramerge.core.methods.base import IMPORTANCE, INPUTS, Statistic
from ramerge.core.options import Options
from ramerge.core.output.lifecycle import output_dir
from ramerge.core.output.staging import OutputDir
from ramerge.core.output.targets import OutputTarget
from ramerge.core.planning import cached_counts, checks
from ramerge.core.planning.damaged import warn_of_damaged_files
from ramerge.core.planning.findings import PlanFinding, collect, note, problem, split, warning
from ramerge.core.planning.inputs import OpenedInputs, fit_inputs, open_inputs
from ramerge.core.planning.kinds import PlannedKind
from ramerge.core.planning.layout import Counterparts, plan_tensors
from ramerge.core.planning.match import match, match_importance, match_inputs
from ramerge.core.planning.model import ConfigChanges, MergePlan, PlannedContents, PlannedCounts, PlannedOutput, Tie
from ramerge.core.planning.name_mappings import fit_agents
from ramerge.core.planning.requirements import RequestedMerge
from ramerge.core.planning.resources import SMALLEST_BLOCK, choose_resources, place_matrices
from ramerge.core.planning.rounds import rounds
from ramerge.core.planning.tokens import TokenReader
from ramerge.core.planning.vocabulary import check_same_tokens, check_tokens, rows_of_models
from ramerge.core.recipe.model import LIKE_BASE
from ramerge.core.recipe.paths import reads_of
from ramerge.core.recipe.points import Point
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Checkpoint

_OPTIONS = Options()
_MODEL = PlannedKind()


def make_plan(
    points: Sequence[Point],
    out: OutputTarget | None = None,
    options: Options = _OPTIONS,
    *,
    in_memory: bool = False,
    kind: PlannedKind = _MODEL,
    observations: Sequence[Statistic] = (),
    notes: Sequence[str] = (),
) -> MergePlan:
    """Plan a merge, or a sweep over parameters. Problems that would make it fail are in `findings` of the result.

    Args:
        points: the merges, from `recipe.points.make_points`; at least one.
        out: the output folder, local or remote; None if it is not known yet.
        options: how the merge will be carried out. `threads`, `max_memory`, `device`, `ray`, `overwrite`, `cache` and
            `strict` apply.
        in_memory: whether whole merged tensors are passed to a function instead of being written.
        kind: the kind of output.
        observations: statistics that will be counted instead of merging; the plan includes memory for them.
        notes: further notes for the plan.

    Raises:
        RecipeError: `threads`, `max_memory` or `device` is invalid.
    """
    limits = read_limits(options.threads, options.max_memory)
    points, inputs, findings = _open_models(points, kind, in_memory=in_memory)
    alone = in_memory or not kind.has_companions  # only tensors are returned or written
    contents, differences = _contents_of_plan(points, inputs, observations, cache=options.cache, alone=alone)
    output = output_dir(out) if out is not None else None
    details, decisions = kind.details(points, inputs, contents.tensors)
    findings += [*differences, *decisions, *checks.note_rounded_base(contents.tensors)]
    findings += checks.warn_of_coarse_agents(contents.tensors, points)
    resources, too_little = choose_resources(
        points,
        inputs,
        contents.tensors,
        limits,
        in_memory=in_memory,
        observations=observations,
        is_remote=output is not None and output.sends,
        fewest=kind.least_block or SMALLEST_BLOCK,
        after=kind.peak_bytes(details),
        smaller=kind.smaller,
    )
    device = "cpu" if options.ray is not None and options.device == "auto" else options.device  # nodes differ
    resources, unplaced = place_matrices(device, points, contents.tensors, len(inputs.agents), resources)
    size = kind.least_bytes(details, contents.tensors)
    disk_free, unwritable = _check_output(output, points, inputs, contents, options=options, size=size)
    findings += [*too_little, *unplaced, *unwritable]
    messages = collect(findings, points[0].recipe.document, list(inputs.agents), strict=options.strict)
    return MergePlan(
        points=tuple(points),
        inputs=inputs.planned_inputs(contents.companions.values()),
        **vars(contents),
        output=PlannedOutput(out, options.overwrite, kind, details, disk_free),
        resources=resources,
        strict=options.strict,
        findings=replace(messages, notes=(*messages.notes, *map(message, notes))),
    )


def _open_models(
    points: Sequence[Point], kind: PlannedKind, *, in_memory: bool
) -> tuple[Sequence[Point], OpenedInputs, list[PlanFinding]]:
    """Open the models, and adapt the points to these models and to the kind of output."""
    recipe = points[0].recipe
    findings: list[PlanFinding] = [
        *checks.note_methods(points),
        *map(warning, recipe.document.warnings),
        *map(note, recipe.document.notes),
        *checks.warn_of_idle(points),
    ]
    models, missing = open_inputs(recipe)
    fitting_models, unfit = fit_inputs(models, needs_base=points[0].uses_base)
    inputs, unrelated = checks.refuse_other_architectures(fitting_models, recipe)
    points, suitability = checks.suit_adapters(points, inputs)
    merge = RequestedMerge(points, inputs, in_memory)
    findings += [*missing, *unfit, *unrelated, *suitability, *kind.unmet_requirements(merge), *kind.check(merge)]
    return kind.points(points), inputs, findings


def _check_output(
    output: OutputDir | None,
    points: Sequence[Point],
    inputs: OpenedInputs,
    contents: PlannedContents,
    *,
    options: Options,
    size: int | None,
) -> tuple[int | None, list[PlanFinding]]:
    """Free bytes on the disk where the output is built, None without an output; and problems with writing there.

    Args:
        size: bytes of disk that the output needs there; None for the size of the model.
    """
    if output is None:
        return None, []
    bytes_written = len(points) * sum(shard.file_bytes for shard in contents.shards)
    largest = len(points) * max((shard.file_bytes for shard in contents.shards), default=0)
    # tasks on Ray do not wait for uploads
    at_once = output.bytes_at_once(bytes_written, largest) if options.ray is None else bytes_written
    read = [*inputs.folders, *inputs.files, *contents.companions.values(), *reads_of(points[0].recipe.document)]
    wrong = output.problems(read, at_once if size is None else size, overwrite=options.overwrite)
    return output.free_bytes(), [*map(problem, wrong)]


def _contents_of_plan(
    points: Sequence[Point], inputs: OpenedInputs, observations: Sequence[Statistic], *, cache: bool, alone: bool
) -> tuple[PlannedContents, list[PlanFinding]]:
    recipe, base = points[0].recipe, inputs.opened_base
    if base is None:
        return PlannedContents(), []
    matches, ties, findings = _match_models(points, base, inputs)
    reader = TokenReader()
    speaker, clashes = check_tokens(recipe, base, inputs.opened_agents, matches.rows, reader)
    findings += [
        *clashes,
        *check_same_tokens(base, inputs.opened_agents, recipe, reader),
        *checks.note_one_agent(points[0]),
        *checks.note_ignored_agents(points),
        *checks.note_adapters(points, inputs),
        *checks.check_layers(base, recipe),
    ]
    if base.config or not alone:  # tensors alone need no config.json
        findings += checks.check_configs(base, inputs.opened_agents, ties, recipe)
        findings += checks.check_heads(base)
    if not inputs.are_complete:
        return PlannedContents(), findings
    shards, tensors = plan_tensors(base, matches, points, observations)
    findings += [
        *checks.check_like_base(base, recipe, only_counts=bool(observations)),
        *checks.warn_of_stacks(points, tensors, base),
        *checks.note_kept_dtypes(tensors, recipe),
        *checks.note_ruled_dtypes(tensors, recipe),
        *checks.note_statistics(tensors),
        *checks.note_rounding(recipe, tensors),
        *checks.note_unchecked(points[0]),
        *checks.check_rules(recipe, tensors, inputs.base.folder),
        *checks.check_shards(recipe, tensors),
    ]
    companions: Mapping[str, Location] = {}
    if not alone:
        companions, left = checks.find_companions(inputs, recipe, shards, speaker)
        findings += [*left, *checks.note_companions(inputs, recipe, speaker, reader)]
        if not observations:
            findings += [*checks.note_tokenizer(companions, inputs), *checks.check_named_files(inputs, companions)]
    findings += warn_of_damaged_files(inputs, recipe, {} if observations else companions, reader, alone=alone)
    digest = cached_counts.digest_of(tensors, inputs.files, points) if cache else None
    cached = cached_counts.read_cached_results(digest, tensors, points)
    contents = PlannedContents(
        tensors=tuple(tensors),
        shards=tuple(shards),
        ties=ties,
        companions=companions,
        counts=PlannedCounts(rounds(tensors, points, cached), cached, digest),
        config=ConfigChanges(
            max((rows[-1].stop for rows in matches.rows.values()), default=base.vocabulary),
            base.untied,
            base.quantized.dtype if base.quantized is not None and recipe.dtype != LIKE_BASE else None,
            stated_dtype(base.config),
        ),
    )
    return contents, findings


def _match_models(
    points: Sequence[Point], base: Checkpoint, inputs: OpenedInputs
) -> tuple[Counterparts, tuple[Tie, ...], list[PlanFinding]]:
    recipe, side = points[0].recipe, points[0].method.side
    fitting_agents, findings = fit_agents(recipe, base, inputs.opened_agents)
    agents, differences = split(
        {name: match(name, base, agent, recipe.allow) for name, agent in fitting_agents.items()}
    )
    numbers, sides = recipe.rules_of(base.tensors) if inputs.opened_sides else {}, inputs.opened_sides.items()
    if side is IMPORTANCE:  # names are those of the agent or of the base; others are reported as missing below
        sides = fit_agents(recipe, base, inputs.opened_sides)[0].items()
    solved_tensors = {
        name: base.tensors[name]
        for name, number in numbers.items()
        if base.tensors[name].is_float and (number == 0 or recipe.rules[number - 1].merges)
    }
    importances, lacking = split(
        {
            name: match_importance(name, solved_tensors, checkpoint, untied=base.untied)
            for name, checkpoint in sides
            if side is IMPORTANCE
        }
    )
    input_records, unfit = split(
        {name: match_inputs(name, solved_tensors, base, checkpoint) for name, checkpoint in sides if side is INPUTS}
    )
    findings += [*differences, *lacking, *unfit]
    tensors = {name: agent.tensors for name, agent in agents.items()}
    rows = rows_of_models(base, tensors) if recipe.allow.vocabulary is not None else {}
    if rows and importances:
        findings.append(
            problem("vocabularies of different sizes cannot be merged with importances; use another method")
        )
    ties = tuple(tie for agent in agents.values() for tie in agent.ties)
    return Counterparts(tensors, importances, rows, input_records), ties, findings
