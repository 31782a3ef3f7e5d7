"""The commands `delta` and `apply`. They hold no logic, and import when they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramerge.cli.options import OUT_ANYWHERE
from ramerge.cli.terminal import warn_of_launcher
from ramerge.sdk.commands import BASE, command, option, options, printing, run_options, say, warn

if TYPE_CHECKING:
    from ramerge import Options
    from ramerge.deltas.codec import Compression
    from ramerge.deltas.record import DeltaRecord


@command(short_help="Store an agent as its difference from the base.")
@OUT_ANYWHERE
@options(BASE)
@option(
    "models",
    "--agent",
    "agents",
    metavar="NAME=MODEL",
    multiple=True,
    help="The agent: any name, and its folder or Hub id. Exactly one is needed.",
)
@option(
    "output",
    "--compression",
    type=click.Choice(["none", "zstd"]),
    default="none",
    show_default=True,
    help="none; or zstd for slow disks and networks: files are half as large, and are read half as fast.",
)
@printing("what was written")
@run_options("threads", "max_memory", "allow_outside_links", "overwrite", "fresh", "upload", "ray")
def delta(
    base: str | None,
    agents: tuple[str, ...],
    out: str,
    compression: Compression,
    quiet: bool,
    as_json: bool,
    options: Options,
) -> None:
    """Write the difference between an agent and the base to OUT.

    OUT is a folder, a folder in a bucket (s3://bucket/folder, gs://, az://), or a repository on the Hub
    (hub:owner/name). `ramerge apply --base BASE OUT MODEL` restores the agent byte for byte. A merge also
    takes deltas as agents. The agent may have any format that ramerge reads.

    \b
    ramerge delta --base BASE --agent code=PATH OUT
    """
    from ramerge.cli.words import one_agent
    from ramerge.deltas.run import delta as run
    from ramerge.sdk.progress import shown

    _, agent = one_agent(agents)
    if base is None:
        raise click.UsageError("no base: give it with --base MODEL")
    warn_of_launcher()
    with shown(quiet=quiet or as_json) as listen:
        record = run(base, agent, out, compression=compression, options=options, on_progress=listen)
    warn(record.warnings)
    what = f"{out}: a delta of {record.delta_bytes:,} bytes for a model of {record.agent_bytes:,}"
    _print_record(record, what, quiet=quiet, as_json=as_json)


@command(short_help="Restore a model from deltas.")
@click.argument("deltas", metavar="DELTA...", nargs=-1)
@OUT_ANYWHERE
@options(BASE, printing("what was written"))
@run_options("threads", "max_memory", "allow_outside_links", "overwrite", "upload")
def apply(base: str | None, deltas: tuple[str, ...], out: str, quiet: bool, as_json: bool, options: Options) -> None:
    """Apply DELTAs to the base, and write the restored model with all its files to OUT.

    Give several deltas in order: each must continue from the one before it. All bytes are verified against checksums in
    the deltas.

    \b
    ramerge apply --base BASE DELTA OUT
    """
    from ramerge.core.storage.own_files import DELTA_INDEX
    from ramerge.sdk.storage import is_remote

    problems = [] if base is not None else ["no base: give the model that the first delta is for with --base MODEL"]
    if not deltas:
        problems.append(f"{out}: is OUT, the folder to write, and no DELTA comes before it: name each DELTA, then OUT")
    elif not is_remote(out) and (Path(out) / DELTA_INDEX).is_file():
        problems.append(f"{out}: is a delta, but the last word is OUT, the folder to write; name OUT after the deltas")
    if problems:
        raise click.UsageError("; ".join(problems))
    assert base is not None
    from ramerge.deltas.run import apply as run
    from ramerge.sdk.progress import shown

    with shown(quiet=quiet or as_json) as listen:
        record = run(base, deltas, out, options=options, on_progress=listen)
    what = f"{out}: a model of {record.agent_bytes:,} bytes, from deltas of {record.delta_bytes:,}"
    _print_record(record, what, quiet=quiet, as_json=as_json)


def _print_record(record: DeltaRecord, what: str, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        from ramerge.deltas.index import description

        say(
            [
                description(record.tensors, record.changed, record.whole, record.moved),
                f"{what}, in {record.seconds:.1f} s",
            ]
        )
