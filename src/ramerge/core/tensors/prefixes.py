"""Map names of one model to the prefixes of another, by structure instead of a table of architectures.

A *stack* is the set of tensors whose names have the same prefix before the first number, such as `model.layers.` or
`visual.blocks.`. Stacks of two models correspond if their tensors have the same names after the number, and the same
shapes. Tensors next to a stack, such as embeddings and heads, get its new prefix, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]

_NUMBERED_NAME = re.compile(r"(.*?(?:^|\.))(\d{1,9})\.(.*)")
_NUMBER = re.compile(r"\d+")


@dataclass
class Stack:
    """Tensors with a common prefix before the layer's number.

    Attributes:
        shapes: the shapes of tensors, by the rest of their names after the layer's number; other numbers become `#`.
        layers: the numbers of the layers.
    """

    shapes: dict[str, set[Shape]] = field(default_factory=dict)
    layers: set[int] = field(default_factory=set)


def stack_of(name: str) -> str:
    """The part of a name before its first number; empty if it has none."""
    match = _NUMBERED_NAME.fullmatch(name)
    return match[1] if match else ""


def _find_stacks(shapes: Mapping[str, Shape]) -> dict[str, Stack]:
    """The stacks of a model, by prefix."""
    stacks: dict[str, Stack] = {}
    for name, shape in shapes.items():
        if (parts := _NUMBERED_NAME.fullmatch(name)) is not None:
            stack = stacks.setdefault(parts[1], Stack())
            stack.layers.add(int(parts[2]))
            stack.shapes.setdefault(_NUMBER.sub("#", parts[3]), set()).add(shape)
    return stacks


def align(
    shapes: Mapping[str, Shape],
    targets: Mapping[str, Shape],
    *,
    fixed_stacks: Collection[str] = (),
    preferences: Collection[str] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Rename a model's tensors to the names in another model, by replacing prefixes.

    Args:
        shapes: names and shapes of the tensors whose names the other model does not have.
        targets: names and shapes of the other model's tensors that have no counterpart yet.
        fixed_stacks: stacks that both models have, and that are therefore not renamed.
        preferences: parts of names that decide if several stacks fit equally well.

    Returns:
        The new names by old names, if they differ, and the new prefixes by old prefixes.

    >>> align({"model.layers.0.w": (2,), "model.norm": (3,)}, {"lm.layers.0.w": (2,), "lm.norm": (3,)})
    ({'model.layers.0.w': 'lm.layers.0.w', 'model.norm': 'lm.norm'}, {'model.': 'lm.'})
    """
    stack_pairs = _pairs_of_stacks(
        {old: stack for old, stack in _find_stacks(shapes).items() if old not in fixed_stacks},
        _find_stacks(targets),
        preferences,
    )
    around = {_module_prefixes(old, new) for old, new in stack_pairs.items()}
    pairs = sorted(
        {pair for old, new in around for pair in _shorter_prefixes(old, new)}, key=lambda pair: (-len(pair[0]), *pair)
    )
    names: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    ends: dict[str, list[str]] = {}
    for name in targets:
        ends.setdefault(_last_three_parts(name), []).append(name)
    for name, shape in shapes.items():
        stack = stack_of(name)
        if stack in stack_pairs:
            names[name] = stack_pairs[stack] + name[len(stack) :]
            prefixes.setdefault(*_shortest_prefixes(*_module_prefixes(stack, stack_pairs[stack])))
            continue
        places = [(old, new) for old, new in pairs if name.startswith(old) and new + name[len(old) :] in targets]
        places += [
            (old, new) for old, new in _differing_prefixes(name, ends) if targets[new + name[len(old) :]] == shape
        ]
        for old, new in places[:1]:
            names[name] = new + name[len(old) :]
            prefixes.setdefault(*_shortest_prefixes(old, new))
    counts = Counter(names.values())
    renames = {old: new for old, new in names.items() if old != new and counts[new] == 1}
    return renames, {old: new for old, new in prefixes.items() if old != new}


def _pairs_of_stacks(
    ours: Mapping[str, Stack], theirs: Mapping[str, Stack], preferences: Collection[str]
) -> dict[str, str]:
    """Pair each stack with the most similar stack of the other model, if there is only one."""

    def likeness(old: str, new: str) -> tuple[int, ...]:
        one, other = ours[old], theirs[new]
        return (
            sum(not shapes.isdisjoint(other.shapes.get(rest, ())) for rest, shapes in one.shapes.items()),
            -len(one.layers ^ other.layers),
            sum(word in f"{old}{new}".split(".") for word in preferences),
            len(other.shapes),
        )

    pairs: dict[str, str] = {}
    for old, stack in ours.items():
        likenesses = {new: likeness(old, new) for new in theirs}
        best = [
            new
            for new, like in likenesses.items()
            if like == max(likenesses.values()) and 2 * like[0] >= len(stack.shapes)
        ]
        if len(best) == 1:
            pairs[old] = best[0]
    return {
        old: new
        for old, new in pairs.items()
        if all(likeness(old, new) >= likeness(other, new) for other, same in pairs.items() if same == new)
    }


def _module_prefixes(old: str, new: str) -> tuple[str, str]:
    """The prefixes of the modules that contain two stacks."""
    before, after = (stack.rstrip(".").rpartition(".")[0] for stack in (old, new))
    return f"{before}." if before else "", f"{after}." if after else ""


def _shorter_prefixes(old: str, new: str) -> Iterable[tuple[str, str]]:
    """Yield two prefixes, and shorter ones without common last parts, which neighbors of a stack may have."""
    while True:
        yield old, new
        head, tail = old.rstrip(".").rpartition(".")[::2]
        other, last = new.rstrip(".").rpartition(".")[::2]
        if not tail or tail != last:
            return
        old, new = (f"{part}." if part else "" for part in (head, other))


def _shortest_prefixes(old: str, new: str) -> tuple[str, str]:
    return list(_shorter_prefixes(old, new))[-1]


def _last_three_parts(name: str) -> str:
    """The last three parts of a name (two modules and the parameter); empty if it has fewer parts."""
    parts = name.split(".")
    return ".".join(parts[-3:]) if len(parts) > 2 else ""


def _differing_prefixes(name: str, ends: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """The prefixes of a name and of the other name with the same last parts; empty unless there is exactly one."""
    candidates = [
        other
        for other in ends.get(_last_three_parts(name), ())
        if f".{name}".endswith(f".{other}") or f".{other}".endswith(f".{name}")
    ]
    both = min(len(name), *map(len, candidates)) if candidates else 0
    return (
        [(name[: len(name) - both], other[: len(other) - both]) for other in candidates] if len(candidates) == 1 else []
    )
