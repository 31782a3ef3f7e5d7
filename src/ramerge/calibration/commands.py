"""The commands `fisher` and `calibrate`. They hold no logic, and import when they run."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramerge.calibration.record import CalibrationSettings
from ramerge.foundation.options import (
    AGENT,
    DEBUG,
    KEYS,
    OUT,
    QUIET,
    Decorator,
    as_json,
    command,
    option,
    options,
    run_options,
    setting_option,
)
from ramerge.foundation.terminal import say, table, warn
from ramerge.options import settings_of

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


def calibration_options(*left_out: str) -> Decorator:
    """Options for the fields of `CalibrationSettings`; a command gets them as one argument, `calibration`."""
    chosen = [
        (name, default, about) for name, default, about in settings_of(CalibrationSettings) if name not in left_out
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def collected(*args: Any, **flags: Any) -> None:
            made = CalibrationSettings(**{name: flags.pop(name) for name, _, _ in chosen})
            function(*args, calibration=made, **flags)

        return options(*(setting_option(*each) for each in chosen))(collected)

    return decorate


@command(short_help="Gather replies and statistics of agents on prompts.")
@click.argument("paths", nargs=-1, metavar="[RECIPE] OUT")
@options(*KEYS)
@calibration_options()
@options(as_json("the records"), QUIET, DEBUG, run_options("threads", "max_memory", "allow_outside_links", "overwrite"))
def calibrate(
    paths: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    calibration: CalibrationSettings,
    options: Options,
    **flags: Any,
) -> None:
    """Gather what agents reply to prompts of their tasks, and the inputs of their layers, for the method regmean.

    The folder OUT gets a folder for each agent. Prompts need no labels: an agent is asked for its replies, unless they
    come with the prompts, as they do in rollouts of a trainer.

    \b
    ramerge calibrate --base BASE --agent code=CODER --prompts code=code.jsonl OUT
    ramerge merge --method regmean --base BASE --agent code=CODER --inputs code=OUT/code MERGED
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from ramerge.calibration.calibrate import calibrate as run
    from ramerge.flags.read import read_inputs
    from ramerge.foundation.errors import RecipeError
    from ramerge.foundation.jsontext import dumped
    from ramerge.foundation.progress import shown

    document, out = read_inputs(paths, flags)
    if out is None:
        raise RecipeError("no folder: ramerge calibrate --base BASE --agent NAME=MODEL --prompts NAME=FILE OUT")
    with shown(quiet=quiet or as_json) as listen:
        records = run(document, out, settings=calibration, options=options, on_progress=listen)
    warn([note for record in records.values() for note in record.notes])
    if as_json:
        click.echo(dumped({name: record.to_dict() for name, record in records.items()}), nl=False)
    elif not quiet:
        head = ["agent", "prompts", "replies", "with reward", "tokens", "rows", "layers", "seconds"]
        rows = [
            [
                name,
                f"{one.prompts:,}",
                "asked for" if one.generated else "given",
                f"{one.rewarded:,}",
                f"{one.tokens:,}",
                f"{one.rows:,}",
                f"{one.layers:,}",
                f"{one.seconds:.1f}",
            ]
            for name, one in records.items()
        ]
        inputs = " ".join(f"--inputs {name}={out}/{name}" for name in records)
        say([*table(head, rows), f"next: ramerge merge --method regmean ... {inputs} MERGED"])
