"""Reads a space from `--vary` or a YAML file, and reports all problems line by line.

method: [ram, ram+, ties]              # or a mapping, with a space for each method
dtype: [bfloat16, float32]
parameters:
  r: {from: 0, to: 0.5}                # also step, and log: true
  density: [0.2, 0.5, 0.8]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ramerge import RecipeError
from ramerge.core.foundation.dtypes import full_dtype
from ramerge.core.recipe.document import Key, plain_value
from ramerge.sdk.methods import METHODS
from ramerge.sdk.recipes import Document, read_document
from ramerge.sdk.text import quoted, unknown
from ramerge.searches.points import check_point
from ramerge.searches.space import MOST_POINTS, Axis, Choices, Point, Space, ValueRange, has_parameter, parameter_of

_FEW = 3
"""The most methods with a parameter that a message names."""
_KEYS = ("method", "dtype", "rounding", "parameters")
_RANGE = ("from", "to", "step", "log")
# what else people call the ends of a range
_ENDS = {"low", "high", "min", "max", "start", "stop", "end"}


def vary_space(recipe: Document, vary: Mapping[str, Sequence[object]]) -> Space:
    """Make a grid from `--vary KEY=V,V,...`."""
    document = Document({str(key): plain_value(list(values)) for key, values in vary.items()})
    document.flags = {(str(key),): f"--vary {key}" for key in vary}
    return _Reader(recipe, document, "--vary").space()


def mapped_space(recipe: Document, values: Mapping[str, object]) -> Space:
    """Read a space from a mapping with the keys of a YAML file."""
    return _Reader(recipe, Document(plain_value(values)), "space").space()


def file_space(recipe: Document, path: Path) -> Space:
    """Read the space of a search from a YAML file."""
    if path.is_dir():
        raise RecipeError(f"--space {path}: is a folder; give a YAML file that says what may vary")
    form = "a space is a mapping from keys of the recipe to values, such as parameters.r: {from: 0, to: 0.5}"
    return _Reader(recipe, read_document(path, form), f"--space {path}").space()


class _Reader:
    def __init__(self, recipe: Document, document: Document, source: str) -> None:
        self._recipe = recipe
        self._document = document
        self._source = source
        self._problems: list[str] = []
        document.check_numbers()

    def space(self) -> Space:
        methods, axes = self._parse_methods()
        others = {key: inner for key, inner in self._document.as_dict().items() if key != "method"}
        axes += self._parse_axes(others, (), None)
        self._check_keys(axes, methods)
        self._raise_problems()
        own = self._recipe.stated("parameters")
        space = Space(methods, tuple(axes), own if isinstance(own, dict) else {})
        if not axes and len(methods) == 1:
            raise RecipeError(
                f"{self._source}: nothing varies; give a key several values: parameters.r=0,0.1, or in a file [0, 0.1]"
            )
        if space.size is not None and space.size > MOST_POINTS:
            raise RecipeError(f"{self._source}: spans more than {MOST_POINTS:,} points; give fewer values, or ranges")
        for axis, conditions in space.idle():
            only = ", ".join(f"{name}: {value}" for name, value in conditions.items())
            self._problems.append(f"{self._source}: {axis.key}: changes nothing; only {only} uses it")
        self._check_values(space)
        self._raise_problems()
        return space

    @property
    def _states_method(self) -> bool:
        return self._document.stated("method") is not None

    def _raise_problems(self) -> None:
        if self._problems:
            raise RecipeError(dict.fromkeys(self._problems))

    def _add_problem(self, key: Key, text: str) -> None:
        self._problems.append(self._document.where(key, text))

    def _parse_methods(self) -> tuple[tuple[str, ...], list[Axis]]:
        """Return the methods, and the axes that belong to one of them."""
        method = self._document.stated("method")
        if method is None:
            own = self._recipe.method
            if not isinstance(own, str) or own not in METHODS:
                self._problems.append(self._recipe.unknown(("method",), "method", own, list(METHODS)))
                self._raise_problems()
            return (str(own),), []
        names = list(method) if isinstance(method, dict | list) else [method]
        for name in names:
            if not isinstance(name, str) or name not in METHODS:
                key = ("method", str(name)) if isinstance(method, dict) else ("method",)
                self._problems.append(self._document.unknown(key, "method", name, list(METHODS)))
        if not names or any(name in names[:index] for index, name in enumerate(names)):
            self._add_problem(("method",), "must name methods, each of them once")
        axes: list[Axis] = []
        for name, inner in method.items() if isinstance(method, dict) else ():
            if isinstance(inner, dict):
                axes += self._parse_axes(inner, ("method", name), name)
            elif inner is not None:
                text = "must be a space of its own, such as {parameters: {r: [0, 0.1]}}, or nothing"
                self._add_problem(("method", name), text)
        return tuple(map(str, names)), axes

    def _parse_axes(self, values: Mapping[str, object], place: Key, method: str | None) -> Iterator[Axis]:
        """Yield the axes of a mapping, at any depth."""
        for name, inner in values.items():
            yield from self._parse_axis((*place, name), name, inner, method)

    def _parse_axis(self, place: Key, key: str, inner: object, method: str | None) -> Iterator[Axis]:
        if isinstance(inner, dict) and not _is_range(inner):
            for name, further in inner.items():
                yield from self._parse_axis((*place, name), f"{key}.{name}", further, method)
            if not inner:
                self._add_problem(place, "is empty")
            return
        try:
            domain = (
                _parse_range(inner, self._is_real(key, method)) if isinstance(inner, dict) else _parse_choices(inner)
            )
        except ValueError as error:
            self._add_problem(place, str(error))
            return
        yield Axis(key, domain, method, self._document.where(place, "").partition("\n")[0].rstrip(": "))

    def _is_real(self, key: str, method: str | None) -> bool:
        """Whether a key's values need not be whole, so that `from: 0, to: 1` means all real numbers between."""
        name = parameter_of(key)
        if name is None:
            return False
        methods = [method] if method is not None else METHODS
        kinds = (METHODS[each].parameters.model_fields[name].annotation for each in methods if has_parameter(each, key))
        return any("float" in str(kind) for kind in kinds)

    def _check_keys(self, axes: Sequence[Axis], methods: Sequence[str]) -> None:
        parameters = list(dict.fromkeys(name for method in methods for name in _parameter_names(method)))
        for axis in axes:
            parameter = parameter_of(axis.key)
            top = axis.key.partition(".")[0]
            if parameter is None and top in parameters:
                self._problems.append(f"{axis.where}: unknown key {quoted(axis.key)}; did you mean 'parameters.{top}'?")
            elif parameter is None and axis.key not in _KEYS[:3]:
                self._problems.append(f"{axis.where}: {unknown('key', axis.key, _KEYS)}; only these can vary")
            elif parameter is not None and not any(
                has_parameter(method, axis.key) for method in _methods_of(axis, methods)
            ):
                if axis.method is None and not self._states_method and (others := _methods_with_parameter(axis.key)):
                    own, few = methods[0], ", ".join(others[:_FEW])
                    which = "the default method, " if self._recipe.stated("method") is None else ""
                    self._problems.append(
                        f"{axis.where}: {which}{own}, has no parameter {parameter}; name a method that has it "
                        f"({few}{', ...' if len(others) > _FEW else ''}): --vary method={others[0]}"
                    )
                    continue
                names = [
                    f"parameters.{name}" for method in _methods_of(axis, methods) for name in _parameter_names(method)
                ]
                whose = f"of {', '.join(_methods_of(axis, methods))}"
                problem = unknown(f"parameter {whose}", f"parameters.{parameter}", list(dict.fromkeys(names)))
                self._problems.append(f"{axis.where}: {problem}")
        for axis in axes:
            for other in axes:
                if other.key.startswith(f"{axis.key}.") and axis.method == other.method:
                    self._problems.append(f"{other.where}: is a part of {axis.key}, which varies too")

    def _check_values(self, space: Space) -> None:
        """Check each value of every axis at least once: with each method, and the first values of the other axes."""
        for method in space.methods:
            axes = space.axes_of(method)
            first: Point = {"method": method} | {axis.key: axis.domain.extremes()[0] for axis in axes}
            problems = check_point(self._recipe, first, _axis_labels(axes))
            for axis in axes if not problems else ():
                for value in axis.domain.extremes()[1:]:
                    problems += check_point(self._recipe, first | {axis.key: value}, _axis_labels(axes))
            self._problems += problems


def _methods_with_parameter(key: str) -> list[str]:
    return [method for method in METHODS if has_parameter(method, key)]


def _parse_choices(inner: object) -> Choices:
    """Return the choices of an axis. Raises `ValueError` if they are invalid."""
    values = inner if isinstance(inner, list | tuple) else [inner]
    if not values:
        raise ValueError("has no values")
    plain = [full_dtype(value) for value in values]
    if any(value in plain[:index] for index, value in enumerate(plain)):
        raise ValueError("names a value twice")
    return Choices(tuple(values))


def _is_range(inner: Mapping[str, object]) -> bool:
    """Whether a mapping means a range, not keys that vary."""
    plain = not any(isinstance(value, dict | list) for value in inner.values())
    return bool(inner.keys() & {"from", "to"}) or (plain and bool(inner) and inner.keys() <= {*_ENDS, *_RANGE})


def _parse_range(inner: Mapping[str, object], is_real: bool) -> ValueRange:
    """The range of an axis; whole ends without a step mean whole numbers, unless `is_real`. Raises `ValueError`."""
    if strangers := [name for name in inner if name not in _RANGE]:
        raise ValueError(f"{unknown('key of a range', strangers[0], _RANGE)}; such as {{from: 0, to: 0.5}}")
    low, high = (_parse_number(name, inner.get(name)) for name in ("from", "to"))
    step = None if inner.get("step") is None else _parse_number("step", inner["step"])
    log = inner.get("log", False)
    if not isinstance(log, bool):
        raise ValueError("log must be true or false")
    if low >= high:
        raise ValueError(f"from {low} to {high}: must rise")
    if step is not None and not 0 < step <= high - low:
        raise ValueError(f"step {step}: must be above 0 and fit between {low} and {high}")
    if log and (low <= 0 or step is not None):
        raise ValueError("log: true needs a range above 0, and no step")
    return ValueRange(float(low) if is_real and step is None else low, high, step, log)


def _parse_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise ValueError(f"{name} must be a number, as in {{from: 0, to: 0.5}}")
    return value


def _axis_labels(axes: Sequence[Axis]) -> Callable[[str, object], str]:
    places = {axis.key: axis.where for axis in axes}

    def label(key: str, value: object) -> str:
        return f"{places[key]}={value}" if key in places else f"{key} {value}"

    return label


def _methods_of(axis: Axis, methods: Sequence[str]) -> Sequence[str]:
    return methods if axis.method is None else [axis.method]


def _parameter_names(method: str) -> list[str]:
    return list(METHODS[method].parameters.model_fields) if method in METHODS else []
