"""A merge to an output elsewhere in a process of its own, which is killed with SIGKILL at a moment of choice.

It is no fork, because the threads of obstore do not survive one. `python -m tests.storage.killed` reads from standard
input what to do, as JSON: `source`, `out`, `options`, and the moment: [what, number]. `said` are its notes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

from ramerge.checkpoint.storage.objects import RANKS
from ramerge.engine.ranks import Rank
from tests import kills

PART = 5 << 20  # the least that a store takes
_UPLOAD = f"""
import os, sys
import obstore
from obstore.store import S3Store

def parts():
    yield from (b"x" * {PART} for _ in range(3))
    os._exit(9)

store = S3Store(sys.argv[1], client_options={{"allow_http": True}})
obstore.put(store, sys.argv[2], parts(), use_multipart=True, chunk_size={PART}, max_concurrency=1)
"""


def leave_upload(bucket: str, key: str) -> None:
    """Leave an upload open, as another program that is killed does."""
    assert subprocess.run([sys.executable, "-c", _UPLOAD, bucket, key]).returncode == 9


def killed(source: dict[str, Any], out: str, what: str, number: int, **options: Any) -> bool:
    """Merge until the moment comes. False if the merge was done before it."""
    process = started(source, out, what, number, **options)
    _, said = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode != 0


def started(
    source: dict[str, Any], out: str, what: str = "never", number: int = 0, **options: Any
) -> subprocess.Popen[str]:
    """The process that does so. It may be a rank: `rank` is the arguments of a `Rank`."""
    asked = {"source": source, "out": out, "what": what, "number": number, "options": options}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", "tests.storage.killed"], text=True, **pipes)
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked))
    process.stdin.close()
    process.stdin = None
    return process


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _main() -> None:
    from ramerge.checkpoint import relay
    from ramerge.checkpoint.storage import objects_out

    asked = json.load(sys.stdin)
    what, left = asked["what"], iter(range(asked["number"]))

    def dies_before(owner: Any, name: str, counts: Callable[..., bool] = lambda *_: True) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if counts(*arguments) and next(left, None) is None:
                _die()
            return real(*arguments, **options)

        setattr(owner, name, counted)

    objects_out._PART = PART
    if what == "record":
        kills.die_at(asked["number"])
    elif what == "part":
        real = objects_out._pieces

        def pieces(*arguments: Any) -> Any:
            for piece in real(*arguments):
                if next(left, None) is None:
                    _die()
                yield piece

        objects_out._pieces = pieces
    elif what == "sent":
        dies_before(relay._Sent, "add")
    elif what == "emptied":
        dies_before(os, "truncate")
    elif what in ("put", "told"):
        import obstore

        dies_before(obstore, "put", lambda _store, key, *_: key.startswith(RANKS) == (what == "told"))
    elif what == "removed":
        import obstore

        dies_before(obstore, "delete", lambda _store, keys: not keys[0].startswith(RANKS))
    warnings.simplefilter("ignore")
    options = asked["options"]
    if "rank" in options:
        options["rank"] = Rank(*options["rank"])
    kills.merge(asked["source"], asked["out"], **options)


if __name__ == "__main__":
    _main()
