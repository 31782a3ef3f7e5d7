"""An OpenAI-compatible server that says the same at once, however it is asked.

`python -m benchmarks.stand_in FIRST THEN` says THEN where it has said something before. It prints its port, and serves
until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen


@contextmanager
def standing_in(first: str, then: str) -> Iterator[str]:
    """The URL of such a server, in a process of its own."""
    with Popen(
        [sys.executable, "-m", "benchmarks.stand_in", first, then], stdin=PIPE, stdout=PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


def _response(body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)


def _completion(text: str) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    about = {"object": "chat.completion", "id": "x", "created": 0, "model": "stand-in"}
    return _response({**about, "choices": [choice], "usage": usage})


async def _serve(first: str, then: str) -> None:
    models, completion, next_completion = (
        _response({"data": [{"id": "stand-in"}]}),
        _completion(first),
        _completion(then),
    )

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b""
                )
                body = await reader.readexactly(int(length.partition(b":")[2] or 0))
                answer = next_completion if b'"assistant"' in body else completion
                writer.write(models if head.startswith(b"GET") else answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=1 << 26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
