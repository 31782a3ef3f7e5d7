"""Merges of real agents chosen with a few prompts: what lab/real/prompted.py keeps, as tables.

    python -m lab.prompted

prints every candidate of every kind. Predictions are those of lab/experiments/044-prompts.md and 045-prompts-again.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.results import FIRST_BASE, MODELS, RESULTS, SECOND_BASE
from ramerge.calibration.agreement import mass_items, temper_of
from ramerge.scoring.intervals import replicates
from ramerge.scoring.scores import Measure, Objective, Scores, of_items
from ramerge.searches.evidence import difference
from ramerge.searches.own_replies import MOST_CANDIDATES

MASS = Objective()
DRAWS = 1000

FILES = {
    "prompted": MODELS[FIRST_BASE],
    "prompted-again": MODELS[FIRST_BASE],
    "prompted-second-base": MODELS[SECOND_BASE],
}
"""What is kept, and the base of its agents."""
CONFIRMING = {"prompted-mass": MODELS[FIRST_BASE], "prompted-mass-second-base": MODELS[SECOND_BASE]}
"""Trainings that mass was not found on: lab/experiments/046-mass.md."""
CANDIDATES = (
    *(f"sum{factor}" for factor in ("", " x 0.8", " x 0.5", " x 1.3", " x 1.6")),
    *("ram", "ram+", "ties", "core", "core+", "swudi"),
    *(f"regmean {ridge}" for ridge in ("0.01", "0.1", "1", "10")),
)
SEARCH_RULES = (
    *("sum", "sum x 0.8", "sum x 1.3", "sum x 1.6", "ram+", "core+"),
    *(name for name in CANDIDATES if name.startswith("regmean")),
)
"""Of these, those that `ramerge search` always tries."""
KINDS = {
    "SFT": "four SFT agents",
    "LoRA": "four LoRA agents",
    "RL": "four RL agents in bfloat16",
    "RL, float32": "four RL agents in float32",
    "two, RL": "two RL agents in bfloat16",
    "mixture": "two RL and two SFT agents",
    "eight": "four RL and four SFT agents",
    "long, SFT": "three SFT agents, long replies",
    "long, RL": "three RL agents, long replies",
    "adapter and full": "three SFT agents and one adapter",
    "unseen": "three SFT agents",
    "unseen, RL": "three RL agents in bfloat16",
}


@dataclass(frozen=True)
class Kind:
    """One training of one kind of agents.

    Attributes:
        base: the name of its base.
        name: in `KINDS`.
        seed: of the training.
        figures: by model, rewards by task and likelihoods by agent.
    """

    base: str
    name: str
    seed: str
    figures: Mapping[str, Any]

    @property
    def agents(self) -> float:
        """The agents' mean reward on their own tasks, in per cent."""
        return reward_of(self.figures["agents"])

    @property
    def rewards(self) -> dict[str, float]:
        """Mean reward of each candidate that was scored, in per cent, the best first."""
        by_name = {name: reward_of(self.figures[name]["rewards"]) for name in CANDIDATES if name in self.figures}
        return dict(sorted(by_name.items(), key=lambda each: -each[1]))

    @property
    def best(self) -> tuple[str, float]:
        """The best candidate, picked with labels."""
        return next(iter(self.rewards.items()))

    @property
    def without_prompts(self) -> tuple[str, float]:
        """The best of those that need no prompts, picked with labels."""
        return next(each for each in self.rewards.items() if not each[0].startswith("regmean"))

    def agreement(self, which: str) -> dict[str, float]:
        """Agreement of each candidate with `right` or `all` replies, or others that were kept."""
        return {name: nll_of(self.figures[name][which]) for name in self.rewards if which in self.figures[name]}

    @property
    def judges(self) -> list[str]:
        """Replies by which candidates are chosen: `right`, `all`, and `right` of other prompts whose figures are kept.

        Of some, only sums over all prompts were kept, from which mass does not follow.
        """
        others = {which: items for which, items in self.figures["sum"].items() if which.endswith(" prompts")}
        return [
            "right",
            "all",
            *(which for which, items in others.items() if any(len(each) > 1 for each in items.values())),
        ]

    def masses(self, which: str) -> dict[str, float]:
        """Mass of each candidate on `right` or `all` replies, or others that were kept; wrong replies count 0."""
        return {name: MASS.value(scores) for name, scores in self._scores(which).items()}

    def _scores(self, which: str) -> dict[str, Scores]:
        """The masses of each candidate, by agent, with those of its prompts."""
        _, _, prompts = which.partition(", ")
        counts = {
            name: int(prompts.split()[0]) if prompts else len(items)
            for name, items in self.figures["sum"]["all"].items()
        }
        items_by_name = {name: self.figures[name][which] for name in self.rewards if which in self.figures[name]}
        items = {
            name: {agent: np.array(replies, float) for agent, replies in by_agent.items() if replies}
            for name, by_agent in items_by_name.items()
        }
        temper = temper_of(items.values())
        return {
            name: {agent: _mass(each, temper, counts[agent]) for agent, each in one.items()}
            for name, one in items.items()
        }

    def choice(self, which: str) -> tuple[str, float]:
        """Choice of `ramerge search` by kept replies, and its distance to the best in points."""
        return self._best_of(self.masses(which))

    def chosen_by_nll(self, which: str) -> tuple[str, float]:
        """The same by the mean negative log-likelihood per token of these replies."""
        return self._best_of({name: -nll for name, nll in self.agreement(which).items()})

    def resampled(self, which: str) -> dict[str, float]:
        """By score, `mass` or `NLL`: points behind the best, the mean over draws of the prompts with replacement."""
        items = {name: self.figures[name][which] for name in self._tried if which in self.figures.get(name, {})}
        nlls = {
            name: {agent: of_items(np.array(replies, float)) for agent, replies in by_agent.items() if replies}
            for name, by_agent in items.items()
        }
        return {"mass": self._behind_on_draws(self._scores(which), 1), "NLL": self._behind_on_draws(nlls, -1)}

    def _behind_on_draws(self, scores: Mapping[str, Scores], sign: int) -> float:
        names = [name for name in self._tried if name in scores]
        agents = scores[names[0]]
        items = [np.stack([_items(scores[name][agent]) for name in names], axis=1) for agent in agents]
        draws = [replicates(each, seed=number, resamples=DRAWS) for number, each in enumerate(items)]
        choices = (sign * np.mean(draws, axis=0)).argmax(axis=1)
        behind = np.array([self.best[1] - self.rewards[name] for name in names])
        return float(behind[choices].mean())

    def with_own_replies(self, which: str) -> tuple[str, float] | None:
        """The same where `--generate` decides between candidates that mass cannot tell from the best; None: not kept.

        Half the share of a candidate's own replies to held-out prompts that are right, half mass.
        """
        scores = self._scores(which)
        by_mass = sorted(
            (name for name in self._tried if name in scores), key=lambda name: MASS.value(scores[name]), reverse=True
        )
        best, *others = by_mass
        ties = [best, *(name for name in others if difference(MASS, scores[name], scores[best]).holds_0)]
        own = {name: self.figures[name]["own"] for name in ties[:MOST_CANDIDATES] if "own" in self.figures[name]}
        if best not in own:
            return None
        return self._best_of({name: _share_right(own[name]) + MASS.value(scores[name]) for name in own})

    @property
    def _tried(self) -> list[str]:
        """The candidates that `ramerge search` tries."""
        return [*SEARCH_RULES, "ties" if self.name in ("LoRA", "adapter and full") else "swudi"]

    def _best_of(self, scores: Mapping[str, float]) -> tuple[str, float]:
        name = max((name for name in self._tried if name in scores), key=scores.__getitem__)
        return name, self.best[1] - self.rewards[name]


def kinds(files: Mapping[str, str] = FILES) -> list[Kind]:
    """All that is kept in some files, in their order; without those of which no candidate was scored."""
    all_kinds = []
    for file, base in files.items():
        path = RESULTS / f"{file}.json"
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        all_kinds += [Kind(base, name, seed, one) for name, by_seed in content.items() for seed, one in by_seed.items()]
    return [kind for kind in all_kinds if kind.rewards]


def _mass(items: NDArray[np.float64], temper: float, count: int) -> Measure:
    """The mass of an agent's replies, of which the wrong ones among so many were left out."""
    wrong = np.tile([0.0, 1.0], (count - len(items), 1))
    return of_items(np.concatenate([mass_items(items, temper), wrong]))


def _items(measure: Measure) -> NDArray[np.float64]:
    assert measure.items is not None
    return measure.items


def _share_right(digits: Mapping[str, str]) -> float:
    """The mean over agents of the share of replies with the whole reward."""
    return fmean(text.count("4") / len(text) for text in digits.values())


def reward_of(digits: Mapping[str, str]) -> float:
    """The mean reward over tasks, in per cent."""
    return fmean(25 * fmean(map(int, text)) for text in digits.values())


def nll_of(items: Mapping[str, Sequence[Sequence[float]]]) -> float:
    """The agreement: the mean over agents of the negative log-likelihood per token."""
    return fmean(sum(one for one, _ in each) / sum(n for _, n in each) for each in items.values() if each)


def table(kind: Kind) -> Iterator[str]:
    """Markdown: the candidates and other statistics of one kind, the best reward first."""
    yield f"{kind.base}, {KINDS[kind.name]}, seed {kind.seed}: agents on their own tasks {kind.agents:.1f} %\n"
    unseen = {name: one["unseen"] for name, one in kind.figures.items() if "unseen" in one}
    if unseen:
        yield f"unseen task: base {reward_of(kind.figures['base, unseen']):.1f} %\n"
    yield "| model | mean reward, % | mass, right | all | NLL, right | all | unseen task, % |"
    yield f"|---|{'---:|' * 6}"
    masses = {which: kind.masses(which) for which in ("right", "all")}
    by_model = {name: one for name, one in kind.figures.items() if "right" in one}
    for name, one in sorted(by_model.items(), key=lambda each: -reward_of(each[1]["rewards"])):
        other = f"{reward_of(unseen[name]):.1f}" if name in unseen else ""
        by_mass = " | ".join(f"{each[name]:.3f}" if name in each else "" for each in masses.values())
        by_nll = " | ".join(f"{nll_of(one[which]):.3f}" for which in ("right", "all"))
        figures = f"{reward_of(one['rewards']):.1f} | {by_mass} | {by_nll}"
        yield f"| {name} | {figures} | {other} |"
    for which in kind.judges:
        (name, behind), (other, more) = kind.choice(which), kind.chosen_by_nll(which)
        yield f"\nby {which}: {name}, {behind:.1f} points behind the best; by NLL: {other}, {more:.1f}"
        generated = kind.with_own_replies(which)
        if generated is not None:
            yield f"with own replies: {generated[0]}, {generated[1]:.1f}"
    yield ""


if __name__ == "__main__":
    for one in [*kinds(), *kinds(CONFIRMING)]:
        print(*table(one), sep="\n")
