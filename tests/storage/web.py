"""A web server for the files of a folder, which can also answer as bad servers and proxies do."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import xxhash

Fault = Callable[["Request"], bool]
"""Answers a request badly, or returns False."""


@dataclass
class WebServer:
    """A server on the loopback.

    Attributes:
        folder: what it serves.
        url: its address.
        fault: what it does instead of answering well.
        asked: method, path with query, and range of each request.
    """

    folder: Path
    url: str
    fault: Fault = lambda _request: False
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def of(self, path: str) -> list[str]:
        """The ranges that were asked for of a file."""
        return [ranges for method, asked, ranges in self.asked if method == "GET" and urlsplit(asked).path == path]


class Request(BaseHTTPRequestHandler):
    """A request, and how to answer it."""

    protocol_version = "HTTP/1.1"
    web: WebServer
    body = b""

    def log_message(self, *_arguments: object) -> None:
        """Quietly."""

    def do_HEAD(self) -> None:
        """Headers only."""
        self.do_GET()

    def do_GET(self) -> None:
        """A file, or a range of it."""
        self.web.asked.append((self.command, self.path, self.headers.get("Range", "")))
        if not self.web.fault(self):
            self.give()

    def do_POST(self) -> None:
        """Something is written."""
        self.body = self._read()  # also if the answer is an error: the next request follows it
        self.do_GET()

    def do_PUT(self) -> None:
        """Something is written."""
        self.do_POST()

    def _read(self) -> bytes:
        """What was sent."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    @property
    def file(self) -> Path:
        """What is asked for."""
        return self.web.folder / unquote(urlsplit(self.path).path).lstrip("/")

    @property
    def is_for_weights(self) -> bool:
        """Whether it asks for bytes of a safetensors file."""
        return self.command == "GET" and self.file.suffix == ".safetensors"

    @property
    def range(self) -> tuple[int, int] | None:
        """First byte, and the one after the last."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        size = self.file.stat().st_size
        return (int(found[1]), min(int(found[2] or size), size - 1) + 1) if found else None

    def give(self, *, ranges: bool = True, tag: str = "", short: int = 0, **headers: str) -> bool:
        """Answer well, except for what the arguments say, and with further headers."""
        if not self.file.is_file():
            return self.say(404)
        data = self.file.read_bytes()
        tag = tag or f'"{xxhash.xxh3_64_hexdigest(data)}"'
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != tag and not tag.startswith("no "):
            return self.say(412)
        part = self.range if ranges else None
        start, stop = part or (0, len(data))
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[start : stop - short])
            if short:
                self.hang_up()
        return True

    def say(self, status: int, body: bytes = b"", **headers: str) -> bool:
        """A status, and a text."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def hang_up(self) -> bool:
        """End the connection."""
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return True


@contextmanager
def serving(folder: Path, handler: type[Request] = Request) -> Iterator[WebServer]:
    """A server for the files of a folder, until the block ends."""
    kind = type("Handler", (handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    kind.web = WebServer(folder, f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield kind.web  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
