"""A chain of deltas applied to a model, block by block; called by `convert`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from ramerge.deltas.trainers.link import Link, LinkPass
from ramerge.deltas.word_patches import Bytes
from ramerge.sdk.tensors import Checkpoint, Files, Reader, Tensor, itemsize

Blocks = Iterator[tuple[Bytes, Bytes]]
"""Each block before and after. Both are overwritten by the next one."""


def applied(base: Checkpoint, links: Sequence[Link], block: int) -> Iterator[tuple[Tensor, Blocks]]:
    """Apply a chain: the tensors of a model by their sorted names, each with its blocks, which must all be taken."""
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
            yield tensor, _blocks(tensor, reader, [one for one in passes if one.begin(tensor)], block)
            for one in passes:
                one.end()
        for one in passes:
            one.finish()


def _blocks(tensor: Tensor, reader: Reader, passes: Sequence[LinkPass], block: int) -> Blocks:
    width = itemsize(tensor.dtype)
    new = np.empty(min(block, tensor.elements) * width, np.uint8)
    for start in range(0, tensor.elements, block):
        stop = min(start + block, tensor.elements)
        reader.begin(start, stop)
        old = reader.block(tensor)[: (stop - start) * width]
        changed = new[: old.size]
        changed[:] = old
        for one in passes:
            one.change(changed, start * width)
        yield old, changed
