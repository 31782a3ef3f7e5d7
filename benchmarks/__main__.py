"""The command line of the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from benchmarks import (
    analysis,
    buckets,
    cluster,
    delta_merges,
    deltas,
    end_to_end,
    evaluation,
    held,
    huge,
    kernels,
    long_context,
    lora,
    machine,
    machine_code,
    matrices,
    memory,
    methods,
    peers,
    prompts,
    quantized,
    report,
    scale,
    sharded,
    soups,
    spectral,
    startup,
    sweep,
    wudi,
)
from benchmarks.report import Options, RawResults, Section
from benchmarks.timing import tell

SECTIONS = (
    kernels.SECTION,
    end_to_end.SECTION,
    held.SECTION,
    methods.SECTION,
    peers.SECTION,
    memory.SECTION,
    quantized.SECTION,
    sweep.SECTION,
    sharded.SECTION,
    lora.SECTION,
    deltas.SECTION,
    delta_merges.SECTION,
    soups.SECTION,
    analysis.SECTION,
    wudi.SECTION,
    spectral.SECTION,
    matrices.SECTION,
    prompts.SECTION,
    startup.SECTION,
    huge.SECTION,
    cluster.SECTION,
    buckets.SECTION,
    scale.SECTION,
    machine_code.SECTION,
    evaluation.SECTION,
    long_context.SECTION,
)
_USUAL_RUNS = 5


def main() -> None:
    """Measure sections one after the other; print each, and keep it if asked to."""
    arguments = _parser().parse_args()
    with machine.alone(arguments.work):
        _measure(arguments)


def _measure(arguments: argparse.Namespace) -> None:
    size = report.LARGE if arguments.large else report.SMALL
    command = f"python -m benchmarks {shlex.join(sys.argv[1:])}".rstrip()
    disk_write = machine.write_speed(arguments.work)
    for section in _sections_of(arguments.only, large=arguments.large):
        runs = arguments.runs or (section.fewest if arguments.large else _USUAL_RUNS)
        state = machine.state(disk_write)
        data = section.measure(Options(size, runs, arguments.work))
        results = RawResults(command, runs, machine.describe(), state, data)
        print(report.render(section, {size if section.has_sizes else "": results}), end="\n\n", flush=True)
        if arguments.write:
            report.save(section, size if section.has_sizes else "", results)
            report.README.write_text(report.readme(SECTIONS))


def _parser() -> argparse.ArgumentParser:
    names = ",".join(section.name for section in SECTIONS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ramerge on this machine.")
    parser.add_argument("--large", action="store_true", help="sections with sizes, at that of Qwen2.5-1.5B")
    parser.add_argument("--only", metavar="SECTIONS", help=f"some of {names}")
    parser.add_argument("--runs", type=int, help="measurements of each thing; default: 5, less for what takes long")
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="folder for checkpoints and outputs")
    parser.add_argument("--write", action="store_true", help="keep the results and render benchmarks/README.md")
    return parser


def _sections_of(only: str | None, *, large: bool) -> list[Section]:
    by_name = {section.name: section for section in SECTIONS}
    names = only.split(",") if only else list(by_name)
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"error: --only {','.join(unknown)}: there are {', '.join(by_name)}")
    for name in names:
        if large and not by_name[name].has_sizes:
            tell(f"{name} has no sizes: run it without --large")
    return [by_name[name] for name in names if by_name[name].has_sizes or not large]


if __name__ == "__main__":
    main()
