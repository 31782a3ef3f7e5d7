"""What planning finds out besides the plan: problems stop a merge, warnings do if it is strict, notes do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ramerge.foundation.errors import RamergeError
from ramerge.recipe.document import Document

_LISTED = 8


@dataclass
class Findings:
    """Problems, warnings and notes, in the order in which they were found."""

    document: Document
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, text: str, agent: str | None = None) -> None:
        """A problem of an agent, of the base under the name "", or of none; with the recipe's line that names it."""
        self.problems.append(self._where(text, agent))

    def warn(self, text: str, agent: str | None = None) -> None:
        """A warning, likewise: the merge can be carried out, and probably is not what is wanted."""
        self.warnings.append(self._where(text, agent))

    def error(self, error: RamergeError, agent: str) -> None:
        """All problems of an error about an agent, or about the base under the name ""."""
        for text in error.problems:
            self.problem(text, agent)

    def _where(self, text: str, agent: str | None) -> str:
        return text if agent is None else self.document.where(key_of(agent), text)


def key_of(agent: str) -> tuple[str, ...]:
    """Where the recipe names an agent, or the base under the name ""."""
    return ("agents", agent) if agent else ("base",)


def listed(items: Sequence[str]) -> str:
    """Items in a row, cut where nobody reads on."""
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more
