"""Checks that the libraries of the extra `report` are installed."""

from __future__ import annotations

from ramerge import RecipeError
from ramerge.sdk.options import missing

_LIBRARIES = ("altair", "itables", "jinja2", "vl_convert")


def require_extra() -> None:
    """Refuse to write a page or figures if a library of the extra `report` is missing."""
    if lacking := missing_libraries("the report needs"):
        raise RecipeError(lacking)


def missing_libraries(message_start: str) -> list[str]:
    """A sentence that names missing libraries of the `report` extra; empty if none is missing. `message_start` begins
    it.
    """
    return missing({"report": _LIBRARIES}, who=message_start)
