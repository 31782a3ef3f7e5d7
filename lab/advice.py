"""What `ramerge recommend` knows: for each situation a method with fixed parameters, and what speaks for or against.

Real agents decide wherever they were merged: the best candidate there is taken, and of those within one point of it the
best on the tiny agents. Where no real agents were merged, the tiny agents decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ramerge
from lab import smollm
from lab.claims import DOES_NOT, HOLDS, better
from lab.model import fresh
from lab.results import Measured, Results
from lab.rows import FEW, RULES, Row
from lab.settings import KINDS, SETTINGS
from lab.smollm import Real
from lab.statistics import Estimate, Floats
from ramerge.analysis.recommend import DENSE, PAIR, SPARSE, situation
from ramerge.methods.registry import METHODS

ADVICE = Path(ramerge.__file__).parent / "analysis" / "advice.json"
MARGIN = 1.0
REFERENCE = smollm.REFERENCE
REAL: Mapping[str, str] = {PAIR: "bfloat16", SPARSE: "bfloat16", DENSE: "float32"}
"""In which dtype the real agents are in a situation, or nearest to it: two that moved 12 %, or 75 % and more."""


def _distinct(rows: Sequence[Row]) -> dict[str, Row]:
    """Rows by name, without those that have the method and the parameters of an earlier one."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(f"{row.method} {METHODS[row.method].parameters(**row.fixed)!r}", row)
    return {row.name: row for row in found.values()}


CANDIDATES: Mapping[str, Row] = _distinct((*FEW, *RULES))


@dataclass(frozen=True)
class Choice:
    """What is advised in a situation.

    Attributes:
        settings: what was measured on tiny agents.
        names: of the candidates that were measured in all of them.
        scores: with default or fixed parameters, mean over settings, of shape (seeds, candidates).
        name: of the candidate that is chosen.
        real: the real agents that were merged in this situation or the nearest to it; None for none.
        dtype: of the real agents and of their merges.
    """

    settings: tuple[Measured, ...]
    names: tuple[str, ...]
    scores: Floats
    name: str
    real: Real | None
    dtype: str

    @property
    def row(self) -> Row:
        return CANDIDATES[self.name]

    @property
    def mean(self) -> Floats:
        """Of each candidate, over seeds."""
        found: Floats = self.scores.mean(0)
        return found

    @property
    def on_tiny(self) -> dict[str, float]:
        """Mean scores of the candidates on tiny agents."""
        return dict(zip(self.names, self.mean.tolist(), strict=True))

    @property
    def best(self) -> str:
        """The best candidate on tiny agents."""
        return max(self.names, key=lambda name: self.on_tiny[name])

    @property
    def tuned(self) -> str | None:
        """The chosen method with the parameters that are best on tiny agents, where those make a difference there."""
        alike = [name for name in self.names if CANDIDATES[name].method == self.row.method]
        best = max(alike, key=lambda name: self.on_tiny[name])
        return best if self.on_tiny[best] > self.on_tiny[self.name] + MARGIN else None

    @property
    def divided(self) -> bool:
        """Whether tiny agents disagree with the real ones that decide."""
        return self.on_tiny[self.name] < self.on_tiny[self.best] - MARGIN

    @property
    def deciding(self) -> str:
        """Whose scores decide: those of `real` agents, or of `tiny` ones."""
        return "real" if real_means(self.real, self.dtype).keys() & set(self.names) else "tiny"

    @property
    def regrets(self) -> list[float]:
        """On each training of the agents that decide, how far the choice without it is below the best candidate."""
        if self.deciding == "tiny":
            return [self._regret_on_tiny(seed) for seed in range(len(self.scores)) if len(self.scores) > 1]
        assert self.real is not None
        known = [self._regret_on_real(self.real, seed) for seed in self.real.seeds if len(self.real.seeds) > 1]
        return [regret for regret in known if regret is not None]

    def _regret_on_tiny(self, left_out: int) -> float:
        others = np.delete(self.scores, left_out, axis=0).mean(0)
        chosen = chosen_of(self.names, others, {})
        return float(self.scores[left_out].max() - self.scores[left_out][self.names.index(chosen)])

    def _regret_on_real(self, real: Real, left_out: int) -> float | None:
        """None where what would be chosen was not scored on that training."""
        others = real.of_seeds([seed for seed in real.seeds if seed != left_out])
        chosen = chosen_of(self.names, self.mean, real_means(others, self.dtype))
        scores = real_means(real.of_seeds([left_out]), self.dtype)
        return max(scores[name] for name in self.names if name in scores) - scores[chosen] if chosen in scores else None

    @property
    def on_real(self) -> str | None:
        """The merge of the real agents that the choice is judged by: its own, or else its method's with defaults."""
        known = real_means(self.real, self.dtype)
        return next((name for name in (self.name, self.row.method) if name in known), None)

    @property
    def rival(self) -> str:
        """The best other merge of the real agents."""
        known = real_means(self.real, self.dtype)
        return max((name for name in known if name != self.on_real), key=lambda name: known[name])

    @property
    def difference(self) -> Estimate | None:
        """On the real agents the choice less the best other merge; None without them."""
        if self.real is None or self.on_real is None:
            return None
        return self.real.difference(f"{self.on_real}, {self.dtype}", f"{self.rival}, {self.dtype}")


def label(name: str) -> str:
    """A candidate in the words of a recipe."""
    row = CANDIDATES[name]
    return " ".join((row.method, *(f"{key}={value}" for key, value in row.fixed.items())))


def real_means(real: Real | None, dtype: str) -> dict[str, float]:
    """Mean scores of the merges of the real agents as if all trainings had them, by the names of candidates."""
    methods = real.merges.get(dtype, ()) if real is not None else ()
    return {name: real.level(name, dtype) for name in methods if name in CANDIDATES} if real else {}


def chosen_of(names: Sequence[str], tiny: Floats, real: Mapping[str, float]) -> str:
    """The candidate that the rule takes.

    Args:
        names: of the candidates.
        tiny: their mean scores on tiny agents.
        real: mean scores on real agents, of those that were measured.
    """
    ordered = [names[place] for place in np.argsort(-tiny, kind="stable")]
    known = [name for name in ordered if name in real] or ordered[:1]
    top = max(real.get(name, 0.0) for name in known)
    found: str = next(name for name in known if real.get(name, 0.0) >= top - MARGIN)
    return found


def choices(results: Results) -> Iterator[tuple[str, Choice]]:
    """Situations, and what is advised in each."""
    by_situation: dict[str, list[Measured]] = {}
    for setting in SETTINGS:
        measured = results.setting(setting.name)
        if measured is not None and len(_names([measured])) > 1 and REFERENCE in measured.default:
            by_situation.setdefault(_situation(results, setting.kind, measured), []).append(measured)
    real = smollm.read(results)
    for name, known in sorted(by_situation.items()):
        most = max(len(_names([one])) for one in known)
        yield name, _choice([one for one in known if len(_names([one])) == most], real, REAL.get(name, ""))


def _choice(settings: Sequence[Measured], real: Real | None, dtype: str) -> Choice:
    names = _names(settings)
    seeds = sorted(set.intersection(*(set(one.seeds) for one in settings)))
    scores = np.mean([_scores(one.only(lambda seed: seed in seeds), names) for one in settings], axis=0)
    known = real if real is not None and dtype in real.merges else None
    chosen = chosen_of(names, scores.mean(0), real_means(known, dtype))
    return Choice(tuple(settings), tuple(names), scores, chosen, known, dtype)


def _names(settings: Sequence[Measured]) -> list[str]:
    return [name for name in CANDIDATES if all(name in one.default for one in settings)]


def _scores(measured: Measured, names: Sequence[str]) -> Floats:
    """With default or fixed parameters, of shape (seeds, candidates)."""
    return np.stack([measured.default[name].by_task.mean(1) for name in names], axis=1)


def _situation(results: Results, kind: str, measured: Measured) -> str:
    """Where the rule puts the agents of a setting, by means over seeds."""
    if len(set(measured.agents)) > len(measured.tasks):
        return situation([], [1.0])
    geometry = results.models(kind)["geometry"]
    densities = [np.mean([one["density"][task] for one in geometry]) for task in measured.tasks]
    cosines = [
        np.mean([one["cosine"][pair] for one in geometry])
        for pair in geometry[0]["cosine"]
        if set(pair.split()) <= set(measured.tasks)
    ]
    return situation(map(float, densities), map(float, cosines))


def text(results: Results) -> str:
    """The content of advice.json."""
    content = {
        "margin": MARGIN,
        "parameters": sum(weight.numel() for weight in fresh(0).values()),
        "situations": {name: _kept(choice) for name, choice in choices(results)},
    }
    return json.dumps(content, indent=1) + "\n"


def _kept(choice: Choice) -> dict[str, Any]:
    kinds = {setting.name: KINDS[setting.kind] for setting in SETTINGS}
    return {
        "method": choice.row.method,
        "parameters": dict(choice.row.fixed),
        "candidates": len(choice.names),
        "best": label(choice.best),
        "seeds": len(choice.scores),
        "mean": _rounded(choice.on_tiny[choice.name]),
        "ram+": _rounded(choice.on_tiny[REFERENCE]),
        "divided": choice.divided,
        "tuned": _kept_of_tuned(choice),
        "deciding": choice.deciding,
        "trainings": len(choice.regrets),
        "errors": sum(regret > MARGIN for regret in choice.regrets),
        "regret": _rounded(np.mean(choice.regrets)) if choice.regrets else 0.0,
        "settings": [
            {
                "name": one.name,
                "agents": len(one.agents),
                "kind": kinds[one.name],
                "output": one.dtype,
                **{
                    key: _rounded(one.default[name].mean)
                    for key, name in (("mean", choice.name), ("ram+", REFERENCE), ("best", choice.best))
                },
            }
            for one in choice.settings
        ],
        "real": _kept_of_real(choice),
    }


def _kept_of_tuned(choice: Choice) -> dict[str, Any] | None:
    name = choice.tuned
    if name is None:
        return None
    return {"parameters": dict(CANDIDATES[name].fixed), "mean": _rounded(choice.on_tiny[name])}


def _kept_of_real(choice: Choice) -> dict[str, Any] | None:
    apart = choice.difference
    if choice.real is None or choice.on_real is None or apart is None:
        return None
    means = real_means(choice.real, choice.dtype)
    compared = choice.real.having(f"{choice.on_real}, {choice.dtype}", f"{choice.rival}, {choice.dtype}")
    verdict = better(apart)
    return {
        "agents": len(choice.real.agents),
        "model": smollm.MODEL,
        "dtype": choice.dtype,
        "trainings": len(compared.seeds),
        "prompts": sum(choice.real.prompts.values()),
        "speaks": "for" if verdict == HOLDS else "against" if verdict == DOES_NOT and apart.high < 0 else "neither",
        "advised": label(choice.on_real),
        "same": choice.on_real == choice.name,
        "rival": label(choice.rival),
        "difference": [_rounded(value) for value in (apart.value, apart.low, apart.high)],
        "scores": {label(name): _rounded(value) for name, value in means.items()},
    }


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 8)  # as many that one digit after the point is the same here and on the page
