"""All formats. To add one, write a module with a `Format`, and add its entry point to the group `ramerge.formats`."""

from __future__ import annotations

from functools import cache

from ramerge.core.formats.format import Format
from ramerge.core.registry import Registry

FORMATS: Registry[Format] = Registry("ramerge.formats", Format)


@cache
def by_priority() -> tuple[Format, ...]:
    """The formats that can be used, in the order in which a folder is tried."""
    return tuple(sorted(FORMATS.usable().values(), key=lambda format: -format.priority))
