"""What was left to try with `core`: variants of it on the agents of `lab.situations`.

    python -m lab.variants --seeds 20 21 22

uses the agents that `python -m lab.situations` trained, keeps the scores in lab/results/variants.json, and prints what
was predicted in lab/experiments/037-variants-of-core.md and what was measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ramerge
from lab import measure
from lab.claims import signed
from lab.model import Questions, Weights, read_model, write_model
from lab.predictions import Expected
from lab.results import RESULTS
from lab.situations import SITUATIONS, TEST, Situation, keep
from lab.statistics import Estimate, over_seeds
from lab.store import once
from lab.tasks import EIGHT, SEED, held_out

KEPT = RESULTS / "variants.json"


@dataclass(frozen=True)
class Variant:
    """A merge that `lab.situations` does not have.

    Attributes:
        name: what tables call it.
        method, fixed: as in a recipe.
        rounding: as in a recipe.
        summed: patterns of the tensors that are taken from the plain sum instead.
        least: moves below so many times the root mean square of a task vector's tensor are undone before merging.
    """

    name: str
    method: str = "core"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    rounding: str = "nearest"
    summed: tuple[str, ...] = ()
    least: float = 0.0


_VECTORS = ("*norm*",)
VARIANTS = (
    Variant("core, stochastic rounding", rounding="stochastic"),
    Variant("sum, stochastic rounding", "task_arithmetic", rounding="stochastic"),
    Variant("sum x 0.8, stochastic rounding", "task_arithmetic", {"scale": 0.8}, rounding="stochastic"),
    Variant("core, norms summed", summed=_VECTORS),
    Variant("core, norms and embeddings summed", summed=(*_VECTORS, "*embed*", "*lm_head*")),
    Variant("core x 0.8", fixed={"scale": 0.8}),
    Variant("core+ time=10", "core+", {"time": 10.0}),
    Variant("core+ time=100", "core+", {"time": 100.0}),
    Variant("swudi from core", "swudi", {"init_mode": "core"}),
    Variant("swudi from core, a third of the directions", "swudi", {"init_mode": "core", "truncate_rank_ratio": 0.33}),
    Variant("core, small moves undone", least=1.0),
)


# --- measuring -------------------------------------------------------------------------------------------------------


def scores_of(work: Path, seed: int) -> dict[str, dict[str, float]]:
    """Of each situation, the per cent of right answers of every variant."""
    torch.set_num_threads(1)
    folder = work / f"seed-{seed}"
    test = [Questions(held_out(task, 0, TEST, SEED + seed)[1]) for task in EIGHT]
    return {
        situation.name: once(folder / "variants" / f"{situation.name}.json", partial(_scores, folder, situation, test))
        for situation in SITUATIONS
    }


def _scores(folder: Path, situation: Situation, test: Sequence[Questions]) -> dict[str, float]:
    asked = {EIGHT[task].name: test[task] for task in situation.tasks}
    return {
        variant.name: round(100 * measure.mean_right(_merged(folder, situation, variant), asked), 3)
        for variant in VARIANTS
    }


def _merged(folder: Path, situation: Situation, variant: Variant) -> Weights:
    agents = {f"a{place}": folder / "agents" / agent.name for place, agent in enumerate(situation.agents)}
    if variant.least:
        agents = {label: _trimmed(folder, path, variant.least) for label, path in agents.items()}
    recipe = {
        "base": str(folder / "base"),
        "agents": {label: str(path) for label, path in agents.items()},
        "dtype": situation.dtype,
        "rounding": variant.rounding,
    }
    found = _tensors(recipe | {"method": variant.method, "parameters": dict(variant.fixed)})
    if variant.summed:
        added = _tensors(recipe | {"method": "task_arithmetic"})
        found |= {name: added[name] for name in found if any(fnmatch(name, pattern) for pattern in variant.summed)}
    return found


def _tensors(recipe: Mapping[str, Any]) -> Weights:
    plan = ramerge.plan(recipe, options=ramerge.Options(threads=1, cache=False))
    return {tensor.name: tensor.torch().float() for tensor in plan.tensors()}


def _trimmed(folder: Path, agent: Path, least: float) -> Path:
    """A copy of an agent without its small moves, in the dtype that it has."""
    path = folder / "trimmed" / f"{agent.name}-{least:g}"
    if not (path / "model.safetensors").exists():
        base, own = read_model(folder / "base"), read_model(agent)
        kept = {}
        for name, weight in own.items():
            tau = weight - base[name]
            kept[name] = torch.where(tau.abs() > least * tau.square().mean().sqrt(), weight, base[name])
        write_model(path, kept, torch.float32)
    return path


# --- what it says ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """A variant less a rule, over some situations; see lab/experiments/037-variants-of-core.md."""

    number: str
    variant: str
    rule: str
    situations: tuple[str, ...]
    expected: Expected

    @property
    def what(self) -> str:
        """As a phrase."""
        where = "all situations" if len(self.situations) == len(SITUATIONS) else ", ".join(self.situations)
        return f"`{self.variant}` minus `{self.rule}`: {where}"


_ALL = tuple(one.name for one in SITUATIONS)
_RL = tuple(f"RL, {count} agents" for count in (2, 3, 5, 8))
_EXACT = tuple(f"RL in float32, {count} agents" for count in (3, 5, 8))
_FIVE = ("LoRA, 5 agents",)
PREDICTIONS = (
    Prediction("1", "core, stochastic rounding", "core", _RL, Expected(-1, 1)),
    Prediction("2", "sum, stochastic rounding", "sum", _RL, Expected(-2, 2)),
    Prediction("3", "sum x 0.8, stochastic rounding", "sum x 0.8", _RL, Expected(-2, 2)),
    Prediction("4", "core, norms summed", "core", _ALL, Expected(-0.5, 0.5)),
    Prediction("5", "core, norms and embeddings summed", "core", _ALL, Expected(-4, 0)),
    Prediction("6", "core x 0.8", "core", _RL[3:], Expected(0, 4)),
    Prediction("7", "core x 0.8", "core", _ALL, Expected(-3, 0)),
    Prediction("8", "core+ time=10", "core+", _ALL, Expected(-0.5, 1)),
    Prediction("9", "core+ time=100", "core+", _ALL, Expected(-1, 1.5)),
    Prediction("10", "core+ time=100", "core+", _FIVE, Expected(-20, -2)),
    Prediction("11", "swudi from core", "swudi", _ALL, Expected(0, 2)),
    Prediction("12", "swudi from core", "core+", _FIVE, Expected(-20, -2)),
    Prediction("13", "swudi from core, a third of the directions", "swudi from core", _FIVE, Expected(0, 10)),
    Prediction("14", "core, small moves undone", "core", _EXACT, Expected(0, 3)),
)
Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
Line = tuple[str, str, str, str, str]


def together(kept: Scores, known: Scores) -> Scores:
    """Variants and rules of the seeds that have both."""
    return {
        seed: {name: {**known[seed][name], **variants} for name, variants in by_situation.items()}
        for seed, by_situation in kept.items()
        if seed in known
    }


def difference(scores: Scores, first: str, second: str, names: Sequence[str]) -> Estimate:
    """The first less the second, as a mean over situations, with the bootstrap's interval over seeds."""
    return over_seeds(
        [float(np.mean([one[name][first] - one[name][second] for name in names])) for one in scores.values()]
    )


def predicted(scores: Scores) -> Iterator[Line]:
    """Each prediction, what was measured, and whether it came true."""
    for one in PREDICTIONS:
        found = difference(scores, one.variant, one.rule, one.situations)
        yield one.number, one.what, one.expected.range, signed(found), one.expected.judged(found)


def rows(scores: Scores) -> Iterator[tuple[str, ...]]:
    """Every variant: its mean over all situations, and the difference to core+."""
    for variant in VARIANTS:
        mean = np.mean([by_rule[variant.name] for one in scores.values() for by_rule in one.values()])
        yield f"`{variant.name}`", f"{mean:.1f}", signed(difference(scores, variant.name, "core+", _ALL))


def main() -> None:
    """Score what is not scored yet, keep it, and print what came of the predictions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".lab/situations"), help="folder of lab.situations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[20, 21, 22], help="default: 20 to 22")
    parser.add_argument("--known", type=Path, default=RESULTS / "situations.json", help="scores of lab.situations")
    parser.add_argument("--out", type=Path, default=KEPT, help="file for the scores")
    parser.add_argument("--jobs", type=int, default=2, help="processes, each for a seed; default: 2")
    given = parser.parse_args()
    kept = keep(partial(scores_of, given.work), given.seeds, given.jobs, given.out)
    for line in predicted(together(kept, json.loads(given.known.read_text(encoding="utf-8")))):
        print(*line, sep=" | ")


if __name__ == "__main__":
    main()
