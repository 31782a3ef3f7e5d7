"""Makes a delta of a base and an agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.arena import Arena, room
from ramerge.checkpoint.delta.beside import write_files
from ramerge.checkpoint.delta.codec import BLOCK, Compression, Encoded, Encoder, blocks_of, digest
from ramerge.checkpoint.delta.layout import Index
from ramerge.checkpoint.delta.progress import told
from ramerge.checkpoint.delta.write import DeltaWriter, TensorDigest
from ramerge.checkpoint.identity import check_unchanged
from ramerge.checkpoint.model import Checkpoint
from ramerge.checkpoint.read import Files, Reader, threads_for
from ramerge.checkpoint.stage import Stage
from ramerge.checkpoint.tensor import Tensor
from ramerge.foundation.dtypes import BITS, itemsize
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.events import Listener, silence
from ramerge.foundation.pool import Pool
from ramerge.foundation.text import quoted

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class _Task:
    """A block of a tensor: of base and agent, or of one of them."""

    base: Tensor | None
    agent: Tensor | None
    number: int


def write_delta(
    base: Checkpoint,
    agent: Checkpoint,
    stage: Stage,
    *,
    compression: Compression = "none",
    workers: int | None = None,
    listen: Listener = silence,
    allow_outside_links: bool = False,
) -> Index:
    """Write what an agent has changed of its base.

    Args:
        base: the model that the delta will be for.
        agent: the model that it gives.
        stage: the folder.
        compression: see `codec.Encoder`.
        workers: threads; by default one for each processor, and one more.
        listen: gets the progress, in bytes of the agent.
        allow_outside_links: whether files beside the weights may be links that lead out of their folder.

    Raises:
        CheckpointError: a model is quantised or has tensors of odd bits, a file cannot be read or has changed.
        OSError: the disk is full or fails.
    """
    _refuse(base, agent)
    pairs = _pairs(base, agent)
    alone = [tensor for name, tensor in base.tensors.items() if pairs.get(name) is None]
    tasks = _tasks(base, agent, pairs, alone)
    with Files({**base.files, **agent.files}) as files, DeltaWriter(stage, agent.tensors) as writer:
        memory = max((_memory(tensor) for model in (base, agent) for tensor in model.tensors.values()), default=0)
        pool = Pool(workers or threads_for((*base.files, *agent.files)), lambda: _Worker(files, compression, memory))
        results = pool.map(_Worker.run, tasks)
        total, done = sum(tensor.nbytes for tensor in agent.tensors.values()), 0
        for name, tensor in agent.tensors.items():
            blocks: Iterator[Any] = islice(results, blocks_of(tensor.elements))
            take = writer.changed if pairs[name] is not None else writer.whole
            take(name, tensor.dtype, tensor.shape, told("comparing", blocks, tensor, done, total, listen))
            done += tensor.nbytes
        for tensor in alone:
            found = TensorDigest()
            for block in islice(results, blocks_of(tensor.elements)):
                found.add(digest(block))
            writer.base_tensor(tensor.name, tensor.dtype, tensor.shape, found.text)
        write_files(base, agent, writer, allow_outside_links=allow_outside_links)
        check_unchanged({**base.files, **agent.files})
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


def _pairs(base: Checkpoint, agent: Checkpoint) -> Mapping[str, Tensor | None]:
    """For each of the agent's tensors the base's of the same name, dtype and shape."""
    found: dict[str, Tensor | None] = {}
    for name, tensor in agent.tensors.items():
        below = base.tensors.get(name)
        fits = below is not None and (below.dtype, below.shape) == (tensor.dtype, tensor.shape)
        found[name] = below if fits else None
    return found


def _tasks(
    base: Checkpoint, agent: Checkpoint, pairs: Mapping[str, Tensor | None], alone: list[Tensor]
) -> Iterator[_Task]:
    for name, tensor in agent.tensors.items():
        for number in range(blocks_of(tensor.elements)):
            yield _Task(pairs[name], tensor, number)
    for tensor in alone:
        for number in range(blocks_of(tensor.elements)):
            yield _Task(tensor, None, number)


def _memory(tensor: Tensor) -> int:
    """Bytes of an arena that a worker needs for one of two tensors."""
    return 2 * room(BLOCK * itemsize(tensor.dtype)) + tensor.scratch(BLOCK)


class _Worker:
    """What a thread owns."""

    def __init__(self, files: Files, compression: Compression, memory: int) -> None:
        self._reader = Reader(files, Arena(memory))
        self._encoder = Encoder(compression)

    def run(self, task: _Task) -> Encoded | Bytes:
        """A block's changes; the block itself where there is only one model's."""
        self._reader.begin(0, 0)
        found = [self._read(tensor, task.number) for tensor in (task.base, task.agent) if tensor is not None]
        if len(found) == 1:
            return found[0].copy()
        assert task.base is not None
        base, agent = (block.view(f"u{itemsize(task.base.dtype)}") for block in found)
        return self._encoder.encode(base, agent)

    def _read(self, tensor: Tensor, number: int) -> Bytes:
        start, stop = number * BLOCK, min((number + 1) * BLOCK, tensor.elements)
        out = self._reader.arena.take((stop - start) * itemsize(tensor.dtype))
        self._reader.read(tensor, start, stop, out)
        return out
