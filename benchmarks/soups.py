"""Averaging 64 checkpoints of a run: a chain of deltas, and whole checkpoints, next to reading and writing files."""

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
from benchmarks.report import Bar, Options, Section, Stored, bars, table
from benchmarks.timing import ratios, run, script, shown, spread, tell

_LINKS = 64
_MOVED = 0.05
_MOST_MEMORY = 400e6
_FLOOR = 1.2
_STRATEGIES = ("uniform", "ema")


def measure(options: Options) -> dict[str, Any]:
    """The soup of a chain, and of as many whole checkpoints that are links to a few, each next to its floor."""
    base, chain = _chain(options.size, options.work)
    linked = _linked(family(options.size, options.work), options.work / f"linked-{options.size.lower()}")
    commands = _commands(base, chain, linked, options.work)
    _compile(options.work)
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name, command in commands.items():
            machine.remove(options.work / "merged")
            machine.remove(options.work / "copy.safetensors")
            finished = run(command, watch="floor" not in name)
            taken[name].append(finished.to_dict())
            tell(f"soups {options.size}: run {turn + 1}, {name}: {finished.seconds:.2f} s")
    bytes_of_chain = sum(path.stat().st_size for path in chain.rglob("*.safetensors"))
    return {
        "size": options.size,
        "links": _LINKS,
        "chain": bytes_of_chain,
        "model": _size(base),
        "commands": {name: shown(command) for name, command in commands.items() if "floor" not in name},
        "taken": taken,
    }


def _commands(base: Path, chain: Path, linked: Path, work: Path) -> dict[str, list[str]]:
    out, copy = work / "merged", work / "copy.safetensors"
    deltas = sorted(chain.rglob("*.safetensors"))
    models = sorted(path for folder in linked.iterdir() for path in folder.glob("*.safetensors"))

    def floor(files: Sequence[Path]) -> list[str]:
        return ["sh", "-c", merging.copying(files, _size(base), copy)]

    found = {"chain, floor": floor([*base.glob("*.safetensors"), *deltas])}
    for strategy in _STRATEGIES:
        found[f"chain, {strategy}"] = _soup(chain, out, "--base", str(base), "--strategy", strategy)
    found["whole, floor"] = floor(models)
    found["whole, uniform"] = _soup(linked, out)
    return found


def _soup(run_folder: Path, out: Path, *flags: str) -> list[str]:
    return [script("ramerge"), "soup", str(run_folder), str(out), *flags, "--overwrite", "--quiet"]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _compile(work: Path) -> None:
    """Run every command once on small models, so that no kernel is compiled while it is measured."""
    base, chain = _chain("tiny", work)
    linked = _linked(family("tiny", work), work / "linked-tiny")
    for name, command in _commands(base, chain, linked, work).items():
        if "floor" not in name:
            run(command)


def _chain(size: str, work: Path) -> tuple[Path, Path]:
    """The base, and the folder of deltas `step_1` and so on, each on the one before it; made if they are not there."""
    base, home = family(size, work).base, work / f"chain-{size.lower()}"
    chain, note = home / "deltas", home / "made.json"
    written = {"links": _LINKS, "moved": _MOVED}
    if note.is_file() and json.loads(note.read_text()) == written:
        return base, chain
    shutil.rmtree(home, ignore_errors=True)
    models = [shutil.copytree(base, home / f"model-{place}") for place in (0, 1)]
    for step in range(1, _LINKS + 1):
        below, above = models
        for move in range(max(1, step - 1), step + 1):  # it is one step behind the other
            moved_weights(above, _MOVED, move)
        run(merging.delta(below, above, chain / f"step_{step}"))
        models = [above, below]
        tell(f"soups {size}: made link {step}")
    for model in models:
        shutil.rmtree(model)
    note.write_text(json.dumps(written))
    return base, chain


def _linked(files: Family, home: Path) -> Path:
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


def render(by_size: Mapping[str, Stored]) -> str:
    """For each size a table, and the bars."""
    return "\n\n".join(part for stored in by_size.values() for part in _parts(stored.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    taken = data["taken"]
    rows, held = [], []
    for name in data["commands"]:
        kind, _, strategy = name.partition(", ")
        took, floor = ([one["seconds"] for one in taken[each]] for each in (name, f"{kind}, floor"))
        memory = spread([one["anonymous"] for one in taken[name]])
        what = f"{strategy}, {'a chain of deltas' if kind == 'chain' else 'whole checkpoints'}"
        over = ratios(took, floor)
        shown_memory = replace(memory, **{key: value / 1e6 for key, value in vars(memory).items()}).text(0)
        rows.append((what, spread(took).text(), spread(floor).text(), over.text(), shown_memory))
        if strategy == "uniform":
            key = f"soups.{data['size']}.{kind}"
            held.append(Bar(key, f"{data['size']}: {what}, over the floor", over, _FLOOR))
            held.append(
                Bar(f"{key}.memory", f"{data['size']}: {what}, bytes of memory", memory, _MOST_MEMORY, digits=0)
            )
    return [
        f"### Qwen2.5-{data['size']}",
        f"{data['links']} checkpoints: a chain of deltas of {data['chain'] / 1e9:.2f} GB, in which each link moved "
        f"{_MOVED:.0%} at random places, on a model of {data['model'] / 1e9:.2f} GB; and whole checkpoints, which are "
        "links to three. The floor reads all files and writes one model to the disk. Caches are warm as far as memory "
        "allows.",
        "\n".join(f"    {command}" for command in data["commands"].values()),
        table(("soup", "seconds", "floor", "ratio", "memory, MB"), rows),
        bars(held),
    ]


SECTION = Section("soups", "Averages of checkpoints", sized=True, measure=measure, render=render, fewest=3)
