"""Options of commands that use servers and read data sets: `search`, `soup` and `eval`."""

from __future__ import annotations

import click

from ramerge.sdk.commands import option

SERVE_ARGS = option(
    "remote",
    "--serve-args",
    default="",
    may_be_empty=True,
    metavar="WORDS",
    help="Additional arguments for the server.",
)
SERVE_TIMEOUT = option(
    "remote",
    "--serve-timeout",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit to start a server or load a model.",
)
DATA = option(
    "score",
    "--data",
    metavar="NAME=PATH",
    multiple=True,
    help="Your copy of a data set (docs/reference/tasks.md has the names); repeat for each.",
)
