"""The interface of formats: how to recognize and open a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage.location import Location, here
from ramerge.core.tensors.access import access
from ramerge.core.tensors.checkpoint import Checkpoint, Contents
from ramerge.core.tensors.paths import linked_out

ADAPTER = "adapter"
"""The name of the format of LoRA adapters, which other modules treat specially."""


class MissingBaseError(CheckpointError):
    """A folder holds changes to a model, but its base is not known."""


@dataclass(frozen=True)
class Opening:
    """Options and the base with which a format opens a folder.

    Attributes:
        allow_outside_links: whether files may be links that lead out of the folder.
        base: the model that an adapter or a delta changes; None if it is not known.
    """

    allow_outside_links: bool = False
    base: Checkpoint | None = None

    def check_files(self, folder: Location, names: Iterable[str], *, in_index: bool) -> None:
        """Check that weight files exist, and that no link leads out of the folder.

        Args:
            folder: a folder of the checkpoint.
            names: the names of its weight files.
            in_index: whether an index names the files, for messages.

        Raises:
            CheckpointError: files are missing, or links lead outside; all are listed.
        """
        paths, problems = [folder / name for name in names], list[str]()
        for path in paths:
            if path.is_file():
                continue
            if path.exists():
                problems.append(f"{path}: is not a regular file")
            elif path.is_symlink():
                problems.append(f"{path}: is a broken link")
            else:
                missing = "is missing, but the index names it" if in_index else "is missing"
                problems.append(f"{path}: {missing}")
        if not self.allow_outside_links:
            outside = [path for path in (*paths, folder / "config.json") if access(path).leads_outside(folder)]
            problems += [linked_out(*outside)] if outside else []
        if problems:
            raise CheckpointError(problems)

    def require(self, folder: Location, what: str, model: str = "the model") -> Checkpoint:
        """Return the base of a folder that holds changes to a model.

        Args:
            folder: the folder.
            what: the folder's content, such as `a delta`, for the message.
            model: a description of the required base, for the message.

        Raises:
            MissingBaseError: no base is known.
        """
        if self.base is None:
            raise MissingBaseError(
                f"{folder}: is {what} and needs its base model: give {model} as the base (--base MODEL), or write "
                f"MODEL+{folder}"
            )
        return self.base


def local(open_folder: Callable[[Path, Opening], Contents]) -> Callable[[Location, Opening], Contents]:
    """Wrap the `open` of a format that can only read local folders.

    The returned function raises CheckpointError for a remote folder.
    """

    def open_local(folder: Location, opening: Opening) -> Contents:
        if (place := here(folder)) is None:
            raise CheckpointError(
                f"{folder}: holds files of a kind that is read on this machine only (remote: safetensors files, "
                "adapters and deltas in them); copy the folder here, or convert it first (ramerge convert)"
            )
        return open_folder(place, opening)

    return open_local


@dataclass(frozen=True)
class Format:
    """A format of checkpoints.

    Attributes:
        name: the name in records and messages.
        title: a readable name.
        find: returns the folder that holds the weights, given a user's folder: this folder, or one inside of it; None
            if it is not in this format. It only looks at names of files.
        open: opens the folder that `find` returned. It reads headers, not weights, and raises CheckpointError with all
            problems.
        needs_base: whether a folder holds changes to a model, so that it can be added to a model.
        priority: formats with higher priority are tried first; formats of equal priority must not recognize the same
            folders.
        interface: the version of the interface that a plug-in's format is written for; see `ramerge.sdk.methods`.
    """

    name: str
    title: str
    find: Callable[[Location], Location | None]
    open: Callable[[Location, Opening], Contents]
    needs_base: bool = False
    priority: int = 0
    interface: int | None = None
