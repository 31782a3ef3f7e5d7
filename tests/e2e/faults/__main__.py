"""Fault injection over every command that writes: `python -m tests.e2e.faults` (`make faults`).

Every round draws a command, a kind of fault and a call on files at which it happens, runs the command with it, and
compares what it says with what is on the disk, then again after a next run. What was drawn follows from the seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from tests.e2e.faults.process import KINDS, Ending, Fault, load, missing, run

_LAST = 80


def main() -> int:
    """Exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="commands whose name contains this")
    parser.add_argument("--fast", action="store_true", help="without report, whose imports take long")
    chosen = parser.parse_args()
    if reason := missing():
        print(reason)
        return 0
    shim = load()

    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ramerge-faults-")))
        folder, log = place / "files", place / "log"
        folder.mkdir()
        return _rounds(stack, shim, folder, log, chosen)


def _rounds(stack: ExitStack, shim: object, folder: Path, log: Path, chosen: argparse.Namespace) -> int:
    from tests.e2e.faults import commands as all_commands

    slow = not chosen.fast
    report = slow and all(find_spec(name) for name in ("altair", "itables", "jinja2", "vl_convert"))
    all_commands.write_inputs(folder)
    _warm_up(folder, report=report)
    commands = all_commands.commands(report=report)
    commands = [command for command in commands if not chosen.only or chosen.only in command.name]

    calls: dict[tuple[str, bool], int] = {}  # of all calls, and of those that write
    for command in commands:
        if command.name == "report":
            _finished(folder)
        command.prepare(folder)
        for kind in ("EIO", "ENOSPC"):
            ending = run(shim, folder, command.words(folder), Fault(kind, exchange=command.exchange), log)
            assert ending.code == 0, f"{command.name} fails without a fault:\n{ending.said}"
            calls[command.name, kind == "ENOSPC"] = ending.calls
            if kind == "EIO":
                command.expect(folder)
                command.prepare(folder)
        of_all, of_writes = calls[command.name, False], calls[command.name, True]
        print(f"{command.name}: {of_all:,} calls on files, {of_writes:,} that write", flush=True)

    drawn, failures, began = random.Random(chosen.seed), 0, time.monotonic()
    counted: Counter[tuple[str, str]] = Counter()
    for number in range(chosen.faults):
        command = commands[number % len(commands)]
        kind = drawn.choice(KINDS)
        for_good = kind in KINDS[:3] and drawn.random() < 0.3
        place = _place(drawn, calls[command.name, for_good or kind == "ENOSPC"])
        fault = Fault(kind, place, for_good=for_good, exchange=command.exchange)
        command.prepare(folder)
        words = command.words(folder)
        damage = ""
        if isinstance(command, all_commands.State) and drawn.random() < 0.5:
            fault, damage = Fault(exchange=command.exchange), command.damage(folder, drawn)
        ending = run(shim, folder, words, fault, log)
        problems = [*_always_wrong(ending, fault.kind), *command.wrong(folder, ending)]
        if isinstance(command, all_commands.Checkpoint):
            if drawn.random() < 0.5 and not command.is_done(folder):
                after = run(shim, folder, words, Fault(exchange=command.exchange), log)
                problems += command.wrong_after(folder, ending, after)
            else:
                problems += command.wrong_after_error(folder)
        if isinstance(command, all_commands.State) and not damage:
            problems += command.wrong_after(folder, run(shim, folder, words, Fault(exchange=command.exchange), log))
        counted[command.name, kind] += ending.calls > fault.place
        if number % 100 == 99:
            print(f"{number + 1:,} runs, {failures:,} that ended wrongly", flush=True)
        if problems:
            failures += 1
            print(f"\nFAULT {number}: {command.name}: {damage or fault}; exit code {ending.code}")
            for problem in problems:
                print(f"    {problem}")
            print("    said: " + ending.said.strip().replace("\n", "\n          ")[-2000:], flush=True)

    _print_counts(counted, [command.name for command in commands])
    seconds = time.monotonic() - began
    print(f"{counted.total():,} faults in {chosen.faults:,} runs, {failures:,} that ended wrongly, {seconds:.0f} s")
    return 1 if failures else 0


def _place(drawn: random.Random, calls: int) -> int:
    """Half of the faults are among the last calls, with which outputs are moved and leftovers removed."""
    return drawn.randrange(calls - min(calls, _LAST) if drawn.random() < 0.5 else 0, calls)


def _always_wrong(ending: Ending, kind: str) -> list[str]:
    """What no command may do."""
    problems = [f"{word} in what it says" for word in ("Traceback", "defect of ramerge") if word in ending.said]
    if ending.code < 0 and not (kind == "SIGKILL" and ending.code == -9):
        problems.append(f"ended by signal {-ending.code}")
    if ending.code > 0 and "error: " not in ending.said:
        problems.append("says nothing of what was wrong")
    if kind.startswith("SIG") and ending.code not in (-9, 0, 130, 143):
        problems.append("a signal gives another exit code")
    if kind == "short" and ending.code:
        problems.append("short reads and writes are no errors")
    return problems


def _warm_up(folder: Path, *, report: bool) -> None:
    """Import and compile once for all processes to come."""
    import ramerge
    import ramerge.cli.main
    import ramerge.cli.progress
    from tests.checkpoints import recipe
    from tests.e2e.faults.commands import AGENTS, DEMO

    source = recipe(folder, list(AGENTS))
    ramerge.merge(source, folder / "out", options=ramerge.Options(cache=False))
    ramerge.sweep(
        source, folder / "out", vary={"parameters.r": [0, 0.1]}, options=ramerge.Options(overwrite=True, cache=False)
    )
    analysis = ramerge.analyze(source, options=ramerge.Options(cache=False))
    if report:
        from ramerge.analysis.report.write import render

        render(analysis.to_dict())
    if report and find_spec("torch") and find_spec("transformers"):  # imported once: it takes longer than a command
        models = {"base": str(DEMO / "base"), "agents": {"code": str(DEMO / "coder")}}
        settings = ramerge.CalibrationSettings(count=2, max_new=4, device="cpu")
        ramerge.calibrate(
            {**models, "prompts": {"code": str(folder / "code.jsonl")}}, folder / "out", settings=settings
        )


def _finished(folder: Path) -> None:
    """A finished merge, for reports."""
    import ramerge
    from tests.checkpoints import recipe
    from tests.e2e.faults.commands import AGENTS

    ramerge.merge(recipe(folder, list(AGENTS)), folder / "finished", options=ramerge.Options(overwrite=True))


def _print_counts(counted: Counter[tuple[str, str]], names: list[str]) -> None:
    width = max(map(len, names))
    print(f"\n{'':<{width}}  " + "  ".join(f"{kind:>8}" for kind in KINDS))
    for name in names:
        cells = "  ".join(f"{counted[name, kind]:>{max(8, len(kind))}}" for kind in KINDS)
        print(f"{name:<{width}}  {cells}")


if __name__ == "__main__":
    sys.exit(main())
