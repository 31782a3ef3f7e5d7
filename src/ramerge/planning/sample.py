"""A sample of the weights, from which a statistic's result can be predicted before all is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from ramerge.methods.base import Statistic
from ramerge.planning.model import Batch, Block, TensorPlan, share_of

# One stretch out of as many; a stretch is long enough for a disk, and short enough for every tensor to have some.
_STRETCH = 1 << 15
_EVERY = 32
# Stretches of a batch: enough to spare time, and few enough to leave some for every worker.
_BATCH = 16
# Of fewer elements a sample says too little.
_WORTH_A_SAMPLE = 1 << 24
# An odd number, by which the places in the sample are spread.
_SPREAD = 0x9E3779B1


def predicted(rounds: Sequence[dict[int, tuple[Statistic, ...]]], tensors: Sequence[TensorPlan]) -> bool:
    """Whether everything that must be counted before a merge may be predicted from a sample."""
    wanted = {statistic for wanted in rounds for statistics in wanted.values() for statistic in statistics}
    asked = wanted - {statistic.after for statistic in wanted}
    counted = sum(tensor.base.elements for tensor in tensors if tensor.merged)
    return bool(asked) and counted >= _WORTH_A_SAMPLE and all(statistic.predictable for statistic in asked)


def sample(tensors: Sequence[TensorPlan]) -> Iterator[Batch]:
    """Stretches of all tensors that are merged: at every multiple of their number, at a place that looks random.

    Those of a tensor come in batches, because an array for counts can be larger than a stretch.
    """
    for _, stretches in groupby(_stretches(tensors), lambda block: block.tensor):
        while batch := tuple(islice(stretches, _BATCH)):
            yield batch


def _stretches(tensors: Sequence[TensorPlan]) -> Iterator[Block]:
    stretch = 0
    for index, tensor in enumerate(tensors):
        if not tensor.merged:
            continue
        size = tensor.block(_STRETCH)
        for start in range(0, tensor.base.elements, size):
            window, place = divmod(stretch, _EVERY)
            if place == (window * _SPREAD >> 7) % _EVERY:
                yield Block(index, start, min(start + size, tensor.base.elements))
            stretch += 1


def bytes_of(tensors: Sequence[TensorPlan]) -> int:
    """Bytes of one read of the sample."""
    return sum(share_of(tensors[block.tensor], block) for block in _stretches(tensors))
