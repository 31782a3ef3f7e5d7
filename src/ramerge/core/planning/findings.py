"""Findings of planning. Problems stop a merge; warnings stop it only if it is strict."""

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
    """A sentence for the user. Steps of planning return these, with their result if they have one.

    Attributes:
        kind: a `problem` stops the merge; a `warning` says that it is possible, but probably not what the user wants.
        text: the sentence.
        about: an agent's name, `BASE`, or a key of the recipe, whose line the message shows; None for no line.
    """

    kind: Literal["problem", "warning", "note"]
    text: str
    about: str | Key | None = None

    def message(self, document: Document) -> str:
        """The sentence, with the line of the recipe that it is about."""
        if self.about is None:
            return self.text
        return document.where(key_of(self.about) if isinstance(self.about, str) else self.about, self.text)


@dataclass(frozen=True)
class Findings:
    """All findings of a plan as messages."""

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
    """Make a note: a finding that the user should know of, and that does not stop the merge."""
    return PlanFinding("note", text)


def problems_of(error: RamergeError, agent: str | None) -> list[PlanFinding]:
    """All problems of an error about an agent, about the base if `agent` is `BASE`, or about neither if it is None."""
    return [problem(text, agent) for text in error.problems]


def split(results: Mapping[str, tuple[T, Sequence[PlanFinding]]]) -> tuple[dict[str, T], list[PlanFinding]]:
    """The results of a step of planning by name, and the findings of all of them."""
    all_findings = [each for _, findings in results.values() for each in findings]
    return {name: result for name, (result, _) in results.items()}, all_findings


def collect(findings: Iterable[PlanFinding], document: Document, agents: Sequence[str], *, strict: bool) -> Findings:
    """All findings of planning as messages, each once. With `strict`, warnings are problems."""
    messages: dict[str, list[str]] = {"problem": [], "warning": [], "note": []}
    for one in findings:
        messages[one.kind].append(one.message(document))
    problems, warnings = messages["problem"], messages["warning"]
    # notes that say the same of several agents become one: `code and tool: ...`
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
    """The key under which the recipe names an agent, or the base."""
    return ("base",) if agent == BASE else ("agents", agent)
