"""The paper's claims, each with a rule that was fixed before the results, the verdict by it, and the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lab.results import BASE, Model, Outcome, Results
from lab.rows import ALPHA, EPSILON, PAPER, R
from lab.settings import MAIN
from lab.statistics import Estimate, holm, over_seeds

HOLDS, DOES_NOT, OPEN = "holds", "does not hold", "not decided"
MARGIN = 1.0
"""Points of difference that count as level."""
STEADY = 2.0
"""Points by which a score may vary over the values of a parameter and still count as insensitive to it."""
LEVEL = 0.05
DIFFERENCE, BASELINES = "A", "B"
RULES = {
    DIFFERENCE: f"a claim that one thing is more than another holds if the 95 % interval of the difference lies above "
    f"0. It does not hold if the interval lies below 0, or within {MARGIN:g} point of 0. Otherwise it is not decided "
    "by this data",
    BASELINES: f"a claim that a merge beats the baselines holds if it is better than each of them (p < {LEVEL:g} with "
    "Holm's correction). It does not hold if a baseline is better, or is not clearly different (interval within "
    f"{MARGIN:g} point of 0). Otherwise it is not decided by this data. Parameters of all are chosen on "
    "validation prompts",
}
"""Rules that several claims share."""


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict.

    Attributes:
        where: in the paper, or `beyond it`.
        rule: when it holds: a key of `RULES`, or words of its own.
        evidence: figures, as sentences.
        terms: what is compared, where the claim does not say it.
    """

    text: str
    where: str
    rule: str
    verdict: str
    evidence: str
    terms: str = ""


def claims(results: Results) -> Iterator[Claim]:
    """All claims for which anything was measured."""
    for make in _CLAIMS:
        claim = make(results)
        if claim is not None:
            yield claim


def better(difference: Estimate) -> str:
    """Whether one merge is better than another."""
    if difference.low > 0:
        return HOLDS
    if difference.high < 0 or (difference.low > -MARGIN and difference.high < MARGIN):
        return DOES_NOT
    return OPEN


def signed_text(estimate: Estimate, digits: int = 1) -> str:
    """A difference in points with its interval."""
    low, high = f"{estimate.low:+.{digits}f}", f"{estimate.high:+.{digits}f}"
    return f"{estimate.value:+.{digits}f} ({low} to {high})"


# --- what RL changes ---


def _sparser(results: Results) -> Claim | None:
    tasks = _tasks_of(results, "sft")
    if not tasks:
        return None
    kinds = {kind: densities(results, kind, tasks) for kind in ("rl", "sft", "rl-adam", "sft-adam")}
    seeds = kinds["rl"].keys() & kinds["sft"].keys()
    if not seeds:
        return None
    apart = over_seeds([100 * (kinds["sft"][seed] - kinds["rl"][seed]) for seed in sorted(seeds)])
    means = ", ".join(
        f"{kind} {100 * np.mean(list(by_task.values())):.1f} %" for kind, by_task in kinds.items() if by_task
    )
    return Claim(
        "RL task vectors are sparser than those of SFT",
        "sections 1 and 3.2",
        DIFFERENCE,
        better(apart),
        f"density of SFT minus that of RL, on {', '.join(tasks)}: {signed_text(apart)} points; densities: {means} "
        "(agents with Adam had other steps and rates, so only rl and sft are compared)",
        "SFT is from the same base, on the same tasks, with the same optimizer, rates, steps and rounding",
    )


def _optimizer(results: Results) -> Claim | None:
    tasks = _tasks_of(results, "rl-adam")
    if not tasks:
        return None
    plain, other = densities(results, "rl", tasks), densities(results, "rl-adam", tasks)
    seeds = plain.keys() & other.keys()
    if not seeds:
        return None
    apart = over_seeds([100 * (other[seed] - plain[seed]) for seed in sorted(seeds)])
    return Claim(
        "Sparsity comes from RL itself, and not from the optimizer",
        "sections 1 and 3.2 (implied)",
        "RL with Adam must be as sparse as RL with SGD: holds if the 95 % interval of the difference in density lies "
        "below 5 points, does not hold if it lies above, otherwise it is not decided by this data",
        HOLDS if apart.high < 5 else DOES_NOT if apart.low > 5 else OPEN,
        f"density with Adam minus that with SGD, on {', '.join(tasks)}: {signed_text(apart)} points; steps and first "
        f"rates differ, too ({_practice(results, 'rl-adam')} with Adam; {_practice(results, 'rl')} with SGD), so the "
        "optimizer is one of three possible causes",
    )


def _practice(results: Results, kind: str) -> str:
    """Steps and rates of a kind of agents."""
    how = results.run["sizes"]["kinds"][kind]
    rates = sorted(set(how["rates"]))
    text = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    return f"{how['steps']} and {text}"


def _tasks_of(results: Results, kind: str) -> list[str]:
    """The tasks of the agents of a kind."""
    return list(results.models(kind).get("geometry", [{}])[0].get("density", {}))


def densities(results: Results, kind: str, tasks: Sequence[str]) -> dict[int, float]:
    """The mean density of the agents of a kind that learned some tasks, by seed."""
    models = results.models(kind)
    return {
        seed: float(np.mean([value for task, value in one["density"].items() if task in tasks]))
        for seed, one in zip(models.get("seeds", ()), models.get("geometry", ()), strict=True)
    }


def _heterogeneous(results: Results) -> Claim | None:
    models = results.models("rl")
    if not models:
        return None
    densities = [one["density"].values() for one in models["geometry"]]
    ratios = [max(one) / min(one) for one in densities if min(one)]
    return Claim(
        "Densities differ much between agents",
        "section 3.2, figure 2",
        "not decided by agents whose learning rates and steps we chose to differ",
        OPEN,
        f"the largest density is {np.mean(ratios):.1f} times the smallest, mean over {len(ratios)} seeds"
        if ratios
        else "an agent did not move in any seed",
    )


def _unique(results: Results) -> Claim | None:
    outcome = results.setting(MAIN)
    if outcome is None or f"unique of {outcome.agents[0]} x 1" not in outcome.default:
        return None
    gains, losses, outside = [], [], []
    for place, agent in enumerate(outcome.agents):
        full, third = (outcome.default[f"unique of {agent} x {text}"] for text in ("1", "1/N"))
        base = outcome.models[BASE]
        gains.append(_on(outcome, full, base, place))
        losses.append(_on(outcome, full, third, place))
        outside += [_on(outcome, full, base, other) for other in range(len(outcome.tasks)) if other != place]
    inside = HOLDS if all(one.low > 0 for one in gains) else DOES_NOT if all(one.high < 1 for one in gains) else OPEN
    harmless = all(one.low > -2 * MARGIN for one in outside)
    verdict = inside if harmless or inside != HOLDS else OPEN
    if any(one.high < -2 * MARGIN for one in outside):
        verdict = DOES_NOT
    sentence = "; ".join(
        f"{agent}: {signed_text(gain)} in its own task, of which {signed_text(loss)} are lost at 1/N"
        for agent, gain, loss in zip(outcome.agents, gains, losses, strict=True)
    )
    worst = min(outside, key=lambda one: one.value)
    return Claim(
        "Unique regions carry an agent's behavior and harm no other task",
        "section 3.2, figure 3",
        "holds if the unique region of every agent, on the base, improves its own task (interval above 0), and costs "
        "no other task 2 points (interval above -2); does not hold if no region improves its task by 1 point, or one "
        "costs another task more than 2 points",
        verdict,
        f"{sentence}; the worst effect on another task: {signed_text(worst)}",
    )


def _on(outcome: Outcome, first: Model, second: Model, task: int) -> Estimate:
    return outcome.difference(first, second, task)


# --- which merge is better ---


def _pair(text: str, where: str, first: str, second: str, setting: str = MAIN) -> Callable[[Results], Claim | None]:
    def make(results: Results) -> Claim | None:
        outcome = results.setting(setting)
        if outcome is None or first not in outcome.best or second not in outcome.best:
            return None
        apart = outcome.difference(outcome.best[first], outcome.best[second])
        evidence = f"{first} minus {second}: {signed_text(apart)} points ({len(outcome.seeds)} seeds)"
        return Claim(text, where, DIFFERENCE, better(apart), evidence)

    return make


def _beats(method: str, setting: str, words: str) -> Callable[[Results], Claim | None]:
    def make(results: Results) -> Claim | None:
        outcome = results.setting(setting)
        if outcome is None or method not in outcome.best:
            return None
        rivals = [name for name in PAPER if name in outcome.best]
        differences = {name: outcome.difference(outcome.best[method], outcome.best[name]) for name in rivals}
        if not differences:
            return None
        p_values = holm({name: one.p for name, one in differences.items()})
        wins = [name for name in rivals if differences[name].value > 0 and p_values[name] < LEVEL]
        losses = [name for name in rivals if differences[name].value < 0 and p_values[name] < LEVEL]
        level = [name for name in rivals if differences[name].low > -MARGIN and differences[name].high < MARGIN]
        verdict = HOLDS if len(wins) == len(rivals) else DOES_NOT if losses or level else OPEN
        text = "; ".join(f"minus {name}: {signed_text(one)}" for name, one in differences.items())
        return Claim(
            f"{method} beats the paper's baselines{words}",
            "section 5.2, table 1",
            BASELINES,
            verdict,
            f"{method} {text}",
        )

    return make


def spread_of(outcome: Outcome, names: list[str]) -> float:
    """How far the means of some rows lie apart, in points."""
    means = [outcome.default[name].mean for name in names]
    return max(means) - min(means)


def _insensitive(results: Results) -> Claim | None:
    outcome = results.setting(MAIN)
    values: Mapping[str, list[str]] = {
        "r from 0.05 to 0.2": [f"ram+ r={value:g}" for value in R if 0.05 <= value <= 0.2],
        "alpha from 1 to 5": [f"ram+ alpha={value:g}" for value in ALPHA if 1 <= value <= 5],
        "epsilon from 0 to 1e-4": [f"ram+ epsilon={value:g}" for value in EPSILON if value <= 1e-4],
    }
    if outcome is None or any(name not in outcome.default for names in values.values() for name in names):
        return None
    spreads = {what: spread_of(outcome, names) for what, names in values.items()}
    return Claim(
        "The result is insensitive to r, alpha and epsilon",
        "section 5.4, table 2 and figure 6",
        f"holds if the mean score varies by at most {STEADY:g} points over each of these ranges",
        HOLDS if max(spreads.values()) <= STEADY else DOES_NOT,
        "; ".join(f"{what}: {value:.1f} points" for what, value in spreads.items()),
    )


def _specialists(results: Results) -> Claim | None:
    outcome = results.setting(MAIN)
    if outcome is None or "ram+" not in outcome.best:
        return None
    differences = {
        task: _on(outcome, outcome.best["ram+"], outcome.models[task], place)
        for place, task in enumerate(outcome.tasks)
    }
    p_values = holm({task: one.p for task, one in differences.items()})
    wins = [task for task, one in differences.items() if one.value > 0 and p_values[task] < LEVEL]
    losses = [task for task, one in differences.items() if one.high < MARGIN]
    return Claim(
        "A merged agent can beat the specialists in their own tasks",
        "section 5.2",
        "holds if RAM+ is better than the agent in at least one task (p < 0.05 with Holm's correction); does not hold "
        "if in no task the interval reaches one point above the agent; otherwise it is not decided by this data",
        HOLDS if wins else DOES_NOT if len(losses) == len(differences) else OPEN,
        "; ".join(f"{task}: {signed_text(one)}" for task, one in differences.items()),
    )


def _general(results: Results) -> Claim | None:
    outcome = results.setting(MAIN)
    if outcome is None or "ram+" not in outcome.best or not outcome.others:
        return None
    apart = beyond(outcome, outcome.best["ram+"])
    return Claim(
        "RAM+ keeps what the base can do in tasks that no agent was trained on",
        "appendix C.2, table 3",
        f"holds if the interval of the change lies above -{2 * MARGIN:g} points, does not hold if it lies below",
        HOLDS if apart.low > -2 * MARGIN else DOES_NOT if apart.high < -2 * MARGIN else OPEN,
        f"{' and '.join(outcome.others)}: {signed_text(apart)} points against the base",
    )


def beyond(outcome: Outcome, model: Model) -> Estimate:
    """A model less the base, in points, in the tasks that no agent was trained on."""
    return over_seeds((model.others - outcome.models[BASE].others).mean(1).tolist())


def _robust(results: Results) -> Claim | None:
    outcome = results.setting("copies")
    if outcome is None or "ram+" not in outcome.default:
        return None
    apart = outcome.difference(outcome.default["ram+"], outcome.default["task_arithmetic"])
    return Claim(
        "RAM+ withstands copies of an agent, which the plain sum does not",
        "beyond it",
        DIFFERENCE,
        better(apart),
        f"RAM+ minus the sum: {signed_text(apart)} points",
        "one of three agents is given three times; all parameters are the defaults",
    )


def _more_agents(results: Results) -> Claim | None:
    leads = {}
    for name in ("two", MAIN, "four", "five"):
        outcome = results.setting(name)
        if outcome is not None and "linear" in outcome.best:
            leads[len(outcome.agents)] = outcome.difference(outcome.best["ram+"], outcome.best["linear"])
    if len(leads) < 2:
        return None
    counts = sorted(leads)
    is_rising = all(leads[more].value > leads[fewer].value for fewer, more in pairwise(counts))
    apart = leads[counts[-1]].low > leads[counts[0]].high
    return Claim(
        "The more agents, the more averaging loses to RAM+",
        "section 3.2 (dilution is by 1/N)",
        "holds if the lead grows with each agent, and the intervals of fewest and most do not overlap; does not hold "
        "if the lead is smaller for most than for fewest; otherwise it is not decided by this data",
        HOLDS if is_rising and apart else DOES_NOT if leads[counts[-1]].value < leads[counts[0]].value else OPEN,
        "; ".join(f"N = {count}: {signed_text(leads[count])}" for count in counts),
    )


def _precise(results: Results) -> Claim | None:
    outcome, exact = results.setting(MAIN), results.setting("three-float32")
    if outcome is None or exact is None or "ram+" not in outcome.best or "ram+" not in exact.best:
        return None
    leads = {one.dtype: one.difference(one.best["ram+"], one.best["task_arithmetic"]) for one in (outcome, exact)}
    apart = leads["bfloat16"].low > leads["float32"].high or leads["float32"].low > leads["bfloat16"].high
    return Claim(
        "Precision changes which merge is better",
        "beyond it",
        "holds if the intervals of the difference between RAM+ and the scaled sum do not overlap in bfloat16 and in "
        "float32 (agents and output); otherwise it is not decided by this data",
        HOLDS if apart else OPEN,
        "; ".join(f"{dtype}: {signed_text(one)}" for dtype, one in leads.items()),
    )


_CLAIMS: tuple[Callable[[Results], Claim | None], ...] = (
    _sparser,
    _optimizer,
    _heterogeneous,
    _unique,
    _pair("Averaging dilutes: RAM beats the average", "section 3.2", "ram", "linear"),
    _beats("ram", MAIN, ""),
    _beats("ram+", MAIN, ""),
    _beats("ram+", "five", ", with five agents"),
    _pair("RAM+ beats RAM", "section 5.2, table 2", "ram+", "ram"),
    _insensitive,
    _specialists,
    _general,
    _more_agents,
    _pair("Curvature helps: Fisher merging beats RAM+", "beyond it", "fisher", "ram+"),
    _precise,
    _robust,
    _pair(
        "RAM+ is also better than the scaled sum for dense SFT agents",
        "beyond it",
        "ram+",
        "task_arithmetic",
        "three-sft",
    ),
)
