"""Averaging 64 checkpoints of a run, a chain of deltas or whole ones, and RELEX on 16, next to reading and writing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, merging
from benchmarks.checkpoints import Family, family, moved_weights
from benchmarks.report import SMALL, Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, script, spread, tell

_LINKS = 64
_PREDICTING = 16
_DENSITY = 0.05
_MOST_MEMORY = {"chain": 400e6, "whole": 400e6, "relex": 500e6}
_FLOOR = 1.2
_STRATEGIES = ("uniform", "ema")
_KINDS = {"chain": "a chain of deltas", "whole": "whole checkpoints", "relex": f"{_PREDICTING} whole checkpoints"}


def measure(options: Options) -> dict[str, Any]:
    """The soup of a chain, of as many whole checkpoints that are links to a few, and RELEX, each next to its floor.

    At the larger size RELEX only, because a chain takes an hour to make.
    """
    _compile(options.work)
    if options.size == SMALL:
        base, chain = _chain(options.size, options.work)
        commands = _of_chain(base, chain, options.work) | _of_whole(options.size, options.work)
        bytes_of_chain = sum(path.stat().st_size for path in chain.rglob("*.safetensors"))
    else:
        commands, bytes_of_chain = _predicting(options.size, options.work), 0
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name, command in commands.items():
            machine.remove(options.work / "merged")
            machine.remove(options.work / "copy.safetensors")
            result = run(command, watch="floor" not in name)
            runs[name].append(result.to_dict())
            tell(f"soups {options.size}: run {turn + 1}, {name}: {result.seconds:.2f} s")
    return {
        "size": options.size,
        "links": _LINKS,
        "chain": bytes_of_chain,
        "model": _size(family(options.size, options.work).base),
        "commands": {name: command_line(command) for name, command in commands.items() if "floor" not in name},
        "taken": runs,
    }


def _of_chain(base: Path, chain: Path, work: Path) -> dict[str, list[str]]:
    figures = {"chain, floor": _floor([*base.glob("*.safetensors"), *sorted(chain.rglob("*.safetensors"))], base, work)}
    for strategy in _STRATEGIES:
        figures[f"chain, {strategy}"] = _soup(chain, work / "merged", "--base", str(base), "--strategy", strategy)
    return figures


def _of_whole(size: str, work: Path) -> dict[str, list[str]]:
    files = family(size, work)
    links = _link_folder(files, work / f"linked-{size.lower()}")
    floor = _floor(_weights(links, _LINKS), files.base, work)
    return {"whole, floor": floor, "whole, uniform": _soup(links, work / "merged"), **_predicting(size, work)}


def _predicting(size: str, work: Path) -> dict[str, list[str]]:
    """RELEX, which reads the checkpoints and the base twice."""
    files = family(size, work)
    links = _link_folder(files, work / f"linked-{size.lower()}")
    once = [*files.base.glob("*.safetensors"), *_weights(links, _PREDICTING)]
    flags = ("--base", str(files.base), "--strategy", "relex", "--last", str(_PREDICTING), "--set", f"at={2 * _LINKS}")
    return {
        "relex, floor": _floor([*once, *once], files.base, work),
        "relex, relex": _soup(links, work / "merged", *flags),
    }


def _floor(files: Sequence[Path], base: Path, work: Path) -> list[str]:
    return ["sh", "-c", merging.copying(files, _size(base), work / "copy.safetensors")]


def _weights(links: Path, last: int) -> list[Path]:
    folders = [links / f"step_{step}" for step in range(_LINKS - last + 1, _LINKS + 1)]
    return [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]


def _soup(run_folder: Path, out: Path, *flags: str) -> list[str]:
    return [script("ramerge"), "soup", str(run_folder), str(out), *flags, "--overwrite", "--quiet"]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _compile(work: Path) -> None:
    """Run every command once on small models, so that no kernel is compiled while it is measured."""
    for name, command in (_of_chain(*_chain("tiny", work), work) | _of_whole("tiny", work)).items():
        if "floor" not in name:
            run(command)


def _chain(size: str, work: Path) -> tuple[Path, Path]:
    """The base, and the folder of deltas `step_1` and so on, each on the one before it; made if they are not there."""
    base, home = family(size, work).base, work / f"chain-{size.lower()}"
    chain, note = home / "deltas", home / "made.json"
    settings = {"links": _LINKS, "moved": _DENSITY}
    if note.is_file() and json.loads(note.read_text()) == settings:
        return base, chain
    shutil.rmtree(home, ignore_errors=True)
    models = [shutil.copytree(base, home / f"model-{place}") for place in (0, 1)]
    for step in range(1, _LINKS + 1):
        below, above = models
        for move in range(max(1, step - 1), step + 1):  # it is one step behind the other
            moved_weights(above, _DENSITY, move)
        run(merging.delta(below, above, chain / f"step_{step}"))
        models = [above, below]
        tell(f"soups {size}: made link {step}")
    for model in models:
        shutil.rmtree(model)
    note.write_text(json.dumps(settings))
    return base, chain


def _link_folder(files: Family, home: Path) -> Path:
    """As many checkpoints as the chain has links, which are links to those of a family in turns."""
    agents = list(files.agents.values())
    for step in range(1, _LINKS + 1):
        folder = home / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        for path in agents[step % len(agents)].iterdir():
            if path.is_file() and not (folder / path.name).exists():
                os.link(path, folder / path.name)
    return home


# --- report ----------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size a table, and the bars."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    runs = data["taken"]
    rows, goals = [], []
    for name in data["commands"]:
        kind, _, strategy = name.partition(", ")
        durations, floor = ([one["seconds"] for one in runs[each]] for each in (name, f"{kind}, floor"))
        memory = spread([one["anonymous"] for one in runs[name]])
        what = f"{strategy}, {_KINDS[kind]}"
        over = ratios(durations, floor)
        shown_memory = replace(memory, **{key: value / 1e6 for key, value in vars(memory).items()}).text(0)
        rows.append((what, spread(durations).text(), spread(floor).text(), over.text(), shown_memory))
        key, most = f"soups.{data['size']}.{kind}", _MOST_MEMORY[kind]
        if strategy == "uniform":
            goals.append(Bar(key, f"{data['size']}: {what}, over the floor", over, _FLOOR))
        if strategy in ("uniform", "relex"):
            goals.append(Bar(f"{key}.memory", f"{data['size']}: {what}, bytes of memory", memory, most, digits=0))
    return [
        f"### Qwen2.5-{data['size']}",
        _about(data),
        "\n".join(f"    {command}" for command in data["commands"].values()),
        table(("soup", "seconds", "floor", "ratio", "memory, MB"), rows),
        bars(goals),
    ]


def _about(data: Mapping[str, Any]) -> str:
    chain = (
        f"{data['links']} checkpoints: a chain of deltas of {data['chain'] / 1e9:.2f} GB, in which each link moved "
        f"{_DENSITY:.0%} at random places, on a model of {data['model'] / 1e9:.2f} GB; and whole checkpoints, which "
        "are links to three. "
    )
    return (
        f"{chain if data['chain'] else ''}RELEX reads the base and {_PREDICTING} of such whole checkpoints twice. The "
        "floor reads all files as often and writes one model to the disk. Caches are warm as far as memory allows."
    )


SECTION = Section("soups", "Averages of checkpoints", has_sizes=True, measure=measure, render=render, fewest=3)
