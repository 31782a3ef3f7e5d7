"""How much of a long computation on matrices is done, for progress.

Work is counted in floating-point operations of products of matrices in float64; in float32 they count half.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DECOMPOSITION = 11.0
"""Operations of products, over the cube of the side, in the time of an eigendecomposition."""

_listeners = threading.local()


@contextmanager
def notifying_work(notify: Callable[[float], None]) -> Iterator[None]:
    """In the block, `notify` gets the operations of each stage that this thread finishes."""
    _listeners.notify = notify
    try:
        yield
    finally:
        del _listeners.notify


def worked(operations: float) -> None:
    """So many operations are done."""
    notify = getattr(_listeners, "notify", None)
    if notify is not None:
        notify(operations)
