"""Values of mergekit's parameters: the same for all tensors, a gradient over layers, or chosen by filters on names.

A list of numbers is a gradient: linear between its numbers, from the first layer to the last; tensors outside of the
layers get the first number. A filter applies to tensors whose names hold its text. The first case that applies to a
tensor counts; if none does, the next level is tried: model, slice, recipe, default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from itertools import groupby, permutations
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ramerge.core.recipe.document import Key
from ramerge.core.recipe.layers import layer_of

_READERS: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (float, bool, int)}
_WORDS = {float: "a number", bool: "true or false", int: "a whole number"}


@dataclass(frozen=True)
class ValueCase:
    """A value, or the numbers of a gradient, for tensors whose names hold a text; for all tensors without a text."""

    text: str | None
    steps: tuple[Any, ...]
    convert: Callable[[Any], Any]

    def at(self, place: float) -> Any:
        """Return the value at a place between 0, the first layer, and 1, the last layer."""
        position = place * (len(self.steps) - 1)
        lower = int(position)
        if position == lower:
            return self.convert(self.steps[lower])
        part = position - lower
        return self.convert((1 - part) * self.steps[lower] + part * self.steps[lower + 1])


Value = tuple[ValueCase, ...]
# by name: a value, and where it was written
ParameterLevel = Mapping[str, tuple[Value, Key]]


def read_value(value: object, kind: type, convert: Callable[[object], object]) -> Value:
    """Read a value as mergekit does, up to the first case for all tensors.

    Args:
        convert: converts mergekit's value to ramerge's; raises ValueError with the problem.

    Raises:
        ValueError: the value has no form that mergekit knows, or is not of this kind.
    """
    entries = [value] if isinstance(value, Mapping) else value
    if not isinstance(entries, list | tuple) or not any(isinstance(entry, Mapping) for entry in entries):
        return (_parse_case(None, value, kind, convert),)
    cases = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not set(entry) <= {"filter", "value"} or "value" not in entry:
            raise ValueError(f"must be a list of {{filter: TEXT, value: VALUE}}, not with {value_text(entry)}")
        text = entry.get("filter")
        if not isinstance(text, str | None) or text == "":
            raise ValueError(f"filter must be a part of tensors' names, not {value_text(text)}")
        cases.append(_parse_case(None if text == "*" else text, entry["value"], kind, convert))
        if cases[-1].text is None:
            break
    return tuple(cases)


def _parse_case(text: str | None, value: object, kind: type, convert: Callable[[object], object]) -> ValueCase:
    steps = tuple(_read_value(step, kind) for step in (value if isinstance(value, list | tuple) else [value]))
    if not steps:
        raise ValueError("a gradient over layers needs numbers")
    for step in steps:
        convert(step)
    if all(step == steps[0] for step in steps):
        return ValueCase(text, steps[:1], convert)
    if kind is not float:
        raise ValueError(f"a gradient over layers is of numbers, and this is {_WORDS[kind]}")
    return ValueCase(text, steps, convert)


def _read_value(value: object, kind: type) -> Any:
    """Read a value as mergekit does: its YAML parser reads `1e-5` as text, which becomes a number here."""
    try:
        result = _READERS[kind].validate_python(value)
    except ValidationError as error:
        raise ValueError(f"must be {_WORDS[kind]}, not {value_text(value)}") from error
    if isinstance(result, float) and not math.isfinite(result):
        raise ValueError(f"must be a finite number, not {value_text(value)}")
    return result


def chain(levels: Sequence[Value]) -> Value:
    """Concatenate the cases of several levels: the first level's come first."""
    cases: list[ValueCase] = []
    for value in levels:
        cases += value
        if cases and cases[-1].text is None:
            break
    return tuple(cases)


def is_varying(value: Value) -> bool:
    """Whether tensors have different values, or only some have a value."""
    if not value:
        return False
    same = all(case.steps == value[0].steps and len(case.steps) == 1 for case in value)
    return not same or value[-1].text is not None


def value_text(value: object) -> str:
    """Format a value of a recipe in mergekit's form for messages."""
    text = repr(value)
    return text if len(text) < 60 else type(value).__name__


# --- tensors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedTensor:
    """A tensor's properties on which values depend: its name, its layer's number if any, and its place from 0 to 1."""

    name: str
    layer: int | None
    place: float

    def value(self, value: Value) -> ValueCase | None:
        """Return the first case that applies to the tensor."""
        return next((case for case in value if case.text is None or case.text in self.name), None)


ANYWHERE = NamedTensor("", None, 0.0)


def tensors_of(names: Sequence[str]) -> list[NamedTensor]:
    """Return the tensors with these names.

    Raises:
        ValueError: there are several stacks of layers, so that a layer's number does not determine its place.
    """
    layers = {name: layer_of(name) for name in names}
    stacks = sorted({layer.stack for layer in layers.values() if layer})
    if len(stacks) > 1:
        raise ValueError(f"a gradient over layers needs one stack of layers, and the model has {', '.join(stacks)}")
    last = max((layer.number for layer in layers.values() if layer), default=0)

    def place(number: int) -> float:
        return number / last if last else 1.0

    return [
        NamedTensor(name, layer and layer.number, place(layer.number) if layer else 0.0)
        for name, layer in layers.items()
    ]


# --- rules -------------------------------------------------------------------------------------------------------


Rule = dict[str, Any]
"""A rule as in recipes, with all parameters."""


def rules_of(
    tensors: Sequence[NamedTensor], texts: Sequence[str], parameters: Callable[[NamedTensor], Mapping[str, object]]
) -> tuple[Mapping[str, Any], list[Rule]]:
    """Return the parameters of most tensors, and rules for the others; the first rule that matches a tensor applies.

    Args:
        parameters: returns a tensor's parameters, which depend only on its layer and on the texts in its name.
    """
    groups: dict[frozenset[str], list[NamedTensor]] = {}
    for tensor in tensors:
        groups.setdefault(frozenset(text for text in texts if text in tensor.name), []).append(tensor)
    # groups of more texts first, so that a pattern need not exclude texts
    rules = [
        rule
        for pattern_group in sorted(groups, key=lambda pattern_group: (-len(pattern_group), sorted(pattern_group)))
        for rule in _rules_of_group(
            groups[pattern_group], _group_patterns(pattern_group, groups[pattern_group]), parameters
        )
    ]
    common = rules.pop()["parameters"]
    while rules and rules[-1]["parameters"] == common:
        rules.pop()
    for rule in rules:
        rule["parameters"] = {name: value for name, value in rule["parameters"].items() if value != common[name]}
    return common, rules


def _rules_of_group(
    group: Sequence[NamedTensor], match: tuple[str, ...], parameters: Callable[[NamedTensor], Mapping[str, object]]
) -> Iterator[Rule]:
    """Yield a rule for each value of a group. The last rule is for all layers: the others match before it."""
    groups: list[tuple[Mapping[str, object], set[int | None]]] = []
    for tensor in group:
        values = parameters(tensor)
        layers = next((layers for others, layers in groups if others == values), None)
        if layers is None:
            groups.append((values, {tensor.layer}))
        else:
            layers.add(tensor.layer)
    groups.sort(
        key=lambda entry: (None in entry[1], min((layer for layer in entry[1] if layer is not None), default=0))
    )
    matches: Rule = {"match": list(match)} if match != ("*",) else {}
    for values, layers in groups[:-1]:
        numbers = enumerate(sorted(layer for layer in layers if layer is not None))
        runs = [[number for _, number in run] for _, run in groupby(numbers, key=lambda entry: entry[1] - entry[0])]
        spans = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
        yield {**matches, "layers": spans, "parameters": values}
    yield {**matches, "parameters": groups[-1][0]}


def _group_patterns(pattern_group: frozenset[str], group: Sequence[NamedTensor]) -> tuple[str, ...]:
    """Return patterns for the tensors of a group, whose names contain all texts of `pattern_group`."""
    texts = sorted(
        text for text in pattern_group if not any(text in other and text != other for other in pattern_group)
    )
    orders = permutations(texts) if len(texts) <= 3 else ()
    patterns = [f"*{'*'.join(map(escape, order))}*" if order else "*" for order in orders]
    used_patterns = [pattern for pattern in patterns if any(fnmatchcase(tensor.name, pattern) for tensor in group)]
    if all(any(fnmatchcase(tensor.name, pattern) for pattern in used_patterns) for tensor in group):
        return tuple(used_patterns)
    return tuple(escape(tensor.name) for tensor in group)  # texts that overlap in names
