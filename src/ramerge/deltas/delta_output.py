"""Writes a merge as a delta on its base, `ramerge merge --as-delta`: its sink, then its files."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ramerge import Record
from ramerge.core.engine.card import model_card
from ramerge.core.engine.sidecars import model_sidecars
from ramerge.core.engine.worker import Sink
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.storage.own_files import BLOCK, COMPANIONS
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.deltas.codec import TOGETHER, Compression, Encoder
from ramerge.deltas.collect import collect
from ramerge.deltas.format import sidecar_files
from ramerge.deltas.record import name_of
from ramerge.deltas.spool import Spool, SpooledKind, SpooledTensor, SpoolSlots, spool_of
from ramerge.deltas.word_patches import Bytes
from ramerge.deltas.write import DeltaWriter
from ramerge.sdk.outputs import OpenOutput, records_of
from ramerge.sdk.passes import Passes
from ramerge.sdk.plans import Block, MergePlan
from ramerge.sdk.tensors import Files, Reader, Tensor

_COMPRESSION: Compression = "zstd"
"""The compression of a merge written as a delta, which should be small because it is made to be sent."""


class _SpoolPlace(NamedTuple):
    """Position of a merged tensor's part in the spool.

    Attributes:
        begin: offset of the part in the entry, in bytes.
        base: the base's tensor to compare with in the sink; None if the comparison is done later, or never.
    """

    entry: int
    begin: int
    base: Tensor | None


class Patches(Sink):
    """Sink of a merge as a delta: compares merged blocks with the base's, and stores them in a spool.

    A pickled copy fills the same spool.
    """

    in_order = False

    def __init__(self, plan: MergePlan, base: Checkpoint, spool: Spool) -> None:
        numbers = {entry.name: number for number, entry in enumerate(spool.slots.entries)}
        tensors = {entry.name: base.tensors[entry.name] for entry in spool.slots.entries if entry.kind == "encoded"}
        self._places = [
            [_SpoolPlace(numbers[part.name], part.begin, tensors.get(part.name)) for part in tensor.parts]
            for tensor in plan.tensors
        ]
        self._files = Files(MappingProxyType(dict(base.files)))
        self._mine = threading.local()
        self.spool = spool

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_mine"}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        vars(self).update(state, _mine=threading.local())

    def write(self, point: int, tensor: int, part: int, start: int, data: Bytes) -> None:
        place = self._places[tensor][part]
        if place.base is None:
            self.spool.put_bytes(place.entry, place.begin + start, data)
            return
        size = self.spool.slots.entries[place.entry].span * itemsize(place.base.dtype)
        if not hasattr(self._mine, "encoder"):
            self._mine.encoder, self._mine.reader = Encoder(_COMPRESSION), Reader(self._files)
        encoder: Encoder = self._mine.encoder
        reader: Reader = self._mine.reader
        width = itemsize(place.base.dtype)
        for begin in range(0, data.size, size):
            new, slot = data[begin : begin + size], (start + begin) // size
            first = slot * size // width
            reader.begin(first, first + new.size // width)
            old = reader.block(place.base)[: new.size].view(f"u{width}")
            changes = encoder.encode_all(old, np.ascontiguousarray(new).view(f"u{width}"))
            self.spool.put(place.entry, slot, changes)

    def advance(self, block: Block) -> None:
        """Ignore the end of a block: the spool needs no order."""

    def sync(self) -> None:
        self.spool.sync()

    def close(self) -> None:
        self.spool.close()
        self._files.close()


def slots_of(plan: MergePlan, base: Checkpoint) -> SpoolSlots:
    """Return the slots of the spool, for the output's tensors."""
    slots: dict[str, SpooledTensor] = {}
    for tensor in plan.tensors:
        for part in tensor.parts:
            below = base.tensors.get(part.name)
            kind: SpooledKind = "whole"
            together = TOGETHER
            if below is not None and (below.dtype, below.shape) == (part.dtype, part.shape):
                block = tensor.block(plan.resources.block_elements)
                fits = [each for each in (TOGETHER, 2, 1) if block % (each * BLOCK) == 0 or block >= below.elements]
                kind = "encoded" if fits and part.size is None else "merged"
                together = fits[0] if fits else TOGETHER
            slots[part.name] = SpooledTensor(part.name, part.dtype, part.shape, kind, together)
    return SpoolSlots(list(slots.values()))


def write(
    plan: MergePlan, passes: Passes, output: OpenOutput, warnings: Sequence[str], start: float
) -> tuple[Record, ...]:
    """Merge, compare each block with the base's, and write the delta, its record and its card."""
    below: Checkpoint = plan.output.details
    slots = slots_of(plan, below)
    spool = spool_of(slots, output.spool_folder, output.journal.before_sync)
    with closing(Patches(plan, below, spool)) as patches:
        passes.count()
        passes.merge(patches)
        with DeltaWriter(output.staging, [entry.name for entry in slots.entries]) as writer:
            collect(spool, writer, below, _COMPRESSION)
            (record,) = records_of(plan, passes, writer.written, warnings, start)
            size, whole = writer.written, sum(tensor.bytes_written for tensor in plan.tensors)
            text = (
                f"written as a delta on the base: {size:,} bytes, "
                f"{size / whole if whole else 0.0:.1%} of the {whole:,} of the model; ramerge apply gives the model"
            )
            record = replace(record, notes=(*record.notes, text))
            theirs = sidecar_files(replace(below, outside_links=True))
            for shard in plan.shards:
                writer.header(shard.name, list(shard.offsets), shard.header)
            for name, content in model_sidecars(plan, plan.points[0], record, folder="MODEL"):
                writer.companion(name, content, theirs.get(name))
            writer.finish()
    # card and record are also written next to the delta's own files
    card = model_card(plan, plan.points[0], record, _usage_text(plan, size, whole), recipe=f"{COMPANIONS}/ramerge.yaml")
    output.staging.write("README.md", card)
    output.staging.write("ramerge.json", record.to_json())
    return (record,)


def _usage_text(plan: MergePlan, size: int, whole: int) -> str:
    base = plan.inputs.base
    place = f"{name_of(base)}, each by its folder or hub id" if base.adapters else "the folder or hub id of the base"
    delta, model = (f"{each / 1e6:,.1f} MB" for each in (size, whole))
    return f"""This folder is a delta: it holds what the model has changed of its base. It takes
{delta}, where the model takes {model}. This gives the model, if BASE is {place}:

```sh
ramerge apply --base BASE THIS_FOLDER MODEL
```
"""
