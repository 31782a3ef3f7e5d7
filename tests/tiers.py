"""Tiers of tests: parameters of which `make test` tries some only, and tests that need what may be missing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

import pytest
from hypothesis import settings


def some(values: Iterable[Any], *, fast: Collection[Any] = (), full: Collection[Any] | None = None) -> list[Any]:
    """All values: those in `fast`; those of the full tier, by default the others; the rest is thorough.

    Tuples are several parameters.
    """
    found = []
    for value in values:
        tier = [] if value in fast else [pytest.mark.full]
        if full is not None and value not in (*fast, *full):
            tier.append(pytest.mark.thorough)
        found.append(pytest.param(*_tuple(value), marks=tier))
    return found


def at_most(examples: int) -> int:
    """So many examples of a property; in `make test` no more than its profile has."""
    return min(examples, settings.default.max_examples)


def unavailable(reason: str) -> NoReturn:
    """Skip a test or module for which something is missing here; fail where `CI` is set, which installs everything."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
