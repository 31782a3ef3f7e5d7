"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

OUT: Decorator = click.argument("out", type=click.Path(path_type=Path))
OVERWRITE: Decorator = click.option(
    "--overwrite", is_flag=True, help="Replace the folder OUT and all that is in it, at the end."
)
QUIET: Decorator = click.option("--quiet", is_flag=True, help="Show errors only.")


@dataclass
class Session:
    """One run of the command line.

    Attributes:
        debug: whether tracebacks and the warnings of libraries are shown.
        code: the exit code; an ending that nobody has foreseen is a failure.
    """

    debug: bool = False
    code: int = 1


def _set_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:
    context.ensure_object(Session).debug |= value


DEBUG: Decorator = click.option(
    "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_set_debug, help="Show tracebacks."
)


def as_json(what: str) -> Decorator:
    """The option `--json`, which prints `what` instead of lines for people."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON on standard output.")
