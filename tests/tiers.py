"""Parameters of tests of which `make test` tries some only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def some(values: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """All values, of which those that are not in `fast` belong to the full tier. Tuples are several parameters."""
    return [pytest.param(*_tuple(value), marks=[] if value in fast else pytest.mark.full) for value in values]


def at_most(examples: int) -> int:
    """So many examples of a property; in `make test` no more than its profile has."""
    return min(examples, settings.default.max_examples)


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
