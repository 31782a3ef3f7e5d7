"""Makes a delta of a base and an agent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ramerge.checkpoint.arena import Arena, room
from ramerge.checkpoint.delta.beside import write_files
from ramerge.checkpoint.delta.codec import BLOCK, TOGETHER, Compression, Encoder
from ramerge.checkpoint.delta.collect import collect
from ramerge.checkpoint.delta.layout import Index
from ramerge.checkpoint.delta.spool import Entry, Slots, Spool
from ramerge.checkpoint.delta.write import DeltaWriter
from ramerge.checkpoint.identity import Identity, check_unchanged
from ramerge.checkpoint.model import Checkpoint
from ramerge.checkpoint.outputs import Out
from ramerge.checkpoint.read import Files, Reader, Span
from ramerge.checkpoint.storage.place import Place, Remote
from ramerge.checkpoint.tensor import Tensor
from ramerge.engine import facts
from ramerge.engine.executors.executor import Executor, in_runs
from ramerge.engine.site import Building, Site
from ramerge.foundation.dtypes import BITS, itemsize
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.events import Listener, Progress, silence
from ramerge.foundation.text import quoted

# The process, with Ray in it.
_BASELINE_BYTES = 230_000_000
# What encoding takes, beside the block and the base's.
_ENCODING_BYTES = 8_000_000
# Bytes of base and agent elsewhere that a worker reads in one request each, as blocks that follow one another.
_RUN = 64_000_000
# How many of these there are at least, so that all workers are busy to the end.
_LEAST_RUNS = 64


class Pair(NamedTuple):
    """A tensor that is read: of base and agent, or of one of them."""

    base: Tensor | None
    agent: Tensor | None

    @property
    def tensors(self) -> list[Tensor]:
        """What is read."""
        return [tensor for tensor in self if tensor is not None]


@dataclass(frozen=True)
class Block:
    """What is read of a pair for a slot of the spool, and how many bytes that are."""

    pair: int
    slot: int
    nbytes: int


@dataclass(frozen=True)
class Work:
    """What is compared to make a delta.

    Attributes:
        base: the model that the delta will be for.
        agent: the model that it gives.
        compression: see `codec.Encoder`.
        pairs: the agent's tensors with the base's of the same name, dtype and shape; then the base's tensors that have
            no such counterpart, of which only digests are needed.
        slots: room for the blocks of each pair.
    """

    base: Checkpoint
    agent: Checkpoint
    compression: Compression
    pairs: Sequence[Pair]
    slots: Slots

    @property
    def files(self) -> dict[Place, Identity]:
        """The identities of all files."""
        return {**self.base.files, **self.agent.files}

    def building(self, out: Out, *, overwrite: bool) -> Building:
        """What is built, and all that it depends on."""
        described = [
            *([str(path) for path in model.files] for model in (self.base, self.agent)),
            *([(one.name, one.dtype, one.shape) for one in pair.tensors] for pair in self.pairs),
        ]
        known = {
            **facts.versions(),
            **facts.files(self.files),
            "--compression": self.compression,
            "what is read": hashlib.sha256(repr(described).encode()).hexdigest(),
        }
        total = sum(tensor.nbytes for pair in self.pairs for tensor in pair.tensors)
        return Building(out, overwrite, known, total, slots=self.slots)

    def memory_of(self, workers: int) -> int:
        """About how many bytes a process takes with so many threads."""
        return _BASELINE_BYTES + workers * (self.buffer_bytes + _ENCODING_BYTES)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a worker's arena."""
        return max((_memory(tensor) for pair in self.pairs for tensor in pair.tensors), default=0)


def compare(base: Checkpoint, agent: Checkpoint, compression: Compression) -> Work:
    """The work of a delta.

    Raises:
        CheckpointError: a model is quantised, or has tensors of odd bits.
    """
    _refuse(base, agent)
    entries, pairs, met = [], [], set()
    for tensor in agent.tensors.values():
        below = base.tensors.get(tensor.name)
        fits = below is not None and (below.dtype, below.shape) == (tensor.dtype, tensor.shape)
        met |= {tensor.name} if fits else set()
        entries.append(Entry(tensor.name, tensor.dtype, tensor.shape, "encoded" if fits else "whole"))
        pairs.append(Pair(below if fits else None, tensor))
    for tensor in (tensor for name, tensor in base.tensors.items() if name not in met):
        entries.append(Entry(tensor.name, tensor.dtype, tensor.shape, "base"))
        pairs.append(Pair(tensor, None))
    return Work(base, agent, compression, pairs, Slots(entries))


def write_delta(
    work: Work,
    site: Site,
    executor: Executor,
    spool: Spool,
    *,
    listen: Listener = silence,
    allow_outside_links: bool = False,
) -> Index:
    """Write what an agent has changed of its base.

    Args:
        work: what is compared.
        site: where the delta is built.
        executor: runs the work on blocks in this process.
        spool: takes the blocks.
        listen: gets the progress, in bytes that are read.
        allow_outside_links: whether files beside the weights may be links that lead out of their folder.

    Raises:
        CheckpointError: a file cannot be read or has changed.
        OSError: the disk is full or fails.
        RankError: another rank has failed or is lost.
    """
    fill(work, site, executor, spool, listen)
    site.written()
    with DeltaWriter(site.stage, work.agent.tensors) as writer:
        collect(spool, writer, work.base, work.compression)
        write_files(work.base, work.agent, writer, allow_outside_links=allow_outside_links)
        check_unchanged(work.files)
        return writer.finish()


def _refuse(*models: Checkpoint) -> None:
    text = "is quantised; a delta can only be made of models that are not"
    problems = [f"{one.directory}: {text}" for one in models if one.quantised]
    problems += [
        f"{tensor.place}: tensor {quoted(tensor.name)} has dtype {tensor.dtype}, which deltas do not have"
        for one in models
        for tensor in one.tensors.values()
        if BITS[tensor.dtype] % 8
    ]
    if problems:
        raise CheckpointError(problems)


def _memory(tensor: Tensor) -> int:
    """Bytes of an arena that a worker needs for one of two tensors."""
    most = TOGETHER * BLOCK
    return 2 * room(most * itemsize(tensor.dtype)) + tensor.scratch(most)


# --- the blocks -------------------------------------------------------------------------------------------------------


def fill(work: Work, site: Site, executor: Executor, spool: Spool, listen: Listener = silence) -> None:
    """Fill the spool, with other ranks if there are any.

    Raises:
        CheckpointError, OSError, RankError: as for `write_delta`.
    """
    # what these close over may travel to other processes, so nothing of `work` but what they need
    files, pairs, compression, memory = Files(work.files), list(work.pairs), work.compression, work.buffer_bytes

    @contextmanager
    def worker(_tell: Callable[[Block], None]) -> Iterator[_Worker]:
        yield _Worker(Reader(files, Arena(memory)), pairs, spool, Encoder(compression))

    @contextmanager
    def elsewhere() -> Iterator[Callable[[], None]]:
        with closing(files), closing(spool):
            yield spool.sync

    entries = spool.slots.entries
    blocks = [block for index, pair in enumerate(pairs) for block in _blocks(index, pair, entries[index])]
    total, done = sum(block.nbytes for block in blocks), 0
    size = min(_RUN, total // _LEAST_RUNS) if any(isinstance(path, Remote) for path in work.files) else 0
    runs = list(in_runs(blocks, lambda block: block.nbytes, size))
    listen(Progress("comparing", 0, total))
    with files, closing(site.journal.map(executor, worker, _Worker.run, runs, _Codec(), elsewhere)) as outcomes:
        for block in outcomes:
            done += block.nbytes
            listen(Progress("comparing", done, total))
    check_unchanged(work.files)


def _blocks(index: int, pair: Pair, entry: Entry) -> Iterator[Block]:
    width = len(pair.tensors) * itemsize(entry.dtype)
    for slot in range(entry.slots):
        yield Block(index, slot, width * entry.elements_in(slot))


class _Codec:
    """Blocks as the journal keeps them: what was found is in the spool."""

    def encode(self, block: Block) -> tuple[bytes, int]:
        """See `journal.Codec`."""
        return b"", block.nbytes

    def decode(self, block: Block, _data: bytes) -> Block:
        """See `journal.Codec`."""
        return block


class _Worker:
    """What a thread owns."""

    def __init__(self, reader: Reader, pairs: Sequence[Pair], spool: Spool, encoder: Encoder) -> None:
        self._reader, self._pairs, self._spool, self._encoder = reader, pairs, spool, encoder

    def run(self, blocks: Sequence[Block]) -> Iterator[Block]:
        """Leave in the spool what blocks have changed, or what there is where they have no counterpart."""
        self._reader.expect(Span(self._pairs[block.pair].tensors, *self._bounds(block)) for block in blocks)
        for block in blocks:
            self._do(block)
            yield block

    def _bounds(self, block: Block) -> tuple[int, int]:
        entry = self._spool.slots.entries[block.pair]
        start = block.slot * entry.span
        return start, start + entry.elements_in(block.slot)

    def _do(self, block: Block) -> None:
        tensors, entry = self._pairs[block.pair].tensors, self._spool.slots.entries[block.pair]
        start, stop = self._bounds(block)
        width = itemsize(entry.dtype)
        self._reader.begin(start, stop)
        found = [data[: (stop - start) * width] for data in self._reader.blocks(tensors)]
        if entry.kind == "encoded":
            base, agent = (data.view(f"u{width}") for data in found)
            self._spool.put(block.pair, block.slot, self._encoder.encode_all(base, agent))
        elif entry.kind == "whole":
            self._spool.put_bytes(block.pair, start * width, found[0])
        else:
            self._spool.put_digests(block.pair, block.slot, found[0])
