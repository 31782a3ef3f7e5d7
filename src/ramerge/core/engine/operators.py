"""Caches operators that methods compute from recorded inputs, once for all threads of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation.errors import WeightsError
from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.element_formats import FORMATS
from ramerge.core.kernels.piece import words_of
from ramerge.core.methods.base import RecordedRows
from ramerge.core.planning.model import InputRecord
from ramerge.core.tensors.reader import Reader
from ramerge.core.tensors.tensor import Tensor


class Operators:
    """A cache of the most recently used operators, at most as many as workers use at a time.

    It is pickled empty: another process computes its operators again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._slots: dict[Hashable, _CachedOperator] = {}

    def __reduce__(self) -> tuple[type[Operators], tuple[int]]:
        return Operators, (self._most,)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the operator of a key. The first thread that needs it computes it, and others wait."""
        with self._lock:
            slot = self._slots.pop(key, None) or _CachedOperator()
            self._slots[key] = slot  # most recently used last
            while len(self._slots) > self._most:
                del self._slots[next(iter(self._slots))]
        with slot.lock:
            if slot.value is None:
                slot.value = make()
            return slot.value


class _CachedOperator:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None


def read_rows(reader: Reader, record: InputRecord) -> RecordedRows:
    """Read the recorded inputs of an agent's layer, and their weights."""
    inputs, weights = _read_float64(reader, record.inputs), _read_float64(reader, record.weights)
    counts = not weights.size or weights.any()
    if not (np.isfinite(inputs).all() and np.isfinite(weights).all() and (weights >= 0).all() and counts):
        raise WeightsError(
            f"{record.inputs.path}: recorded inputs {record.inputs.name!r} have NaN, Inf, negative weights or only "
            "zero weights; run `ramerge calibrate` again"
        )
    return RecordedRows(inputs, weights)


def _read_float64(reader: Reader, tensor: Tensor) -> NDArray[np.float64]:
    if not tensor.elements:
        return np.empty(tensor.shape)
    form = FORMATS[tensor.dtype]
    raw = np.zeros(words_of(tensor.dtype, tensor.elements) * np.dtype(form.word).itemsize, np.uint8)
    reader.read(tensor, 0, tensor.elements, raw[: tensor.nbytes])
    wide = np.empty(tensor.elements, np.uint64)
    convert(tensor.dtype, raw.view(form.word), "F64", wide, tensor.elements)
    return wide.view(np.float64).reshape(tensor.shape)
