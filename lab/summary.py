"""Summary of the findings: a few sentences from the verdicts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lab import kinds, rules, smollm
from lab.claims import DOES_NOT, HOLDS, LEVEL, better, beyond
from lab.results import MODELS, SECOND_BASE, Outcome, Results
from lab.rows import ALL
from lab.settings import MAIN
from lab.statistics import Estimate, holm
from ramerge.core.methods.registry import METHODS


def judgment(difference: Estimate) -> str:
    """Verdict of the rule for differences on the first of two."""
    verdict = better(difference)
    if verdict == HOLDS:
        return "better"
    if verdict == DOES_NOT:
        return "worse" if difference.high < 0 else "no clear difference"
    return "not decided by this data"


def comparison_text(first: str, second: str, difference: Estimate, more: str = "") -> str:
    """A comparison by the rule for differences, as a clause with its figures and what else is to be said of them."""
    clauses = {
        "better": f"{first} is better than {second}",
        "worse": f"{first} is worse than {second}",
        "no clear difference": f"there is no clear difference between {first} and {second}",
    }
    undecided = f"whether {first} is better than {second} is not decided by this data"
    return f"{clauses.get(judgment(difference), undecided)} ({points(difference)}{f'; {more}' if more else ''})"


def points(difference: Estimate) -> str:
    """A difference with its interval, to stand in brackets."""
    return f"{difference.value:+.1f} points, from {difference.low:+.1f} to {difference.high:+.1f}"


def lines(results: Results) -> Iterator[str]:
    """Advice, then results of real agents, then of tiny ones, as far as they were measured."""
    main = results.setting(MAIN)
    if main is None or not {"ram", "ram+", "linear", "task_arithmetic"} <= main.best.keys():
        return
    yield from _real(results)
    yield from _second_base(results)
    yield _best(main)
    yield _ram(main)
    yield from _when(results)
    yield from _untrained(main)
    yield from _rule(results)
    yield _how_sure(main)


def _real(results: Results) -> Iterator[str]:
    """RAM+ and the sum on real agents."""
    real = smollm.read(results)
    if real is not None and all(f"{name}, bfloat16" in real.rewards for name in ("ram", "linear")):
        real = real.whole
        apart = {dtype: real.difference(f"{smollm.SUM}, {dtype}", f"ram+, {dtype}") for dtype in real.merges}
        text = "; ".join(f"in {dtype} {points(one)} ({judgment(one)})" for dtype, one in apart.items())
        yield f"**Real agents.** {scores_of_real(real)} The sum minus RAM+: {text}."


def _second_base(results: Results) -> Iterator[str]:
    """Which rules hold on agents of another base."""
    comparisons = kinds.situations(results, SECOND_BASE)
    text = [_of_kind(_KINDS[name], comparison) for name, comparison in comparisons.items()]
    if text:
        model = MODELS[SECOND_BASE]
        yield (
            f"**Another base.** On {model}, {'; '.join(text)}. So rules that were judged on one base may fail on "
            "another ([figures](#on-agents-of-a-second-base))."
        )


_KINDS = {"SFT": "four fine-tuned agents", "LoRA": "four LoRA adapters"}


def _of_kind(words: str, comparison: kinds.Comparison) -> str:
    """The best rule, and those that were expected to be good."""
    means = {model: float(comparison.by_task(model).mean()) for model in comparison.models if model != smollm.AGENTS}
    best = max(means, key=lambda model: means[model])
    others = [name for name in (smollm.REFERENCE, kinds.CORE_PLUS, smollm.SUM) if name in means and name != best]
    text = ", ".join(f"`{name}` has {means[name]:.1f} %" for name in others)
    return f"for {words} `{best}` is the best rule ({means[best]:.1f} %); {text}"


def _best(main: Outcome) -> str:
    """Who is first with tuned and with default parameters, and how sure that is against RAM+."""
    names = [row.name for row in ALL if row.name in main.best]
    top = max(names, key=lambda name: main.best[name].mean)
    usual = max(names, key=lambda name: main.default[name].mean)
    against = main.against({name: main.best[name] for name in names if name != "ram+"}, main.best["ram+"])
    p_values = holm({name: one.p for name, one in against.items()})
    ahead = [name for name in names if name != "ram+" and against[name].value > 0 and p_values[name] < LEVEL]
    text = f"With parameters tuned on validation prompts `{top}` has the highest mean of {len(names)} methods, "
    text += f"{main.best[top].mean:.1f} %"
    if top != "ram+":
        caveat = "" if p_values[top] < LEVEL else ", so not decided by this data"
        text += (
            f", and `ram+` {main.best['ram+'].mean:.1f} % ({points(against[top])}; p = {p_values[top]:.3f} with Holm's "
            f"correction{caveat}). Methods that are clearly better than `ram+`: "
            f"{_enumeration(ahead) if ahead else 'none'}"
        )
    text += f". With default parameters `{usual}` has the highest mean, {main.default[usual].mean:.1f} %"
    text += f"; `{top}` has {main.default[top].mean:.1f} %." if usual != top else "."
    slow = (
        "" if METHODS[top].elementwise else f" `{top}` solves for whole matrices, which takes minutes for large ones."
    )
    return f"**The best method, three sparse RL agents.** {text}{slow}"


def _ram(main: Outcome) -> str:
    def apart(first: str, second: str) -> Estimate:
        return main.difference(main.best[first], main.best[second])

    average, over_sum = apart("ram", "linear"), apart("ram+", "task_arithmetic")
    text = comparison_text("`ram+`", "the sum of the task vectors with a tuned factor", over_sum)
    return (
        f"**RAM against the others, three agents.** {comparison_text('`ram`', 'averaging', average)}. "
        f"{plus_over_ram(main)} {text[0].upper()}{text[1:]}."
    )


def plus_over_ram(main: Outcome) -> str:
    """RAM+ against RAM, in one sentence; pages about methods repeat it."""
    apart = main.difference(main.best["ram+"], main.best["ram"])
    text = comparison_text("`ram+`", "`ram`", apart, f"{len(main.seeds)} trainings of three tiny agents, tuned `r`")
    return f"{text[0].upper()}{text[1:]}."


def scores_of_real(real: smollm.Real, dtype: str = "bfloat16") -> str:
    """Scores of the real agents' merges in one sentence; pages repeat it."""
    real = real.whole
    ram, average, total = (real.mean(f"{name}, {dtype}").value for name in ("ram", "linear", smollm.SUM))
    return (
        f"On {len(real.agents)} real agents of {smollm.MODEL} in {dtype}, each trained {real.trainings}, RAM scores "
        f"{ram:.1f} %, averaging {average:.1f} %, and the plain sum of the updates {total:.1f} %."
    )


def equal_on_real(real: smollm.Real, dtype: str = "bfloat16") -> str:
    """Where RAM+ and RAM answer the prompts of the real agents alike."""
    rewards = real.whole.rewards
    first, second = (np.concatenate(rewards[f"{name}, {dtype}"], axis=1) for name in ("ram+", "ram"))
    where = f"{len(real.agents)} real agents in {dtype}"
    if (first == second).all():
        return f"On {where} `ram+` and `ram` have the same reward on each of {first.size} prompts."
    return (
        f"On {where} the rewards of `ram+` and `ram` differ on {int((first != second).sum())} of {first.size} prompts."
    )


def _when(results: Results) -> Iterator[str]:
    """Where the choice between RAM+ and adding up matters."""
    copies = results.setting("copies")
    if copies is not None and "ram+" in copies.default:
        apart = copies.difference(copies.default["ram+"], copies.default["task_arithmetic"])
        yield (
            "**Agents that are alike.** If an agent is given three times, "
            f"{comparison_text('`ram+`', 'the plain sum', apart, 'default parameters')}."
        )
    dense = {"three-float32": "RL agents in float32", "three-sft": "SFT agents with Adam"}
    text = []
    for name, words in dense.items():
        outcome = results.setting(name)
        if outcome is not None and "ram+" in outcome.best:
            apart = outcome.difference(outcome.best["ram+"], outcome.best["task_arithmetic"])
            text.append(f"for {words} {comparison_text('it', 'the scaled sum', apart)}")
    if text:
        yield f"**Agents that moved most elements.** `ram+` averages what all agents moved: {', and '.join(text)}."


def _untrained(main: Outcome) -> Iterator[str]:
    """Cost of a merge in tasks without an agent."""
    if not main.others:
        return
    apart = beyond(main, main.best["ram+"])
    tasks = " and ".join(f"`{task}`" for task in main.others)
    yield (
        f"**Skills that no agent was trained on.** In {tasks}, which the base can do, "
        f"{comparison_text('the `ram+` merge', 'the base', apart)}. So score such tasks, too."
    )


def _rule(results: Results) -> Iterator[str]:
    choice, real = rules.choose(results), smollm.read(results)
    if choice is None:
        return
    total = choice.against["all"]
    more = f"mean of {len(choice.settings)} settings"
    words = comparison_text(f"`{choice.winner}`", "RAM+", total, more)
    text = (
        f"**A better rule for shared elements.** `{choice.winner}` was chosen on {len(choice.choosing)} seeds. On the "
        f"other {len(choice.testing)} seeds {words}."
    )
    if real is not None:
        real = real.whole
        text += (
            f" On {len(real.agents)} real agents, each trained {real.trainings}, {on_real(real)}. {confirmation(real)}"
        )
    yield text


def on_real(real: smollm.Real, rival: str = smollm.REFERENCE, words: str = "RAM+") -> str:
    """How the candidate does against another merge of the real agents."""
    real = real.whole
    differences = {dtype: real.difference(f"{smollm.CANDIDATE}, {dtype}", f"{rival}, {dtype}") for dtype in real.merges}
    text = "; ".join(f"in {dtype} {points(one)} ({judgment(one)})" for dtype, one in differences.items())
    return f"`{smollm.CANDIDATE}` minus {words}: {text}"


def confirmation(real: smollm.Real) -> str:
    """Whether the candidate is better than RAM+ on the real agents, too."""
    real = real.whole
    differences = [
        real.difference(f"{smollm.CANDIDATE}, {dtype}", f"{smollm.REFERENCE}, {dtype}") for dtype in real.merges
    ]
    if all(better(one) == HOLDS for one in differences):
        return "So the rule is better than RAM+ on these agents, too."
    if any(better(one) == HOLDS for one in differences):
        return "So the rule is better than RAM+ in one precision only."
    return "So these agents do not show that the rule is better than RAM+."


def _how_sure(main: Outcome) -> str:
    return (
        f"**How sure this is.** {len(main.seeds)} trainings of agents of 0.1 million parameters"
        f"{', which is few: intervals are too narrow' if len(main.seeds) < 10 else ''}. Nothing here says which method "
        f"is best for your agents: `ramerge search` measures that."
    )


def _enumeration(names: list[str]) -> str:
    ticked = [f"`{name}`" for name in names]
    return ticked[0] if len(ticked) == 1 else f"{', '.join(ticked[:-1])} and {ticked[-1]}"
