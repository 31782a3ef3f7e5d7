"""How much `make lab` and `make lab-quick` do."""

from __future__ import annotations

from dataclasses import replace

from lab.settings import Sizes
from lab.training import Practice, Schooling

_RL = Practice(100, (2e-2, 1e-2, 5e-3, 2e-2, 1e-2))
FULL = Sizes(
    seeds=10,
    schooling=Schooling(),
    kinds={
        "rl": _RL,
        "rl-float32": replace(_RL, rounded=False),
        "sft": replace(_RL, supervised=True, prompts=32),
        "sft-adam": Practice(60, (5e-4,) * 5, optimizer="adam", supervised=True, prompts=32),
        "rl-adam": Practice(40, (2e-4,) * 5, optimizer="adam"),
    },
    of_kind={"rl-float32": 3, "sft": 3, "sft-adam": 3, "rl-adam": 2},
)
QUICK = replace(
    FULL,
    seeds=2,
    schooling=Schooling(steps=300),
    kinds={"rl": replace(_RL, steps=30), "sft": replace(_RL, supervised=True, prompts=32, steps=30)},
    of_kind={"rl": 3, "sft": 3},
    validation=100,
    test=200,
    fisher=16,
    settings=("three",),
    rows=("ram", "ram+", "task_arithmetic", "linear", "fisher", "ties", "dare", "dare_ties"),
)
