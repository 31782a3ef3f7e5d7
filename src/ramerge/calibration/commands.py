"""The command `fisher`. It holds no logic, and imports when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramerge.foundation.options import AGENT, DEBUG, OUT, QUIET, as_json, command, option, options, run_options
from ramerge.foundation.terminal import say

if TYPE_CHECKING:
    from ramerge.options import Options


@command("fisher", short_help="Estimate importances for the method fisher.")
@OUT
@AGENT
@option(
    "models", "--data", required=True, metavar="FILE", help="JSON lines with prompt and completion, messages, or text."
)
@option("method", "--examples", default=256, show_default=True, help="Lines that are used, from the first.")
@option(
    "method",
    "--labels",
    type=click.Choice(["given", "sampled"]),
    default="given",
    show_default=True,
    help="Whose likelihood: of the data's completions, or of tokens drawn from the model.",
)
@option("method", "--max-length", default=1024, show_default=True, help="Tokens of an example; longer prompts are cut.")
@option("run", "--device", default="auto", show_default=True, help="cpu, cuda, mps, or auto.")
@option("method", "--dtype", default="float32", show_default=True, help="Dtype that is computed in.")
@option("method", "--seed", default=0, show_default=True, help="Seed of sampled labels.")
@options(as_json("the record"), QUIET, DEBUG, run_options("threads", "max_memory", "allow_outside_links", "overwrite"))
def fisher_command(
    out: Path, agents: tuple[str, ...], data: str, quiet: bool, as_json: bool, options: Options, **settings: Any
) -> None:
    """Estimate an agent's diagonal Fisher information, the importances that the method fisher takes.

    \b
    ramerge fisher --agent code=PATH --data prompts.jsonl OUT
    """
    # threads that wait for work by spinning slow everything else down
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from ramerge.calibration.estimate import fisher
    from ramerge.calibration.record import FisherSettings
    from ramerge.foundation.progress import shown
    from ramerge.foundation.words import one_agent

    _, model = one_agent(agents)

    with shown(quiet=quiet or as_json) as listen:
        record = fisher(model, data, out, settings=FisherSettings(**settings), options=options, on_progress=listen)
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        say([f"note: {note}" for note in record.notes])
        say(f"{out}: importances of {model} from {record.examples} examples in {record.seconds:.1f} s")
