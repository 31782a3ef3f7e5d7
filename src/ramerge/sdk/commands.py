"""Commands: their options by group, their output, and how their arguments are parsed.

A command is a command of click, found by its entry point in the group `ramerge.commands`:

    >>> import click
    >>> from ramerge.sdk.commands import DEBUG, command, options, say
    >>> @command(short_help="Say hello.")
    ... @click.argument("name")
    ... @options(DEBUG)
    ... def hello(name: str) -> None:
    ...     \"""Say hello to NAME.\"""
    ...     say([f"hello, {name}"])
    >>> hello.main(["world"], standalone_mode=False)
    hello, world
"""

from ramerge.cli.carry_out import carry_out
from ramerge.cli.options import (
    AGENT,
    BASE,
    DEBUG,
    KEYS,
    LIMITS,
    MERGE,
    METHOD,
    MODELS,
    OUT,
    PATH,
    as_kind,
    command,
    option,
    options,
    options_of,
    printing,
    run_options,
)
from ramerge.cli.terminal import say, table, warn
from ramerge.cli.words import named, parse_scalar

__all__ = [
    "AGENT",
    "BASE",
    "DEBUG",
    "KEYS",
    "LIMITS",
    "MERGE",
    "METHOD",
    "MODELS",
    "OUT",
    "PATH",
    "as_kind",
    "carry_out",
    "command",
    "named",
    "option",
    "options",
    "options_of",
    "parse_scalar",
    "printing",
    "run_options",
    "say",
    "table",
    "warn",
]
