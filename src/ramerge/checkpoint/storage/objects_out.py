"""A model that is sent to a bucket.

Shards are sent as multipart uploads while they are made, and each of them appears complete or not at all. What makes a
folder a model comes last: its other files, then `config.json`, then the index. Until then a file `.ramerge-partial`
says whose the folder is. No other run writes there, and nobody reads a model from there.

The marker also names each file before it is sent. So what a killed run has left is known, in every process and on every
machine: these files, and uploads that are open.
"""

from __future__ import annotations

import json
import socket
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from ramerge.checkpoint.inside import RECORDS, SWEEP, holds_another, model_inside
from ramerge.checkpoint.storage.board import Board
from ramerge.checkpoint.storage.destination import Destination, Reaches
from ramerge.checkpoint.storage.objects import MARKER, RANKS, Bucket
from ramerge.checkpoint.storage.place import Place, Remote
from ramerge.checkpoint.storage.storage import Version
from ramerge.foundation.errors import OutputError, OutputWarning, PlanError, SendError
from ramerge.foundation.version import __version__

_WHAT = "writing there"
# A store takes 10,000 parts of an object, of at least 5 MiB each.
_PART = 8 << 20
_MOST_PARTS = 9_000
_PARTS_AT_ONCE = 4
_LARGEST_MARKER = 32 << 20


class ObjectsOut(Destination):
    """A folder of a bucket.

    Args:
        scheme: `s3`, `gs` or `az`.
        rest: bucket and folder.
        stage: see `Destination`.
    """

    carries = True

    def __init__(self, scheme: str, rest: str, stage: Path) -> None:
        self._bucket = Bucket(scheme, rest, _WHAT, SendError)
        self.address = self.result = self._bucket.address
        self.name = self.address.rpartition("/")[2]
        self.stage = stage
        self._said = dict[str, Any]()

    def problems(self, inputs: Sequence[Place], run: Callable[[], str | None], *, overwrite: bool) -> list[str]:
        """See `Destination`."""
        for each in inputs:
            if isinstance(each, Remote) and _overlap(self.address, each.storage.address):
                return [
                    f"{self.address}: is, holds or is inside the input {each.storage.address}; choose another place"
                ]
        try:
            if not self.joins:
                self._refuse(run, overwrite=overwrite)
        except (OutputError, PlanError) as error:
            return list(error.problems)
        return []

    def _there(self) -> dict[str, Version]:
        """The files of the folder, without what ranks tell each other."""
        return {key: version for key, version in self._bucket.list().items() if not key.startswith(f"{RANKS}/")}

    def board(self, work: Path, own: str, world: int) -> Board:
        """See `Destination`."""
        return Board(self._bucket, work, own, world, lambda: bool(self._said))

    def _refuse(self, run: Callable[[], str | None], *, overwrite: bool) -> None:
        """Raise if the folder cannot be taken."""
        there = self._there()
        said = self._marker() if there.pop(MARKER, None) is not None else None
        if said is not None and (said.get("run") is None or said.get("run") != run()):
            raise OutputError(
                f"{self.address}: {_who(said)}; wait for it, or give its stage (--stage) to go on with it; if it has "
                f"ended, `ramerge clean {self.address}` removes what it left"
            )
        if said is not None and said.get("files") is not None:
            return  # what is there is the run's own
        if there and not overwrite:
            raise PlanError(
                f"{self.address}: holds files; choose another folder, or pass --overwrite (in Python overwrite=True)"
            )
        if inside := model_inside(there, self._json(SWEEP) if SWEEP in there else {}):
            raise PlanError(f"{self.address}: {holds_another(f'{self.address}/{inside}')}")
        if there and not any(name in there for name in RECORDS) and any("/" in key for key in there):
            raise PlanError(
                f"{self.address}: has subfolders and was not made by a merge, so --overwrite does not replace it; "
                "remove it yourself"
            )

    def claim(self, run: str, *, overwrite: bool, shared: Collection[str] = ()) -> None:
        """See `Destination`. The marker names shared files at once, because one process writes it."""
        self._refuse(lambda: run, overwrite=overwrite)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        said = {"ramerge": __version__, "run": run, "host": socket.gethostname(), "since": now, "files": None}
        try:
            self._mark(said, mode="create")
        except FileExistsError:
            said = self._marker()
            if said.get("run") != run:
                raise OutputError(f"{self.address}: another merge has just begun to write there") from None
        problems = self._abort(said)[1]
        for problem in problems:
            warnings.warn(problem, OutputWarning, stacklevel=2)
        unknown = _names(said, "uploads") if problems else None
        self._said = {**said, "files": _names(said, "files"), "uploads": unknown or []}
        if shared:
            self._name(uploads=shared)
        else:
            self._delete(list(self._bucket.list(RANKS)))  # of ranks that were killed

    def join(self, shared: Collection[str]) -> None:
        """See `Destination`."""
        self._said = {"files": None, "uploads": list(shared)}

    def _mark(self, said: Mapping[str, Any], mode: Any = "overwrite") -> None:
        """Put the marker.

        Args:
            said: the run; who it is and since when; the files that it has sent or sends now, None if the folder still
                holds what it held before; and those of them whose uploads may be open.
            mode: `create` if there may be no marker.
        """
        from obstore.exceptions import AlreadyExistsError

        with self._bucket.in_words(MARKER):
            try:
                self._bucket.obstore.put(self._bucket.store, MARKER, json.dumps(said).encode(), mode=mode)
                return
            except AlreadyExistsError:
                pass
        raise FileExistsError

    def _name(self, *, files: Iterable[str] = (), uploads: Iterable[str] = ()) -> None:
        """Name files in the marker before they are sent, or before what the folder held is removed."""
        self._said["uploads"] = sorted({*self._said["uploads"], *uploads})
        if self._said["files"] is not None:
            self._said["files"] = sorted({*self._said["files"], *self._said["uploads"], *files})
        self._mark(self._said)

    def _marker(self) -> dict[str, Any]:
        """What the marker says."""
        return self._json(MARKER)

    def _json(self, name: str) -> dict[str, Any]:
        """What a file of ours says; nothing if there is none, or if it cannot be understood."""
        with self._bucket.in_words(name):
            try:
                text = bytes(self._bucket.obstore.get(self._bucket.store, name).bytes())
            except FileNotFoundError:
                return {}
        try:
            said = json.loads(text[:_LARGEST_MARKER])
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def holds(self, sent: Mapping[str, str]) -> bool:
        """See `Destination`."""
        there = self._there()
        return all(
            name in there and _receipt(there[name].nbytes, there[name].tag) == said for name, said in sent.items()
        )

    def clear(self, run: str, sent: Collection[str]) -> None:
        """See `Destination`."""
        there = self._there()
        if self._marker().get("run") != run:
            raise OutputError(f"{self.address}: another program has removed {MARKER} there; is it writing there, too?")
        named = self._said["files"]
        own = there if named is None else named
        self._delete([key for key in there if key in own and key != MARKER and key not in sent])
        self._said["files"] = named or []
        self._name(files=sent)

    def _abort(self, said: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Abort open uploads that a marker names. Gives their number, and what hinders it, in words."""
        number = 0
        try:
            for name in _names(said, "uploads") or ():
                number += self._bucket.abort(name)
        except SendError as error:
            return number, [
                f"{error}; so parts of an upload that was broken off may be left; let a rule of the bucket remove them "
                "(docs/guides/remote.md)"
            ]
        return number, []

    def send(self, name: str, path: Path, reaches: Reaches) -> str:
        """See `Destination`. The upload begins with the first part, and is completed after the last one."""
        size = path.stat().st_size
        part = max(_PART, -(-size // _MOST_PARTS))
        reaches(min(part, size))
        if name not in self._said["uploads"]:
            self._name(uploads=[name])
        with self._bucket.in_words(name):
            said = self._bucket.obstore.put(
                self._bucket.store,
                name,
                _pieces(path, part, reaches),
                use_multipart=True,
                chunk_size=part,
                max_concurrency=_PARTS_AT_ONCE,
            )
        self._said["uploads"].remove(name)
        return _receipt(size, (said["e_tag"] or "").strip('"'))

    def commit(self, run: str, files: Mapping[str, Path], sent: Mapping[str, str]) -> None:
        """See `Destination`."""
        if not self.holds(sent):
            raise OutputError(f"{self.address}: another program has changed or removed what was sent there")
        self._name(files=files, uploads=[name for name, path in files.items() if path.stat().st_size > _PART])
        for name in sorted(files, key=lambda name: (_rank(name), name)):
            with self._bucket.in_words(name):
                self._bucket.obstore.put(self._bucket.store, name, files[name], chunk_size=_PART)
        self._delete([MARKER])

    def discard(self, run: str | None) -> list[str]:
        """See `Destination`."""
        there = self._there()
        told = list(self._bucket.list(RANKS)) if run is None else []
        self._delete(told)
        if MARKER not in there:
            return [f"{self.address}: what ranks of a stopped run had told each other was removed"] if told else []
        said = self._marker()
        if run is not None and said.get("run") != run:
            return []
        aborted, problems = self._abort(said)
        left = [each for each in _names(said, "files") or () if each in there]
        self._delete(left)
        self._delete([MARKER])
        done = f"files of a stopped merge removed: {len(left)}" if left or aborted else "released"
        parts = ", and the parts of an upload that was broken off" if aborted else ""
        return [f"{self.address}: {done}{parts}", *problems]

    def _delete(self, keys: Sequence[str]) -> None:
        """Remove files, what makes a model of them first."""
        vital = [key for key in keys if _rank(key)]
        for group in (sorted(vital, key=_rank, reverse=True), [key for key in keys if not _rank(key)]):
            if group:
                with self._bucket.in_words():
                    self._bucket.obstore.delete(self._bucket.store, group)


def _who(said: Mapping[str, Any]) -> str:
    """What a marker says of the merge that has put it there."""
    host, since = said.get("host"), said.get("since")
    if isinstance(host, str) and isinstance(since, str):
        return f"a merge on {host} has written there since {since}"
    return f"a merge has written there; its file {MARKER} is damaged and does not say where the merge runs"


def _rank(name: str) -> int:
    """The order in which small files are put; those that make a folder a model come last."""
    return 2 if name.endswith(".index.json") else int(name.endswith("config.json"))


def _names(said: Mapping[str, Any], what: str) -> list[str] | None:
    """The files that a marker names."""
    names = said.get(what)
    return [str(each) for each in names] if isinstance(names, list) else None


def _receipt(nbytes: int, tag: str) -> str:
    return f"{nbytes} {tag}"


def _pieces(path: Path, size: int, reaches: Reaches) -> Iterator[bytes]:
    """The parts of a file, each as soon as it is final."""
    end = path.stat().st_size
    for start in range(0, end, size):
        _beside(partial(reaches, min(start + size, end)))
        # opened now and without a buffer: on a network file system, and in a buffer, is else what was there before
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            yield file.read(size)


def _beside(function: Callable[[], None]) -> None:
    """Call a function in another thread: obstore takes parts within a request, where its own thread can make no other.

    It is a thread that an ending process does not wait for.
    """
    done = Future[None]()

    def run() -> None:
        try:
            function()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="ramerge-part", daemon=True).start()
    done.result()


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
