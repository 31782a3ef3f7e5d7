"""The command line as a whole: the group of commands, and the messages for errors and signals."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from ramerge.cli.options import WORDS, Session
from ramerge.cli.terminal import complain, fail, say, warn
from ramerge.core.foundation.errors import (
    ContinueNote,
    DownloadNote,
    OutputWarning,
    PluginWarning,
    RamergeError,
    StoppedError,
    reason,
)
from ramerge.core.foundation.extras import evaluation_command
from ramerge.core.foundation.machine import check_limits
from ramerge.core.foundation.process import fill_streams, handle, ignore, interruption
from ramerge.core.foundation.signals import note_dropped
from ramerge.core.foundation.systems import after_fork_in_child
from ramerge.core.foundation.text import unknown
from ramerge.core.foundation.version import __version__
from ramerge.core.registry import Registry

_SIGNAL_CODES = 128

COMMANDS: Registry[click.Command] = Registry("ramerge.commands", click.Command, versioned=False)
"""All commands: those of the core, of features and of plug-ins. A command's module is imported when it is run."""
_EVALUATION = ("eval", "table")
"""Commands of ramerge-eval."""


class _CommandGroup(click.Group):
    """The group of all commands in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS.usable())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS and not cmd_name.startswith("-") and not ctx.resilient_parsing:
            if cmd_name in _EVALUATION:
                ctx.fail(f"ramerge {cmd_name} needs ramerge-eval, which is not installed: {evaluation_command()}")
            if cmd_name.endswith((".yaml", ".yml")):
                ctx.fail(f"{cmd_name} is no command; to merge a recipe: ramerge merge {cmd_name} OUT")
            ctx.fail(unknown("command", cmd_name, list(dict.fromkeys([*self.list_commands(ctx), *_EVALUATION]))))
        return COMMANDS.get(cmd_name)


@click.group(
    cls=_CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="ramerge")
@click.pass_context
def cli(context: click.Context) -> None:
    """Merge RL-trained agents of one base model into one checkpoint.

    \b
    ramerge demo
    ramerge plan --base BASE --agent code=PATH --agent tool=PATH
    ramerge merge --base BASE --agent code=PATH --agent tool=PATH OUT
    ramerge merge recipe.yaml OUT
    """
    check_limits()
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


def _stop_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    ignore()  # a second signal must not interrupt the clean-up
    raise StoppedError(number)


def main() -> NoReturn:
    """Run the command. Exit codes: 0 success, 2 wrong input, 1 failure of output or machine, 128 + n for signal n."""
    session = Session()
    atexit.register(_exit_at_once, session)  # the first that is registered is the last that runs
    fill_streams()
    handle(_stop_on_signal)
    note_dropped()
    after_fork_in_child(partial(handle, signal.SIG_DFL))  # a child has nothing to clean up
    if not sys.warnoptions:
        _choose_warnings(session)
    try:
        session.code = _run_command(session)
        ignore()
    except StoppedError as stop:
        if session.debug:
            say(traceback.format_exc().splitlines(), err=True)
        with suppress(OSError):
            say(interruption(stop.number, stop.kept), err=True)
        session.code = _SIGNAL_CODES + stop.number
    sys.exit(session.code)


def _exit_at_once(session: Session) -> NoReturn:
    """End the process at once. All output is written already, and the compiler's normal exit takes a quarter of a
    second.
    """
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(session.code)


def _choose_warnings(session: Session) -> None:
    """Show warnings that are for users, not those of libraries, which are for developers."""
    show = warnings.showwarning

    def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        with suppress(OSError):  # the other end of the pipe may be closed
            if issubclass(category, ContinueNote | DownloadNote):
                complain("note", str(message))
            elif issubclass(category, OutputWarning | PluginWarning):
                warn([str(message)])
            elif session.debug:
                show(message, category, *where, **more)

    warnings.simplefilter("always")
    warnings.showwarning = show_warning


def _run_command(session: Session) -> int:
    try:
        code = int(cli(standalone_mode=False, obj=session) or 0)
        sys.stdout.flush()
        return code
    except click.ClickException as error:
        with suppress(OSError):
            usage = io.StringIO()
            error.show(usage)
            say(usage.getvalue().partition("Error: ")[0].splitlines(), err=True)
            for text in _option_advice(error) or [error.format_message()]:
                complain("error", text)
        return 2
    except SystemExit as end:  # click's completion
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        return 1
    except Exception as error:
        if session.debug:
            say(traceback.format_exc().splitlines(), err=True)
        return fail(*_problems_and_exit_code(error))


def _option_advice(error: click.ClickException) -> list[str]:
    """Return advice on options that have another form, are missing, or that models need; empty for other errors."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    parameter_names = {each.name for each in context.command.params} if context else set()
    if "agents" in parameter_names and error.message.startswith("Got unexpected extra argument"):
        more = ", or --model NAME=MODEL" if "models" in parameter_names else ""
        return [f"{error.message}; models are named by options: --base MODEL --agent NAME=MODEL{more}"]
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        return [f"{error.param.opts[0]} {error.param.metavar} is missing. {error.param.help}"]
    if not isinstance(error, click.NoSuchOption):
        return []
    from ramerge.core.methods.registry import all_parameters
    from ramerge.core.recipe.read import hint

    option = error.option_name
    words = [word.partition("=")[0] for word in (context.meta.get(WORDS, ()) if context else ())]
    hints = [text for word in dict.fromkeys([option, *words]) if (text := hint(word)) is not None]
    if hint(option) is not None:
        return hints
    name = option.lstrip("-").replace("-", "_")
    if name in ("o", "out", "output") and parameter_names & {"out", "outs", "paths", "words"}:
        return [f"no such option: {option}; the output folder is the last word, without an option"]
    if name == "method" and context is not None and context.command.name == "recommend":
        return [
            "recommend names a method itself: leave --method out; to compare methods of your choice, run ramerge "
            "search with prompts of each agent's task and --vary method=ram,ties"
        ]
    if "settings" in parameter_names and name in all_parameters():
        return [f"no such option: {option}; use --set parameters.{name}=VALUE"]
    return []


def _problems_and_exit_code(error: Exception) -> tuple[Sequence[str], int]:
    if isinstance(error, RamergeError):
        return error.messages, error.exit_code
    if isinstance(error, FileNotFoundError):
        try:
            Path.cwd()
        except FileNotFoundError:
            return ("the working folder has been removed; change to a folder that exists (cd)",), 1
    if isinstance(error, OSError):
        return (f"{error.filename or 'standard output or a file'}: {reason(error)}",), 1
    if isinstance(error, MemoryError):
        return ("out of memory; lower --max-memory or --threads",), 1
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return ("no thread can be started; raise the limits on processes and address space (ulimit -u, ulimit -v)",), 1
    text = f"{type(error).__name__}: {error}"
    return (f"{text[:300]}; this is a defect of {_defect_author(error)}: please report it with what --debug prints",), 1


def _defect_author(error: Exception) -> str:
    """Return who caused a defect: the plug-in whose code raised the error, with the line, or else ramerge."""
    from ramerge.core.registry import plugin_of

    frames = list(traceback.walk_tb(error.__traceback__))
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    ours = max((place for place, module in enumerate(modules) if module.startswith("ramerge.")), default=-1)
    for (frame, line), module in zip(frames[ours + 1 :], modules[ours + 1 :], strict=True):
        if (plugin := plugin_of(module)) is not None:
            return f"{plugin} ({frame.f_code.co_filename}, line {line})"
    return "ramerge"


if __name__ == "__main__":
    main()
