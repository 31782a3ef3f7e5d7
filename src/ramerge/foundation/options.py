"""Options that several commands have."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ramerge.foundation.completion import folders

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class _Path(click.Path):
    """A path, or as text also a place elsewhere. An empty one is refused, because it would be the working folder.

    Args:
        kind: what a command gets: `Path`, or `str`.
    """

    def __init__(self, kind: type[Path] | type[str] = Path) -> None:
        super().__init__(path_type=kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        return (
            super().convert(value, param, ctx) if os.fspath(value) else self.fail("is empty; name a path", param, ctx)
        )


PATH = _Path()

OUT: Decorator = click.argument("out", type=PATH)
OUT_ANYWHERE: Decorator = click.argument("out", type=_Path(str))
OVERWRITE: Decorator = click.option(
    "--overwrite", is_flag=True, help="Replace the folder OUT and all that is in it, at the end."
)
STAGE: Decorator = click.option(
    "--stage",
    metavar="FOLDER",
    shell_complete=folders,
    help="Of an OUT elsewhere: where files lie until they are sent; default: in the user's cache folder. With Ray, and "
    "of ranks to the hub or for a delta, a folder that all see.",
)
SENDING: tuple[Decorator, ...] = (
    STAGE,
    click.option("--public", is_flag=True, help="Of an OUT on the hub: everybody may see it; default: private."),
)
SERVE_ARGS: Decorator = click.option(
    "--serve-args", default="", metavar="WORDS", help="Further words of the server's command line."
)
DATA: Decorator = click.option(
    "--data",
    metavar="NAME=PATH",
    multiple=True,
    help="Your copy of a data set; `ramerge suites` says which; repeat for each.",
)
QUIET: Decorator = click.option("--quiet", is_flag=True, help="Show errors only.")


class _Seconds(click.FloatRange):
    """A time above zero that comes to an end."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0, 1e6, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Also refuse what is no number, which no comparison catches."""
        number = float(super().convert(value, param, ctx))
        return number if number == number else self.fail(f"{value!r} is no number", param, ctx)


SECONDS = _Seconds()


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


def most_failures(what: str, default: int) -> Decorator:
    """The option `--most-failures`: how many failed `what` in a row stop a run."""
    text = f"Failed {what} in a row until it stops; 0: never."
    return click.option("--most-failures", type=click.IntRange(0), default=default, show_default=True, help=text)


def serve_timeout(what: str) -> Decorator:
    """The option `--serve-timeout`."""
    return click.option("--serve-timeout", type=SECONDS, default=900.0, show_default=True, help=what)


def options(*decorators: Decorator) -> Decorator:
    """Several options at once, in the order in which `--help` shows them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate
