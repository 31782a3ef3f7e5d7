"""docs/findings.md, the short answer, and docs/findings-prompts.md, its appendix on merges with prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from lab.prompted import CANDIDATES, CONFIRMING, DRAWS, KINDS, Kind, kinds, nll_of, reward_of
from lab.published import TABLES, ahead_of_sum
from lab.tables import of_publications

_RULES = {
    "sum": "`task_arithmetic`, the plain sum",
    "sum x 0.5": "`task_arithmetic scale=0.5`",
    "ram+": "`ram+`",
    "core+": "`core+`",
    "swudi": "`swudi`",
    "regmean 0.01": "`regmean`, with a few prompts",
}
"""Rules that are taken whatever the agents are."""
_STATISTICS = {
    "": "16 prompts a task, with the agents' greedy replies",
    "4 prompts": "4 prompts",
    "8 prompts": "8 prompts",
    "32 prompts": "32 prompts",
    "64 prompts": "64 prompts",
    "sampled replies": "replies sampled at temperature 1",
    "prompts alone": "prompts without replies",
    "the base's inputs": "the same text, read by the base instead of the agents",
    "prompts of another task": "prompts of another agent's task",
    "general prompts": "general instructions, the same for all agents",
    "own and general prompts": "16 general instructions and 16 prompts of the agent's task",
}
"""Inputs of `regmean 0.01`."""
_REPLIES = {"all": "without rewards", "right": "with rewards"}
"""Replies that mass is computed on: all of the agents', or only right ones."""
_GROUPS = {
    "fine-tuned": ("SFT", "unseen"),
    "LoRA": ("LoRA",),
    "RL": ("RL", "RL, float32", "two, RL", "unseen, RL"),
    "mixed kinds": ("mixture", "eight", "adapter and full"),
    "long replies": ("long, SFT", "long, RL"),
}
"""Kinds of agents that share a column."""


def text() -> str:
    """The findings in one table."""
    all_kinds = kinds()
    if not all_kinds:
        return "# Findings: which merge is best\n\nNo results are kept yet: `python lab/real/prompted.py`."
    new = kinds(CONFIRMING)
    weights = [kind.best[1] - kind.without_prompts[1] for kind in all_kinds]
    worst = max(all_kinds, key=lambda kind: kind.best[1] - kind.without_prompts[1])
    return f"""# Findings: which merge is best

We trained sets of agents of SmolLM2-135M and Gemma 3 270M by full fine-tuning (SFT), with LoRA and with RL, merged each
set in up to {len(CANDIDATES)} ways, and scored the merges on held-out prompts. Points are percentage points of mean
reward.

- **Weights alone do not show which merge is best.** On the {worst.name} agents of {worst.base}, even the best method
  that uses only weights, picked by its test score, was {max(weights):.0f} points behind the best merge. On average
  over the {len(all_kinds)} sets of agents that the search was developed on, the best such method was
  {fmean(weights):.0f} points behind.
- **A few prompts of each task do.** `ramerge search` takes the merge with the highest
  [mass](guides/prompts.md#what-mass-is), the likelihood of the agents' own replies.

Points behind the best merge of the same agents: mean (worst) over several sets of agents, whose number is at the end of
the column head. Differences below 2 are noise.

{_by_kind([*all_kinds, *new])}

Mass was developed on {len(all_kinds)} of these sets, so the results on them are optimistic. On the {len(new)} others,
`ramerge search` was behind by up to {_worst(new, Kind.choice)}
([predictions and results](../lab/experiments/046-mass.md)). If it had chosen by the mean negative log-likelihood per
token of the same replies, it would have been behind by up to {_worst(new, Kind.chosen_by_nll)}. On the first
{len(all_kinds)} sets, that choice is worse ([both](guides/prompts.md#how-good-is-the-choice)).

## What fails

These choices of `ramerge search` were more than 1.5 points behind the best merge. `sum` is `task_arithmetic`, `x 1.6`
its scale, and the number after `regmean` its ridge. The seed is that of the agents' training:

{_failures([*all_kinds, *new])}

On SmolLM2-135M, merges often beat their agents. A search without rewards counts such improvements as mistakes, so give
rewards. Both models are small and the tasks short, so score the best few merges on your own tasks.

## Read on

`python -m lab.prompted` prints every candidate; [the lab](../lab/real/README.md) trains the agents.

- [With prompts](findings-prompts.md): each set of agents, which prompts to give, what others have measured
- [Real agents](findings-real-agents.md): merges without prompts, checkpoint averaging
- [Tiny agents](findings-tiny-agents.md): the claims of the [RAM paper](https://arxiv.org/abs/2601.13572)
- [Merge, then distill](findings-distill.md): what distillation adds to a merge"""


def appendix() -> str:
    """All figures of merges that are made or chosen with prompts."""
    all_kinds = kinds()
    if not all_kinds:
        return "# Findings: with prompts\n\nNo results are kept yet: `python lab/real/prompted.py`."
    return f"""# Findings: with prompts

Appendix to [Findings](findings.md). NLL is the mean negative log-likelihood per token, which `ramerge search` used
before mass. *With rewards* only right replies count, *without rewards* all do.

| points behind the best merge of a training | trainings | mean | most | on |
|---|---:|---:|---:|---|
{_behind(all_kinds)}

Some merges were not scored on all {len(all_kinds)} trainings, because everything ran on two processor cores.

## Every training

Mean reward in per cent, with 75 (seed 51) or 40 test prompts a task. Test labels pick the best of at most
{len(CANDIDATES)} merges, so part of its lead is luck. Search chooses among the merges that `ramerge search` tries.

| agents | on their own tasks | plain sum | best without prompts | best | search with rewards | search without rewards |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(map(_row, all_kinds))}

Trainings on which mass was not developed:

| agents | on their own tasks | plain sum | best without prompts | best | search with rewards | search without rewards |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(map(_row, kinds(CONFIRMING)))}

Agents of seed 72 were trained with products in bfloat16, which makes other agents than float32
([experiment 046](../lab/experiments/046-mass.md#results)).

Points behind the best merge on these trainings. Parentheses have the mean over {DRAWS:,} bootstrap samples of the
held-out prompts. *Own replies*: candidates with statistically tied mass reply to the held-out prompts (`--generate`).

| agents | mass, without rewards | NLL, without rewards | mass, with rewards | NLL, with rewards | own replies |
|---|---:|---:|---:|---:|---:|
{chr(10).join(map(_ways, kinds(CONFIRMING)))}

If a merge is better than its agents, their right replies cannot show it: they contain no prompt that only the merge
answers right. In these trainings, few right replies chose as well as many; below 8, `ramerge search` warns.

## Which prompts to give

`regmean 0.01` with other inputs: mean reward in per cent, and in parentheses the NLL of the agents' right replies.

{_statistics(all_kinds)}

## Tasks without prompts

Three agents were merged and scored on a fourth task, on which none of them was trained.

{_unseen(all_kinds)}

## Why weights alone do not choose

An earlier `ramerge recommend` sorted agents into seven kinds and named a method for each. The choices came from 14
methods, scored on 23 kinds of tiny agents in ten trainings ([experiment 032](../lab/experiments/032-situations.md)) and
on nine kinds of [real agents](findings-real-agents.md).

- Tiny and real agents disagreed on five of the six kinds that had both.
- Each choice was tested on a training left out of the tables. It was more than a point behind the best method on 3 of 6
  trainings of LoRA adapters, 3 of 6 of sparse agents, and 7 of 10 of near-copies. It was right for pairs (7 of 7) and
  dense agents (3 of 3).
- For sparse RL agents the sum times 0.8 was as good as the best method. For sparse fine-tuned agents of Gemma 3 270M it
  was 26 points behind. Weights do not show which of the two an agent is.

So these tables were removed. Without prompts, `ramerge recommend` shows the evidence and names RAM+. For dense agents
it names `core+`, because RAM+ averages nearly everything there (77 against 84 % on three kinds of real agents).

{_publications()}"""


def _by_kind(all_kinds: Sequence[Kind]) -> str:
    """Rules by kinds of agents: mean and worst points behind the best merge."""
    columns = {
        (base, group): [kind for kind in all_kinds if kind.base == base and kind.name in names]
        for base in dict.fromkeys(kind.base for kind in all_kinds)
        for group, names in _GROUPS.items()
    }
    columns = {column: members for column, members in columns.items() if members}
    head = [f"{base}, {group} ({len(members)})" for (base, group), members in columns.items()]
    rows = [["", *head], ["---", *("---:" for _ in head)]]
    for name, words in _RULES.items():
        cells = [
            [kind.best[1] - kind.rewards[name] for kind in members if name in kind.rewards]
            for members in columns.values()
        ]
        rows.append([words, *map(_mean_and_worst, cells)])
    for which, words in _REPLIES.items():
        rows.append(
            [
                f"**`ramerge search` {words}**",
                *(_mean_and_worst([k.choice(which)[1] for k in m]) for m in columns.values()),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mean_and_worst(behind: Sequence[float]) -> str:
    if not behind:
        return ""
    return f"{fmean(behind):.0f}" + (f" ({max(behind):.0f})" if len(behind) > 1 else "")


def _worst(new: Sequence[Kind], choose: Callable[[Kind, str], tuple[str, float]]) -> str:
    """The most points behind the best merge, without and with rewards."""
    without, with_rewards = (max(choose(kind, which)[1] for kind in new) for which in _REPLIES)
    return f"{without:.0f} points without rewards and {with_rewards:.0f} with rewards"


def _publications() -> str:
    ours, theirs = (f"{count} of {of}" for count, of in (ahead_of_sum("RAM", "RAM+"), ahead_of_sum("TIES")))
    return f"""## What others have measured

The table lists published averages over tasks, for agents that were trained with RL. Compare averages only within one
source. The tables with RAM, PSA, BACAM and ResMerge are by the authors of these methods.

{of_publications(TABLES)}

No method leads everywhere. Against Task Arithmetic, RAM or RAM+ is ahead in {ours} tables that have both (those with
the agents of its paper), and TIES in {theirs}."""


def _behind(all_kinds: Sequence[Kind]) -> str:
    rows = {
        words: [(kind.best[1] - kind.rewards[name], kind) for kind in all_kinds if name in kind.rewards]
        for name, words in _RULES.items()
    }
    rows["the best without prompts, picked with test labels"] = [
        (k.best[1] - k.without_prompts[1], k) for k in all_kinds
    ]
    for which, replies in _REPLIES.items():
        rows[f"`ramerge search` {replies}"] = [(kind.choice(which)[1], kind) for kind in all_kinds]
        rows[f"lowest NLL, {replies}"] = [(kind.chosen_by_nll(which)[1], kind) for kind in all_kinds]
    lines = []
    for words, behind in rows.items():
        most, worst = max(behind, key=lambda each: each[0])
        lines.append(
            f"| {words} | {len(behind)} | {fmean(points for points, _ in behind):.1f} | {most:.0f} | {_words(worst)} |"
        )
    return "\n".join(lines)


def _failures(all_kinds: Sequence[Kind]) -> str:
    """The choices that were more than 1.5 points behind, the worst first."""
    failures = [
        (
            behind,
            f"- On {_words(kind)}, {_replies(which)}: `{name}`, {behind:.0f} points behind `{kind.best[0]}`.",
        )
        for kind in all_kinds
        for which in kind.judges
        for name, behind in [kind.choice(which)]
        if behind > 1.5
    ]
    return "\n".join(text for _, text in sorted(failures, key=lambda each: -each[0]))


def _replies(which: str) -> str:
    name, _, prompts = which.partition(", ")
    return _REPLIES[name] + (f" and with {prompts} a task" if prompts else "")


def _statistics(all_kinds: Sequence[Kind]) -> str:
    members = [kind for kind in all_kinds if any(name.startswith("regmean 0.01, ") for name in kind.figures)]
    head = " | ".join(f"{_words(kind)} (agents {kind.agents:.0f})" for kind in members)
    rows = []
    for name, words in _STATISTICS.items():
        cells = [_cell(kind.figures.get(f"regmean 0.01, {name}" if name else "regmean 0.01")) for kind in members]
        if any(cells):
            rows.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join([f"| inputs | {head} |", f"|---|{'---:|' * len(members)}", *rows])


def _cell(one: Mapping[str, Any] | None) -> str:
    return f"{reward_of(one['rewards']):.0f} ({nll_of(one['right']):.3f})" if one else ""


def _unseen(all_kinds: Sequence[Kind]) -> str:
    rows = ["| agents | merge | agents' tasks | base, fourth task | merge, fourth task |", "|---|---|---:|---:|---:|"]
    for kind in all_kinds:
        choice, _ = kind.choice("right")
        rows += _unseen_rows(kind, choice) if "base, unseen" in kind.figures else []
    return "\n".join(rows)


def _unseen_rows(kind: Kind, choice: str) -> Iterator[str]:
    base = reward_of(kind.figures["base, unseen"])
    by_model = {name: one for name, one in kind.figures.items() if "unseen" in one}
    for name, one in sorted(by_model.items(), key=lambda each: -reward_of(each[1]["rewards"])):
        rule, _, inputs = name.partition(", ")
        notes = [inputs, "chosen by search" if name == choice else ""]
        words = ", ".join([f"`{rule}`", *filter(None, notes)])
        figures = (reward_of(one["rewards"]), base, reward_of(one["unseen"]))
        yield f"| {_words(kind)} | {words} | {' | '.join(f'{figure:.0f}' for figure in figures)} |"


def _words(kind: Kind) -> str:
    return f"{kind.base}, {KINDS[kind.name]} (seed {kind.seed})"


def _ways(kind: Kind) -> str:
    cells = [_words(kind)]
    for which in ("all", "right"):
        draws = kind.resampled(which)
        behind = {"mass": kind.choice(which)[1], "NLL": kind.chosen_by_nll(which)[1]}
        cells += [f"{behind[score]:.0f} ({draws[score]:.0f})" for score in behind]
    generated = kind.with_own_replies("right")
    return f"| {' | '.join(cells)} | {'' if generated is None else f'{generated[1]:.0f}'} |"


def _row(kind: Kind) -> str:
    cells = [
        _words(kind),
        f"{kind.agents:.0f}",
        f"{kind.rewards['sum']:.0f}" if "sum" in kind.rewards else "",
        *(f"{score:.0f} (`{name}`)" for name, score in (kind.without_prompts, kind.best)),
        *(f"{kind.rewards[name]:.0f} (`{name}`)" for name, _ in (kind.choice("right"), kind.choice("all"))),
    ]
    return f"| {' | '.join(cells)} |"
