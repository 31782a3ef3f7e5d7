"""Find the folder of a model, given a path, or a Hugging Face hub id with an optional revision.

`MODEL+ADAPTER`, with any number of adapters, is a model with LoRA adapters on top of it, as in mergekit.
`ADAPTER+ADAPTER` are adapters on the base of the recipe. Deltas may be used like adapters. An existing path is taken
literally, even if it contains a plus.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from ramerge.core.foundation.errors import CheckpointError, DownloadNote, reason
from ramerge.core.foundation.extras import install_command
from ramerge.core.foundation.files import no_such_folder
from ramerge.core.foundation.text import NOT_UTF8, is_unicode, quoted
from ramerge.core.storage import hub
from ramerge.core.storage.location import Location, PathStyle, Remote
from ramerge.core.storage.schemes import is_remote, on_hub, open_remote

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?(@[\w./-]+)?")
# A plus before another remote name separates two names.
_PLUS = re.compile(r"\+(?=[a-z][a-z0-9]*://)")


@dataclass(frozen=True)
class FoundModel:
    """A model in a recipe, and where it was found.

    Attributes:
        written: the text in the recipe.
        directory: the folder of the model, without its adapters; None if it was not found.
        hub_id: its id if it comes from the hub.
        revision: its revision on the hub.
        adapters: the adapters on top of it, in order.
        members: the models of a soup, by name; `directory` is the folder of the first.
    """

    written: str
    directory: Location | None
    hub_id: str | None = None
    revision: str | None = None
    adapters: tuple[FoundModel, ...] = ()
    members: tuple[tuple[str, FoundModel], ...] = ()

    @property
    def parts(self) -> tuple[FoundModel, ...]:
        """The model itself, and the adapters on top of it; for a soup, the parts of all members."""
        if self.members:
            return tuple(part for _, member in self.members for part in member.parts)
        return (replace(self, adapters=()), *self.adapters)

    @property
    def folders(self) -> tuple[Location, ...]:
        """The folders of all parts that were found."""
        return tuple(part.directory for part in self.parts if part.directory is not None)

    def spelled_out(self, paths: PathStyle) -> str:
        """A text by which `resolve` finds the model again: a path in the form of `paths`, or a hub id with revision."""
        own = f"{self.hub_id}@{self.revision}" if self.hub_id else paths.of(self.folder)
        return "+".join([own, *(adapter.spelled_out(paths) for adapter in self.adapters)])

    @property
    def folder(self) -> Location:
        """The folder of a model that was found."""
        assert self.directory is not None, self.written
        return self.directory

    @property
    def location(self) -> str:
        """The folders, joined by `+`, for messages; the text as written if the model was not found, or is a soup."""
        if self.directory is None or self.members:
            return self.written
        return "+".join([str(self.directory), *(adapter.location for adapter in self.adapters)])


def is_hub_id(text: str) -> bool:
    """Whether a text that is not an existing path is looked up on the hub."""
    is_path = text.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(text)
    return not is_path and ("@" in text or text.count("/") == 1)


def resolve(text: str, folder: Path) -> FoundModel:
    """Find a model: a path relative to `folder`, or else a hub id `name` or `owner/name`, with an optional `@revision`.

    Texts that begin with a scheme such as `s3://` are remote (`storage.schemes`); texts that begin with `hub:` are hub
    ids. If no such folder exists, the text may be a model and its adapters, joined by `+`. With `HF_HUB_OFFLINE=1`,
    only the hub's cache is used.

    Raises:
        CheckpointError: the text is invalid, or the hub cannot provide the model. A missing folder is not an error.
    """
    if not text.strip():
        raise CheckpointError("a model's name is empty; give a folder or a hub id")
    if is_remote(text):
        return _find_remote(text, folder)
    try:
        path = folder / Path(text).expanduser()
        if not is_unicode(str(path)):
            raise CheckpointError(f"{quoted(text)}: {NOT_UTF8}")
        path.stat()  # refuses links that form a loop
    except FileNotFoundError:
        pass
    except (ValueError, RuntimeError, OSError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise CheckpointError(f"{quoted(text)}: is neither a path nor a hub id: {why}") from error
    if "+" in text and not path.exists():
        return resolve_all(_split_at_plus(text), folder)
    if path.exists() or not is_hub_id(text):
        return FoundModel(text, path)
    return _find_on_hub(text, path)


def resolve_all(texts: Sequence[str], folder: Path) -> FoundModel:
    """Find a model, and the adapters and deltas on top of it, in order."""
    first, *adapters = [resolve(text, folder) for text in texts]
    return replace(first, written="+".join(texts), adapters=tuple(adapters)) if adapters else first


def _split_at_plus(text: str) -> list[str]:
    parts = text.split("+")
    if not all(parts):
        raise CheckpointError(f"{quoted(text)}: a plus stands between a model and an adapter; one of them is missing")
    return parts


def _find_remote(text: str, folder: Path) -> FoundModel:
    """Find a remote model, and adapters and deltas on top of it. A name with a plus is taken literally if it exists."""
    if (name := on_hub(text)) is not None:
        if "+" in name:
            return resolve_all(_split_at_plus(text), folder)
        if not _HUB_ID.fullmatch(name):
            raise CheckpointError("hub: in front of a model must be followed by owner/name or owner/name@revision")
        return _find_on_hub(name, folder / name)
    first, *adapters = _PLUS.split(text)
    if adapters:
        return resolve_all([first, *adapters], folder)
    place = open_remote(text)
    if "+" in text and not place.is_dir():
        return resolve_all(_split_at_plus(text), folder)
    return FoundModel(str(place), place)


def _find_on_hub(text: str, path: Path) -> FoundModel:
    """Find a model on the hub at the current commit of its revision: in the hub's cache if it is complete there.

    If the hub cannot be reached, the revision in the cache is used. Without obstore, the model is downloaded.
    """
    from huggingface_hub.errors import RevisionNotFoundError

    name, _, revision = text.partition("@")
    try:
        commit, files = hub.commit_of(name, revision or None)
    except hub.failures() as error:
        directory = None if isinstance(error, RevisionNotFoundError) else _cached_snapshot(name, revision)
        if directory is not None:
            return FoundModel(text, directory, name, revision or directory.name)
        raise CheckpointError(not_found(text, path, error)) from error
    cached = _cached_snapshot(name, commit)
    if cached is not None and all((cached / key).is_file() for key in files):
        return FoundModel(text, cached, name, revision or commit)
    if find_spec("obstore") is None:
        from rich.filesize import decimal

        size = decimal(sum(version.nbytes for version in files.values()))
        note = (
            f"{text}: downloads {size} into the hub's cache; without a download, by range: {install_command('remote')}"
        )
        warnings.warn(note, DownloadNote, stacklevel=1)
        with hub.hub_errors(f"{name}@{commit}"):
            return FoundModel(text, _fetch_snapshot(name, commit, local_files_only=False), name, revision or commit)
    return FoundModel(text, Remote(hub.Hub(name, commit, files)), name, revision or commit)


def _cached_snapshot(name: str, revision: str) -> Path | None:
    try:
        return _fetch_snapshot(name, revision, local_files_only=True)
    except hub.failures():
        return None


def _fetch_snapshot(name: str, revision: str, *, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            name,
            revision=revision or None,
            allow_patterns=hub.PATTERNS,
            ignore_patterns=hub.UNWANTED,
            local_files_only=local_files_only,
        )
    )


def not_found(text: str, path: Path, error: Exception) -> str:
    """The message about a name that is neither a folder nor a model on the hub."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if path.parent.is_dir():  # then the text is probably a path: an owner's name is rarely a local folder
        answer = "" if hub.gave_no_answer(error) else f" ({hub.error_text(error)})"
        return no_such_folder(path, f", and the hub provides no such model{answer}")
    if isinstance(error, OfflineModeIsEnabled):
        return (
            f"{text}: there is no folder {path}, the hub's cache does not have this model, and the hub is not asked "
            "because HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set; check the path, unset the variable, or download "
            "the model first (hf download)"
        )
    nowhere = "there is no folder of this name" if str(path) == text else f"there is no folder {path}"
    return (
        f"{text}: {nowhere}, and the hub cannot provide it: {hub.error_text(error)}; correct the path, or download the "
        "model first (hf download)"
    )
