"""What to take from the findings, in a few sentences, from the verdicts."""

from __future__ import annotations

from collections.abc import Iterator

from lab import rules, smollm
from lab.claims import DOES_NOT, HOLDS, LEVEL, better
from lab.results import Measured, Results
from lab.rows import ALL
from lab.settings import MAIN
from lab.statistics import Estimate, holm


def compared(difference: Estimate) -> str:
    """A comparison by the rule for differences, in words."""
    verdict = better(difference)
    if verdict == HOLDS:
        return "is better than"
    if verdict == DOES_NOT:
        return "is worse than" if difference.high < 0 else "is level with"
    return "cannot be told from"


def points(difference: Estimate) -> str:
    """A difference with its interval, to stand in brackets."""
    return f"{difference.value:+.1f} points, from {difference.low:+.1f} to {difference.high:+.1f}"


def lines(results: Results) -> Iterator[str]:
    """At most seven sentences, each for what was measured."""
    main = results.setting(MAIN)
    if main is None or not {"ram", "ram+", "linear", "task_arithmetic"} <= main.best.keys():
        return
    yield _best(main)
    yield _ram(main)
    yield from _when(results, main)
    yield from _rule(results)
    yield _how_sure(main)


def _best(main: Measured) -> str:
    names = sorted((row.name for row in ALL if row.name in main.best), key=lambda name: -main.best[name].mean)
    top = names[0]
    behind = main.against({name: main.best[name] for name in names[1:]}, main.best[top])
    adjusted = holm({name: one.p for name, one in behind.items()})
    near = [name for name in names[1:] if adjusted[name] >= LEVEL]
    beside = (
        f"Not told apart from it (p of {LEVEL:g} or more with Holm's correction): {_listed(near)}. " if near else ""
    )
    plus = f"`ram+` has {main.best['ram+'].mean:.1f} %." if top != "ram+" else ""
    return (
        f"**The best method, three sparse RL agents.** Of {len(names)} methods `{top}` has the best mean, "
        f"{main.best[top].mean:.1f} %. {beside}{plus}".rstrip()
    )


def _ram(main: Measured) -> str:
    def apart(first: str, second: str) -> Estimate:
        return main.difference(main.best[first], main.best[second])

    average, plus, scaled = apart("ram", "linear"), apart("ram+", "ram"), apart("ram+", "task_arithmetic")
    return (
        f"**RAM against the others, three agents.** `ram` {compared(average)} averaging ({points(average)}). "
        f"`ram+` {compared(plus)} `ram` ({points(plus)}), and it {compared(scaled)} the sum of the task vectors with "
        f"a factor chosen on validation prompts ({points(scaled)})."
    )


def _when(results: Results, main: Measured) -> Iterator[str]:
    """Where the choice between RAM+ and adding up matters."""
    copies = results.setting("copies")
    if copies is not None and "ram+" in copies.default:
        apart = copies.difference(copies.default["ram+"], copies.default["task_arithmetic"])
        yield (
            f"**Agents that are alike.** If an agent is given three times, `ram+` {compared(apart)} the plain sum "
            f"({points(apart)}; default parameters)."
        )
    dense = {"three-float32": "RL agents in float32", "three-sft": "SFT agents with Adam"}
    told = []
    for name, words in dense.items():
        measured = results.setting(name)
        if measured is not None and "ram+" in measured.best:
            apart = measured.difference(measured.best["ram+"], measured.best["task_arithmetic"])
            told.append(f"for {words} it {compared(apart)} the scaled sum ({points(apart)})")
    if told:
        yield (f"**Agents that moved most elements.** What all agents moved, `ram+` averages: {', and '.join(told)}.")


def _rule(results: Results) -> Iterator[str]:
    choice, real = rules.choose(results), smollm.read(results)
    if choice is None:
        return
    total = choice.against["all"]
    told = (
        f"**A better rule for shared elements.** `{choice.winner}`, chosen on {len(choice.choosing)} seeds, "
        f"{compared(total)} RAM+ on the other {len(choice.testing)} ({points(total)}; "
        f"mean of {len(choice.settings)} settings)."
    )
    if real is not None:
        told += f" On {len(real.agents)} real agents, each trained once, {on_real(real)}. {confirmed(real)}"
    yield told


def on_real(real: smollm.Real, rival: str = smollm.REFERENCE, words: str = "RAM+") -> str:
    """How the candidate does against another merge of the real agents."""
    found = {dtype: real.difference(f"{smollm.CANDIDATE}, {dtype}", f"{rival}, {dtype}") for dtype in real.merges}
    told = " and ".join(f"{compared(one)} {words} in {dtype} ({points(one)})" for dtype, one in found.items())
    return f"`{smollm.CANDIDATE}` {told}"


def confirmed(real: smollm.Real) -> str:
    """Whether the candidate is better than RAM+ on the real agents, too."""
    found = [real.difference(f"{smollm.CANDIDATE}, {dtype}", f"{smollm.REFERENCE}, {dtype}") for dtype in real.merges]
    if all(better(one) == HOLDS for one in found):
        return "So the rule is better than RAM+ on these agents, too."
    if any(better(one) == HOLDS for one in found):
        return "So the rule is better than RAM+ in one precision only."
    return "So these agents do not show that the rule is better than RAM+."


def _how_sure(main: Measured) -> str:
    return (
        f"**How sure this is.** {len(main.seeds)} trainings of agents of 0.1 million parameters"
        f"{', which is few: intervals are too narrow' if len(main.seeds) < 10 else ''}. Nothing here says which method "
        f"is best for your agents: `ramerge search` measures that."
    )


def _listed(names: list[str]) -> str:
    ticked = [f"`{name}`" for name in names]
    return ticked[0] if len(ticked) == 1 else f"{', '.join(ticked[:-1])} and {ticked[-1]}"
