"""Whether the libraries of the extra `report` are there."""

from __future__ import annotations

from ramerge import RecipeError
from ramerge.sdk.options import missing

_LIBRARIES = ("altair", "itables", "jinja2", "vl_convert")


def require_extra() -> None:
    """Refuse to write a page or figures where a library of the extra `report` is missing."""
    if lacking := missing_libraries("the report needs"):
        raise RecipeError(lacking)


def missing_libraries(who: str) -> list[str]:
    """A sentence on the libraries of the extra `report` that are not installed, or nothing; `who` needs them."""
    return missing({"report": _LIBRARIES}, who=who)
