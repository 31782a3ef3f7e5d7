"""The command line: a function a command, no logic.

Imports of the engine stand inside the functions, because numba and pydantic take longer to import than `--version`
and `--help` may take.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

import ramerge
from ramerge.errors import RamergeError, RecipeError

if TYPE_CHECKING:
    from ramerge.planning.model import Plan
    from ramerge.recipe import Document
    from ramerge.record import Record

_INTERRUPTED = 128


class _Stopped(BaseException):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        self.number = number


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(ramerge.__version__, prog_name="ramerge")
def cli() -> None:
    """Merge RL-trained agents of one base model into one checkpoint.

    \b
    ramerge merge recipe.yaml OUT
    ramerge merge --method ram+ --base BASE --agent code=PATH --agent tool=PATH OUT
    ramerge demo
    """


def _recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.argument("paths", nargs=-1, metavar="[RECIPE] [OUT]"),
            click.option("--method", metavar="NAME", help="ram, ram+ or ram+s."),
            click.option("--base", metavar="MODEL", help="Folder or hub id of the base model."),
            click.option("--agent", "agents", metavar="NAME=MODEL", multiple=True, help="An agent; repeat for each."),
            click.option("--preset", metavar="NAME", help="A named set of parameters: paper or official."),
            click.option(
                "--dtype", metavar="DTYPE", help="Output dtype, such as bfloat16; default: each tensor's own."
            ),
            click.option(
                "--shard-size", metavar="SIZE", help="Size of output shards, such as 5GB; default: the base's."
            ),
            click.option(
                "--set",
                "settings",
                metavar="KEY=VALUE",
                multiple=True,
                help="Override any key of the recipe, such as parameters.r=0.05; repeatable.",
            ),
            click.option(
                "--threads", type=click.IntRange(1, 1024), help="Worker threads; default: one a processor and two."
            ),
            click.option("--max-memory", metavar="SIZE", help="What the process may take, such as 2GB."),
            click.option("--overwrite", is_flag=True, help="Replace an existing checkpoint at OUT, at the end."),
            click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output."),
            click.option("--debug", is_flag=True, help="Show tracebacks."),
        )
    ):
        command = option(command)
    return command


@cli.command()
@_recipe_options
@click.option("--quiet", is_flag=True, help="Show no progress and no summary.")
def merge(paths: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
    """Merge agents into a checkpoint at OUT, which appears complete or not at all."""
    document, out = _inputs(paths, options)
    if out is None:
        raise RecipeError("no output folder: ramerge merge RECIPE OUT, or ramerge merge --base ... --agent ... OUT")
    from ramerge.api import merge as run
    from ramerge.progress import shown

    with shown(quiet=quiet or as_json) as listen:
        record = run(document, out, on_progress=listen, **_machine(options))
    if as_json:
        click.echo(record.to_json(), nl=False)
    elif not quiet:
        click.echo(_summary(record, out))


@cli.command()
@_recipe_options
def plan(paths: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show what a merge would read, write and take, and all that would make it fail. Reads headers only."""
    document, out = _inputs(paths, options)
    from ramerge.api import plan as make

    made = make(document, out, **_machine(options))
    click.echo(json.dumps(made.as_dict(), indent=2, ensure_ascii=False) if as_json else _plan_text(made))
    if made.problems:
        _fail(made.problems, 2)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def methods(as_json: bool) -> None:
    """List the merging methods with their parameters, defaults and source."""
    from ramerge.methods import METHODS, describe

    described = {name: describe(method) for name, method in METHODS.items()}
    if as_json:
        click.echo(json.dumps(described, indent=2))
        return
    for name, method in described.items():
        click.echo(f"{name}: {method['title']}\n    {method['formula']}\n    {method['source']}")
        for key, field in method["parameters"].items():
            click.echo(f"    {key} = {field['default']}  ({field['range']}) {field['description']}")
        for preset, values in method["presets"].items():
            click.echo(f"    preset {preset}: " + ", ".join(f"{key} = {value}" for key, value in values.items()))
        click.echo()


@cli.command()
@click.option("--out", type=click.Path(path_type=Path), help="Keep the merged checkpoints in this folder.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def demo(out: Path | None, debug: bool) -> None:
    """Merge three tiny RL-trained agents that come with the package, and score the result."""
    from ramerge.demo import run

    run(out, click.echo)


def _inputs(paths: tuple[str, ...], options: dict[str, Any]) -> tuple[Document, Path | None]:
    """The recipe's document from file and flags, and the output folder."""
    from ramerge.recipe import Document, parse_scalar, read_document

    written = any(options[name] for name in ("method", "base", "agents"))
    if len(paths) > 2 or (len(paths) == 2 and paths[0] == ""):
        raise RecipeError(f"at most a recipe and an output folder are expected, got {', '.join(paths)}")
    from_file = len(paths) == 2 or (
        len(paths) == 1 and not options["base"] and not options["agents"] and (not written or Path(paths[0]).is_file())
    )
    if not from_file and not written:
        raise RecipeError("give a recipe's path, or --method, --base and --agent")
    document = read_document(Path(paths[0])) if from_file else Document({"method": "ram+"})
    rest = paths[1:] if from_file else paths
    for key in ("method", "base", "preset", "dtype"):
        if options[key] is not None:
            document.set((key,), _from_here(options[key], key), f"--{key}")
    if options["shard_size"] is not None:
        document.set(("shard_size",), options["shard_size"], "--shard-size")
    seen = set()
    for text in options["agents"]:
        name, equals, model = text.partition("=")
        if not equals or not name or not model:
            raise RecipeError(f"--agent {text}: must be NAME=MODEL")
        if name in seen:
            raise RecipeError(f"--agent {text}: the agent {name!r} is given twice")
        seen.add(name)
        document.set(("agents", name), _from_here(model, "agents"), f"--agent {text}")
    for text in options["settings"]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise RecipeError(f"--set {text}: must be KEY=VALUE")
        document.set(tuple(name.split(".")), parse_scalar(value), f"--set {text}")
    return document, Path(rest[0]) if rest else None


def _from_here(value: str, key: str) -> str:
    """A path given as a flag is relative to the working directory, also where the recipe's file is elsewhere."""
    path = Path(value).expanduser()
    return str(path.absolute()) if key in ("base", "agents") and path.exists() else value


def _machine(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in ("threads", "max_memory", "overwrite")}


def _summary(record: Record, out: Path) -> str:
    """A merged checkpoint in a few lines."""
    from rich.filesize import decimal

    width = max(len(agent.name) for agent in record.statistics)
    lines = [f"{'agent':<{width}}  density  unique      rho  lambda"]
    for agent in record.statistics:
        scale = "varies" if agent.lambda_ is None else f"{agent.lambda_:.4f}"
        lines.append(
            f"{agent.name:<{width}}  {agent.density:>6.1%}  {agent.unique_share:>6.1%}  {agent.rho:>7.3f}  {scale}"
        )
    rate = (record.bytes_read + record.bytes_written) / max(record.seconds, 1e-9)
    lines.append(
        f"{out}: {record.method}, {record.parameters_count:,} parameters, {decimal(record.bytes_written)} written in "
        f"{record.seconds:.1f} s ({decimal(int(rate))}/s in and out, {decimal(record.peak_memory_bytes)} of memory)"
    )
    return "\n".join(lines)


def _plan_text(made: Plan) -> str:
    """A plan for people."""
    values = made.as_dict()
    rows = [
        ("method", f"{values['method']} ({', '.join(f'{k} = {v}' for k, v in values['parameters'].items())})"),
        ("base", values["base"]),
        *[(f"agent {name}", folder) for name, folder in values["agents"].items()],
    ]
    if made.tensors:
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in values["dtypes"].items())
        shards = values["shards"]
        rows += [
            ("tensors", f"{values['tensors']:,} ({dtypes}), {values['parameters_count']:,} parameters"),
            ("shards", f"{len(shards)} ({shards[0]}{', ...' if len(shards) > 1 else ''})"),
            ("companions", ", ".join(values["companions"]) or "none"),
            (
                "read",
                f"{values['bytes_read']:,} bytes in {values['passes']} pass{'es' if values['passes'] > 1 else ''}",
            ),
            ("write", f"{values['bytes_written']:,} bytes"),
            ("peak memory", f"{values['peak_memory_bytes']:,} bytes at most, {values['workers']} threads"),
        ]
    if made.disk_free is not None:
        rows.append(("free disk", f"{made.disk_free:,} bytes"))
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}}  {text}" for label, text in rows]
    lines += [f"note: {note}" for note in made.notes]
    lines.append(f"{len(made.problems)} problems" if made.problems else "ready to merge")
    return "\n".join(lines)


def _fail(problems: tuple[str, ...], code: int) -> NoReturn:
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    sys.exit(code)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    # once is enough: cleaning up must not be interrupted by a second signal
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    raise _Stopped(number)


def main() -> None:
    """Entry point: errors become messages and exit codes (2: the input, 1: the output, 128 + n: signal n)."""
    debug = "--debug" in sys.argv
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except RamergeError as error:
        if debug:
            raise
        _fail(error.problems, error.exit_code)
    except _Stopped as stop:
        if debug:
            raise
        name = signal.Signals(stop.number).name
        click.echo(f"error: stopped by {name}; nothing was kept", err=True)
        sys.exit(_INTERRUPTED + stop.number)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if debug:
            raise
        _fail((f"{error.filename or 'standard output'}: {error.strerror}",), 1)
    except MemoryError:
        _fail(("out of memory; lower --max-memory or --threads",), 1)


if __name__ == "__main__":
    main()
