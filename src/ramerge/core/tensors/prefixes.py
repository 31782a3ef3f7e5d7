"""Names of one model under the prefixes of another: found by structure, not by a table of architectures.

A *stack* is everything that begins alike before the first number of a name: `model.layers.`, `visual.blocks.`. The
stacks of two models belong together whose tensors have the same names after the number, and the same shapes. What is
next to a stack, such as embeddings and heads, moves with it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]

_NUMBERED = re.compile(r"(.*?(?:^|\.))(\d{1,9})\.(.*)")
_NUMBER = re.compile(r"\d+")


@dataclass
class Stack:
    """Tensors that begin alike.

    Attributes:
        shapes: by what follows the number of the layer, with other numbers left out: the shapes of such tensors.
        layers: the numbers of its layers.
    """

    shapes: dict[str, set[Shape]] = field(default_factory=dict)
    layers: set[int] = field(default_factory=set)


def stack_of(name: str) -> str:
    """The part of a name before its first number; empty if it has none."""
    found = _NUMBERED.fullmatch(name)
    return found[1] if found else ""


def _stacks(shapes: Mapping[str, Shape]) -> dict[str, Stack]:
    """The stacks of a model, by what their names begin with."""
    found: dict[str, Stack] = {}
    for name, shape in shapes.items():
        if (parts := _NUMBERED.fullmatch(name)) is not None:
            stack = found.setdefault(parts[1], Stack())
            stack.layers.add(int(parts[2]))
            stack.shapes.setdefault(_NUMBER.sub("#", parts[3]), set()).add(shape)
    return found


def aligned(
    shapes: Mapping[str, Shape],
    wanted: Mapping[str, Shape],
    *,
    kept: Collection[str] = (),
    preferred: Collection[str] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Exchange prefixes of names: other names for tensors, as another model has them.

    Args:
        shapes: names and shapes of tensors that the other model does not have under these names.
        wanted: names and shapes of the tensors of the other model that are looked for.
        kept: stacks that both models have, so that nothing of them moves to another one.
        preferred: words of names that decide where several stacks fit equally.

    Returns:
        The new names by the old ones, where they differ, and the prefixes that were exchanged.

    >>> aligned({"model.layers.0.w": (2,), "model.norm": (3,)}, {"lm.layers.0.w": (2,), "lm.norm": (3,)})
    ({'model.layers.0.w': 'lm.layers.0.w', 'model.norm': 'lm.norm'}, {'model.': 'lm.'})
    """
    chosen = _chosen(
        {old: stack for old, stack in _stacks(shapes).items() if old not in kept}, _stacks(wanted), preferred
    )
    around = {_around(old, new) for old, new in chosen.items()}
    pairs = sorted(
        {pair for old, new in around for pair in _shorter(old, new)}, key=lambda pair: (-len(pair[0]), *pair)
    )
    names: dict[str, str] = {}
    used: dict[str, str] = {}
    ends: dict[str, list[str]] = {}
    for name in wanted:
        ends.setdefault(_end(name), []).append(name)
    for name, shape in shapes.items():
        stack = stack_of(name)
        if stack in chosen:
            names[name] = chosen[stack] + name[len(stack) :]
            used.setdefault(*_shortest(*_around(stack, chosen[stack])))
            continue
        places = [(old, new) for old, new in pairs if name.startswith(old) and new + name[len(old) :] in wanted]
        places += [(old, new) for old, new in _in_front(name, ends) if wanted[new + name[len(old) :]] == shape]
        for old, new in places[:1]:
            names[name] = new + name[len(old) :]
            used.setdefault(*_shortest(old, new))
    counts = Counter(names.values())
    found = {old: new for old, new in names.items() if old != new and counts[new] == 1}
    return found, {old: new for old, new in used.items() if old != new}


def _chosen(ours: Mapping[str, Stack], theirs: Mapping[str, Stack], preferred: Collection[str]) -> dict[str, str]:
    """The stacks that belong together: each with the one that it has most in common with, if it is the only one."""

    def likeness(old: str, new: str) -> tuple[int, ...]:
        one, other = ours[old], theirs[new]
        return (
            sum(not shapes.isdisjoint(other.shapes.get(rest, ())) for rest, shapes in one.shapes.items()),
            -len(one.layers ^ other.layers),
            sum(word in f"{old}{new}".split(".") for word in preferred),
            len(other.shapes),
        )

    found: dict[str, str] = {}
    for old, stack in ours.items():
        likes = {new: likeness(old, new) for new in theirs}
        best = [new for new, like in likes.items() if like == max(likes.values()) and 2 * like[0] >= len(stack.shapes)]
        if len(best) == 1:
            found[old] = best[0]
    return {
        old: new
        for old, new in found.items()
        if all(likeness(old, new) >= likeness(other, new) for other, same in found.items() if same == new)
    }


def _around(old: str, new: str) -> tuple[str, str]:
    """The prefixes in which the layers of two stacks lie."""
    before, after = (stack.rstrip(".").rpartition(".")[0] for stack in (old, new))
    return f"{before}." if before else "", f"{after}." if after else ""


def _shorter(old: str, new: str) -> Iterable[tuple[str, str]]:
    """Two prefixes, and these without what both end in: what is next to a stack has the same prefix."""
    while True:
        yield old, new
        head, tail = old.rstrip(".").rpartition(".")[::2]
        other, last = new.rstrip(".").rpartition(".")[::2]
        if not tail or tail != last:
            return
        old, new = (f"{part}." if part else "" for part in (head, other))


def _shortest(old: str, new: str) -> tuple[str, str]:
    return list(_shorter(old, new))[-1]


def _end(name: str) -> str:
    """The last two modules and the parameter of a name, which are enough to know it by; empty if it has fewer."""
    parts = name.split(".")
    return ".".join(parts[-3:]) if len(parts) > 2 else ""


def _in_front(name: str, ends: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """The prefixes of a name and of the only other one with the same end; empty if there are several."""
    found = [
        other
        for other in ends.get(_end(name), ())
        if f".{name}".endswith(f".{other}") or f".{other}".endswith(f".{name}")
    ]
    both = min(len(name), *map(len, found)) if found else 0
    return [(name[: len(name) - both], other[: len(other) - both]) for other in found] if len(found) == 1 else []
