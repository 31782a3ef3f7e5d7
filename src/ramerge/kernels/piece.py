"""A stretch of one tensor in all inputs, as kernels read it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.kernels.convert import convert
from ramerge.kernels.formats import FORMATS, Loop, Words, loop_of, uniform
from ramerge.kernels.rounding import loses, survey, survey_stored

Counts = NDArray[np.int64]
# formats, inputs, output, where to count what rounding erases -> whether something is not finite
Kernel = Callable[[Loop, list[Words], Words, Counts | None], bool]


def words_of(format: str, elements: int) -> int:
    """How many words hold a number of elements."""
    return -(-elements // len(FORMATS[format].lanes))


def arithmetic(formats: Collection[str]) -> str:
    """The format to compute in what lies in several formats: F64 if any input is, else F32."""
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
        scratch: uint8, one row for each input and one for the result, with room for the elements in `arithmetic`; used
            where there is no loop for the formats, and for whole tensors. Otherwise it may be empty.
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
    _has_widened: bool = False
    _beyond: float = 0.0

    def compute(self, kernel: Kernel, beyond: float = 0.0) -> bool:
        """Call `kernel(loop, inputs, out, counts)`, and round what it gives if it could not.

        A kernel that rounds by itself, to a 16-bit format, is given `counts`.

        Args:
            kernel: as above.
            beyond: an agent has moved an element where |agent - base| > beyond.

        Returns:
            True if it or the last rounding met a result that is not finite.
        """
        self._beyond = beyond
        loop, inputs = self._taken(self.out_format)
        form = loop.out
        if form.name == self.out_format:
            counts = self.counts if loses(form.real, form.name) else None
            return kernel(loop, inputs, form.array(self.out, self.elements), counts)
        result = self._row(len(inputs), form.name)
        flagged = kernel(loop, inputs, result, None)
        return self._round(loop, inputs, result) or flagged

    def copy(self) -> bool:
        """Store the first input, rounded if need be; True if that meets a number that is not finite."""
        if self.formats[0] == self.out_format:
            self.out[:] = self.inputs[0]
            return False
        return convert(self.formats[0], self.inputs[0], self.out_format, self.out, self.elements)

    def count_stored(self, stored: NDArray[np.float32]) -> None:
        """Count what became of a float32 result that is stored as other numbers; float64 inputs are not counted.

        Args:
            stored: float32, 1-D: the numbers that are read back.
        """
        if self.counts is not None and "F64" not in self.formats:
            loop, inputs = self._compared(*self._taken("F32"), self.counts)
            survey_stored(loop, inputs, self.out[: self.elements], stored, self._beyond, self.counts)

    def numbers(self, shape: tuple[int, ...] | None = None) -> list[NDArray[Any]]:
        """The inputs in float32 or float64; needs `scratch`.

        Args:
            shape: of the arrays; by default the tensor's, for a piece that is all of it.
        """
        real = FORMATS[arithmetic(self.formats)].real
        wanted = self.shape if shape is None else shape
        return [words.view(real)[: self.elements].reshape(wanted) for words in self._widened(arithmetic(self.formats))]

    def compute_numbers(self, function: Callable[..., NDArray[Any]], shape: tuple[int, ...] | None = None) -> bool:
        """Store `function(*numbers)` of the inputs as `numbers` gives them.

        True if an input or a result is not finite.
        """
        self._beyond = 0.0
        loop = uniform(arithmetic(self.formats), len(self.inputs))
        inputs = self._widened(loop.out.name)
        result = np.ascontiguousarray(function(*self.numbers(shape)), loop.out.real).reshape(-1)
        if loop.out.name != self.out_format:
            return self._round(loop, inputs, result.view(loop.out.word))
        self.out[:] = result.view(self.out.dtype)
        return not bool(np.isfinite(result).all())

    def observe(self, kernel: Callable[[Loop, list[Words]], bool]) -> bool:
        """Call `kernel(loop, inputs)`."""
        return kernel(*self._taken(self.formats[0]))

    def compare(self, kernel: Callable[[Loop, list[Words], Words], bool]) -> bool:
        """Call `kernel(loop, inputs, result)`, with the result that was computed before."""
        loop, inputs = self._taken(self.out_format)
        if loop.out.name == self.out_format:
            return kernel(loop, inputs, loop.out.array(self.out, self.elements))
        result = self._row(len(inputs), loop.out.name)
        convert(self.out_format, self.out, loop.out.name, result, self.elements)
        return kernel(loop, inputs, result)

    def _taken(self, out_format: str) -> tuple[Loop, list[Words]]:
        """How a kernel reads the inputs: as they are, or widened."""
        loop = loop_of(self.formats, out_format)
        if loop is not None:
            return loop, loop.arrays(self.inputs, self.elements)
        format = arithmetic(self.formats)
        return uniform(format, len(self.inputs)), self._widened(format)

    def _widened(self, format: str) -> list[Words]:
        """The inputs in one format, which several merges of one piece share."""
        if set(self.formats) == {format}:
            return self.inputs
        rows = [self._row(index, format) for index in range(len(self.inputs))]
        if not self._has_widened:
            for row, source, words in zip(rows, self.formats, self.inputs, strict=True):
                convert(source, words, format, row, self.elements)
            self._has_widened = True
        return rows

    def _row(self, index: int, format: str) -> Words:
        """A row of scratch."""
        form = FORMATS[format]
        return self.scratch[index, : self.elements * form.itemsize].view(form.word)

    def _round(self, loop: Loop, inputs: list[Words], result: Words) -> bool:
        """Round a result to the output, and count what that erases; True if something is not finite."""
        if self.counts is not None and loses(loop.out.real, self.out_format):
            compared = self._compared(loop, inputs, self.counts)
            survey(*compared, result, self.out_format, self._beyond, self.counts)
        return convert(loop.out.name, result, self.out_format, self.out, self.elements)

    @staticmethod
    def _compared(loop: Loop, inputs: list[Words], counts: Counts) -> tuple[Loop, list[Words]]:
        """The base and the agents."""
        behind = 1 + counts.shape[1]
        return Loop(loop.inputs[:behind], loop.out), inputs[:behind]
