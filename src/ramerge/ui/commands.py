"""The command `ui`. It holds no logic, and imports when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramerge.sdk.commands import AGENT, BASE, DEBUG, PATH, command, option, options, run_options

if TYPE_CHECKING:
    from ramerge import Options


@command(short_help="Open a page in the browser.")
@options(BASE, AGENT)
@option(
    "models",
    "--root",
    "roots",
    type=PATH,
    multiple=True,
    metavar="FOLDER",
    help="A folder that the page may read, with all that is below it; outputs are written into the first one; "
    "repeatable; default: the working folder.",
)
@option("run", "--port", type=click.IntRange(0, 65535), default=0, help="The port; default: any that is free.")
@options(DEBUG, run_options("threads", "max_memory", "device"))
def ui(base: str | None, agents: tuple[str, ...], roots: tuple[Path, ...], port: int, options: Options) -> None:
    """Open a page in the browser: look at agents, choose a merge, run it, compare and share it.

    The page is for this user on this machine only: its address holds a random token. It reads nothing outside of the
    folders given with --root, and runs the commands that it shows.
    """
    from ramerge.sdk.options import missing

    if absent := missing({"ui": ["gradio", "altair", "vl_convert"]}, who="ramerge ui needs"):
        raise click.UsageError(absent[0])
    from ramerge.ui.desk import desk_of
    from ramerge.ui.serve import serve

    serve(desk_of(roots, base, agents, options), port)
