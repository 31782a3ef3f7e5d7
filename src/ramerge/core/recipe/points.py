"""The merges of a recipe: one, or, if parameters are varied, one for each combination of values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.settings import check_mapping
from ramerge.core.foundation.text import TOO_LARGE, is_too_large
from ramerge.core.methods.base import Method, Statistic
from ramerge.core.methods.means import MeanMethod
from ramerge.core.methods.registry import METHODS, all_parameters, complete
from ramerge.core.recipe.checks import check
from ramerge.core.recipe.document import Document
from ramerge.core.recipe.model import Recipe

_MOST_POINTS = 1000
_LONGEST_NAME = 200  # in bytes; file systems take 255
_PARAMETER_KEY = re.compile(r"parameters\.\w+(\..+)?")


@dataclass(frozen=True)
class Point:
    """One merge of the inputs: a method with parameters. A sweep has several points.

    Attributes:
        name: the name of its folder in the output of a sweep; empty for a single merge.
        varied: the values that replace the recipe's, by key.
        recipe: the recipe with these values.
        method: the method.
        parameters: first the parameters for tensors without a matching rule, then those for each rule.
    """

    name: str
    varied: Mapping[str, object]
    recipe: Recipe
    method: Method
    parameters: tuple[Any, ...]

    @property
    def uses_base(self) -> bool:
        """Whether the method works on task vectors; otherwise the base only gives the layout."""
        return self.method.needs_base or (self.method.takes_base and self.recipe.base is not None)

    def mean(self, rule: int) -> tuple[float, ...] | None:
        """The agents' weights in the mean for the tensors of a rule; None if the method is not a mean."""
        if not isinstance(self.method, MeanMethod):
            return None
        return self.method.weights(self.parameters[rule], tuple(self.recipe.agents))

    @property
    def for_adapters(self) -> Point:
        """The same merge with the method's defaults for LoRA adapters, except for values in the recipe."""
        adapter_parameters = (
            one.model_copy(update={k: v for k, v in self.method.for_adapters.items() if k not in one.model_fields_set})
            for one in self.parameters
        )
        return replace(self, parameters=tuple(adapter_parameters))

    def statistics(self, rule: int) -> tuple[Statistic, ...]:
        """The statistics that must be counted before the tensors of a rule can be merged."""
        return self.method.statistics(self.parameters[rule], tuple(self.recipe.agents))

    def reported(self, rule: int) -> Statistic | None:
        """The statistic of a rule's tensors that goes into the record."""
        return self.method.reported(self.parameters[rule], tuple(self.recipe.agents))


def means_of(points: Sequence[Point], rule: int) -> tuple[tuple[float, ...], ...]:
    """The weights of all different means for the tensors of a rule; empty if the method is not a mean."""
    return tuple(dict.fromkeys(mean for point in points if (mean := point.mean(rule)) is not None))


def make_points(document: Document, vary: Mapping[str, Sequence[object]] | None = None) -> tuple[Point, ...]:
    """Make and check the points of a recipe.

    Args:
        document: the recipe, in ramerge's own form.
        vary: lists of values by key, such as `parameters.r`; None to vary nothing.

    Raises:
        RecipeError: the recipe or `vary` is wrong; lists all problems of all points.
    """
    if not vary:
        return (_make_point("", {}, check(document)),)
    check_variation(vary)
    points: list[Point] = []
    problems: list[str] = []
    combinations = [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]
    for name, combination in zip(folders_of(combinations), combinations, strict=True):
        try:
            points.append(_make_point(name, combination, check(document.with_values(combination, "--vary "))))
        except RecipeError as error:
            problems += error.messages
    if problems:
        raise RecipeError(dict.fromkeys(problems))
    return tuple(points)


def _make_point(name: str, variation: Mapping[str, object], recipe: Recipe) -> Point:
    method = METHODS[recipe.method]
    parameters = complete(method, recipe.preset, recipe.parameters)
    rules = [method.parameters(**{**parameters, **(rule.parameters or {})}) for rule in recipe.rules]
    return Point(name, variation, recipe, method, (method.parameters(**parameters), *rules))


def check_variation(vary: Mapping[str, Sequence[object]]) -> None:
    """Check the keys and values of `vary` as far as they do not depend on the method.

    Raises:
        RecipeError: a key cannot be varied, values are missing or repeated, or there are too many points.
    """
    check_mapping("vary", vary, '{"parameters.r": [0, 0.1]}')
    if single := [key for key, values in vary.items() if not hasattr(values, "__len__")]:
        raise RecipeError(f"--vary {key}: needs a list of values, such as 0,0.1,0.2" for key in single)
    problems = []
    for key, values in vary.items():
        if not _PARAMETER_KEY.fullmatch(key):
            hint = f"did you mean parameters.{key}?" if key in all_parameters() else "name one, such as parameters.r"
            problems.append(
                f"--vary {key}: only parameters can be varied here, and `ramerge search` varies other keys, too; {hint}"
            )
        if isinstance(values, str) or not len(values):
            problems.append(f"--vary {key}: needs values, such as 0,0.1,0.2")
        elif is_too_large(list(values)):
            problems.append(f"--vary {key}: {TOO_LARGE}")
        elif any(value in values[:index] for index, value in enumerate(values)):
            problems.append(f"--vary {key}: a value is given twice")
    problems += [
        f"--vary {key}: is a part of {whole}, which is varied too; vary only one of them"
        for whole in vary
        for key in vary
        if key.startswith(f"{whole}.")
    ]
    count = prod(max(len(values), 1) for values in vary.values())
    if count > _MOST_POINTS:
        problems.append(f"--vary: asks for {count:,} points; at most {_MOST_POINTS:,} are possible; give fewer values")
    if problems:
        raise RecipeError(problems)


def folders_of(combinations: Sequence[Mapping[str, object]]) -> list[str]:
    """Names of folders, such as `r=0.1,alpha=2`; `point-1` and so on if such names would be too long or not unique."""
    names = [
        re.sub(
            r"[^\w.,=+-]", "_", ",".join(f"{key.removeprefix('parameters.')}={value}" for key, value in values.items())
        )
        for values in combinations
    ]
    if len(set(names)) == len(names) and all(len(name.encode()) <= _LONGEST_NAME for name in names):
        return names
    return [f"point-{number}" for number in range(1, len(names) + 1)]
