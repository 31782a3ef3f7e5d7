"""What `ramerge recommend` knows: for each situation a rule with fixed parameters, and what speaks for or against.

Real agents decide wherever they were merged: the best candidate there is taken, and of those within one point of it the
best on the tiny agents (`lab.situations`). Where no real agents were merged, the tiny agents decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import ramerge
from lab import smollm
from lab.claims import DOES_NOT, HOLDS, better
from lab.model import fresh
from lab.results import Results
from lab.rows import Row
from lab.situations import COMMON, CORE, SITUATIONS
from lab.smollm import Real
from lab.statistics import Estimate, Floats
from ramerge.analysis.recommend import ADAPTERS, DENSE, PAIR, SPARSE, situation
from ramerge.methods.registry import METHODS

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


@dataclass(frozen=True)
class Judges:
    """Real agents that decide.

    Attributes:
        name: as in `lab.kinds`.
        dtype: of their merges.
        kind: what they are, as a phrase.
    """

    name: str
    dtype: str
    kind: str


_FOUR = Judges("four, bfloat16", "bfloat16", "RL, agents and output in bfloat16")
REAL: Mapping[str, Sequence[Judges]] = {
    PAIR: (replace(_FOUR, name="two, bfloat16"), _FOUR),
    SPARSE: (_FOUR,),
    DENSE: (Judges("four, float32", "float32", "RL, agents and output in float32"),),
    ADAPTERS: (Judges("LoRA", "float32", "LoRA adapters, output in float32"),),
}
"""The real agents that decide in a situation: the first of these that were scored."""


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
        real: the real agents that were merged in this situation; None for none.
        judges: what these are.
    """

    tiny: tuple[Tiny, ...]
    real: Real | None = None
    judges: Judges = _FOUR

    @property
    def dtype(self) -> str:
        """Of the merges of the real agents."""
        return self.judges.dtype

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
        """Mean scores on the real agents as if all trainings had them, of the candidates that were scored there."""
        return real_means(self.real, self.dtype)

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
    def regrets(self) -> list[float]:
        """On each training of the agents that decide, how far the choice without it is below the best candidate."""
        if self.real is None or not self.on_real:
            return [self._regret_on_tiny(seed) for seed in range(len(self.scores)) if len(self.scores) > 1]
        known = [self._regret_on_real(self.real, seed) for seed in self.real.seeds if len(self.real.seeds) > 1]
        return [regret for regret in known if regret is not None]

    def _regret_on_tiny(self, left_out: int) -> float:
        chosen = chosen_of(_by_candidate(np.delete(self.scores, left_out, axis=0).mean(0)), {})
        return -_behind(_by_candidate(self.scores[left_out]), chosen)

    def _regret_on_real(self, real: Real, left_out: int) -> float | None:
        """None where what would be chosen was not scored on that training."""
        others = real.of_seeds([seed for seed in real.seeds if seed != left_out])
        chosen = chosen_of(self.mean, real_means(others, self.dtype))
        scores = real_means(real.of_seeds([left_out]), self.dtype)
        return max(scores.values()) - scores[chosen] if chosen in scores else None

    @property
    def rival(self) -> str:
        """The best other merge of the real agents."""
        return max((name for name in self.on_real if name != self.name), key=lambda name: self.on_real[name])

    @property
    def difference(self) -> Estimate | None:
        """On the real agents the choice less the best other merge; None without them."""
        if self.real is None or self.name not in self.on_real:
            return None
        return self.real.difference(*(f"{real_name(name)}, {self.dtype}" for name in (self.name, self.rival)))


def label(name: str) -> str:
    """A candidate in the words of a recipe."""
    row = CANDIDATES[name]
    fields = METHODS[row.method].parameters.model_fields
    given = {key: value for key, value in row.fixed.items() if value != fields[key].default}
    return " ".join((row.method, *(f"{key}={value}" for key, value in given.items())))


def real_name(name: str) -> str:
    """What a candidate is called in the results of the real agents."""
    return ON_REAL.get(name, name)


def real_means(real: Real | None, dtype: str) -> dict[str, float]:
    """Mean scores of the merges of the real agents as if all trainings had them, by the names of candidates."""
    if real is None:
        return {}
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
    known = [name for name in ordered if name in real] or ordered[:1]
    top = max(real.get(name, 0.0) for name in known)
    return next(name for name in known if real.get(name, 0.0) >= top - MARGIN)


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
        tiny.setdefault(place, []).append(Tiny(one.name, scores))
    return {name: _choice(results, name, tiny[name]) for name in sorted(tiny)}


def _choice(results: Results, name: str, tiny: Sequence[Tiny]) -> Choice:
    for judges in REAL.get(name, ()):
        if (real := smollm.of_situation(results, judges.name, judges.dtype)) is not None:
            return Choice(tuple(tiny), real, judges)
    return Choice(tuple(tiny))


def _by_candidate(scores: Floats) -> dict[str, float]:
    return dict(zip(CANDIDATES, scores.tolist(), strict=True))


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
        "best": label(choice.best),
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
    if choice.real is None or apart is None:
        return None
    pair = [f"{real_name(name)}, {choice.dtype}" for name in (choice.name, choice.rival)]
    verdict = better(apart)
    return {
        "agents": len(choice.real.agents),
        "model": smollm.MODEL,
        "kind": choice.judges.kind,
        "trainings": len(choice.real.having(*pair).seeds),
        "prompts": sum(choice.real.prompts.values()),
        "speaks": "for" if verdict == HOLDS else "against" if verdict == DOES_NOT and apart.high < 0 else "neither",
        "rival": label(choice.rival),
        "difference": [_rounded(value) for value in (apart.value, apart.low, apart.high)],
        "scores": {label(name): _rounded(value) for name, value in choice.on_real.items()},
    }


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 8)  # as many that one digit after the point is the same here and on the page
