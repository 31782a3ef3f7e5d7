"""Owners of tensors: an agent by its name; the base and all agents by labels that no agent can have."""

from __future__ import annotations

BASE = ""
"""The owner of the base's tensors. An agent's name is not blank, but may be `base`."""

ALL_AGENTS = "\n"
"""The owner of a mean of all agents, which is one input. An agent's name is printable."""


def label_of(owner: str) -> str:
    """An owner of tensors, for people: `base`, `the agents`, or the agent's name."""
    return {BASE: "base", ALL_AGENTS: "the agents"}.get(owner, owner)
