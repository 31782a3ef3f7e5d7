"""What `ramerge recommend` knows: for each situation a rule with fixed parameters, and what speaks for or against.

Less than a point counts as no difference. Real agents decide wherever they were merged. If the default is level with
the best there, nothing speaks for leaving it. Else, of the candidates that are level with the best there, those count
that are level with the best of them on the tiny agents (`lab.situations`), and of these the best on the real agents is
taken. Where no real agents were merged, the best on the tiny agents is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ramerge
from lab import smollm
from lab.claims import DOES_NOT, HOLDS, better
from lab.model import fresh
from lab.results import FIRST_BASE, MODELS, SECOND_BASE, Results
from lab.rows import Row
from lab.situations import COMMON, CORE, SITUATIONS
from lab.smollm import Real
from lab.statistics import Estimate, Floats, estimate
from ramerge.analysis.recommend import ADAPTERS, DENSE, PAIR, SPARSE, situation, when_trained
from ramerge.core.methods.registry import METHODS

ADVICE = Path(ramerge.__file__).parent / "analysis" / "advice.json"
MARGIN = 1.0
CANDIDATES: Mapping[str, Row] = {row.name: row for row in (*COMMON, *CORE)}
REFERENCE = "ram+"
ON_REAL: Mapping[str, str] = {
    "sum": "task_arithmetic",
    "average": "linear",
    "agree_max": "ram+ shared=agree_max",
    "rms": "ram+ shared=rms",
    "ties 0.1": "ties density=0.1",
    "ties 0.2": "ties",
}
"""What candidates are called in the results of the real agents, where that is another name."""


Training = tuple[str, int]
"""Where it is kept, and its seed."""


class Kind(NamedTuple):
    """Real agents that were merged: a situation of `lab.kinds`, the dtype of the merges, and where they are kept."""

    situation: str
    dtype: str
    kept_as: str = FIRST_BASE

    @property
    def name(self) -> str:
        """The situation, with the base if that is the second one."""
        return self.situation if self.kept_as == FIRST_BASE else f"{self.situation} of {MODELS[self.kept_as]}"


_TWO, _FOUR, _EIGHT = (Kind(f"{count}, bfloat16", "bfloat16") for count in ("two", "four", "eight"))
_SECOND_SFT = Kind("SFT", "bfloat16", SECOND_BASE)
REAL: Mapping[str, Sequence[Kind]] = {
    PAIR: (_TWO, _FOUR),
    SPARSE: (_FOUR, _EIGHT, _SECOND_SFT),
    when_trained(SPARSE, "rl"): (_FOUR, _EIGHT),
    when_trained(SPARSE, "sft"): (_SECOND_SFT,),
    DENSE: (Kind("four, float32", "float32"), Kind("eight, float32", "float32"), Kind("SFT", "bfloat16")),
    ADAPTERS: (Kind("LoRA", "float32"), Kind("LoRA", "float32", SECOND_BASE)),
}
"""The real agents that decide in a situation. Of the second base, a quarter of each agent's elements moved by SFT.

How agents were trained makes a difference for sparse ones only: lab/experiments/042-how-agents-were-trained.md.
"""


@dataclass(frozen=True)
class Judge:
    """Real agents of which merges were scored.

    Attributes:
        kind: which they are.
        real: what is kept of them.
    """

    kind: Kind
    real: Real

    @property
    def name(self) -> str:
        """As in `lab.kinds`, with the base if that is the second one."""
        return self.kind.name

    @property
    def dtype(self) -> str:
        """Of their merges."""
        return self.kind.dtype

    @property
    def trainings(self) -> list[Training]:
        """Those that were scored."""
        return [(self.kind.kept_as, seed) for seed in self.real.seeds]

    def means(self, left_out: Training | None = None, only: Training | None = None) -> dict[str, float]:
        """Mean scores of candidates as if all trainings had them; without a training, or of one only."""
        seeds = [one[1] for one in self.trainings if one != left_out and only in (None, one)]
        return real_means(self.real.of_seeds(seeds), self.dtype) if seeds else {}


@dataclass(frozen=True)
class Tiny:
    """Tiny agents of one kind and number.

    Attributes:
        name: as in `lab.situations`.
        scores: of each candidate with its fixed parameters, in per cent, of shape (seeds, candidates).
    """

    name: str
    scores: Floats


@dataclass(frozen=True)
class Choice:
    """What is advised in a situation.

    Attributes:
        tiny: what was measured on tiny agents.
        judges: the real agents that were merged in this situation.
    """

    tiny: tuple[Tiny, ...]
    judges: tuple[Judge, ...] = ()

    @cached_property
    def name(self) -> str:
        """Of the candidate that is chosen."""
        return chosen_of(self.mean, self.on_real)

    @property
    def row(self) -> Row:
        return CANDIDATES[self.name]

    @cached_property
    def scores(self) -> Floats:
        """Means over the tiny agents' situations, of shape (seeds, candidates)."""
        found: Floats = np.mean([one.scores for one in self.tiny], axis=0)
        return found

    @property
    def mean(self) -> dict[str, float]:
        """Of each candidate on tiny agents."""
        return _by_candidate(self.scores.mean(0))

    @property
    def best(self) -> str:
        """The best candidate on tiny agents."""
        return max(self.mean, key=lambda name: self.mean[name])

    @cached_property
    def on_real(self) -> dict[str, float]:
        """Mean scores on the real agents, of the candidates that all of them have."""
        return _together([judge.means() for judge in self.judges])

    @property
    def divided(self) -> bool:
        """Whether tiny agents disagree with the real ones that decide."""
        return self.mean[self.name] < self.mean[self.best] - MARGIN

    @property
    def deciding(self) -> str:
        """Whose scores decide: those of `real` agents, or of `tiny` ones."""
        return "real" if self.on_real else "tiny"

    @property
    def weakest(self) -> tuple[str, float]:
        """The tiny agents for which the choice is farthest from the best candidate, and how far."""
        behind = {one.name: _behind(_by_candidate(one.scores.mean(0)), self.name) for one in self.tiny}
        return min(behind.items(), key=lambda item: item[1])

    @property
    def weakest_on_real(self) -> tuple[str, str, float]:
        """The real agents for which the choice is farthest from the best candidate, that candidate, and how far."""
        found = []
        for judge in self.judges:
            means = judge.means()
            found.append((judge.name, max(means, key=lambda name: means[name]), _behind(means, self.name)))
        return min(found, key=lambda one: one[2])

    @property
    def regrets(self) -> list[float]:
        """On each training of the agents that decide, how far the choice without it is below the best candidate."""
        if not self.on_real:
            return [self._regret_on_tiny(seed) for seed in range(len(self.scores)) if len(self.scores) > 1]
        trainings = sorted({one for judge in self.judges for one in judge.trainings})
        known = [self._regret_on_real(one) for one in trainings if len(trainings) > 1]
        return [regret for regret in known if regret is not None]

    def _regret_on_tiny(self, left_out: int) -> float:
        chosen = chosen_of(_by_candidate(np.delete(self.scores, left_out, axis=0).mean(0)), {})
        return -_behind(_by_candidate(self.scores[left_out]), chosen)

    def _regret_on_real(self, left_out: Training) -> float | None:
        """None where what would be chosen was not scored on that training."""
        others = _together([means for judge in self.judges if (means := judge.means(left_out=left_out))])
        scores = _together([means for judge in self.judges if (means := judge.means(only=left_out))])
        chosen = chosen_of(self.mean, others)
        return -_behind(scores, chosen) if chosen in scores else None

    @property
    def rival(self) -> str:
        """The best other merge of the real agents."""
        return max((name for name in self.on_real if name != self.name), key=lambda name: self.on_real[name])

    @property
    def difference(self) -> Estimate | None:
        """On the real agents the choice less the best other merge; None without them."""
        if self.name not in self.on_real:
            return None
        values, drawn = zip(
            *(
                judge.real.difference_drawn(*(f"{real_name(name)}, {judge.dtype}" for name in (self.name, self.rival)))
                for judge in self.judges
            ),
            strict=True,
        )
        return estimate(float(np.mean(values)), np.mean(drawn, axis=0))


def label(name: str) -> str:
    """A candidate in the words of a recipe."""
    return " ".join((CANDIDATES[name].method, *(f"{key}={value}" for key, value in _given(name).items())))


def _given(name: str) -> dict[str, Any]:
    """The parameters of a candidate that are not the method's defaults."""
    row = CANDIDATES[name]
    fields = METHODS[row.method].parameters.model_fields
    return {key: value for key, value in row.fixed.items() if value != fields[key].default}


def real_name(name: str) -> str:
    """What a candidate is called in the results of the real agents."""
    return ON_REAL.get(name, name)


def real_means(real: Real, dtype: str) -> dict[str, float]:
    """Mean scores of the merges of the real agents as if all trainings had them, by the names of candidates."""
    scored = {name: set(real.scored.get(f"{real_name(name)}, {dtype}", ())) for name in CANDIDATES}
    known = [name for name, seeds in scored.items() if seeds & scored[REFERENCE]]
    return {name: real.level(real_name(name), dtype) for name in known}


def chosen_of(tiny: Mapping[str, float], real: Mapping[str, float]) -> str:
    """The candidate that the rule takes.

    Args:
        tiny: mean scores of all candidates on tiny agents.
        real: mean scores on real agents, of those that were scored.
    """
    ordered = sorted(tiny, key=lambda name: -tiny[name])
    if not real:
        return ordered[0]
    near = [name for name in ordered if name in real and real[name] >= max(real.values()) - MARGIN]
    if REFERENCE in near:
        return REFERENCE
    alike = [name for name in near if tiny[name] >= tiny[near[0]] - MARGIN]
    return max(alike, key=lambda name: real[name])


def choices(results: Results) -> dict[str, Choice]:
    """What is advised in each situation of which anything was measured."""
    kept = results.kept("situations")
    tiny: dict[str, list[Tiny]] = {}
    for one in SITUATIONS if kept else ():
        found = [seed[one.name] for seed in kept.values()]
        scores = np.array([[score[name] for name in CANDIDATES] for score in found])
        adapters = all(agent.kind == "lora" for agent in one.agents)
        densities = [float(np.mean([score["density"] for score in found]))] * len(one.agents)
        cosine = float(np.mean([score["cosine"] for score in found]))
        place = situation(densities, [cosine], adapters=adapters)
        trained = {agent.kind.partition("-")[0] for agent in one.agents}
        alike = [when_trained(place, *trained)] if len(trained) == 1 else []
        for known in (place, *(name for name in alike if name in REAL)):
            tiny.setdefault(known, []).append(Tiny(one.name, scores))
    return {name: _choice(results, name, tiny[name]) for name in sorted(tiny)}


def _choice(results: Results, name: str, tiny: Sequence[Tiny]) -> Choice:
    known = [(kind, smollm.of_situation(results, *kind)) for kind in REAL.get(name, ())]
    return Choice(tuple(tiny), tuple(Judge(kind, real) for kind, real in known if real is not None))


def _by_candidate(scores: Floats) -> dict[str, float]:
    return dict(zip(CANDIDATES, scores.tolist(), strict=True))


def _together(means: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over several real agents, of the candidates that all of these have."""
    return {
        name: float(np.mean([one[name] for one in means]))
        for name in CANDIDATES
        if means and all(name in one for one in means)
    }


def _behind(scores: Mapping[str, float], name: str) -> float:
    return scores[name] - max(scores.values())


def text(results: Results) -> str:
    """The content of advice.json."""
    content = {
        "margin": MARGIN,
        "parameters": sum(weight.numel() for weight in fresh(0).values()),
        "situations": {name: _kept(choice) for name, choice in choices(results).items()},
    }
    return json.dumps(content, indent=1) + "\n"


def _kept(choice: Choice) -> dict[str, Any]:
    weakest, behind = choice.weakest
    return {
        "method": choice.row.method,
        "parameters": dict(choice.row.fixed),
        "candidates": len(CANDIDATES),
        "best": {"method": CANDIDATES[choice.best].method, "parameters": _given(choice.best)},
        "seeds": len(choice.scores),
        "mean": _rounded(choice.mean[choice.name]),
        "ram+": _rounded(choice.mean[REFERENCE]),
        "highest": _rounded(choice.mean[choice.best]),
        "agents": [one.name for one in choice.tiny],
        "counts": sorted({len(one.agents) for one in SITUATIONS if one.name in {tiny.name for tiny in choice.tiny}}),
        "weakest": [weakest, _rounded(behind)],
        "divided": choice.divided,
        "deciding": choice.deciding,
        "trainings": len(choice.regrets),
        "errors": sum(regret > MARGIN for regret in choice.regrets),
        "regret": _rounded(np.mean(choice.regrets)) if choice.regrets else 0.0,
        "real": _kept_of_real(choice),
    }


def _kept_of_real(choice: Choice) -> dict[str, Any] | None:
    apart = choice.difference
    if apart is None:
        return None
    pair = [real_name(name) for name in (choice.name, choice.rival)]
    trainings = {
        (judge.kind.kept_as, seed)
        for judge in choice.judges
        for seed in judge.real.having(*(f"{name}, {judge.dtype}" for name in pair)).seeds
    }
    verdict = better(apart)
    weakest, best, behind = choice.weakest_on_real
    return {
        "agents": [judge.name for judge in choice.judges],
        "model": ", ".join(dict.fromkeys(MODELS[judge.kind.kept_as] for judge in choice.judges)),
        "trainings": len(trainings),
        "speaks": "for" if verdict == HOLDS else "against" if verdict == DOES_NOT and apart.high < 0 else "neither",
        "rival": label(choice.rival),
        "weakest": [weakest, label(best), _rounded(behind)],
        "difference": [_rounded(value) for value in (apart.value, apart.low, apart.high)],
        "scores": {label(name): _rounded(value) for name, value in choice.on_real.items()},
    }


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 8)  # as many that one digit after the point is the same here and on the page
