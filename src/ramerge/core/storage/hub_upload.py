"""Upload of a model to the hub: `hub:owner/name`, or `hub:owner/name@branch`.

Shards are uploaded as large files (LFS), which are invisible until a commit names them. A single commit adds all files,
so no part of a model is visible before it is complete. huggingface_hub does the uploading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ramerge.core.foundation.errors import CheckpointError, OutputError, PlanError, RamergeError, SendError
from ramerge.core.foundation.text import shown, without_secrets
from ramerge.core.storage import hub
from ramerge.core.storage.location import Location
from ramerge.core.storage.upload import DefeatedError, UploadRun

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, HfApi, ModelInfo

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:@(\w[\w.-]*(?:/\w[\w.-]*)*))?")
_MAIN = "main"
# The files in a new repository.
_OF_THE_HUB = (".gitattributes",)
_ACCESS = "log in with a token that may write there (hf auth login, or HF_TOKEN)"


class HubUpload:
    """A branch of a repository to which a model is uploaded; has the methods of `BucketUpload`.

    Args:
        text: `owner/name` or `owner/name@branch`.
        staging: local folder for files until they are uploaded.
        public: whether a new repository is public. An existing repository must have the same visibility.
    """

    needs_index = False
    is_published = True

    def __init__(self, text: str, staging: Path, *, public: bool) -> None:
        match = _NAME.fullmatch(text)
        if match is None:
            name, at, branch = text.partition("?")[0].partition("@")
            if at and ":" in name:  # it may be a token
                name = "…"
            raise CheckpointError(
                f"hub:{name}{at}{branch}: must be hub:owner/name or hub:owner/name@branch, such as hub:me/merged; a "
                "branch is one or more names with a slash between them"
            )
        self.name: str = match[1]
        self._branch: str = match[2] or _MAIN
        self.address: str = f"hub:{text}"
        self.result: str = self.address
        self.staging = staging
        self._public = public

    def __str__(self) -> str:
        return self.address

    def problems(self, inputs: Sequence[Location], *, overwrite: bool, resumes: bool) -> list[str]:
        """Why nothing can be uploaded. Inputs are pinned to a commit, so their repository may be the target."""
        try:
            with self._readable_errors():
                if _api().whoami().get("auth", {}).get("accessToken", {}).get("role") == "read":
                    return [f"{self.address}: the token may only read; {_ACCESS}"]
            self._refuse_existing(overwrite=overwrite)
        except (OutputError, PlanError) as error:
            return list(error.messages)
        return []

    def _refuse_existing(self, *, overwrite: bool) -> None:
        main = self._model_info(_MAIN)
        if main is not None and not main.private and not self._public:
            raise PlanError(f"{self.address}: is public; pass --public, or choose another name")
        if main is not None and main.private and self._public:
            raise PlanError(f"{self.address}: is private already; make it public on the hub, or leave out --public")
        if (names := self._branch_state()[1]) and not overwrite:
            raise PlanError(
                f"{self.address}: holds files ({shown(', '.join(names), 80)}); choose another name or branch, or pass "
                "--overwrite"
            )

    def _model_info(self, revision: str) -> ModelInfo | None:
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        with self._readable_errors():
            try:
                return _api().model_info(self.name, revision=revision)
            except (RepositoryNotFoundError, RevisionNotFoundError):
                return None

    def _branch_state(self) -> tuple[str | None, list[str]]:
        """The branch's current commit (None if there is none), and the names of its files, except the hub's own."""
        info = self._model_info(self._branch)
        if info is None:
            return None, []
        return info.sha, sorted({file.rfilename for file in info.siblings or ()}.difference(_OF_THE_HUB))

    def begin(self, run: UploadRun, *, overwrite: bool) -> None:
        """Create the repository and the branch, begin a run, and record the branch's commit."""
        self._refuse_existing(overwrite=overwrite)
        with self._readable_errors():
            _api().create_repo(self.name, private=not self._public, exist_ok=True)
            if self._branch != _MAIN:
                _api().create_branch(self.name, branch=self._branch, exist_ok=True)
        run.begin({"commit": self._branch_state()[0]})

    def resumes(self, run: UploadRun) -> bool:
        """Whether nothing was committed since the run began. Only the commit shows whether its uploads still exist."""
        return run.initial_tags.get("commit") == self._branch_state()[0]

    def put(self, run: UploadRun, name: str, path: Path) -> str:
        """Upload a shard under its final name; it is invisible until a commit names it."""
        from huggingface_hub import CommitOperationAdd

        addition = CommitOperationAdd(name, path)
        with self._readable_errors(name), _hide_progress_bars():
            _api().preupload_lfs_files(self.name, [addition], revision=self._branch, free_memory=False)
        if not addition._is_uploaded:  # noqa: SLF001  # huggingface_hub has no other way to check
            raise SendError(f"{self.address}/{name}: the repository's .gitattributes does not take it as a large file")
        info = addition.upload_info
        return json.dumps([info.sha256.hex(), info.size, info.sample.hex()])

    def commit(self, run: UploadRun, files: Mapping[str, Path]) -> None:
        """Commit all files, if the branch is still at the commit at which the run began.

        Raises:
            DefeatedError: another process has committed to the branch.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        commit, existing_names = self._branch_state()
        old = [name for name in existing_names if name not in files and name not in run.receipts]
        operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
            *(CommitOperationDelete(name) for name in old),
            *(CommitOperationAdd(name, path) for name, path in files.items()),
            *(_commit_addition(name, digest) for name, digest in run.receipts.items()),
        ]
        if run.initial_tags.get("commit") != commit:
            raise DefeatedError(
                f"{self.address}: another process has committed there since this merge began, so nothing is put there; "
                f"choose another branch, or run it again with --overwrite"
            )
        with self._readable_errors(), _hide_progress_bars():
            hub_commit = _api().create_commit(
                self.name,
                operations,
                commit_message="Merge with ramerge",
                revision=self._branch,
                parent_commit=run.initial_tags.get("commit"),
            )
        self.result = f"hub:{self.name}@{hub_commit.oid}"

    def abort(self, run: UploadRun) -> None:
        """Do nothing: the hub removes files that no commit names."""

    def clean(self) -> list[str]:
        """Do nothing: interrupted runs leave nothing on the hub."""
        return []

    @contextmanager
    def _readable_errors(self, name: str = "") -> Iterator[None]:
        place = f"{self.address}/{name}" if name else self.address
        try:
            yield
        except Exception as error:
            if not isinstance(error, (*hub.failures(), RuntimeError)) or isinstance(error, RamergeError):
                raise
            status = getattr(getattr(_original_error(error), "response", None), "status_code", None)
            text = without_secrets(hub.error_text(_original_error(error)))
            if status in (401, 403):
                raise SendError(f"{place}: access is denied ({status}); {_ACCESS}: {text}") from None
            raise SendError(f"{place}: the hub cannot take it: {text}; {_ACCESS}") from None


def _api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(library_name="ramerge")


def _original_error(error: BaseException) -> BaseException:
    """The cause of an error, if huggingface_hub has wrapped the error of a thread."""
    return error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error


@contextmanager
def _hide_progress_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    was = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not was:
            enable_progress_bars()


def _commit_addition(name: str, receipt: str) -> CommitOperationAdd:
    """A commit operation for a file that was uploaded before, possibly by another process."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.lfs import UploadInfo

    digest, size, sample = json.loads(receipt)
    addition = CommitOperationAdd(name, b"")
    addition.upload_info = UploadInfo(size=size, sample=bytes.fromhex(sample), sha256=bytes.fromhex(digest))
    # huggingface_hub has no other way to add a file that was uploaded before
    addition._upload_mode, addition._should_ignore, addition._is_uploaded = "lfs", False, True  # noqa: SLF001
    return addition
