"""When an agent has moved an element: if |agent - base| > epsilon, which is absolute or relative to the task vector.

Absolute thresholds fit agents that are stored in bfloat16, where elements that training did not change stay equal to
the base. In float32, each optimizer step changes nearly all elements, so elements are compared with the root mean
square of the task vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, SerializeAsAny, WithJsonSchema

from ramerge.core.kernels.elementwise import INFINITY, ZERO, Each
from ramerge.core.kernels.sums import squares
from ramerge.core.methods.base import Column, Results
from ramerge.core.methods.sums import Summand, Sums


class Relative(BaseModel):
    """A threshold in units of the root mean square of each agent's task vector."""

    model_config = ConfigDict(frozen=True)

    relative: float

    def __str__(self) -> str:
        return f"{{relative: {self.relative:g}}}"


Epsilon: TypeAlias = float | Relative


def _parse_epsilon(value: object) -> Epsilon:
    if isinstance(value, Relative):
        return value
    if isinstance(value, Mapping):
        if set(value) != {"relative"}:
            raise ValueError(f"must be a number, or {{relative: x}}, not {dict(value)!r}")
        return Relative(relative=_parse_number(value["relative"], "relative: must be a number"))
    return _parse_number(value, "must be a number, or {relative: x}")


def _parse_number(value: object, kind: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{kind}, not {value!r}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{kind}, 0 or more, not {value!r}")
    return float(value)


EPSILON: TypeAlias = Annotated[
    SerializeAsAny[Epsilon],
    PlainValidator(_parse_epsilon),
    WithJsonSchema({"range": "0 or more, or {relative: x} with x of 0 or more"}),
]


def epsilon_field() -> Any:
    return Field(
        1e-5,
        description="an element moved if |agent - base| > epsilon; {relative: x}: if it is more than x times the root "
        "mean square of the agent's task vector",
    )


COLUMN = Column("epsilon", "epsilon", ".3g", "an element moved if |agent - base| is larger", optional=True)


@dataclass(frozen=True)
class RootMeanSquare(Sums[Each]):
    """The root mean square of each agent's task vector, over all tensors that are merged by one rule of the recipe.

    Non-finite values count as 0. The result is one float64 per agent.
    """

    terms = staticmethod(squares)

    def summands(self, required: object) -> list[Summand]:
        return [Summand(finite)]

    @property
    def kept(self) -> str | None:
        return "squares of task vectors"

    def finish(self, total: NDArray[np.int64], elements: int, required: object) -> Each:
        return tuple(math.sqrt(value / elements) if elements else 0.0 for value in self.read(total).tolist())


def finite(t: int, taus: Each) -> float:
    return taus[t] if abs(taus[t]) < INFINITY else ZERO


RELATIVE = (
    "To keep RAM, count only what an agent moved by more than the root mean square of its task vector: "
    "`--set parameters.epsilon.relative=1` (in a recipe `parameters: {epsilon: {relative: 1}}`)"
)
"""Advice for when an absolute threshold does not separate moved parameters from unmoved ones."""

WHERE_TO_BEGIN = (
    "With a few prompts of each agent's task, `ramerge search` chooses a method; without prompts, `ramerge recommend` "
    "names the one to try first"
)
"""The advice on which method to use instead; no warning recommends a method itself."""
GUIDE_TO_ADAPTERS = 'the guide "Merge LoRA adapters" has what was measured'
GUIDE = 'the guide "Merge float32 agents" lists what to do, in order'
"""The guide that all warnings about float32 agents refer to."""


def absolute(parameters: object) -> float | None:
    """The absolute epsilon of a method's parameters; None if epsilon is relative, or if there is none."""
    epsilon = getattr(parameters, "epsilon", None)
    return epsilon if isinstance(epsilon, float) else None


def measured(epsilon: Epsilon) -> RootMeanSquare | None:
    """The statistic that a relative epsilon needs; None for an absolute epsilon."""
    return RootMeanSquare("model") if isinstance(epsilon, Relative) else None


def factor(epsilon: Epsilon) -> float:
    """The number in an epsilon: a multiple of each task vector's root mean square if relative, else the threshold."""
    return epsilon.relative if isinstance(epsilon, Relative) else epsilon


def shown(epsilon: Epsilon) -> str:
    """An epsilon as text for a report: `0.5 x rms` or `1e-05`."""
    return f"{epsilon.relative:g} x rms" if isinstance(epsilon, Relative) else f"{epsilon:g}"


def thresholds(factor: float, sizes: Each | None) -> Each:
    """Return each agent's threshold, or only one number if all agents share it.

    Args:
        sizes: the root mean square of each agent's task vector, for a relative epsilon; None for an absolute epsilon.
    """
    return (factor,) if sizes is None else tuple(factor * size for size in sizes)


def thresholds_of(epsilon: Epsilon, results: Results) -> Each:
    size = measured(epsilon)
    return thresholds(factor(epsilon), results[size] if size is not None else None)
