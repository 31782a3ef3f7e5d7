"""Shell patterns for names of tensors: which of many rules is the first that catches each of many names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import NamedTuple, Protocol

from ramerge.core.recipe.layers import layer_of, parse_layers

# Number of names by which the rarest part of a pattern is chosen.
_SAMPLE = 64


class Glob(NamedTuple):
    """A compiled pattern.

    Attributes:
        parts: the texts between its special characters, which are in every name that it matches.
    """

    parts: tuple[str, ...]
    matches: Callable[[str], object]

    def rarest(self, names: Sequence[str]) -> str:
        """The part that the fewest names contain. To look for it takes a tenth of the time of the whole pattern."""
        return min(self.parts, key=lambda part: sum(part in name for name in names))


class Catches(Protocol):
    """View of a rule here: see `recipe.model.Rule`."""

    @property
    def match(self) -> tuple[str, ...]: ...

    @property
    def layers(self) -> str | None: ...


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> Glob:
    """Compile a shell pattern (`*`, `?`, `[0-9]`)."""
    return Glob(tuple(re.split(r"[*?]", pattern.partition("[")[0])), re.compile(translate(pattern)).match)


def catches_any(rule: Catches, names: Iterable[str]) -> bool:
    """Whether a rule is for any of these names of tensors."""
    return any(first_rules([rule], names).values())


def first_rules(rules: Sequence[Catches], names: Iterable[str]) -> dict[str, int]:
    """For each name the number of the first rule that catches it, counted from 1; 0 if no rule does.

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
        for glob in map(_compile, rule.match)
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
