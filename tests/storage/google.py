"""Google's storage, as far as its client asks for it, in front of the S3 server.

Both speak nearly the same protocol. What is added here: tokens are taken off, and an object is made only if there is
none when the client asks for that.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.storage.seaweed import Server

_BETWEEN_TWO = {"authorization", "connection", "content-length", "date", "host", "server", "transfer-encoding"}


@contextmanager
def serving(server: Server, folder: Path) -> Iterator[dict[str, str]]:
    """Serve it. Gives the variables of the environment with which clients find it.

    Args:
        server: holds the objects; anyone may use its bucket `seaweed.OPEN`.
        folder: gets the file that names the service.
    """

    class Request(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("x-goog-if-generation-match") == "0" and self._ask("HEAD", b"")[0] == 200:
                self._say(412, {}, b"")
            else:
                self._say(*self._ask(self.command, body))

        do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = _answer  # noqa: N815 - names of http.server

        def _ask(self, method: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            try:
                connection.request(method, self.path, body, _passed(dict(self.headers.items())))
                answer = connection.getresponse()
                headers, content = _passed(dict(answer.getheaders())), answer.read()
                size = answer.getheader("Content-Length") if method == "HEAD" else None
                return answer.status, {**headers, "Content-Length": size or str(len(content))}, content
            finally:
                connection.close()

        def _say(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as google:
        thread = threading.Thread(target=google.serve_forever, daemon=True)
        thread.start()
        account = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        account["gcs_base_url"] = f"http://127.0.0.1:{google.server_port}"
        (folder / "account.json").write_text(json.dumps(account))
        try:
            yield {"GOOGLE_SERVICE_ACCOUNT": str(folder / "account.json")}
        finally:
            google.shutdown()
            thread.join()


def _passed(headers: dict[str, str]) -> dict[str, str]:
    """The headers that are not only for one of two connections."""
    return {name: value for name, value in headers.items() if name.lower() not in _BETWEEN_TWO}
