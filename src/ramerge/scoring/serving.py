"""Starts and stops model servers: vLLM or SGLang on a GPU, `transformers serve` on a CPU.

A `KeptServer` serves several models in turn, in a search. vLLM and SGLang load new weights in place.
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ramerge import EndpointError, EvaluationError
from ramerge.core.foundation.extras import install_command
from ramerge.core.foundation.signals import raise_dropped
from ramerge.core.foundation.text import printable
from ramerge.scoring.children import start, stop
from ramerge.sdk.options import missing

SERVERS = ("transformers", "vllm", "sglang")
"""Values of `--serve`."""
SERVED_NAME = "served"
"""The name of the link, in the folder of a search, to the model that a `KeptServer` loads."""

_RELOADS: Mapping[str, Sequence[tuple[str, Callable[[str], object]]]] = {
    # of vLLM's development mode: the worker's own method, which reads the path it was started with, and what it cached
    "vllm": [("/collective_rpc", lambda _: {"method": "reload_weights"}), ("/reset_prefix_cache", lambda _: None)],
    # SGLang forgets what it cached by itself
    "sglang": [("/update_weights_from_disk", lambda model: {"model_path": model})],
}
"""Requests that make a running server load new weights; other servers are restarted."""
_ENVIRONMENT = {"vllm": {"VLLM_SERVER_DEV_MODE": "1"}}
_SECONDS_TO_SAY = 5.0
_SHOWN_LINES = 15
_LONGEST_LINE = 300
_SHOWN_BYTES = 1 << 16
_MODULES = ("accelerate", "fastapi", "openai", "torch", "transformers", "uvicorn")
"""Modules that `transformers serve` imports; if one is missing, the program exists but does not start."""
_CAUSE = re.compile(r"\w(Error|Exception|Interrupt)(: |$)|\berror: |CUDA|\bkilled\b|out of memory", re.IGNORECASE)

_POINTER = re.compile(r"root cause above", re.IGNORECASE)
"""Marks a last error of vLLM that only says that its engine ended with an earlier error."""


@dataclass(frozen=True)
class ModelServer:
    """The settings of a server that is started and stopped for each model.

    Attributes:
        kind: `transformers`, `vllm` or `sglang`.
        arguments: further command-line arguments.
        timeout: seconds within which the server must be ready.

    Example:
        >>> ramerge.ModelServer("vllm", arguments=["--max-model-len", "8192"]).kind
        'vllm'
    """

    kind: str
    arguments: Sequence[str] = ()
    timeout: float = 900.0

    def check(self) -> list[str]:
        """Return problems of the settings, as sentences."""
        problems = []
        if not 0 < self.timeout < math.inf:
            problems.append(f"--serve-timeout {self.timeout:g}: must be a number of seconds above 0")
        program = _program(self.kind)
        if not program:
            command = install_command("eval-serve") if self.kind == "transformers" else f"pip install {self.kind}"
            problems.append(f"--serve {self.kind}: there is no program {self.kind!r}: {command}")
        elif self.kind == "transformers" and Path(program) == _own_program(self.kind):
            problems += missing({"eval-serve": _MODULES}, who="--serve transformers needs")
        return problems

    @property
    def is_sequential(self) -> bool:
        """Whether requests are answered one after another, so that concurrent requests would mix their seeds."""
        return self.kind == "transformers" and "--continuous-batching" not in self.arguments

    def served_name(self, model: str, name: str) -> str:
        """Return the name of a model in requests: `name`, but for `transformers serve` its path."""
        return model if self.kind == "transformers" else name


@dataclass(frozen=True)
class RunningServer:
    """A running server for one model.

    Attributes:
        settings: the settings that it was started with.
        url: the server's address, up to /v1.
        model: the name of the model in requests.
        log: the file that receives its output.
        process: the server's process.
    """

    settings: ModelServer
    url: str
    model: str
    log: Path
    process: subprocess.Popen[bytes]

    def cause(self) -> str:
        """The cause of a failed request: whether the server has ended, and the most informative line of its log."""
        code = self.process.poll()
        end = "" if code is None else f"the server ended with exit code {code}: "
        return f"{end}{_error_line(self.log) or 'the server printed nothing'}"


def server_words(text: str) -> list[str]:
    """Split the arguments of `--serve-args`.

    Raises:
        EvaluationError: a quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise EvaluationError(f"--serve-args {text}: {error}") from error


@contextmanager
def serving(server: ModelServer, model: str, name: str, log: Path) -> Iterator[RunningServer]:
    """A context with a server for one model; at its end, the server and all its processes are stopped.

    Raises:
        EndpointError: the server ended, or was not ready in time.
        EvaluationError: the server is not installed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = server_command(server, model, name, port)
    with log.open("wb") as output:
        environment = _ENVIRONMENT.get(server.kind)
        process = start(command, stdin=subprocess.DEVNULL, output=output, environment=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + server.timeout
            while process.poll() is None:
                raise_dropped()
                if _is_answering("GET", f"{url}/health", _SECONDS_TO_SAY):
                    break
                if time.monotonic() > until:
                    raise EndpointError(
                        _failure_text(
                            f"was not ready within {server.timeout:g} seconds (--serve-timeout)", command, log
                        )
                    )
                time.sleep(0.25)
            else:
                raise EndpointError(_failure_text(f"ended with exit code {process.returncode}", command, log))
            yield RunningServer(server, f"{url}/v1", server.served_name(model, name), log, process)
        finally:
            stop(process)


def _program(kind: str) -> str | None:
    """Return the program next to this Python, else on the search path."""
    return str(_own_program(kind)) if _own_program(kind).is_file() else shutil.which(kind)


def _own_program(kind: str) -> Path:
    """Return the path that the program would have next to this Python."""
    return Path(sys.executable).with_name(kind)


def server_command(server: ModelServer, model: str, name: str, port: int) -> list[str]:
    """Return the command that starts a server for one model.

    Raises:
        EvaluationError: the server is not installed.
    """
    program = _program(server.kind)
    if program is None:
        raise EvaluationError(server.check())
    where = ["--host", "127.0.0.1", "--port", str(port)]
    name_flags = [] if server.kind == "transformers" else ["--served-model-name", name]
    what = ["--model-path", model] if server.kind == "sglang" else [model]
    return [program, "serve", *what, *where, *name_flags, *server.arguments]


class KeptServer:
    """A server that loads one model after another, for a search. It is restarted if it has died.

    Weights are loaded in place if the server can, and only the weights differ from those of the last model.

    Attributes:
        model: the path from which it loads every model: a link to the model's folder.
        served_name: the model's name in requests.
    """

    def __init__(self, server: ModelServer, link: Path, log: Path) -> None:
        self.model: str = str(link.absolute())
        self.served_name: str = server.served_name(self.model, link.name)
        self._server = server
        self._link = link
        self._log = log
        self._stack = ExitStack()
        self._running: RunningServer | None = None
        self._config = b""

    def load(self, model: Path) -> RunningServer:
        """Make the server load a model; return the server, a new one if it had to be restarted."""
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(model.absolute(), target_is_directory=True)
        config = (model / "config.json").read_bytes()
        steps = _RELOADS.get(self._server.kind)
        running = self._running
        if (
            running is None
            or config != self._config
            or steps is None
            or not all(
                _is_answering("POST", running.url.removesuffix("/v1") + path, self._server.timeout, body(self.model))
                for path, body in steps
            )
        ):
            self.close()
            running = self._stack.enter_context(serving(self._server, self.model, self.served_name, self._log))
        self._running, self._config = running, config
        return running

    def close(self) -> None:
        self._running = None
        self._stack.close()


def _is_answering(method: str, url: str, seconds: float, body: object = None) -> bool:
    """Whether a request succeeds. Only the status is read."""
    import httpx

    with (
        suppress(httpx.HTTPError, ValueError),
        httpx.Client(timeout=seconds, trust_env=False) as client,
        client.stream(method, url, json=body) as answer,
    ):
        return answer.status_code == 200
    return False


def _failure_text(problem: str, command: Sequence[str], log: Path) -> str:
    cause = _error_line(log)
    shown_lines = "".join(f"\n    {line}" for line in _last_lines(log)[-_SHOWN_LINES:])
    return f"{shlex.join(command)}: {problem}{cause and f': {cause}'}; all that it printed is in {log}:{shown_lines}"


def _error_line(log: Path) -> str:
    """Return the last line of a server's log that names an error, otherwise its last line; empty without any."""
    lines = [line.strip() for line in _last_lines(log)]
    errors = (line for line in reversed(lines) if _CAUSE.search(line) and not _POINTER.search(line))
    return next(errors, next(filter(None, reversed(lines)), ""))


def _last_lines(log: Path) -> list[str]:
    """The last lines of a server's log, each cut and without terminal control."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _SHOWN_BYTES))
        lines = file.read(_SHOWN_BYTES).decode("utf-8", "replace").splitlines()
    return [printable(line[:_LONGEST_LINE]) for line in lines]
