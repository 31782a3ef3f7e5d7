"""The commands `delta` and `apply`. They hold no logic, and import when they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ramerge.engine.options import EXECUTOR, FRESH, carrying, leads
from ramerge.foundation.completion import folders
from ramerge.foundation.options import DEBUG, OUT_ANYWHERE, OVERWRITE, QUIET, SENDING, as_json, options
from ramerge.foundation.terminal import say, warn

if TYPE_CHECKING:
    from ramerge.deltas.record import DeltaRecord

_THREADS = click.option("--threads", type=int, metavar="N", help="Worker threads; default: processors and one more.")

_LINKS = click.option(
    "--allow-outside-links", is_flag=True, help="Follow links of files that lead out of a model's folder."
)


@click.command(short_help="Store an agent as what it changed of its base.")
@click.argument("base", metavar="BASE", shell_complete=folders)
@click.argument("agent", metavar="AGENT", shell_complete=folders)
@OUT_ANYWHERE
@click.option(
    "--compression",
    type=click.Choice(["none", "zstd"]),
    default="none",
    show_default=True,
    help="none; or zstd for slow disks and networks: files are half as large, and are read half as fast.",
)
@_THREADS
@_LINKS
@OVERWRITE
@options(*SENDING, FRESH, *EXECUTOR)
@QUIET
@as_json("what was written")
@DEBUG
def delta(base: str, agent: str, out: str, quiet: bool, as_json: bool, **flags: Any) -> None:
    """Write to OUT what AGENT has changed of BASE.

    OUT is a folder, one in a bucket (s3://bucket/folder, gs://, az://), or a repository of the hub (hub:owner/name).
    `ramerge apply BASE OUT MODEL` gives AGENT back, equal to the byte, and merging takes OUT as an agent. AGENT is a
    model of any format that merging reads.
    """
    from ramerge.deltas.run import delta as run
    from ramerge.foundation.screen import shown, stage

    speaks = leads(flags)
    chosen = {key: value for key, value in flags.items() if key not in ("address", "ray_init")} | carrying(flags)
    with shown(stage, quiet=quiet or as_json or not speaks) as listen:
        record = run(base, agent, out, on_progress=listen, **chosen)
    if not speaks:
        return
    warn(record.warnings)
    _tell(record, f"{out}: a delta of", quiet=quiet, as_json=as_json)


@click.command(short_help="Turn deltas back into the model.")
@click.argument("base", metavar="BASE", shell_complete=folders)
@click.argument("deltas", metavar="DELTA...", nargs=-1, shell_complete=folders)
@OUT_ANYWHERE
@_THREADS
@_LINKS
@OVERWRITE
@QUIET
@as_json("what was written")
@DEBUG
def apply(base: str, deltas: tuple[str, ...], out: str, quiet: bool, as_json: bool, **flags: Any) -> None:
    """Write to OUT the model that DELTAs give on BASE, with all its files, equal to the byte.

    Of several deltas, each must have been made for what BASE and the deltas before it give. Everything is checked
    against the digests in the deltas.
    """
    if not deltas:
        raise click.UsageError("three names are needed: BASE, at least one DELTA, and OUT, the folder to write")
    from ramerge.deltas.run import apply as run
    from ramerge.foundation.screen import shown, stage

    with shown(stage, quiet=quiet or as_json) as listen:
        record = run(base, deltas, out, on_progress=listen, **flags)
    _tell(record, f"{out}: made from", quiet=quiet, as_json=as_json)


def _tell(record: DeltaRecord, what: str, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        from ramerge.checkpoint.delta.layout import stored_in_words

        say(
            [
                stored_in_words(record.tensors, record.changed, record.whole, record.moved),
                f"{what} {record.delta_bytes:,} bytes for a model of {record.agent_bytes:,}: {record.seconds:.1f} s",
            ]
        )


COMMANDS = (delta, apply)
