"""A summary for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ramerge.evaluation.summary import EvaluationSummary, MetricSummary, TaskSummary
from ramerge.foundation.terminal import table
from ramerge.foundation.text import shown

_HEAD = ("model", "task", "metric", "score", "95 % interval", "samples", "failed")
_MOST_REASONS = 3


def summary_text(summary: EvaluationSummary, models: Sequence[str], suites: Sequence[str]) -> list[str]:
    """Scores of the given models and suites as a table, with a line for everything that is not as it should be."""
    tasks = [
        (shown(f"{name} {task}"), [shown(name), shown(task)], values)
        for name in models
        for task, values in summary["models"][name]["tasks"].items()
        if task.partition("/")[0] in suites
    ]
    rows = [
        [*named, shown(metric), *_figures(score), f"{values['samples']:,}", f"{values['failed']:,}"]
        for _, named, values in tasks
        for metric, score in values["metrics"].items()
    ]
    return [*table(_HEAD, rows), *(line for name, _, values in tasks for line in _notes(name, values))]


def _notes(name: str, values: TaskSummary) -> Iterator[str]:
    settings = "--set " + name.partition(" ")[2].partition("/")[0]
    if values["failed"]:
        yield f"note: {name}: {_samples(values['failed'])} failed; --retry-failed asks again:"
        yield from _reasons(values["failures"])
    elif values["failed_requests"]:
        yield f"note: {name}: {values['failed_requests']:,} requests failed in samples that went on without them"
    if values["unreadable"]:
        yield f"note: {name}: {_samples(values['unreadable'])} with an answer that could not be read:"
        yield from _reasons(values["problems"])
    if values["cut"]:
        yield f"note: {name}: {_samples(values['cut'])} with an answer cut off at the limit; {settings}.max_tokens=N"
    if not values["complete"]:
        yield f"note: {name}: is not complete; give the same command again to continue"


def _reasons(counts: Mapping[str, int]) -> Iterator[str]:
    yield from (f"    {count:,}: {shown(reason)}" for reason, count in list(counts.items())[:_MOST_REASONS])


def _samples(count: int) -> str:
    return f"{count:,} sample{'' if count == 1 else 's'}"


def _figures(score: MetricSummary) -> list[str]:
    shown = "–" if score["score"] is None else f"{100 * score['score']:.2f}"
    if score["low"] is None or score["high"] is None:
        return [shown, "–"]
    return [shown, f"{100 * score['low']:.2f} to {100 * score['high']:.2f}"]
