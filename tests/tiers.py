"""Tiers of tests: parameters of which `make test` tries some only, and tests that need what may be missing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

import pytest
from hypothesis import settings


def some(values: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """All values, of which those that are not in `fast` belong to the full tier. Tuples are several parameters."""
    return [pytest.param(*_tuple(value), marks=[] if value in fast else pytest.mark.full) for value in values]


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
