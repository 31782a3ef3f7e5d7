"""Agents of every kind that a recipe may be given by mistake or on purpose, made from a seed."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import floats, write_checkpoint

SHAPES = {f"model.layers.{layer}.{part}.weight": (64, 96) for layer in range(3) for part in ("q", "up")}
SHAPES |= {f"model.layers.{layer}.norm.weight": (96,) for layer in range(3)}
Weights = dict[str, NDArray[np.float64]]
Family = tuple[Weights, Mapping[str, Weights]]


def weights(seed: int, spread: float = 0.02) -> Weights:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(1 if "norm" in name else 0, spread, shape) for name, shape in SHAPES.items()}


def trained(start: Weights, seed: int, density: float, size: float = 1e-3, places: int | None = None) -> Weights:
    """Another model with an update of that density; agents with the same `places` move the same elements."""
    rng, where = np.random.default_rng(seed), np.random.default_rng(seed if places is None else places)
    return {
        name: values + np.where(where.random(values.shape) < density, rng.normal(0, size, values.shape), 0)
        for name, values in start.items()
    }


BASE = weights(0)
NAMES = ("code", "tool", "memory")


def sparse(densities: tuple[float, ...] = (0.03, 0.05, 0.04), **more: int) -> list[Weights]:
    return [trained(BASE, seed, density, **more) for seed, density in enumerate(densities, 1)]


def dense() -> list[Weights]:
    return [trained(BASE, seed, 1.0, 2e-4) for seed in (1, 2, 3)]


def of(base: Weights, agents: list[Weights]) -> Family:
    return base, dict(zip(NAMES, agents, strict=False))


def swapped(agents: list[Weights], place: int = 0) -> Family:
    return of(agents[place], [BASE if t == place else agent for t, agent in enumerate(agents)])


FAMILIES: Mapping[str, Callable[[], Family]] = {
    "sparse and disjoint": lambda: of(BASE, sparse()),
    "sparse and shared": lambda: of(BASE, sparse((0.04, 0.04, 0.04), places=7)),
    "of unequal density": lambda: of(BASE, sparse((0.03, 0.46, 0.54))),
    "dense": lambda: of(BASE, dense()),
    "dense and strong": lambda: of(BASE, [trained(BASE, seed, 1.0, 0.01) for seed in (1, 2, 3)]),
    "alike": lambda: of(BASE, [trained(trained(BASE, 9, 1.0, 5e-4), seed, 1.0, 5e-4) for seed in (1, 2, 3)]),
    "single": lambda: of(BASE, sparse((0.05,))),
    "foreign": lambda: of(BASE, [*sparse((0.03, 0.05)), weights(5)]),
    "unrelated, of another spread": lambda: of(BASE, [*sparse((0.03, 0.05)), weights(5, 0.003)]),
    "unrelated, single": lambda: of(BASE, [weights(5)]),
    "swapped, sparse": lambda: swapped(sparse()),
    "swapped, of unequal density": lambda: swapped(sparse((0.03, 0.46, 0.54))),
    "swapped, dense agent": lambda: swapped(sparse((0.03, 0.46, 0.54)), 2),
    "swapped, dense": lambda: swapped(dense()),
    "swapped, two": lambda: swapped(sparse((0.04, 0.05))),
    "of another base": lambda: of(trained(BASE, 8, 1.0, 5e-3), sparse()),
    "of another base, dense": lambda: of(trained(BASE, 8, 1.0, 5e-3), dense()),
    "equal to the base": lambda: of(BASE, [*sparse((0.03, 0.05)), BASE]),
    "equal to each other": lambda: of(BASE, [*sparse((0.03, 0.05)), sparse((0.03,))[0]]),
}
"""By kind: a base, and agents by name."""


def write_family(folder: Path, kind: str, dtype: str = "F32", agents_dtype: str | None = None) -> list[str]:
    """A family as checkpoints, of which the agents may have another dtype; the names of its agents."""
    base, agents = FAMILIES[kind]()
    for name, values in {"base": base, **agents}.items():
        stored = dtype if name == "base" else agents_dtype or dtype
        write_checkpoint(folder / name, {key: floats(one, stored) for key, one in values.items()})
    return list(agents)
