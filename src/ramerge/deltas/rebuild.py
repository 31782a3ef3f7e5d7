"""Rebuilds the agent's files from a delta and its base, byte-identical; called by `run`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from ramerge import CheckpointError, Progress
from ramerge.core.formats.safetensors import ONE_FILE, index_of
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.threads import map_in_threads
from ramerge.core.output.staging import StagingDir
from ramerge.core.storage.location import is_far
from ramerge.core.storage.own_files import BLOCK, DELTA_INDEX
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.header import parse_header
from ramerge.core.tensors.identity import check_unchanged
from ramerge.core.tensors.reader import Span, Wanted, threads_for
from ramerge.deltas.codec import TOGETHER, arena_bytes, blocks_of, digest, tensor_digest
from ramerge.deltas.format import stored_header
from ramerge.deltas.index import Index, read_index
from ramerge.deltas.patched import Patched, changed_element_count
from ramerge.deltas.write import digest_of_file
from ramerge.sdk.outputs import Shard, Writer, lay_out
from ramerge.sdk.progress import Listener, silence
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import Files, Reader, Tensor
from ramerge.sdk.text import quoted

# The process, with its libraries.
_BASELINE_BYTES = 230_000_000
# How many steps of a worker are requested together where files are remote.
_RUN = 64


@dataclass(frozen=True)
class _ShardBlocks:
    tensor: Tensor
    start: int
    stop: int
    shard: str
    offset: int


def write_agent(
    agent: Checkpoint, staging: StagingDir, *, workers: int | None = None, listen: Listener = silence, advice: str = ""
) -> Index:
    """Write the files of a delta's agent, byte-identical.

    Args:
        advice: advice for a base whose other files differ from those that the delta was made with.
    """
    if agent.delta is None:
        raise CheckpointError(f"{agent.directory}: is no delta")
    index = read_index(agent.delta / DELTA_INDEX)
    shards = _agent_shards(agent, agent.delta, index)
    _copy_companions(agent, index, staging, advice)  # before the weights, as these may take hours
    memory = max(map(arena_bytes, agent.tensors.values()), default=0)
    blocks = _shard_blocks(agent, shards)
    size = _RUN if any(map(is_far, agent.files)) else 1
    runs = iter(lambda: list(islice(blocks, size)), [])
    with Files(agent.files) as files:
        writer = Writer(staging, shards)
        try:
            count = workers or threads_for(agent.files)
            results = map_in_threads(
                count, lambda: _RebuildWorker(Reader(files, Arena(memory)), writer), _RebuildWorker.run, runs
            )
            digests = chain.from_iterable(results)
            total, nbytes = sum(tensor.nbytes for tensor in agent.tensors.values()), 0
            listen(Progress("writing", nbytes, total))
            for tensor in (agent.tensors[name] for shard in shards for name in shard.offsets):
                digest, size = tensor_digest(), BLOCK * itemsize(tensor.dtype)
                for number, block in enumerate(islice(digests, blocks_of(tensor.elements)), 1):
                    digest.update(block)
                    listen(Progress("writing", nbytes + min(number * size, tensor.nbytes), total))
                nbytes += tensor.nbytes
                if digest.hexdigest() != index.tensors[tensor.name].result:
                    raise CheckpointError(
                        f"{agent.directory}: tensor {quoted(tensor.name)}: the restored weights have a wrong "
                        "checksum; the delta is damaged: get it again"
                    )
            _check_updates(agent, index, files)
            writer.finish()
        finally:
            writer.close()
    index_name = index_of(shard.name for shard in shards)
    is_one_file = [shard.name for shard in shards] == [index_name.removesuffix(".index.json")]
    if (staging.needs_index or not is_one_file) and index_name not in index.companions:
        staging.write(index_name, _index_of(shards))
    check_unchanged(agent.files)
    return index


def memory_of(agent: Checkpoint, workers: int) -> int:
    """Estimate the bytes that `write_agent` takes with so many threads."""
    return _BASELINE_BYTES + workers * max(map(arena_bytes, agent.tensors.values()), default=0)


def _check_updates(agent: Checkpoint, index: Index, files: Files) -> None:
    """Compare the tables of all tensors with the index of the delta."""
    patched = {name: tensor.origin for name, tensor in agent.tensors.items() if isinstance(tensor.origin, Patched)}
    tables = {name: np.empty(origin.table.nbytes, np.uint8) for name, origin in patched.items()}
    files.fill_all([Wanted(patched[name].table.path, patched[name].table.offset, tables[name]) for name in patched])
    for name, table in tables.items():
        if (updates := changed_element_count(table)) != index.tensors[name].moved:
            raise CheckpointError(
                f"{agent.directory}: tensor {quoted(name)} has {updates:,} changed elements, but the delta's index "
                f"says {index.tensors[name].moved:,}; the delta is damaged: get it again"
            )


class _RebuildWorker:
    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer

    def run(self, run: Sequence[_ShardBlocks]) -> list[bytes]:
        """Write blocks of the agent, one after another; return the digest of each."""
        self._reader.expect(Span(_tensors_to_read(blocks.tensor), blocks.start, blocks.stop) for blocks in run)
        digests = []
        for blocks in run:
            self._reader.begin(blocks.start, blocks.stop)
            width = itemsize(blocks.tensor.dtype)
            *_, out = self._reader.blocks(_tensors_to_read(blocks.tensor))
            out = out[: (blocks.stop - blocks.start) * width]
            self._writer.write(blocks.shard, blocks.offset, out)
            digests += [digest(out[begin : begin + BLOCK * width]) for begin in range(0, out.size, BLOCK * width)]
        return digests


def _tensors_to_read(tensor: Tensor) -> list[Tensor]:
    """Return the tensors to read for a tensor of the agent: the tensor below all changes, then the tensor itself."""
    below = tensor
    while isinstance(below.origin, Patched):
        below = below.origin.base
    return [below, tensor] if below is not tensor else [tensor]


def _agent_shards(agent: Checkpoint, folder: Location, index: Index) -> list[Shard]:
    """Return the agent's files, with their original headers."""
    shards = []
    for file, names in (index.shards or {ONE_FILE: list(agent.tensors)}).items():
        header = stored_header(folder, index, file)
        tensors = [agent.tensors[name] for name in names]
        descriptions = [(one.name, one.dtype, one.shape) for one in tensors]
        if not header:
            shards.append(lay_out(file, [(one.name, one.dtype, one.shape, one.nbytes) for one in tensors]))
            continue
        size = len(header) + sum(tensor.nbytes for tensor in tensors)
        entries = parse_header(agent.directory / file, header[8:], len(header), size).entries
        if [(one.name, one.dtype, one.shape) for one in entries] != descriptions:
            raise CheckpointError(f"{agent.directory}: the header of {quoted(file)} has other tensors than the index")
        shards.append(Shard(file, header, {entry.name: entry.begin for entry in entries}, size))
    return shards


def _index_of(shards: list[Shard]) -> str:
    """Return an index of the agent's files, as `save_pretrained` writes it."""
    weight_map = {name: shard.name for shard in shards for name in shard.offsets}
    size = sum(shard.file_bytes - len(shard.header) for shard in shards)
    return (
        json.dumps({"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}, indent=2) + "\n"
    )


def _shard_blocks(agent: Checkpoint, shards: list[Shard]) -> Iterator[_ShardBlocks]:
    for shard in shards:
        for name, offset in shard.offsets.items():
            tensor = agent.tensors[name]
            for start in range(0, tensor.elements, TOGETHER * BLOCK):
                stop = min(start + TOGETHER * BLOCK, tensor.elements)
                yield _ShardBlocks(tensor, start, stop, shard.name, offset + start * itemsize(tensor.dtype))


def _copy_companions(agent: Checkpoint, index: Index, staging: StagingDir, advice: str) -> None:
    problems, are_of_base = [], True
    for name, companion in index.companions.items():
        source = (agent.companions or {})[name]
        if not source.is_file():
            problems.append(f"{source}: is missing from the base, but the delta {agent.directory} needs it")
        elif digest_of_file(source) != companion.digest:
            problems.append(f"{source}: differs from the agent's file (digest in {agent.directory})")
            are_of_base &= companion.same
        else:
            staging.copy(name, source)
    if problems:
        problems[-1] += advice if are_of_base else ""
        raise CheckpointError(problems)
