"""Who is base, agent and merge among the models: from merge records, or as the user says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramerge.evaluation.logs import Model
from ramerge.foundation.errors import EvaluationError

_WORDS = {"coding": {"coding", "code", "coder"}, "tool": {"tool", "tools"}, "math": {"math", "mathematics"}}
"""Words in a name that tell an agent's domain, where they are more than the suite's own name."""


@dataclass(frozen=True)
class GivenRoles:
    """What the user says of roles.

    Attributes:
        base: the base of all models, instead of what merge records say.
        specialists: an agent for each suite, instead of what names say.
        merged: merges without a merge record.
    """

    base: str | None = None
    specialists: Mapping[str, str] = field(default_factory=dict)
    merged: Sequence[str] = ()


@dataclass(frozen=True)
class Roles:
    """All by the models' names.

    Attributes:
        merged: models that are merges.
        bases: each model's base model, itself for a base; models without a known one are absent.
        families: what each model belongs to: the name of its base, or what its record calls it; None if unknown.
        specialists: agents by family and suite.
    """

    merged: frozenset[str]
    bases: Mapping[str, str]
    families: Mapping[str, str | None]
    specialists: Mapping[tuple[str | None, str], str]

    def role(self, name: str) -> str:
        """`base`, `agent` (or what is none of the others), or `merged`."""
        return "merged" if name in self.merged else "base" if self.bases.get(name) == name else "agent"


def find(models: Sequence[Model], given: GivenRoles, suites: Sequence[str]) -> Roles:
    """Roles of models; `suites` are those for which specialists are looked for.

    A model with a merge record is a merge. Its base and its agents are those among the others that have the path or hub
    id in the record, or its last part or the agent's name in the recipe as their name. An agent is a suite's specialist
    where its name says so, as in `tool-agent`.

    Raises:
        EvaluationError: a name that no model has.
    """
    known = [model.name for model in models]
    named = [*([given.base] if given.base else []), *given.specialists.values(), *given.merged]
    if unknown := [name for name in dict.fromkeys(named) if name not in known]:
        raise EvaluationError(f"no results of {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    records = {model.name: model.record for model in models if model.record is not None}
    families: dict[str, str | None] = {}
    agents: dict[str, str] = {}
    others = [model for model in models if model.name not in records]
    for merge, record in records.items():
        family = given.base or _match(others, record.get("base")) or record.get("base")
        families[merge] = family
        for name, path in record["agents"].items():
            if agent := _match(others, path, name):
                families.setdefault(agent, family)
                agents.setdefault(agent, name)
    sole = given.base or (next(iter(set(families.values()))) if len(set(families.values())) == 1 else None)
    for name in known:
        families.setdefault(name, name if name in families.values() else sole)
    return Roles(
        merged=frozenset({*records, *given.merged}),
        bases={name: family for name, family in families.items() if family in known},
        families=families,
        specialists=_by_name(suites, {name: f"{name} {agent}" for name, agent in agents.items()}, families)
        | {(families[name], suite): name for suite, name in given.specialists.items()},
    )


def _match(models: Sequence[Model], path: str | None, name: str | None = None) -> str | None:
    """The model that a record means: the first rule that fits exactly one."""
    if path is None:
        return None
    rules: tuple[Callable[[Model], bool], ...] = (
        lambda model: model.model is not None and _same(model.model, path),
        lambda model: model.name in (path, name),
        lambda model: model.name == Path(path).name,
        lambda model: model.model is not None and Path(model.model).name == Path(path).name,
    )
    for rule in rules:
        fitting = [model.name for model in models if rule(model)]
        if len(fitting) == 1:
            return fitting[0]
    return None


def _same(first: str, second: str) -> bool:
    return os.path.normpath(Path(first).absolute()) == os.path.normpath(Path(second).absolute())


def _by_name(
    suites: Sequence[str], agents: Mapping[str, str], families: Mapping[str, str | None]
) -> dict[tuple[str | None, str], str]:
    """Agents whose names hold a suite's word, where only one of a family does."""
    found: dict[tuple[str | None, str], list[str]] = {}
    for agent, text in agents.items():
        words = set(re.split(r"[^a-z0-9]+", text.lower()))
        for suite in suites:
            if words & _WORDS.get(suite, {suite}):
                found.setdefault((families[agent], suite), []).append(agent)
    return {key: fitting[0] for key, fitting in found.items() if len(fitting) == 1}
