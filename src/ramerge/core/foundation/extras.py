"""Packages that not every user installs: the command that installs an extra, what is absent, and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ramerge.core.foundation.errors import RecipeError


def install(extra: str) -> str:
    """The command that installs an extra, such as `eval`; pip keeps the ramerge that is already there."""
    return f"pip install 'ramerge[{extra}]'"


def missing(modules: Iterable[str], *, who: str, install: str) -> list[str]:
    """A sentence for what cannot be imported, or nothing.

    Args:
        modules: top-level names, none of which is imported here.
        who: what needs them, such as `ramerge/search`.
        install: the command that brings them.
    """
    absent = [name for name in modules if find_spec(name) is None]
    if not absent:
        return []
    return [f"{who}: needs {', '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not installed: {install}"]


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas data frame.

    Raises:
        RecipeError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise RecipeError("data frames need pandas: pip install pandas") from error
    return pd.DataFrame(rows)
