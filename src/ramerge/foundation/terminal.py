"""What leaves for the terminal: lines, problems, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import click

from ramerge.foundation.text import brief, message, one_line

_LONGEST_LINE = 20_000
_MOST_PROBLEMS = 25


def say(lines: str | Iterable[str], *, err: bool = False) -> None:
    """Print lines, one or several, whoever wrote what is in them: each stays on its line and is nothing but letters."""
    for line in [lines] if isinstance(lines, str) else lines:
        click.echo(one_line(brief(line, _LONGEST_LINE)), err=err)


def complain(kind: str, text: str) -> None:
    """Print an error or a warning on standard error, with the lines that it quotes under it."""
    say(f"{kind}: {message(text)}".split("\n"), err=True)


def warn(warnings: Iterable[str]) -> None:
    """Warnings are on standard error, and `--quiet` does not hide them."""
    for warning in dict.fromkeys(warnings):
        complain("warning", warning)


def fail(problems: Sequence[str], code: int) -> int:
    """Say what is wrong; the exit code."""
    more = [f"and {len(problems) - _MOST_PROBLEMS:,} more"] if len(problems) > _MOST_PROBLEMS else []
    with suppress(OSError):  # nobody may be listening, and the exit code says it too
        for problem in (*problems[:_MOST_PROBLEMS], *more):
            complain("error", problem)
    return code


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns: the first to the left, the others to the right."""
    lines = [[one_line(text) for text in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(head))]
    return [
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in lines
    ]
