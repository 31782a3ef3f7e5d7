"""What RL changed: sparsity, overlap and angles of task vectors, and what merges leave of them (sections 3.1 and 3.2).

One streaming read of the inputs. `anatomy` counts, tensor by tensor; `results` says what the counts mean.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramerge.analysis.findings import finding_of_broken, findings_of
from ramerge.analysis.parts import AnalyzedPart, TensorPart, part_of
from ramerge.analysis.precision_loss import Narrowing, finding_of, narrowed
from ramerge.analysis.results import Analysis
from ramerge.analysis.roles import ROLES, role_of
from ramerge.analysis.task_vector_statistics import Anatomy, Tally
from ramerge.engine.execute import observe
from ramerge.engine.executors.executor import Executor
from ramerge.engine.result_codec import Results
from ramerge.engine.warn import advice, effects, inspect, refuse, spoiled, warnings_of
from ramerge.foundation.dtypes import full_name
from ramerge.foundation.errors import PlanError, RecipeError
from ramerge.foundation.events import Listener, silence
from ramerge.foundation.machine import peak_memory
from ramerge.foundation.text import without_secrets
from ramerge.foundation.version import __version__
from ramerge.methods.base import Counts
from ramerge.methods.moved import Relative, factor, measured, shown, thresholds
from ramerge.methods.ram import Moved
from ramerge.methods.registry import METHODS
from ramerge.planning import cached_counts
from ramerge.planning.build import make_plan
from ramerge.planning.model import MergePlan, TensorPlan
from ramerge.recipe.document import Document
from ramerge.recipe.layers import LayerRange, layer_of
from ramerge.recipe.model import DEFAULT_METHOD
from ramerge.recipe.points import make_points

EPSILONS = (1e-4, 1e-5, 1e-6, 0.0)
"""Thresholds that are compared, besides the recipe's own."""

_USUAL_EPSILON = 1e-5


def plan_analysis(
    document: Document,
    *,
    epsilons: Sequence[float] = EPSILONS,
    threads: int | None = None,
    max_memory: int | str | None = None,
    cache: bool = True,
    strict: bool = False,
) -> tuple[MergePlan, Anatomy]:
    """What an analysis reads and counts.

    Args:
        document: the recipe, in ramerge's own form; it is checked here, because what is only of use to its method may
            be wrong or absent.
        epsilons: further thresholds that are compared.
        threads, max_memory, cache, strict: as for `planning.build.make_plan`.

    Raises:
        RecipeError: the recipe or the thresholds are wrong.
    """
    document, left_out = _for_analysis(document)
    wrong = [value for value in epsilons if isinstance(value, bool) or not 0 <= value < float("inf")]
    if wrong:
        raise RecipeError([f"epsilons: {value!r} must be a number, 0 or more" for value in wrong])
    points = make_points(document)
    epsilon = getattr(points[0].parameters[0], "epsilon", _USUAL_EPSILON)
    own = () if isinstance(epsilon, Relative) else (epsilon,)
    asked = tuple(sorted({float(value) for value in (*epsilons, *own)}, reverse=True))
    anatomy = Anatomy(
        "tensor",
        measured(epsilon),
        agents=len(points[0].recipe.agents),
        epsilon=factor(epsilon),
        epsilons=asked,
    )
    plan = make_plan(
        points,
        observed=(anatomy, narrowing_of(anatomy)),
        threads=threads,
        max_memory=max_memory,
        cache=cache,
        strict=strict,
        notes=left_out,
    )
    return plan, anatomy


def analyze(
    plan: MergePlan,
    anatomy: Anatomy,
    executor: Executor,
    listen: Listener = silence,
) -> Analysis:
    """Carry out what `plan_analysis` planned.

    Args:
        plan, anatomy: what it planned.
        executor, listen: as for `engine.execute.observe`.

    Raises:
        PlanError: the plan has problems.
        WeightsError: values that are not finite.
        CheckpointError: an input cannot be read.
    """
    if plan.problems:
        raise PlanError(plan.problems)
    began = time.monotonic()
    seen = inspect(plan)
    narrowing = narrowing_of(anatomy)
    observed = observe(plan, (anatomy, narrowing), executor, listen)
    known = observed.results
    tensors = [tensor for tensor in plan.tensors if tensor.merged]
    tallies = {tensor.name: known[anatomy, tensor.part("tensor")] for tensor in tensors}
    _leave_counts(plan, anatomy, tallies)
    names = tuple(plan.agents)

    def part(name: str, members: Sequence[TensorPlan]) -> AnalyzedPart:
        found = [tallies[tensor.name] for tensor in members]
        total = found[0] if len(found) == 1 else Tally.total(found, len(names), len(anatomy.epsilons))
        return part_of(name, len(members), total, names, anatomy.epsilons)

    model = part("model", tensors)
    densities = {agent.name: agent.density for agent in model.agents}
    warnings = warnings_of(plan, [*seen, *spoiled(observed.non_finite)], observed.rounding, plan.parameters, densities)
    refuse(plan, warnings)
    lost = narrowed([result for (statistic, _), result in known.items() if statistic == narrowing], names)
    stored = {name: plan.input_dtypes.get(name, "") for name in names}
    wide = {name: figures for name, figures in lost.items() if stored[name].startswith(("float32", "float64"))}
    layers = _layers(tensors)
    epsilon = Relative(relative=anatomy.epsilon) if anatomy.after else anatomy.epsilon
    return Analysis(
        ramerge_version=__version__,
        base=without_secrets(str(plan.recipe.base)),
        models={name: without_secrets(agent.written) for name, agent in plan.recipe.agents.items()},
        epsilon=None if anatomy.after else anatomy.epsilon,
        relative_epsilon=anatomy.epsilon if anatomy.after else None,
        thresholds=_thresholds(anatomy, known, names),
        epsilons=anatomy.epsilons,
        method=plan.method.name,
        input_dtypes=plan.input_dtypes,
        dtype=plan.dtype,
        rounding=_rounding(plan, observed.rounding),
        narrowing=wide,
        model=model,
        layers=tuple(part(name, members) for name, members in layers.items()),
        roles=tuple(part(role, members) for role, members in _roles(tensors).items()),
        tensors=tuple(_tensor(tensor, part(tensor.name, [tensor])) for tensor in tensors),
        findings=finding_of_broken(model, {label: found.count for label, found in observed.non_finite.items()})
        or (*findings_of(model, plan.dtype, plan.adapters), *finding_of(wide, shown(epsilon))),
        notes=(*plan.notes, *advice(plan, observed.rounding)),
        warnings=warnings,
        recipe=without_secrets(
            {
                "method": plan.recipe.method,
                **plan.recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True, by_alias=True),
            }
        ),
        bytes_read=plan.bytes_read,
        seconds=round(time.monotonic() - began, 3),
        peak_memory_bytes=peak_memory(),
    )


def narrowing_of(anatomy: Anatomy) -> Narrowing:
    """The statistic that is counted beside an anatomy."""
    return Narrowing("model", anatomy.after, agents=anatomy.agents, epsilon=anatomy.epsilon)


def _thresholds(anatomy: Anatomy, known: Results, agents: Sequence[str]) -> dict[str, float]:
    """Each agent's threshold; empty if rules give it several."""
    sizes = [result for (statistic, _), result in known.items() if statistic == anatomy.after]
    if anatomy.after is not None and len(sizes) != 1:
        return {}
    each = thresholds(anatomy.epsilon, sizes[0] if sizes else None)
    return dict(zip(agents, each * (len(agents) // len(each)), strict=True))


def _rounding(plan: MergePlan, counts: Counts) -> dict[str, dict[str, Any]]:
    """What rounding to the output's dtype does to each agent's updates; empty where it can do nothing."""
    return dict(zip(plan.agents, effects(counts), strict=True)) if plan.rounds_updates else {}


def _leave_counts(plan: MergePlan, anatomy: Anatomy, tallies: Mapping[str, Tally]) -> None:
    """Spare later merges of the same files their counting pass."""
    cached_counts.keep(
        plan.digest,
        plan.tensors,
        {
            (Moved("model", epsilon=epsilon), name): tally.by_epsilon[row]
            for row, epsilon in enumerate(anatomy.epsilons)
            for name, tally in tallies.items()
        },
    )


def _for_analysis(document: Document) -> tuple[Document, list[str]]:
    """The recipe as it is analysed, and a note if its own method is left out.

    What the recipe's method makes of the agents is measured with the rest, if it works element by element on task
    vectors. Otherwise the recipe is read as RAM's. Rules that keep or take tensors hold in both cases, because a merge
    would leave those out.
    """
    values = dict(document.values)
    if values.get("base") is None:
        raise RecipeError(document.where(("base",), "is missing; without a base there are no task vectors to analyse"))
    given = values.get("parameters")
    epsilon = given.get("epsilon", _USUAL_EPSILON) if isinstance(given, Mapping) else _USUAL_EPSILON
    name = values.get("method", DEFAULT_METHOD)
    if _is_measured(name) or not isinstance(name, str) or name not in METHODS:  # an unknown one is refused later
        return document, []
    values.pop("preset", None)
    values["method"], values["parameters"] = "ram", {"epsilon": epsilon}
    if isinstance(values.get("rules"), list | tuple):
        values["rules"] = [_without_parameters(rule) for rule in values["rules"]]
    if isinstance(values.get("agents"), Mapping):
        values["agents"] = {name: _without_importance(agent) for name, agent in values["agents"].items()}
    note = f"what {name} itself leaves of the agents is not measured; all figures are RAM's"
    return replace(document, values=values), [note]


def _is_measured(name: Any) -> bool:
    """Whether what a method leaves of the agents can be counted on the way: it is one pass over single elements."""
    method = METHODS.get(name) if isinstance(name, str) else None
    return method is not None and method.needs_base and not method.needs_importance and method.elementwise


def _without_parameters(rule: Any) -> Any:
    changes = isinstance(rule, Mapping) and rule.get("parameters") is not None
    return {**rule, "parameters": {}} if changes else rule


def _without_importance(agent: Any) -> Any:
    return {key: value for key, value in agent.items() if key != "importance"} if isinstance(agent, Mapping) else agent


def _layers(tensors: Iterable[TensorPlan]) -> dict[str, list[TensorPlan]]:
    """Tensors by layer; where a model has several stacks of layers, each under its own name."""
    found: dict[LayerRange, list[TensorPlan]] = {}
    for tensor in tensors:
        if (layer := layer_of(tensor.name)) is not None:
            found.setdefault(layer, []).append(tensor)
    several = len({layer.stack for layer in found}) > 1
    return {
        f"{layer.stack} {layer.number}" if several else f"layer {layer.number}": found[layer] for layer in sorted(found)
    }


def _roles(tensors: Iterable[TensorPlan]) -> dict[str, list[TensorPlan]]:
    found: dict[str, list[TensorPlan]] = {}
    for tensor in tensors:
        found.setdefault(role_of(tensor.name), []).append(tensor)
    return {role: found[role] for role in ROLES if role in found}


def _tensor(tensor: TensorPlan, part: AnalyzedPart) -> TensorPart:
    layer = layer_of(tensor.name)
    return TensorPart(
        part=part,
        shape=tensor.base.shape,
        dtype=full_name(tensor.base.dtype),
        layer=layer.number if layer else None,
        role=role_of(tensor.name),
    )
