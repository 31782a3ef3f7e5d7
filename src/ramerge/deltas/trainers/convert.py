"""Converts a chain of trainers' deltas to one delta in ramerge's layout, in one pass over the base; called by `unpack`.

The chain is applied to the base block by block, and each block is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice

import numpy as np

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.threads import map_in_threads
from ramerge.core.output.staging import StagingDir
from ramerge.core.storage.own_files import BLOCK
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.identity import check_unchanged
from ramerge.deltas.codec import Compression, EncodedBlock, Encoder, blocks_of
from ramerge.deltas.index import Index
from ramerge.deltas.trainers.link import Link, LinkPass
from ramerge.deltas.word_patches import Bytes
from ramerge.deltas.write import DeltaWriter, write_headers_and_sidecars
from ramerge.sdk.options import processors
from ramerge.sdk.tensors import Files, Reader, Tensor

Blocks = Iterator[tuple[Bytes, Bytes]]
"""Each block before and after the change. Both arrays are overwritten by the next block."""


def convert(
    base: Checkpoint,
    links: Sequence[Link],
    staging: StagingDir,
    *,
    compression: Compression = "none",
) -> Index:
    """Write a chain over a model as one delta. The agent's other files are the model's."""
    with DeltaWriter(staging, base.tensors) as writer:
        pairs = (
            (one, old.tobytes(), new.tobytes())
            for one, blocks in apply_links(base, links, BLOCK)
            for old, new in blocks
        )
        results = map_in_threads(processors(), lambda: Encoder(compression), _encode_block, pairs)
        for name in sorted(base.tensors):
            tensor = base.tensors[name]
            writer.changed(name, tensor.dtype, tensor.shape, islice(results, blocks_of(tensor.elements)))
        for _ in results:  # there are none, but the chain is checked at its end
            pass
        write_headers_and_sidecars(base, base, writer)
        check_unchanged({**base.files, **{path: one for link in links for path, one in link.files.items()}})
        return writer.finish()


def _encode_block(encoder: Encoder, task: tuple[Tensor, bytes, bytes]) -> EncodedBlock:
    tensor, old, new = task
    before, after = (np.frombuffer(block, f"u{itemsize(tensor.dtype)}") for block in (old, new))
    return encoder.encode(before, after)


def apply_links(base: Checkpoint, links: Sequence[Link], block: int) -> Iterator[tuple[Tensor, Blocks]]:
    """Apply a chain: yield the tensors of a model by sorted name, each with its blocks, which must all be consumed."""
    for link in links:
        link.check(base)
    identities = dict(base.files)
    for link in links:
        identities |= link.files
    with ExitStack() as stack:
        files = stack.enter_context(Files(identities))
        reader = Reader(files)
        passes = [link.pass_over(base, files) for link in links]
        for name in sorted(base.tensors):
            tensor = base.tensors[name]
            yield tensor, _changed_blocks(tensor, reader, [one for one in passes if one.begin(tensor)], block)
            for one in passes:
                one.end()
        for one in passes:
            one.finish()


def _changed_blocks(tensor: Tensor, reader: Reader, passes: Sequence[LinkPass], block: int) -> Blocks:
    width = itemsize(tensor.dtype)
    new = np.empty(min(block, tensor.elements) * width, np.uint8)
    for start in range(0, tensor.elements, block):
        stop = min(start + block, tensor.elements)
        reader.begin(start, stop)
        old = reader.block(tensor)[: (stop - start) * width]
        result = new[: old.size]
        result[:] = old
        for one in passes:
            one.change(result, start * width)
        yield old, result
