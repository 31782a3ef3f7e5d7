"""The command `handoff`. It holds no logic, and imports when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramerge.cli.options import PROMPTS
from ramerge.distillation.settings import HandoffSettings
from ramerge.sdk.commands import (
    OUT,
    PATH,
    command,
    named,
    option,
    options,
    options_of,
    printing,
    run_options,
    say,
    warn,
)
from ramerge.sdk.text import quantity

if TYPE_CHECKING:
    from ramerge import Options


@command(short_help="Write trainer files to distill the agents into a merge.")
@click.argument("merged", metavar="MERGED", type=PATH)
@OUT
@options(PROMPTS)
@options_of(HandoffSettings, "settings")
@option(
    "models",
    "--teacher",
    "teachers",
    metavar="NAME=MODEL",
    multiple=True,
    help="Checkpoint to use for an agent that is an adapter, a delta or missing; repeatable.",
)
@option(
    "output",
    "--for",
    "trainer",
    default="trl",
    show_default=True,
    metavar="TRAINER",
    help="The trainer: trl, trl-async, verl, nemo-rl, slime, or a plug-in's.",
)
@options(printing("what was written"), run_options("overwrite"))
def handoff(
    merged: Path,
    out: Path,
    prompts: tuple[str, ...],
    teachers: tuple[str, ...],
    trainer: str,
    settings: HandoffSettings,
    quiet: bool,
    as_json: bool,
    options: Options,
) -> None:
    """Write the files that a trainer needs to distill the agents of a merge into the merge.

    MERGED is the folder of a merge, or of a search (its best merge is used). The merge is a warm start for the
    student, and each agent is the teacher for its own prompts (multi-teacher on-policy distillation). OUT gets a
    dataset that names the teacher of each prompt, and a configuration for the trainer. No weights are copied.

    \b
    ramerge handoff MERGED OUT --prompts code=code.jsonl --prompts tool=tool.jsonl
    ramerge handoff SEARCH OUT --for verl
    """
    from ramerge.distillation.handoff import handoff as run

    record = run(
        merged,
        out,
        trainer=trainer,
        prompts=named("--prompts", prompts, "NAME=PATH"),
        teachers=named("--teacher", teachers, "NAME=MODEL"),
        settings=settings,
        options=options,
    )
    warn(record.notes)
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        say(
            [
                f"{out}: {record.trainer}: {quantity(len(record.teachers), 'teacher')}",
                *record.lines(),
                *([f"before: {record.needs}"] if record.needs else []),
                f"next: {record.command}",
            ]
        )
