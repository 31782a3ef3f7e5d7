"""Sections of docs/findings-*.md about more kinds of real agents, and runs."""

from __future__ import annotations

from collections.abc import Iterable

from lab import kinds
from lab.claims import signed_text
from lab.kinds import Comparison
from lab.predictions import FAILURE, NO_SCORE
from lab.results import SECOND_BASE, Results
from lab.statistics import Estimate
from lab.tables import table

_HEAD = ("", "difference", "predicted", "measured", "")
_ROWS_OF_RUNS = (
    ("last", "the last checkpoint"),
    ("uniform 3", "mean of the last three kept checkpoints"),
    ("uniform 5", "mean of the last five"),
    ("ema", "weights halved every 4 steps back from the last one"),
    ("greedy", "Model Soups' greedy recipe on the last five"),
    ("cut 15", "checkpoint after 15 % of the steps"),
    ("relex 15", "RELEX from the first 15 %"),
    ("relex 30", "RELEX from the first 30 %"),
    ("cut 50", "checkpoint after 50 %"),
    ("relex 50", "RELEX from the first 50 %"),
)


def _count(verdicts: Iterable[str]) -> str:
    """How many predictions failed, as a sentence."""
    all_verdicts = list(verdicts)
    failures, open_ = sum(one.startswith(FAILURE) for one in all_verdicts), all_verdicts.count(NO_SCORE)
    text = f"{failures} of the {len(all_verdicts) - open_} that could be checked failed"
    preliminary = ", so far: fewer trainings were scored than the predictions are about"
    return f"{text}{preliminary if any(one.endswith(kinds.SO_FAR) for one in all_verdicts) else ''}."


def of_kinds(results: Results) -> str:
    """Rules on more kinds of real agents."""
    head = "## On more kinds of real agents"
    comparisons = kinds.situations(results)
    if not comparisons:
        return f"{head}\n\nNo results are kept yet: `python lab/real/kinds.py`."
    parts = "\n\n".join(_kind(name, comparison) for name, comparison in comparisons.items())
    return f"""{head}

The agents above are four GRPO agents. [Experiment 035](../lab/experiments/035-real-agents.md) adds other kinds, with
new trainings of SmolLM2-135M: eight agents (each task trained twice), two agents, full fine-tuning on correct
replies (SFT), and LoRA. Each model was scored once, on {results.content("kinds")["prompts"]} held-out prompts a task.
{_scope(comparisons.values())}
Differences are to `core`; p-values have Holm's correction over the rules of a situation. These agents start from one
base; the next section has another.

```sh
python lab/real/kinds.py --work .real --seeds {" ".join(_trainings(comparisons))}
```

{parts}

The predictions were written before any of these agents was scored.
{_count(line[4] for line in kinds.of_kinds(results))}

{table(_HEAD, kinds.of_kinds(results))}"""


def of_second_base(results: Results) -> str:
    """The same rules on agents of another base."""
    head, comparisons = "## On agents of a second base", kinds.situations(results, SECOND_BASE)
    if not comparisons:
        return f"{head}\n\nNo results are kept yet: `python lab/real/build_base.py --model gemma3-270m`."
    parts = "\n\n".join(_kind(name, comparison, "second base") for name, comparison in comparisons.items())
    return f"""{head}

Gemma 3 270M, fine-tuned on the same four tasks: all weights (SFT), or LoRA adapters. Prompts have no solved example
here, so the formats must be learned. [Experiment 040](../lab/experiments/040-a-second-base.md) says why there are no
agents
trained by reinforcement learning. {_scope(comparisons.values())} Differences are to `core`, with Holm's correction.

```sh
python lab/real/build_base.py --model gemma3-270m --out .gemma/base --work .gemma/work
python lab/real/kinds.py --work .gemma --situation SFT LoRA --out lab/results/{SECOND_BASE}.json
```

{parts}

The predictions were written before any merge was scored. {_count(line[4] for line in kinds.of_second_base(results))}

{table(_HEAD, kinds.of_second_base(results))}"""


def _scope(comparisons: Iterable[Comparison]) -> str:
    """Scope of the intervals."""
    if all(len(comparison.by_training) == 1 for comparison in comparisons):
        return "There is one training of each agent so far: intervals are over prompts and say nothing about others."
    return "Intervals are over trainings and prompts; with so few trainings they are too narrow."


def _trainings(comparisons: dict[str, Comparison]) -> list[str]:
    return sorted({seed for comparison in comparisons.values() for seed in comparison.by_training})


def _kind(name: str, comparison: Comparison, of: str = "") -> str:
    differences = kinds.adjusted_differences(comparison, kinds.CORE) if kinds.CORE in comparison.models else {}
    models = sorted(comparison.models, key=lambda model: -comparison.by_task(model).mean())
    rows = [
        (
            "each agent in its own task" if model == "agents" else f"`{model}`",
            *(f"{score:.1f}" for score in comparison.by_task(model)),
            _interval(comparison.mean(model)),
            *(_test_cells(*differences[model]) if model in differences else ("", "")),
        )
        for model in models
    ]
    seeds, plural = ", ".join(comparison.by_training), "s" * (len(comparison.by_training) > 1)
    left = [rule for one in comparison.by_training.values() for rule in one if rule not in comparison.models]
    more = f"\n\nNot scored in all of these trainings: {', '.join(map(repr, dict.fromkeys(left)))}." if left else ""
    return f"""### {name[0].upper()}{name[1:]}{f" of a {of}" if of else ""}

Training{plural} of seed{plural} {seeds}:

{table(("rule", *comparison.tasks, "mean", "difference to core", "p"), rows)}{more.replace("'", "`")}"""


def _test_cells(difference: Estimate, p: float) -> tuple[str, str]:
    return signed_text(difference), f"{p:.3f}"


def _interval(mean: Estimate) -> str:
    return f"{mean.value:.1f} ({mean.low:.1f} to {mean.high:.1f})"


def _runs(comparison: Comparison) -> str:
    tasks, seeds = ", ".join(f"`{task}`" for task in comparison.tasks), ", ".join(comparison.by_training)
    count = len(comparison.tasks) * len(comparison.by_training)
    if count == kinds.ALL_RUNS:
        return f"All {count} runs were scored: {tasks} of seeds {seeds}."
    plural = "s" * (len(comparison.by_training) > 1)
    return f"Scored so far: {tasks} of seed{plural} {seeds}, {count} of the {kinds.ALL_RUNS} runs planned."


def of_runs(results: Results) -> str:
    """Soups and extrapolations of the checkpoints of runs."""
    head = "## Checkpoints along a run"
    comparison = kinds.runs(results)
    if comparison is None:
        return f"{head}\n\nNo results are kept yet: `python lab/real/runs.py`."
    rows = [
        (
            row,
            what,
            *(f"{score:.1f}" for score in comparison.by_task(row)),
            _interval(comparison.mean(row)),
            ""
            if row == "last" or (difference := comparison.difference(row, "last")) is None
            else signed_text(difference),
        )
        for row, what in _ROWS_OF_RUNS
    ]
    prompts = {run["prompts"] for run in results.content("checkpoints").values()}
    return f"""{head}

This section has two questions about checkpoint averaging. Is a soup, the average of checkpoints, better than the last
checkpoint? Does [RELEX](https://arxiv.org/abs/2605.21468) predict the last one from the first
steps? A run is one training of one agent of SmolLM2-135M, in float32; steps 1, 2, 3, 4 and later even ones were kept.
Each run is scored in its own task, on {", ".join(map(str, sorted(prompts)))} held-out prompts. {_runs(comparison)}
{_scope([comparison])}

```sh
# for each task and seed, after `train_agent.py --checkpoints .real/5/runs/sum`
python lab/real/runs.py --task sum --seed 5 --run .real/5/runs/sum --exact .real/5/agents-float32/sum
```

{table(("row", "what it is", *comparison.tasks, "mean", "difference to last"), rows)}

The predictions were written before any of these runs was scored.
{_count(line[4] for line in kinds.of_runs(results))}

{table(_HEAD, kinds.of_runs(results))}"""
