"""The styles of all pages: reports of analyses, merges and searches, tables of scores, and `ramerge ui`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def page_styles() -> str:
    """Return the CSS of all pages, for light and dark mode, screens of any width, and paper."""
    return files("ramerge.core.foundation").joinpath("page.css").read_text(encoding="utf-8")
