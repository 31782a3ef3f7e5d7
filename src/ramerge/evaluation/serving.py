"""A server that a run starts for a model and stops after it: vLLM on a GPU, `transformers serve` also on a CPU."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ramerge.evaluation.stopping import stoppable
from ramerge.foundation.children import dies_with_parent, stop
from ramerge.foundation.errors import EndpointError, EvaluationError
from ramerge.foundation.extras import install
from ramerge.foundation.text import printable

SERVERS = ("transformers", "vllm")
_SECONDS_TO_SAY = 5.0
_SHOWN_LINES = 15
_SHOWN_BYTES = 1 << 16


@dataclass(frozen=True)
class ModelServer:
    """A server that is started for each model, and stopped after it.

    Attributes:
        kind: `transformers` or `vllm`.
        arguments: further words of its command line.
        timeout: seconds within which it must be ready.
    """

    kind: str
    arguments: Sequence[str] = ()
    timeout: float = 900.0

    def check(self) -> list[str]:
        """A sentence where it is not installed."""
        if _program(self.kind):
            return []
        command = install("eval-serve") if self.kind == "transformers" else "pip install vllm"
        return [f"--serve {self.kind}: there is no program {self.kind!r}: {command}"]


@contextmanager
def serving(server: ModelServer, model: str, name: str, log: Path) -> Iterator[str]:
    """The URL of a server for one model, which is stopped with all its processes when the block ends.

    Args:
        model: a folder or a hub id.
        name: under which vLLM serves it; `transformers serve` goes by the model.
        log: takes what the server prints.

    Raises:
        EndpointError: it ended, or was not ready in time; with the last lines of what it printed.
        EvaluationError: it is not installed.
    """
    port = _free_port()
    command = _command(server, model, name, port)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for this process, which then stops the server; threads that wait by spinning slow a CPU down
            start_new_session=True,
            env={"OMP_WAIT_POLICY": "passive", **os.environ},
            preexec_fn=dies_with_parent(),
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, server, command, log)
            yield f"{url}/v1"
        finally:
            stop(process)


def _program(kind: str) -> str | None:
    """The program beside this Python, else on the path."""
    beside = Path(sys.executable).with_name(kind)
    return str(beside) if beside.is_file() else shutil.which(kind)


def _command(server: ModelServer, model: str, name: str, port: int) -> list[str]:
    program = _program(server.kind)
    if program is None:
        raise EvaluationError(server.check())
    where = ["--host", "127.0.0.1", "--port", str(port)]
    called = ["--served-model-name", name] if server.kind == "vllm" else []
    return [program, "serve", model, *where, *called, *server.arguments]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str, server: ModelServer, command: Sequence[str], log: Path) -> None:
    """Until it says that it is well."""
    until = time.monotonic() + server.timeout
    while process.poll() is None:
        if asyncio.run(_is_well(url)):
            return
        if time.monotonic() > until:
            raise EndpointError(_failed(f"was not ready within {server.timeout:g} seconds", command, log))
        time.sleep(0.25)
    raise EndpointError(_failed(f"ended with exit code {process.returncode}", command, log))


async def _is_well(url: str) -> bool:
    """Whether it says so within a few seconds; nothing but the status is read."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(_SECONDS_TO_SAY)
    with stoppable(), suppress(aiohttp.ClientError, TimeoutError, asyncio.TimeoutError, OSError, ValueError):
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/health", allow_redirects=False) as answer,
        ):
            return answer.status == 200
    return False


def _failed(what: str, command: Sequence[str], log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _SHOWN_BYTES))
        lines = file.read(_SHOWN_BYTES).decode("utf-8", "replace").splitlines()[-_SHOWN_LINES:]
    said = "".join(f"\n    {printable(line[:300])}" for line in lines)
    return f"{shlex.join(command)}: {what}; all that it printed is in {log}:{said}"
