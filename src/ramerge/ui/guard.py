"""Who may ask for what: a token, this page's own origin, and only the addresses that the page needs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

REPORT = "/report"
# What the page of Gradio asks for: no uploads, no files, no proxy, no API by name.
_ALLOWED = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|report)|/(assets|static)/[^?#]*"
    r"|/gradio_api/(queue/(join|data)|heartbeat/[\w-]+|startup-events|reset|cancel|theme\.css)/?"
)
_PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "base-uri 'self'; form-action 'none'; frame-ancestors {frames}"
)
# A report may come with a checkpoint from a stranger: it gets an origin of its own, and asks for nothing.
_REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
    "script-src 'unsafe-inline' 'unsafe-eval' blob:"
)


class PageGuard:
    """Refuses requests before Gradio sees them, and tells browsers what the page may do.

    Args:
        app: what is guarded.
        token: what the first address must hold; a cookie holds it from then on. None: everybody may come.
        hosts: the only values of the header Host, so that no other name leads here; None for any.
        cookie: the cookie's name.
        frames: origins that may show the page inside of theirs.
    """

    def __init__(
        self,
        app: Application,
        *,
        token: str | None,
        hosts: Iterable[str] | None = None,
        cookie: str = "ramerge",
        frames: str = "'none'",
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = None if hosts is None else frozenset(hosts)
        self._cookie = cookie
        self._policy = _PAGE_POLICY.format(frames=frames)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (refused := self._refusal(scope)) is not None:
            await _answer(send, *refused)
        elif self._brings_token(scope):
            flags = "; HttpOnly; SameSite=Strict; Path=/"
            headers = [("location", "./"), ("set-cookie", f"{self._cookie}={self._token}{flags}")]
            await _answer(send, 303, "", headers)
        else:
            await self._app(scope, receive, self._with_headers(scope, send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """A status and why, for what is refused."""
        host, origin = _header(scope, b"host"), _header(scope, b"origin")
        if self._hosts is not None and host not in self._hosts:
            return 403, "This page is not known under this name.\n"
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "Requests from other pages are refused.\n"
        if self._token is not None and not self._brings_token(scope) and not self._has_cookie(scope):
            return 403, "Open the address that ramerge ui has printed: it holds the token of this page.\n"
        if not _ALLOWED.fullmatch(scope["path"]) or ".." in scope["path"]:
            return 404, "There is nothing here.\n"
        return None

    def _brings_token(self, scope: Scope) -> bool:
        if self._token is None or scope["path"] != "/" or scope["method"] != "GET":
            return False
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])
        return len(given) == 1 and _same(given[0], self._token)

    def _has_cookie(self, scope: Scope) -> bool:
        try:
            given = SimpleCookie(_header(scope, b"cookie") or "").get(self._cookie)
        except CookieError:
            return False
        return given is not None and self._token is not None and _same(given.value, self._token)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        policy = _REPORT_POLICY if scope["path"] == REPORT else self._policy
        more = [
            ("content-security-policy", policy),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
        ]

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if not pair[0].lower().startswith(b"access-control-")]
                message = {**message, "headers": [*kept, *_encoded(more)]}
            await send(message)

        return sent


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _header(scope: Scope, name: bytes) -> str | None:
    """A header's value; of one that is given twice, nothing that fits."""
    found = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
    return None if not found else found[0] if len(found) == 1 else "\0"


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


async def _answer(send: Send, status: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> None:
    fixed = [("content-type", "text/plain; charset=utf-8"), ("cache-control", "no-store")]
    await send({"type": "http.response.start", "status": status, "headers": _encoded([*fixed, *headers])})
    await send({"type": "http.response.body", "body": text.encode()})
