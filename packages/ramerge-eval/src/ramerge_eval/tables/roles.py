"""Roles of models: which is base, agent or merge, from merge records, or as the user says."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramerge import EvaluationError
from ramerge_eval.samples import Model, TaskName

_WORDS = {"coding": {"coding", "code", "coder"}, "tool": {"tool", "tools"}, "math": {"math", "mathematics"}}
"""Words in a name that tell an agent's domain, where they are more than the suite's own name."""


@dataclass(frozen=True)
class GivenRoles:
    """Roles that the user names: the base of all models, an agent for each suite or task, merges without a record."""

    base: str | None = None
    specialists: Mapping[str, str] = field(default_factory=dict)
    merges: Sequence[str] = ()


@dataclass(frozen=True)
class Roles:
    """The roles of all models, by name.

    Attributes:
        merges: models that are merges.
        families: what each model belongs to: the name of its base, or what its record calls it; None if unknown.
        specialists: agents by family, and suite or task.
    """

    merges: frozenset[str]
    families: Mapping[str, str | None]
    specialists: Mapping[tuple[str | None, str], str]

    def role(self, name: str) -> str:
        """The role of a model: `base`, `agent` (or what is none of the others), or `merged`."""
        return "merged" if name in self.merges else "base" if self.families[name] == name else "agent"

    def specialist(self, family: str | None, task: TaskName) -> str | None:
        """The specialist of a task, the agent trained for it: one that is given for it alone, else its suite's."""
        return self.specialists.get((family, task[1])) or self.specialists.get((family, task[0]))


def roles_of(
    models: Sequence[Model], explicit: GivenRoles, suites: Sequence[str], tasks: Collection[TaskName] = ()
) -> Roles:
    """Find the roles of models; `suites` and `tasks` are those for which specialists are looked for.

    A model with a merge record is a merge. Its base and its agents are those among the others that have the path or hub
    id in the record, or its last part or the agent's name in the recipe as their name. An agent is a suite's specialist
    where its name says so, as in `tool-agent`, and a task's where it has the task's name.

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
    """The model that a merge's record means: the first rule that fits exactly one."""
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
