"""Finds the roles of models: base, agent or merge, from merge records or the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramerge import EvaluationError
from ramerge_eval.samples import Model, TaskName

_WORDS = {"coding": {"coding", "code", "coder"}, "tool": {"tool", "tools"}, "math": {"math", "mathematics"}}
"""Words in a name that indicate an agent's domain, if the suite's own name is not the only one."""


@dataclass(frozen=True)
class GivenRoles:
    """Roles given by the user: the base of all models, an agent for each suite or task, merges without a record."""

    base: str | None = None
    specialists: Mapping[str, str] = field(default_factory=dict)
    merges: Sequence[str] = ()


@dataclass(frozen=True)
class Roles:
    """The roles of all models, by name.

    Attributes:
        merges: models that are merges.
        families: the family of each model: the name of its base, or the base's name in the record; None if unknown.
        specialists: agents by family, and suite or task.
    """

    merges: frozenset[str]
    families: Mapping[str, str | None]
    specialists: Mapping[tuple[str | None, str], str]

    def role(self, name: str) -> str:
        """Return the role of a model: `base`, `merged`, or otherwise `agent`."""
        return "merged" if name in self.merges else "base" if self.families[name] == name else "agent"

    def specialist(self, family: str | None, task: TaskName) -> str | None:
        """Return the specialist of a task, the agent trained for it: the task's own, or else its suite's."""
        return self.specialists.get((family, task[1])) or self.specialists.get((family, task[0]))


def roles_of(
    models: Sequence[Model], explicit: GivenRoles, suites: Sequence[str], tasks: Collection[TaskName] = ()
) -> Roles:
    """Find the roles of models, and specialists for `suites` and `tasks`.

    A model with a merge record is a merge. Its base and agents are the models with the path or hub id in the record; or
    whose name is the last part of this id, or the agent's name in the recipe. An agent is a suite's specialist if its
    name says so, as in `tool-agent`, and a task's specialist if it has the task's name.

    Raises:
        EvaluationError: a name that no model has.
    """
    all_names = [model.name for model in models]
    names = [*([explicit.base] if explicit.base else []), *explicit.specialists.values(), *explicit.merges]
    if unknown := [name for name in dict.fromkeys(names) if name not in all_names]:
        raise EvaluationError(f"no results of {', '.join(map(repr, unknown))}; there are {', '.join(all_names)}")
    records = {model.name: model.record for model in models if model.record is not None}
    others = [model for model in models if model.name not in records]
    families: dict[str, str | None] = {}
    texts: dict[str, str] = {}
    for merge, record in records.items():
        family = families[merge] = explicit.base or _match(others, record["base"]) or record["base"]
        for name, path in record["agents"].items():
            if agent := _match(others, path, name):
                families.setdefault(agent, family)
                texts.setdefault(agent, f"{agent} {name}")
    sole = explicit.base or (next(iter(set(families.values()))) if len(set(families.values())) == 1 else None)
    for name in all_names:
        families.setdefault(name, name if name in families.values() else sole)
    candidates: dict[tuple[str | None, str], list[str]] = {}
    for agent, text in texts.items():
        words = set(re.split(r"[^a-z0-9]+", text.lower()))
        for suite in suites:
            if words & _WORDS.get(suite, {suite}):
                candidates.setdefault((families[agent], suite), []).append(agent)
    specialists = {key: fitting[0] for key, fitting in candidates.items() if len(fitting) == 1}
    specialists |= {
        (families[name], name): name for suite, name in tasks if name in texts and suite not in explicit.specialists
    }
    specialists |= {(families[name], suite): name for suite, name in explicit.specialists.items()}
    return Roles(frozenset({*records, *explicit.merges}), families, specialists)


def _match(models: Sequence[Model], path: str | None, name: str | None = None) -> str | None:
    """Return the model that a merge's record means: the first rule that matches exactly one model decides."""
    if path is None:
        return None
    rules: tuple[Callable[[Model], bool], ...] = (
        lambda model: model.model is not None and Path(model.model).resolve() == Path(path).resolve(),
        lambda model: model.name in (path, name),
        lambda model: model.name == Path(path).name,
        lambda model: model.model is not None and Path(model.model).name == Path(path).name,
    )
    for rule in rules:
        fitting = [model.name for model in models if rule(model)]
        if len(fitting) == 1:
            return fitting[0]
    return None
