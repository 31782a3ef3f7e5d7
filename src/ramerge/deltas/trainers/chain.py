"""A trainer's names for the deltas of a run, and the chain from the base to the requested one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ramerge import CheckpointError
from ramerge.core.formats import safetensors
from ramerge.core.storage.location import here
from ramerge.core.tensors.access import access
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.paths import linked_out
from ramerge.deltas.trainers.link import Link
from ramerge.sdk.formats import Opening
from ramerge.sdk.storage import Location

_MOST_LINKS = 10_000


@dataclass(frozen=True)
class TrainerLayout:
    """The layout in which a trainer publishes the deltas of a run.

    Attributes:
        pattern: matches names of version folders; its first group is the number.
        inside: returns the delta's path in such a folder, empty for the folder itself; None without a delta.
        version_of: returns the version of a model from its metadata files; None if unknown.
    """

    name: str
    title: str
    pattern: re.Pattern[str]
    inside: Callable[[Location], str | None]
    read: Callable[[Path, Opening], Link]
    version_of: Callable[[Location], int | None]

    def versions(self, parent: Path) -> dict[int, Path]:
        """Return the version folders of a run in a folder, by number."""
        folders: dict[int, Path] = {}
        paths: list[Path] = []
        with suppress(OSError):  # what cannot be looked at is not there
            paths = sorted(islice(parent.iterdir(), 10 * _MOST_LINKS))
        for path in paths:
            match = self.pattern.fullmatch(path.name)
            if match is None or not path.is_dir():
                continue
            number = int(match[1])
            if number in folders:
                raise CheckpointError(f"{path}: is version {number}, and so is {folders[number]}; remove one of them")
            folders[number] = path
        return folders

    def number(self, folder: Location) -> int | None:
        match = self.pattern.fullmatch(folder.name)
        return int(match[1]) if match else None

    def find(self, folder: Location) -> Location | None:
        """Return the folder with a trainer's delta: this folder, or the newest version in it, unless it also holds a
        model.
        """
        if (name := self.inside(folder)) is not None:
            return folder / name
        if (parent := here(folder)) is None or safetensors.find(parent):
            return None
        try:
            versions = self.versions(parent)
        except CheckpointError:  # `links` says so
            return folder
        newest = versions[max(versions)] if versions else None
        name = self.inside(newest) if newest is not None else None
        return newest / name if newest is not None and name is not None else None


def links(layout: TrainerLayout, folder: Path, base: Checkpoint, opening: Opening) -> list[Link]:
    """Find the deltas of a run that lead from a model to a version, in order."""
    home = (_numbered_folder(layout, folder) or folder.absolute()).parent  # with all versions of a run
    siblings = layout.versions(home)
    first = layout.version_of(base.directory)
    chain = [_read_link(layout, folder, opening)]
    while not chain[0].is_whole and (earliest := chain[0]).before != (earliest.root if first is None else first):
        number = earliest.before
        if first is not None and number < first:
            raise CheckpointError(
                f"{earliest.folder}: builds on version {number}, but {base.directory} is version {first}; give the "
                "model that the deltas were made for as the base"
            )
        place = siblings[number] / (layout.inside(siblings[number]) or "") if number in siblings else None
        if place is None:
            raise CheckpointError(
                f"{earliest.folder}: builds on version {number}, which is not in {home}; give all versions from the "
                "base on, or that version as the base"
            )
        if not opening.allow_outside_links and access(place).leads_outside(home):
            raise CheckpointError(linked_out(place))
        if len(chain) == _MOST_LINKS:
            raise CheckpointError(f"{folder}: takes more than {_MOST_LINKS:,} deltas")
        chain.insert(0, _read_link(layout, place, opening))
        if chain[0].version != number:
            raise CheckpointError(f"{place}: says that it is version {chain[0].version}, but its name says {number}")
    return chain


def _read_link(layout: TrainerLayout, folder: Path, opening: Opening) -> Link:
    link = layout.read(folder, opening)
    if not link.is_whole and link.before >= link.version:
        raise CheckpointError(f"{folder}: says that version {link.version} builds on version {link.before}")
    place = _numbered_folder(layout, folder)
    number = layout.number(place) if place else None
    if number not in (None, link.version):
        raise CheckpointError(f"{folder}: says that it is version {link.version}, but its name says {number}")
    return link


def _numbered_folder(layout: TrainerLayout, folder: Path) -> Path | None:
    """Return the folder named after the version: this folder, or its parent."""
    absolute = folder.absolute()
    return next((place for place in (absolute, absolute.parent) if layout.number(place) is not None), None)


def count_of(fingerprint: Mapping[str, object], key: str, place: Location, what: str = "") -> int:
    """Return a count in a trainer's file, a number or digits, after checking it."""
    value = fingerprint.get(key)
    if isinstance(value, str) and re.fullmatch("[0-9]{1,15}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise CheckpointError(f"{place}: {what}{key} must be a number, not {value!r:.100}")
    return value
