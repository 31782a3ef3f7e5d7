"""The command line: a function a command, no logic.

Imports of the engine stand inside the functions, because numba and pydantic take longer to import than `--version`
and `--help` may take.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ramerge.cli import completion as complete
from ramerge.evaluation.commands import eval_command, suites_command, table_command
from ramerge.foundation.completion import files, folders, named_folders
from ramerge.foundation.errors import OutputWarning, RamergeError, RecipeError, StoppedError, reason
from ramerge.foundation.limits import check_limits
from ramerge.foundation.process import fill_streams, handle, ignore, stopped
from ramerge.foundation.terminal import complain, say
from ramerge.foundation.text import brief
from ramerge.foundation.version import __version__

if TYPE_CHECKING:
    from ramerge.analysis.results import Analysis
    from ramerge.engine.record import Record
    from ramerge.planning.model import Plan

_INTERRUPTED = 128
_MOST_PROBLEMS = 25


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ramerge")
def cli() -> None:
    """Merge RL-trained agents of one base model into one checkpoint.

    \b
    ramerge demo
    ramerge plan --base BASE --agent code=PATH --agent tool=PATH
    ramerge merge --base BASE --agent code=PATH --agent tool=PATH OUT
    ramerge merge recipe.yaml OUT

    \b
    Completion, by a line in ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish:
    eval "$(_RAMERGE_COMPLETE=bash_source ramerge)"
    eval "$(_RAMERGE_COMPLETE=zsh_source ramerge)"
    _RAMERGE_COMPLETE=fish_source ramerge | source
    """
    check_limits()


_Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_AGENTS: tuple[_Decorator, ...] = (
    click.option("--base", metavar="MODEL", shell_complete=folders, help="Folder or hub id of the base model."),
    click.option(
        "--agent",
        "agents",
        metavar="NAME=MODEL",
        multiple=True,
        shell_complete=named_folders,
        help="An agent: a name of your choice, and its folder or hub id; repeat for each.",
    ),
    click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        shell_complete=complete.keys,
        help="Override any key of the recipe, such as parameters.r=0.05; repeatable.",
    ),
)
_MACHINE: tuple[_Decorator, ...] = (
    click.option(
        "--threads", type=click.IntRange(1, 1024), help="Worker threads; default: one for each processor, and two more."
    ),
    click.option("--max-memory", metavar="SIZE", help="What the process may take, such as 2GB."),
    click.option(
        "--no-cache",
        "cache",
        flag_value=False,
        default=True,
        help="Neither use nor leave counts of the same files in the user's cache folder.",
    ),
    click.option("--strict", is_flag=True, help="Make an error of every warning."),
    click.option("--quiet", is_flag=True, help="Show warnings and errors only."),
    click.option("--debug", is_flag=True, help="Show tracebacks."),
)
_METHOD: _Decorator = click.option(
    "--method",
    metavar="NAME",
    shell_complete=complete.methods,
    help="A method that `ramerge methods` lists; default: the recipe's, or ram+.",
)
_DTYPE: _Decorator = click.option(
    "--dtype",
    metavar="DTYPE",
    shell_complete=complete.dtypes,
    help="Output dtype, such as bfloat16; default: each base tensor's own.",
)
_RECIPE: tuple[_Decorator, ...] = (
    click.argument("paths", nargs=-1, metavar="[RECIPE] [OUT]", shell_complete=files),
    _METHOD,
    *_AGENTS,
    click.option(
        "--importance",
        "importances",
        metavar="NAME=MODEL",
        multiple=True,
        shell_complete=named_folders,
        help="An agent's importances, for the method fisher; repeat for each.",
    ),
    click.option(
        "--preset",
        metavar="NAME",
        shell_complete=complete.presets,
        help="A named set of parameters, such as paper, instead of the recipe's.",
    ),
    _DTYPE,
    click.option("--shard-size", metavar="SIZE", help="Size of output shards, such as 5GB; default: the base's."),
    *_MACHINE,
    click.option("--overwrite", is_flag=True, help="Replace the folder OUT and all that is in it, at the end."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output."),
)


_PAGES: tuple[_Decorator, ...] = (
    click.option("--html", type=click.Path(path_type=Path), help="Write a page with all figures to a file."),
    click.option("--figures", type=click.Path(path_type=Path), help="Write the figures to a folder, PNG and SVG."),
    click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all numbers to a JSON file."),
    click.option("--csv", type=click.Path(path_type=Path), help="Write all numbers to a folder, as tables."),
)


def _options(*decorators: _Decorator) -> _Decorator:
    """Several options at once, in the order in which `--help` shows them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


@cli.command(short_help="Merge agents into a checkpoint.")
@_options(*_RECIPE)
def merge(paths: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
    """Merge agents into a checkpoint at OUT, which appears complete or not at all."""
    from ramerge.api import merge as run
    from ramerge.cli.flags import read_inputs
    from ramerge.foundation.screen import shown, stage

    document, out = read_inputs(paths, options)
    if out is None:
        raise RecipeError("no output folder: ramerge merge RECIPE OUT, or ramerge merge --base ... --agent ... OUT")

    with shown(stage, quiet=quiet or as_json) as listen:
        record = run(document, out, on_progress=listen, **_machine(options))
    _warn(record.warnings)
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        say(_summary(record, out))


@cli.command(short_help="Merge with many parameters at once.")
@_options(*_RECIPE)
@click.option(
    "--vary",
    metavar="KEY=V,V,...",
    multiple=True,
    shell_complete=complete.parameters,
    required=True,
    help="Values of a parameter, such as parameters.r=0,0.1,0.2; repeat for all combinations.",
)
def sweep(paths: tuple[str, ...], quiet: bool, as_json: bool, vary: tuple[str, ...], **options: Any) -> None:
    """Merge with every combination of parameters into folders under OUT, reading the inputs once for all of them."""
    from ramerge.api import sweep as run
    from ramerge.cli.flags import read_inputs, read_varied
    from ramerge.foundation.jsontext import dumped
    from ramerge.foundation.screen import shown, stage

    document, out = read_inputs(paths, options)
    if out is None:
        raise RecipeError("no output folder: ramerge sweep RECIPE OUT --vary parameters.r=0,0.1,0.2")
    with shown(stage, quiet=quiet or as_json) as listen:
        records = run(document, out, vary=read_varied(vary), on_progress=listen, **_machine(options))
    _warn(warning for record in records for warning in record.warnings)
    if as_json:
        click.echo(dumped([record.as_dict() for record in records]), nl=False)
    elif not quiet:
        say(_points_text(records, out))


@cli.command(short_help="Show what a merge would do, and what would make it fail.")
@_options(*_RECIPE)
def plan(paths: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
    """Show what a merge would read, write and take, and all that would make it fail.

    Reads headers only. Hub ids that are not in the cache are downloaded first.
    """
    from ramerge.api import plan as make
    from ramerge.cli.flags import read_inputs
    from ramerge.foundation.jsontext import dumped

    document, out = read_inputs(paths, options)
    made = make(document, out, **_machine(options))
    problems = (*made.problems, *(made.forecast if options["strict"] else ()))
    _warn([*made.warnings, *(() if options["strict"] else made.forecast)])
    if as_json:
        click.echo(dumped(made.as_dict()), nl=False)
    elif not quiet:
        say(_plan_text(made))
    if problems:
        raise click.exceptions.Exit(_fail(problems, 2))


@cli.command(short_help="Show what RL changed in the agents.")
@_options(click.argument("paths", nargs=-1, metavar="[RECIPE]", shell_complete=files), _METHOD, *_AGENTS, _DTYPE)
@click.option("--epsilons", metavar="E,E,...", help="Thresholds of `moved` to compare; default: 1e-4,1e-5,1e-6,0.")
@_options(*_PAGES, *_MACHINE)
def analyze(paths: tuple[str, ...], epsilons: str | None, quiet: bool, **options: Any) -> None:
    """Show what RL changed: sparsity, overlap and angles of the agents, and what merges would leave of them."""
    from ramerge.analysis.analyze import EPSILONS
    from ramerge.analysis.text import summary
    from ramerge.api import analyze as run
    from ramerge.cli.flags import read_numbers, read_recipe
    from ramerge.foundation.screen import shown, stage

    document = read_recipe(paths, options)
    _check_pages(options)
    asked = read_numbers("--epsilons", epsilons) if epsilons else EPSILONS
    with shown(stage, quiet=quiet) as listen:
        limits = {key: options[key] for key in ("threads", "max_memory", "cache", "strict")}
        analysis = run(document, epsilons=asked, on_progress=listen, **limits)
    _warn(analysis.warnings)
    _write_pages(analysis, None, "\n".join(document.text) or None, options)
    if not quiet:
        say(summary(analysis))


@cli.command(short_help="Make an HTML page of a finished merge.")
@_options(click.argument("out", type=click.Path(path_type=Path)), *_PAGES, *_MACHINE)
def report(out: Path, quiet: bool, **options: Any) -> None:
    """Make the page of `analyze --html` for a finished merge at OUT, with its record; by default OUT/report.html."""
    from ramerge.analysis.finished import open_finished, with_differences
    from ramerge.analysis.text import summary
    from ramerge.api import analyze as run
    from ramerge.foundation.screen import shown, stage

    recipe, record = open_finished(out)
    chosen = options | {"html": options["html"] or out / "report.html"}
    _check_pages(chosen)
    with shown(stage, quiet=quiet) as listen:
        limits = {key: options[key] for key in ("threads", "max_memory", "cache", "strict")}
        analysis = run(recipe, on_progress=listen, **limits)
    analysis = with_differences(analysis, record)
    _warn(analysis.warnings)
    _write_pages(analysis, record.as_dict(), recipe.read_text(encoding="utf-8"), chosen)
    if not quiet:
        say([*summary(analysis), str(chosen["html"])])


def _check_pages(options: dict[str, Any]) -> None:
    """Refuse what could not be written, before the inputs are read."""
    from ramerge.foundation.files import check_file, check_folder

    for key, check in (
        ("html", check_file),
        ("json_file", check_file),
        ("csv", check_folder),
        ("figures", check_folder),
    ):
        if options[key] is not None:
            check(options[key])
    if options["html"] is not None and options["html"] == options["json_file"]:
        raise RecipeError(f"--html and --json: both name {options['html']}")
    if options["html"] is not None or options["figures"] is not None:
        from ramerge.analysis.report.write import require_extra

        require_extra()


def _write_pages(
    analysis: Analysis, record: dict[str, Any] | None, recipe: str | None, options: dict[str, Any]
) -> None:
    """Whatever was asked for."""
    from ramerge.analysis.tables import write_csv
    from ramerge.foundation.files import write_file

    if options["json_file"] is not None:
        write_file(options["json_file"], analysis.to_json())
    if options["csv"] is not None:
        write_csv(analysis, options["csv"])
    if options["html"] is not None or options["figures"] is not None:
        from ramerge.analysis.report.write import render, write_figures

        values = analysis.as_dict()
        if options["html"] is not None:
            write_file(options["html"], render(values, record, recipe))
        if options["figures"] is not None:
            write_figures(values, options["figures"])


@cli.command(short_help="Estimate importances for the method fisher.")
@click.argument("out", type=click.Path(path_type=Path))
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
@click.option("--overwrite", is_flag=True, help="Replace the folder OUT and all that is in it, at the end.")
@click.option("--quiet", is_flag=True, help="Show errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON on standard output.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def fisher(out: Path, quiet: bool, as_json: bool, debug: bool, **options: Any) -> None:
    """Estimate an agent's diagonal Fisher information, the importances that the method fisher takes."""
    # threads that wait for work by spinning slow everything else down
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from ramerge.foundation.screen import shown, stage
    from ramerge.importance.estimate import estimate

    with shown(stage, quiet=quiet or as_json) as listen:
        record = estimate(out=out, on_progress=listen, **options)
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        for note in record.notes:
            say(f"note: {note}")
        say(f"{out}: importances of {options['model']} from {record.examples} examples in {record.seconds:.1f} s")


@cli.command(short_help="List the merging methods, or describe some.")
@click.argument("names", nargs=-1, metavar="[METHOD]...", shell_complete=complete.methods)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def methods(names: tuple[str, ...], as_json: bool) -> None:
    """List the merging methods, or describe those named: formula, parameters, defaults, presets and source."""
    from ramerge.foundation.text import unknown
    from ramerge.methods.table import METHODS, describe

    if wrong := [name for name in names if name not in METHODS]:
        raise RecipeError([unknown("method", name, list(METHODS)) for name in wrong])
    described = {name: describe(METHODS[name]) for name in names or METHODS}
    if as_json:
        click.echo(json.dumps(described, indent=2))
    elif names:
        _describe_methods(described)
    else:
        click.echo(f"{'method':<16}reads  what it is")
        for name, method in described.items():
            click.echo(f"{name:<16}{method['reads']:>5}  {method['title']}")
        click.echo("\nreads: of all inputs, with default parameters")
        click.echo("`ramerge methods ram+` shows formula, parameters, presets and source of a method.")


def _describe_methods(described: Mapping[str, Mapping[str, Any]]) -> None:
    for name, method in described.items():
        click.echo(f"{name}: {method['title']}\n    {method['formula']}\n    {method['source']}")
        if method["differs"]:
            click.echo(f"    mergekit: {method['differs']}")
        for key, field in method["parameters"].items():
            default = field["default"] if isinstance(field["default"], str) else json.dumps(field["default"])
            where = "".join(f"with {name}: {value}: " for name, value in field["only"].items())
            click.echo(f"    {key} = {default}  ({field['range']})\n        {where}{field['description']}")
        for preset, values in method["presets"].items():
            click.echo(f"    preset {preset}: " + ", ".join(f"{key} = {value}" for key, value in values.items()))
        click.echo()


@cli.command(short_help="Merge and score three tiny agents.")
@click.option("--out", type=click.Path(path_type=Path), help="Keep the merged checkpoints in this folder.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def demo(out: Path | None, debug: bool) -> None:
    """Merge three tiny RL-trained agents that come with the package, and score the result."""
    from ramerge.demo.run import run

    run(out, lambda text: say(text.split("\n")))


cli.add_command(eval_command)
cli.add_command(suites_command)
cli.add_command(table_command)


def _machine(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in ("threads", "max_memory", "overwrite", "cache", "strict")}


def _summary(record: Record, out: Path) -> list[str]:
    """A merged checkpoint in a few lines."""
    from rich.filesize import decimal

    from ramerge.engine.card import columns_of, figure, meaning
    from ramerge.foundation.terminal import table

    columns = columns_of(record)
    lines: list[str] = []
    if columns:
        rows = [[agent.name, *[figure(agent, column) for column in columns]] for agent in record.statistics]
        lines += table(["agent", *[column.title for column in columns]], rows)
        lines.append(meaning(columns, record))
    if record.counts != "read":
        lines.append("counts: from an earlier read of the same files (--no-cache counts anew)")
    lines += [f"note: {note}" for note in record.notes]
    rate = int((record.bytes_read + record.bytes_written) / max(record.seconds, 1e-9))
    lines += [
        f"dtypes: {_dtypes(record.input_dtypes, record.dtype)}",
        f"{out}: {record.method}, {record.parameters_count:,} parameters, {decimal(record.bytes_written)}",
        f"{record.seconds:.1f} s, {decimal(rate)}/s in and out, {decimal(record.peak_memory_bytes)} of memory",
    ]
    return lines


def _dtypes(inputs: Mapping[str, str], output: str) -> str:
    """The dtypes of all inputs and of the output."""
    return ", ".join([*[f"{name} {dtype}" for name, dtype in inputs.items()], f"output {output}"])


def _points_text(records: Sequence[Record], out: Path) -> list[str]:
    """The points of a sweep: what varies, and what the method reports of every agent."""
    from ramerge.engine.card import figure
    from ramerge.foundation.terminal import table
    from ramerge.methods.table import METHODS

    columns = METHODS[records[0].method].columns
    varied = [key.removeprefix("parameters.") for key in records[0].point]
    shown = columns[-1:]  # the one that parameters change: lambda, or what is kept
    agents = [f"{column.title} {agent.name}" for agent in records[0].statistics for column in shown]
    rows = [
        [
            *[str(value) for value in record.point.values()],
            *[figure(agent, column) for agent in record.statistics for column in shown],
        ]
        for record in records
    ]
    lines = table([*varied, *agents], rows)
    return [*lines, f"{out}: {len(records)} checkpoints in {records[0].seconds:.1f} s"]


def _plan_text(made: Plan) -> list[str]:
    """A plan for people."""
    values = made.as_dict()
    default = "" if "method" in made.recipe.model_fields_set else ", the default"
    rows = [
        ("method", f"{values['method']}{default} ({', '.join(f'{k} = {v}' for k, v in values['parameters'].items())})"),
        ("base", values["base"] if made.recipe.base is not None else "none needed"),
        *[(f"agent {name}", folder) for name, folder in values["agents"].items()],
    ]
    if made.tensors:
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in values["dtypes"].items())
        shards = values["shards"]
        rows += [
            ("dtypes", _dtypes(values["input_dtypes"], made.dtype)),
            ("tensors", f"{values['tensors']:,} ({dtypes}), {values['parameters_count']:,} parameters"),
            ("shards", f"{len(shards)} ({shards[0]}{', ...' if len(shards) > 1 else ''})"),
            ("companions", brief(", ".join(values["companions"]), 500) or "none"),
            (
                "read",
                f"{values['bytes_read']:,} bytes in {_many(values['passes'], 'pass', 'es')}",
            ),
            ("write", f"{values['bytes_written']:,} bytes"),
            *([("counts", "from an earlier read of the same files")] if values["counts"] != "read" else []),
            ("runs on", values["runs_on"]),
            ("peak memory", f"{values['peak_memory_bytes']:,} bytes at most, {_many(values['workers'], 'thread')}"),
        ]
    if made.disk_free is not None:
        rows += [("output", str(made.out)), ("free disk", _bytes(made.disk_free))]
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}}  {text}" for label, text in rows]
    lines += [f"note: {note}" for note in made.notes]
    lines.append(f"problems: {len(made.problems)}" if made.problems else "ready to merge")
    return lines


def _many(count: int, what: str, ending: str = "s") -> str:
    return f"{count} {what}{'' if count == 1 else ending}"


def _bytes(size: int) -> str:
    from rich.filesize import decimal

    return f"{decimal(size)} ({size:,} bytes)" if size >= 1000 else f"{size} bytes"


def _warn(warnings: Iterable[str]) -> None:
    """Warnings are on standard error, and `--quiet` does not hide them."""
    for warning in dict.fromkeys(warnings):
        complain("warning", warning)


def _fail(problems: Sequence[str], code: int) -> int:
    """Say what is wrong; the exit code."""
    more = [f"and {len(problems) - _MOST_PROBLEMS:,} more"] if len(problems) > _MOST_PROBLEMS else []
    with suppress(OSError):  # nobody may be listening, and the exit code says it too
        for problem in (*problems[:_MOST_PROBLEMS], *more):
            complain("error", problem)
    return code


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    ignore()  # once is enough: cleaning up must not be interrupted by a second signal
    raise StoppedError(number)


def _show_warning(message: Warning | str, *_where: object, **_more: object) -> None:
    with suppress(OSError):  # nobody may be listening any more
        _warn([str(message)])


def main() -> NoReturn:
    """Run the command; exit codes: 0 done, 2 the input, 1 the output or the machine, 128 + n signal n."""
    fill_streams()
    handle(_stop)
    os.register_at_fork(after_in_child=partial(handle, signal.SIG_DFL))  # a child has nothing to clean up
    debug = "--debug" in sys.argv
    if not (debug or sys.warnoptions):
        warnings.simplefilter("ignore")  # those of libraries are for developers
        warnings.simplefilter("always", OutputWarning)
        warnings.showwarning = _show_warning
    try:
        code = _run(debug)
        ignore()
    except StoppedError as stop:
        if debug:
            say(traceback.format_exc().splitlines(), err=True)
        with suppress(OSError):
            say(stopped(stop.number, stop.kept), err=True)
        code = _INTERRUPTED + stop.number
    with suppress(OSError):
        sys.stderr.flush()
    # all is on the disk and said; taking the compiler down in good order takes a quarter of a second
    os._exit(code)


def _run(debug: bool) -> int:
    """Run the command, and say in words what it raises; the exit code."""
    try:
        code = int(cli(standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except click.ClickException as error:
        with suppress(OSError):
            usage = io.StringIO()
            error.show(usage)
            say(usage.getvalue().splitlines(), err=True)
        return 2
    except BrokenPipeError:
        return 1
    except Exception as error:
        if debug:
            say(traceback.format_exc().splitlines(), err=True)
        return _fail(*_in_words(error))


def _in_words(error: Exception) -> tuple[Sequence[str], int]:
    """What an error means for the user, and the exit code."""
    if isinstance(error, RamergeError):
        return error.problems, error.exit_code
    if isinstance(error, FileNotFoundError) and _working_folder_is_gone():
        return ("the working folder has been removed; change to one that is there (cd)",), 1
    if isinstance(error, OSError):
        return (f"{error.filename or 'a file'}: {reason(error)}",), 1
    if isinstance(error, MemoryError):
        return ("out of memory; lower --max-memory or --threads",), 1
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return ("no thread can be started; raise the limits on processes and address space (ulimit -u, ulimit -v)",), 1
    text = f"{type(error).__name__}: {error}"
    return (f"{text[:300]}; this is a defect of ramerge: please report it with what --debug prints",), 1


def _working_folder_is_gone() -> bool:
    with suppress(FileNotFoundError):
        Path.cwd()
        return False
    return True


if __name__ == "__main__":
    main()
