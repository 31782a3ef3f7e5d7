"""Results on disk, and the README that is rendered from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import Spread

HOME = Path(__file__).parent
RESULTS = HOME / "results"
README = HOME / "README.md"

SMALL, LARGE = "0.5B", "1.5B"

# Why a bar is missed, by the bar's key or by what it begins with, up to a dot. Shown for missed ones only.
_FIXED_COSTS = (
    "fixed costs: starting Python, importing libraries and planning take 0.4 to 1.1 s, depending on the machine and "
    "not on the size of the model, while the floor itself takes less than two; the table of steps lists them"
)
_IN_TURNS = (
    "ramerge takes longer when it alternates with mergekit than by itself (compare the tables), presumably because "
    "this virtual machine returns the gigabytes that mergekit has freed to its host and gets them back page by page"
)
_RANDOM_DRAWS = "Its kernel takes three times as long as RAM's, because of the random draws"
_READ_TWICE = (
    "its inputs are read twice, because lambda depends on all of them; reading them once was measured and "
    "rejected, see docs/decisions/009-two-passes.md"
)
_COUNTED_FIRST = (
    "its threshold depends on all elements of an agent and is counted exactly in two reads, before a third one merges; "
    "a faster way that predicted it was measured and rejected, see docs/decisions/031-no-speculative-pass.md"
)
_EXPANSION = (
    "the merge from deltas is limited by two processors and no longer by the disk: in both passes an agent's block "
    "is made from the base's block and its changes, which takes as long as copying it from the page cache. Whole "
    "agents wait for the disk in their first pass only, because the second one finds them in the page cache"
)
REASONS: dict[str, str] = {
    "huge.one": (
        "half of its 90,369 tensors are scales of float8. A tensor takes some 60 µs from its header to its place in "
        "the output (JSON, checks, decoding, layout), and all of that is Python"
    ),
    "cluster.0.5B.one": (
        "a pass begins with tasks that import ramerge's modules, load kernels and unpack the plan, and a task waits "
        "for its last write to the disk. Ray also runs its processes at a lower priority (nice 15)"
    ),
    "cluster.0.5B.two": (
        "serial work does not get faster: planning, and the disk that both nodes write to. "
        "The process that collects results also shares the two processors with two nodes, while one node leaves it "
        "one of them"
    ),
    "cluster.1.5B.two.ties": (
        "the disk: a node of one processor takes 9.5 seconds, and writing the output of 3.1 GB takes 6 of them, "
        "whatever the number of nodes. `analyze`, which writes nothing, is 1.85 times as fast with two nodes"
    ),
    "delta_merges.0.5B.cold": _EXPANSION,
    "delta_merges.0.5B.warm.delta": (
        "the floor reads from memory and writes an eighth, which takes half a second; starting Python and importing "
        "libraries take 0.3 s of the rest, and comparing and five checksums nearly all of it, on two processors"
    ),
    "delta_merges.0.5B.cold.analyze": "nearly all of the time is the analysis kernel, which processes whole blocks",
    "delta_merges.0.5B.warm.analyze": "nearly all of the time is the analysis kernel, which processes whole blocks",
    "soups.0.5B.chain": (
        "adding the 1.6 billion elements that the links moved takes 3.3 s of processor time at 2 ns each, opening 64 "
        "deltas with 37,000 tensors 1.4 s, and reading them into memory as long as the floor takes for it. The floor "
        "varies with the disk, by a factor of three in these runs, and tests ran during two of the five"
    ),
    "lora.0.5B.warm": (
        "with warm caches reading whole agents costs next to nothing, and the products of rank 64 are 46 GFLOP for "
        "each agent and pass, of which RAM+ has two; the kernel does 35 to 40 GFLOP/s on a core"
    ),
    "sharded.0.5B.warm.ram": (
        "reading the metadata of four ranks with 290 tensors each takes 0.75 s for three agents, while the "
        "merge from warm caches takes less than three"
    ),
    "quantized.0.5B": (
        "every pass converts codes and scales to float32 in separate memory before merging, and with warm caches "
        "nothing hides that. Fewer bytes are read, which matters only if the disk is slow"
    ),
    "peers.0.5B": f"{_FIXED_COSTS}; and {_IN_TURNS}",
    "peers.1.5B": _IN_TURNS,
    "methods.0.5B": _FIXED_COSTS,
    "methods.0.5B.ties": _COUNTED_FIRST,
    "methods.0.5B.dare": f"{_FIXED_COSTS}. {_RANDOM_DRAWS}",
    "methods.0.5B.dare_ties": f"{_COUNTED_FIRST}. {_RANDOM_DRAWS}",
    "buckets": (
        "its inputs are read twice, because lambda depends on all of them, and the server shares the processors: it "
        "takes two thirds of the processor time that a merge takes"
    ),
    "held.0.5B.ram+": _READ_TWICE,
    "held.1.5B.ram+": _READ_TWICE,
    "held.0.5B.ties": _COUNTED_FIRST,
    "held.1.5B.ties": _COUNTED_FIRST,
    "spectral.0.5B.swudi": "nearly all of the time is matrix products in BLAS, whose speed depends on the processor",
    "end_to_end.0.5B.warm.ram+": _FIXED_COSTS,
    "end_to_end.0.5B.cold.ram+": (
        f"{_FIXED_COSTS}. With cold caches Python's own libraries are read from the disk too, and the disk's speed "
        "drifts by a factor of two between runs"
    ),
    "analysis": (
        "at least one of these agents moved 76 % of all elements, and the figures of moved elements take half of the "
        "time. Counting for RAM+ reads everything once before, and copying twice from the page cache takes a quarter"
    ),
    "sweep": (
        "writing the outputs into the page cache, which a sweep does as often as single merges do, is half of its time "
        "or more on this virtual machine, and drifts by a factor of three with the pages that its host takes and gives"
    ),
}


_NUMBER = re.compile(r"-$|[\d,.]+( [a-zA-Z]+)?( \(|$)")


@dataclass(frozen=True)
class Options:
    """How a section is to be measured.

    Attributes:
        size: a key of `checkpoints.SHAPES`; of no meaning to sections without sizes.
        runs: measurements of each thing.
        work: folder for checkpoints and outputs.
    """

    size: str
    runs: int
    work: Path


@dataclass(frozen=True)
class RawResults:
    """A section's raw results: what was measured, how and on what."""

    command: str
    runs: int
    machine: dict[str, Any]
    state: dict[str, Any]
    data: dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A kind of benchmark.

    Attributes:
        name: as in `--only`.
        title: its heading.
        has_sizes: whether it is measured for each size of model.
        fewest: runs at the large size where none are asked for.
        measure: take the measurements; raw results, as JSON takes them.
        render: raw results by size (or under "" for a section without sizes) as Markdown.
    """

    name: str
    title: str
    has_sizes: bool
    measure: Callable[[Options], dict[str, Any]]
    render: Callable[[Mapping[str, RawResults]], str]
    fewest: int = 5


@dataclass(frozen=True)
class Bar:
    """A bound that a measurement is held against."""

    key: str
    text: str
    spread: Spread
    limit: float
    at_least: bool = False
    digits: int = 2
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the median keeps to it."""
        return self.spread.median >= self.limit if self.at_least else self.spread.median <= self.limit


def bars(goals: Sequence[Bar]) -> str:
    """A table of bars, and the reasons of those that are missed."""
    rows = [
        (
            bar.text,
            bar.spread.text(bar.digits, bar.unit),
            f"{'at least' if bar.at_least else 'at most'} {bar.limit:g}{f' {bar.unit}' if bar.unit else ''}",
            "met" if bar.is_met else "**missed**",
        )
        for bar in goals
    ]
    reasons = [f"- {bar.text}: {_reason(bar.key)}" for bar in goals if not bar.is_met]
    parts = [table(("bar", "measured", "bound", ""), rows)]
    if reasons:
        parts.append("Why they are missed:\n\n" + "\n".join(reasons))
    return "\n\n".join(parts)


def _reason(key: str) -> str:
    parts = key.split(".")
    reasons = [REASONS[start] for end in range(len(parts), 0, -1) if (start := ".".join(parts[:end])) in REASONS]
    return reasons[0] if reasons else f"no reason is known yet (`{key}` in `REASONS`, report.py)"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: words to the left, numbers to the right."""
    numeric = [bool(rows) and all(_NUMBER.match(row[place]) for row in rows) for place in range(len(head))]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


# --- on disk ---------------------------------------------------------------------------------------------------------


def save(section: Section, size: str, results: RawResults) -> None:
    """Keep a section's raw results."""
    RESULTS.mkdir(exist_ok=True)
    _path(section, size).write_text(json.dumps(asdict(results), indent=1) + "\n")


def load(section: Section) -> dict[str, RawResults]:
    """A section's raw results by size, as far as there are any."""
    sizes = (SMALL, LARGE) if section.has_sizes else ("",)
    return {
        size: RawResults(**json.loads(_path(section, size).read_text()))
        for size in sizes
        if _path(section, size).is_file()
    }


def _path(section: Section, size: str) -> Path:
    return RESULTS / f"{section.name}{'-large' if size == LARGE else ''}.json"


# --- README ----------------------------------------------------------------------------------------------------------

_INTRODUCTION = """# Benchmarks

This page lists what ramerge was measured to take: time, memory and bytes, next to file copies and to mergekit. It is
generated from the files in `results/` by `python -m benchmarks --write`. The benchmarks need Linux.

    python -m benchmarks --write                  every section, models of the size of Qwen2.5-0.5B
    python -m benchmarks --write --large          the sections that have sizes, at the size of Qwen2.5-1.5B
    python -m benchmarks --write --only kernels   one section; the others stay as they are

Every figure is a median, with minimum and maximum in brackets. Commands that are compared were measured alternately in
one run. Ratios are taken pair by pair, because the speed of a machine changes from minute to minute. `checkpoints.py`
makes the checkpoints: names, shapes and dtype of Qwen2.5, random weights from a seed, and three agents that moved
3.2, 46.2 and 54.3 % of the base's elements by a few units in the last place. GB are 10^9 bytes, MB 10^6.

*Floor* is the time of a file copy: reading all inputs once, copying the base, and writing the copy to the disk. A
*bar* is a goal. Bars that are missed are marked, with the reason.
"""


def readme(sections: Sequence[Section]) -> str:
    """The whole README from what is stored."""
    by_section = {section: load(section) for section in sections}
    everything = [results for by_size in by_section.values() for results in by_size.values()]
    usual = max(everything, key=lambda results: results.state["date"]).machine
    parts = [_INTRODUCTION.rstrip(), f"Machine: {_machine(usual)}."]
    parts += [render(section, by_size, usual) for section, by_size in by_section.items() if by_size]
    return "\n\n".join(parts) + "\n"


def render(section: Section, by_size: Mapping[str, RawResults], usual: Mapping[str, Any] | None = None) -> str:
    """A section: when and how it was measured, and its tables. The machine where it is not the usual one."""
    origins = [_origin(size, results, usual) for size, results in by_size.items()]
    return "\n\n".join([f"## {section.title}", *origins, section.render(by_size)])


def _origin(size: str, results: RawResults, usual: Mapping[str, Any] | None) -> str:
    state = results.state
    lead = f"{size}: " if size else ""
    machine = "" if results.machine == usual else f" Machine: {_machine(results.machine)}."
    runs = f"{results.runs} {'run' if results.runs == 1 else 'runs'}"
    return (
        f"{lead}`{results.command}`, {state['date']}, {runs}; load average {state['load']:.1f} before, a synchronized "
        f"write of 1 GiB went at {state['disk_write'] / 1e6:,.0f} MB/s.{machine}"
    )


def _machine(machine: Mapping[str, Any]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory'] / 1e9:.1f} GB of memory, {machine['kernel']}; "
        f"Python {machine['python']}, {libraries}"
    )
