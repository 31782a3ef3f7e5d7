"""Servers that a run starts: waited for, and gone afterwards."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ramerge.core.foundation.errors import EndpointError, EvaluationError
from ramerge.scoring import children
from ramerge.scoring import serving as module
from ramerge.scoring.serving import ModelServer, serving

pytestmark = pytest.mark.full  # httpx

_FAKE = """#!{python}
import http.server, os, signal, subprocess, sys, time
mode = {mode!r}
print("loading", *sys.argv[1:], flush=True)
if mode == "rude":
    sys.exit("\\x1b[2J" + "x" * 100_000 + "\\n\\x1b[2Jready")
if mode == "broken":
    sys.exit("no such model: " + sys.argv[2])
if mode == "engine":
    sys.exit(
        "(EngineCore pid=7) ERROR [core.py:1510] RuntimeError: Worker failed with error 'Available memory is less than "
        "requested'\\n" + "    a frame\\n" * 20
        + "RuntimeError: Engine core initialization failed. See root cause above."
    )
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("worker", worker.pid, flush=True)
if mode == "slow":
    time.sleep(60)
if mode == "no http":
    import socket
    listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
    while True:
        talk = listening.accept()[0]
        talk.sendall(b"\\x1b[2J" * 9 + b"\\r\\n\\r\\n")
        talk.close()
if mode == "drip":
    import socket
    listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
    while True:
        talk = listening.accept()[0]
        try:
            for byte in b"HTTP/1.1 200 OK" * 9:
                time.sleep(0.1)
                talk.sendall(bytes([byte]))
        except OSError:
            pass
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: str) -> None:
    """A program that stands in for `vllm`."""
    program = folder / "vllm"
    program.write_text(_FAKE.format(python=sys.executable, mode=mode))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(module, "_program", lambda kind: str(program))


def ends(pid: int) -> bool:
    """Whether a process that was killed is gone, or soon is."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def worker(log: Path) -> int:
    return int(log.read_text().split("worker ")[1].split()[0])


@pytest.mark.parametrize("mode", ["good", "stubborn"])
def test_a_server_runs_while_the_block_does_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    install(monkeypatch, tmp_path, mode)
    monkeypatch.setattr(children, "_SECONDS_TO_STOP", 0.5)
    log = tmp_path / "log"
    server = ModelServer("vllm", ["--dtype", "bfloat16"], timeout=300)
    with serving(server, "MODEL", "merged", log) as running:
        assert running.model == "merged"
        with urllib.request.urlopen(f"{running.url}/models", timeout=60) as answer:
            assert answer.status == 200
    assert "loading serve MODEL --host 127.0.0.1" in log.read_text()
    assert "--served-model-name merged --dtype bfloat16" in log.read_text()
    assert ends(worker(log))


def test_a_server_that_ends_is_an_error_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "broken")
    server = ModelServer("vllm", timeout=300)
    said = r"exit code 1[\s\S]*no such model: MODEL"
    with pytest.raises(EndpointError, match=said), serving(server, "MODEL", "merged", tmp_path / "log"):
        pass


def test_an_error_of_an_engine_is_shown_instead_of_a_pointer_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "engine")
    said = "exit code 1: .*Worker failed with error 'Available memory is less than requested'; all that it printed"
    server = ModelServer("vllm", timeout=300)
    with pytest.raises(EndpointError, match=said), serving(server, "MODEL", "merged", tmp_path / "log"):
        pass


def test_what_a_server_printed_is_shown_without_what_a_terminal_would_obey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "rude")
    server = ModelServer("vllm", timeout=300)
    with pytest.raises(EndpointError) as caught, serving(server, "MODEL", "merged", tmp_path / "log"):
        pass
    assert "?[2Jready" in str(caught.value) and "\x1b" not in str(caught.value) and len(str(caught.value)) < 2000


@pytest.mark.parametrize("mode", ["slow", "no http", "drip"])
def test_a_server_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    install(monkeypatch, tmp_path, mode)
    monkeypatch.setattr(module, "_SECONDS_TO_SAY", 0.5)
    server = ModelServer("vllm", timeout=2)
    said = "not ready within 2 seconds"
    with pytest.raises(EndpointError, match=said), serving(server, "MODEL", "merged", tmp_path / "log"):
        pass
    if "worker" in (tmp_path / "log").read_text():  # a busy machine may not have come so far
        assert ends(worker(tmp_path / "log"))


def test_a_server_that_is_not_installed_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_program", lambda kind: None)
    assert "pip install vllm" in ModelServer("vllm").check()[0]
    with (
        pytest.raises(EvaluationError, match="pip install vllm"),
        serving(ModelServer("vllm"), "M", "m", tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_named(seconds: float) -> None:
    first, *_ = ModelServer("transformers", timeout=seconds).check()
    assert first.startswith(f"--serve-timeout {seconds:g}: must")


def test_a_server_dies_with_a_run_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "good")
    log = tmp_path / "log"
    program = f"""
import os
from pathlib import Path
from ramerge.scoring import serving
serving._program = lambda kind: {str(tmp_path / "vllm")!r}
with serving.serving(serving.ModelServer("vllm", timeout=300), "MODEL", "merged", Path({str(log)!r})):
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=600).returncode == -9
    port = log.read_text().split("--port ")[1].split()[0]
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
            time.sleep(0.05)
        except OSError:
            break
    else:
        pytest.fail("the server outlived the run")
    os.kill(worker(log), 9)  # what a killed server leaves behind itself is its own affair


@pytest.mark.parametrize("module_name", ["accelerate", "uvicorn"])
def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, module_name: str) -> None:
    monkeypatch.setattr(module, "_own_program", lambda kind: Path(sys.executable))
    monkeypatch.setattr(module, "_MODULES", (f"no_{module_name}",))
    [problem] = ModelServer("transformers").check()
    assert f"no-{module_name}" in problem and "[eval-serve]" in problem
