"""Three sentences on what an analysis means for merging these agents, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ramerge.analysis.results import AgentPart, Finding, Part

# Agents count as disjoint or as alike if their pairs share this much less or more than chance would give.
_ALIKE = 1.5
_SPARSE = 0.5


def findings_of(model: Part) -> tuple[Finding, ...]:
    """Sparsity, overlap, and what averaging would cost."""
    if not model.elements or not any(agent.active for agent in model.agents):
        return (
            Finding("The agents equal the base: there is nothing to merge.", "No element moved by more than epsilon."),
        )
    return (_sparsity(model), _overlap(model), _dilution(model))


def _sparsity(model: Part) -> Finding:
    densest = max(model.agents, key=lambda agent: agent.density)
    sparse = densest.density < _SPARSE
    text = (
        "The updates are sparse, so most of what each agent learned can be kept beside the others."
        if sparse
        else f"Not all updates are sparse: {densest.name} moved most of the model, so others will meet it everywhere."
    )
    hidden = [agent for agent in model.agents if agent.changed < 0.05 * model.elements]
    more = (
        f" {_names([agent.name for agent in hidden])} changed under 5 % of all values; steps smaller than half a last "
        "place of the stored format left no trace in the files."
        if hidden
        else ""
    )
    return Finding(text, f"Moved by more than epsilon: {_each(model.agents, lambda a: a.density)}.{more}")


def _overlap(model: Part) -> Finding:
    if len(model.agents) == 1:
        return Finding("With a single agent nothing is shared.", "Every element that it moved is its own.")
    pair = max(model.pairs, key=lambda one: one.both / one.expected if one.expected else 0.0)
    times = pair.both / pair.expected if pair.expected else 0.0
    if times > _ALIKE:
        text = f"{_names(list(pair.agents))} moved the same places more often than chance would have it."
    else:
        text = "The agents moved different places, about as chance would have it or less often."
    return Finding(
        text,
        f"Of what each moved, no other agent moved {_each(model.agents, lambda a: a.unique_share)}; the most alike "
        f"pair, {_names(list(pair.agents))}, shares {times:.1f} times what chance would give, with the same sign in "
        f"{pair.sign_agreement:.0%} of it and a cosine of {pair.cosine:.2f}.",
    )


def _dilution(model: Part) -> Finding:
    ram = [agent.fates["ram"].retained for agent in model.agents]
    average = [agent.fates["average"].retained for agent in model.agents]
    gain = sum(ram) / max(sum(average), 1e-30)
    text = (
        f"RAM keeps {gain:.1f} times as much of the agents' updates as averaging does."
        if gain > 1.05
        else "RAM and averaging leave about the same of the agents' updates."
    )
    return Finding(
        text,
        f"Retained by RAM: {_each(model.agents, lambda a: a.fates['ram'].retained)}; by averaging: "
        f"{_each(model.agents, lambda a: a.fates['average'].retained)}, which rounds "
        f"{_each(model.agents, lambda a: a.fates['average'].lost / max(a.active, 1))} of the moved elements back "
        "to the base.",
    )


def _each(agents: Sequence[AgentPart], figure: Callable[[AgentPart], float]) -> str:
    return ", ".join(f"{agent.name} {figure(agent):.1%}" for agent in agents)


def _names(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
