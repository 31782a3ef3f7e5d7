"""Lines, files and pages of the commands `analyze`, `recommend` and `report`, and checks of their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import click

from ramerge import Options, RecipeError
from ramerge.analysis.recommend import Recommendation, recommend, summary
from ramerge.analysis.report.write import figure_files, render
from ramerge.analysis.results import Analysis
from ramerge.analysis.tables import csv_files
from ramerge.report.extra import require_extra
from ramerge.sdk.commands import say
from ramerge.sdk.files import STANDARD_OUTPUT, check_beside, check_file, write_texts
from ramerge.sdk.flags import is_model, words_of
from ramerge.sdk.methods import SIDE_INPUTS
from ramerge.sdk.plans import tensors_of_base
from ramerge.sdk.progress import Listener
from ramerge.sdk.recipes import Document, dialect_of, names_in, open_recipe, parts_of

_TABLES_AND_FIGURES = (".csv", ".png", ".svg")
# Keys of a recipe that may fit no other method.
_OF_A_METHOD = ("method", "parameters", "preset", "rules", *(side.key for side in SIDE_INPUTS))


def recommended(
    found: Recommendation,
    paths: Sequence[str],
    flags: Mapping[str, object],
    document: Document,
    options: Options,
    *,
    evidence: bool,
) -> list[str]:
    """The lines of a recommendation; its commands name the inputs with the words of this command line."""
    own = open_recipe(document, tensors_of_base)
    inputs, left_out = named_inputs(paths, flags, own, translated=dialect_of(document.values) is not None)
    links = ["--allow-outside-links"] if options.allow_outside_links else []
    return summary(found, [*inputs, *links], own.values["agents"], left_out, evidence=evidence)


def advice(
    analysis: Analysis, paths: Sequence[str], flags: Mapping[str, object], document: Document, options: Options
) -> list[str]:
    """The advice of `recommend` on the agents of an analysis, for its page; none for a single one."""
    if len(analysis.model.agents) < 2:
        return []
    return recommended(recommend(analysis), paths, flags, document, options, evidence=True)


def check_outputs(flags: Mapping[str, object], recipe: Document) -> None:
    """Refuse paths of `--html`, `--csv` and others that could not be written, or would be written over the inputs.

    Raises:
        RecipeError: an output would replace the recipe, or lie in a model; two name the same, or one needs a folder
            where another makes a file; or as for `check_file`.
        OutputError: likewise.
    """
    for flag, key in (("--html", "html"), ("--json-file", "json_file")):
        if flags["as_json"] and flags[key] == STANDARD_OUTPUT:
            raise RecipeError(f"--json and {flag} - both print; give {flag} a file")
    texts = _given(flags, {"--html": "html", "--json-file": "json_file"})
    folders = _given(flags, {"--csv": "csv", "--figures": "figures"})
    for path in texts.values():
        if path != STANDARD_OUTPUT:
            check_file(path)
    for path in folders.values():
        check_folder(path)
    for (one, first), (other, second) in combinations({**texts, **folders}.items(), 2):
        if first.resolve() == second.resolve() and not (one in folders and other in folders):
            raise RecipeError(f"{one} and {other}: both name {first}")
        for flag, inner, outer in ((one, first, second), (other, second, first)):
            if outer in texts.values() and outer.resolve() in inner.resolve().parents:
                raise RecipeError(f"{flag} {inner}: needs the folder {outer}, which another option makes a file")
    for flag, path in texts.items():
        parents = {folder.resolve() for folder in folders.values()}
        if path.suffix in _TABLES_AND_FIGURES and path.resolve().parent in parents:
            raise RecipeError(f"{flag} {path}: may be a file that --csv or --figures writes; choose another place")
    own = open_recipe(recipe, tensors_of_base)
    parts = [part for model in names_in(own.values) for part in parts_of(model, own.folder)]
    models = [part.path.resolve() for part in parts if part.path and part.path.is_dir()]
    for path in (*texts.values(), *folders.values()):
        if path != STANDARD_OUTPUT and any(path.resolve().is_relative_to(model) for model in models):
            raise RecipeError(f"{path}: is inside a model that is read; choose another place")
        if recipe.source is not None and path.resolve() == Path(recipe.source).resolve():
            raise RecipeError(f"{path}: is the recipe that is read; choose another place")
    if flags["html"] is not None or flags["figures"] is not None:
        require_extra()


def check_folder(path: Path) -> None:
    """Refuse a folder in which no file can be written, as `check_file` does for a file."""
    if path == STANDARD_OUTPUT:
        raise RecipeError("-: standard output takes one text, not a folder of files; name a folder")
    check_beside(path / "file", path)


def _given(flags: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Path]:
    return {flag: flags[key] for flag, key in keys.items() if flags[key] is not None}


def prints(flags: Mapping[str, object]) -> bool:
    """Whether a page or numbers are printed in place of lines for people."""
    return bool(flags["as_json"]) or flags["html"] == STANDARD_OUTPUT


@contextmanager
def said(lines: Sequence[str]) -> Iterator[None]:
    """Print the lines of a command, then write its files inside, also where no process reads the lines."""
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
    """Write the files that `--html`, `--csv` and others ask for, all or none; then print the numbers for `--json`."""
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


def read_numbers(flag: str, text: str) -> list[float]:
    """The numbers of `--epsilons`, with commas between them.

    Raises:
        RecipeError: something else.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise RecipeError(
            f"{flag} {text}: must be numbers with commas between them, such as 1e-4,1e-5; a threshold in units of each "
            "agent's root mean square is the recipe's own: `--set parameters.epsilon.relative=1`"
        ) from error


def named_inputs(
    paths: Sequence[str], options: Mapping[str, Any], recipe: Document, *, translated: bool
) -> tuple[list[str], list[str]]:
    """The words of a command line that name the same agents for another method, and the keys that they leave out.

    They name the recipe itself where every key that stays goes with any method. A recipe in another form takes no
    other method, and rules, presets and side inputs are those of one method: then they name base and agents.

    Args:
        paths, options: of the command line, as for `recipe_of_words`.
        recipe: what was read, in ramerge's own form.
        translated: whether it was written in another form, such as mergekit's.
    """
    agents = recipe.values.get("agents")
    models = agents.values() if isinstance(agents, Mapping) else ()
    held = {key for model in models if isinstance(model, Mapping) for key, value in model.items() if value}
    present = {key for key, value in recipe.values.items() if value} | (held & {side.key for side in SIDE_INPUTS})
    own: list[str] = [key for key in _OF_A_METHOD if key in present]
    bound = [key for key in own if key not in ("method", "parameters")]
    if paths and (bound or translated or is_model(paths[0])):
        return words_of(recipe, method=False, prompts="prompts" in options), own
    words = [f"./{path}" if path.startswith("-") else path for path in paths]
    if paths and "parameters" in own:  # they may be those of the recipe's method only
        words += ["--set", "parameters={}"]
    for flag, values in (
        ("--base", [options["base"]] if options["base"] else []),
        ("--agent", options["agents"]),
        ("--set", [each for each in options["settings"] if each.partition("=")[0].partition(".")[0] not in own]),
        ("--prompts", options.get("prompts", ())),
        ("--dtype", [options["dtype"]] if options["dtype"] else []),
    ):
        words += [word for value in values for word in (flag, value)]
    return words, bound
