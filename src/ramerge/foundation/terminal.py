"""Output on the terminal: lines, problems, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import click

from ramerge.foundation.text import brief, message, one_line, without_secrets

_LONGEST_LINE = 20_000
_MOST_PROBLEMS = 25


def say(lines: str | Iterable[str], *, err: bool = False) -> None:
    """Print one or several lines. Untrusted text is escaped, so that it stays on its line and controls no terminal."""
    for line in [lines] if isinstance(lines, str) else lines:
        click.echo(one_line(brief(without_secrets(line), _LONGEST_LINE)), err=err)


def complain(kind: str, text: str) -> None:
    """Print an error or a warning on standard error, followed by the lines that it quotes."""
    say(f"{kind}: {message(text)}".split("\n"), err=True)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings on standard error, each once. `--quiet` does not hide them."""
    for warning in dict.fromkeys(warnings):
        complain("warning", warning)


def reminder(warnings: Iterable[str]) -> list[str]:
    """The last line of a report that stands below warnings; none without warnings."""
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


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column is aligned to the left, the others to the right."""
    lines = [[one_line(text) for text in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(head))]
    return [
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in lines
    ]
