"""A stretch of one tensor in all inputs, brought to one format so that a kernel can read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels.convert import narrow, widen
from ramerge.kernels.formats import FORMATS
from ramerge.kernels.rounding import loses, survey, survey_stored

Words = NDArray[Any]
Counts = NDArray[np.int64]
# format, inputs, output, where to count what rounding erases -> whether something is not finite
Kernel = Callable[[str, list[Words], Words, Counts | None], bool]


def words_of(format: str, elements: int) -> int:
    """How many words hold a number of elements."""
    return -(-elements // len(FORMATS[format].lanes))


def common_format(formats: tuple[str, ...], out_format: str) -> str:
    """The format to compute in: the inputs' and the output's own if all agree, else F64 if any input is, else F32."""
    if set(formats) == {out_format}:
        return out_format
    return "F64" if "F64" in formats else "F32"


def count_negative(format: str, words: Words, elements: int) -> int:
    """How many of the first `elements` elements lie below 0 and are finite."""
    form = FORMATS[format]
    bits = words.view(f"u{form.itemsize}")[:elements]
    top = bits.dtype.type(1 << (8 * form.itemsize - 1))
    infinite = {"BF16": 0xFF80, "F16": 0xFC00, "F32": 0xFF800000, "F64": 0xFFF0000000000000}[format]
    return int(np.count_nonzero((bits > top) & (bits < infinite)))


@dataclass
class Piece:
    """The same elements of all inputs: the base (for methods that need it), agents, their importances (likewise).

    What follows the last element in its word must be zero in every input.

    Attributes:
        tensor: name of the tensor that it is a piece of.
        shape: shape of that tensor.
        start: index in that tensor of the first element; even.
        elements: how many there are.
        formats: formats of the inputs, keys of `FORMATS`.
        inputs: words of the inputs.
        out_format: format of the result.
        out: words of the result.
        scratch: uint8, one row for each input and one for the result, of 8 bytes an element and 8 more; used where
            formats differ, and empty where they do not.
        counts: int64, shape (2, N), for N agents behind the base: where to count what rounding does to the result, as
            `kernels.rounding` has it; None if nobody asks, or if there is no base to compare with.
    """

    tensor: str
    shape: tuple[int, ...]
    start: int
    elements: int
    formats: tuple[str, ...]
    inputs: list[Words]
    out_format: str
    out: Words
    scratch: NDArray[np.uint8]
    counts: Counts | None = None
    _widened: str = ""
    _beyond: float = 0.0

    def compute(self, kernel: Kernel, beyond: float = 0.0) -> bool:
        """Call `kernel(format, inputs, out, counts)` in the common format, and round what it gives.

        A kernel that rounds by itself, to a 16-bit format, is given `counts`.

        Args:
            kernel: as above.
            beyond: an agent has moved an element where |agent - base| > beyond.

        Returns:
            True if it or the last rounding met a result that is not finite.
        """
        format = common_format(self.formats, self.out_format)
        inputs = self.widened(format)
        self._beyond = beyond
        if format == self.out_format:
            return kernel(format, inputs, self.out, self.counts if loses(FORMATS[format].real, format) else None)
        result = self._row(len(inputs), format)
        result[self.elements :] = 0  # inputs that were not widened may end before it
        flagged = kernel(format, inputs, result, None)
        return self._narrow(format, inputs, result, beyond) or flagged

    def count_stored(self, stored: NDArray[np.float32]) -> None:
        """Count what became of a float32 result that is stored as other numbers; float64 inputs are not counted.

        Args:
            stored: float32, 1-D: the numbers that are read back.
        """
        if self.counts is not None and "F64" not in self.formats:
            inputs = self.widened("F32")[: 1 + self.counts.shape[1]]
            survey_stored(inputs, self.out[: self.elements], stored, self._beyond, self.counts)

    def compute_numbers(self, function: Callable[..., NDArray[Any]]) -> bool:
        """Store `function(*inputs)` of arrays of the tensor's shape, in float32 or float64; for whole tensors.

        True if an input or a result is not finite.
        """
        format = "F64" if "F64" in self.formats else "F32"
        real = FORMATS[format].real
        inputs = self.widened(format)
        numbers = [words.view(real)[: self.elements].reshape(self.shape) for words in inputs]
        result = np.ascontiguousarray(function(*numbers), real).reshape(-1)
        if format != self.out_format:
            row = self._row(len(inputs), format)
            row[self.elements :] = 0
            row[: self.elements] = result.view(row.dtype)
            return self._narrow(format, inputs, row, 0.0)
        self.out[:] = result.view(self.out.dtype)
        return not bool(np.isfinite(result).all())

    def _narrow(self, format: str, inputs: list[Words], result: Words, beyond: float) -> bool:
        """Round a result to the output, and count what that erases; True if something is not finite."""
        if self.counts is not None and loses(FORMATS[format].real, self.out_format):
            behind = 1 + self.counts.shape[1]
            survey(format, inputs[:behind], result[: self.elements], self.out_format, beyond, self.counts)
        return narrow(format, result, self.out_format, self.out)

    def observe(self, kernel: Callable[[str, list[Words]], bool]) -> bool:
        """Call `kernel(format, inputs)` in the inputs' common format."""
        format = common_format(self.formats, self.formats[0])
        return kernel(format, self.widened(format))

    def compare(self, kernel: Callable[[str, list[Words], Words], bool]) -> bool:
        """Call `kernel(format, inputs, result)` in the common format, with the result that was computed before."""
        format = common_format(self.formats, self.out_format)
        inputs = self.widened(format)
        if format == self.out_format:
            return kernel(format, inputs, self.out)
        result = self._row(len(inputs), format)
        result[self.elements :] = 0
        widen(self.out_format, self.out, format, result)
        return kernel(format, inputs, result)

    def widened(self, format: str) -> list[Words]:
        """The inputs in one format, which several merges of one piece share."""
        if set(self.formats) == {format}:
            return self.inputs
        rows = [self._row(index, format) for index in range(len(self.inputs))]
        if self._widened != format:
            for row, source, words in zip(rows, self.formats, self.inputs, strict=True):
                row[self.elements :] = 0
                widen(source, words, format, row)
            self._widened = format
        return rows

    def _row(self, index: int, format: str) -> Words:
        """A row of scratch, of an even number of elements because a word of a 16-bit format holds two."""
        form = FORMATS[format]
        return self.scratch[index, : (self.elements + self.elements % 2) * form.itemsize].view(form.word)
