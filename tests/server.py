"""Stand-ins for servers of models: one in a thread, that answers in any way, and a program that a run starts itself."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Body = dict[str, Any]


@dataclass
class Answer:
    """What is sent back. `cut` closes the connection in the middle of the body, `silent` before anything is sent,
    `drip` is the time between two bytes, and `endless` sends the body again and again.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    cut: bool = False
    silent: bool = False
    drip: float = 0.0
    seconds: float = 0.0
    endless: bool = False
    headers: dict[str, str] = field(default_factory=dict)


def completion(text: str | None, **choice: Any) -> Answer:
    """A proper chat completion."""
    message = {"role": "assistant", "content": text, **choice.pop("message", {})}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    whole = {"choices": [{"index": 0, "finish_reason": "stop", "message": message, **choice}], "usage": usage}
    about = {"id": "chat-1", "object": "chat.completion", "created": 0, "model": "stand-in"}
    return Answer(body=json.dumps({**about, **whole}).encode())


def refusal(status: int, message: str) -> Answer:
    """An error in the API's form."""
    return Answer(status, json.dumps({"error": {"message": message, "type": "x", "code": status}}).encode())


@dataclass
class Server:
    """A server that runs: its URL, and what it was asked."""

    answer: Callable[[Body], Answer]
    models: list[str] | Answer | None = field(default_factory=lambda: ["stand-in"])
    asked: list[Body] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    port: int = 0
    open: bool = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while self.open:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lengths = [
                    line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length:")
                ]
                body = await reader.readexactly(int(lengths[0])) if lengths else b""
                answer = await self._answer(head, body)
                await asyncio.sleep(answer.seconds)
                if answer.silent or not await _send(writer, answer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str, body: bytes) -> Answer:
        if not self.open:
            return Answer(silent=True)
        if head.startswith("GET"):
            if self.models is None:
                return refusal(404, "no such page")
            if isinstance(self.models, Answer):
                return self.models
            return Answer(body=json.dumps({"data": [{"id": name} for name in self.models]}).encode())
        self.headers.append(head)
        self.asked.append(json.loads(body))
        return self.answer(self.asked[-1])


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    length = {} if answer.endless else {"Content-Length": str(len(answer.body))}
    headers = {"Content-Type": answer.content_type, **length, **answer.headers}
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    sent = answer.body[: len(answer.body) // 2] if answer.cut else answer.body
    writer.write(f"HTTP/1.1 {answer.status} X\r\n{fields}\r\n".encode())
    for byte in sent if answer.drip else b"":
        await asyncio.sleep(answer.drip)
        writer.write(bytes([byte]))
    writer.write(b"" if answer.drip else sent)
    await writer.drain()
    while answer.endless:
        writer.write(sent)
        await writer.drain()
    return not answer.cut


def _always(answer: Answer) -> Callable[[Body], Answer]:
    return lambda _: answer


@contextmanager
def serving(answer: Callable[[Body], Answer] | str, **options: Any) -> Iterator[Server]:
    """A server in a thread of its own. A text is what it always answers."""
    server = Server(_always(completion(answer)) if isinstance(answer, str) else answer, **options)
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def run() -> None:
        listening = await asyncio.start_server(server.talk, "127.0.0.1", 0, limit=1 << 26)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        async with listening:
            await listening.serve_forever()

    def work() -> None:
        asyncio.set_event_loop(loop)
        task = loop.create_task(run())
        stop.append(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            rest = asyncio.all_tasks(loop)
            for each in rest:
                each.cancel()
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        finally:
            loop.close()

    stop: list[Callable[[], object]] = []
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(100)
    try:
        yield server
    finally:
        stop[0]()
        thread.join(10)


_PROGRAM = """#!{python}
import http.server, json, os, sys
words = sys.argv[1:]
path = words[2] if words[1] == "--model-path" else words[1]
port = int(words[words.index("--port") + 1])
globals().update({values!r})
{code}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def say(self, status, values):
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.say(200, {{}})
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.say(*answer(self.path, json.loads(body or "null")))
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def install_server(monkeypatch: pytest.MonkeyPatch, program: Path, code: str, **values: object) -> None:
    """Install a program in place of the servers that `--serve` starts.

    Args:
        program: where it is written.
        code: Python that defines `answer(route, body)`, which gives the status and the values of an answer. It may use
            `words` of the command line, `path` of the model, and `json`, `os` and `sys`.
        values: further names for the code, with plain values.
    """
    program.write_text(_PROGRAM.format(python=sys.executable, values=values, code=code))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("ramerge.scoring.serving._program", lambda kind: str(program))
