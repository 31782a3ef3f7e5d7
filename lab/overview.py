"""docs/findings.md, the short answer, and docs/findings-prompts.md, its appendix on merges with prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    "": "16 prompts a task, with each agent's own greedy replies",
    "4 prompts": "4 prompts",
    "8 prompts": "8 prompts",
    "32 prompts": "32 prompts",
    "64 prompts": "64 prompts",
    "sampled replies": "replies sampled at temperature 1",
    "prompts alone": "prompts without replies",
    "the base's inputs": "the base's inputs on the same text, one pass for all agents",
    "prompts of another task": "for each agent the prompts of another agent's task",
    "general prompts": "instructions that belong to no task, the same for all agents",
    "own and general prompts": "16 of them besides 16 of the agents' own",
}
"""What inputs `regmean 0.01` was given."""


_GROUPS = {
    "fine-tuned": ("SFT", "unseen"),
    "LoRA": ("LoRA",),
    "RL": ("RL", "RL, float32", "two, RL", "unseen, RL"),
    "mixed": ("mixture", "eight", "adapter and full"),
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
    return f"""# Findings: which merge is best

On SmolLM2-135M and Gemma 3 270M we trained agents by fine-tuning, as LoRA adapters and by RL, merged them by up to
{len(CANDIDATES)} rules and scored the merges on held-out prompts. **No rule that sees weights alone is near the best
everywhere**, and nothing in the weights tells which will be: picked with labels, the best such rule was still
{fmean(weights):.0f} points behind the best merge on average, and {max(weights):.0f} on LoRA agents of Gemma. **A few
prompts of each agent's task decide**: `ramerge search` takes the merge with the greatest [mass](guides/prompts.md), the
likelihood of the agents' own right replies.

Points behind the best merge of a training, mean and, in parentheses, the worst. A difference below 2 is within the
error of 40 test prompts a task.

{_by_kind([*all_kinds, *new])}

Mass was found on {len(all_kinds)} of these trainings, so they flatter it. On the {len(new)} others, which were
predicted before they were trained ([experiment 046](../lab/experiments/046-mass.md)): {_confirmation(new)}.

## What fails

{_failures([*all_kinds, *new])}
- Where a merge is better than its agents, as on SmolLM2, replies without rewards mislead: the merge is marked down for
  what it corrects. Give rewards.
- Two small bases, short tasks, one or two trainings of a kind. Score the best few merges on your own tasks.

## Reproduce

`python -m lab.prompted` prints every candidate from `lab/results`, and [the lab](../lab/real/README.md) trains the
agents on a CPU.

## Appendices

- [With prompts](findings-prompts.md): every training, the inputs of `regmean`, skills that no prompt shows, published
  tables.
- [Real agents](findings-real-agents.md): rules without prompts on nine kinds of agents, and checkpoints along a run.
- [Tiny agents](findings-tiny-agents.md): the claims of the [RAM paper](https://arxiv.org/abs/2601.13572) one by one.
- [Merge, then distill](findings-distill.md): what distillation adds to a merge."""


def appendix() -> str:
    """All figures of merges that are made or chosen with prompts."""
    all_kinds = kinds()
    if not all_kinds:
        return "# Findings: with prompts\n\nNo results are kept yet: `python lab/real/prompted.py`."
    return f"""# Findings: with prompts

Appendix to [Findings](findings.md). NLL is the mean negative log-likelihood per token, by which `ramerge search` chose
before mass.

| points behind the best merge of a training | trainings | mean | most | on |
|---|---:|---:|---:|---|
{_behind(all_kinds)}

Not every rule was scored on each of the {len(all_kinds)} trainings, because everything ran on two processor cores.

## Every training

The best of at most {len(CANDIDATES)} merges is picked with the labels of the test prompts, so it is the best by luck,
too; the choice is among those that `ramerge search` tries. *Right* counts only replies that earned their reward, *all*
counts every reply. Each row is one training, with 75 (seed 51) or 40 test prompts a task.

| agents | on their own tasks | plain sum | best without prompts | best of all | by right replies | by all replies |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(map(_row, all_kinds))}

Trainings that mass was not found on:

| agents | on their own tasks | plain sum | best without prompts | best of all | by right replies | by all replies |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(map(_row, kinds(CONFIRMING)))}

Points behind the best on these, for each way to choose. In parentheses the mean over {DRAWS:,} draws of the held-out
prompts with replacement. *Own replies*: `--generate` decides between candidates that mass cannot tell from the best.

| agents | mass, all replies | NLL, all | mass, right ones | NLL, right | own replies |
|---|---:|---:|---:|---:|---:|
{chr(10).join(map(_ways, kinds(CONFIRMING)))}

Right replies of agents that the merge surpasses cannot show what the agents get wrong and the merge gets right, however
many there are. Few right replies choose no worse in these trainings; below 8 a warning names the agent.

## What the inputs may be

`regmean 0.01` with other inputs: mean reward in %, and the NLL per token of the agents' right replies.

{_statistics(all_kinds)}

## Skills that no prompt shows

Three agents were merged, and a fourth task was scored that none of them was trained on.

{_unseen(all_kinds)}

## Why weights alone do not choose

`ramerge recommend` once took the rule for each of seven kinds of agents from tables of 14 rules, scored on 23 kinds of
tiny agents in ten trainings ([experiment 032](../lab/experiments/032-situations.md)) and on nine kinds of [real
agents](findings-real-agents.md). Tiny and real agents disagreed on five of the six that had both. Chosen
without one training, the
rule was more than a point behind the best one there on 3 of 6 trainings of LoRA adapters, 3 of 6 of sparse agents and 7
of 10 of near-copies; it held for pairs (7 of 7) and dense agents (3 of 3). Among sparse agents the sum times 0.8 was
level with the best for those trained by RL, and 26 points behind it for fine-tuned ones of the other base; users had to
say which theirs were. So the tables went: without prompts, `recommend` says what the weights show, and names RAM+, or
`core+` for dense agents, where RAM+ averages nearly everything (77 against 84 % on three kinds of real agents).

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
    for which, words in (("all", "`ramerge search`"), ("right", "`ramerge search` with rewards")):
        rows.append([f"**{words}**", *(_mean_and_worst([k.choice(which)[1] for k in m]) for m in columns.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mean_and_worst(behind: Sequence[float]) -> str:
    if not behind:
        return ""
    return f"{fmean(behind):.0f}" + (f" ({max(behind):.0f})" if len(behind) > 1 else "")


def _confirmation(new: Sequence[Kind]) -> str:
    phrases = []
    for which, words in (("all", "without rewards"), ("right", "with rewards")):
        mass, nll = ([choice(kind, which)[1] for kind in new] for choice in (Kind.choice, Kind.chosen_by_nll))
        phrases.append(
            f"{words} {fmean(mass):.1f} points behind on average, at most {max(mass):.1f} "
            f"(the mean negative log-likelihood per token, which mass replaces: {fmean(nll):.1f}, {max(nll):.1f})"
        )
    return "; ".join(phrases)


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
    rows["the best without prompts, picked with labels"] = [(k.best[1] - k.without_prompts[1], k) for k in all_kinds]
    for which in ("all", "right"):
        rows[f"`ramerge search`, by {which} replies"] = [(kind.choice(which)[1], kind) for kind in all_kinds]
        rows[f"the least NLL per token of {which} replies"] = [
            (kind.chosen_by_nll(which)[1], kind) for kind in all_kinds
        ]
    lines = []
    for words, behind in rows.items():
        most, worst = max(behind, key=lambda each: each[0])
        lines.append(
            f"| {words} | {len(behind)} | {fmean(points for points, _ in behind):.1f} | {most:.1f} | {_words(worst)} |"
        )
    return "\n".join(lines)


def _failures(all_kinds: Sequence[Kind]) -> str:
    """The choices that were more than 1.5 points behind, the worst first."""
    failures = [
        (behind, f"- {_words(kind)}: by {_replies(which)} `{name}`, {behind:.1f} points behind `{kind.best[0]}`.")
        for kind in all_kinds
        for which in kind.judges
        for name, behind in [kind.choice(which)]
        if behind > 1.5
    ]
    return "\n".join(text for _, text in sorted(failures, key=lambda each: -each[0]))


def _replies(which: str) -> str:
    name, _, prompts = which.partition(", ")
    return f"{name} replies" + (f" to {prompts} a task" if prompts else "")


def _statistics(all_kinds: Sequence[Kind]) -> str:
    members = [kind for kind in all_kinds if any(name.startswith("regmean 0.01, ") for name in kind.figures)]
    head = " | ".join(f"{_words(kind)} (agents {kind.agents:.1f})" for kind in members)
    rows = []
    for name, words in _STATISTICS.items():
        cells = [_cell(kind.figures.get(f"regmean 0.01, {name}" if name else "regmean 0.01")) for kind in members]
        if any(cells):
            rows.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join([f"| inputs | {head} |", f"|---|{'---:|' * len(members)}", *rows])


def _cell(one: Mapping[str, Any] | None) -> str:
    return f"{reward_of(one['rewards']):.1f} ({nll_of(one['right']):.3f})" if one else ""


def _unseen(all_kinds: Sequence[Kind]) -> str:
    rows = ["| agents | merge | their own tasks | base on the unseen task | merge on it |", "|---|---|---:|---:|---:|"]
    for kind in all_kinds:
        choice, _ = kind.choice("right")
        rows += _unseen_rows(kind, choice) if "base, unseen" in kind.figures else []
    return "\n".join(rows)


def _unseen_rows(kind: Kind, choice: str) -> Iterator[str]:
    base = reward_of(kind.figures["base, unseen"])
    by_model = {name: one for name, one in kind.figures.items() if "unseen" in one}
    for name, one in sorted(by_model.items(), key=lambda each: -reward_of(each[1]["rewards"])):
        rule, _, inputs = name.partition(", ")
        notes = [inputs, "chosen by right replies" if name == choice else ""]
        words = ", ".join([f"`{rule}`", *filter(None, notes)])
        figures = (reward_of(one["rewards"]), base, reward_of(one["unseen"]))
        yield f"| {_words(kind)} | {words} | {' | '.join(f'{figure:.1f}' for figure in figures)} |"


def _words(kind: Kind) -> str:
    return f"{kind.base}, {KINDS[kind.name]} (seed {kind.seed})"


def _ways(kind: Kind) -> str:
    cells = [_words(kind)]
    for which in ("all", "right"):
        draws = kind.resampled(which)
        behind = {"mass": kind.choice(which)[1], "NLL": kind.chosen_by_nll(which)[1]}
        cells += [f"{behind[score]:.1f} ({draws[score]:.1f})" for score in behind]
    generated = kind.with_own_replies("right")
    return f"| {' | '.join(cells)} | {'' if generated is None else f'{generated[1]:.1f}'} |"


def _row(kind: Kind) -> str:
    cells = [
        _words(kind),
        f"{kind.agents:.1f}",
        f"{kind.rewards['sum']:.1f}" if "sum" in kind.rewards else "",
        *(f"{score:.1f} (`{name}`)" for name, score in (kind.without_prompts, kind.best)),
        *(f"{kind.rewards[name]:.1f} (`{name}`)" for name, _ in (kind.choice("right"), kind.choice("all"))),
    ]
    return f"| {' | '.join(cells)} |"
