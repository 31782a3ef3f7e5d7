"""Where merging stops scaling: a formula of bytes, processor time and collecting, with measured constants.

`python -m benchmarks.scale` prints the tables of docs/explanation/scaling.md; `--write` puts them into the page.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ramerge
from benchmarks import huge, machine, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import SMALL, Options, RawResults, Section, load, table
from benchmarks.startup import demo_agents
from benchmarks.timing import Spread, run, spread, tell
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor

PAGE = Path("docs/explanation/scaling.md")
_BEGIN, _END = "<!-- tables: python -m benchmarks.scale --write -->", "<!-- end of tables -->"
_BLOCK = 1 << 19
_SMALL_BLOCK = 1 << 12
_WIDTH = 2  # bytes of bfloat16


@dataclass(frozen=True)
class Job:
    """Something to predict.

    Attributes:
        title: for people.
        reads: how often all inputs are read; what a node read before is not in its page cache any more.
        outputs: how many outputs are written.
    """

    title: str
    reads: int
    outputs: int


JOBS = {
    "ram": Job("RAM", 1, 1),
    "ram+": Job("RAM+", 2, 1),
    "analyze": Job("`ramerge analyze`", 2, 0),
}


@dataclass(frozen=True)
class Cluster:
    """Assumptions about a cluster.

    Attributes:
        processors: of a node.
        node: bytes a second between a node and the store.
        store: bytes a second that the store gives and takes, all nodes together.
    """

    processors: int = 32
    node: float = 3e9
    store: float = 24e9


@dataclass(frozen=True)
class Model:
    """Models to merge: a base, and three agents that are stored like it."""

    title: str
    parameters: float
    tensors: int
    models: int = 4


MODELS = (Model("70B × 4", 70e9, 723), Model("671B × 4", 671e9, 45_337))
NODES = (1, 8, 64)


# --- the constants ----------------------------------------------------------------------------------------------------


def measure(options: Options) -> dict[str, Any]:
    """Processor time of whole commands with warm caches, of tiny ones, and of collecting outcomes."""
    files, tiny, out = family(SMALL, options.work), demo_agents(options.work), options.work / "merged"
    commands = {
        f"{size} {name}": _command(name, of, out) for size, of in (("large", files), ("tiny", tiny)) for name in JOBS
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    collecting_seconds = []
    for command in commands.values():
        run(command)
        machine.remove(out)
    for turn in range(options.runs):
        for name, command in commands.items():
            machine.make_warm(files.weights)
            runs[name].append(run(command).to_dict())
            machine.remove(out)
            tell(f"scale: run {turn + 1}, {name}: {runs[name][-1]['seconds']:.2f} s")
        collecting_seconds.append(_collecting(family("0.1B", options.work), out))
    return {"elements": files.weights[0].stat().st_size // _WIDTH, "taken": runs, "collected": collecting_seconds}


def _command(name: str, files: Family, out: Path) -> list[str]:
    return merging.analysis(files, len(files.agents)) if name == "analyze" else merging.command(name, files, out)


def _collecting(files: Family, out: Path) -> float:
    """Seconds for which an outcome of another process keeps the one that began: it is decoded, added and journalled."""
    source = {"method": "ram+", "base": str(files.base), "agents": {k: str(v) for k, v in files.agents.items()}}
    plan = ramerge.plan(source, out, options=ramerge.Options(cache=False))
    clocked = _Clocked(plan.details.resources.workers)
    execute(replace(plan.details, resources=replace(plan.details.resources, block_elements=_SMALL_BLOCK)), clocked)
    machine.remove(out)
    return clocked.seconds / clocked.outcomes


class _Clocked:
    """Does the work as if in another process, then hands over the results and looks how long each is worked on."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadExecutor(workers)
        self.seconds, self.outcomes = 0.0, 0

    def run(self, work: Any, runs: Any, recorder: Any) -> Generator[Any, None, None]:
        """See `Executor.run`."""
        from ray import cloudpickle

        with closing(cloudpickle.loads(cloudpickle.dumps(work))) as copy:
            events = list(self._threads.run(copy, runs, recorder))
        for event in events:
            start = time.perf_counter()
            yield event
            self.seconds, self.outcomes = self.seconds + time.perf_counter() - start, self.outcomes + 1


@dataclass(frozen=True)
class Constants:
    """Measured constants of the formula.

    Attributes:
        start: seconds before and after the work.
        plan: seconds of planning for each tensor of each model.
        outcome: seconds for which the process that began is kept by each block of a pass.
        processor: processor nanoseconds for each element of the base, of base and three agents, with all passes.
        wall: seconds of the measured commands, for comparison.
    """

    start: float
    plan: float
    outcome: float
    processor: Mapping[str, float]
    wall: Mapping[str, Spread]


def constants(results: RawResults, plans: RawResults) -> Constants:
    """The constants from kept results of this section and of `huge`."""
    data = results.data

    def seconds(name: str, kinds: tuple[str, ...]) -> Spread:
        return spread([sum(one[kind] for kind in kinds) for one in data["taken"][name]])

    processor = {
        name: (seconds(f"large {name}", ("user", "system")).median - seconds(f"tiny {name}", ("user", "system")).median)
        / data["elements"]
        for name in JOBS
    }
    start = seconds("tiny ram+", ("seconds",)).median
    about, runs = plans.data["models"]["trillion"], plans.data["runs"]["trillion"]
    plan_seconds = (spread([one["seconds"] for one in runs]).median - start) / (about["models"] * about["tensors"])
    wall = {name: seconds(f"large {name}", ("seconds",)) for name in JOBS}
    return Constants(start, max(plan_seconds, 0.0), spread(data["collected"]).median, processor, wall)


# --- the formula ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """Seconds: of what is done once, and of what happens at the same time."""

    once: float
    store: float
    link: float
    processors: float
    collecting: float

    @property
    def seconds(self) -> float:
        """In all."""
        return self.once + max(self.store, self.link, self.processors, self.collecting)

    @property
    def limit(self) -> str:
        """The part that takes longest."""
        each = {
            "store": self.store,
            "link": self.link,
            "processors": self.processors,
            "collecting": self.collecting,
            "once": self.once,
        }
        return max(each, key=lambda name: each[name])


def predict(job: str, model: Model, nodes: int, costs: Constants, cluster: Cluster) -> Prediction:
    """How long a job takes on so many nodes."""
    size = _WIDTH * model.parameters
    traffic = size * (JOBS[job].reads * model.models + JOBS[job].outputs)
    passes = JOBS[job].reads
    return Prediction(
        once=costs.start + costs.plan * model.models * model.tensors,
        store=traffic / cluster.store,
        link=traffic / (nodes * cluster.node),
        processors=costs.processor[job] * model.parameters / (nodes * cluster.processors),
        collecting=costs.outcome * passes * model.parameters / _BLOCK,
    )


# --- the tables -------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """The constants."""
    return _constants(constants(by_size[""], load(huge.SECTION)[""]), by_size[""])


def _expectation(name: str, costs: Constants, results: RawResults) -> float:
    """Seconds of the runs that were measured, by the formula."""
    return costs.start + costs.processor[name] * float(results.data["elements"]) / int(results.machine["cores"])


def _over(costs: Constants, results: RawResults) -> str:
    """How many times as long as the formula gives real runs took: the least and the most."""
    times = [costs.wall[name].median / _expectation(name, costs, results) for name in JOBS]
    return f"{min(times):.1f} to {max(times):.1f}"


def _constants(costs: Constants, results: RawResults) -> str:
    cores = results.machine["cores"]
    rows = []
    for name, job in JOBS.items():
        expectation = _expectation(name, costs, results)
        times = f"{costs.wall[name].median / expectation:.1f}"
        nanoseconds = f"{costs.processor[name] * 1e9:.1f}"
        rows.append((job.title, nanoseconds, f"{expectation:.1f}", costs.wall[name].text(1), times))
    machine_ = results.machine
    text = (
        f"Measured on {machine_['cpu']}, {cores} cores, {machine_['memory'] / 1e9:.0f} GB, {results.state['date']}, "
        f"{results.runs} runs: {costs.start:.1f} s to start and to end, {costs.plan * 1e6:.0f} µs of planning for each "
        f"tensor of each model, {costs.outcome * 1e6:.0f} µs for each block that another process reports. Processor "
        f"time is for each element of the base, with three agents in bfloat16 and warm caches, reading and writing "
        f"through the page cache included. The other columns compare the formula with real runs: Qwen2.5-0.5B and "
        f"three agents, {cores} processors, nothing that waits for a disk."
    )
    head = ("job", "processor time, ns", "formula, s", "measured, s", "measured over formula")
    return "\n\n".join([text, table(head, rows)])


def tables(costs: Constants, results: RawResults, cluster: Cluster = Cluster()) -> str:
    """The tables of the page."""
    rows = []
    for model in MODELS:
        for name, job in JOBS.items():
            cells = []
            for nodes in NODES:
                prediction = predict(name, model, nodes, costs, cluster)
                cells.append(f"{_time(prediction.seconds)}, {prediction.limit}")
            rows.append((model.title, job.title, *cells))
    text = (
        f"Predicted for nodes of {cluster.processors} processors that each reach the store with "
        f"{cluster.node / 1e9:g} GB/s, and a store of {cluster.store / 1e9:g} GB/s for all of them. *70B × 4* is a "
        "base of 70B parameters and three agents. Next to each time is what limits it: *link* is the way between "
        "the nodes and the store, *store* is the store itself. Real runs on one machine took "
        f"{_over(costs, results)} times what the same formula gives."
    )
    head = ("models", "job", *(f"{nodes} node{'s' if nodes > 1 else ''}" for nodes in NODES))
    return "\n\n".join([text, table(head, rows), _constants(costs, results)])


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def page(text: str, content: str) -> str:
    """The page with these tables."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n{content}\n\n{_END}{rest.partition(_END)[2]}"


def tables_of_results() -> str:
    """The tables from kept results."""
    results = load(SECTION)[""]
    return tables(constants(results, load(huge.SECTION)[""]), results)


SECTION = Section(
    "scale", "Constants of the formula in docs/explanation/scaling.md", has_sizes=False, measure=measure, render=render
)

if __name__ == "__main__":
    print(tables_of_results())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(), tables_of_results()))
