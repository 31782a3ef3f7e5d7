"""Makes a plan from a checked recipe and the headers of its checkpoints. Reads no weights.

Problems are collected, not raised one by one, so that a user sees all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ramerge.core.formats.encodings.decode import stated_dtype
from ramerge.core.foundation.limits import read_limits
from ramerge.core.foundation.text import message
from ramerge.core.methods.base import IMPORTANCE, INPUTS, Statistic
from ramerge.core.options import Options
from ramerge.core.output import remote_output
from ramerge.core.output.targets import OutputTarget, free_bytes, problems_of
from ramerge.core.planning import cached_counts, checks
from ramerge.core.planning.devices import place
from ramerge.core.planning.findings import Findings, gathered
from ramerge.core.planning.inputs import OpenedInputs, open_inputs
from ramerge.core.planning.kinds import PlannedKind
from ramerge.core.planning.layout import Matched, plan_tensors
from ramerge.core.planning.match import match, match_importance, match_inputs
from ramerge.core.planning.model import MergePlan, PlannedContents, TensorPlan, Tie
from ramerge.core.planning.name_mappings import fitted_agents
from ramerge.core.planning.resources import SMALLEST_BLOCK, cut
from ramerge.core.planning.rounds import rounds
from ramerge.core.planning.vocabulary import check_same_tokens, check_tokens, rows_of_models
from ramerge.core.recipe.model import LIKE_BASE, Recipe
from ramerge.core.recipe.points import Point
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.tensor import Tensor

_OPTIONS = Options()
_MODEL = PlannedKind()


def make_plan(
    points: Sequence[Point],
    out: OutputTarget | None = None,
    options: Options = _OPTIONS,
    *,
    in_memory: bool = False,
    kind: PlannedKind = _MODEL,
    observed: Sequence[Statistic] = (),
    notes: Sequence[str] = (),
) -> MergePlan:
    """Plan a merge, or a sweep over parameters. `problems` of the result says what would make it fail.

    Args:
        points: the merges, from `recipe.points.make_points`; at least one.
        out: the output folder, local or remote, if it is known.
        options: how the merge will be carried out; `threads`, `max_memory`, `overwrite`, `cache` and `strict` apply.
        in_memory: whether whole merged tensors are passed to a function instead of being written.
        kind: what the output is written as.
        observed: statistics that will be counted instead of a merge; the plan includes the memory for them.
        notes: further notes for the plan.

    Raises:
        RecipeError: `threads`, `max_memory` or `device` is not valid.
    """
    recipe, limits = points[0].recipe, read_limits(options.threads, options.max_memory)
    findings = Findings(recipe.document)
    inputs = _opened(points, findings)
    points = checks.suit_adapters(points, inputs, findings)
    points = kind.points(points, inputs, findings, in_memory=in_memory)
    sends = out is not None and not isinstance(out, Path)
    alone = in_memory or not kind.has_companions  # nothing but tensors is given, or written
    contents = _contents(points, inputs, findings, observed, cache=options.cache, alone=alone)
    details = kind.details(points, inputs, contents.tensors, findings)
    checks.note_rounded_base(contents.tensors, findings)
    checks.note_coarse_agents(contents.tensors, points, findings)
    fewest = kind.least_block or SMALLEST_BLOCK
    resources = cut(
        points, inputs, contents, limits, findings, in_memory=in_memory, observed=observed, sends=sends, fewest=fewest
    )
    resources = place(
        "cpu" if options.ray is not None and options.device == "auto" else options.device,  # nodes differ
        points,
        contents.tensors,
        len(inputs.agents),
        resources,
        findings,
    )
    resources = kind.resources(details, resources, limits, findings)
    size = kind.least_bytes(details, contents.tensors)
    disk_free = _check_output(out, points, inputs, contents, findings, options=options, size=size)
    raised = findings.warnings if options.strict else []
    return MergePlan(
        points=tuple(points),
        out=out,
        overwrite=options.overwrite,
        base=inputs.base,
        agents=inputs.agents,
        sides=inputs.sides,
        formats=inputs.formats,
        adapters=inputs.adapters,
        **vars(contents),
        resources=resources,
        kind=kind,
        kind_details=details,
        disk_free=disk_free,
        strict=options.strict,
        notes=tuple(map(message, (*gathered(findings.notes, list(inputs.agents)), *notes))),
        warnings=() if options.strict else tuple(dict.fromkeys(map(message, findings.warnings))),
        problems=tuple(dict.fromkeys(map(message, [*findings.problems, *raised]))),
    )


def _opened(points: Sequence[Point], findings: Findings) -> OpenedInputs:
    recipe = points[0].recipe
    checks.note_methods(points, findings)
    findings.warnings += recipe.document.warnings
    findings.notes += recipe.document.notes
    checks.warn_of_idle(points, findings)
    opened = open_inputs(recipe, findings, needs_base=points[0].uses_base)
    return checks.refuse_other_architectures(opened, recipe, findings)


def _check_output(
    out: OutputTarget | None,
    points: Sequence[Point],
    inputs: OpenedInputs,
    contents: PlannedContents,
    findings: Findings,
    *,
    options: Options,
    size: int | None,
) -> int | None:
    """The free bytes where the output is built; None if there is no output. Notes what would make writing fail.

    `size` is what it takes there at least, if it is not the model's.
    """
    if out is None:
        return None
    if isinstance(out, Path):
        needed = contents.bytes_written if size is None else size
        for text in problems_of(out, inputs.folders, needed, overwrite=options.overwrite):
            findings.problem(text)
        return free_bytes(out)
    largest = len(points) * max((shard.file_bytes for shard in contents.shards), default=0)
    # tasks on Ray do not wait for uploads
    at_once = (
        remote_output.needed_of(contents.bytes_written, largest) if options.ray is None else contents.bytes_written
    )
    needed = at_once if size is None else size
    for text in remote_output.problems_of(out, inputs.folders, needed, overwrite=options.overwrite):
        findings.problem(text)
    return remote_output.free_here(out)


def _contents(
    points: Sequence[Point],
    inputs: OpenedInputs,
    findings: Findings,
    observed: Sequence[Statistic],
    *,
    cache: bool,
    alone: bool,
) -> PlannedContents:
    recipe, base = points[0].recipe, inputs.opened_base
    if base is None:
        return PlannedContents()
    matched, ties = _matched(points, base, inputs, findings)
    speaker = check_tokens(recipe, base, inputs.opened_agents, matched.rows, findings)
    _check_models(points, base, ties, inputs, findings, alone=alone)
    if not inputs.are_complete:
        return PlannedContents()
    shards, tensors = plan_tensors(base, matched, points, observed)
    checks.check_like_base(base, recipe, findings, counted=bool(observed))
    _check_tensors(tensors, inputs, recipe, findings)
    companions: Mapping[str, Location] = {}
    if not alone:
        companions = checks.find_companions(inputs, recipe, shards, findings, speaker)
        checks.note_companions(inputs, recipe, findings, speaker)
        if not observed:
            checks.note_tokenizer(companions, inputs, findings)
    digest = cached_counts.digest_of(tensors, inputs.files, points) if cache else None
    known = cached_counts.recall(digest, tensors, points)
    counted = rounds(tensors, points, known)
    reads = [*([tensors[index] for index in wanted] for wanted in counted), tensors]
    bytes_read = sum(tie.head.nbytes + tie.embedding.nbytes for tie in ties) + sum(
        tensor.bytes_read for read in reads for tensor in read
    )
    return PlannedContents(
        tensors=tuple(tensors),
        shards=tuple(shards),
        ties=ties,
        companions=companions,
        files={**identify(companions.values()), **inputs.files},
        rounds=tuple(counted),
        digest=digest,
        vocabulary=max((rows[-1].stop for rows in matched.rows.values()), default=base.vocabulary),
        untied=base.untied,
        remembered=known,
        bytes_read=bytes_read,
        bytes_written=sum(shard.file_bytes for shard in shards) * len(points),
        dequantized_to=base.quantized.dtype if base.quantized is not None and recipe.dtype != LIKE_BASE else None,
        stated=stated_dtype(base.config),
    )


def _check_models(
    points: Sequence[Point],
    base: Checkpoint,
    ties: Sequence[Tie],
    inputs: OpenedInputs,
    findings: Findings,
    *,
    alone: bool,
) -> None:
    recipe, agents = points[0].recipe, inputs.opened_agents
    check_same_tokens(base, agents, recipe, findings)
    checks.note_one_agent(points[0], findings)
    checks.note_adapters(points, inputs, findings)
    checks.check_layers(base, findings)
    if base.config or not alone:  # tensors need none
        checks.check_configs(base, agents, ties, recipe, findings)


def _check_tensors(tensors: Sequence[TensorPlan], inputs: OpenedInputs, recipe: Recipe, findings: Findings) -> None:
    checks.note_kept_dtypes(tensors, recipe, findings)
    checks.note_rounding(recipe, tensors, findings)
    checks.check_rules(recipe, tensors, inputs.base.folder, findings)
    checks.check_shards(recipe, tensors, findings)


def _matched(
    points: Sequence[Point], base: Checkpoint, inputs: OpenedInputs, findings: Findings
) -> tuple[Matched, tuple[Tie, ...]]:
    recipe = points[0].recipe
    fitted = fitted_agents(recipe, base, inputs.opened_agents, findings)
    found = {name: match(name, base, agent, recipe.allow, findings) for name, agent in fitted.items()}
    wanted = _merged(base, recipe) if inputs.opened_sides else {}
    side = points[0].method.side
    importances = {
        name: match_importance(name, wanted, checkpoint, findings)
        for name, checkpoint in (inputs.opened_sides if side is IMPORTANCE else {}).items()
    }
    recorded = {
        name: match_inputs(name, wanted, base.tensors, checkpoint, findings)
        for name, checkpoint in (inputs.opened_sides if side is INPUTS else {}).items()
    }
    ties = tuple(tie for _, of_agent in found.values() for tie in of_agent)
    agents = {name: tensors for name, (tensors, _) in found.items()}
    rows = rows_of_models(base, agents) if recipe.allow.vocabulary is not None else {}
    if rows and importances:
        findings.problem("vocabularies of different sizes cannot be merged with importances; use another method")
    return Matched(agents, importances, rows, recorded), ties


def _merged(base: Checkpoint, recipe: Recipe) -> dict[str, Tensor]:
    rules, numbers = (None, *recipe.rules), recipe.rules_of(base.tensors)
    found = {}
    for name, tensor in base.tensors.items():
        rule = rules[numbers[name]]
        if tensor.is_float and (rule is None or rule.merges):
            found[name] = tensor
    return found
