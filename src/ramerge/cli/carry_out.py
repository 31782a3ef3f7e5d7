"""The end of commands that merge: plan, warn, merge, and print the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ramerge.cli.terminal import reminder, say, warn, warn_of_launcher

if TYPE_CHECKING:
    from ramerge.core.engine.outputs import OutputKind
    from ramerge.core.options import Options
    from ramerge.core.recipe.document import Document


def carry_out(
    document: Document,
    out: str,
    options: Options,
    kind: str | OutputKind = "checkpoint",
    *,
    quiet: bool,
    as_json: bool,
    explain: bool = False,
) -> None:
    """Plan and merge a recipe with progress on standard error, and print a summary, or the record as JSON.

    Args:
        document: the recipe.
        out: the output, as for `plan`.
        options: how to carry it out.
        kind: the kind of output, or its name.
        quiet: show only problems and warnings.
        as_json: print the record as JSON, and show no progress.
        explain: explain the columns of the summary.

    Raises:
        RamergeError: as for `plan` and `Plan.merge`.
    """
    from ramerge.api import plan
    from ramerge.cli.progress import shown
    from ramerge.cli.summary import summary

    warn_of_launcher()
    with shown(quiet=quiet or as_json) as listen:
        merge_plan = plan(document, out, kind=kind, options=options, on_progress=listen)
    warn(merge_plan.warnings)  # before the work, so that it can be stopped
    with shown(quiet=quiet or as_json) as listen:
        record = merge_plan.merge(on_progress=listen)
    warn(warning for warning in record.warnings if warning not in merge_plan.warnings)
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        say([*summary(record, getattr(merge_plan.out, "result", out), explain=explain), *reminder(record.warnings)])
