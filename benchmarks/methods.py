"""Every method on the same files, beside the floor and beside mergekit's version of it (figure 9 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, mergekit, merging
from benchmarks.checkpoints import Family, family, importances
from benchmarks.report import Bar, Options, Section, Stored, bars, table
from benchmarks.timing import Finished, ratios, run, shown, spread, tell

# Over the floor, as it is reached by methods that read everything once, and by TIES, which reads it three times.
_OVER_FLOOR = {"task_arithmetic": 1.5, "linear": 1.5, "dare": 1.5, "fisher": 1.5, "ties": 3.0}
# mergekit's time over ours.
_FASTER = {"ram": 20, "ram+": 20, "ties": 10}
_SMALLER = {"ram": 20, "ram+": 20}
_BARRED_SIZE = "0.5B"
_PEER_RUNS = 3


def measure(options: Options) -> dict[str, Any]:
    """All methods and their floors in turns; then ramerge and mergekit in turns."""
    files = importances(family(options.size, options.work))
    taken = _by_itself(files, options)
    python = mergekit.installed(options.work / "mergekit-venv")
    runs = min(options.runs, _PEER_RUNS)
    return {
        "size": options.size,
        "bytes": files.nbytes,
        "fisher_bytes": files.nbytes + sum(path.stat().st_size for path in files.importance_weights),
        "commands": {method: shown(merging.command(method, files, _out(options))) for method in merging.METHODS},
        "taken": taken,
        "versions": mergekit.versions(python),
        "recipe": mergekit.recipe(mergekit.PEERS["ties"], files),
        "peer_runs": runs,
        "pairs": {method: _beside(method, peer, files, python, options) for method, peer in mergekit.PEERS.items()},
    }


def _out(options: Options) -> Path:
    return options.work / "merged"


def _copy(options: Options) -> Path:
    return options.work / "copy.safetensors"


def _by_itself(files: Family, options: Options) -> dict[str, list[dict[str, Any]]]:
    """Floors and methods, each turn beginning with another. Fisher reads more, and has a floor of its own."""
    commands = {
        "floor": ["sh", "-c", merging.floor("ram", files, _copy(options))],
        "floor of fisher": ["sh", "-c", merging.floor("fisher", files, _copy(options))],
        **{method: merging.command(method, files, _out(options)) for method in merging.METHODS},
    }
    names = list(commands)
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(options.runs):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            machine.make_warm(merging.inputs("fisher" if "fisher" in name else name, files))
            finished = run(commands[name], watch="floor" not in name)
            taken[name].append(finished.as_dict())
            machine.remove(_out(options))
            machine.remove(_copy(options))
            tell(f"methods {options.size}: run {turn + 1}, {name}: {finished.seconds:.2f} s")
    return taken


def _beside(method: str, peer: mergekit.Peer, files: Family, python: Path, options: Options) -> dict[str, Any]:
    """A method, and then mergekit's."""
    ours = merging.command(method, files, _out(options), peer.settings)
    theirs = mergekit.command(peer, files, options.work, python)
    taken: dict[str, list[dict[str, Any]]] = {"ramerge": [], "mergekit": []}
    for turn in range(min(options.runs, _PEER_RUNS)):
        for tool, command in (("ramerge", ours), ("mergekit", theirs)):
            finished, written = _once(command, files)
            taken[tool].append({**finished.as_dict(), "written": written})
            tell(f"methods {options.size}: run {turn + 1}, {tool}'s {method}: {finished.seconds:.2f} s")
    return {"commands": {"ramerge": shown(ours), "mergekit": shown(theirs)}, "taken": taken}


def _once(command: list[str], files: Family) -> tuple[Finished, int]:
    """A merge with warm caches, and the bytes of weights that it wrote."""
    out = Path(command[-1])
    machine.remove(out)
    machine.make_warm(files.weights)
    finished = run(command, watch=True)
    written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    machine.remove(out)
    return finished, written


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, Stored]) -> str:
    """For each size two tables, and bars."""
    return "\n\n".join(part for stored in by_size.values() for part in _parts(stored.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    size = data["size"]
    return [
        f"### All methods: Qwen2.5-{size}",
        f"Whole processes with warm caches, in turns; {data['bytes'] / 1e9:.2f} GB of inputs. Fisher also reads three "
        f"sets of importances, {data['fisher_bytes'] / 1e9:.2f} GB in all, and is held against the floor of reading "
        "those too. Memory is RssAnon + RssShmem, polled every 10 ms; VmHWM has mapped files as well.",
        _commands(data["commands"]),
        table(("method", "seconds", "over the floor", "MB", "VmHWM, MB"), _rows(data)),
        bars(_floor_bars(data)) if size == _BARRED_SIZE else "",
        f"### Beside mergekit: Qwen2.5-{size}",
        _about_mergekit(data),
        _commands({method: pair["commands"]["mergekit"] for method, pair in data["pairs"].items()}),
        "mergekit's recipe for `ties`:\n\n" + "\n".join(f"    {line}" for line in data["recipe"].splitlines()),
        table(
            ("method", "mergekit's", "ramerge, s", "mergekit, s", "times", "ramerge, MB", "mergekit, MB"),
            [_pair(method, pair) for method, pair in data["pairs"].items()],
        ),
        bars(_peer_bars(data)),
    ]


def _commands(commands: Mapping[str, str]) -> str:
    return "\n".join(f"    {command}" for command in commands.values())


def _rows(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for name, ones in data["taken"].items():
        took = spread([one["seconds"] for one in ones]).text()
        if "floor" in name:
            rows.append((name, took, "-", "-", "-"))
            continue
        memory = [spread([one[kind] / 1e6 for one in ones]).text(0) for kind in ("anonymous", "peak")]
        rows.append((f"`{name}`", took, ratios(*_over_floor(data, name)).text(), *memory))
    return rows


def _over_floor(data: Mapping[str, Any], method: str) -> tuple[list[float], list[float]]:
    floor = data["taken"]["floor of fisher" if method == "fisher" else "floor"]
    return [one["seconds"] for one in data["taken"][method]], [one["seconds"] for one in floor]


def _floor_bars(data: Mapping[str, Any]) -> list[Bar]:
    size = data["size"]
    return [
        Bar(
            f"methods.{size}.floor.{method}",
            f"{size}, warm caches: {method} over its floor",
            ratios(*_over_floor(data, method)),
            limit,
        )
        for method, limit in _OVER_FLOOR.items()
    ]


def _about_mergekit(data: Mapping[str, Any]) -> str:
    versions = data["versions"]
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "mergekit")
    return (
        f"mergekit {versions['mergekit']} in a virtual environment of its own ({others}), on the processor, without "
        "options: no `--lazy-unpickle`, no `--async-write`, its own number of threads, one output file, the "
        "tokenizer's files copied. Its recipes ask for bfloat16, so that it writes what ramerge writes. Both in turns, "
        f"{data['peer_runs']} times, after all inputs were read into the page cache. Where its method is another than "
        "ours (`ramerge methods` says how), ours is set to do as much or more: TIES trims over the whole model, DARE "
        "with TIES does not trim."
    )


def _pair(method: str, pair: Mapping[str, Any]) -> tuple[str, ...]:
    ours, theirs = pair["taken"]["ramerge"], pair["taken"]["mergekit"]
    times = ratios([one["seconds"] for one in theirs], [one["seconds"] for one in ours])
    seconds = [spread([one["seconds"] for one in ones]).text() for ones in (ours, theirs)]
    memory = [spread([one["anonymous"] / 1e6 for one in ones]).text(0) for ones in (ours, theirs)]
    return (f"`{method}`", f"`{mergekit.PEERS[method].method}`", *seconds, times.text(1), *memory)


def _peer_bars(data: Mapping[str, Any]) -> list[Bar]:
    kinds = (("seconds", "time", _FASTER), ("anonymous", "memory without mapped files", _SMALLER))
    return [
        _peer_bar(data, method, kind, what, limit) for kind, what, limits in kinds for method, limit in limits.items()
    ]


def _peer_bar(data: Mapping[str, Any], method: str, kind: str, what: str, limit: float) -> Bar:
    ours, theirs = (data["pairs"][method]["taken"][tool] for tool in ("ramerge", "mergekit"))
    ratio = ratios([one[kind] for one in theirs], [one[kind] for one in ours])
    size, peer = data["size"], mergekit.PEERS[method].method
    text = f"{size}: {what} of mergekit's {peer} over ramerge's {method}"
    return Bar(f"methods.{size}.mergekit.{method}.{kind}", text, ratio, limit, at_least=True, digits=1)


SECTION = Section("methods", "Methods", sized=True, measure=measure, render=render, fewest=3)
