"""What `ramerge recommend` knows: for each situation the best method with fixed parameters, and how often it fails."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ramerge
from lab.model import fresh
from lab.results import Measured, Results
from lab.rows import FEW, RULES, Row
from lab.settings import SETTINGS
from lab.statistics import Floats
from ramerge.analysis.recommend import situation

ADVICE = Path(ramerge.__file__).parent / "analysis" / "advice.json"
MARGIN = 1.0
_CANDIDATES: Mapping[str, Row] = {row.name: row for row in (*FEW, *RULES)}


def text(results: Results) -> str:
    """The content of advice.json."""
    by_situation: dict[str, list[Measured]] = {}
    for setting in SETTINGS:
        measured = results.setting(setting.name)
        if measured is not None:
            by_situation.setdefault(_situation(results, setting.kind, measured), []).append(measured)
    content = {
        "margin": MARGIN,
        "parameters": sum(weight.numel() for weight in fresh(0).values()),
        "situations": {name: _best(settings) for name, settings in sorted(by_situation.items())},
    }
    return json.dumps(content, indent=1) + "\n"


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


def _best(settings: Sequence[Measured]) -> dict[str, Any]:
    """The best candidate over settings, and what choosing it on all seeds but one costs on that one."""
    names = [name for name in _CANDIDATES if all(name in one.default for one in settings)]
    seeds = sorted(set.intersection(*(set(one.seeds) for one in settings)))
    scores = np.mean([_scores(one.only(lambda seed: seed in seeds), names) for one in settings], axis=0)
    winner = _CANDIDATES[names[int(scores.mean(0).argmax())]]
    regrets = [_regret(scores, place) for place in range(len(seeds))] if len(seeds) > 1 else []
    return {
        "method": winner.method,
        "parameters": dict(winner.fixed),
        "settings": [one.name for one in settings],
        "agents": sorted({len(one.agents) for one in settings}),
        "candidates": len(names),
        "seeds": len(seeds),
        "mean": round(float(scores.mean(0).max()), 2),
        "ram+": round(float(scores.mean(0)[names.index("ram+")]), 2),
        "errors": sum(regret > MARGIN for regret in regrets),
        "regret": round(float(np.mean(regrets)), 2) if regrets else 0.0,
    }


def _scores(measured: Measured, names: Sequence[str]) -> Floats:
    """With default or fixed parameters, of shape (seeds, candidates)."""
    return np.stack([measured.default[name].by_task.mean(1) for name in names], axis=1)


def _regret(scores: Floats, left_out: int) -> float:
    """How far the choice on the other seeds is below the best candidate on this one."""
    others = np.delete(scores, left_out, axis=0).mean(0)
    return float(scores[left_out].max() - scores[left_out][int(others.argmax())])
