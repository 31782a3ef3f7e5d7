"""Problems, warnings and notes of planning. Problems stop a merge; warnings stop it only if it is strict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ramerge.core.foundation.errors import RamergeError
from ramerge.core.foundation.text import enumerated
from ramerge.core.recipe.document import Document

_LISTED = 3


@dataclass
class Findings:
    """Problems, warnings and notes, in the order in which they were found."""

    document: Document
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, text: str, agent: str | None = None) -> None:
        """Add a problem. `agent` is an agent's name, or "" for the base; the message shows its line in the recipe."""
        self.problems.append(self._where(text, agent))

    def warn(self, text: str, agent: str | None = None) -> None:
        """Add a warning, as for `problem`: the merge is possible, but probably not what the user wants."""
        self.warnings.append(self._where(text, agent))

    def error(self, error: RamergeError, agent: str) -> None:
        """Add all problems of an error about an agent, or about the base if `agent` is ""."""
        for text in error.problems:
            self.problem(text, agent)

    def _where(self, text: str, agent: str | None) -> str:
        return text if agent is None else self.document.where(key_of(agent), text)


def key_of(agent: str) -> tuple[str, ...]:
    """The key under which the recipe names an agent, or the base if `agent` is ""."""
    return ("agents", agent) if agent else ("base",)


def gathered(notes: Sequence[str], agents: Sequence[str]) -> list[str]:
    """The notes, with those that say the same of several agents as one: `code and tool: ...`."""
    found: dict[tuple[str, bool], list[str]] = {}
    for note in notes:
        name, colon, text = note.partition(": ")
        about = bool(colon) and name in agents
        found.setdefault((text if about else note, about), []).append(name)
    return [
        f"{enumerated(list(dict.fromkeys(names)))}: {text}" if about else text for (text, about), names in found.items()
    ]


def listed(items: Sequence[str]) -> str:
    """The first items, separated by commas, and the number of the others."""
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more
