"""mergekit next to ramerge, on the same files in the same run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine, mergekit, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import ProcessResult, command_line, ratios, run, spread, tell

# mergekit's time over ours.
_FASTER = {"ram": 20, "ram+": 20, "ties": 10}
_SMALLER = {"ram": 20, "ram+": 20}
_MOST_RUNS = 3


def measure(options: Options) -> dict[str, Any]:
    """Every method that both have, ramerge and mergekit in turns."""
    files = family(options.size, options.work)
    python = mergekit.install(options.work / "mergekit-venv")
    return {
        "size": options.size,
        "versions": mergekit.versions(python),
        "recipe": mergekit.recipe(mergekit.PEERS["ties"], files),
        "peer_runs": min(options.runs, _MOST_RUNS),
        "pairs": {method: _beside(method, peer, files, python, options) for method, peer in mergekit.PEERS.items()},
    }


def _beside(method: str, peer: mergekit.Peer, files: Family, python: Path, options: Options) -> dict[str, Any]:
    """A method, and then mergekit's."""
    ours = merging.command(method, files, options.work / "merged", peer.settings)
    theirs = mergekit.command(peer, files, options.work, python)
    runs: dict[str, list[dict[str, Any]]] = {"ramerge": [], "mergekit": []}
    for turn in range(min(options.runs, _MOST_RUNS)):
        for tool, command in (("ramerge", ours), ("mergekit", theirs)):
            result, output_bytes = _once(command, files)
            runs[tool].append({**result.to_dict(), "written": output_bytes})
            tell(f"peers {options.size}: run {turn + 1}, {tool}'s {method}: {result.seconds:.2f} s")
    return {"commands": {"ramerge": command_line(ours), "mergekit": command_line(theirs)}, "taken": runs}


def _once(command: list[str], files: Family) -> tuple[ProcessResult, int]:
    """A merge with warm caches, and the bytes of weights that it wrote."""
    out = Path(command[-1])
    machine.remove(out)
    machine.make_warm(files.weights)
    result = run(command, watch=True)
    output_bytes = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    machine.remove(out)
    return result, output_bytes


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size a table, and bars."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    return [
        f"### Qwen2.5-{data['size']}",
        _about_mergekit(data),
        "\n".join(
            f"    {pair['commands'][tool]}" for pair in data["pairs"].values() for tool in ("ramerge", "mergekit")
        ),
        "mergekit's recipe for `ties`:\n\n" + "\n".join(f"    {line}" for line in data["recipe"].splitlines()),
        table(
            ("method", "mergekit's", "ramerge, s", "mergekit, s", "times", "ramerge, MB", "mergekit, MB"),
            [_pair(method, pair) for method, pair in data["pairs"].items()],
        ),
        bars(_peer_bars(data)),
    ]


def _about_mergekit(data: Mapping[str, Any]) -> str:
    versions = data["versions"]
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "mergekit")
    return (
        f"mergekit {versions['mergekit']} in a virtual environment of its own ({others}), on the processor, without "
        "options: no `--lazy-unpickle`, no `--async-write`, its own number of threads, one output file, the "
        "tokenizer's files copied. Its recipes request bfloat16, as ramerge writes. Both ran alternately, "
        f"{data['peer_runs']} times, after all inputs were read into the page cache. Where the methods differ (see "
        "`ramerge methods`), ramerge does as much work or more: TIES trims over the whole model, and DARE with TIES "
        "does not trim."
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
    return Bar(f"peers.{size}.{method}.{kind}", text, ratio, limit, at_least=True, digits=1)


SECTION = Section("peers", "Peers", has_sizes=True, measure=measure, render=render, fewest=1)
