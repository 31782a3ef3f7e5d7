"""A merge to a remote output in a process of its own, which is killed or stopped at a moment of choice.

It is no fork, because the threads of obstore do not survive one. `python -m tests.storage.killed` reads from standard
input what to do, as JSON: `source`, `out`, `options`, and the moment: [what, number]. `said` are its notes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

from tests.e2e import kills

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}


def killed(source: dict[str, Any], out: str, what: str, number: int, **options: Any) -> bool:
    """Merge until the moment comes. False if the merge was done before it."""
    process = started(source, out, what, number, **options)
    _, said = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode != 0


def started(
    source: dict[str, Any], out: str, what: str, number: int, *, signal: str = "SIGKILL", **options: Any
) -> subprocess.Popen[str]:
    """The process that does so; with SIGSTOP it sleeps at that moment instead."""
    asked = {"source": source, "out": out, "what": what, "number": number, "signal": signal, "options": options}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", "tests.storage.killed"], text=True, **pipes)
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked))
    process.stdin.close()
    process.stdin = None
    return process


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _main() -> None:
    from ramerge.core.output import remote_output
    from ramerge.core.storage import upload

    asked = json.load(sys.stdin)
    what, calls = asked["what"], count()

    def dies_before(owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if next(calls) == asked["number"]:
                os.kill(os.getpid(), SIGNALS[asked["signal"]])
            return real(*arguments, **options)

        setattr(owner, name, counted)

    if what == "record":
        kills.die_at(asked["number"])
    elif what == "arrived":
        dies_before(upload.UploadRun, "add")
    elif what == "removed here":
        dies_before(remote_output.RemoteStagingDir, "remove")
    elif what == "put":
        import obstore

        dies_before(obstore, "put")
    elif what == "removed":
        import obstore

        dies_before(obstore, "delete")
    warnings.simplefilter("ignore")
    kills.merge(asked["source"], asked["out"], **asked["options"])


if __name__ == "__main__":
    _main()
