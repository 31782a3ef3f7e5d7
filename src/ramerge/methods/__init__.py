"""The merging methods, one paper a file, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramerge.methods.base import AgentCounts, Method, Parameters
from ramerge.methods.ram import RAM, RAM_PLUS, RAM_PLUS_S, rho

METHODS: Mapping[str, Method] = {method.name: method for method in (RAM, RAM_PLUS, RAM_PLUS_S)}


def complete(method: Method, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that were given on top of the preset's; nothing is checked."""
    return {**(method.presets[preset] if preset else {}), **given}


__all__ = ["METHODS", "AgentCounts", "Method", "Parameters", "complete", "rho"]
