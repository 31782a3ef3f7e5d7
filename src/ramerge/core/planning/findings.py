"""Findings of planning: problems stop a merge, and warnings stop it only if it is strict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from ramerge.core.foundation.errors import RamergeError
from ramerge.core.foundation.text import enumerated, message
from ramerge.core.planning.owners import BASE
from ramerge.core.recipe.document import Document, Key

T = TypeVar("T")


@dataclass(frozen=True)
class PlanFinding:
    """A sentence for the user. Each step of planning returns its findings, next to its result if it has one.

    Attributes:
        kind: a `problem` stops the merge; a `warning` says that the merge is possible, but probably not what the user
            wants; a `note` is for information.
        text: the sentence.
        about: an agent's name, `BASE`, or a key of the recipe, whose line the message shows; None for no line.
    """

    kind: Literal["problem", "warning", "note"]
    text: str
    about: str | Key | None = None

    def message(self, document: Document) -> str:
        """The sentence, with the line of the recipe in which its subject is."""
        if self.about is None:
            return self.text
        return document.where(key_of(self.about) if isinstance(self.about, str) else self.about, self.text)


@dataclass(frozen=True)
class Findings:
    """All findings of a plan, as messages."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


NO_FINDINGS = Findings()


def problem(text: str, about: str | Key | None = None) -> PlanFinding:
    """Make a problem: a finding that stops the merge. `about` is as for `PlanFinding`."""
    return PlanFinding("problem", text, about)


def warning(text: str, about: str | Key | None = None) -> PlanFinding:
    """Make a warning: a finding that stops only a strict merge. `about` is as for `PlanFinding`."""
    return PlanFinding("warning", text, about)


def note(text: str) -> PlanFinding:
    """Make a note: a finding for information, which never stops the merge."""
    return PlanFinding("note", text)


def problems_of(error: RamergeError, agent: str | None) -> list[PlanFinding]:
    """Turn each problem of an error into a finding about an agent, the base (`BASE`), or neither (None)."""
    return [problem(text, agent) for text in error.messages]


def split(results: Mapping[str, tuple[T, Sequence[PlanFinding]]]) -> tuple[dict[str, T], list[PlanFinding]]:
    """Separate the results of a step of planning, by name, from the findings, which are joined."""
    all_findings = [each for _, findings in results.values() for each in findings]
    return {name: result for name, (result, _) in results.items()}, all_findings


def collect(findings: Iterable[PlanFinding], document: Document, agents: Sequence[str], *, strict: bool) -> Findings:
    """Turn findings into messages without duplicates. With `strict`, warnings become problems."""
    messages: dict[str, list[str]] = {"problem": [], "warning": [], "note": []}
    for one in findings:
        messages[one.kind].append(one.message(document))
    problems, warnings = messages["problem"], messages["warning"]
    # equal notes about several agents become one: `code and tool: ...`
    notes: dict[tuple[str, bool], list[str]] = {}
    for each in messages["note"]:
        name, colon, text = each.partition(": ")
        about = bool(colon) and name in agents
        notes.setdefault((text if about else each, about), []).append(name)
    together = [
        f"{enumerated(list(dict.fromkeys(names)))}: {text}" if about else text for (text, about), names in notes.items()
    ]
    return Findings(
        tuple(dict.fromkeys(map(message, [*problems, *(warnings if strict else ())]))),
        () if strict else tuple(dict.fromkeys(map(message, warnings))),
        tuple(map(message, together)),
    )


def key_of(agent: str) -> tuple[str, ...]:
    """The key of an agent, or of the base, in a recipe."""
    return ("base",) if agent == BASE else ("agents", agent)
