"""Averages and extrapolations of the checkpoints of one run, scored in the task that it was trained on.

    python lab/real/runs.py --task sum --seed 5 --run .real/5/runs/sum --exact .real/5/agents-float32/sum

`--run` is the folder that `train_agent.py --checkpoints` writes; the rewards are kept in lab/results/checkpoints.json.
Formulas are in NumPy, one tensor after another, so that they can be compared with those of ramerge.
lab/experiments/035-real-agents.md has the rows, and what was predicted for them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluate import replies_to
from numpy.typing import NDArray
from safetensors import safe_open
from tasks import TASKS, Example, Task
from transformers import AutoModelForCausalLM, AutoTokenizer

from ramerge.core.foundation.files import write_file

Floats = NDArray[np.float64]
RESULTS = Path(__file__).parents[1] / "results" / "checkpoints.json"
HALF_LIFE = 4.0
"""Steps after which a checkpoint counts half in `ema`."""
SHARES = (0.15, 0.3, 0.5)
CUT = (0.15, 0.5)
"""Shares of which the last checkpoint is scored, too."""
_VALIDATION_SEED, _VALIDATION = 1000, 20
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Run:
    """The checkpoints of one run.

    Attributes:
        base: folder of the model that training began from.
        checkpoints: their folders by step, in the order of steps.
    """

    base: Path
    checkpoints: Mapping[int, Path]

    @property
    def last(self) -> int:
        """The last step."""
        return max(self.checkpoints)

    @property
    def even(self) -> list[int]:
        """Even steps and the last one."""
        return [step for step in self.checkpoints if step % 2 == 0 or step == self.last]

    def until(self, share: float) -> list[int]:
        """Steps within the first share of the run."""
        return [step for step in self.checkpoints if step <= share * self.last]

    def tensors(self, steps: Sequence[int]) -> Iterator[tuple[str, torch.Tensor, list[torch.Tensor]]]:
        """Name, base and weights of the steps, tensor by tensor."""
        files = [self.checkpoints[step] / "model.safetensors" for step in steps]
        opened = [safe_open(path, "pt") for path in (self.base / "model.safetensors", *files)]
        for name in opened[0].keys():  # noqa: SIM118 (no mapping)
            base, *others = (one.get_tensor(name).float() for one in opened)
            yield name, base, others


Weights = Callable[[torch.Tensor, Sequence[torch.Tensor]], Floats]
"""Of a tensor of the base and of the steps: the weight of each step in the merged task vector."""


def gram(base: torch.Tensor, others: Sequence[torch.Tensor]) -> Floats:
    """Products of task vectors, of shape (steps, steps): float32 within a block, float64 over blocks."""
    found = np.zeros((len(others), len(others)))
    flat, rows = base.flatten(), [one.flatten() for one in others]
    for start in range(0, len(flat), _BLOCK):
        part = slice(start, start + _BLOCK)
        taus = (torch.stack([row[part] for row in rows]) - flat[part]).numpy()
        found += taus @ taus.T
    return found


def line(steps: Sequence[int], target: int, products: Floats) -> Floats:
    """RELEX's weights: the first principal component, and a line through its coordinates, read at the target step.

    The component is v = sum_i u_i tau_i / s with u and s^2 the first eigenpair of the Gram matrix, and the coordinates
    of the steps are s u. So s and the sign of u cancel.

    Args:
        steps: at least two.
        target: the step that is predicted.
        products: the Gram matrix of the task vectors of the steps.

    Returns:
        Of shape (steps,); 0 where nothing has moved.
    """
    values, vectors = np.linalg.eigh(products)
    if values[-1] <= 0:
        return np.zeros(len(steps))
    first = vectors[:, -1]
    slope, intercept = np.polyfit(steps, first, 1)
    predicted: Floats = (slope * target + intercept) * first
    return predicted


@dataclass
class Relex:
    """RELEX's weights, tensor by tensor, and what share of the squared norms its component has."""

    steps: Sequence[int]
    target: int
    first: float = 0.0
    total: float = 0.0

    def __call__(self, base: torch.Tensor, others: Sequence[torch.Tensor]) -> Floats:
        products = gram(base, others)
        values = np.linalg.eigvalsh(products)
        self.first += float(values[-1])
        self.total += float(values.sum())
        return line(self.steps, self.target, products)


def uniform(count: int) -> Weights:
    """Each of so many steps the same."""
    return lambda _base, _others: np.full(count, 1 / count)


def halved(steps: Sequence[int]) -> Weights:
    """Weights that halve every `HALF_LIFE` steps back from the last one."""
    weights = 0.5 ** ((steps[-1] - np.array(steps)) / HALF_LIFE)
    return lambda _base, _others: weights / weights.sum()


# --- scoring ---------------------------------------------------------------------------------------------------------


@dataclass
class Scorer:
    """A model whose weights are replaced, and what it is asked."""

    run: Run
    task: Task
    batch: int

    def __post_init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(self.run.base, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.run.base, padding_side="left")

    def load(self, steps: Sequence[int], weights: Weights) -> None:
        """Make the model the base and a weighted sum of task vectors, in float32."""
        places = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, base, others in self.run.tensors(steps):
                found = weights(base, others)
                merged = base.double() * (1 - found.sum())
                for weight, one in zip(found.tolist(), others, strict=True):
                    merged.add_(one, alpha=weight)
                places[name].copy_(merged)

    def rewards(self, examples: Sequence[Example]) -> list[float]:
        """Of each problem."""
        texts = replies_to(self.model, self.tokenizer, self.task, examples, self.batch)
        return [self.task.reward(text, example.answer) for text, example in zip(texts, examples, strict=True)]


def greedy(scorer: Scorer, steps: Sequence[int]) -> list[int]:
    """The steps that Model Soups' greedy recipe keeps: best first, each kept if the mean does not get worse."""
    examples = scorer.task.examples("train", _VALIDATION_SEED, _VALIDATION)

    def validated(chosen: Sequence[int]) -> float:
        scorer.load(chosen, uniform(len(chosen)))
        return float(np.mean(scorer.rewards(examples)))

    alone = {step: validated([step]) for step in steps}
    order = sorted(steps, key=lambda step: (-alone[step], -step))
    kept, best = order[:1], alone[order[0]]
    for step in order[1:]:
        found = validated(sorted([*kept, step]))
        if found >= best:
            kept, best = sorted([*kept, step]), found
    return kept


def rows(run: Run, scorer: Scorer) -> Iterator[tuple[str, list[int], Weights]]:
    """Name, steps and weights of all that is scored."""
    yield "last", [run.last], uniform(1)
    for count in (3, 5):
        yield f"uniform {count}", run.even[-count:], uniform(count)
    yield "ema", run.even, halved(run.even)
    for share in SHARES:
        steps = run.until(share)
        if share in CUT:
            yield f"cut {100 * share:g}", steps[-1:], uniform(1)
        yield f"relex {100 * share:g}", steps, Relex(steps, run.last)
    kept = greedy(scorer, run.even[-5:])
    yield "greedy", kept, uniform(len(kept))


def measure(run: Run, task: Task, given: argparse.Namespace) -> dict[str, Any]:
    """The rewards of all rows, in quarters: one digit a prompt; and how straight the run is."""
    scorer = Scorer(run, task, given.batch)
    examples = task.examples("test", 0, given.prompts)
    found: dict[str, Any] = {"prompts": given.prompts, "steps": run.last, "rows": {}, "used": {}, "first component": {}}
    for name, steps, weights in rows(run, scorer):
        began = time.process_time()
        scorer.load(steps, weights)
        loaded = time.process_time()
        found["rows"][name] = "".join(str(round(4 * reward)) for reward in scorer.rewards(examples))
        found["used"][name] = steps
        if isinstance(weights, Relex):
            found["first component"][name.removeprefix("relex ")] = (
                weights.first / weights.total if weights.total else None
            )
        print(
            f"{task.name} {given.seed}: {name}: {loaded - began:.1f} and {time.process_time() - loaded:.1f} s",
            flush=True,
        )
    return found


def opened(folder: Path, exact: Path, base: Path) -> Run:
    """The checkpoints that training left, with the last one."""
    kept = {int(one.name.partition("-")[2]): one for one in folder.glob("checkpoint-*")}
    log = json.loads((folder.parent.parent / "agents" / folder.name / "train.json").read_text(encoding="utf-8"))
    kept[log["settings"]["steps"]] = exact
    return Run(base, dict(sorted(kept.items())))


def main() -> None:
    """Score the rows of one run, and keep their rewards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--run", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--exact", type=Path, required=True, help="the last checkpoint in float32")
    parser.add_argument("--base", type=Path, default=Path(".real/base"))
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--batch", type=int, default=75)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    results = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    name = f"{given.task} {given.seed}"
    if name in results:
        print(f"{name} is scored")
        return
    results[name] = measure(opened(given.run, given.exact, given.base), TASKS[given.task], given)
    write_file(given.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
