"""The command `calibrate`. It holds no logic, and imports when it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ramerge.calibration.record import CalibrationSettings
from ramerge.cli.options import PROMPTS
from ramerge.sdk.commands import (
    MODELS,
    command,
    option,
    options,
    options_of,
    printing,
    run_options,
    say,
    table,
    warn,
)

if TYPE_CHECKING:
    from ramerge import Options
    from ramerge.calibration.record import CalibrationRecord


@command(short_help="Gather agents' replies to prompts, and statistics.")
@click.argument("paths", nargs=-1, metavar="[RECIPE] OUT")
@options(*MODELS, PROMPTS)
@options_of(CalibrationSettings, "calibration", without=["right_at"])
@option("run", "--dry-run", is_flag=True, help="Only estimate the cost, from headers; load nothing.")
@options(printing("the record of each agent"), run_options("threads", "max_memory", "allow_outside_links", "overwrite"))
def calibrate(
    paths: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    dry_run: bool,
    calibration: CalibrationSettings,
    options: Options,
    **flags: Any,
) -> None:
    """Gather agents' replies to prompts of their tasks, and the statistics that some methods need.

    By default, the statistics are layer inputs, for the methods regmean and aim. With --gather importance, they are the
    diagonal of the Fisher information, for fisher.

    OUT gets a folder for each agent. Prompts need no labels. Agents generate replies, unless the prompts come with
    replies, as in a trainer's rollouts.

    \b
    ramerge calibrate --base BASE --agent code=CODER --prompts code=code.jsonl OUT
    ramerge merge --method regmean --base BASE --agent code=CODER --inputs code=OUT/code MERGED
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from ramerge import RecipeError
    from ramerge.calibration.calibrate import UNUSED, estimate_calibration
    from ramerge.calibration.calibrate import calibrate as run
    from ramerge.core.recipe.checks import note_unused
    from ramerge.sdk.progress import shown
    from ramerge.sdk.recipes import read_inputs
    from ramerge.sdk.text import dumped

    document, out = read_inputs(paths, flags)
    warn(note_unused(document, UNUSED, "a calibration"))
    if dry_run:
        estimate = estimate_calibration(document, settings=calibration, options=options)
        if as_json:
            click.echo(dumped(vars(estimate)), nl=False)
        else:
            say(estimate.lines())
        return
    if out is None:
        raise RecipeError("no folder: ramerge calibrate --base BASE --agent NAME=MODEL --prompts NAME=FILE OUT")
    with shown(quiet=quiet or as_json) as listen:
        records = run(document, out, settings=calibration, options=options, on_progress=listen)
    warn([note for record in records.values() for note in record.notes])
    if as_json:
        click.echo(dumped({name: record.to_dict() for name, record in records.items()}), nl=False)
    elif not quiet:
        head = ["agent", "prompts", "replies", "with reward", "tokens", "rows", "layers", "importances", "seconds"]
        rows = [
            [
                name,
                f"{one.prompts:,}",
                "generated" if one.generated else "given",
                f"{one.rewarded:,}",
                f"{one.tokens:,}",
                f"{one.rows:,}",
                f"{one.layers:,}",
                f"{one.importances:,}",
                f"{one.seconds:.1f}",
            ]
            for name, one in records.items()
        ]
        say([*table(head, rows), *_next_commands(records, out)])


def _next_commands(records: Mapping[str, CalibrationRecord], out: str) -> Iterator[str]:
    """The commands of merges that use the calibration."""
    for method, flag, names in (
        ("regmean", "--inputs", [name for name, one in records.items() if one.layers]),
        ("fisher", "--importance", [name for name, one in records.items() if one.importances]),
    ):
        if names:
            words = " ".join(f"{flag} {name}={out}/{name}" for name in names)
            yield f"next: ramerge merge --method {method} ... {words} MERGED"
