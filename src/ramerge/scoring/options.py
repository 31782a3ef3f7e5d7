"""Options of commands that ask servers and read data sets: `search`, `soup` and `eval`."""

from __future__ import annotations

from ramerge.sdk.commands import option

SERVE_ARGS = option(
    "remote",
    "--serve-args",
    default="",
    may_be_empty=True,
    metavar="WORDS",
    help="Additional arguments for the server.",
)
DATA = option(
    "score",
    "--data",
    metavar="NAME=PATH",
    multiple=True,
    help="Your copy of a data set (docs/guides/evaluate.md lists the names); repeat for each.",
)
