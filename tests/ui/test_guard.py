"""Requests that the page answers, and those that it refuses before Gradio sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from ramerge.ui.guard import MOST_BYTES, REPORT, PageGuard

pytestmark = pytest.mark.full  # Gradio

HOST = "127.0.0.1:7860"
TOKEN = "secret-token"
COOKIE = {"cookie": f"ramerge={TOKEN}"}


async def page(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"text/html"), (b"access-control-allow-origin", b"*")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"page"})


def ask(
    path: str = "/", *, method: str = "GET", parts: Iterable[bytes] = (b"",), **headers: str
) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer; `query` is that of the address."""
    query = headers.pop("query", "")
    sent: list[dict[str, Any]] = []
    pairs = [(name.encode(), value.encode()) for name, value in {"host": HOST, **headers}.items()]
    scope = {"type": "http", "path": path, "method": method, "query_string": query.encode(), "headers": pairs}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        body = next(coming, None)
        return {"type": "http.request", "body": body or b"", "more_body": body is not None}

    coming = iter(parts)
    guard = PageGuard(page, token=TOKEN, hosts=[HOST])
    asyncio.run(guard(scope, receive, send))  # type: ignore[arg-type]
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_first_address_gives_a_private_cookie() -> None:
    status, headers = ask(query=f"token={TOKEN}")
    assert (status, headers["location"]) == (303, "./")
    assert headers["set-cookie"] == f"ramerge={TOKEN}; HttpOnly; Path=/; SameSite=strict"
    assert ask(**COOKIE)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"query": "token=other"},
        {"query": "token="},
        {"query": f"token={TOKEN}&token={TOKEN}"},
        {"query": "token=\udcff".encode("utf-8", "replace").decode()},
        {"cookie": "ramerge=other"},
        {"cookie": "other=" + TOKEN},
        {"cookie": "ramerge"},
        {"cookie": ";;=\x01;ramerge==;"},
    ],
)
def test_without_the_token_nothing_is_answered(headers: dict[str, str]) -> None:
    for path in ("/", "/config", "/gradio_api/queue/join", "/report", "/assets/index.js"):
        assert ask(path, **headers)[0] == 403


def test_the_token_counts_in_the_first_address_only() -> None:
    assert ask("/config", query=f"token={TOKEN}")[0] == 403
    assert ask("/", method="POST", query=f"token={TOKEN}")[0] == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"http://evil.example:{HOST}", "http://localhost:7861", ""]
)
def test_other_origins_are_refused(origin: str) -> None:
    assert ask("/gradio_api/queue/join", method="POST", origin=origin, **COOKIE)[0] == 403
    assert ask("/gradio_api/queue/join", method="POST", origin=f"http://{HOST}", **COOKIE)[0] == 200


def test_names_that_lead_here_by_chance_are_refused() -> None:
    assert ask(host="rebound.example:7860", **COOKIE)[0] == 403
    assert ask(host="", **COOKIE)[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/file=/etc/passwd",
        "/gradio_api/file/etc/passwd",
        "/gradio_api/proxy=http://example.org",
        "/gradio_api/upload",
        "/gradio_api/call/predict",
        "/gradio_api/run/predict",
        "/gradio_api/info",
        "/gradio_api/openapi.json",
        "/gradio_api/component_server",
        "/gradio_api/deep_link",
        "/gradio_api/stream/x",
        "/monitoring",
        "/monitoring/summary",
        "/login",
        "/docs",
        "/static/../config",
        "/assets/../../etc/passwd",
        "//config",
        "/report/x",
    ],
)
def test_unneeded_routes_are_absent(path: str) -> None:
    assert ask(path, **COOKIE)[0] == 404


@pytest.mark.parametrize("path", ["/", "/config", "/theme.css", "/assets/a/b.js", "/gradio_api/queue/data", REPORT])
def test_answers_say_what_a_browser_may_do(path: str) -> None:
    status, headers = ask(path, **COOKIE)
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy if path == REPORT else "connect-src 'self'" in policy
    assert ("sandbox" in policy) == (path == REPORT)
    assert "http" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


def test_web_sockets_are_refused() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(PageGuard(page, token=None)({"type": "websocket", "headers": []}, None, send))  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["websocket.close"]


JOIN = "/gradio_api/queue/join"


@pytest.mark.parametrize("length", [str(MOST_BYTES + 1), "9" * 5000, "-1", "1e3", ""])
def test_too_long_request_is_not_read(length: str) -> None:
    unread = iter(["nothing of it"])
    assert ask(JOIN, method="POST", parts=unread, **COOKIE, **{"content-length": length})[0] == 413
    assert next(unread)


def test_unsized_request_ends_at_the_limit() -> None:
    assert ask(JOIN, method="POST", parts=repeat(b"x" * 100_000), **COOKIE)[0] == 413
    assert ask(JOIN, method="POST", parts=[b"x" * 100_000] * (MOST_BYTES // 100_000), **COOKIE)[0] == 200


def test_the_page_gets_a_request_as_it_came() -> None:
    seen: list[dict[str, Any]] = []

    async def reader(_scope: Any, receive: Any, send: Any) -> None:
        while not seen or seen[-1].get("more_body"):
            seen.append(await receive())
        await page(_scope, receive, send)

    coming = [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.request", "body": b"b"}]
    left = iter(coming)

    async def receive() -> dict[str, Any]:
        return next(left)

    async def send(_message: dict[str, Any]) -> None: ...

    scope = {"type": "http", "path": "/", "method": "POST", "query_string": b"", "headers": []}
    asyncio.run(PageGuard(reader, token=None)(scope, receive, send))  # type: ignore[arg-type]
    assert seen == coming


@pytest.mark.parametrize("index", [-1, 100_000])
def test_missing_function_is_no_failure(index: int, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from ramerge.ui.desk import Desk
    from ramerge.ui.roots import Roots
    from ramerge.ui.serve import application

    client = TestClient(application(Desk(Roots((tmp_path.resolve(),))), token=None), raise_server_exceptions=False)
    answer = client.post(JOIN, json={"data": [], "fn_index": index, "session_hash": "x"})
    assert answer.status_code == 404
