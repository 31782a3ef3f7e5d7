"""The libraries of the extra `report`."""

from __future__ import annotations

from ramerge import RecipeError
from ramerge.sdk.machine import missing

_LIBRARIES = ("altair", "itables", "jinja2", "vl_convert")


def require_extra() -> None:
    """Raise RecipeError if a library is missing."""
    if lacking := missing_libraries("the report needs"):
        raise RecipeError(lacking)


def missing_libraries(who: str) -> list[str]:
    """A sentence for those of the extra `report` that are not installed, or nothing; `who` needs them."""
    return missing({"report": _LIBRARIES}, who=who)
