"""Finds out from the names why an agent's tensors have other names than the base's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product

Shapes = Mapping[str, tuple[int, ...]]

# Parts of names that say what was saved, and how to save something better.
_WRAPPERS: Mapping[str, str] = {
    "base_model": "PEFT adds it; save what merge_and_unload() returns",
    "base_layer": "PEFT adds it; save what merge_and_unload() returns",
}
# Tensors that some models store as one, and the tensors that others store instead.
_FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "query_key_value": ("q_proj", "k_proj", "v_proj"),
    "W_pack": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_EXPERT = re.compile(r"(.*\.experts)\.\d+\..*")
_EXPERTS = re.compile(r"(.*\.experts)\.\D.*")

_SAVE_ALIKE = "convert the agent to the base's layout: load and save it with the library version that wrote the base"
# Real names have about a dozen parts. With thousands of parts, time would grow with the square of their number.
_MOST_PARTS = 40
# An end that many names share, such as `weight`, says nothing about how they begin.
_MOST_ALIKE = 8


def explain(missing: Shapes, extra: Shapes, base: Iterable[str]) -> str | None:
    """How an agent's names differ from the base's, and what to do about it; None if no reason is found.

    Args:
        missing: name to shape, for tensors of the base that the agent lacks.
        extra: name to shape, for tensors of the agent that the base lacks.
        base: all names of the base.
    """
    missing, extra = _usual(missing), _usual(extra)
    count, text = max(_other_beginning(missing, extra), _more_parts(missing, extra, base), key=lambda found: found[0])
    if count and 2 * count >= min(len(missing), len(extra)):  # fewer may match by chance
        return f"{text} (then {count:,} of {len(missing):,} missing tensors are found)"
    return _fused(missing, extra) or _experts(missing, extra)


def _usual(shapes: Shapes) -> Shapes:
    return {name: shape for name, shape in shapes.items() if name.count(".") < _MOST_PARTS}


def _other_beginning(missing: Shapes, extra: Shapes) -> tuple[int, str]:
    """How many tensors match if the most common other beginning is replaced, and what to do."""
    by_end: dict[str, list[str]] = {}
    for name in missing:
        for end in _ends(name):
            by_end.setdefault(end, []).append(name)
    votes: Counter[tuple[str, str]] = Counter()
    for name, shape in extra.items():
        end = next((end for end in _ends(name) if end in by_end), "")
        alike = by_end.get(end, [])
        if len(alike) <= _MOST_ALIKE:
            same = [other for other in alike if missing[other] == shape]
            votes.update((name.removesuffix(end), other.removesuffix(end)) for other in same)
    if not votes:
        return 0, ""
    (theirs, ours), count = votes.most_common(1)[0]
    where = f"where the base's begin with {ours!r}" if ours else "where the base's do not"
    begin = f"begin with {theirs!r} {where}" if theirs else f"lack the {ours!r} that the base's begin with"
    return count, f"its names {begin}: {_cure('^' + re.escape(theirs), ours, theirs)}"


def _ends(name: str) -> list[str]:
    """All ends of a name that begin at one of its parts, the longest first."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def _more_parts(missing: Shapes, extra: Shapes, base: Iterable[str]) -> tuple[int, str]:
    """How many tensors match if parts that no name of the base has are removed, and what to do."""
    known = {part for name in base for part in name.split(".")}
    matched = [
        name
        for name, shape in extra.items()
        if missing.get(".".join(part for part in name.split(".") if part in known)) == shape
    ]
    added = sorted({part for name in matched for part in name.split(".")} - known)
    quoted = " and ".join(f"'{part}.'" for part in added)
    pattern = f"({'|'.join(map(re.escape, added))})" + r"\."
    return len(matched), f"its names have {quoted} inside, the base's do not: {_cure(pattern, '', '.'.join(added))}"


def _cure(pattern: str, text: str, added: str) -> str:
    """What to do about other names: a rule for the recipe, and if a wrapper adds parts, how to save without it."""
    rule = f"`rename: [{{from: '{pattern}', to: '{text}'}}]` in the recipe"
    known = [_WRAPPERS[part] for part in added.split(".") if part in _WRAPPERS]
    return f"{known[0]}, or use {rule}" if known else f"use {rule}"


def _fused(missing: Shapes, extra: Shapes) -> str | None:
    """The message about tensors that one side stores as one and the other side in parts; None without such."""
    for (one, several, whole, split), (fused, parts) in product(
        ((extra, missing, "agent", "base"), (missing, extra, "base", "agent")), _FUSED.items()
    ):
        for name in one:
            if fused in name.split(".") and all(name.replace(fused, part) in several for part in parts):
                return f"the {whole} has {fused} as one tensor, the {split} has {', '.join(parts)}: {_SAVE_ALIKE}"
    return None


def _experts(missing: Shapes, extra: Shapes) -> str | None:
    """The message about experts that one side stores one by one and the other side as one tensor; None without such."""
    for one, several, whole, split in ((extra, missing, "agent", "base"), (missing, extra, "base", "agent")):
        stacked = {found[1] for name in one if (found := _EXPERTS.fullmatch(name))}
        single = {found[1] for name in several if (found := _EXPERT.fullmatch(name))}
        if both := sorted(stacked & single):
            return f"the {whole} has all experts of {both[0]!r} in one tensor, the {split} each its own: {_SAVE_ALIKE}"
    return None
