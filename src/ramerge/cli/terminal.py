"""Output on the terminal: lines, problems, tables."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click

from ramerge.core.foundation.text import brief, message, one_line, without_secrets

_LONGEST_LINE = 20_000
_MOST_PROBLEMS = 25
_COLORS = {"error": "red", "warning": "yellow", "note": "cyan", "debug": "bright_black"}
_GAP = "  "
# Number of processes that torchrun, mpirun and srun set. Slurm sets its own also for a script that starts no ranks, so
# only the one of a step is asked.
_LAUNCHER_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def say(lines: str | Iterable[str], *, err: bool = False) -> None:
    """Print one or several lines. Untrusted text is escaped, so that it stays on its line and controls no terminal."""
    for line in [lines] if isinstance(lines, str) else lines:
        click.echo(_clean_line(line), err=err)


def complain(kind: str, text: str) -> None:
    """Print an error or a warning on standard error, followed by the lines that it quotes."""
    first, *excerpt = message(text).split("\n")
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"  # asked for by the user (no-color.org)
    takes_color = not plain and sys.stderr is not None and sys.stderr.isatty()
    label = click.style(f"{kind}:", fg=_COLORS.get(kind), bold=True) if takes_color else f"{kind}:"
    click.echo(f"{label} {_clean_line(first)}", err=True)
    say(excerpt, err=True)


def _clean_line(line: str) -> str:
    return one_line(brief(_shorten_paths(without_secrets(line)), _LONGEST_LINE))


def _shorten_paths(line: str) -> str:
    """Shorten paths in the working folder to the form that a user would type."""
    with suppress(OSError):  # the working folder may have been removed
        here = Path.cwd()
        return re.sub(rf"(?<![\w./~-]){re.escape(str(here))}/(?=[^\s/])", "", line) if here.name else line
    return line


def warn(warnings: Iterable[str]) -> None:
    """Print warnings on standard error, each once. `--quiet` does not hide them."""
    for warning in dict.fromkeys(warnings):
        complain("warning", warning)


def warn_of_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """Warn if a launcher has started this command several times, because each process would do all of the work."""
    several = [name for name in _LAUNCHER_VARIABLES if environment.get(name, "1").strip() not in ("", "0", "1")]
    for name in several[:1]:
        text = "a launcher has started this command several times, and each process does all of the work; start it once"
        warn([f"{name}={environment[name]}: {text}, and use --ray for several machines"])


def reminder(warnings: Iterable[str]) -> list[str]:
    """Return the last line of a report with warnings above it; empty without warnings."""
    count = len({*warnings})
    if not count:
        return []
    what = "it an error" if count == 1 else "them errors"
    return [f"{count} warning{'s' * (count > 1)}, see above (--strict makes {what})"]


def fail(problems: Sequence[str], code: int) -> int:
    """Print problems as errors, and return the exit code."""
    more = [f"and {len(problems) - _MOST_PROBLEMS:,} more"] if len(problems) > _MOST_PROBLEMS else []
    with suppress(OSError):  # standard error may be closed; the exit code still shows the failure
        for problem in (*problems[:_MOST_PROBLEMS], *more):
            complain("error", problem)
    return code


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Format a table as lines: the first column is aligned to the left, the others to the right.

    Args:
        head: names of the columns.
        rows: the cells.
        width: the width of a line; by default the terminal's, or 80. Columns that do not fit go into further blocks
            below, each of which repeats the first column.
    """
    cells = [[one_line(text) for text in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    width = width or shutil.get_terminal_size().columns
    blocks = [[0]]
    for column in range(1, len(widths)):
        width_so_far = sum(widths[each] + len(_GAP) for each in blocks[-1])
        if len(blocks[-1]) > 1 and width_so_far + widths[column] > width:
            blocks.append([0])
        blocks[-1].append(column)
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        lines += [
            _GAP.join(
                row[column].rjust(widths[column]) if column else row[column].ljust(widths[column]) for column in block
            ).rstrip()
            for row in cells
        ]
    return lines
