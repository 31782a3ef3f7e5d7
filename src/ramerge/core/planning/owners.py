"""Owners of tensors: names of agents, and two labels that no agent's name can equal."""

from __future__ import annotations

BASE = ""
"""The owner of the base's tensors. It is blank, because an agent's name never is, but may be `base`."""

ALL_AGENTS = "\n"
"""The owner of a mean of all agents, which is one input. It is not printable, as all agents' names are."""


def label_of(owner: str) -> str:
    """Readable text for an owner of tensors: `base`, `the agents`, or the agent's name."""
    return {BASE: "base", ALL_AGENTS: "the agents"}.get(owner, owner)
