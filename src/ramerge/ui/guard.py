"""Controls access to the page's server: by token, by the page's origin, and by a list of needed addresses."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REPORT = "/report"
MOST_BYTES = 4 << 20
"""The maximum size of a request. The longest that the page sends are recipes, of up to 200,000 bytes."""
# Requests of Gradio's page: no uploads, no files, no proxy, no API by name.
_SAFE_PATH = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|report)|/(assets|static)/[^?#]*"
    r"|/gradio_api/(queue/(join|data)|heartbeat/[\w-]+|startup-events|reset|cancel|theme\.css)/?"
)
_PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "base-uri 'self'; form-action 'none'; frame-ancestors {frames}"
)
# A report may come with a checkpoint from a stranger: it gets an origin of its own, and loads nothing.
_REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
    "script-src 'unsafe-inline' 'unsafe-eval' blob:"
)


class PageGuard:
    """A guard around Gradio: refuses requests before Gradio sees them, and sends the page's permissions to browsers.

    Args:
        token: required in the first address; then a cookie holds it. None: no token is required.
        hosts: allowed values of the header Host, so that no other name reaches the server; None for any.
        frames: origins that may embed the page.
    """

    def __init__(
        self,
        app: ASGIApp,
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
        """Refuse a request, or let Gradio answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (refusal := self._refusal_response(request := Request(scope))) is not None:
            await refusal(scope, receive, send)
        elif self._has_token(request):
            first = RedirectResponse("./", 303, {"cache-control": "no-store"})
            first.set_cookie(self._cookie, str(self._token), httponly=True, samesite="strict")
            await first(scope, receive, send)
        else:
            try:
                whole = await _buffer_request(receive)
            except _TooLongError:
                await _TOO_LONG(scope, receive, send)
                return
            await self._app(scope, whole, self._add_headers(request, send))

    def _refusal_response(self, request: Request) -> PlainTextResponse | None:
        """Return the answer to a request that must be refused; None for other requests."""
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        path = request.scope["path"]
        if self._hosts is not None and (len(hosts) != 1 or hosts[0] not in self._hosts):
            return _refusal_text(403, "This page is not known under this name.")
        if any([urlsplit(origin).netloc] != hosts for origin in origins):
            return _refusal_text(403, "Requests from other pages are refused.")
        has_cookie = self._token is None or _is_same_token(request.cookies.get(self._cookie, ""), self._token)
        if not has_cookie and not self._has_token(request):
            return _refusal_text(403, "Open the address that ramerge ui has printed: it holds the token of this page.")
        if not _SAFE_PATH.fullmatch(path) or ".." in path:
            return _refusal_text(404, "There is nothing here.")
        length = request.headers.get("content-length", "0")
        return _TOO_LONG if not length.isdecimal() or int(length[:20]) > MOST_BYTES else None

    def _has_token(self, request: Request) -> bool:
        if self._token is None or request.scope["path"] != "/" or request.method != "GET":
            return False
        tokens = request.query_params.getlist("token")
        return len(tokens) == 1 and _is_same_token(tokens[0], self._token)

    def _add_headers(self, request: Request, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in [name for name in headers if name.startswith("access-control-")]:
                    del headers[name]
                headers["content-security-policy"] = _REPORT_POLICY if request.scope["path"] == REPORT else self._policy
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "no-referrer"
            await send(message)

        return send_with_headers


class _TooLongError(Exception): ...


async def _buffer_request(receive: Receive) -> Receive:
    """Read a whole request, which may come in parts and without a length; return a function that replays it."""
    messages: list[Message] = []
    size = 0
    while not messages or messages[-1].get("more_body"):
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
        if size > MOST_BYTES:
            raise _TooLongError

    async def receive_body() -> Message:
        return messages.pop(0) if messages else await receive()

    return receive_body


def _is_same_token(token_of_request: str, token: str) -> bool:
    return secrets.compare_digest(token_of_request.encode("utf-8", "replace"), token.encode())


def _refusal_text(status: int, why: str) -> PlainTextResponse:
    return PlainTextResponse(f"{why}\n", status, {"cache-control": "no-store"})


_TOO_LONG = _refusal_text(413, f"A request may hold at most {MOST_BYTES:,} bytes.")
