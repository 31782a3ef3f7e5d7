"""The interface of places elsewhere that a model is sent to, file by file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramerge.checkpoint.storage.place import Place

if TYPE_CHECKING:
    from ramerge.checkpoint.storage.board import Board

Reaches = Callable[[int], None]
"""Waits until so many of a file's first bytes are final. Raises `SendError` if they will never be: then what is under
way is broken off."""


class Destination(ABC):
    """A folder elsewhere that will hold a model.

    Weights are sent one file after another, while they are still made. Before `commit` nobody sees a model there, and
    afterwards it is complete. All of this is done by one run, which has an id of its own, so that a later run knows
    what it has left.

    Attributes:
        address: the folder as messages name it, without credentials.
        name: the model's name for its card.
        stage: the folder on this machine in which files lie until they are sent.
        result: what names the model that is there now; the address, unless something names it more exactly.
        joins: whether another process takes the folder, and this one only sends to it.
        carries: whether ranks can tell each other through it what they do (`board`), so that they need no folder that
            all see.
    """

    address: str
    name: str
    stage: Path
    result: str
    joins = False
    carries = False

    def __str__(self) -> str:
        return self.address

    @abstractmethod
    def problems(self, inputs: Sequence[Place], run: Callable[[], str | None], *, overwrite: bool) -> list[str]:
        """Why no model can be sent there, as far as this is known without sending anything.

        Args:
            inputs: files and folders that are read.
            run: gives the run that will be continued, if there is one. It is asked after the place, because another
                rank may begin the run meanwhile.
            overwrite: whether what is there will be replaced.
        """

    @abstractmethod
    def claim(self, run: str, *, overwrite: bool, shared: Collection[str] = ()) -> None:
        """Take the folder for a run. What is there stays as it is.

        Args:
            run: the run.
            overwrite: whether what is there will be replaced.
            shared: the large files, if several processes send them.

        Raises:
            OutputError: another run has taken it, it holds something, or it cannot be written to.
        """

    @abstractmethod
    def join(self, shared: Collection[str]) -> None:
        """Take part in sending to a folder that another process has claimed.

        Args:
            shared: as that process has given them to `claim`.
        """

    def board(self, work: Path, own: str, world: int) -> Board | None:
        """What carries small files from rank to rank; None where they need a folder that all see. See `storage.board`.

        Args:
            work: the rank's own folder.
            own: its number and a random one.
            world: how many ranks there are.
        """
        return None

    @abstractmethod
    def holds(self, sent: Mapping[str, str]) -> bool:
        """Whether files are there as they were sent.

        Args:
            sent: by the file's name, what `send` has said.

        Raises:
            SendError: the server cannot be reached, or denies access.
        """

    @abstractmethod
    def clear(self, run: str, sent: Collection[str]) -> None:
        """Remove what the folder held before, but for files that were sent. First what makes it a model.

        Raises:
            SendError: as for `holds`.
        """

    @abstractmethod
    def send(self, name: str, path: Path, reaches: Reaches) -> str:
        """Send a large file. Gives what tells later whether it is there as it was sent.

        It is not visible before all of its bytes are final.

        Args:
            name: the file.
            path: where it lies here. It has its size already, and is filled while it is sent.
            reaches: how far it is final. Bytes behind that must not be read.

        Raises:
            SendError: as for `holds`; or sending does not go on.
        """

    @abstractmethod
    def commit(self, run: str, files: Mapping[str, Path], sent: Mapping[str, str]) -> None:
        """Send the small files, what makes the folder a model last.

        Args:
            run: the run.
            files: the small files by name.
            sent: the large ones, as for `holds`.

        Raises:
            SendError: as for `holds`.
        """

    @abstractmethod
    def discard(self, run: str | None) -> list[str]:
        """Remove what a run has sent, if it was not committed.

        Args:
            run: the run; None for any.

        Returns:
            What was done, in words.

        Raises:
            SendError: as for `holds`.
        """
