"""Each agent's own domain in detail: kinds of prompts within a task, as the paper's tables 7 to 9 have benchmarks.

Of every prompt it is kept whether it was answered exactly, and not what it was. But the same seed draws the same
prompts again, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lab.results import BASE, Model, Outcome, Results
from lab.statistics import Floats
from lab.tasks import BY_NAME, SEED, held_out
from ramerge.demo.tasks import DIGITS, LETTERS, Example

Predicate = Callable[[Example], bool]


def _has_carry(example: Example) -> bool:
    return int(example.prompt[1]) + int(example.prompt[4]) > 9


def _repeats(example: Example) -> bool:
    return len(set(example.prompt[1:-1])) < len(example.prompt[1:-1])


def _repeats_often(example: Example) -> bool:
    return len(set(example.prompt[1:-1])) < len(example.prompt[1:-1]) - 2


def _not(predicate: Predicate) -> Predicate:
    return lambda example: not predicate(example)


def _early(example: Example) -> bool:
    """Whether the last character is one after which the base's teacher slipped less often."""
    return example.prompt[-2] in DIGITS[:5] + LETTERS[:8]


KINDS: Mapping[str, Mapping[str, Predicate]] = {
    "add": {
        "last digit 0 to 4": _early,
        "last digit 5 to 9": _not(_early),
        "no carry": _not(_has_carry),
        "carry": _has_carry,
    },
    "reverse": {
        "last letter a to h": _early,
        "last letter i to p": _not(_early),
        "all letters differ": _not(_repeats),
        "a letter repeats": _repeats,
    },
    "sort": {
        "last digit 0 to 4": _early,
        "last digit 5 to 9": _not(_early),
        "5 to 7 different digits": _not(_repeats_often),
        "at most 4": _repeats_often,
    },
}
"""Of each task, two ways to part its prompts."""


def by_kind(results: Results, task: str, model: Model, place: int, seeds: tuple[int, ...]) -> Floats:
    """Per cent of right answers of each kind of prompts of a task, and of all, over the prompts of all seeds.

    Returns:
        Of shape (kinds + 1,); NaN where no prompt is of a kind.
    """
    sizes = results.run["sizes"]
    kinds = np.stack([_kinds(task, sizes["validation"], sizes["test"], seed) for seed in seeds])
    counts, right = kinds.sum((0, 2)), (kinds & model.right[:, [place]]).sum((0, 2))
    shares = np.divide(right, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return 100 * np.append(shares, model.right[:, place].mean())


def kept_gains(results: Results, outcome: Outcome, methods: Sequence[str]) -> dict[str, float]:
    """Gains that merges keep where the base was weak, in per cent of the agents' own, mean over tasks.

    It was weak where its teacher slipped often: the second kind of every task. Where the agent learned nothing, a task
    is left out.
    """
    by_method: dict[str, list[float]] = {method: [] for method in methods}
    for place, task in enumerate(outcome.tasks):
        if task not in KINDS:
            continue
        base, agent, *merges = (
            float(by_kind(results, task, model, place, outcome.seeds)[1])
            for model in (outcome.models[BASE], outcome.models[task], *(outcome.best[one] for one in methods))
        )
        for method, score in zip(methods, merges, strict=True):
            if agent > base:
                by_method[method].append(100 * (score - base) / (agent - base))
    return {method: float(np.mean(shares)) for method, shares in by_method.items() if shares}


@lru_cache(maxsize=64)
def _kinds(task: str, validation: int, test: int, seed: int) -> NDArray[np.bool_]:
    """Which prompts are of which kind, of shape (kinds, prompts)."""
    _, examples = held_out(BY_NAME[task], validation, test, SEED + seed)
    return np.array([[predicate(example) for example in examples] for predicate in KINDS[task].values()])
