"""Solves for matrices, with NumPy on the CPU or with torch on a GPU.

The threads of a process share a device. Two threads may hold matrices on it: while one matrix is solved for, the next
arrives or the last leaves, and meanwhile other threads read and write. The CPU takes over if a device cannot solve for
a matrix: if it needs float64 on MPS, does not fit, or torch fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from queue import Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.linalg import spectral
from ramerge.core.linalg.arrays import Array, DoubleMissingError, refine_in_float32, to_host

Solve = Callable[[list[Array]], Array]

TORCH_CPU = "torch:cpu"
"""The device for torch on the CPU, used by tests."""
SIDE_BY_SIDE = 2
"""The number of matrices on a device at a time."""
# compute capabilities of P100, V100, A100, H100 and B200
_FAST_IN_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
_TOLERANCES = {"float32": 1e-4, "float64": 1e-10}


@dataclass(frozen=True)
class Solver:
    """Solves for matrices on a device.

    Attributes:
        device: the device's name.
        notify: called with a warning, once per device, if a matrix is solved for on the CPU instead.
    """

    device: str = "cpu"
    notify: Callable[[str], None] = field(default=lambda _text: None, compare=False)

    def solve(self, function: Solve, taus: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return `function(taus)`, computed on the device; `function` must not change the task vectors."""
        if self.device == "cpu":
            return to_host(function(list(taus)))
        return _device(self.device).solve(function, taus, self.notify)


CPU = Solver()


class _Device:
    """A torch device that the threads of this process share."""

    def __init__(self, name: str) -> None:
        import torch

        self._torch, self._name = torch, name
        self._device = torch.device(name.removeprefix("torch:"))
        # CUDA streams, so that one matrix is copied while another is solved for
        self._slots: Queue[Any] = Queue()
        for _ in range(SIDE_BY_SIDE):
            self._slots.put(torch.cuda.Stream(self._device) if self._device.type == "cuda" else None)
        self.refines = is_slow_in_float64(name)
        self._too_large = float("inf")  # the least bytes of task vectors that did not fit
        self._has_warned = False

    def solve(self, function: Solve, taus: Sequence[NDArray[Any]], notify: Callable[[str], None]) -> NDArray[Any]:
        size = sum(tau.nbytes for tau in taus)
        if size < self._too_large:
            try:
                with self._free_stream() as stream:
                    return self._solve(function, taus, stream)
            except DoubleMissingError:
                pass
            except RuntimeError as error:
                if self._is_out_of_memory(error):
                    self._too_large = min(self._too_large, size)
                self._warn(str(error).strip() or "no reason given", notify)
        return to_host(function(list(taus)))

    @contextmanager
    def _free_stream(self) -> Iterator[Any]:
        stream = self._slots.get()
        try:
            yield stream
        finally:
            self._slots.put(stream)

    def _warn(self, reason: str, notify: Callable[[str], None]) -> None:
        if not self._has_warned:
            self._has_warned = True
            notify(
                f"{self._name}: a matrix was solved for on the CPU instead ({reason.splitlines()[0][:200]}); "
                "the result holds"
            )

    def _solve(self, function: Solve, taus: Sequence[NDArray[Any]], stream: Any) -> NDArray[Any]:
        with self._torch.inference_mode(), self._torch.cuda.stream(stream), refine_in_float32(self.refines):
            try:
                return to_host(function([self._torch.from_numpy(tau).to(self._device) for tau in taus]))
            except RuntimeError as error:
                if self._is_out_of_memory(error):
                    self._torch.cuda.empty_cache()
                raise

    def _is_out_of_memory(self, error: RuntimeError) -> bool:
        return isinstance(error, self._torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()


def is_slow_in_float64(device: str) -> bool:
    """Whether a GPU is less than half as fast in float64 as in float32; consumer GPUs reach 1/64.

    Decided by the compute capability, so that a model of GPU always gives the same result.
    """
    if not device.startswith("cuda"):
        return False
    import torch

    capability = torch.cuda.get_device_capability(device)
    return capability[0] != 9 if torch.version.hip else capability not in _FAST_IN_FLOAT64


@cache
def _device(name: str) -> _Device:
    return _Device(name)


def is_sound(device: str) -> bool:
    """Whether a device is as accurate as NumPy in products and decompositions; TensorFloat-32, for example, is not."""
    rows = np.random.default_rng(0).standard_normal((96, 160))
    for real, tolerance in _TOLERANCES.items():
        tau = rows.astype(real)
        try:
            result = _device(device).solve(lambda taus: spectral.polar(taus[0]), [tau], _raise_refused_error)
        except _RefusedError:
            return False
        if np.abs(result - spectral.polar(rows)).max() > tolerance:
            return False
    return True


class _RefusedError(Exception):
    pass


def _raise_refused_error(text: str) -> None:
    raise _RefusedError(text)
