"""All formats. To add one, write a module with a `Format`, and add its entry point to the group `ramerge.formats`."""

from __future__ import annotations

from functools import cache

from ramerge.core.formats.format import Format
from ramerge.core.registry import Registry

FORMATS: Registry[Format] = Registry("ramerge.formats", Format)


@cache
def by_priority() -> tuple[Format, ...]:
    """Return all usable formats, in the order in which they are tried."""
    return tuple(sorted(FORMATS.usable().values(), key=lambda format: -format.priority))
