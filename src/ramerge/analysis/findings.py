"""Findings about merging the agents of an analysis: sentences with figures, each under a condition.

Each topic is a table. The first row whose condition holds is the finding; the last row always holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ramerge.analysis.parts import AgentPair, AgentPart, AnalyzedPart, Finding
from ramerge.core.foundation.text import decimals
from ramerge.sdk.text import enumerated

# An agent is sparse that moved less than this, and moved nearly everything beyond the other.
_SPARSE, _NEARLY_ALL = 0.5, 0.9
# Pairs are alike, or apart, that share this much more, or less, than chance would give.
_ALIKE = 1.5
# Fewer elements than these may be shared, or not, by chance.
_FEW = 10
# An input of which more than this share is NaN or Inf is not described.
_DAMAGE_SHARE = 0.01


@dataclass(frozen=True)
class _FindingFigures:
    """The figures that conditions and sentences of findings use: only of agents that moved anything."""

    model: AnalyzedPart

    @cached_property
    def agents(self) -> list[AgentPart]:
        return [agent for agent in self.model.agents if agent.active]

    @cached_property
    def still(self) -> list[str]:
        return [agent.name for agent in self.model.agents if not agent.active]

    @cached_property
    def dense(self) -> list[str]:
        return [agent.name for agent in self.agents if agent.density >= _SPARSE]

    @cached_property
    def densest(self) -> float:
        return max(agent.density for agent in self.agents)

    @cached_property
    def sparsest(self) -> float:
        return min(agent.density for agent in self.agents)

    @cached_property
    def pairs(self) -> list[AgentPair]:
        names = [agent.name for agent in self.agents]
        return [pair for pair in self.model.pairs if set(pair.agents) <= set(names)]

    @cached_property
    def distinct(self) -> AgentPair | None:
        """The most similar pair of agents, among pairs whose overlap differs from chance.

        Agents of densities a and b share at most min(a, b) of the elements, and a * b by chance: a ratio of at most
        1 / max(a, b).
        """
        density = {agent.name: agent.density for agent in self.agents}
        pairs = [
            pair
            for pair in self.pairs
            if max(density[name] for name in pair.agents) * _ALIKE <= 1 and max(pair.both, pair.expected) >= _FEW
        ]
        return max(pairs, key=_ratio_to_chance, default=None)

    @cached_property
    def times(self) -> float:
        return _ratio_to_chance(self.distinct) if self.distinct else 1.0

    @cached_property
    def alike(self) -> str:
        return enumerated(self.distinct.agents) if self.distinct else ""

    @cached_property
    def cosine(self) -> float:
        return max(pair.cosine for pair in self.pairs)

    def left(self, merge: str) -> float:
        """The share of the agents' updates that a merge retains, averaged over agents."""
        return sum(agent.fates[merge].retained for agent in self.agents) / len(self.agents)

    @cached_property
    def ram(self) -> float:
        return self.left("ram")

    @cached_property
    def average(self) -> float:
        return self.left("average")

    @cached_property
    def gain(self) -> float:
        return self.ram / self.average


_Wording = tuple[Callable[[_FindingFigures], bool], str]

_SPARSITY: tuple[_Wording, ...] = (
    (lambda f: not f.dense, "The updates are sparse: no agent moved more than {f.densest:.1%} of the model."),
    (
        lambda f: f.sparsest >= _NEARLY_ALL,
        "The updates are dense: nearly every element moved, as in float32 training or in another model.",
    ),
    (lambda f: f.sparsest >= _SPARSE, "The updates are dense: every agent moved half of the model or more."),
    (lambda f: True, "Not all updates are sparse: half of the model or more was moved by {dense}."),
)
_CHANCE: tuple[_Wording, ...] = (
    (
        lambda f: f.distinct is None and f.cosine >= 0.5,
        "The overlap is what chance would give; some agents move in much the same direction.",
    ),
    (
        lambda f: f.distinct is None,
        "The overlap is what chance would give; the agents move in different directions.",
    ),
    (lambda f: f.times > _ALIKE, "{f.alike} share {f.times:.1f} times as many places as chance would give."),
    (lambda f: f.times < 1 / _ALIKE, "The agents share fewer places than chance would give."),
    (lambda f: True, "The agents share about as many places as chance would give."),
)
_DILUTION: tuple[_Wording, ...] = (
    (
        lambda f: max(f.ram, f.average) < 0.05,
        "Neither RAM nor averaging leaves much of the agents' updates.",
    ),
    (lambda f: f.average < 0.01, "RAM leaves {f.ram:.0%} of the agents' updates, averaging next to nothing."),
    (lambda f: f.gain > 1.05, "RAM keeps {f.gain:.1f} times as much of the agents' updates as averaging does."),
    (lambda f: f.gain < 0.95, "RAM keeps less of the agents' updates than averaging does."),
    (lambda f: True, "RAM and averaging leave about the same of the agents' updates."),
)
# An agent whose moved elements are mostly its own: so large a part of them no other agent moved.
_MOSTLY_OWN = 0.5


def findings_of(model: AnalyzedPart, dtype: str, adapters: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Return findings on sparsity, overlap and the cost of averaging. Losses of merges are in the output's dtype."""
    figures = _FindingFigures(model)
    if not model.elements or not figures.agents:
        return (
            Finding("The agents equal the base: there is nothing to merge.", "No element moved by more than epsilon."),
        )
    low_rank = _low_rank(figures, adapters)
    findings = [_sparsity_finding(figures), *([low_rank] if low_rank else []), _overlap_finding(figures)]
    if len(model.agents) > 1:
        agents, dtypes = figures.agents, "the output's dtypes" if dtype == "mixed" else dtype
        reason = (
            f"Stored in {dtypes}, RAM retains {_shares_text(agents, lambda a: a.fates['ram'].retained)} of the "
            f"updates, and averaging {_shares_text(agents, lambda a: a.fates['average'].retained)}. Averaging also "
            f"resets {_shares_text(agents, lambda a: a.fates['average'].lost / a.active)} of the changed elements "
            "to the base's value, by rounding or because agents cancel out."
        )
        findings.append(Finding(_worded_sentence(_DILUTION, figures), reason))
    return tuple(findings)


def finding_of_damage(model: AnalyzedPart, non_finite: Mapping[str, int]) -> tuple[Finding, ...]:
    """Return the only finding if many numbers are NaN or Inf; otherwise nothing."""
    damaged_models = {label: count for label, count in non_finite.items() if count >= _DAMAGE_SHARE * model.elements}
    if not damaged_models:
        return ()
    each = ", ".join(f"{label} {count:,}" for label, count in damaged_models.items())
    return (
        Finding(
            f"These figures do not show what training changed: much of {enumerated(list(damaged_models))} is NaN or "
            "Inf.",
            f"NaN and Inf: {each}, in {model.elements:,} elements; they count as not moved. Leave such a model out, or "
            "copy or train it again.",
        ),
    )


def _worded_sentence(table: Sequence[_Wording], figures: _FindingFigures) -> str:
    text = next(text for condition, text in table if condition(figures))
    return text.format(f=figures, dense=enumerated(figures.dense))


def _sparsity_finding(figures: _FindingFigures) -> Finding:
    text = _worded_sentence(_SPARSITY, figures)
    if figures.still:
        text += f" Nothing was moved by {enumerated(figures.still)}."
    sparse_names = [agent.name for agent in figures.agents if agent.changed < 0.05 * figures.model.elements]
    more = (
        f" {enumerated(sparse_names)} changed under 5 % of all values. If the trainer has kept weights in float32, "
        "merge those: saving in another dtype may have lost small updates."
        if sparse_names
        else ""
    )
    return Finding(
        text, f"Moved by more than epsilon: {_shares_text(figures.model.agents, lambda a: a.density)}.{more}"
    )


def _low_rank(figures: _FindingFigures, adapters: Sequence[str]) -> Finding | None:
    """Return the finding on RAM with LoRA adapters, from the figures of these adapters."""
    adapter_agents = [agent for agent in figures.agents if agent.name in adapters]
    if not adapter_agents:
        return None
    text = f"{enumerated([agent.name for agent in adapter_agents])}: LoRA, dense wherever it acts."
    sharing_agents = [agent.name for agent in adapter_agents if agent.unique_share < _MOSTLY_OWN]
    if len(figures.agents) == 1:
        text += " For a single agent that changes nothing."
    elif sharing_agents:
        text += (
            f" RAM is made for sparse updates: most changes of {enumerated(sharing_agents)} overlap with others, so "
            "RAM averages them, and lambda says little."
        )
    else:
        text += " Most of their changes are unique, because other agents change other matrices or are sparse."
    rho = ", ".join(f"{agent.name} {agent.rho:.2f}" for agent in adapter_agents)
    lambdas = ", ".join(f"{agent.name} {agent.lambdas['ram+']:.3f}" for agent in adapter_agents)
    return Finding(
        text,
        "A low-rank product moves every element of the matrices that it changes; only steps below epsilon are not "
        f"counted: density {_shares_text(adapter_agents, lambda a: a.density)}. The paper measures sparse updates of "
        "full training with RL (section 3.2). Of dense ones, rho = shared / unique (equation 2) shows which matrices "
        f"they have in common, and not what their tasks have: rho {rho}, for which RAM+ has lambda {lambdas} (equation "
        "6).",
    )


def _overlap_finding(figures: _FindingFigures) -> Finding:
    """Return the finding on overlap: each agent's share of unique changes, compared with chance."""
    if len(figures.agents) == 1:
        return Finding("With a single agent nothing is shared.", "Every element that it moved is its own.")
    text = f"{_ownership_sentence(figures.agents)} {_worded_sentence(_CHANCE, figures)}"
    pair = figures.distinct or max(figures.pairs, key=lambda pair: pair.cosine)
    both, by_chance = (count / figures.model.elements for count in (pair.both, pair.expected))
    return Finding(
        text,
        f"Unique share of each agent's changes: {_shares_text(figures.agents, lambda a: a.unique_share)}. "
        f"{enumerated(pair.agents)} both changed {both:.1%} of the model; chance would give {by_chance:.1%}. There, "
        f"their changes have the same sign in {pair.sign_agreement:.0%} of the elements, and a cosine of "
        f"{decimals(pair.cosine, 2)}.",
    )


def _ownership_sentence(agents: Sequence[AgentPart]) -> str:
    """Return a sentence that names agents whose changes are mostly unique, and agents whose changes overlap."""

    def names_of(those: Sequence[AgentPart]) -> str:
        return enumerated([f"{agent.name} ({agent.unique_share:.0%})" for agent in those])

    own = [agent for agent in agents if agent.unique_share >= _MOSTLY_OWN]
    sharing_agents = [agent for agent in agents if agent.unique_share < _MOSTLY_OWN]
    texts = []
    if len(own) == 1:
        texts += [f"{own[0].name}'s changes are mostly its own ({own[0].unique_share:.0%})."]
    elif own:
        texts += [f"The changes of {names_of(own)} are mostly their own."]
    if sharing_agents:
        verb, whose = ("overlaps", "its") if len(sharing_agents) == 1 else ("overlap", "their")
        texts += [f"{names_of(sharing_agents)} {verb} with other agents, so most of {whose} changes are averaged."]
    return " ".join(texts)


def _ratio_to_chance(pair: AgentPair) -> float:
    return pair.both / pair.expected if pair.expected else 0.0


def _shares_text(agents: Sequence[AgentPart], figure: Callable[[AgentPart], float]) -> str:
    return ", ".join(f"{agent.name} {figure(agent):.1%}" for agent in agents)
