"""Text, files and pages of the commands `analyze`, `recommend` and `report`, and checks of their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ramerge import Options, RecipeError
from ramerge.analysis.recommend import recommend_by_weights
from ramerge.analysis.report.write import figure_files, render
from ramerge.analysis.results import Analysis
from ramerge.analysis.tables import csv_files
from ramerge.report.extra import require_extra
from ramerge.sdk.commands import say
from ramerge.sdk.files import STANDARD_OUTPUT, write_texts
from ramerge.sdk.outputs import claim_files
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import Document, open_recipe, reads_of


def advice(analysis: Analysis, document: Document, options: Options) -> list[str]:
    """Return the recommendation for an analysis, by the weights, as lines for its page; empty for a single agent."""
    return (
        recommend_by_weights(analysis, open_recipe(document, options)).lines if len(analysis.model.agents) > 1 else []
    )


def check_outputs(flags: Mapping[str, object], recipe: Document, options: Options) -> None:
    """Refuse output paths (`--html`, `--csv`, ...) that cannot be written or would overwrite the inputs.

    Raises:
        RecipeError: two outputs go to standard output, or as for `claim_files`.
        OutputError: as for `claim_files`.
    """
    for flag, key in (("--html", "html"), ("--json-file", "json_file")):
        if flags["as_json"] and flags[key] == STANDARD_OUTPUT:
            raise RecipeError(f"--json and {flag} - both print; give {flag} a file")
    claim_files(
        reads_of(open_recipe(recipe, options)),
        _paths_of(flags, {"--html": "html", "--json-file": "json_file"}),
        _paths_of(flags, {"--csv": "csv", "--figures": "figures"}),
        overwrite=options.overwrite,
    )
    if flags["html"] is not None or flags["figures"] is not None:
        require_extra()


def _paths_of(flags: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Path]:
    return {flag: flags[key] for flag, key in keys.items() if flags[key] is not None}


def prints(flags: Mapping[str, object]) -> bool:
    """Whether a page or JSON is printed in place of readable text."""
    return bool(flags["as_json"]) or flags["html"] == STANDARD_OUTPUT


@contextmanager
def say_afterwards(lines: Sequence[str]) -> Iterator[None]:
    """Print the lines of a command, then write its files in the body, even if no process reads the lines."""
    unread: OSError | None = None
    try:
        say(lines)
    except OSError as error:
        unread = error
    yield
    if unread is not None:
        raise unread


def write_outputs(
    analysis: Analysis,
    flags: Mapping[str, Any],
    listen: Listener,
    *,
    record: Mapping[str, Any] | None = None,
    recipe: str | None,
    advice: Sequence[str],
) -> None:
    """Write the output files (`--html`, `--csv`, ...), all or none; then print the JSON for `--json`."""
    texts: list[tuple[Path, str | bytes]] = []
    if flags["json_file"] is not None:
        texts.append((flags["json_file"], analysis.to_json()))
    if flags["csv"] is not None:
        texts += csv_files(analysis.tables(), flags["csv"])
    if flags["html"] is not None:
        texts.append((flags["html"], render(analysis.to_dict(), record, recipe, listen, advice)))
    if flags["figures"] is not None:
        texts += figure_files(analysis.to_dict(), flags["figures"], listen)
    write_texts(texts)
    if flags["as_json"]:
        click.echo(analysis.to_json(), nl=False)


def output_lines(flags: Mapping[str, Any]) -> list[str]:
    """Return a line that names the files and folders of the output options; none if nothing was written."""
    paths = [str(flags[name]) for name in ("json_file", "csv", "html", "figures") if flags[name] is not None]
    return [f"written: {', '.join(paths)}"] if paths else []


def read_numbers(flag: str, text: str) -> list[float]:
    """Parse the comma-separated numbers of `--epsilons`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise RecipeError(
            f"{flag} {text}: must be numbers with commas between them, such as 1e-4,1e-5; a threshold in units of each "
            "agent's root mean square is the recipe's own: `--set parameters.epsilon.relative=1`"
        ) from error
