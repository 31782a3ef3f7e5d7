"""A search as short text for the terminal; its sentences and rows also for the page and the tab Choose."""

from __future__ import annotations

import shutil
from pathlib import Path
from shlex import quote
from statistics import fmean

from ramerge.calibration.agreement import FEW
from ramerge.sdk.commands import table
from ramerge.sdk.text import enumerated, quantity, shown
from ramerge.searches.evidence import Estimate
from ramerge.searches.own_replies import MOST_CANDIDATES
from ramerge.searches.results import BY_AGREEMENT, SUM_FIRST, TEMPER, SearchResult, TriedPoint, counts
from ramerge.searches.space import label, spelling

_MOST_ROWS = 20
_MOST_CANDIDATES = 12
_MOST_FAILURES = 3
_WIDTH = 100
_LONGEST_NAME = 40
_SEARCH = Path("SEARCH")
"""Stands for the folder of a search if it is unknown."""


def summary(result: SearchResult, out: Path) -> list[str]:
    """A search as lines for the terminal: the best points, how sure they are, and paths. Its notes are warnings."""
    if _is_by_mass(result):
        return [
            *column_definitions(result),
            *_mass_table(result),
            *findings(result, out),
            *failures(result),
            f"best merge: {out}/best, its recipe: {out}/recipe.yaml",
        ]
    states = counts(result.points)
    clauses = [_point_count(len(result.points)) + (f" of {result.points_of_space:,}" if result.points_of_space else "")]
    clauses += [f"{states['pruned']:,} given up early"] if states["pruned"] else []
    clauses += [f"{states['failed']:,} failed"] if states["failed"] else []
    merging, scoring = result.seconds["merging"], result.seconds["scoring"]
    where = (
        f"{out}: {', '.join(clauses)}; {merging:.1f} s of merging and {scoring:.1f} s of scoring; best merge: "
        f"{out}/best, its recipe: {out}/recipe.yaml"
    )
    return [*_ranking_table(result), *findings(result, out), *failures(result), where]


def _is_by_mass(result: SearchResult) -> bool:
    return BY_AGREEMENT in result.score


def _mass_rows(result: SearchResult, *, narrow: bool = False, short: bool = False) -> tuple[list[str], list[list[str]]]:
    """Rows of a search by prompts: candidates with their mass by task, or only for the task where it is lowest.

    With `short`, a candidate is named by what distinguishes it from others of its method.
    """
    names = list(result.winner.scores)
    several = len(result.objectives) > 1
    # the objective has no column of its own where the column of its task shows the same
    chosen_by = [each.name for each in result.objectives if each.name not in names or (narrow and not several)]
    has_replied = bool(result.winner.right)
    rows = []
    for point in result.ranked:
        if point.state == "failed":
            continue
        lowest = min(names, key=lambda name: point.scores[name])
        masses = [f"{point.scores[lowest]:.3f} {lowest}"] if narrow else [f"{point.scores[name]:.3f}" for name in names]
        if several:
            last = "best" if point is result.winner else "yes" if point.number in result.front else ""
        else:
            last = point.behind[0].with_interval() if point.behind else "best"
        right = [f"{fmean(point.right.values()):.3f}" if point.right else ""] if has_replied else []
        rows.append(
            [
                _short_name(point, result) if short else spelling(point.point, short=True),
                *(
                    f"{estimate.value:.3f}"
                    for each, estimate in zip(result.objectives, point.objectives, strict=True)
                    if each.name in chosen_by
                ),
                *masses,
                "" if point.nll is None else f"{point.nll:.3f}",
                *right,
                "given up early" if point.state == "pruned" else last,
            ]
        )
    more = ["NLL", *(["right"] if has_replied else []), "front" if several else "mass minus best (95 %)"]
    titles = ["mass" if name == "mean" else name for name in chosen_by]
    return ["candidate", *titles, *(["lowest"] if narrow else names), *more], rows


def _mass_table(result: SearchResult) -> list[str]:
    """Return the table of a search by prompts: each candidate in a line that fits the terminal, or 100 columns."""
    width = max(_WIDTH, shutil.get_terminal_size().columns)
    for form in ({}, {"short": True}, {"short": True, "narrow": True}):
        head, rows = _mass_rows(result, **form)
        lines = table(head, rows[:_MOST_CANDIDATES], 1 << 16)
        if max(map(len, lines)) <= width:
            break
    return lines


def _short_name(point: TriedPoint, result: SearchResult) -> str:
    """Name a point of a search by its method, and by parameters that differ between points of that method."""
    values = point.point
    others = [each.point for each in result.points if each.point.get("method") == values.get("method")]
    varied = {
        key: value
        for key, value in values.items()
        if key == "method" or any(other.get(key) != value for other in others)
    }
    name = spelling(varied, short=True)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _ranking_table(result: SearchResult) -> list[str]:
    """Return the table of points for the terminal, best first."""
    head, rows = ranking_rows(result)
    more = len(rows) - _MOST_ROWS
    return [
        *table(head, rows[:_MOST_ROWS]),
        *([f"and {quantity(more, 'more point')}, in search.json"] if more > 0 else []),
    ]


def ranking_rows(result: SearchResult) -> tuple[list[str], list[list[str]]]:
    """Return the columns of the table of points, and a row for each point that did not fail, best first."""
    if _is_by_mass(result):
        return _mass_rows(result)
    points = [point for point in result.ranked if point.state != "failed"]
    keys = list(dict.fromkeys(key for point in points for key in point.point))
    several = len(result.objectives) > 1
    head = [
        "point",
        *map(label, keys),
        *[title for each in result.objectives for title in (each.name, *(() if several else ("95 % interval",)))],
        "front" if several else "behind the best",
    ]
    rows = []
    for point in points:
        figures = []
        for estimate in point.objectives:
            figures += [f"{estimate.value:.4f}", *([] if several else [_format_interval(estimate)])]
        if several:
            last = "yes" if point.number in result.front else ""
        elif point.state == "pruned":
            last = "given up"
        else:
            last = point.behind[0].with_interval(sign=False, digits=4) if point.behind else "best"
        values = [shown(point.point.get(key, "–"), 40) for key in keys]
        rows.append([str(point.number), *values, *figures, last])
    return head, rows


def column_definitions(result: SearchResult) -> list[str]:
    """Return a sentence on each figure in the table of a search by prompts; empty for other searches."""
    if not _is_by_mass(result):
        return []
    right = ", ".join(f"{name} {right} of {count}" for name, (right, count) in result.score.get("right", {}).items())
    which = f"right replies ({right})" if right else "replies, right or wrong"
    temper = float(result.score.get(TEMPER, 1.0))
    temper_note = f" (tempered by {temper:.3g}, so that long or unlikely replies count, too)" if temper > 1 else ""
    own = (
        f"right: share of the candidate's own replies that are right, for at most {MOST_CANDIDATES} candidates tied "
        "with the highest mass; the best has the highest mean of mass and right"
    )
    return [
        f"mass: how likely the merge is to give the agents' own {which}{temper_note}; higher is better",
        "NLL: negative log-likelihood per token of the same replies; lower is better",
        *([own] if result.winner.right else []),
    ]


def findings(result: SearchResult, out: Path = _SEARCH) -> list[str]:
    """Return sentences on the result of a search in a folder; the last says whether the best merge is good enough."""
    best = result.winner
    if _is_by_mass(result):
        others = f"{len(result.level)} other{' is' if len(result.level) == 1 else 's are'} statistically tied with it"
        others += " in mass" if best.right else ""
        ties = f"; {others}" if result.level else ""
        if len(result.objectives) > 1:
            ties = f", the most balanced of the {quantity(len(result.front), 'candidate')} on the Pareto front"
        return [
            f"best: {spelling(best.point, short=True)}{ties}{_doubt_clause(result)}",
            *_untried_sentences(result),
            *comparison_sentences(result, out),
        ]
    lines = [f"best: point {best.number}: {spelling(best.point)}"]
    if result.agents:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in result.agents.items())
        items = " on test items" if result.test is not None else ""
        lines.append(f"agents, the best of each figure{items}: mean {fmean(result.agents.values()):.4f} ({figures})")
    for place, objective in enumerate(result.objectives):
        text = f"{objective.name}: {best.objectives[place].with_interval(sign=False, digits=4)} on validation items"
        if result.test is not None and result.optimism is not None:
            test = result.test[place].with_interval(sign=False, digits=4)
            optimism = result.optimism[place].with_interval(digits=4)
            text += f", {test} on test items; optimism of the choice (the difference) {optimism}"
        lines.append(text)
    if result.level:
        lines.append(
            f"{_point_count(len(result.level))} cannot be distinguished from the best: the paired 95 % interval of the "
            "difference contains 0"
        )
    if len(result.objectives) > 1:
        lines.append(f"Pareto front: points {', '.join(map(str, result.front))}; the best is the most balanced of them")
    return [*lines, *_untried_sentences(result), *comparison_sentences(result, out)]


def comparison_sentences(result: SearchResult, out: Path) -> list[str]:
    """Return sentences that compare the best merge with its agents, and say what to do next."""
    over, by_mass = result.over_agents, _is_by_mass(result)
    if len(result.objectives) > 1:
        return []
    if over is None:
        if not by_mass:
            return ["enough? agents were not scored; --score-agents compares the best merge with them"]
        own = "the best merge itself replies to the held-out prompts, and is compared with its agents"
        how = f"with --reward and --generate, {own}"
        return [f"enough? mass only ranks merges; {how}"]
    lines = []
    if by_mass:
        right = result.winner.right
        shares = [f"{name} {right[name]:.3f} / {share:.3f}" for name, share in result.agents.items()]
        lines = [f"right replies to the held-out prompts (best merge / agent): {', '.join(shares)}"]
    figures = over.with_interval()
    names = result.objectives[0].names(result.compared_items)
    counts = [count for name, count in result.compared_items.items() if name in names]
    is_few = any(0 < count < FEW for count in counts)
    sign, difference = result.objectives[0].sign, f"the difference from its agents is {figures}"
    on = f" on {quantity(sum(counts), 'prompt' if by_mass else 'item')}"
    more = "prompts (in the files, and by --prompt-count)" if by_mass else "items"
    if (over.low is None or over.high is None) and not is_few:
        verdict = (
            f"undecided: {difference}, without an interval, because the score gives no items; return a number for each "
            "item, or evaluate the merge on your own tasks"
        )
    elif over.low is not None and sign * over.value < 0 and not over.holds_0:
        prompts = "" if by_mass else " --prompts NAME=FILE"
        verdict = (
            f"worse than its agents{on}: {figures}. If that is too much, distill the agents into the merge: "
            f"ramerge handoff {quote(str(out))} STUDENT{prompts}"
        )
    elif over.low is None or over.high is None or is_few:  # if all are right, the interval is a point
        verdict = f"undecided: {difference}{on}. That is too few to tell: give more {more}"
    elif not over.holds_0:
        verdict = f"better than its agents{on}: {figures}. Evaluate the merge on your own tasks and ship it"
    elif (loss := max(-sign * over.low, -sign * over.high)) > 0:
        verdict = (
            f"undecided: {difference}{on}. If {loss:.3f} lower is good enough, evaluate the merge on your own "
            f"tasks and ship it; more {more} narrow the interval"
        )
    else:
        verdict = f"as good as its agents{on}: {figures}. Evaluate the merge on your own tasks and ship it"
    return [*lines, f"enough? {verdict}"]


def _doubt_clause(result: SearchResult) -> str:
    """Return the part of the line on the best merge that says why the choice is unreliable; empty if it is reliable."""
    replies = result.score.get("replies", {})
    absent = [name for name, count in replies.items() if not count]
    few = any(0 < count < FEW for count in replies.values())
    doubts = [f"{enumerated(absent)} did not count: no right reply"] if absent else []
    if few:
        doubts.append("the choice is unreliable: too few replies")
    elif result.level and result.winner.right:
        doubts.append("more prompts (in the files, and by --prompt-count) may separate them")
    elif result.level:
        own = ", or their own replies (--generate with --reward)," if result.score.get("rewarded") else ""
        doubts.append(f"more prompts (in the files, and by --prompt-count){own} may separate them")
    return "".join(f"; {doubt}" for doubt in doubts)


def _untried_sentences(result: SearchResult) -> list[str]:
    """Return a sentence on the untried points of a finite space; empty if there are none."""
    count, size = len(result.points), result.points_of_space
    if size is None or count >= size:
        return []
    methods = dict.fromkeys(result.space.get("methods", ()))
    for point in result.points:
        methods.pop(point.point.get("method"), None)
    lacking = f"; methods not tried: {enumerated(list(methods))}" if methods else ""
    # of a search for which nothing is said to vary, agents are scored, too
    more = (
        "the score of the sum decides which points come next"
        if result.sampler == SUM_FIRST
        else "a larger --trials resumes"
    )
    return [f"tried: {count:,} of {size:,} points{lacking}; {more}"]


def failures(result: SearchResult) -> list[str]:
    """Return sentences on the first failed points, with reasons."""
    failures = [point for point in result.points if point.state == "failed"]
    lines = [f"failed: point {point.number}: {shown(point.failure, 300)}" for point in failures[:_MOST_FAILURES]]
    return [
        *lines,
        *([f"and {len(failures) - _MOST_FAILURES:,} more failed"] if len(failures) > _MOST_FAILURES else []),
    ]


def _point_count(count: int) -> str:
    return quantity(count, "point")


def _format_interval(estimate: Estimate) -> str:
    """Format an interval: `0.9000 to 0.9500`, or a dash."""
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.low:.4f} to {estimate.high:.4f}"
