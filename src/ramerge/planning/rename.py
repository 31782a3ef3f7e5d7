"""An agent's tensors under the base's names: first by the recipe's own rules, then by conventions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic

from ramerge.foundation.text import quoted
from ramerge.planning.findings import Findings, listed
from ramerge.planning.name_mappings import fit
from ramerge.recipe.model import Recipe, Rename
from ramerge.recipe.patterns import replace_all
from ramerge.tensors.checkpoint import Checkpoint

# For all names of an agent; a hundred thousand names take a fraction of a second.
_SECONDS = 5


def fitted_agents(
    recipe: Recipe, base: Checkpoint, agents: Mapping[str, Checkpoint], findings: Findings
) -> dict[str, Checkpoint]:
    """The agents, with the base's names where the recipe or a convention gives them. The plan's notes say so.

    Args:
        recipe: its rules apply first, one after another.
        base: gives the names.
        agents: by name.
        findings: gets notes, rules that catch nothing, and names that are not clear.
    """
    caught: Counter[int] = Counter()
    fitted = {}
    for name, agent in agents.items():
        renamed = _renamed(name, agent, recipe.rename, caught, findings)
        found = fit(base, renamed)
        findings.notes += [f"{name}: {note}" for note in found.notes]
        for text in found.problems:
            findings.problem(f"{agent.directory}: {text}", name)
        fitted[name] = replace(agent, tensors=found.tensors)
    for number, rule in enumerate(recipe.rename):
        if not caught[number]:
            who = rule.agent or "any agent"
            text = f"{quoted(rule.pattern)}: matches no name of a tensor of {who}"
            findings.problems.append(findings.document.where(("rename", str(number)), text))
    return fitted


def _renamed(
    name: str, agent: Checkpoint, rules: Sequence[Rename], caught: Counter[int], findings: Findings
) -> Checkpoint:
    names = {old: old for old in agent.tensors}
    deadline = monotonic() + _SECONDS
    for number, rule in enumerate(rules):
        if rule.agent in (None, name):
            try:
                changed = {old: replace_all(rule.pattern, rule.to, new, deadline) for old, new in names.items()}
            except ValueError as error:
                text = findings.document.where(("rename", str(number)), f"{quoted(rule.pattern)}: {error}")
                findings.problems.append(text)
                caught[number] += 1
                return agent
            caught[number] += sum(names[old] != new for old, new in changed.items())
            names = changed
    twice = [new for new, count in Counter(names.values()).items() if count > 1]
    if twice:
        text = f"{agent.directory}: rename gives several tensors the name {listed([quoted(new) for new in twice])}"
        findings.problem(text, name)
        return agent
    tensors = {new: agent.tensors[old] for old, new in names.items()}
    return replace(agent, tensors={new: t if t.name == new else replace(t, name=new) for new, t in tensors.items()})
