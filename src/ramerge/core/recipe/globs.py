"""Shell patterns for names of tensors: find the first of many rules that matches each of many names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import NamedTuple, Protocol

from ramerge.core.recipe.layers import layer_of, parse_layers

# The number of names in the sample by which the rarest part of a pattern is chosen.
_SAMPLE = 64


class Glob(NamedTuple):
    """A compiled shell pattern.

    Attributes:
        parts: the texts between the special characters; each matching name contains all of them.
        matches: whether a name matches.
    """

    parts: tuple[str, ...]
    matches: Callable[[str], object]

    def rarest(self, names: Sequence[str]) -> str:
        """The part that the fewest names contain. Searching for it is ten times faster than matching the pattern."""
        return min(self.parts, key=lambda part: sum(part in name for name in names))


class Catches(Protocol):
    """The attributes of a rule (`recipe.model.Rule`) that this module uses."""

    @property
    def match(self) -> tuple[str, ...]: ...

    @property
    def layers(self) -> str | None: ...


@lru_cache(maxsize=4096)
def _compile_glob(pattern: str) -> Glob:
    """Compile a shell pattern (`*`, `?`, `[0-9]`)."""
    return Glob(tuple(re.split(r"[*?]", pattern.partition("[")[0])), re.compile(translate(pattern)).match)


def catches_any(rule: Catches, names: Iterable[str]) -> bool:
    """Whether a rule matches any of these tensor names."""
    return any(first_rules([rule], names).values())


def first_rules(rules: Sequence[Catches], names: Iterable[str]) -> dict[str, int]:
    """For each name, the number of the first rule that matches it, counted from 1; 0 if no rule matches.

    Example:
        >>> import ramerge
        >>> rules = [ramerge.Rule(match="*norm*", keep="base"), ramerge.Rule(layers="0-1", keep="base")]
        >>> first_rules(rules, ["norm.weight", "layers.1.mlp.weight", "layers.2.mlp.weight"])
        {'norm.weight': 1, 'layers.1.mlp.weight': 2, 'layers.2.mlp.weight': 0}
    """
    names = list(names)
    sample = names[:: max(1, len(names) // _SAMPLE)]
    candidates = [
        (parse_layers(rule.layers) if rule.layers else None, (number, glob.rarest(sample), glob.matches))
        for number, rule in enumerate(rules, 1)
        for glob in map(_compile_glob, rule.match)
    ]
    by_layer: dict[int | None, list[tuple[int, str, Callable[[str], object]]]] = {}
    rule_numbers: dict[str, int] = {}
    for name in names:
        layer = layer_of(name)
        number = layer.number if layer is not None else None
        if number not in by_layer:
            by_layer[number] = [each for layers, each in candidates if layers is None or number in layers]
        rule_numbers[name] = next(
            (rule for rule, part, matches in by_layer[number] if part in name and matches(name)), 0
        )
    return rule_numbers
