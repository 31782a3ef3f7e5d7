"""Merges of LoRA adapters next to the same merges of the whole agents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, merging, timing
from benchmarks.checkpoints import SHAPES, Family, family, tensors_of, write_factors
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, spread, tell

_METHODS = ("ram", "ram+")
_RANKS = (16, 64)
_BAR = 2.0
_SEED = 1729


def measure(options: Options) -> dict[str, Any]:
    """For each rank and method, the merge of adapters and that of whole agents, in turns."""
    base = family(options.size, options.work).base
    obstacle = machine.cannot_drop_caches()
    runs: dict[str, dict[str, list[float]]] = {}
    commands = {}
    for rank in _RANKS:
        adapters, whole = _checkpoints(options.size, options.work, base, rank)
        for method in _METHODS:
            pair = {
                "adapters": (merging.command(method, adapters, options.work / "merged"), adapters),
                "whole": (merging.command(method, whole, options.work / "merged"), whole),
            }
            commands[f"{method}, rank {rank}"] = command_line(pair["adapters"][0])
            for caches in ["warm"] if obstacle else ["cold", "warm"]:
                runs[f"{caches}, {method}, rank {rank}"] = _in_turns(pair, caches, options)
    return {"size": options.size, "cold_refused": obstacle, "commands": commands, "taken": runs}


def _in_turns(pair: Mapping[str, tuple[list[str], Family]], caches: str, options: Options) -> dict[str, list[float]]:
    runs: dict[str, list[float]] = {name: [] for name in pair}
    for turn in range(options.runs):
        for name in sorted(pair, reverse=bool(turn % 2)):
            command, files = pair[name]
            if caches == "cold":
                machine.make_cold()
            else:
                machine.make_warm(files.weights)
            runs[name].append(round(run(command).seconds, 4))
            machine.remove(options.work / "merged")
            tell(
                f"lora {options.size}: {caches}, run {turn + 1}, {command_line(command[3:5])}, {name}: "
                f"{runs[name][-1]:.2f} s"
            )
    return runs


def _checkpoints(size: str, work: Path, base: Path, rank: int) -> tuple[Family, Family]:
    """Three adapters of a rank on all linear layers of the base, and the whole agents in bf16; made if not there."""
    home = work / f"lora-{size.lower()}-{rank}"
    adapters = Family(base, {f"a{number}": home / f"a{number}" for number in range(3)})
    whole = Family(base, {name: home / f"whole-{name}" for name in adapters.agents})
    note = home / "made.json"
    settings = {"version": 1, "rank": rank, "base": str(base)}
    if not note.is_file() or json.loads(note.read_text()) != settings:
        shutil.rmtree(home, ignore_errors=True)
        for number, (name, folder) in enumerate(adapters.agents.items()):
            _write(folder, size, rank, np.random.default_rng([_SEED, number]))
            convert = [
                timing.script("ramerge"),
                "convert",
                f"{base}+{folder}",
                "--dtype",
                "bfloat16",
                "--quiet",
            ]
            run([*convert, str(whole.agents[name])])
        note.write_text(json.dumps(settings))
    return adapters, whole


def _write(folder: Path, size: str, rank: int, generator: np.random.Generator) -> None:
    """An adapter as PEFT writes it, on what `all-linear` targets; its updates are a hundredth of the weights."""
    folder.mkdir(parents=True)
    factors = {}
    for name, shape in tensors_of(SHAPES[size]):
        if "_proj.weight" in name:
            key = f"base_model.model.{name.removesuffix('.weight')}"
            for part, dimensions in (("lora_A", (rank, shape[1])), ("lora_B", (shape[0], rank))):
                values = generator.standard_normal(dimensions, np.float32)
                factors[f"{key}.{part}.weight"] = values * np.float32(0.01 if part == "lora_A" else 0.02 / rank**0.5)
    write_factors(folder / "adapter_model.safetensors", factors)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table, and the bars."""
    rows, goals = [], []
    for size, results in by_size.items():
        for case, runs in results.data["taken"].items():
            ratio = ratios(runs["adapters"], runs["whole"])
            rows.append((size, case, *(spread(runs[name]).text() for name in ("adapters", "whole")), ratio.text()))
            key = f"lora.{size}.{case.replace(', ', '.').replace(' ', '')}"
            goals.append(Bar(key, f"{size}: {case}: adapters over whole agents", ratio, _BAR))
    text = (
        "Three agents, adapters on all linear layers, float32, next to the same agents as whole checkpoints in bf16. A "
        "merge of adapters reads less and computes base + scaling B A for each agent in each pass: RAM needs one, RAM+ "
        "two."
    )
    head = ("size", "case", "adapters, s", "whole, s", "ratio")
    return "\n\n".join([text, table(head, rows), bars(goals)])


SECTION = Section("lora", "LoRA adapters", has_sizes=True, measure=measure, render=render, fewest=3)
