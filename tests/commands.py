"""`ramerge` as a process, without the time that importing takes: a fork of one that has imported it; or in this one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, cast

import click

from ramerge.cli.main import cli
from ramerge.cli.options import Session
from ramerge.core.foundation.errors import RamergeError

_MODELS = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "ramerge.searches.prompted",
)
"""What takes seconds to import: forks of a process that tests models find it imported."""

# It reads a command a line, runs it in a fork, and says the fork's exit code.
_FORKING = """
import importlib, json, os, sys
from importlib import metadata
import ramerge.analysis.analyze, ramerge.api, ramerge.cli.main, ramerge.core.engine.execute
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.modules.update(dict.fromkeys(asked["without"]))
    if asked["without"]:
        installed = [row for each in metadata.distributions() for row in each.entry_points]
        known = metadata.EntryPoints(row for row in installed if row.module.partition(".")[0] not in asked["without"])
        ramerge.core.registry._installed = lambda: known
    for number, path in enumerate([os.devnull, asked["out"], asked["err"]]):
        os.dup2(os.open(path, os.O_RDWR), number)
    sys.argv = ["ramerge", *asked["arguments"]]
    ramerge.cli.main.main()
"""


@cache
def _forking(*imported: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", _FORKING, *imported], **pipes, text=True)


def ramerge(
    *arguments: object, cwd: Path | None = None, without: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command in `cwd`, as if the modules `without` were not installed; what it said, and its exit code."""
    at_import = any(name.startswith("HF_") for name in os.environ)  # which the hub's library reads when it is imported
    with_models = "transformers.modeling_utils" in sys.modules and not without and not at_import
    process, words = _forking(*(_MODELS if with_models else ())), [str(argument) for argument in arguments]
    to, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        files = {"cwd": str(cwd or Path.cwd()), "out": out.name, "err": err.name, "without": without}
        asked = {"arguments": words, "environment": dict(os.environ), **files}
        print(json.dumps(asked), file=to, flush=True)
        code = int(answers.readline())
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


class ExitCodeError(Exception):
    """A command ended with a code that is not 0, and has said why."""


REFUSALS = (RamergeError, click.ClickException, click.exceptions.Exit, ExitCodeError)
"""What a command raises in this process where it is refused."""


def in_process(*arguments: object) -> tuple[str, str]:
    """Run a command in this process; what it prints, and what it says on standard error.

    Raises:
        RamergeError, click.ClickException: it is refused.
        ExitCodeError: likewise, after its output.
    """
    words = [str(argument) for argument in arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli(words, standalone_mode=False, obj=Session())
    if code:
        raise ExitCodeError(err.getvalue())
    return out.getvalue(), err.getvalue()
