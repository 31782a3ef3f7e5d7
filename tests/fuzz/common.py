"""What the kinds share: folders, and what holds for every message."""

from __future__ import annotations

import atexit
import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ramerge.cli.terminal import complain, say
from ramerge.core.foundation.errors import RamergeError

BATCH = 100
LONGEST_MESSAGE = 10_000


@cache
def folder(name: str) -> Path:
    """A folder of this process, and gone with it."""
    place = Path(tempfile.mkdtemp(prefix=f"ramerge-fuzz-{name}-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def check_refusal(error: RamergeError) -> None:
    """An error must be fit for a terminal."""
    assert error.problems, "an error without a word"
    check_shown(error.problems)


def check_shown(texts: Iterable[str]) -> None:
    """Printed, texts are lines of letters, each begun by us, and none without end."""
    texts = list(texts)
    screen = io.StringIO()
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        for text in texts[:25]:
            complain("error", text)
        say(texts[:25])
    lines = screen.getvalue().split("\n")
    assert all(line.isprintable() for line in lines), lines
    assert len(screen.getvalue()) < 50 * LONGEST_MESSAGE
    for text in texts:
        assert len(text) < LONGEST_MESSAGE, (len(text), text[:300])
        for line in text.split("\n")[1:]:
            assert line.startswith("    "), text
