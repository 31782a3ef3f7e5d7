"""The space of a search: axes over keys of the recipe, the points that they span, and the text of a point.

An axis over a parameter applies only to points whose method has that parameter, so a space over several methods is a
tree: the method first, then its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

from ramerge.core.methods.base import conditions
from ramerge.sdk.methods import METHODS

Point: TypeAlias = dict[str, Any]
"""Values by key of the recipe, such as `{"method": "ram+", "parameters.r": 0.2}`."""

MOST_POINTS = 100_000
_DIGITS = 6  # of a number that a sampler draws, so that a recipe can be read


@dataclass(frozen=True)
class Choices:
    """The listed values of an axis, in no order."""

    values: tuple[Any, ...]

    def enumeration(self) -> tuple[Any, ...]:
        return self.values

    def has(self, value: object) -> bool:
        return value in self.values

    def extremes(self) -> tuple[Any, ...]:
        return self.values

    def as_dict(self) -> list[Any]:
        return list(self.values)


@dataclass(frozen=True)
class ValueRange:
    """The values of an axis from `low` to `high`, both included; `log` makes it logarithmic."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are meant, which are written without a decimal point."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step) if value is not None)

    def enumeration(self) -> tuple[Any, ...] | None:
        """Return all values of the range; None if there are infinitely many."""
        step = self.step or (1 if self.is_whole and not self.log else None)
        if step is None:
            return None
        count = int((self.high - self.low) / step + 1e-9) + 1
        return tuple(self.tidy(self.low + index * step) for index in range(min(count, MOST_POINTS + 1)))

    def has(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def extremes(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def tidy(self, value: float) -> float:
        """Round a value of the range to few digits."""
        if self.is_whole:
            return int(value)
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)

    def as_dict(self) -> dict[str, object]:
        more = ({"step": self.step} if self.step is not None else {}) | ({"log": True} if self.log else {})
        return {"from": self.low, "to": self.high, **more}


@dataclass(frozen=True)
class Axis:
    """An axis of the space: one key that varies.

    Attributes:
        key: the key of the recipe, such as `dtype` or `parameters.r`.
        domain: its values.
        method: the method to which it applies; None for all methods that have the key.
        where: its location for messages, such as `space.yaml:3: parameters.r` or `--vary parameters.r`.
    """

    key: str
    domain: Choices | ValueRange
    method: str | None = None
    where: str = ""

    @property
    def name(self) -> str:
        """The name of the axis in the journal; the same key may have other values with another method."""
        return self.key if self.method is None else f"{self.method}: {self.key}"

    def counts(self, method: str) -> bool:
        """Whether the axis applies to points with this method."""
        return self.method == method or (self.method is None and has_parameter(method, self.key))


def has_parameter(method: str, key: str) -> bool:
    """Whether a method has the parameter of a key; every method accepts keys that are not parameters."""
    name = parameter_of(key)
    return name is None or (method in METHODS and name in METHODS[method].parameters.model_fields)


def parameter_of(key: str) -> str | None:
    """Return the parameter of a key: `r` for `parameters.r` and `parameters.r.x`; None for other keys."""
    first, _, rest = key.partition(".")
    return rest.partition(".")[0] if first == "parameters" else None


@dataclass(frozen=True)
class Space:
    """The space of a search: all its points.

    Attributes:
        methods: the methods; every point names one, even if there is only one, because the recipe may name another.
        axes: all other axes. Axes for a single method come before axes for all methods.
        own_parameters: the recipe's own parameters, which may decide whether another parameter has an effect.
        order: all points in the order in which a grid tries them; empty for the usual order.
    """

    methods: tuple[str, ...]
    axes: tuple[Axis, ...]
    own_parameters: Mapping[str, object] = field(default_factory=dict)
    order: tuple[Point, ...] = ()

    def draw(self, choose: Callable[[Axis], Any]) -> Point:
        """Draw a point: choose on one axis after another."""
        method = choose(self.method_axis) if len(self.methods) > 1 else self.methods[0]
        point: Point = {"method": method}
        for axis in self.axes_of(method):
            if self._has_effect(axis, method, point):
                point[axis.key] = choose(axis)
        return point

    @cached_property
    def method_axis(self) -> Axis:
        """The axis of methods of the space."""
        return Axis("method", Choices(self.methods))

    def axes_of(self, method: str) -> list[Axis]:
        """Return the axes that may apply to a method; axes on which others depend come first.

        The method's own axes replace those for all methods.
        """
        counting = [axis for axis in self.axes if axis.counts(method)]
        own = {axis.key for axis in counting if axis.method is not None}
        counting_once = [axis for axis in counting if axis.method is not None or axis.key not in own]
        return sorted(counting_once, key=lambda axis: bool(_effect_conditions(method, axis.key)))

    def _has_effect(self, axis: Axis, method: str, point: Mapping[str, object]) -> bool:
        """Whether a value on the axis changes anything: some parameters have an effect only with certain values of
        others.
        """
        return all(
            point.get(f"parameters.{name}", self.own_parameters.get(name, _default_value(method, name))) == value
            for name, value in _effect_conditions(method, axis.key).items()
        )

    def has(self, point: Mapping[str, Any]) -> bool:
        """Whether a point can belong to the space: checks its method, keys and values."""
        if (method := point.get("method")) not in self.methods:
            return False
        domains = {axis.key: axis.domain for axis in self.axes_of(method)}
        return all(key == "method" or (key in domains and domains[key].has(value)) for key, value in point.items())

    def idle(self) -> Iterator[tuple[Axis, Mapping[str, object]]]:
        """Yield axes that change nothing at any point, with the values of other parameters that they would need."""
        for axis in self.axes:
            methods = [method for method in self.methods if axis in self.axes_of(method)]
            if methods and not any(self._may_matter(axis, method) for method in methods):
                yield axis, _effect_conditions(methods[0], axis.key)

    def _may_matter(self, axis: Axis, method: str) -> bool:
        """Whether the axis has an effect at some point with the method."""
        domains = {other.key: other.domain for other in self.axes_of(method)}

        def can_be(name: str, value: object) -> bool:
            domain = domains.get(f"parameters.{name}")
            if domain is None:
                return self.own_parameters.get(name, _default_value(method, name)) == value
            values = domain.enumeration()
            return values is None or value in values

        return all(can_be(name, value) for name, value in _effect_conditions(method, axis.key).items())

    @property
    def is_listed(self) -> bool:
        """Whether the points of the space can be listed."""
        return all(axis.domain.enumeration() is not None for axis in self.axes)

    def points(self) -> Iterator[Point]:
        """Yield all points of a space that can be listed: in `order`, or with the last axis varying fastest."""
        if self.order:
            yield from self.order
            return
        for method in self.methods:
            yield from self._enumerate_points({"method": method}, method, self.axes_of(method))

    def _enumerate_points(self, point: Point, method: str, axes: Sequence[Axis]) -> Iterator[Point]:
        if not axes:
            yield point
        elif not self._has_effect(axes[0], method, point):
            yield from self._enumerate_points(point, method, axes[1:])
        else:
            for value in axes[0].domain.enumeration() or ():
                yield from self._enumerate_points({**point, axes[0].key: value}, method, axes[1:])

    @cached_property
    def size(self) -> int | None:
        """The number of points, at most `MOST_POINTS` + 1; None if infinite."""
        return sum(1 for _ in islice(self.points(), MOST_POINTS + 1)) if self.is_listed else None

    @property
    def ranges(self) -> list[Axis]:
        """The axes that are ranges of numbers."""
        return [axis for axis in self.axes if isinstance(axis.domain, ValueRange)]

    def as_dict(self) -> dict[str, object]:
        return {"methods": list(self.methods), "axes": {axis.name: axis.domain.as_dict() for axis in self.axes}}


def _effect_conditions(method: str, key: str) -> Mapping[str, object]:
    """Return the values of other parameters with which a parameter has an effect."""
    name = parameter_of(key)
    return conditions(METHODS[method].parameters, name) if name is not None else {}


def _default_value(method: str, name: str) -> object:
    return METHODS[method].parameters.model_fields[name].default


def label(key: str) -> str:
    """Return the label of a key in tables and figures."""
    return key.removeprefix("parameters.")


def spelling(point: Mapping[str, Any], *, short: bool = False) -> str:
    """Return a point as text in one line; with `short`, without the key of the method."""
    if short and "method" in point:
        return " ".join(
            [point["method"], *(f"{label(key)}={value}" for key, value in point.items() if key != "method")]
        )
    return ", ".join(f"{label(key)} = {value}" for key, value in point.items())
