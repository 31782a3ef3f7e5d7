"""The libraries of the extra `report`."""

from __future__ import annotations

from importlib.util import find_spec

from ramerge import RecipeError
from ramerge.sdk.machine import install

_LIBRARIES = ("altair", "itables", "jinja2", "vl_convert")


def require_extra() -> None:
    """Raise RecipeError if a library is missing."""
    if missing := missing_libraries():
        raise RecipeError(
            f"the report needs libraries that are not installed ({', '.join(missing)}): {install('report')}"
        )


def missing_libraries() -> list[str]:
    """Those of the extra `report` that are not installed."""
    return [name.replace("_", "-") for name in _LIBRARIES if find_spec(name) is None]
