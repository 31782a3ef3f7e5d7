"""Turns a delta back into the agent's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ramerge.checkpoint.arena import Arena, room
from ramerge.checkpoint.delta.codec import BLOCK, blocks_of, digest
from ramerge.checkpoint.delta.layout import INDEX, DeltaTensor, Index, read_index
from ramerge.checkpoint.delta.progress import told
from ramerge.checkpoint.delta.write import TensorDigest, digest_of_file
from ramerge.checkpoint.formats.delta import stored_header
from ramerge.checkpoint.formats.safetensors import ONE_FILE
from ramerge.checkpoint.header import parse_header
from ramerge.checkpoint.identity import check_unchanged
from ramerge.checkpoint.model import Checkpoint
from ramerge.checkpoint.patched import Patched
from ramerge.checkpoint.read import Files, Reader, threads_for
from ramerge.checkpoint.stage import Stage
from ramerge.checkpoint.storage.place import Place
from ramerge.checkpoint.tensor import Tensor
from ramerge.checkpoint.write import Shard, Writer, lay_out
from ramerge.foundation.dtypes import itemsize
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.events import Listener, silence
from ramerge.foundation.pool import Pool
from ramerge.foundation.text import quoted


@dataclass(frozen=True)
class _Block:
    """A block of a tensor, and where it goes."""

    tensor: Tensor
    number: int
    shard: str
    offset: int


def write_agent(agent: Checkpoint, stage: Stage, *, workers: int | None = None, listen: Listener = silence) -> Index:
    """Write the files of the agent that a delta gives, equal to the byte.

    Args:
        agent: the delta, opened over its base.
        stage: the folder.
        workers: threads; by default one for each processor, and one more.
        listen: gets the progress, in bytes of the agent.

    Returns:
        What the delta says of the agent.

    Raises:
        CheckpointError: the base is another one, the delta is damaged, or a file has changed.
        OSError: the disk is full or fails.
    """
    if agent.delta is None:
        raise CheckpointError(f"{agent.directory}: is no delta")
    index = read_index(agent.delta / INDEX)
    shards = _shards(agent, agent.delta, index)
    memory = max((room(BLOCK * itemsize(one.dtype)) + one.scratch(BLOCK) for one in agent.tensors.values()), default=0)
    with Files(agent.files) as files:
        writer = Writer(stage, shards)
        try:
            pool = Pool(workers or threads_for(agent.files), lambda: _Worker(Reader(files, Arena(memory)), writer))
            digests = pool.map(_Worker.run, _blocks(agent, shards))
            total, done = sum(tensor.nbytes for tensor in agent.tensors.values()), 0
            for tensor in _in_order(agent, shards):
                found = TensorDigest()
                for block in told("writing", islice(digests, blocks_of(tensor.elements)), tensor, done, total, listen):
                    found.add(block)
                done += tensor.nbytes
                _check(agent, tensor, index.tensors[tensor.name], found.text, files)
            writer.finish()
        finally:
            writer.close()
    _copy_companions(agent, index, stage)
    check_unchanged(agent.files)
    return index


def _check(agent: Checkpoint, tensor: Tensor, said: DeltaTensor, digest: str, files: Files) -> None:
    """Hold a tensor that was written against the index."""
    if digest != said.result:
        raise CheckpointError(
            f"{agent.directory}: tensor {quoted(tensor.name)} does not become what the delta says; it is damaged, get "
            "it again"
        )
    if isinstance(tensor.origin, Patched) and (moved := tensor.origin.moved(files)) != said.moved:
        raise CheckpointError(
            f"{agent.directory}: tensor {quoted(tensor.name)} has {moved:,} elements that moved, but the delta's index "
            f"says {said.moved:,}; it is damaged, get it again"
        )


class _Worker:
    """What a thread owns."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def run(self, block: _Block) -> bytes:
        """Write a block; returns its digest."""
        self._reader.begin(0, 0)
        start, stop = block.number * BLOCK, min((block.number + 1) * BLOCK, block.tensor.elements)
        out = self._reader.arena.take((stop - start) * itemsize(block.tensor.dtype))
        self._reader.read(block.tensor, start, stop, out)
        self._writer.write(block.shard, block.offset, out)
        return digest(out)


def _shards(agent: Checkpoint, folder: Place, index: Index) -> list[Shard]:
    """The files, with the headers that they had."""
    if not index.shards:
        return [_laid_out(ONE_FILE, list(agent.tensors.values()))]
    found = []
    for file, names in index.shards.items():
        header = stored_header(folder, index, file)
        tensors = [agent.tensors[name] for name in names]
        found.append(_with_header(agent, file, header, tensors) if header else _laid_out(file, tensors))
    return found


def _laid_out(file: str, tensors: list[Tensor]) -> Shard:
    return lay_out(file, [(one.name, one.dtype, one.shape, one.nbytes) for one in tensors])


def _with_header(agent: Checkpoint, file: str, header: bytes, tensors: list[Tensor]) -> Shard:
    size = len(header) + sum(tensor.nbytes for tensor in tensors)
    entries = parse_header(agent.directory / file, header[8:], len(header), size).entries
    if [(one.name, one.dtype, one.shape) for one in entries] != [(one.name, one.dtype, one.shape) for one in tensors]:
        raise CheckpointError(f"{agent.directory}: the header of {quoted(file)} has other tensors than the index")
    return Shard(file, header, {entry.name: entry.begin for entry in entries}, size)


def _in_order(agent: Checkpoint, shards: list[Shard]) -> Iterator[Tensor]:
    for shard in shards:
        for name in shard.offsets:
            yield agent.tensors[name]


def _blocks(agent: Checkpoint, shards: list[Shard]) -> Iterator[_Block]:
    for shard in shards:
        for name, offset in shard.offsets.items():
            tensor = agent.tensors[name]
            for number in range(blocks_of(tensor.elements)):
                yield _Block(tensor, number, shard.name, offset + number * BLOCK * itemsize(tensor.dtype))


def _copy_companions(agent: Checkpoint, index: Index, stage: Stage) -> None:
    problems = []
    for name, companion in index.companions.items():
        source = (agent.companions or {})[name]
        if not source.is_file():
            problems.append(f"{source}: is missing; the delta {agent.directory} says that the base has it")
        elif digest_of_file(source) != companion.digest:
            problems.append(f"{source}: is not the file that belongs to the agent, by the digest in {agent.directory}")
        else:
            stage.copy(name, source)
    if problems:
        raise CheckpointError(problems)
