"""FSDP shards in float32 next to the same models as safetensors, and next to verl's own converter.

verl is measured where `RAMERGE_VERL` names a Python that can import it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, merging, timing
from benchmarks.checkpoints import Family, family, from_bf16
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, ratios, run, spread, tell

_RANKS = 4
_METHODS = ("ram", "ram+")
_SEED = 93
# The size of an update: about that of GRPO's Adam at 1e-6 after some steps, so that bfloat16 loses most of it.
_STEP = np.float32(3e-5)
_MERGE_BAR, _MEMORY_BAR, _CONVERT_BAR = 1.25, 400.0, 1.3
_MEGABYTE = 1_000_000


def measure(options: Options) -> dict[str, Any]:
    """Merges in pairs, then conversions of one agent: ramerge, the floor, and verl's."""
    shards, plain = _checkpoints(options.size, options.work)
    obstacle = machine.cannot_drop_caches()
    states = ["warm"] if obstacle else ["cold", "warm"]
    out = options.work / "merged"
    merges = {}
    for method in _METHODS:
        commands = {
            "shards": merging.command(method, shards, out),
            "safetensors": merging.command(method, plain, out),
        }
        for caches in states:
            merges[f"{caches}, {method}"] = _in_turns(commands, caches, options, _files(shards, plain))
    return {
        "size": options.size,
        "cold_refused": obstacle,
        "ranks": _RANKS,
        "merges": merges,
        "commands": {method: command_line(merging.command(method, shards, out)) for method in _METHODS},
        "conversions": {caches: _conversions(shards, caches, options) for caches in states},
        "lost": _losses(shards),
    }


def _files(shards: Family, plain: Family) -> dict[str, list[Path]]:
    return {
        "shards": [*plain.base.glob("*.safetensors"), *(f for a in shards.agents.values() for f in _ranks(a))],
        "safetensors": plain.weights,
    }


def _ranks(folder: Path) -> list[Path]:
    return sorted(folder.rglob("model_world_size_*.pt"))


def _in_turns(
    commands: Mapping[str, list[str]], caches: str, options: Options, files: Mapping[str, list[Path]]
) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name in sorted(commands, reverse=bool(turn % 2)):
            _prepare(caches, files[name], options.work)
            process = run(commands[name], watch=True)
            runs[name].append(process.to_dict())
            tell(f"sharded {options.size}: {caches}, run {turn + 1}, {name}: {process.seconds:.2f} s")
    machine.remove(options.work / "merged")
    return runs


def _prepare(caches: str, files: list[Path], work: Path) -> None:
    machine.remove(work / "merged")
    if caches == "cold":
        machine.make_cold()
    else:
        machine.make_warm(files)


def _conversions(shards: Family, caches: str, options: Options) -> dict[str, list[dict[str, Any]]]:
    """One agent: `ramerge convert` in float32 and in bfloat16, the floor of each, and verl's converter."""
    agent = next(iter(shards.agents.values()))
    files, out = _ranks(agent), options.work / "merged"
    convert = [timing.script("ramerge"), "convert", str(agent), str(out), "--quiet"]
    size = sum(path.stat().st_size for path in files)
    commands = {
        "convert, float32": convert,
        "floor, float32": _floor(files, size, out),
        "convert, bfloat16": [*convert, "--dtype", "bfloat16"],
        "floor, bfloat16": _floor(files, size // 2, out),
    }
    if python := os.environ.get("RAMERGE_VERL"):
        local = str(files[0].parent)
        merger = ["-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", local, "--target_dir"]
        commands["verl"] = [python, *merger, str(out)]
    return _in_turns(commands, caches, options, dict.fromkeys(commands, files))


def _floor(files: list[Path], size: int, out: Path) -> list[str]:
    """Read the shards, and write as many bytes as the output has to the disk."""
    names, target = shlex.join(map(str, files)), shlex.quote(str(out))
    write = f"head -c {size} /dev/zero > {target}/copy && sync {target}/copy"
    script = f"mkdir -p {target} && cat {names} > /dev/null && {write}"
    return ["sh", "-c", script]


def _losses(shards: Family) -> dict[str, float]:
    """The share of changed elements that each agent loses in bfloat16, as `ramerge analyze` has it."""
    page = shards.base.with_name("precision_loss.json")
    command = [*merging.analysis(shards, len(shards.agents)), "--json", str(page)]
    run(command)
    precision_loss = json.loads(page.read_text())["precision_loss"]
    page.unlink()
    return {name: values["changed_lost_share"] for name, values in precision_loss.items()}


# --- checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoints(size: str, work: Path) -> tuple[Family, Family]:
    """Three float32 agents of a bf16 base, as shards of FSDP and as safetensors; made if they are not there."""
    base = family(size, work).base
    home = work / f"sharded-{size.lower()}"
    names = [f"a{number}" for number in range(3)]
    shards = Family(base, {name: home / "shards" / name for name in names})
    plain = Family(base, {name: home / "plain" / name for name in names})
    note = home / "made.json"
    settings = {"version": 1, "ranks": _RANKS}
    if not note.is_file() or json.loads(note.read_text()) != settings:
        shutil.rmtree(home, ignore_errors=True)
        for number, name in enumerate(names):
            _write(base, shards.agents[name], np.random.default_rng([_SEED, number]))
            run(
                [
                    timing.script("ramerge"),
                    "convert",
                    str(shards.agents[name]),
                    str(plain.agents[name]),
                    "--quiet",
                ]
            )
        note.write_text(json.dumps(settings))
    return shards, plain


def _write(base: Path, folder: Path, generator: np.random.Generator) -> None:
    """The base with every element moved a little, as torch saves the DTensors of FSDP2 ranks."""
    from tests.formats.trainers import write_fsdp
    from tests.reference import Stored as Bits

    weights = base / "model.safetensors"
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        tensors = {}
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            values = from_bf16(np.frombuffer(file.read(end - begin), np.uint16))
            values += generator.standard_normal(values.size, np.float32) * _STEP
            tensors[name] = Bits("F32", values.view(np.uint32).reshape(entry["shape"]))
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = json.loads((base / "config.json").read_text())
    write_fsdp(folder, tensors, ranks=_RANKS, config=config)


# --- text ------------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """Tables of merges and conversions, the bars, and what verl's converter loses."""
    merges, conversions, goals, texts = [], [], [], []
    for size, results in by_size.items():
        for case, runs in results.data["merges"].items():
            shards, plain = (_seconds(runs[name]) for name in ("shards", "safetensors"))
            ratio, memory = ratios(shards, plain), spread(_peaks(runs["shards"]))
            merges.append((size, case, spread(shards).text(), spread(plain).text(), ratio.text(), memory.text(0)))
            key = f"sharded.{size}.{case.replace(', ', '.')}"
            goals.append(Bar(key, f"{size}: {case}: shards over safetensors", ratio, _MERGE_BAR))
            goals.append(
                Bar(f"{key}.memory", f"{size}: {case}: memory of shards", memory, _MEMORY_BAR, digits=0, unit="MB")
            )
        for caches, runs in results.data["conversions"].items():
            for name, repeats in runs.items():
                memory = spread(_peaks(repeats))
                conversions.append((size, caches, name, spread(_seconds(repeats)).text(), memory.text(0)))
            for dtype in ("float32", "bfloat16"):
                ratio = ratios(_seconds(runs[f"convert, {dtype}"]), _seconds(runs[f"floor, {dtype}"]))
                key = f"sharded.{size}.{caches}.convert.{dtype}"
                goals.append(Bar(key, f"{size}: {caches}: convert to {dtype} over its floor", ratio, _CONVERT_BAR))
        losses = ", ".join(f"{share:.0%}" for share in results.data["lost"].values())
        texts.append(
            f"verl's converter writes bfloat16 only. Of the elements that training changed, {losses} of the "
            f"three agents of {size} are rounded back to the base's value. `ramerge convert` and merges keep float32."
        )
    text = (
        f"Three agents in float32 of a base in bfloat16. Each is stored by {_RANKS} ranks of FSDP2, as verl does, "
        "and as safetensors. The floor of a conversion reads the shards and writes as many bytes as the output has."
    )
    return "\n\n".join(
        [
            text,
            table(("size", "merge", "shards, s", "safetensors, s", "ratio", "memory of shards, MB"), merges),
            table(("size", "caches", "conversion of one agent", "s", "memory, MB"), conversions),
            *texts,
            bars(goals),
        ]
    )


def _seconds(runs: list[dict[str, Any]]) -> list[float]:
    return [one["seconds"] for one in runs]


def _peaks(runs: list[dict[str, Any]]) -> list[float]:
    return [one["peak"] / _MEGABYTE for one in runs]


SECTION = Section("sharded", "FSDP shards", has_sizes=True, measure=measure, render=render, fewest=3)
