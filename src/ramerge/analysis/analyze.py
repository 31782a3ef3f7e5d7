"""The function `analyze`, which users call: it reads the inputs of a recipe once and returns an `Analysis`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from ramerge import Options, PlanError, RecipeError, __version__
from ramerge.analysis.cells import CellCounts
from ramerge.analysis.findings import finding_of_damage, findings_of
from ramerge.analysis.observe import observe
from ramerge.analysis.parts import AnalyzedPart, TensorPart, part_of
from ramerge.analysis.precision_loss import PrecisionLoss, losses_of, precision_loss_findings
from ramerge.analysis.results import Analysis
from ramerge.analysis.task_vector_statistics import Tally, TaskVectorStatistics
from ramerge.analysis.tensor_roles import layers_and_roles, role_of
from ramerge.core.engine.executors.executor import Executor
from ramerge.core.engine.result_codec import Results
from ramerge.core.engine.warn import effects, inspect, refuse_if_strict, rounding_notes, spoiled, warnings_of
from ramerge.core.foundation.dtypes import full_name
from ramerge.core.foundation.machine import peak_memory
from ramerge.core.foundation.text import literal, without_secrets
from ramerge.core.methods.moved import Relative, factor, measured, shown, thresholds
from ramerge.core.methods.ram import Moved
from ramerge.core.planning import cached_counts
from ramerge.core.recipe.checks import note_unused
from ramerge.core.recipe.document import DEFAULT_METHOD
from ramerge.core.recipe.layers import layer_of
from ramerge.core.recipe.model import AUTO
from ramerge.core.recipe.other_method import for_method
from ramerge.sdk.methods import METHODS
from ramerge.sdk.options import check_options
from ramerge.sdk.passes import chosen_executor
from ramerge.sdk.plans import MergePlan, TensorPlan, make_plan
from ramerge.sdk.progress import Listener, silence
from ramerge.sdk.recipes import AnyRecipe, Document, make_points, open_recipe

EPSILONS = (1e-4, 1e-5, 1e-6, 0.0)
"""Thresholds to compare, in addition to the recipe's own."""

_USUAL_EPSILON = 1e-5
_DEFAULTS = Options()
_UNUSED = ("companions", "shard_size", "prompts", "importance", "inputs")


def analyze(
    recipe: AnyRecipe,
    *,
    epsilons: Sequence[float] = EPSILONS,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> Analysis:
    """Analyze the agents of a recipe: sparsity, overlap and angles of what RL changed, and how much merges keep of it.

    The inputs are read once, and once more for each counting pass of the recipe's method. Nothing is written. How much
    the recipe's method keeps of the agents is measured if the method works element by element on task vectors.
    Otherwise, RAM with the same epsilon is measured.

    Args:
        recipe: as for `merge`.
        epsilons: further thresholds of "moved", to compare.
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
    check_options(options)
    document = open_recipe(recipe, options)
    plan, statistics = plan_analysis(document, epsilons, options)
    if plan.findings.problems:
        raise PlanError(plan.findings.problems)
    resources = plan.resources
    with chosen_executor(options.ray, resources.workers, resources.memory_of) as executor:
        return carry_out(plan, statistics, executor, on_progress or silence)


def plan_analysis(
    document: Document, epsilons: Sequence[float] = EPSILONS, options: Options = _DEFAULTS
) -> tuple[MergePlan, TaskVectorStatistics]:
    """Plan an analysis: its inputs, and the statistic that `carry_out` counts.

    The recipe, in ramerge's own form, is checked only here: keys that only its own method uses may be wrong or missing.
    """
    unused = note_unused(document, _UNUSED, "an analysis")
    document, left_out = _recipe_to_analyze(document)
    if isinstance(epsilons, str) or not isinstance(epsilons, Iterable):
        raise RecipeError(f"epsilons: must be a list of numbers, such as [1e-5, 0], not {literal(epsilons)}")
    wrong = [value for value in epsilons if isinstance(value, bool | str) or not 0 <= value < float("inf")]
    if wrong:
        raise RecipeError([f"epsilons: {value!r} must be a number, 0 or more" for value in wrong])
    points = make_points(document)
    epsilon = getattr(points[0].parameters[0], "epsilon", _USUAL_EPSILON)
    own = () if isinstance(epsilon, Relative) else (epsilon,)
    statistics = TaskVectorStatistics(
        "tensor",
        measured(epsilon),
        agents=len(points[0].recipe.agents),
        epsilon=factor(epsilon),
        epsilons=tuple(sorted({float(value) for value in (*epsilons, *own)}, reverse=True)),
    )
    plan = make_plan(
        points,
        options=options,
        observations=(statistics, _precision_loss(statistics)),
        notes=[*left_out, *unused],
    )
    return plan, statistics


def carry_out(
    plan: MergePlan, statistics: TaskVectorStatistics, executor: Executor, listen: Listener = silence
) -> Analysis:
    """Carry out the plan of an analysis: read the inputs, count, and interpret the counts."""
    start = time.monotonic()
    sample_warnings = inspect(plan)
    cells = CellCounts(plan, statistics, listen)
    observation = observe(plan, (statistics, _precision_loss(statistics)), executor, listen, cells)
    tensors = [tensor for tensor in plan.tensors if tensor.merged]
    tallies = {tensor.name: observation.results[statistics, tensor.part("tensor")] for tensor in tensors}
    _cache_counts(plan, statistics, tallies)
    names = tuple(plan.inputs.agents)

    def part(name: str, members: Sequence[TensorPlan]) -> AnalyzedPart:
        total = sum((tallies[tensor.name] for tensor in members), start=statistics.nothing)
        return part_of(name, len(members), total, names, statistics.epsilons)

    model = part("model", tensors)
    layers, roles = (
        tuple(part(name, [tensors[number] for number in numbers]) for name, numbers in groups.items())
        for groups in layers_and_roles([tensor.name for tensor in tensors])
    )
    densities = {agent.name: agent.density for agent in model.agents}
    warnings = warnings_of(
        plan, [*sample_warnings, *spoiled(observation.non_finite)], observation.rounding, plan.parameters, densities
    )
    refuse_if_strict(plan, warnings)
    losses = _precision_losses(plan, statistics, observation.results)
    epsilon = Relative(relative=statistics.epsilon) if statistics.after else statistics.epsilon
    recipe = plan.recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True, by_alias=True)
    damage_findings = finding_of_damage(
        model, {label: non_finite.count for label, non_finite in observation.non_finite.items()}
    )
    return Analysis(
        ramerge_version=__version__,
        base=without_secrets(str(plan.recipe.base)),
        models={name: without_secrets(agent.written) for name, agent in plan.recipe.agents.items()},
        method=plan.method.name,
        input_dtypes=plan.input_dtypes,
        adapters=tuple(plan.inputs.adapters),
        dtype=plan.dtype,
        recipe=without_secrets({"method": plan.recipe.method, **recipe}),
        bytes_read=plan.bytes_read,
        model=model,
        layers=layers,
        roles=roles,
        tensors=tuple(_tensor_part(tensor, part(tensor.name, [tensor])) for tensor in tensors),
        cells=cells.cells(),
        epsilon=None if statistics.after else statistics.epsilon,
        relative_epsilon=statistics.epsilon if statistics.after else None,
        thresholds=_agent_thresholds(statistics, observation.results, names),
        epsilons=statistics.epsilons,
        rounding=dict(zip(names, effects(observation.rounding), strict=True)) if plan.rounds_updates else {},
        precision_loss=losses,
        findings=damage_findings
        or (*findings_of(model, plan.dtype, plan.inputs.adapters), *precision_loss_findings(losses, shown(epsilon))),
        notes=(*plan.findings.notes, *rounding_notes(plan, observation.rounding)),
        warnings=warnings,
        seconds=round(time.monotonic() - start, 3),
        peak_memory_bytes=peak_memory(),
    )


def _precision_loss(statistics: TaskVectorStatistics) -> PrecisionLoss:
    return PrecisionLoss("model", statistics.after, agents=statistics.agents, epsilon=statistics.epsilon)


def _precision_losses(
    plan: MergePlan, statistics: TaskVectorStatistics, results: Results
) -> dict[str, dict[str, float]]:
    """Return the precision loss in bfloat16 of each agent that is stored in float32 or float64."""
    counts = [result for (statistic, _), result in results.items() if statistic == _precision_loss(statistics)]
    return {
        name: figures
        for name, figures in losses_of(counts, tuple(plan.inputs.agents)).items()
        if plan.input_dtypes.get(name, "").startswith(("float32", "float64"))
    }


def _agent_thresholds(statistics: TaskVectorStatistics, results: Results, agents: Sequence[str]) -> dict[str, float]:
    """Return each agent's threshold; empty if rules of the recipe give an agent several."""
    sizes = [result for (statistic, _), result in results.items() if statistic == statistics.after]
    if statistics.after is not None and len(sizes) != 1:
        return {}
    each = thresholds(statistics.epsilon, sizes[0] if sizes else None)
    return dict(zip(agents, each * (len(agents) // len(each)), strict=True))


def _cache_counts(plan: MergePlan, statistics: TaskVectorStatistics, tallies: Mapping[str, Tally]) -> None:
    """Cache counts, so that later merges of the same files need no counting pass."""
    cached_counts.keep(
        plan.counts.digest,
        plan.tensors,
        {
            (Moved("model", epsilon=epsilon), name): tally.by_epsilon[row]
            for row, epsilon in enumerate(statistics.epsilons)
            for name, tally in tallies.items()
        },
    )


# --- the recipe, as it is analyzed ------------------------------------------------------------------------------------


def _recipe_to_analyze(document: Document) -> tuple[Document, list[str]]:
    """Return the recipe to analyze, and a note if its own method is left out.

    If the recipe's method cannot be measured, the recipe is analyzed with RAM. Rules that keep or take tensors apply in
    both cases, because a merge would leave those tensors out.
    """
    if document.stated("base") is None:
        raise RecipeError(document.where(("base",), "is missing; without a base there are no task vectors to analyze"))
    notes = []
    if document.method == AUTO:
        document = document.without("method")
        notes = [f"an analysis chooses no method: figures of a merge are those of {DEFAULT_METHOD}, not of auto"]
    parameters = document.stated("parameters")
    epsilon = parameters.get("epsilon", _USUAL_EPSILON) if isinstance(parameters, Mapping) else _USUAL_EPSILON
    name = document.method
    method = METHODS.get(name) if isinstance(name, str) else None
    # What a method leaves of the agents is counted on the way if it is one pass over single elements. An unknown one is
    # refused later.
    if method is None or (method.needs_base and method.side is None and method.elementwise):
        return document, notes
    note = f"what {name} leaves of the agents is not measured; figures of a merge are those of RAM"
    return for_method(document, "ram").replacing({"parameters": {"epsilon": epsilon}}), [note]


def _tensor_part(tensor: TensorPlan, part: AnalyzedPart) -> TensorPart:
    layer = layer_of(tensor.name)
    return TensorPart(
        **vars(part),
        shape=tensor.base.shape,
        dtype=full_name(tensor.base.dtype),
        layer=layer.number if layer else None,
        role=role_of(tensor.name),
    )
