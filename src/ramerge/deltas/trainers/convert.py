"""A chain of trainers' deltas as one delta in ramerge's layout, in one pass over the base; called by `unpack`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from ramerge.deltas.codec import Compression, Encoded, Encoder, blocks_of
from ramerge.deltas.index import Index
from ramerge.deltas.sidecars import write_headers_and_sidecars
from ramerge.deltas.trainers.apply import applied
from ramerge.deltas.trainers.link import Link
from ramerge.deltas.write import DeltaWriter
from ramerge.sdk.machine import map_in_threads, processors
from ramerge.sdk.outputs import StagingDir
from ramerge.sdk.storage import BLOCK
from ramerge.sdk.tensors import Checkpoint, Tensor, check_unchanged, itemsize


def convert(
    base: Checkpoint,
    links: Sequence[Link],
    staging: StagingDir,
    *,
    compression: Compression = "none",
    allow_outside_links: bool = False,
) -> Index:
    """Write one delta from a model to what a chain makes of it. The agent's files are those of the model."""
    with DeltaWriter(staging, base.tensors) as writer:
        pairs = (
            (one, old.tobytes(), new.tobytes()) for one, blocks in applied(base, links, BLOCK) for old, new in blocks
        )
        results = map_in_threads(processors(), lambda: Encoder(compression), _encode, pairs)
        for name in sorted(base.tensors):
            tensor = base.tensors[name]
            writer.changed(name, tensor.dtype, tensor.shape, islice(results, blocks_of(tensor.elements)))
        for _ in results:  # there are none, but the chain is checked at its end
            pass
        write_headers_and_sidecars(base, base, writer, allow_outside_links=allow_outside_links)
        check_unchanged({**base.files, **{path: one for link in links for path, one in link.files.items()}})
        return writer.finish()


def _encode(encoder: Encoder, task: tuple[Tensor, bytes, bytes]) -> Encoded:
    tensor, old, new = task
    before, after = (np.frombuffer(block, f"u{itemsize(tensor.dtype)}") for block in (old, new))
    return encoder.encode(before, after)
