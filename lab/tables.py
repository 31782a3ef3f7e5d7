"""Tables of docs/findings-*.md, as Markdown, from results."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab import details, predictions
from lab.claims import LEVEL, RULES, Claim, beyond, signed_text
from lab.published import Publication
from lab.results import BASE, Model, Outcome, Results
from lab.rows import ABLATIONS, ALL, FEW, TWO
from lab.rules import Choice
from lab.settings import MAIN, SETTINGS
from lab.smollm import Real
from lab.statistics import Estimate, holm, mean_ranks
from ramerge.core.foundation.text import decimals

REFERENCE = "ram+"
_REAL = Path(__file__).parents[1] / "docs" / "results" / "smollm2.json.gz"


def real_agents() -> list[dict[str, Any]]:
    """The agents of SmolLM2-135M, as they were analyzed."""
    return list(json.loads(gzip.decompress(_REAL.read_bytes()))["model"]["agents"])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; all columns but the first hold figures."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def of_claims(claims: Sequence[Claim]) -> str:
    """Every claim with its verdict; the rules follow in a list."""
    head = ("claim", "in the paper", "verdict", "rule", "evidence")
    rows = [
        (one.text, one.where, f"**{one.verdict}**", one.rule if one.rule in RULES else "own", one.evidence)
        for one in claims
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def of_rules(claims: Sequence[Claim]) -> str:
    """The rules that claims share, then what else is to be said of single claims."""
    rule_names = {one.rule for one in claims}
    common = [f"- **Rule {name}**: {words}." for name, words in RULES.items() if name in rule_names]
    own = [f"- *{one.text}*: {one.terms or one.rule}." for one in claims if one.terms or one.rule not in RULES]
    return "\n".join((*common, *own))


def of_methods(outcome: Outcome) -> str:
    """Table 1: methods and tasks. With parameters chosen on validation prompts, and with defaults."""
    names = [row.name for row in (*ALL, *TWO) if row.name in outcome.best]
    against = outcome.against({name: outcome.best[name] for name in names}, outcome.best[REFERENCE])
    p_values = holm({name: one.p for name, one in against.items() if name != REFERENCE})
    ranks = dict(zip(names, ranks_of(outcome, names), strict=True))
    rows = [
        _row_of_model(name, model, outcome) for name, model in outcome.models.items() if name in (BASE, *outcome.tasks)
    ]
    for name in sorted(names, key=lambda name: -outcome.best[name].mean):
        text = signed_text(against[name]) if name != REFERENCE else ""
        p = f"{p_values[name]:.3f}" if name != REFERENCE else ""
        best = outcome.best[name]
        rows.append(
            (
                f"`{name}`",
                *(f"{value:.1f}" for value in best.by_task.mean(0)),
                _with_interval(outcome.mean(best)),
                text,
                f"**{p}**" if p and p_values[name] < LEVEL else p,
                f"{ranks[name]:.1f}",
                f"{outcome.default[name].mean:.1f}",
            )
        )
    head = ("model", *outcome.tasks, "mean", f"difference to {REFERENCE}", "p (Holm)", "mean rank", "with defaults")
    return table(head, rows)


def _row_of_model(name: str, model: Model, outcome: Outcome) -> tuple[str, ...]:
    label = "base" if name == BASE else f"agent {name}"
    return (
        label,
        *(f"{value:.1f}" for value in model.by_task.mean(0)),
        _with_interval(outcome.mean(model)),
        "",
        "",
        "",
        "",
    )


def _with_interval(estimate: Estimate) -> str:
    return f"{estimate.value:.1f} ({estimate.low:.1f} to {estimate.high:.1f})"


def ranks_of(outcome: Outcome, names: Sequence[str]) -> list[float]:
    """Mean ranks over seeds, by the mean over tasks."""
    scores = np.stack([outcome.best[name].by_task.mean(1) for name in names], axis=1)
    return [float(rank) for rank in mean_ranks(scores)]


def of_settings(results: Results) -> str:
    """Methods in all settings: means, chosen on validation prompts."""
    outcomes = [outcome for setting in SETTINGS if (outcome := results.setting(setting.name)) is not None]
    names = [row.name for row in (*ALL, *TWO) if any(row.name in outcome.best for outcome in outcomes)]
    highest = [max(outcome.best[name].mean for name in names if name in outcome.best) for outcome in outcomes]
    rows = []
    for name in names:
        cells = []
        for outcome, top in zip(outcomes, highest, strict=True):
            mean = outcome.best[name].mean if name in outcome.best else None
            cells.append("" if mean is None else f"**{mean:.1f}**" if mean == top else f"{mean:.1f}")
        rows.append((f"`{name}`", *cells))
    return table(("method", *(outcome.name for outcome in outcomes)), rows)


def of_geometry(results: Results, kinds: Mapping[str, str]) -> str:
    """Figures 2 and 7: densities and overlaps, means over seeds."""
    rows = []
    for kind, words in kinds.items():
        models = results.models(kind)
        for task in models.get("geometry", [{}])[0].get("density", {}):
            geometry = models["geometry"]
            shares = np.mean([one["shared"][task] for one in geometry], axis=0)
            densities = [100 * one["density"][task] for one in geometry]
            rows.append(
                (
                    f"{words}: {task}",
                    str(len(shares)),
                    f"{np.mean(densities):.1f} % ({min(densities):.1f} to {max(densities):.1f})",
                    f"{100 * shares[0]:.1f} %",
                    f"{np.mean([one['norm'][task] for one in geometry]):.3f}",
                    decimals(float(np.mean(_cosines(geometry, task))), 2),
                )
            )
    head = ("agents", "of", "density (least to most)", "unique", "length", "mean cosine to the others")
    return table(head, rows)


def _cosines(geometry: Sequence[Mapping[str, Mapping[str, float]]], task: str) -> list[float]:
    return [value for one in geometry for pair, value in one["cosine"].items() if task in pair.split()]


def of_real() -> str:
    """Figure 8: the agents of SmolLM2-135M, from the analysis in docs/results."""
    return table(
        ("agent", "density", "unique", "length"),
        [
            (
                agent["name"],
                f"{agent['density']:.1%}",
                f"{agent['unique_share']:.1%}",
                f"{agent['norm']:.3f}",
            )
            for agent in real_agents()
        ],
    )


def of_regions(outcome: Outcome) -> str:
    """Figure 3: unique regions on the base; differences to the base in points."""
    rows = []
    for agent in outcome.agents:
        for text in ("1", "1/N"):
            model = outcome.default[f"unique of {agent} x {text}"]
            cells = []
            for place in range(len(outcome.tasks)):
                apart = outcome.difference(model, outcome.models[BASE], place)
                cells.append(signed_text(apart))
            rows.append((f"{agent}, times {text}", *cells))
    return table(("unique region of", *outcome.tasks), rows)


def of_ablation(outcome: Outcome, what: str) -> str:
    """Table 2 and its like: a parameter of RAM+, everything else as in the paper."""
    rows = ABLATIONS[what]
    own = next(row.name for row in rows if row.fixed == {what: {"r": 0.1, "alpha": 2.0, "epsilon": 1e-5}[what]})
    against = outcome.against({row.name: outcome.default[row.name] for row in rows}, outcome.default[own])
    return table(
        (what, *outcome.tasks, "mean", "difference to the paper's value"),
        [
            (
                row.name.partition("=")[2],
                *(f"{value:.1f}" for value in outcome.default[row.name].by_task.mean(0)),
                f"{outcome.default[row.name].mean:.1f}",
                "" if row.name == own else signed_text(against[row.name]),
            )
            for row in rows
        ],
    )


def of_counts(results: Results) -> str:
    """More agents: RAM+ and the best baselines, by the number of agents."""
    outcomes = {
        len(one.agents): one for name in ("two", MAIN, "four", "five") if (one := results.setting(name)) is not None
    }
    names = [row.name for row in FEW]
    rows = [
        (f"`{name}`", *(f"{one.best[name].mean:.1f}" if name in one.best else "" for one in outcomes.values()))
        for name in names
    ]
    agents = [
        ("the agents, each in its own task", *(f"{_own(one):.1f}" for one in outcomes.values())),
        ("base", *(f"{one.models[BASE].mean:.1f}" for one in outcomes.values())),
    ]
    return table(("method", *(f"N = {count}" for count in outcomes)), [*agents, *rows])


def _own(outcome: Outcome) -> float:
    return float(np.mean([outcome.models[task].by_task[:, place].mean() for place, task in enumerate(outcome.tasks)]))


def of_others(outcome: Outcome) -> str:
    """Table 3: tasks that no agent was trained on."""
    names = [row.name for row in FEW if row.name in outcome.best]
    models = {"base": outcome.models[BASE]} | {f"`{name}`": outcome.best[name] for name in names}
    return table(
        ("model", *outcome.others, "mean", "difference to the base"),
        [
            (
                name,
                *(f"{value:.1f}" for value in model.others.mean(0)),
                f"{model.others.mean():.1f}",
                "" if name == "base" else signed_text(beyond(outcome, model)),
            )
            for name, model in models.items()
        ],
    )


def of_details(results: Results, outcome: Outcome, task: str) -> str:
    """Tables 7 to 9: kinds of prompts of one task."""
    place = outcome.tasks.index(task)
    merges = {f"`{row.name}`": outcome.best[row.name] for row in FEW if row.name in outcome.best}
    models = {BASE: outcome.models[BASE], **{f"agent {name}": outcome.models[name] for name in outcome.tasks}}
    agent = outcome.models[task]
    return table(
        ("model", *details.KINDS[task], "all", "difference to the agent"),
        [
            (
                name,
                *(f"{score:.1f}" for score in details.by_kind(results, task, model, place, outcome.seeds)),
                signed_text(outcome.difference(model, agent, place)) if name in merges else "",
            )
            for name, model in {**models, **merges}.items()
        ],
    )


def of_real_models(real: Real) -> str:
    """Base and agents of SmolLM2-135M."""
    names = {BASE: BASE, **{f"agent {task}": task for task in real.agents if task in real.seeds_by_model}}
    on = trainings(real, list(names.values()))
    return table(
        ("model", *real.agents, "mean", *(["trainings"] * bool(on))),
        [(label, *_scores_of_real(real, name), *on.get(name, ())) for label, name in names.items()],
    )


def of_real_merges(real: Real, dtype: str, methods: Sequence[str]) -> str:
    """Merges of the agents of SmolLM2-135M, and their differences to RAM+."""
    on = trainings(real, [f"{method}, {dtype}" for method in methods])
    return table(
        ("merge", *real.agents, "mean", f"difference to {REFERENCE}", *(["trainings"] * bool(on))),
        [
            (
                f"`{_label(method)}`",
                *_scores_of_real(real, f"{method}, {dtype}"),
                ""
                if method == REFERENCE
                else signed_text(real.difference(f"{method}, {dtype}", f"{REFERENCE}, {dtype}")),
                *on.get(f"{method}, {dtype}", ()),
            )
            for method in methods
        ],
    )


def trainings(real: Real, names: Sequence[str]) -> dict[str, list[str]]:
    """On which trainings models were scored, as a column; empty where that is the same for all."""
    uneven = len({real.seeds_by_model[name] for name in names}) > 1
    return {name: [", ".join(map(str, real.seeds_by_model[name]))] for name in names if uneven}


def of_predictions(real: Real) -> str:
    """Predictions for new trainings of the real agents, with their verdicts."""
    return table(("difference", "outputs", "predicted", "measured", ""), list(predictions.rows(real)))


def _label(method: str) -> str:
    """A merge of the real agents in the words of a recipe."""
    rule, times, scale = method.partition(" x ")
    return f"task_arithmetic scale={scale}" if rule == "sum" and times else method


def of_serving(real: Real, on_server: Real) -> str:
    """Every model computed in float32 and served in bfloat16: means, and how often rewards are the same."""
    rows = []
    for name in on_server.rewards:
        pairs = list(zip(real.rewards[name], on_server.rewards[name], strict=True))
        same = sum(int((first == second).sum()) for first, second in pairs) / sum(first.size for first, _ in pairs)
        label = f"`{_label(name.partition(', ')[0])}`" if ", " in name else BASE if name == BASE else f"agent {name}"
        rows.append((label, f"{real.mean(name).value:.1f}", f"{on_server.mean(name).value:.1f}", f"{same:.1%}"))
    return table(("model", "float32, transformers", "bfloat16, over an endpoint", "prompts of the same reward"), rows)


def _scores_of_real(real: Real, name: str) -> tuple[str, ...]:
    return (*(f"{score:.1f}" for score in real.by_task(name)), _with_interval(real.mean(name)))


def of_candidates(choice: Choice) -> str:
    """Candidates for a better rule, on the choosing seeds."""
    rows = [
        (f"`{name}`", *(f"{score:.1f}" for score in scores), f"{np.mean(scores):.1f}")
        for name, scores in sorted(choice.scores.items(), key=lambda item: -float(np.mean(item[1])))
    ]
    return table(("candidate", *choice.settings, "mean"), rows)


def of_publications(publications: Sequence[Publication]) -> str:
    """Published averages, the highest first."""
    rows = [
        (one.source, one.agents, ", ".join(f"{name} {score}" for name, score in one.averages.items()))
        for one in publications
    ]
    return table(("source", "agents", "averages"), rows)


def of_choice(choice: Choice) -> str:
    """The winner on the other seeds."""
    rows = [(name, signed_text(choice.against[name]), signed_text(choice.against_sum[name])) for name in choice.against]
    return table(("setting", "winner minus RAM+", "winner minus the scaled sum"), rows)
