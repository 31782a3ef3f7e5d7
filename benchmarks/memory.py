"""Peak memory of whole merges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import family, importances
from benchmarks.report import LARGE, SMALL, Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import Spread, run, spread, tell

_BAR_MB = 400
_SAME = 1.1


def measure(options: Options) -> dict[str, Any]:
    """Merges with warm caches, watched, and what the plan foretells."""
    files, out = importances(family(options.size, options.work)), options.work / "merged"
    methods = {}
    for method in merging.METHODS:
        command = merging.command(method, files, out)
        runs = []
        for turn in range(options.runs):
            machine.make_warm(merging.inputs(method, files))
            runs.append(run(command, watch=True).to_dict())
            machine.remove(out)
            tell(f"memory {options.size}: {method}, run {turn + 1}: {runs[-1]['anonymous'] / 1e6:.0f} MB")
        planned_bytes = json.loads(run(merging.plan(method, files)).output)["peak_memory_bytes"]
        methods[method] = {"planned": planned_bytes, "runs": runs}
    return {"size": options.size, "methods": methods}


def _megabytes(results: RawResults, method: str, kind: str) -> Spread:
    return spread([one[kind] / 1e6 for one in results.data["methods"][method]["runs"]])


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table of peaks, and the bars."""
    rows, goals = [], []
    for size, results in by_size.items():
        for method in merging.METHODS:
            anonymous, peak = _megabytes(results, method, "anonymous"), _megabytes(results, method, "peak")
            plan_text = f"{results.data['methods'][method]['planned'] / 1e6:,.0f}"
            rows.append((size, method, anonymous.text(0), peak.text(0), plan_text))
            goals.append(
                Bar(f"memory.{size}.{method}", f"{size}, {method}: peak", anonymous, _BAR_MB, digits=0, unit="MB")
            )
    if {SMALL, LARGE} <= by_size.keys():
        for method in merging.METHODS:
            small, large = (_megabytes(by_size[size], method, "anonymous") for size in (SMALL, LARGE))
            ratio = Spread(large.median / small.median, large.low / small.high, large.high / small.low)
            goals.append(Bar(f"memory.same.{method}", f"{method}: peak of {LARGE} over that of {SMALL}", ratio, _SAME))
    text = (
        "The table has the peak resident memory of the process in MB, with warm caches: without mapped files "
        "(RssAnon + RssShmem of `/proc/PID/status`, "
        "polled every 10 ms), with them (VmHWM), and the upper bound of `ramerge plan`."
    )
    head = ("size", "method", "without mapped files", "VmHWM", "planned")
    return "\n\n".join([text, table(head, rows), bars(goals)])


SECTION = Section("memory", "Memory", has_sizes=True, measure=measure, render=render)
