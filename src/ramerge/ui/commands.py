"""The command `ui`. It holds no logic, and imports when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramerge.sdk.commands import AGENT, BASE, DEBUG, PATH, command, option, options, run_options

if TYPE_CHECKING:
    from ramerge import Options


@command(short_help="Choose, run and compare merges in the browser.")
@options(BASE, AGENT)
@option(
    "models",
    "--root",
    "roots",
    type=PATH,
    multiple=True,
    metavar="FOLDER",
    help="A folder that the page may read, with its subfolders; outputs go to the first one; repeatable; default: the "
    "working folder.",
)
@option(
    "run", "--port", type=click.IntRange(0, 65535), metavar="N", default=0, help="The port; default: any free port."
)
@options(DEBUG, run_options("threads", "max_memory", "device"))
def ui(base: str | None, agents: tuple[str, ...], roots: tuple[Path, ...], port: int, options: Options) -> None:
    """Open a page in the browser to look at agents, and to choose, run, compare and share merges.

    Only you can open the page, on this machine: its address contains a random token. It reads only the folders given
    with --root, and shows the commands that it runs.
    """
    from ramerge.sdk.options import missing

    if absent := missing({"ui": ["gradio", "altair", "vl_convert"]}, who="ramerge ui needs"):
        raise click.UsageError(absent[0])
    from ramerge.ui.desk import desk_of
    from ramerge.ui.serve import serve

    serve(desk_of(roots, base, agents, options), port)
