"""Merges from a bucket to a bucket: `python -m benchmarks.buckets OUT FILE KEY...` is the floor."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, script, spread, tell

_METHODS = ("ram", "ram+")
_BAR, _BAR_MB = 1.3, 400
# What a plain client asks for at once: requests of so many bytes each.
_REQUESTS, _REQUEST_BYTES = 16, 8 << 20
_VOLUMES = 80


def measure(options: Options) -> dict[str, Any]:
    """Floor and merges in turns, from a real S3 server on this machine and to it."""
    from tests.storage.seaweed import BUCKET, running

    files = family(options.size, options.work)
    with tempfile.TemporaryDirectory(dir=options.work) as folder, running(Path(folder), _VOLUMES) as server:
        os.environ |= server.environment
        for place in (files.base, *files.agents.values()):
            _put(place)
        there = Family(Path("base"), {name: Path(name) for name in files.agents})
        commands = {"floor": _floor(files), **{each: _merge(each, there, f"s3://{BUCKET}") for each in _METHODS}}
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
        for turn in range(options.runs):
            for name, command in commands.items():
                machine.make_warm(files.weights)
                runs[name].append(run(command, watch=True).to_dict())
                tell(f"buckets {options.size}: run {turn + 1}, {name}: {runs[name][-1]['seconds']:.2f} s")
    return {
        "size": options.size,
        "bytes": files.nbytes,
        "commands": {name: command_line(command) for name, command in commands.items()},
        "taken": runs,
    }


def _store() -> Any:
    """The bucket, by the variables of the environment."""
    from obstore.store import S3Store
    from tests.storage.seaweed import BUCKET

    return S3Store(BUCKET, client_options={"allow_http": True})


def _put(folder: Path) -> None:
    import obstore

    for path in folder.iterdir():
        obstore.put(_store(), f"{folder.name}/{path.name}", path, chunk_size=_REQUEST_BYTES)


def _floor(files: Family) -> list[str]:
    keys = [f"{path.parent.name}/{path.name}" for path in files.weights]
    return [
        script("python"),
        "-m",
        "benchmarks.buckets",
        "copied/model.safetensors",
        str(files.weights[0]),
        *keys,
    ]


def _merge(method: str, there: Family, bucket: str) -> list[str]:
    flags = [text for name in there.agents for text in ("--agent", f"{name}={bucket}/{name}")]
    models = ["--base", f"{bucket}/{there.base}", *flags]
    return [
        script("ramerge"),
        "merge",
        "--method",
        method,
        *models,
        *merging.ANEW,
        "--overwrite",
        f"{bucket}/merged",
    ]


def _copy(out: str, file: str, *keys: str) -> None:
    """Read objects, with several requests in flight, and send as many bytes as a merge's output has."""
    import obstore

    store = _store()
    ranges = [
        (key, start, min(start + _REQUEST_BYTES, size))
        for key in keys
        for size in [obstore.head(store, key)["size"]]
        for start in range(0, size, _REQUEST_BYTES)
    ]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        for future in [pool.submit(obstore.get_range, store, key, start=a, end=b) for key, a, b in ranges]:
            future.result()
    obstore.put(store, out, Path(file), use_multipart=True, chunk_size=_REQUEST_BYTES)


def render(by_size: Mapping[str, RawResults]) -> str:
    """Tables, and the bars."""
    rows, goals = [], []
    for size, results in by_size.items():
        runs = results.data["taken"]
        seconds = {name: [one["seconds"] for one in ones] for name, ones in runs.items()}
        for name, ones in runs.items():
            over, memory = ratios(seconds[name], seconds["floor"]), spread([one["anonymous"] / 1e6 for one in ones])
            is_floor = name == "floor"
            further = "-" if is_floor else over.text(), "-" if is_floor else memory.text(0)
            rows.append((size, name, spread(seconds[name]).text(), *further))
            if name == "ram+":
                goals.append(Bar(f"buckets.{size}.time", f"{size}: ram+ over the floor", over, _BAR))
                goals.append(
                    Bar(f"buckets.{size}.memory", f"{size}: ram+, memory", memory, _BAR_MB, digits=0, unit="MB")
                )
    commands = "\n".join(f"    {command}" for command in next(iter(by_size.values())).data["commands"].values())
    text = (
        "Inputs and output are in a bucket of SeaweedFS, which runs on this machine and shares its processors. The "
        "floor is the first of these commands: obstore reads all inputs, 16 requests of 8 MiB at a time, and then "
        "sends as many bytes as the output has."
    )
    head = ("size", "what", "seconds", "over the floor", "memory, MB")
    return "\n\n".join([text, commands, table(head, rows), bars(goals)])


SECTION = Section("buckets", "From a bucket to a bucket", has_sizes=True, measure=measure, render=render, fewest=3)

if __name__ == "__main__":
    _copy(*sys.argv[1:])
