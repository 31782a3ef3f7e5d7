"""How near a search comes to the best of a grid, on the tiny agents: `python -m benchmarks.search`.

Every point of the grid is merged and scored once, on prompts for validation and on others for a test. Then each sampler
draws its points with ten seeds, and is told the scores of the grid. It takes three minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import ramerge
from benchmarks.machine import describe
from ramerge.core.recipe.document import Document
from ramerge.demo.run import AGENTS
from ramerge.demo.scoring import rewards
from ramerge.scoring.scores import Objective, join, read_scores
from ramerge.searches.contest import Standing
from ramerge.searches.points import document_of
from ramerge.searches.space import Axis, Choices, Space
from ramerge.searches.strategies import STRATEGIES, Question

TASKS = ("coder", "tool", "memory")
R = Axis("parameters.r", Choices((0.0, 0.1, 0.2, 0.3, 0.4, 0.5)), "ram+")
ALPHA = Axis("parameters.alpha", Choices((0.1, 0.2, 0.4)), "ram+")
DENSITY = Axis("parameters.density", Choices((0.05, 0.1, 0.2, 0.4, 0.6, 0.8)), "ties")
SCALES = [Axis("parameters.scale", Choices((0.6, 0.8, 1.0, 1.2, 1.4)), name) for name in ("ties", "task_arithmetic")]
SPACE = Space(("ram", "ram+", "ties", "task_arithmetic", "linear"), (R, ALPHA, DENSITY, *SCALES))


def grid(folder: Path) -> dict[str, tuple[float, float]]:
    """Validation and test scores of every point, by the point's JSON."""
    agents = {name: str(AGENTS / name) for name in TASKS}
    recipe = Document({"method": "ram+", "base": str(AGENTS / "base"), "agents": agents})
    values = {}
    for point in SPACE.points():
        ramerge.merge(document_of(recipe, point), folder / "model", options=ramerge.Options(overwrite=True))
        scores = [join(map(read_scores, rewards(folder / "model", split))) for split in ("validation", "test")]
        values[json.dumps(point)] = (Objective().value(scores[0]), Objective().value(scores[1]))
    return values


def choice(scores: dict[str, tuple[float, float]], folder: Path, sampler: str, seed: int, trials: int) -> str:
    """The point that a search chooses."""
    strategy = STRATEGIES[sampler].start(Question(SPACE, [Objective()], seed, folder / f"{sampler}-{seed}.log"))
    standings: list[Standing] = []
    while len(standings) < trials and (point := strategy.ask(standings)) is not None:
        standings.append(Standing(point, "complete", (scores[json.dumps(point)][0],)))
    return json.dumps(max(standings, key=lambda standing: standing.values[0]).point)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), time.monotonic()
        scores = grid(folder)
        best = max(scores, key=lambda point: scores[point][0])
        print(describe())
        print(f"{len(scores)} points in {time.monotonic() - start:.0f} s")
        validation, test = map(_percent, scores[best])
        print(f"best of the grid: {best}: {validation} on validation, {test} on the test")
        print(f"median of the grid: {_percent(median(value for value, _ in scores.values()))}")
        for sampler in ("tpe", "nsga2"):
            choices = [choice(scores, folder, sampler, seed, options.trials) for seed in range(options.seeds)]
            behind = [100 * (scores[best][0] - scores[point][0]) for point in choices]
            apart = [100 * (scores[best][1] - scores[point][1]) for point in choices]
            near = sum(round(value, 6) <= 0.5 for value in behind)
            print(f"{sampler}: {options.trials} points; within 0.5 of the best in {near} of {options.seeds} seeds")
            print(
                f"    behind it: mean {mean(behind):.2f}, most {max(behind):.2f}; on the test: mean {mean(apart):.2f}"
            )


def _percent(share: float) -> str:
    return f"{share:.2%}"


if __name__ == "__main__":
    main()
