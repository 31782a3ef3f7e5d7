"""A remote output: built in the staging directory, and uploaded file by file.

Weights are written to files in a local folder, as for a local output. Each complete shard is uploaded as a whole, and
then its local file is removed, so the staging directory stays small. `uploads` alongside the folder is the log of the
run (`storage.upload`). Everything else is as in `output.staging`. A killed run can be resumed: each block in the
journal is in a local file, or in an uploaded shard.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from ramerge.core.foundation import store
from ramerge.core.output.staging import OutputDir, ResumePolicy, StagingDir
from ramerge.core.storage.location import Location
from ramerge.core.storage.schemes import UploadTarget
from ramerge.core.storage.upload import UploadRun

_LOG = "uploads"
# About how many shards are in the staging directory at once: one being uploaded, and two being written.
_SHARDS = 3


def _local_folder(upload: UploadTarget) -> Path:
    """A path in the staging directory that stands for OUT; the hidden folder lies next to it."""
    address = hashlib.sha256(upload.address.encode()).hexdigest()[:12]
    return upload.staging / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', upload.address)[:80]}~{address}"


class RemoteStagingDir(StagingDir):
    """The staging directory of a remote output, from which complete shards are uploaded.

    Args:
        names_to_keep: files that an interrupted run has written, and that are kept.
    """

    sends = True

    def __init__(self, folder: Path, names_to_keep: Collection[str], upload: UploadTarget, run: UploadRun) -> None:
        super().__init__(folder, names_to_keep, reserves=False)
        self.needs_index: bool = upload.needs_index
        self._upload, self._run = upload, run

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as a plain `StagingDir`: other nodes write files, but only this process uploads them."""
        return StagingDir, (self.folder, self._names_to_keep), {"_files": self.__getstate__()["_files"]}

    @property
    def arrived(self) -> Collection[str]:
        return self._run.receipts.keys()

    def upload(self, name: str) -> None:
        self._run.add(name, self._upload.put(self._run, name, self.folder / name))
        self.remove(name)


class RemoteOutputDir(OutputDir):
    """A remote OUT, and its hidden folder in the staging directory."""

    sends = True

    def __init__(self, upload: UploadTarget) -> None:
        super().__init__(_local_folder(upload), str(upload))
        self._upload = upload
        self._run = UploadRun(self.work / _LOG)
        if upload.staging != store.folder("outputs"):
            self._words += f" --staging-dir {shlex.quote(str(upload.staging))}"

    @property
    def _uploaded_files(self) -> Collection[str]:
        return self._run.receipts.keys()

    def problems(self, inputs: Sequence[Location], size: int, *, overwrite: bool) -> list[str]:
        staging = self._upload.staging
        folder = next(each for each in (staging, *staging.parents) if each.exists())
        if not os.access(folder, os.W_OK | os.X_OK):
            return [
                f"{staging}: no permission to write there; name another folder for files that wait for their upload "
                f"with --staging-dir FOLDER"
            ]
        problems = self._upload.problems(inputs, overwrite=overwrite, resumes=self._run.log.exists())
        free = self.free_bytes()
        with suppress(FileNotFoundError):  # files of an interrupted run will be reused or removed
            free += sum(512 * path.lstat().st_blocks for path in self._new.rglob("*"))
        if size > free:
            problems.append(
                f"{self._upload}: needs {size:,} bytes of disk in {staging} for files that wait for their upload, but "
                f"only {free:,} are free; name another folder with --staging-dir FOLDER, or make smaller "
                "files (shard_size)"
            )
        return problems

    def bytes_at_once(self, size: int, largest: int) -> int:
        return min(size, _SHARDS * largest)

    def _fits(self, policy: ResumePolicy, inode: int | None) -> bool:
        fits = bool(self._run.name) and super()._fits(policy, inode)
        if fits and not self._upload.resumes(self._run):
            policy.reason = "what an earlier run had uploaded has changed there, or another job has completed since"
            fits = False
        return fits

    def _own(self) -> int:
        descriptor = super()._own()
        self._run.read()  # not before the lock is held: another process might write to the log
        return descriptor

    def _open_staging(self, names_to_keep: Collection[str]) -> StagingDir:
        return RemoteStagingDir(self._new, names_to_keep, self._upload, self._run)

    def _refuse_occupied_place(self, overwrite: bool) -> None:
        if not self._is_resumption:
            self._upload.begin(self._run, overwrite=overwrite)

    def publish(self, overwrite: bool) -> None:
        """Upload the remaining files, and complete the remote model."""
        assert self._staging is not None
        self._staging.check()
        paths = (path for path in self._new.rglob("*") if path.is_file())
        self._upload.commit(self._run, {path.relative_to(self._new).as_posix(): path for path in paths})
        self.is_in_place = True

    def _remove(self) -> None:
        """Remove files that are no longer needed: first the remote files, because the local log lists them."""
        if self._run.name and not self.is_in_place:
            self._upload.abort(self._run)
        super()._remove()
        self._run.log.unlink(missing_ok=True)

    def clean_up_interrupted(self) -> list[str]:
        return [*super().clean_up_interrupted(), *self._upload.clean()]

    def reason(self, error: OSError) -> str:
        """The text of an operating-system error in the staging directory."""
        return f"{super().reason(error)}; files wait in {self._out.parent} for their upload: --staging-dir FOLDER"
