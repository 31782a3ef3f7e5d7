"""The command `fisher`. It holds no logic, and imports when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ramerge.foundation.completion import folders
from ramerge.foundation.options import DEBUG, OUT, OVERWRITE, QUIET, as_json
from ramerge.foundation.terminal import say


@click.command("fisher", short_help="Estimate importances for the method fisher.")
@OUT
@click.option("--model", required=True, metavar="MODEL", shell_complete=folders, help="Folder or hub id of the agent.")
@click.option("--data", required=True, metavar="FILE", help="JSON lines with prompt and completion, messages, or text.")
@click.option("--examples", default=256, show_default=True, help="Lines that are used, from the first.")
@click.option(
    "--labels",
    type=click.Choice(["given", "sampled"]),
    default="given",
    show_default=True,
    help="Whose likelihood: of the data's completions, or of tokens drawn from the model.",
)
@click.option("--max-length", default=1024, show_default=True, help="Tokens of an example; longer prompts are cut.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, mps, or auto.")
@click.option("--dtype", help="Dtype that is computed in; default: float32.")
@click.option("--seed", default=0, show_default=True, help="Seed of sampled labels.")
@OVERWRITE
@QUIET
@as_json("the record")
@DEBUG
def fisher_command(out: Path, quiet: bool, as_json: bool, **options: Any) -> None:
    """Estimate an agent's diagonal Fisher information, the importances that the method fisher takes."""
    # threads that wait for work by spinning slow everything else down
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from ramerge.foundation.screen import shown, stage
    from ramerge.importance.estimate import fisher

    with shown(stage, quiet=quiet or as_json) as listen:
        record = fisher(out=out, on_progress=listen, **options)
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        say([f"note: {note}" for note in record.notes])
        say(f"{out}: importances of {options['model']} from {record.examples} examples in {record.seconds:.1f} s")


COMMANDS = (fisher_command,)
