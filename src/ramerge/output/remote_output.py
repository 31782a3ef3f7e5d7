"""A remote output: built in the staging directory, and uploaded file by file.

Weights are written into files of a folder on this machine, as those of a local output are. A shard that is complete is
uploaded whole, and then removed here, so the staging directory stays small. Alongside lies a log of it:

    uploads     the run's name and what the place held when it began, then each shard that has arrived

The rest is as in `output.staging`. A run that was killed resumes there: blocks in the journal are in a file here, or
in a shard that has arrived.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramerge.foundation import store
from ramerge.output.staging import OutputDir, ResumePolicy, StagingDir, hidden_folder
from ramerge.output.targets import free_bytes
from ramerge.storage.bucket_upload import digest
from ramerge.storage.location import Location
from ramerge.storage.upload import UploadRun, UploadTarget

_LOG = "uploads"
# How many shards are in the staging directory, about: one that is uploaded, and two more that are made.
_SHARDS = 3


def work_of(upload: UploadTarget) -> Path:
    """The hidden folder in the staging directory."""
    return hidden_folder(_local(upload))


def problems_of(upload: UploadTarget, inputs: Sequence[Location], needed: int, *, overwrite: bool) -> list[str]:
    """All problems with a remote output.

    Args:
        upload: the place.
        inputs: files and folders that are read.
        needed: bytes that are in the staging directory at a time (`needed_of`).
        overwrite: whether what is there would be replaced.
    """
    staging = upload.staging
    folder = next(each for each in (staging, *staging.parents) if each.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        return [
            f"{staging}: no permission to write there; choose another folder for files until they are uploaded "
            "(--staging-dir)"
        ]
    resumes = (work_of(upload) / _LOG).exists()
    return [*upload.problems(inputs, overwrite=overwrite, resumes=resumes), *room_problems(upload, needed)]


def needed_of(size: int, largest: int) -> int:
    """Bytes in the staging directory at a time.

    Args:
        size: bytes of all files.
        largest: bytes of the largest file, of all points together.
    """
    return min(size, _SHARDS * largest)


def room_problems(upload: UploadTarget, needed: int) -> list[str]:
    """The problem that so many bytes have no room in the staging directory. What an interrupted run left counts."""
    free = free_here(upload)
    with suppress(FileNotFoundError):
        free += sum(512 * path.lstat().st_blocks for path in (work_of(upload) / "new").rglob("*"))
    if needed <= free:
        return []
    return [
        f"{upload}: needs {needed:,} bytes of disk in {upload.staging} for files until they are uploaded, but only "
        f"{free:,} are free; choose another folder (--staging-dir), or smaller files (--shard-size)"
    ]


def free_here(upload: UploadTarget) -> int:
    """Free bytes of the disk on which files lie until they are uploaded."""
    return free_bytes(_local(upload))


class RemoteStagingDir(StagingDir):
    """A complete shard can be uploaded before the others are made.

    Args:
        folder: the folder.
        kept: files that an earlier run has made.
        upload: where they are uploaded to.
        log: what has arrived there.
    """

    def __init__(self, folder: Path, kept: Collection[str], upload: UploadTarget, log: _UploadLog) -> None:
        super().__init__(folder, kept, reserves=False)
        self.needs_index = upload.needs_index
        self._upload, self._log = upload, log

    def __reduce__(self) -> tuple[Any, ...]:
        """On another node, the folder: it writes, and this process uploads."""
        return StagingDir, (self.folder, self._kept), {"_files": self.__getstate__()["_files"]}

    @property
    def arrived(self) -> Collection[str]:
        """Shards that have arrived, and are not here any more."""
        return self._log.run.arrived.keys()

    def upload(self, name: str) -> None:
        """Upload a complete shard, and remove it here.

        Raises:
            OutputError: it cannot be uploaded.
        """
        self._log.add(name, self._upload.put(self._log.run, name, self.folder / name))
        self.remove(name)

    def commit(self) -> None:
        """Put what is here, which makes it the model there."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        files = {path.relative_to(self.folder).as_posix(): path for path in paths}
        self._log.intend(path for name, path in files.items() if not name.endswith(".safetensors"))
        self._upload.commit(self._log.run, files)


class _UploadLog:
    """The run and what of it has arrived, in a file that is on the disk before a shard is removed here."""

    def __init__(self, work: Path) -> None:
        self._path = work / _LOG
        self.run = UploadRun()
        self.is_begun = False
        self.read()

    def read(self) -> None:
        with suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with suppress(ValueError, LookupError, TypeError):
                    self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        if "run" in said:
            self.run, self.is_begun = UploadRun(str(said["run"]), dict(said["seen"])), True
        elif "intended" in said:
            self.run.intended |= set(map(str, said["intended"]))
        else:
            self.run.arrived[str(said["shard"])] = str(said["tag"])

    def begin(self, run: UploadRun) -> None:
        self._path.unlink(missing_ok=True)
        _append(self._path, {"run": run.name, "seen": dict(run.seen)})
        self.run, self.is_begun = run, True

    def add(self, name: str, tag: str) -> None:
        _append(self._path, {"shard": name, "tag": tag})
        self.run.arrived[name] = tag

    def intend(self, files: Iterator[Path]) -> None:
        """Small files are about to be put. A later process knows by their digests that they are this run's."""
        intended = [digest(path.read_bytes()) for path in files]
        _append(self._path, {"intended": intended})
        self.run.intended |= set(intended)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        self.run, self.is_begun = UploadRun(), False


def _append(path: Path, said: object) -> None:
    with path.open("ab") as file:
        file.write(f"\n{json.dumps(said)}\n".encode())  # on a line of its own, whatever is torn before it
        file.flush()
        os.fsync(file.fileno())


class RemoteOutputDir(OutputDir):
    """A remote place, and the folder in the staging directory."""

    def __init__(self, upload: UploadTarget) -> None:
        super().__init__(_local(upload))
        self.named = str(upload)
        self._upload = upload
        self._log = _UploadLog(self._work)

    def _fits(self, policy: ResumePolicy, built: int | None, gone: Collection[str] = ()) -> bool:
        self._log.read()  # now that no other process writes it
        fits = self._log.is_begun and super()._fits(policy, built, self._log.run.arrived)
        if fits and not self._upload.resumes(self._log.run):
            policy.reason = "what an earlier run had uploaded has changed there, or another job has completed since"
            fits = False
        return fits

    def _remove_all_but(self, kept: Collection[str]) -> None:
        super()._remove_all_but(set(kept) - self._log.run.arrived.keys())

    def _open_staging(self, kept: Collection[str]) -> StagingDir:
        return RemoteStagingDir(self._new, kept, self._upload, self._log)

    def _refuse_occupied(self, overwrite: bool) -> None:
        if not self._continues:
            self._log.begin(UploadRun(seen=self._upload.begin(overwrite=overwrite)))

    def publish(self, overwrite: bool) -> None:
        """Upload the rest."""
        assert isinstance(self._staging, RemoteStagingDir)
        self._staging.check()
        self._staging.commit()
        self.placed = True

    def _is_placed(self) -> bool:
        return self.placed is True

    def _remove(self) -> None:
        """Remove what is no longer needed, at the place first, because the log says what is there."""
        if self._log.is_begun and not self.placed:
            self._upload.abort(self._log.run)
        super()._remove()
        self._log.remove()

    def discard(self) -> list[str]:
        there = os.path.lexists(self._work)
        self._make()
        try:
            here = super().discard()
        finally:
            self._unmake()
        return [*(here if there else []), *self._upload.clean()]

    @property
    def _words(self) -> str:
        staging = self._upload.staging
        is_usual = staging == store.folder("outputs")
        return super()._words + ("" if is_usual else f" --staging-dir {shlex.quote(str(staging))}")

    def fate(self) -> str:
        """A phrase that says what is there now."""
        return f"{self.named} is complete" if self.placed else self._kept()

    def reason(self, error: OSError) -> str:
        """An error of the operating system, in the staging directory."""
        return f"{super().reason(error)}; files lie in {self._out.parent} until they are uploaded (--staging-dir)"


def _local(upload: UploadTarget) -> Path:
    """The folder of the staging directory alongside which the hidden one lies."""
    address = hashlib.sha256(upload.address.encode()).hexdigest()[:12]
    return upload.staging / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', upload.address)[:80]}~{address}"
