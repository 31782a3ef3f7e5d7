"""What listeners hear while deltas are made and applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ramerge.deltas.codec import BLOCK
from ramerge.foundation.dtypes import itemsize
from ramerge.foundation.events import Listener, Progress
from ramerge.tensors.tensor import Tensor

Result = TypeVar("Result")


def told(
    stage: str, results: Iterable[Result], tensor: Tensor, done: int, total: int, listen: Listener
) -> Iterator[Result]:
    """Results of a tensor's blocks; `listen` hears of each, after `done` of `total` bytes of the tensors before it."""
    listen(Progress(stage, done, total))
    for number, result in enumerate(results, 1):
        yield result
        listen(Progress(stage, done + min(number * BLOCK * itemsize(tensor.dtype), tensor.nbytes), total))
