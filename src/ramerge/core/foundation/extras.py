"""Packages that not every user installs: the command that installs an extra, what is absent, and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import enumerated


def install(extra: str) -> str:
    """The command that installs an extra, such as `eval`; pip keeps the ramerge that is already there."""
    return f"pip install 'ramerge[{extra}]'"


def missing(extras: Mapping[str, Iterable[str]], *, who: str, then: str = "") -> list[str]:
    """A sentence for what cannot be imported, with the command that installs all of it; or nothing.

    Args:
        extras: by extra, top-level names of modules, none of which is imported here.
        who: what needs them, with its verb, such as `prompts need`.
        then: a further command that it takes.
    """
    absent = {extra: [name for name in modules if find_spec(name) is None] for extra, modules in extras.items()}
    lacking = [name.replace("_", "-") for names in absent.values() for name in names]
    if not lacking:
        return []
    command = install(",".join(extra for extra, names in absent.items() if names)) + (f" && {then}" if then else "")
    are = "is" if len(lacking) == 1 else "are"
    return [f"{who} {enumerated(lacking)}, which {are} not installed: {command}"]


def data_frame(rows: Sequence[Mapping[str, object]]) -> Any:
    """Make a pandas data frame: for `frame` of records and of analyses.

    Raises:
        RecipeError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise RecipeError("data frames need pandas: pip install pandas") from error
    return pd.DataFrame(rows)
