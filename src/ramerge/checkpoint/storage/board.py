"""Small files that processes on several machines see through a bucket, where they share no folder.

Each process has a folder of its own. What it writes there is put into the bucket, and what others have put is fetched,
again and again, so all read each other's files as on a slow network file system:

    .ramerge-ranks/board/3.8f3c             the file `ranks/3.8f3c` of rank 3; replaced when it changes
    .ramerge-ranks/3.8f3c/journal/0001.3@0  bytes of a file that only grows, from byte 0 on; never replaced

Objects cannot be appended to, so each addition is an object. They come less and less often, because each look lists
all of them. A process fetches what belongs to the others that it has met, and nothing that strangers have left.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from ramerge.checkpoint.storage.objects import RANKS, Bucket
from ramerge.checkpoint.storage.storage import Version
from ramerge.foundation.errors import SendError

FOLDER = "ranks"
_SESSION = "session"
_BOARD = f"{RANKS}/board"
_GROWING = ("journal/*", "sent", "sent.*")
_NAME = re.compile(r"(?P<name>journal/(\d+\.\d+|facts\.json)|sent(\.[0-9a-f.]+)?)@(?P<start>\d{1,18})")
_MEMBER = re.compile(r"\d{1,6}\.[0-9a-f]{16}|session")
_PIECE = 64 << 20
_LARGEST = 2 * _PIECE
_PAUSE = 0.4
_PAUSE_A_RANK = 0.05  # every look asks for what all others have changed
_SECONDS_TO_CHANGE = 3.0
_MISSED = 4  # looks that may fail to come before the clock stops
_SLOWER = 5  # additions to a file after which the next ones come half as often


class Board:
    """The files of one process, and of those that it meets.

    Args:
        bucket: the folder of a bucket.
        work: the folder of this process.
        own: its number and a random one, as `3.8f3c...`.
        world: how many processes there are.
        is_claimed: whether no other job can be at work in the folder.
    """

    def __init__(
        self, bucket: Bucket, work: Path, own: str, world: int, is_claimed: Callable[[], bool] = lambda: False
    ) -> None:
        self._is_claimed = is_claimed
        self._bucket, self._work, self._own = bucket, work, own
        self._leads = own.startswith("0.")
        self._pause = _PAUSE + _PAUSE_A_RANK * world
        self._members: frozenset[str] = frozenset()
        self._put: dict[str, int] = {}  # bytes of own files that only grow
        self._additions: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._said: dict[str, bytes] = {}  # own files on the board
        self._seen: dict[str, Version] = {}
        self._theirs: set[str] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._gaps: set[str] = set()
        self._clock, self._looked = 0.0, time.monotonic()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._live, name="ramerge-board", daemon=True)

    def begin(self) -> None:
        """Carry files from now on. As rank 0, first remove what an earlier run has left.

        Raises:
            SendError: the bucket cannot be asked, or another job is at work there.
        """
        if self._leads:
            if not self._is_claimed():
                self._refuse_others()
            self._remove()
        self._thread.start()

    def meet(self, members: Collection[str]) -> None:
        """Fetch what belongs to these processes, too; what they have put so far is there afterwards.

        Raises:
            SendError: as for `begin`.
        """
        self._members = frozenset(members) - {self._own}
        self.carry()

    def check(self) -> None:
        """Raise why files are not carried any more, if they are not."""
        if self._failure is not None:
            raise self._failure

    def clock(self) -> float:
        """Seconds in which files were carried. While the bucket does not answer it stands still."""
        return self._clock

    def carry(self) -> None:
        """Put what this process has written so far, and fetch what others have put.

        Raises:
            SendError: as for `begin`.
        """
        with self._lock:
            self._put_all(hurry=True)
            self._fetch_all()

    def end(self) -> None:
        """Put what was written last. As rank 0, remove everything: the others have ended.

        A rank that has met nobody removes what it has said.

        Raises:
            SendError: as for `begin`.
        """
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._failure is None:
            with self._lock:
                if self._leads:
                    self._remove(self._leaders())
                elif not self._members:  # rank 0 has not begun, and will remove nothing
                    remove(self._bucket, [key for key in self._bucket.list(_BOARD) if key.endswith(f"/{self._own}")])
                else:
                    self._put_all(hurry=True)

    def _refuse_others(self) -> None:
        """A killed run's rank 0 has left a file that does not change; that of a living one changes every second."""
        until, before = time.monotonic() + _SECONDS_TO_CHANGE + 2 * self._pause, self._leaders()
        while before and time.monotonic() < until:
            time.sleep(_PAUSE)
            if (now := self._leaders()) != before:
                if now:
                    raise SendError(f"{self._bucket.address}: another job is at work there; wait for it")
                return

    def _leaders(self) -> dict[str, Version]:
        """What the ranks 0 of other jobs have there."""
        there = self._bucket.list(_BOARD)
        mine = f"{_BOARD}/{self._own}"
        return {key: version for key, version in there.items() if key.startswith(f"{_BOARD}/0.") and key != mine}

    def _remove(self, others: Collection[str] = ()) -> None:
        """Remove everything; if there are other jobs, what belongs to this one."""
        own = {self._own, *self._members}
        there = list(self._bucket.list(RANKS))
        remove(self._bucket, [key for key in there if not others or not own.isdisjoint(key.split("/"))])

    def _live(self) -> None:
        try:
            while not self._ended.wait(self._pause):
                with self._lock:
                    self._put_all(hurry=False)
                    self._fetch_all()
        except Exception as failure:
            self._failure = failure

    # --- own files ----------------------------------------------------------------------------------------------------

    def _put_all(self, *, hurry: bool) -> None:
        """First what only grows: the board speaks of it."""
        for pattern in _GROWING:
            for path in sorted(self._work.glob(pattern)):
                name = path.relative_to(self._work).as_posix()
                if name not in self._theirs and (hurry or time.monotonic() >= self._due.get(name, 0.0)):
                    self._add(name, path)
        for name in (self._own, *([_SESSION] if self._leads else [])):
            path = self._work / FOLDER / name
            content = path.read_bytes() if path.exists() else b""
            if content and content != self._said.get(name):
                self._send(f"{_BOARD}/{name}", content)
                self._said[name] = content

    def _add(self, name: str, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._put.get(name, 0))
            while content := file.read(_PIECE):
                self._put_piece(name, content)

    def _put_piece(self, name: str, content: bytes) -> None:
        start = self._put.get(name, 0)
        self._send(f"{RANKS}/{self._own}/{name}@{start}", content)
        self._put[name] = start + len(content)
        self._additions[name] = self._additions.get(name, 0) + 1
        self._due[name] = time.monotonic() + self._pause * (1 + self._additions[name] / _SLOWER)

    def _send(self, key: str, content: bytes) -> None:
        with self._bucket.in_words(key):
            self._bucket.obstore.put(self._bucket.store, key, content)

    # --- those of others ----------------------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        """The board last: it speaks of the rest."""
        there = self._bucket.list(RANKS)
        growing = [key for key in there if key.split("/")[1] in self._members]
        for key in sorted(growing, key=_place):
            if key in self._seen or (path := self._next(key)) is None:
                continue
            if (content := self._content(key, there[key])) is not None:
                with path.open("ab") as file:
                    file.write(content)
        for key in there:
            name = key.removeprefix(f"{_BOARD}/")
            mine = name == self._own or (name == _SESSION and self._leads)
            if mine or not _MEMBER.fullmatch(name) or self._seen.get(key) == there[key]:
                continue
            if (content := self._content(key, there[key])) is not None:
                self._show(name, content)
        now = time.monotonic()
        self._clock += min(now - self._looked, _MISSED * self._pause)
        self._looked = now

    def _content(self, key: str, version: Version) -> bytes | None:
        """An object's content; None if it was replaced or removed since it was listed, so the next look finds it."""
        if version.nbytes > _LARGEST:
            raise SendError(f"{self._bucket.place(key)}: is too large for what ranks tell each other")
        with self._bucket.in_words(key):
            try:
                content = bytes(self._bucket.obstore.get(self._bucket.store, key).bytes())
            except FileNotFoundError:
                return None
        self._seen[key] = version
        return content

    def _next(self, key: str) -> Path | None:
        """The file that an addition belongs to; None if one before it was not listed.

        A list of several pages takes time. It may lack what was put after its first page, and name what was put later.
        """
        _, _, rest = key.split("/", 2)
        found = _NAME.fullmatch(rest)
        if found is None:
            raise SendError(f"{self._bucket.place(key)}: is nothing that ranks put there")
        path = self._work / found["name"]
        self._theirs.add(found["name"])
        path.parent.mkdir(exist_ok=True)
        start, size = int(found["start"]), path.stat().st_size if path.exists() else 0
        if start > size and key not in self._gaps:
            self._gaps.add(key)  # a list that begins now has it
            return None
        if start != size:
            raise SendError(f"{self._bucket.place(key)}: what comes before it is missing")
        return path

    def _show(self, name: str, content: bytes) -> None:
        partial = self._work / FOLDER / f".{name}"
        partial.write_bytes(content)
        partial.replace(self._work / FOLDER / name)


def _place(key: str) -> tuple[str, int]:
    """The order in which additions are made."""
    name, _, start = key.rpartition("@")
    return name, int(start) if start.isdecimal() else -1


def remove(bucket: Bucket, keys: list[str]) -> None:
    """Remove files."""
    if keys:
        with bucket.in_words():
            bucket.obstore.delete(bucket.store, keys)
