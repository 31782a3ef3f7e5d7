"""What the logger `ramerge` says, on the terminal."""

from __future__ import annotations

import logging

from ramerge.foundation.terminal import complain


class _TerminalHandler(logging.Handler):
    """Lines on standard error, in which untrusted text is escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        complain("debug", f"{record.relativeCreated / 1000:8.3f}  {record.getMessage()}")


def show_logs() -> None:
    """Show all that is logged under `ramerge`."""
    log = logging.getLogger("ramerge")
    log.setLevel(logging.DEBUG)
    log.addHandler(_TerminalHandler())
    log.propagate = False
