"""The output folder: built alongside OUT, and moved there when it is complete.

While OUT is written, there is a hidden folder `.OUT.ramerge-partial` alongside it, for one process at a time:

    lock       locked as long as this process lives; holds the inode of `new`
    new        the folder that is built, or a folder that will be removed
    old        the previous OUT, until `new` has been moved to OUT; only if the file system cannot exchange two folders
    journal    a record of the finished work in `new`, if a later run can resume it
    spool      blocks of a delta that are not in its files yet (`deltas.spool`)

`old` is always complete, and it is never removed under this name. If nothing is at OUT, it is moved back there. If
`new` has been moved to OUT, `old` is renamed to `new` and then removed. This is done after each run, even a failed one,
and before each run, because a killed run may have left folders. All other files are removed at the same times, except
`new`, `journal` and `spool` of an interrupted run. A journal holds the inode of its `new`, so it never describes
another folder. A run that was killed after `new` had been moved to OUT is complete: `output.lifecycle.tidy` removes its
remains.

The hidden folder must belong to the user, and no other user may write to it, because its files are resumed unchecked.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ramerge.core.foundation.errors import ContinueNote, OutputError, OutputWarning, PlanError, reason
from ramerge.core.foundation.files import check_own, hidden_path_beside, is_at, lock, write_all
from ramerge.core.foundation.signals import held
from ramerge.core.foundation.systems import NO_LINK, PRIVATE, sync_folder
from ramerge.core.output.targets import ALREADY_THERE, STAGING, folder_problems, free_bytes, is_replaceable
from ramerge.core.storage.location import Location

SPOOL = "spool"
"""The name of the folder for blocks of a delta."""

# Names that a run leaves in the hidden folder, in the order in which they are removed.
_LEFT = ("journal", SPOOL, "new")
_IMMOVABLE = {errno.EXDEV, errno.EACCES, errno.EPERM, errno.EBUSY}
_HERE = -100  # AT_FDCWD
_RENAME_EXCHANGE = 2
_PIECE = 1 << 20
_UNFINISHED = -1
# A task on another node may still write into a folder while it is removed.
_TRIES = 5
# Stands for the device in another process: other machines number devices differently, but inodes are the same.
_ELSEWHERE = -1

_Inode = tuple[int, int]
"""Device and inode."""


class ResumePolicy(Protocol):
    """Decides whether an interrupted run can be resumed; `engine.journal.Journal` implements it.

    Attributes:
        files: names and sizes of the files that are kept; all other files are written again.
        share: the share of the work that is done, as text.
        reason: why the earlier work cannot be resumed; empty for none.
    """

    files: Mapping[str, int]
    reason: str

    @property
    def share(self) -> str: ...

    def fits(self, work: Path, inode: int | None, uploads: Collection[str] = ()) -> bool: ...

    def begin(self, work: Path, inode: int | None) -> None: ...

    def keeps(self, failure: BaseException | None) -> bool: ...


class StagingDir:
    """A folder that is being built. It may contain only files that were written through this object.

    Args:
        names_to_keep: files that an interrupted run has written, and that are kept.
        reserves: whether disk space for large files is allocated at the beginning.

    Attributes:
        needs_index: whether even a model of one shard needs an index.
        sends: whether complete shards are uploaded.
    """

    needs_index = False
    sends = False

    def __init__(self, folder: Path, names_to_keep: Collection[str] = (), *, reserves: bool = True) -> None:
        self.folder = folder
        self.reserves = reserves
        self._names_to_keep = frozenset(names_to_keep)
        self._files: dict[str, tuple[_Inode, int]] = {}

    def __getstate__(self) -> dict[str, object]:
        files = {name: ((_ELSEWHERE, identity[1]), size) for name, (identity, size) in self._files.items()}
        return {**self.__dict__, "_files": files}

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the output; text is encoded as UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        self._write_pieces(name, [data])

    def copy(self, name: str, source: Location) -> None:
        """Copy `source` to a file of the output."""
        with source.open("rb") as file:
            self._write_pieces(name, iter(lambda: file.read(_PIECE), b""))

    def _write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        descriptor, size = self.create(name), 0
        try:
            for piece in pieces:
                write_all(descriptor, memoryview(piece), size)
                size += len(piece)
            self.finish(name, descriptor, size)
        finally:
            os.close(descriptor)

    def create(self, name: str) -> int:
        """Create a file, or open a kept one, and return its descriptor. After writing, pass it to `finish`."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = NO_LINK if name in self._names_to_keep else os.O_CREAT | os.O_EXCL
        descriptor = os.open(path, os.O_RDWR | flags | PRIVATE, 0o666)
        self._files[name] = _inode_of(os.fstat(descriptor)), _UNFINISHED
        return descriptor

    def reopen(self, name: str) -> int:
        """Open a file that `create` has created, and return another descriptor."""
        path = self.folder / name
        descriptor = os.open(path, os.O_RDWR | NO_LINK | PRIVATE)
        device, inode = _inode_of(os.fstat(descriptor))
        if self._files[name][0] not in ((device, inode), (_ELSEWHERE, inode)):
            os.close(descriptor)
            raise OSError(errno.ESTALE, "another program has replaced it", str(path))
        return descriptor

    def finish(self, name: str, descriptor: int, size: int) -> None:
        """Wait until a file is on the disk. It must have `size` bytes from now on."""
        os.fsync(descriptor)
        self._files[name] = self._files[name][0], size

    def remove(self, name: str) -> None:
        """Remove a file of the output that is no longer needed."""
        (self.folder / name).unlink()
        del self._files[name]

    @property
    def arrived(self) -> Collection[str]:
        """The names of uploaded shards, whose local files are removed."""
        return ()

    def upload(self, name: str) -> None:
        """Upload a complete shard, and remove its local file. Does nothing for a local output."""

    def check(self) -> None:
        """Check that the folder contains exactly the files that were written, and wait until it is on the disk.

        Raises:
            OutputError: another program has changed the folder.
            OSError: the disk fails.
        """
        present_files: dict[str, tuple[_Inode, int]] = {}
        for folder, _folders, files in os.walk(self.folder, onerror=_refuse_all_but_absence):
            for name in files:
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    present_files[path.relative_to(self.folder).as_posix()] = _inode_of(status), status.st_size
            sync_folder(Path(folder))
        changes = sorted(
            name for name in present_files | self._files if present_files.get(name) != self._files.get(name)
        )
        if changes or not self.folder.is_dir():
            what = f"{self.folder / changes[0]}" if changes else f"{self.folder}"
            raise OutputError(f"{what}: another program has changed or removed it while the output was built")


class OutputDir:
    """OUT, and the hidden folder alongside it.

    Attributes:
        work: the hidden folder.
        sends: whether the output is uploaded.
        is_in_place: whether the new output is at OUT; None if that is unknown.
    """

    sends = False

    def __init__(self, out: Path, label: str = "") -> None:
        self.label: str = label or str(out)
        self.is_in_place: bool | None = False
        self.notices: list[str] = []
        self._out = out
        self.work: Path = hidden_path_beside(out, STAGING)
        self._new, self._old, self._lock_file = (self.work / name for name in ("new", "old", "lock"))
        self._lock = -1
        self._words = shlex.quote(self.label)
        self._policy: ResumePolicy | None = None
        self._is_resumption = self._is_resumable = False
        self._new_parents: list[Path] = []
        self._staging: StagingDir | None = None
        self._inode: _Inode | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the staging directory exists."""
        return self._inode is not None

    @property
    def _uploaded_files(self) -> Collection[str]:
        """The names of uploaded files, whose local copies are removed."""
        return ()

    # --- before the merge ---------------------------------------------------------------------------------------------

    def problems(self, inputs: Sequence[Location], size: int, *, overwrite: bool) -> list[str]:
        """All problems with the output.

        Args:
            size: the most bytes of local disk in use at once, in addition to an old output, which is removed last.
        """
        return folder_problems(self._out, inputs, size, overwrite=overwrite)

    def bytes_at_once(self, size: int, largest: int) -> int:
        """The most bytes of local disk in use at once.

        Args:
            size: bytes of all files of all points.
            largest: bytes of the largest file, for all points together.
        """
        return size

    def free_bytes(self) -> int:
        """Free bytes on the disk where the output is built."""
        return free_bytes(self._out)

    def was_killed_after_commit(self) -> bool:
        """Whether a run was killed after it had moved its output to OUT, but before it removed the hidden folder.

        Raises:
            OSError: there is no hidden folder or no OUT.
        """
        return int(self._lock_file.read_bytes()) == self._out.lstat().st_ino

    # --- the beginning ------------------------------------------------------------------------------------------------

    def open(self, overwrite: bool, policy: ResumePolicy | None) -> StagingDir:
        """Create the staging directory, or resume an interrupted run's; clean up after a killed run first."""
        self._policy = policy
        self._new_parents = [folder for folder in self._out.parents if not folder.exists()]
        self._out.parent.mkdir(parents=True, exist_ok=True)
        with held():  # a folder without its lock would not be removed
            self._lock = self._own()
        if self._restore_old_output():
            self.notices.append(f"{self._out}: a killed run had moved it to {self._old}; it has been moved back")
        staging_inode = _inode_at(self._new)
        self._is_resumption = policy is not None and self._fits(policy, staging_inode[1] if staging_inode else None)
        if not self._is_resumption:
            self._remove()
        self._refuse_occupied_place(overwrite)
        self._refuse_immovable_output()
        if not self._is_resumption:
            self._new.mkdir()
        self._inode = _inode_at(self._new)
        assert self._inode is not None
        write_all(self._lock, memoryview(f"{self._inode[1]:>20}".encode()), 0)
        if policy is not None and not self._is_resumption:
            policy.begin(self.work, self._inode[1])
        names_to_keep = policy.files.keys() - self._uploaded_files if policy is not None and self._is_resumption else ()
        for folder, _folders, files in os.walk(self._new):
            for path in (Path(folder, name) for name in files):
                if path.relative_to(self._new).as_posix() not in names_to_keep:
                    path.unlink()
        self._staging = self._open_staging(names_to_keep)
        return self._staging

    def opening_notes(self) -> Iterator[OutputWarning]:
        """Notes for the user at the beginning: that an interrupted run is resumed, or why it is not."""
        if self._policy is not None and self._is_resumption:
            yield ContinueNote(f"{self.label}: continuing: {self._policy.share} of the work was done before")
        elif self._policy is not None and self._policy.reason:
            yield ContinueNote(f"{self.label}: restarts from scratch: {self._policy.reason}")

    def _own(self) -> int:
        if self.work.is_symlink():
            raise OutputError(f"{self.work}: is a link, but the output is built in this folder; remove the link")
        try:
            while True:
                with suppress(FileNotFoundError):  # another process has removed the folder just now
                    try:
                        self.work.mkdir(mode=0o700)
                    except FileExistsError:
                        check_own(self.work)
                    return lock(self._lock_file, wait=False)
        except BlockingIOError as error:
            raise OutputError(
                f"{self.label}: another process is writing it, in {self.work}; wait for it, or choose another folder"
            ) from error

    def _fits(self, policy: ResumePolicy, inode: int | None) -> bool:
        """Whether an interrupted run can be resumed; never if its files are links or belong to another user."""
        for path in (self.work / name for name in _LEFT):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode) or status.st_uid != self.work.lstat().st_uid:
                    return False
        return policy.fits(self.work, inode, self._uploaded_files)

    def _open_staging(self, names_to_keep: Collection[str]) -> StagingDir:
        return StagingDir(self._new, names_to_keep)

    def _refuse_occupied_place(self, overwrite: bool) -> None:
        if _inode_at(self._out) is None:
            return
        if not overwrite:
            raise PlanError(f"{self._out}: {ALREADY_THERE}")
        if not is_replaceable(self._out):
            raise PlanError(f"{self._out}: has changed meanwhile and is not a checkpoint now; choose another folder")

    def _refuse_immovable_output(self) -> None:
        """Refuse an old output that could not be moved at the end, such as a folder in an overlay's lower layer.

        Tries to rename it to the hidden folder, which always fails because that is not empty. If this is the reason for
        the failure, the old output can be moved.
        """
        if _inode_at(self._out) is None:
            return
        try:
            self._out.rename(self.work)
        except OSError as error:
            if error.errno in _IMMOVABLE:
                raise PlanError(
                    f"{self._out}: cannot be moved to make room for the new one: {error.strerror}; remove it yourself, "
                    "or choose another folder"
                ) from error
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    # --- the end ------------------------------------------------------------------------------------------------------

    def publish(self, overwrite: bool) -> None:
        """Move the finished output to OUT."""
        assert self._staging is not None
        self._staging.check()
        self._refuse_occupied_place(overwrite)
        self.is_in_place = None
        if _inode_at(self._out) is None:
            self._new.rename(self._out)
        elif not self._exchange():
            self._out.rename(self._old)
            self._new.rename(self._out)
        self.is_in_place = self._has_new_output()
        if not self.is_in_place:
            raise OSError(errno.EIO, "the file system did not move the folder that was built")
        sync_folder(self._out.parent)

    def _exchange(self) -> bool:
        """Exchange `new` and OUT in one step. Return whether the file system did so."""
        with suppress(AttributeError, TypeError):  # no such call, or no C library that `CDLL(None)` opens
            library = ctypes.CDLL(None, use_errno=True)
            library.renameat2(_HERE, os.fsencode(self._new), _HERE, os.fsencode(self._out), _RENAME_EXCHANGE)
        return self._has_new_output()  # a file server may report a failure although it has exchanged them

    def _has_new_output(self) -> bool:
        return self._inode is not None and _inode_at(self._out) == self._inode

    def close(self, failure: BaseException | None) -> None:
        """Remove the hidden folder, or keep the files of an interrupted run; move the old output back if necessary."""
        if self._lock >= 0:
            if self.is_in_place is None:
                with suppress(OSError):
                    self.is_in_place = self._has_new_output()
            if self._policy is not None and self.is_in_place is False:
                self._is_resumable = self._policy.keeps(failure) if self._staging is not None else self._is_resumption
            try:
                if is_at(self._lock_file, self._lock):  # otherwise another program has removed the folder
                    self._settle()
                    self._leave()
            except OutputError as error:
                self.notices.append(str(error))
            except OSError as error:
                self.notices.append(
                    f"{self.work}: is left over and cannot be removed: {reason(error)}; "
                    f"the next run to {self.label} removes it"
                )
            finally:
                os.close(self._lock)
        with suppress(OSError):
            if _inode_at(self._out) is None:
                for folder in self._new_parents:
                    folder.rmdir()

    def clean_up_interrupted(self) -> list[str]:
        """Clean up as each run does before it begins. Return sentences about what was removed."""
        if not os.path.lexists(self.work):
            return []
        self._lock = self._own()
        try:
            left = any(os.path.lexists(self.work / name) for name in _LEFT)
            back = self._settle()
        finally:
            try:
                self._leave()
            finally:
                os.close(self._lock)
        notes = [f"{self._out}: has been moved back from {self._old}"] if back else []
        return [*notes, f"{self.work}: removed"] if left or not back else notes

    # --- state of the disk --------------------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Move an old output back if necessary, and remove files that are not kept. Return whether one was moved."""
        back = self._restore_old_output()
        if not self._is_resumable:
            self._remove()
        return back

    def _restore_old_output(self) -> bool:
        """Move an old output back if nothing has replaced it; otherwise to `new`. Return whether it was moved back."""
        if _inode_at(self._old) is None:
            return False
        if _inode_at(self._out) is None:
            self._old.rename(self._out)
            sync_folder(self._out.parent)
            return True
        if _inode_at(self._new) is not None:
            raise OutputError(
                f"{self._old}: was at {self._out} before a run was killed, but something else is there now; "
                "move it to another folder, or remove it"
            )
        self._old.rename(self._new)
        return False

    def _remove(self) -> None:
        """Remove files that are no longer needed: first the journal, because it lists the other files."""
        for path in (self.work / name for name in _LEFT):
            if path.is_symlink() or path.is_file():  # no run makes links, so the target of a link is not ours
                path.unlink()
            for _ in range(_TRIES):
                shutil.rmtree(path, ignore_errors=True)
                if _inode_at(path) is None:
                    break
            else:
                shutil.rmtree(path)

    def _leave(self) -> None:
        self._lock_file.unlink()
        try:
            self.work.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):  # otherwise another process has begun or ended there
                raise

    # --- messages -----------------------------------------------------------------------------------------------------

    def words(self, why: str) -> str:
        """The message about an operating-system error (`why`), with the state of the output."""
        if self.is_in_place:
            return f"{self.label}: is the new one and complete, but the file system reported an error: {why}"
        return f"{self.label}: cannot be written: {why}; {self.fate()}"

    def reason(self, error: OSError) -> str:
        """The text of an operating-system error; with the free space if the disk is full."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with suppress(OSError):
                return f"the disk is full ({free_bytes(self._out):,} bytes free)"
        return reason(error, f": {error.filename}" if error.filename else "")

    def fate(self) -> str:
        """A clause that says what is at OUT now."""
        if self.is_in_place:
            return f"{self.label} is the new one and complete"
        try:
            out, old = _inode_at(self._out), _inode_at(self._old)
        except OSError:
            self.is_in_place = None
        if self.is_in_place is None:
            return f"it is unknown whether {self._out} is the new one: look there, and in {self.work}"
        if old is not None and self._lock >= 0:
            back = "" if out else f", and the next run to {self._out} puts it back"
            return f"what was at {self._out} is in {self._old}{back}"
        return (
            f"{self._kept_work_text()}; {self._out} is as it was" if out and self._lock >= 0 else self._kept_work_text()
        )

    def _kept_work_text(self) -> str:
        if not self._is_resumable or self._policy is None:
            return "nothing was kept"
        return (
            f"{self._policy.share} of the work is kept: the same command resumes from there, "
            f"and `ramerge clean {self._words}` removes it"
        )


def _inode_at(path: Path) -> _Inode | None:
    try:
        return _inode_of(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _inode_of(status: os.stat_result) -> _Inode:
    return status.st_dev, status.st_ino


def _refuse_all_but_absence(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
