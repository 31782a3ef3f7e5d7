"""Makes a delta of a base and an agent: pairs their tensors, and compares them in a pass; called by `run`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from ramerge import CheckpointError, Progress
from ramerge.core.engine import fingerprint
from ramerge.core.engine.executors.executor import Executor, Pass, Processed, group_into_runs
from ramerge.core.foundation.dtypes import BITS, itemsize
from ramerge.core.output.targets import OutputTarget
from ramerge.core.storage.location import is_far
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.identity import check_unchanged
from ramerge.core.tensors.reader import Span
from ramerge.deltas.codec import Compression, Encoder, arena_bytes
from ramerge.deltas.collect import collect
from ramerge.deltas.index import Index
from ramerge.deltas.spool import Spool, SpooledTensor, SpoolSlots, spooled
from ramerge.deltas.write import DeltaWriter, write_headers_and_sidecars
from ramerge.sdk.outputs import OpenOutput, OutputSpec
from ramerge.sdk.progress import Listener, silence
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import Files, Reader, Tensor
from ramerge.sdk.text import quoted

# The process, with Ray in it.
_BASELINE_BYTES = 230_000_000
# What encoding takes, in addition to the block and the base's.
_ENCODING_BYTES = 8_000_000
# Bytes of a remote base and agent that a worker reads in one request each, as blocks that follow one another.
_RUN = 64_000_000
# How many of these there are at least, so that all workers are busy to the end.
_LEAST_RUNS = 64


class TensorPair(NamedTuple):
    """A tensor of base and agent to compare, or a tensor of only one of them."""

    base: Tensor | None
    agent: Tensor | None

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in self if tensor is not None]


@dataclass(frozen=True)
class DeltaBlock:
    """A block of `ComparePass`: the part of a pair for a slot of the spool."""

    pair: int
    slot: int
    nbytes: int


@dataclass(frozen=True)
class DeltaWork:
    """The plan of a delta: the inputs to compare.

    Attributes:
        pairs: the agent's tensors with the base's of the same name, dtype and shape; then the base's tensors without
            such a counterpart, for which only digests are needed.
    """

    base: Checkpoint
    agent: Checkpoint
    compression: Compression
    pairs: Sequence[TensorPair]
    slots: SpoolSlots

    @property
    def files(self) -> dict[Location, Identity]:
        return {**self.base.files, **self.agent.files}

    def spec(self, out: OutputTarget, *, overwrite: bool) -> OutputSpec:
        """Return the output of a delta, and all that it depends on."""
        descriptions = [
            *([str(path) for path in model.files] for model in (self.base, self.agent)),
            *([(one.name, one.dtype, one.shape) for one in pair.tensors] for pair in self.pairs),
        ]
        fingerprint_of_run = {
            **fingerprint.versions(),
            **fingerprint.files(self.files),
            "--compression": self.compression,
            "what is read": hashlib.sha256(repr(descriptions).encode()).hexdigest(),
        }
        total = sum(tensor.nbytes for pair in self.pairs for tensor in pair.tensors)
        return OutputSpec(out, overwrite, fingerprint_of_run, total, spooled=spooled(self.slots))

    def memory_of(self, workers: int) -> int:
        """Estimate the bytes that making a delta takes with so many threads."""
        return _BASELINE_BYTES + workers * (self.buffer_bytes + _ENCODING_BYTES)

    @property
    def buffer_bytes(self) -> int:
        return max((arena_bytes(tensor) for pair in self.pairs for tensor in pair.tensors), default=0)


def plan_delta(base: Checkpoint, agent: Checkpoint, compression: Compression) -> DeltaWork:
    """Plan a delta: pair the agent's tensors with the base's, and refuse models that a delta cannot be made of."""
    text = "is quantized; a delta can only be made of models that are not"
    problems = [f"{one.directory}: {text}" for one in (base, agent) if one.quantized]
    problems += [
        f"{tensor.place}: tensor {quoted(tensor.name)} has dtype {tensor.dtype}, which deltas do not have"
        for one in (base, agent)
        for tensor in one.tensors.values()
        if BITS[tensor.dtype] % 8
    ]
    if problems:
        raise CheckpointError(problems)
    entries, pairs, paired_names = [], [], set()
    for tensor in agent.tensors.values():
        below = base.tensors.get(tensor.name)
        fits = below is not None and (below.dtype, below.shape) == (tensor.dtype, tensor.shape)
        paired_names |= {tensor.name} if fits else set()
        entries.append(SpooledTensor(tensor.name, tensor.dtype, tensor.shape, "encoded" if fits else "whole"))
        pairs.append(TensorPair(below if fits else None, tensor))
    for tensor in (tensor for name, tensor in base.tensors.items() if name not in paired_names):
        entries.append(SpooledTensor(tensor.name, tensor.dtype, tensor.shape, "base"))
        pairs.append(TensorPair(tensor, None))
    return DeltaWork(base, agent, compression, pairs, SpoolSlots(entries))


def write_delta(
    work: DeltaWork,
    output: OpenOutput,
    executor: Executor,
    spool: Spool,
    *,
    listen: Listener = silence,
) -> Index:
    """Compare base and agent, and write the files of the delta."""
    compare_pass = ComparePass.from_work(work, spool)
    total = sum(block.nbytes for run in compare_pass.runs() for block in run)
    journal = output.journal.open_pass(compare_pass.runs(), _BlockCodec())
    nbytes = sum(block.nbytes for block in journal.earlier())
    listen(Progress("comparing", nbytes, total))
    with compare_pass.files, closing(executor.run(compare_pass, journal.remaining(), journal)) as events:
        for event in events:
            nbytes += event.result.nbytes if isinstance(event, Processed) else 0
            listen(Progress("comparing", nbytes, total))
    check_unchanged(work.files)
    with DeltaWriter(output.staging, work.agent.tensors) as writer:
        collect(spool, writer, work.base, work.compression)
        write_headers_and_sidecars(work.base, work.agent, writer)
        check_unchanged(work.files)
        return writer.finish()


@dataclass(frozen=True)
class ComparePass(Pass[DeltaBlock, DeltaBlock]):
    """The pass that compares the blocks of two models, and spools the changes."""

    files: Files
    pairs: Sequence[TensorPair]
    spool: Spool
    compression: Compression
    buffer_bytes: int
    batches: Sequence[Sequence[DeltaBlock]]

    @staticmethod
    def from_work(work: DeltaWork, spool: Spool) -> ComparePass:
        """Return the pass that compares base and agent of a plan, and fills this spool."""
        blocks = [
            DeltaBlock(index, slot, len(pair.tensors) * itemsize(entry.dtype) * entry.elements_in(slot))
            for index, (pair, entry) in enumerate(zip(work.pairs, spool.slots.entries, strict=True))
            for slot in range(entry.slots)
        ]
        remote = any(map(is_far, work.files))
        size = min(_RUN, sum(block.nbytes for block in blocks) // _LEAST_RUNS) if remote else 0
        runs = list(group_into_runs(blocks, lambda block: block.nbytes, size))
        return ComparePass(Files(work.files), list(work.pairs), spool, work.compression, work.buffer_bytes, runs)

    def runs(self) -> Sequence[Sequence[DeltaBlock]]:
        return self.batches

    def open_worker(self, report: Callable[[object], None]) -> AbstractContextManager[_DeltaWorker]:
        """Open the worker of one thread."""
        reader = Reader(self.files, Arena(self.buffer_bytes))
        return nullcontext(_DeltaWorker(reader, self.pairs, self.spool, Encoder(self.compression)))

    def prefetch(self, worker: _DeltaWorker, run: Sequence[DeltaBlock]) -> None:
        worker.expect(run)

    def process(self, worker: _DeltaWorker, block: DeltaBlock) -> DeltaBlock:
        worker.compare(block)
        return block

    def settle(self) -> None:
        self.spool.sync()

    def close(self) -> None:
        """Close files on another node."""
        self.files.close()
        self.spool.close()


class _BlockCodec:
    """Encodes blocks of `ComparePass` for the journal, without their contents, which are in the spool."""

    def encode(self, result: DeltaBlock) -> tuple[bytes, int]:
        return b"", result.nbytes

    def decode(self, block: DeltaBlock, data: bytes) -> DeltaBlock:
        return block


class _DeltaWorker:
    def __init__(self, reader: Reader, pairs: Sequence[TensorPair], spool: Spool, encoder: Encoder) -> None:
        self._reader, self._pairs, self._spool, self._encoder = reader, pairs, spool, encoder

    def expect(self, blocks: Sequence[DeltaBlock]) -> None:
        self._reader.expect(Span(self._pairs[block.pair].tensors, *self._element_bounds(block)) for block in blocks)

    def _element_bounds(self, block: DeltaBlock) -> tuple[int, int]:
        entry = self._spool.slots.entries[block.pair]
        start = block.slot * entry.span
        return start, start + entry.elements_in(block.slot)

    def compare(self, block: DeltaBlock) -> None:
        """Spool a block's changes, or its contents if it has no counterpart."""
        tensors, entry = self._pairs[block.pair].tensors, self._spool.slots.entries[block.pair]
        start, stop = self._element_bounds(block)
        width = itemsize(entry.dtype)
        self._reader.begin(start, stop)
        blocks = [data[: (stop - start) * width] for data in self._reader.blocks(tensors)]
        if entry.kind == "encoded":
            base, agent = (data.view(f"u{width}") for data in blocks)
            self._spool.put(block.pair, block.slot, self._encoder.encode_all(base, agent))
        elif entry.kind == "whole":
            self._spool.put_bytes(block.pair, start * width, blocks[0])
        else:
            self._spool.put_digests(block.pair, block.slot, blocks[0])
