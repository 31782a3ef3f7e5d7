"""Formats of trainers' deltas: unpacks a chain once into the user's cache, as one delta, and opens it from there.

The name in the cache is a digest of the identities of all files of the chain and of the model under it. The first
process unpacks, under a lock, into a temporary folder, and renames it when it is complete; the next process removes
leftovers of a killed process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path

from ramerge import CheckpointError
from ramerge.core.formats.format import local
from ramerge.core.output.staging import StagingDir
from ramerge.core.storage.own_files import DELTA_INDEX
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.deltas import format as delta
from ramerge.deltas.index import VERSION
from ramerge.deltas.trainers.chain import TrainerLayout, links
from ramerge.deltas.trainers.convert import convert
from ramerge.deltas.trainers.link import Link, WholeTensors
from ramerge.sdk.files import lock, store
from ramerge.sdk.formats import Format, Opening
from ramerge.sdk.tensors import Contents, identify

_KIND = "deltas"
_MOST_LINKS = 32


def format_of(layout: TrainerLayout) -> Format:
    """Make the format of a trainer's layout, for the table of formats."""

    def open_folder(folder: Path, opening: Opening) -> Contents:
        base = opening.require(folder, "a delta", "the model that training started from")
        chain = links(layout, folder, base, opening)
        place = unpacked(base, chain, opening)
        contents = delta.open_folder(place, opening)
        numbers = [str(link.version) for link in chain]
        versions = f"version {numbers[0]}" if len(numbers) == 1 else f"versions {numbers[0]} to {numbers[-1]}"
        description = contents.notes[0].partition(": ")[2]
        note = (
            f"{folder}: {versions} of {layout.title}, unpacked to {place}, which may be deleted at any time and is "
            f"made again when it is needed: {description}"
        )
        tensors = {name: contents.tensors[name] for name in base.tensors}  # in the model's order, not the chain's
        return replace(contents, tensors=tensors, notes=(note, *contents.notes[1:]))

    # before safetensors, whose names some of them have
    return Format(layout.name, layout.title, layout.find, local(open_folder), needs_base=True, priority=90)


def unpacked(base: Checkpoint, chain: Sequence[Link], opening: Opening) -> Path:
    """Unpack a chain into the user's cache as one delta, unless it is already there; return the folder."""
    home = store.folder(_KIND)
    if home is None:
        raise CheckpointError(
            f"{chain[-1].folder}: there is no home folder to unpack it to; set RAMERGE_CACHE to a folder for that"
        )
    sidecars = delta.sidecar_files(base)
    digest = hashlib.sha256(f"{VERSION}".encode())
    for group in ({**base.files, **identify(sidecars.values())}, *(link.files for link in chain)):
        for path, identity in sorted(group.items(), key=lambda item: str(item[0])):
            digest.update(repr((os.fsencode(str(path.resolve())), astuple(identity))).encode())
        digest.update(b"\n")
    place = home / digest.hexdigest()[:40]
    with store.entry(place):
        if not (place / DELTA_INDEX).is_file():
            _write_unpacked(place, base, _shorten_chain(base, chain, opening))
    return place


def _shorten_chain(base: Checkpoint, chain: Sequence[Link], opening: Opening) -> Sequence[Link]:
    """Shorten a chain: unpack earlier links into one delta first.

    Each link takes memory for its decoders while the chain is applied.
    """
    link_count = (len(chain) - 1) // _MOST_LINKS * _MOST_LINKS
    if not link_count:
        return chain
    contents = delta.open_folder(unpacked(base, chain[:link_count], opening), opening)
    last = chain[link_count - 1]
    return [WholeTensors(last.folder, last.version, last.before, contents.files, contents.tensors), *chain[link_count:]]


def _write_unpacked(place: Path, base: Checkpoint, chain: Sequence[Link]) -> None:
    guard = place.with_name(f".{place.name}.lock")
    partial = place.with_name(f".{place.name}.partial")
    lock_descriptor = lock(guard, wait=True)
    try:
        if (place / DELTA_INDEX).is_file():
            return
        for left in (place, partial):  # of a killed process, or incomplete
            if left.exists():
                shutil.rmtree(left)
        partial.mkdir(mode=0o700)
        try:
            staging = StagingDir(partial)
            convert(base, chain, staging)
            staging.check()
            partial.rename(place)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        with suppress(OSError):
            guard.unlink()
        os.close(lock_descriptor)
