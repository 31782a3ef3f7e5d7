"""`ramerge` as a process, without the time that importing takes: a fork of one that has imported it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, cast

# It reads a command a line, runs it in a fork, and says the fork's exit code.
_FORKING = """
import json, os, sys
import ramerge.analysis.analyze, ramerge.api, ramerge.cli.main, ramerge.core.engine.execute
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
    for number, path in enumerate([os.devnull, asked["out"], asked["err"]]):
        os.dup2(os.open(path, os.O_RDWR), number)
    sys.argv = ["ramerge", *asked["arguments"]]
    ramerge.cli.main.main()
"""


@cache
def _forking() -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", _FORKING], **pipes, text=True)


def ramerge(
    *arguments: object, cwd: Path | None = None, without: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command in `cwd`, where the modules `without` cannot be imported; what it said, and its exit code."""
    process, words = _forking(), [str(argument) for argument in arguments]
    to, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        files = {"cwd": str(cwd or Path.cwd()), "out": out.name, "err": err.name, "without": without}
        asked = {"arguments": words, "environment": dict(os.environ), **files}
        print(json.dumps(asked), file=to, flush=True)
        code = int(answers.readline())
        return subprocess.CompletedProcess(words, code, out.read(), err.read())
