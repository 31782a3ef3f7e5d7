"""The parameter `steps` of methods for checkpoints of a run: the training step of each agent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import Field, PlainValidator, SerializeAsAny, WithJsonSchema

from ramerge.sdk.methods import Agents, Parameters

_NUMBER = re.compile(r"\d+")


def _steps_by_name(value: object) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a number for each agent, such as {{step-10: 10, step-20: 20}}, not {value!r}")
    for name, number in value.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"{name}: must be a finite number, not {number!r}")
    return {str(name): float(number) for name, number in value.items()}


def _distinct_steps(value: object) -> dict[str, float] | None:
    steps = _steps_by_name(value)
    if steps is not None and len(set(steps.values())) < len(steps):
        raise ValueError("two agents have the same step; give each checkpoint once")
    return steps


_SCHEMA = WithJsonSchema({"range": "a number for each agent"})
Numbers: TypeAlias = dict[str, float] | None
NUMBERS: TypeAlias = Annotated[SerializeAsAny[Numbers], PlainValidator(_steps_by_name), _SCHEMA]
"""The type of a parameter with a number for each agent."""

_STEPS: TypeAlias = Annotated[SerializeAsAny[Numbers], PlainValidator(_distinct_steps), _SCHEMA]


class SteppedParameters(Parameters):
    """Parameters of a method for checkpoints of a run."""

    steps: _STEPS = Field(
        None, description="training step of each agent; by default the last number in its name, or else its place"
    )


def steps_of(parameters: SteppedParameters, agents: Agents) -> tuple[float, ...]:
    """Return the training step of each agent: from the parameters, or the last number in its name; if these do not
    distinguish all agents, its place in the recipe, counted from 1.

    Example:
        >>> from ramerge.soups.steps import SteppedParameters, steps_of
        >>> steps_of(SteppedParameters(), ("global_step_10", "global_step_20"))
        (10.0, 20.0)
    """
    if parameters.steps is not None:
        return tuple(parameters.steps[name] for name in agents)
    numbers_of_names = [_NUMBER.findall(name) for name in agents]
    steps = tuple(float(numbers[-1]) for numbers in numbers_of_names if numbers)
    return steps if len(set(steps)) == len(agents) else tuple(float(place) for place in range(1, len(agents) + 1))
