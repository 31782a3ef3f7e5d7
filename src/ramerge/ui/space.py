"""The page as a Space of the Hugging Face hub: public, with limits, on the address that the hub gives."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import uvicorn

from ramerge import Options
from ramerge.cli.flags.write import limit_words
from ramerge.demo.run import AGENTS
from ramerge.ui.desk import Desk
from ramerge.ui.roots import Roots
from ramerge.ui.serve import SETTINGS, application

_PORT = 7860
_MOST_BYTES = 20_000_000_000
"""The most bytes of weights that a merge may read. The free tier's 50 GB of disk hold outputs of several visitors."""

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_OPTIONS = Options(max_memory="4GB")
_PARENT = "https://huggingface.co"


def space_desk(home: Path) -> Desk:
    """Make the desk of the page as a public Space; outputs are in `home` until their visitor leaves."""
    most = int(os.environ.get("RAMERGE_SPACE_BYTES", _MOST_BYTES))
    roots = Roots((home.resolve(), AGENTS.resolve()), remote=False, is_shared=True)
    return Desk(roots, _OPTIONS, limit_words(_OPTIONS), public=True, most_bytes=most)


def serve_space() -> None:
    """Serve the page as a Space, on all addresses, until a signal ends it."""
    for name in _TOKENS:  # of the Space's owner: visitors have their own
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="ramerge-space-") as folder:
        desk = space_desk(Path(folder))
        port = int(os.environ.get("PORT", _PORT))
        try:
            uvicorn.run(application(desk, token=None, frames=_PARENT), host="0.0.0.0", port=port, **SETTINGS)
        finally:
            desk.queue.close()
