"""The server of the page on this machine: Gradio inside FastAPI, behind the guard; it also serves reports."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from pathlib import Path
from types import FrameType
from typing import Any

# Before Gradio is imported: it sends no telemetry.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import click
import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from ramerge import OutputError, RamergeError
from ramerge.sdk.commands import say
from ramerge.sdk.text import reason
from ramerge.ui import views
from ramerge.ui.desk import Desk
from ramerge.ui.guard import REPORT, PageGuard
from ramerge.ui.page import build_page, theme

LOOPBACK = "127.0.0.1"
_MOST_REPORT = 1 << 26
_SECONDS_TO_END = 5.0
SETTINGS: dict[str, Any] = {"log_level": "critical", "access_log": False, "timeout_graceful_shutdown": 1}
"""Settings of uvicorn. A browser that shows the page holds a connection; Ctrl-C must not wait for it."""


def application(desk: Desk, **guard: object) -> PageGuard:
    """Return the page as an application for uvicorn, behind its guard; keywords are passed to `PageGuard`."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.get(REPORT)
    def report(out: str = "") -> Response:
        """Return the report of a merge or a search in the roots."""
        try:
            return HTMLResponse(_read_report(desk, out))
        except RamergeError as error:
            return PlainTextResponse("\n".join(error.messages), 404)

    application_with_page: FastAPI = gr.mount_gradio_app(
        app,
        build_page(desk),
        path="/",
        server_name=LOOPBACK,
        footer_links=[],
        run_history=False,
        show_error=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        pwa=False,
        max_file_size=1,
        theme=theme(),
        head=views.styles(),
    )
    page: FastAPI = application_with_page.routes[-1].app  # type: ignore[attr-defined]
    # such as of a function, requested by others than the page
    unknown = PlainTextResponse("There is no such function or session.\n", 404)
    page.add_exception_handler(KeyError, lambda _request, _error: unknown)
    return PageGuard(application_with_page, **guard)  # type: ignore[arg-type]


def _read_report(desk: Desk, out: str) -> str:
    """Read the page that `ramerge report` or `ramerge search` has written into a folder in the roots."""
    for name in ("report.html", "search.html"):
        if text := desk.roots.read(str(Path(out) / name), _MOST_REPORT):
            return text
    raise OutputError(f"{out}: holds no report; write one with `ramerge report`")


class _PageServer(uvicorn.Server):
    """A server that ends some seconds after a signal, even if a thread still waits for an unresponsive bucket."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        end = threading.Timer(_SECONDS_TO_END, os._exit, [128 + sig])
        end.daemon = True
        end.start()
        super().handle_exit(sig, frame)


def serve(desk: Desk, port: int) -> None:
    """Serve the page on this machine until a signal, and print its address."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()  # who opens the address at once waits for the page
    except OSError as error:
        listener.close()
        raise OutputError(f"--port {port}: {reason(error)}; choose another one, or leave it out") from error
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    hosts = [f"{name}:{port}" for name in (LOOPBACK, "localhost")]
    app = application(desk, token=token, hosts=hosts, cookie=f"ramerge-{port}")
    config = uvicorn.Config(app, server_header=False, proxy_headers=False, **SETTINGS)
    click.echo(f"http://{LOOPBACK}:{port}/?token={token}")  # `say` would hide the token
    say("open this address in a browser; Ctrl-C ends the page")
    try:
        _PageServer(config).run(sockets=[listener])
    finally:
        desk.queue.close()
        listener.close()
