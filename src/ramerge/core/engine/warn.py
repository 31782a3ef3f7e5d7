"""Warnings about weights, before and after the passes. In a strict plan, they are errors that prevent the output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ramerge.core.engine.sanity_checks import WrongModel, sanity_warnings
from ramerge.core.engine.tally import NonFinite
from ramerge.core.foundation.errors import WeightsError
from ramerge.core.kernels import effect
from ramerge.core.kernels.rounding import ROWS
from ramerge.core.methods.base import Counts
from ramerge.core.methods.moved import GUIDE, absolute
from ramerge.core.planning.explain import fine_agents, forecast_of_density, forecast_of_rounding, instead_of_averaging
from ramerge.core.planning.model import MergePlan

# The user is warned if rounding erases a larger share of an agent's updates than this.
_MUCH = 0.1
# An effective lambda is reported if it is further from the nominal lambda than this share of it plus so many errors,
_FAR, _ERRORS = 0.05, 4
# or if it keeps less than half of the amount by which the nominal lambda exceeds 1, if that is more than `_LEAST`.
_MOST, _LEAST = 0.5, 0.01
# If an agent has moved a larger share of all elements, the threshold does not separate moved parameters from others.
_DENSE = 2 / 3


class AboutMethod(str):
    """A warning about the effect of the recipe's method on these agents; other methods may have other effects.

    Attributes:
        says_where_to_begin: whether the warning names a method to try first, as `recommend` does.
    """

    __slots__ = ()
    says_where_to_begin: ClassVar[bool] = False


class SaysWhereToBegin(AboutMethod):
    """A warning that names another method to try first."""

    __slots__ = ()
    says_where_to_begin = True


def inspect(plan: MergePlan) -> tuple[str, ...]:
    """Return warnings from a sample of the weights, before anything is merged.

    Raises:
        WeightsError: the plan is strict, and there are warnings.
        CheckpointError: an input cannot be read.
    """
    warnings = tuple(sanity_warnings(plan))
    refuse_if_strict(plan, warnings)
    return warnings


def refuse_wrong_models(plan: MergePlan, warnings: Iterable[str]) -> None:
    """Raise if the base looks like an agent, or agents have another base, unless the recipe allows it."""
    wrong = [text for text in warnings if isinstance(text, WrongModel) and not getattr(plan.recipe.allow, text.allow)]
    if wrong:
        raise WeightsError([f"{text} (--set allow.{text.allow}=true merges them as they are)" for text in wrong])


def spoiled(non_finite: Mapping[str, NonFinite]) -> list[str]:
    """Return a warning for each input that holds allowed NaN and Inf."""
    return [
        f"{each.first.place}: {label}: {each.count:,} of {each.elements:,} values are NaN or Inf in "
        f"{f'{each.tensors:,} tensors, first' if each.tensors > 1 else 'tensor'} {each.first.name!r}; "
        "allow.non_finite computes with them: depending on the method, the output has NaN or Inf there, or the other "
        "models' values"
        for label, each in non_finite.items()
    ]


def effects(rounding: Counts) -> list[dict[str, Any]]:
    """Return the effects of rounding on each agent's updates, for the record.

    Args:
        rounding: int64, laid out as in `kernels.piece.rounding_counts`.

    Returns:
        For each agent, `updates` and `erased`, in elements; `erased_share`, erased / updates; and the figures of a
        sample that `kernels.effect.figures` returns.
    """
    exact = [
        {"updates": updates, "erased": erasures, "erased_share": erasures / updates if updates else 0.0}
        for updates, erasures in rounding[: len(ROWS)].T.tolist()
    ]
    return [{**one, **more} for one, more in zip(exact, effect.figures(rounding[len(ROWS) :]), strict=True)]


def warnings_of(
    plan: MergePlan,
    sample_warnings: Sequence[str],
    rounding: Counts,
    parameters: object,
    densities: Mapping[str, float],
) -> tuple[str, ...]:
    """Return all warnings of a point, for its record.

    Args:
        plan: the plan, whose own warnings come first.
        sample_warnings: the results of `inspect` and `spoiled`.
        rounding: int64 counts of rounding, as for `effects`; if the plan does not count them, the forecast from headers
            is used.
        parameters: the method's parameters.
        densities: the share of elements that each agent moved, by name; if empty, the forecast from headers is used.
    """
    erasures = _erasure_warnings(plan, rounding) if plan.rounds_updates else forecast_of_rounding(plan)
    dense = _density_warnings(plan, absolute(parameters), densities) if densities else forecast_of_density(plan)
    return (*plan.findings.warnings, *sample_warnings, *erasures, *dense)


def _density_warnings(plan: MergePlan, epsilon: float | None, densities: Mapping[str, float]) -> Sequence[str]:
    """Warn if agents moved so many elements that most are shared, and therefore averaged."""
    dense_agents = {name: density for name, density in densities.items() if density > _DENSE}
    if epsilon is None or len(densities) == 1 or not dense_agents:
        return ()
    consequence = "so most parameters are shared, and RAM averages them. "
    if fine := {name: why for name, why in fine_agents(plan).items() if name in dense_agents}:
        counts = ", ".join(f"{dense_agents[name]:.0%} of {name} ({why})" for name, why in fine.items())
        return [
            SaysWhereToBegin(
                f"epsilon = {epsilon:g} is too small to separate what training moved from rounding: it counts {counts} "
                f"as moved, {consequence}{instead_of_averaging(plan)}"
            )
        ]
    if len(dense_agents) == 1:
        return ()
    counts = ", ".join(f"{density:.0%} of {name}" for name, density in dense_agents.items())
    text = f"training moved {counts} by more than epsilon = {epsilon:g}, {consequence}{instead_of_averaging(plan)}"
    return [
        SaysWhereToBegin(
            f"{text}. Check that the base is the right one: with such dense agents, a wrong base may go unnoticed"
        )
    ]


def rounding_notes(plan: MergePlan, rounding: Counts) -> list[str]:
    """Return a note if rounding to nearest changes the factor of an agent's updates that the merge computed.

    Agents of whose updates so much is erased that a warning says so are left out.
    """
    if not plan.rounds_updates or plan.recipe.seed is not None:
        return []
    far = []
    for name, figures in zip(plan.inputs.agents, effects(rounding), strict=True):
        effective, nominal = figures["effective_lambda"], figures["nominal_lambda"]
        if effective is None or figures["erased_share"] > _MUCH:
            continue
        apart, error = abs(effective - nominal), _ERRORS * figures["effective_error"]
        # the factor is a different lambda, or has lost most of its excess over 1
        if apart > _FAR * abs(nominal) + error or (nominal > 1 + _LEAST and apart > _MOST * (nominal - 1) + error):
            far.append(f"{name} {effective:.3f} instead of {nominal:.3f}")
    if not far:
        return []
    on_average = "" if plan.is_quantized else "`rounding: stochastic` keeps the factor on average, "
    return [
        f"rounding to {_dtype_names(plan)} changes the factor of unique updates ({plan.method.name}, from a sample): "
        f"{', '.join(far)}; {on_average}`dtype: {plan.exact_dtype}` keeps it exactly"
    ]


def _dtype_names(plan: MergePlan) -> str:
    return "the output's dtypes" if plan.dtype == "mixed" else plan.dtype


def _erasure_warnings(plan: MergePlan, rounding: Counts) -> list[str]:
    """Return warnings if rounding to the output's dtype erases much of an agent, or rounds tensors taken from an agent.

    Stochastic rounding erases updates too, but enlarges others by as much.
    """
    result: list[str] = []
    shares = {name: effect["erased_share"] for name, effect in zip(plan.inputs.agents, effects(rounding), strict=True)}
    much = [f"{share:.0%} of the changes of {name}" for name, share in shares.items() if share > _MUCH]
    keep = f"`--dtype {plan.exact_dtype}` keeps it"
    dtype = _dtype_names(plan)
    on_average = (
        ""
        if plan.is_quantized  # codes are rounded to nearest only
        else "`--rounding stochastic` keeps it on average; "
    )
    if much and plan.recipe.seed is None:
        result.append(
            AboutMethod(
                f"rounding to {dtype} erases much of what {plan.method.name} changes: it undoes {', '.join(much)}; "
                f"{on_average}{keep} exactly{f'; {GUIDE}' if fine_agents(plan) else ''}"
            )
        )
    if copies := plan.narrowed_copies:
        what = f"{len(copies):,} tensor{'s' if len(copies) > 1 else ''} that rules take from agents"
        result.append(f"{what} are rounded to {dtype}, and what that erases is not counted; {keep}")
    return result


def refuse_if_strict(plan: MergePlan, warnings: Iterable[str]) -> None:
    """Turn warnings into an error if the plan is strict.

    Raises:
        WeightsError: the plan is strict, and there are warnings.
    """
    problems = dict.fromkeys(warnings)
    if plan.strict and problems:
        raise WeightsError(problems)
