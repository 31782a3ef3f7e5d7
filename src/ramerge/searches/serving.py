"""A model server, started and stopped: vLLM or SGLang on a GPU, `transformers serve` on a CPU; for tasks and `ui/ask`.

A `KeptServer` stays for one model after another. vLLM and SGLang load new weights in place.
"""

from __future__ import annotations

import math
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
from ramerge.sdk.machine import install
from ramerge.sdk.progress import raise_dropped
from ramerge.sdk.text import printable
from ramerge.searches.children import start, stop

_RELOADS: Mapping[str, Sequence[tuple[str, Callable[[str], object]]]] = {
    # of vLLM's development mode: the worker's own method, which reads the path it was started with, and what it cached
    "vllm": [("/collective_rpc", lambda _: {"method": "reload_weights"}), ("/reset_prefix_cache", lambda _: None)],
    # SGLang forgets what it cached by itself
    "sglang": [("/update_weights_from_disk", lambda model: {"model_path": model})],
}
"""What a server that runs is asked, so that it takes new weights; others are started again."""
_ENVIRONMENT = {"vllm": {"VLLM_SERVER_DEV_MODE": "1"}}
_SECONDS_TO_SAY = 5.0
_SHOWN_LINES = 15
_SHOWN_BYTES = 1 << 16


@dataclass(frozen=True)
class ModelServer:
    """The settings of a server that is started for each model, and stopped after it.

    Attributes:
        kind: `transformers`, `vllm` or `sglang`.
        arguments: further words of its command line.
        timeout: seconds within which it must be ready.

    Example:
        >>> ramerge.ModelServer("vllm", arguments=["--max-model-len", "8192"]).kind
        'vllm'
    """

    kind: str
    arguments: Sequence[str] = ()
    timeout: float = 900.0

    def check(self) -> list[str]:
        """Problems of the settings of a server, as sentences."""
        found = []
        if not 0 < self.timeout < math.inf:
            found.append(f"--serve-timeout {self.timeout:g}: must be a number of seconds above 0")
        if not _program(self.kind):
            command = install("eval-serve") if self.kind == "transformers" else f"pip install {self.kind}"
            found.append(f"--serve {self.kind}: there is no program {self.kind!r}: {command}")
        return found


@contextmanager
def serving(server: ModelServer, model: str, name: str, log: Path) -> Iterator[str]:
    """Context with the URL of a server for one model, which is stopped with all its processes."""
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
                if _answers("GET", f"{url}/health", _SECONDS_TO_SAY):
                    break
                if time.monotonic() > until:
                    raise EndpointError(_failed(f"was not ready within {server.timeout:g} seconds", command, log))
                time.sleep(0.25)
            else:
                raise EndpointError(_failed(f"ended with exit code {process.returncode}", command, log))
            yield f"{url}/v1"
        finally:
            stop(process)


def _program(kind: str) -> str | None:
    """The program next to this Python, else on the path."""
    installed = Path(sys.executable).with_name(kind)
    return str(installed) if installed.is_file() else shutil.which(kind)


def server_command(server: ModelServer, model: str, name: str, port: int) -> list[str]:
    """The words of the command that starts a server for one model.

    Raises:
        EvaluationError: it is not installed.
    """
    program = _program(server.kind)
    if program is None:
        raise EvaluationError(server.check())
    where = ["--host", "127.0.0.1", "--port", str(port)]
    called = [] if server.kind == "transformers" else ["--served-model-name", name]
    what = ["--model-path", model] if server.kind == "sglang" else [model]
    return [program, "serve", *what, *where, *called, *server.arguments]


class KeptServer:
    """A server that loads one model after another, for a search. It is started again where it has died.

    Weights are loaded in place where the server can, and the model differs from the last one in nothing but weights.

    Attributes:
        model: under which path it loads every model: a link to the model's folder.
        served_name: what requests call the model.
    """

    def __init__(self, server: ModelServer, link: Path, log: Path) -> None:
        self.model: str = str(link.absolute())
        self.served_name: str = self.model if server.kind == "transformers" else link.name
        self._server = server
        self._link = link
        self._log = log
        self._running = ExitStack()
        self._url = ""
        self._config = b""

    def load(self, model: Path) -> str:
        """Have the server load a model; the URL at which it is served."""
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(model.absolute(), target_is_directory=True)
        config = (model / "config.json").read_bytes()
        steps = _RELOADS.get(self._server.kind)
        root = self._url.removesuffix("/v1")
        if not (
            self._url
            and config == self._config
            and steps is not None
            and all(_answers("POST", root + path, self._server.timeout, body(self.model)) for path, body in steps)
        ):
            self.close()
            self._url = self._running.enter_context(serving(self._server, self.model, self.served_name, self._log))
        self._config = config
        return self._url

    def close(self) -> None:
        self._url = ""
        self._running.close()


def _answers(method: str, url: str, seconds: float, body: object = None) -> bool:
    """Whether a request is answered with success. Only the status is read."""
    import httpx

    with (
        suppress(httpx.HTTPError, ValueError),
        httpx.Client(timeout=seconds, trust_env=False) as client,
        client.stream(method, url, json=body) as answer,
    ):
        return answer.status_code == 200
    return False


def _failed(what: str, command: Sequence[str], log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _SHOWN_BYTES))
        lines = file.read(_SHOWN_BYTES).decode("utf-8", "replace").splitlines()[-_SHOWN_LINES:]
    said = "".join(f"\n    {printable(line[:300])}" for line in lines)
    return f"{shlex.join(command)}: {what}; all that it printed is in {log}:{said}"
