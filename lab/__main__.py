"""The command line of the lab: `python -m lab --help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab import page
from lab.results import RESULTS, Results, keep
from lab.run import run
from lab.sizes import FULL, QUICK
from lab.store import OtherSettingsError


def main() -> None:
    """Train, merge and score; keep the results; render the page."""
    arguments = _parser().parse_args()
    sizes = QUICK if arguments.quick else FULL
    work = arguments.work or Path(".lab/quick" if arguments.quick else ".lab/full")
    out = work / "results" if arguments.quick else RESULTS
    try:
        if arguments.command == "run":
            run(work, sizes, arguments.jobs)
        if arguments.command in ("run", "keep"):
            keep(work, sizes, out)
    except OtherSettingsError as error:
        sys.exit(f"error: {error}")
    if arguments.quick:
        print(*page.pages(Results(out)).values(), sep="\n")
    else:
        page.write(Results(out))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description="Measure which merge is best, on tiny agents.")
    commands = {
        "run": "do what is not done yet, keep the results and render docs/findings*.md",
        "keep": "keep the results of the seeds that are finished, and render",
        "page": "render docs/findings*.md from lab/results",
    }
    parser.add_argument(
        "command", choices=commands, help="; ".join(f"{name}: {what}" for name, what in commands.items())
    )
    parser.add_argument(
        "--quick", action="store_true", help="two seeds and few methods; nothing is kept, the page is printed"
    )
    parser.add_argument("--work", type=Path, help="folder for agents and scores; default: .lab/full or .lab/quick")
    parser.add_argument("--jobs", type=int, default=2, help="processes, each for a seed; default: 2")
    return parser


if __name__ == "__main__":
    main()
