"""The command `demo`. It holds no logic, and imports when it runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ramerge.cli.options import as_json
from ramerge.sdk.commands import DEBUG, PATH, command, named, option, say
from ramerge.sdk.progress import silence


@command(short_help="Merge and score three tiny agents.")
@option(
    "output",
    "--out",
    type=PATH,
    help="Keep the merged checkpoints in this folder, as ram and ram+; existing ones are replaced.",
)
@option(
    "output",
    "--models",
    metavar="FOLDER",
    type=PATH,
    help="Only copy the tiny models to this folder, as base, coder (adds), tool (reverses) and memory (sorts).",
)
@option(
    "models",
    "--score",
    "scored",
    metavar="NAME=FOLDER",
    multiple=True,
    help="Only score this model; repeatable.",
)
@as_json("the rewards of --score, by model and task,")
@DEBUG
def demo(out: Path | None, models: Path | None, scored: tuple[str, ...], as_json: bool) -> None:
    """Merge three tiny RL-trained agents that come with the package, and score the result."""
    from ramerge.demo.run import copy_models, run, score_models

    if sum([out is not None, models is not None, bool(scored)]) > 1:
        raise click.UsageError(
            "--models only copies the models, and --score only scores; give one of them, and leave out --out"
        )
    if as_json and not scored:
        raise click.UsageError("--json prints what --score finds; give --score NAME=FOLDER")

    def tell(text: str) -> None:
        say(text.split("\n"))

    if models is not None:
        copy_models(models, tell)
    elif scored:
        folders = named("--score", scored, "NAME=FOLDER, such as --score merged=./merged")
        scores = score_models(folders, silence if as_json else tell)
        if as_json:
            click.echo(json.dumps(scores))
    else:
        run(out, tell)
