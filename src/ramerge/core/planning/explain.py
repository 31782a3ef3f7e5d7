"""A plan as text, as plain values, and the warnings that follow from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ramerge.core.foundation.dtypes import full_name
from ramerge.core.foundation.text import brief, enumerated, quantity, without_secrets
from ramerge.core.methods.moved import GUIDE, GUIDE_TO_ADAPTERS, RELATIVE, WHERE_TO_BEGIN, absolute
from ramerge.core.planning.model import MergePlan, matrices_of
from ramerge.core.recipe.document import DEFAULT_METHOD

_FEW = 8
_BY_DEFAULT = (
    f"Using the default, {DEFAULT_METHOD.upper()}. Other methods often score higher; `ramerge search` compares them."
)


def dtypes_of(inputs: Mapping[str, str], output: str) -> str:
    """Text with the dtypes of all inputs and of the output; for many inputs, how many have each dtype."""
    if len(inputs) > _FEW:
        counts = Counter(inputs.values()).items()
        return ", ".join([*[f"{quantity(count, 'input')} {dtype}" for dtype, count in counts], f"output {output}"])
    return ", ".join([*[f"{name} {dtype}" for name, dtype in inputs.items()], f"output {output}"])


def explain(plan: MergePlan) -> list[str]:
    """A plan as lines of text."""
    values, problems = values_of(plan), objections(plan)

    def place(name: str, folder: str) -> str:
        return f"{folder} ({values['formats'][name]})" if name in values["formats"] else folder

    default = "" if "method" in plan.recipe.model_fields_set else ", the default"
    settings = ", ".join(f"{k} = {v}" for k, v in values["parameters"].items())
    without_base = f"none needed; where a message says base, it is {next(iter(values['agents']))}, the first agent"
    rows = [
        *([("method", f"{values['method']}{default} ({settings})")] if plan.method.combines else []),
        *([("base", place("base", values["base"]))] if plan.recipe.base is not None else []),
        *([("base", without_base)] if plan.recipe.base is None and plan.method.combines else []),
        *[
            (f"agent {name}" if plan.method.combines else name, place(name, folder))
            for name, folder in values["agents"].items()
        ],
    ]
    if plan.tensors:
        largest = " x ".join(f"{side:,}" for side in values["largest_matrix"])
        share = values["matrix_parameters"] / max(values["parameters_count"], 1)
        matrices = f"{values['whole_matrices']:,}, the largest {largest}; {share:.0%} of the parameters"
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in values["dtypes"].items())
        shards = values["shards"]
        rows += [
            ("dtypes", dtypes_of(values["input_dtypes"], plan.dtype)),
            *([("rounding", f"stochastic, seed {plan.recipe.seed}")] if plan.recipe.seed is not None else []),
            ("tensors", f"{values['tensors']:,} ({dtypes}), {values['parameters_count']:,} parameters"),
            *([("whole matrices", matrices)] if largest else []),
            ("shards", f"{len(shards)} ({shards[0]}{', ...' if len(shards) > 1 else ''})"),
            ("other files", brief(", ".join(values["companions"]), 500) or "none"),
            ("read", f"{_format_bytes(values['bytes_read'])} in {quantity(values['passes'], 'pass', 'passes')}"),
            ("write", plan.output.kind.written(plan, _format_bytes(values["bytes_written"]))),
            *([("counts", "cached by an earlier run on the same files")] if values["counts"] != "read" else []),
            *([("device", values["device"])] if values["device"] != "cpu" else []),
            (
                "peak memory",
                f"at most {_format_bytes(values['peak_memory_bytes'])}, {quantity(values['workers'], 'thread')}",
            ),
        ]
    if plan.output.disk_free is not None:
        rows += [("output", str(plan.output.target)), ("free disk", _format_bytes(plan.output.disk_free))]
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}}  {text}" for label, text in rows]
    notes = [*([_BY_DEFAULT] if default and len(values["agents"]) > 1 else []), *plan.findings.notes]
    lines += [f"note: {note}" for note in notes]
    do, work = ("merge", "merge") if plan.method.combines else ("convert", "conversion")
    lines.append(f"problems: {len(problems)}" if problems else f"ready to {do}; the {work} checks the weights")
    return lines


def _format_bytes(size: int) -> str:
    from rich.filesize import decimal

    return f"{decimal(size)} ({size:,} bytes)" if size >= 1000 else f"{size} bytes"


def values_of(plan: MergePlan) -> dict[str, Any]:
    """A plan as plain values, without secrets; docs/reference/files.md describes them."""
    matrices = [tensor.matrix for tensor in matrices_of(plan.points, plan.tensors)]
    dtypes = {part.name: part.dtype for tensor in plan.tensors for part in tensor.parts}
    values = {
        "method": plan.method.name,
        "parameters": plan.parameters.in_effect(),
        "points": [{"name": point.name, **point.varied} for point in plan.points] if plan.is_sweep else [],
        "base": plan.inputs.base.location,
        "agents": {name: model.location for name, model in plan.inputs.agents.items()},
        "formats": dict(plan.inputs.formats),
        "out": str(plan.output.target) if plan.output.target else None,
        "tensors": plan.tensors_count,
        "merged_tensors": plan.merged_tensors_count,
        "whole_matrices": len(matrices),
        "largest_matrix": list(max(matrices, key=math.prod, default=())),
        "matrix_parameters": sum(map(math.prod, matrices)),
        "rules": [
            {"tensors": count, **rule.model_dump(mode="json", exclude_none=True)}
            for rule, count in zip(plan.recipe.rules, plan.caught, strict=True)
        ],
        "parameters_count": plan.parameters_count,
        "input_dtypes": plan.input_dtypes,
        "rounding": plan.recipe.rounding,
        "rounding_seed": plan.recipe.seed,
        "dtypes": dict(Counter(map(full_name, dtypes.values()))),
        "shards": [shard.name for shard in plan.shards],
        "companions": sorted(plan.companions),
        "passes": plan.passes,
        "counts": plan.counts.origin,
        "bytes_read": plan.bytes_read,
        "bytes_written": plan.bytes_written,
        "disk_free": plan.output.disk_free,
        "workers": plan.resources.workers,
        "block_elements": plan.resources.block_elements,
        "peak_memory_bytes": plan.resources.peak_memory_bytes,
        "device": plan.resources.device_name,
        "notes": list(plan.findings.notes),
        "warnings": list(doubts(plan)),
        "problems": list(objections(plan)),
    }
    return without_secrets(values)


# --- warnings that follow from a plan --------------------------------------------------------------------------------


def objections(plan: MergePlan) -> tuple[str, ...]:
    """The problems; in a strict plan also the forecast, although the merge may turn out to have no such problem."""
    return (*plan.findings.problems, *(forecast(plan) if plan.strict else ()))


def doubts(plan: MergePlan) -> tuple[str, ...]:
    """The warnings and the forecast, except those that are `objections`."""
    return (*plan.findings.warnings, *(() if plan.strict else forecast(plan)))


def forecast(plan: MergePlan) -> tuple[str, ...]:
    """Warnings, from headers alone, about likely findings of the merge, which then warns only of large effects."""
    return (*forecast_of_rounding(plan), *forecast_of_density(plan))


def fine_agents(plan: MergePlan) -> dict[str, str]:
    """Agents with such a fine dtype that training changes nearly all elements, with the reason."""
    dtypes = {name: plan.input_dtypes.get(name, "") for name in plan.inputs.agents}
    wide = {name: dtype for name, dtype in dtypes.items() if dtype.startswith(("float32", "float64"))}
    return wide | dict.fromkeys(plan.inputs.adapters, "a LoRA adapter")


def merges_only_adapters(plan: MergePlan) -> bool:
    """Whether all agents are LoRA adapters, for which other methods work well than for full models."""
    return set(plan.inputs.adapters) == plan.inputs.agents.keys()


def instead_of_averaging(plan: MergePlan) -> str:
    """Advice for agents that moved nearly every element, so that RAM would average nearly everything."""
    relative = "" if merges_only_adapters(plan) else f". {RELATIVE}"
    guide = GUIDE_TO_ADAPTERS if merges_only_adapters(plan) else GUIDE if fine_agents(plan) else ""
    return f"{WHERE_TO_BEGIN}{relative}{f'; {guide}' if guide else ''}"


def forecast_of_density(plan: MergePlan) -> tuple[str, ...]:
    """A warning, from headers alone, that the threshold may not separate moved elements from others."""
    epsilon, fine = absolute(plan.parameters), fine_agents(plan)
    if epsilon is None or not fine or len(plan.inputs.agents) == 1:
        return ()
    return (
        f"{_agents_by_kind(fine)}: nearly every element may have moved by more than epsilon = {epsilon:g}, and then "
        f"{plan.method.name} averages nearly all. {instead_of_averaging(plan)}",
    )


def forecast_of_rounding(plan: MergePlan) -> tuple[str, ...]:
    """A warning, from headers alone, that rounding will lose updates."""
    wide = {owner for tensor in plan.tensors if tensor.seed is None for owner in tensor.narrowed}
    if not wide:
        return ()
    names = [name for name in plan.inputs.agents if name in wide]
    blind = f", and not counted, because {plan.method.name} does not look at the base"
    uncounted = "" if plan.rounds_updates else blind
    on_average = "" if plan.is_quantized else "`--rounding stochastic` keeps them on average, "
    return (
        f"{_agents_by_kind({name: plan.input_dtypes[name] for name in names})}, the output is {plan.dtype}: updates "
        f"smaller than half a step of that dtype are lost{uncounted}; {on_average}`--dtype {plan.exact_dtype}` "
        f"{'' if on_average else 'keeps them '}exactly: {GUIDE}",
    )


def _agents_by_kind(kinds: Mapping[str, str]) -> str:
    """Text that lists agents by kind: `a, b and c are float32, d is a LoRA adapter`."""
    groups: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault(kind, []).append(name)
    return ", ".join(
        f"{enumerated(names)} are {kind.removeprefix('a ')}{'s' * kind.startswith('a ')}"
        if len(names) > 1
        else f"{names[0]} is {kind}"
        for kind, names in groups.items()
    )
