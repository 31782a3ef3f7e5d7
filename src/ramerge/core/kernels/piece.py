"""A block of one tensor from all inputs, as methods see it, and the result of merging it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import effect
from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.element_formats import ELEMENTS, FORMATS, Loop, Words, loop_of, uniform
from ramerge.core.kernels.elementwise import Inputs
from ramerge.core.kernels.rounding import ROWS, Counts, is_narrowing, survey
from ramerge.core.kernels.stochastic import round_stochastically

Numbers: TypeAlias = NDArray[Any]
"""An array of float32 or float64."""
_NO_SCRATCH = np.empty((0, 0), np.uint8)
# takes formats, inputs, output and counts of erased updates; returns whether something is not finite
PieceKernel = Callable[[Loop, list[Words], Words, Counts | None], bool]


def words_of(format: str, elements: int) -> int:
    return -(-elements // len(FORMATS[format].lanes))


def arithmetic(formats: Collection[str]) -> str:
    """Return the format for arithmetic on these formats: F64 if any is F64, otherwise F32."""
    return "F64" if "F64" in formats else "F32"


def result_format(formats: Collection[str], out_format: str, *, stochastic: bool) -> str:
    """Return the format of a kernel's result: the output's, or the format for arithmetic if random draws round it."""
    wide = arithmetic(formats)
    return wide if stochastic and is_narrowing(FORMATS[wide].real, out_format) else out_format


def rounding_counts(agents: int) -> Counts:
    """Return zeroed rounding counts: one column per agent, rows of `kernels.rounding`, then of `kernels.effect`."""
    return np.zeros((len(ROWS) + effect.ROWS, agents), np.int64)


@dataclass(frozen=True)
class PieceResult:
    """Result of merging a piece.

    Attributes:
        nonfinite: whether an input or the result is not finite.
        beyond: a threshold for each agent, or one for all: an agent has moved an element if |agent - base| > beyond.
        rounded_by_kernel: whether the kernel rounded the result itself, so that a sample must be merged again without
            rounding to measure its effect.
    """

    nonfinite: bool
    beyond: tuple[float, ...] = (0.0,)
    rounded_by_kernel: bool = False


@dataclass(frozen=True)
class Piece:
    """The same elements of all inputs: the base and importances (for methods that need them), and the agents.

    If the last word is not full, its remainder must be zero in every input.

    Attributes:
        tensor: name of the whole tensor.
        shape: shape of the whole tensor.
        start: index of the first element in the tensor; even.
        elements: number of elements.
        which: the roles of the inputs, and the number of agents.
        formats: formats of the inputs, keys of `FORMATS`.
        inputs: words of the inputs.
        out_format: format of the result.
        out: words of the result.
        scratch: uint8, rows with room for the elements in the format of `arithmetic`: one for each input and one for
            the result if there is no loop for the formats, and for whole tensors; one for the result if only
            stochastic rounding needs it. Otherwise it may be empty.
        transposed: whether the tensor is a linear weight that is stored as (in, out).
        seed: seed of stochastic rounding (`kernels.stochastic`); None to round to nearest.
        operator: the operator that the method computed from recorded inputs of the tensor; None if there are none.
        solver: solves for whole matrices on a device (`linalg.solver.Solver`); None to solve on the CPU.
        counts: `rounding_counts` of N agents, to which the effects of rounding are added; None if they are not needed,
            or if there is no base to compare with.
    """

    tensor: str
    shape: tuple[int, ...]
    start: int
    elements: int
    which: Inputs
    formats: tuple[str, ...]
    inputs: list[Words]
    out_format: str
    out: Words
    scratch: NDArray[np.uint8]
    transposed: bool = False
    seed: int | None = None
    operator: Any = None
    solver: Any = None
    counts: Counts | None = None
    # the inputs widened to the format of `arithmetic`, shared with pieces that `replace` makes of this one
    _widened_inputs: dict[str, list[Words]] = field(default_factory=dict)

    def compute(self, kernel: PieceKernel, beyond: tuple[float, ...] = (0.0,)) -> PieceResult:
        """Call `kernel(loop, inputs, out, counts)`, and round its result unless the kernel did.

        `counts` is None unless the kernel rounds to the output's format itself. `beyond` is copied to the result.
        """
        loop, inputs = self._loop_and_inputs(
            result_format(self.formats, self.out_format, stochastic=self.seed is not None)
        )
        form = loop.out
        if form.name == self.out_format:
            rounds = is_narrowing(form.real, form.name)
            counts = self.counts if rounds else None
            return PieceResult(kernel(loop, inputs, form.array(self.out, self.elements), counts), beyond, rounds)
        result = self._scratch_row(-1, form.name)
        is_nonfinite = kernel(loop, inputs, result, None)
        return PieceResult(self.round_result(loop, inputs, result, beyond) or is_nonfinite, beyond)

    def exact(self) -> Piece:
        """Return a piece with the same inputs, and an unrounded, uncounted result in the format of `arithmetic`."""
        format = arithmetic(self.formats)
        inputs, out = self._wide_inputs(format), np.empty(self.elements, FORMATS[format].word)
        formats = (format,) * len(inputs)
        return replace(
            self, formats=formats, inputs=inputs, out_format=format, out=out, seed=None, operator=None, counts=None
        )

    def result(self, shape: tuple[int, ...]) -> Numbers:
        """Return the result of a piece that `exact` returned, as numbers."""
        return self.out.view(FORMATS[self.out_format].real).reshape(shape)

    def unrounded(self, result: PieceResult) -> Iterator[Piece]:
        """Yield sample pieces to merge again without rounding, if the kernel rounded its result; for `measure`."""
        if self.counts is not None and result.rounded_by_kernel:
            for begin, end in self._sample_ranges():
                yield self._sample_range(begin, end, None)

    def measure(self, sample: Piece, result: PieceResult) -> None:
        """Count the effects of rounding on a merged sample piece of `unrounded`."""
        first = sample.start - self.start
        stored_numbers = self._convert_words(self.out_format, self.out, first, first + sample.elements)
        self._measure_effects(sample, stored_numbers, result.beyond)

    def copy(self) -> bool:
        """Store the first input, rounded if necessary; return whether rounding produced a number that is not finite."""
        if self.formats[0] == self.out_format:
            self.out[:] = self.inputs[0]
            return False
        return convert(self.formats[0], self.inputs[0], self.out_format, self.out, self.elements)

    def count_stored(self, stored: NDArray[np.float32], result_of_piece: PieceResult) -> None:
        """Count the effects of storing a float32 result that is read back as `stored`; not with float64 inputs."""
        if self.counts is not None and "F64" not in self.formats:
            result, words = self.out[: self.elements], stored.view(np.uint32)
            self._count_effects(
                *self._loop_and_inputs("F32"), result, "F32", words, result_of_piece.beyond, self.counts
            )

    def numbers(self, shape: tuple[int, ...] | None = None) -> list[Numbers]:
        """Return the inputs as float32 or float64 arrays of a shape, by default the whole tensor's shape.

        With the default, the piece must cover the whole tensor.
        """
        real = FORMATS[arithmetic(self.formats)].real
        shape = self.shape if shape is None else shape
        return [
            words.view(real)[: self.elements].reshape(shape) for words in self._wide_inputs(arithmetic(self.formats))
        ]

    def compute_numbers(self, function: Callable[..., Numbers], shape: tuple[int, ...] | None = None) -> PieceResult:
        """Store `function(*numbers)`, where `numbers` are the inputs as `self.numbers(shape)` returns them."""
        return self.store(function(*self.numbers(shape)), self.widened())

    def store(self, numbers: Numbers, inputs: list[Words] | None = None) -> PieceResult:
        """Store a result of any shape. With `inputs` in the format of `arithmetic`, count the effects of rounding."""
        loop = uniform(arithmetic(self.formats), len(self.inputs))
        result = np.ascontiguousarray(numbers, loop.out.real).reshape(-1)
        if loop.out.name != self.out_format:
            piece = self if inputs is not None else replace(self, counts=None)
            return PieceResult(piece.round_result(loop, inputs or [], result.view(loop.out.word)))
        self.out[:] = result.view(self.out.dtype)
        return PieceResult(not bool(np.isfinite(result).all()))

    def widened(self) -> list[Words]:
        """Return the inputs in the format of `arithmetic`."""
        return self._wide_inputs(arithmetic(self.formats))

    def observe(self, kernel: Callable[[Loop, list[Words]], bool]) -> bool:
        """Call `kernel(loop, inputs)`."""
        return kernel(*self._loop_and_inputs(self.formats[0]))

    def compare(self, kernel: Callable[[Loop, list[Words], Words], bool]) -> bool:
        """Call `kernel(loop, inputs, result)` with the stored result, widened if necessary."""
        loop, inputs = self._loop_and_inputs(
            result_format(self.formats, self.out_format, stochastic=self.seed is not None)
        )
        if loop.out.name == self.out_format:
            return kernel(loop, inputs, loop.out.array(self.out, self.elements))
        result = self._scratch_row(-1, loop.out.name)
        convert(self.out_format, self.out, loop.out.name, result, self.elements)
        return kernel(loop, inputs, result)

    def _loop_and_inputs(self, out_format: str) -> tuple[Loop, list[Words]]:
        loop = loop_of(self.formats, out_format)
        if loop is not None:
            return loop, loop.arrays(self.inputs, self.elements)
        format = arithmetic(self.formats)
        return uniform(format, len(self.inputs)), self._wide_inputs(format)

    def _wide_inputs(self, format: str) -> list[Words]:
        """Return the inputs in `format`; widened once for several merges of a piece."""
        if set(self.formats) == {format}:
            return self.inputs
        if format not in self._widened_inputs:
            rows = [self._scratch_row(index, format) for index in range(len(self.inputs))]
            for row, source, words in zip(rows, self.formats, self.inputs, strict=True):
                convert(source, words, format, row, self.elements)
            self._widened_inputs[format] = rows
        return self._widened_inputs[format]

    def _scratch_row(self, index: int, format: str) -> Words:
        form = FORMATS[format]
        return self.scratch[index, : self.elements * form.itemsize].view(form.word)

    def round_result(self, loop: Loop, inputs: list[Words], result: Words, beyond: tuple[float, ...] = (0.0,)) -> bool:
        """Round a result to the output's format and count the effects; return whether something is not finite."""
        real, target = loop.out.name, self.out_format
        if self.seed is not None and is_narrowing(loop.out.real, target):
            is_nonfinite = round_stochastically(
                real,
                result,
                target,
                self.out,
                self.elements,
                seed=self.seed,
                tensor=self.tensor,
                start=self.start,
                base=(self.formats[0], self.inputs[0]) if self.which.base else None,
            )
        else:
            is_nonfinite = convert(real, result, target, self.out, self.elements)
        if self.counts is not None and is_narrowing(loop.out.real, target):
            stored_words = ELEMENTS[target].array(self.out, self.elements)
            self._count_effects(loop, inputs, result, target, stored_words, beyond, self.counts)
        return is_nonfinite

    def _count_effects(
        self,
        loop: Loop,
        inputs: list[Words],
        result: Words,
        target: str,
        stored_words: Words,
        beyond: tuple[float, ...],
        counts: Counts,
    ) -> None:
        """Count the effects of storing a result on the agents' updates, and measure more on a sample.

        `stored_words` is the result as it is read back, in the format `target` with one element per word.
        """
        behind = 1 + counts.shape[1]
        loop_without_importances = Loop(loop.inputs[:behind], loop.out)
        survey(loop_without_importances, inputs[:behind], result, target, stored_words, beyond, counts)
        for begin, end in self._sample_ranges():
            self._measure_effects(
                self._sample_range(begin, end, result), self._convert_words(target, stored_words, begin, end), beyond
            )

    def _sample_ranges(self) -> list[tuple[int, int]]:
        ranges = effect.sample_ranges(self.start, self.start + self.elements)
        return [(begin - self.start, end - self.start) for begin, end in ranges]

    def _sample_range(self, begin: int, end: int, result: Words | None) -> Piece:
        format = arithmetic(self.formats)
        word = np.dtype(FORMATS[format].word)
        inputs = [
            self._convert_words(source, words, begin, end).view(word)
            for source, words in zip(self.formats, self.inputs, strict=True)
        ]
        out = np.empty(end - begin, word) if result is None else result[begin:end]
        formats = (format,) * len(inputs)
        where, count = self.start + begin, end - begin
        return Piece(self.tensor, self.shape, where, count, self.which, formats, inputs, format, out, _NO_SCRATCH)

    def _measure_effects(self, sample: Piece, stored_numbers: Numbers, beyond: tuple[float, ...]) -> None:
        assert self.counts is not None
        numbers = [words.view(stored_numbers.dtype) for words in sample.inputs]
        base, agents = numbers[0], numbers[1 : 1 + self.counts.shape[1]]
        result, counts = sample.out.view(stored_numbers.dtype), self.counts[len(ROWS) :]
        stored_base, format = base, self.out_format
        if self.formats[0] != format:
            words = np.empty(words_of(format, base.size), FORMATS[format].word)
            convert(arithmetic(self.formats), base.view(f"u{base.itemsize}"), format, words, base.size)
            stored_base = self._convert_words(format, words, 0, base.size)
        effect.measure(sample.out_format, base, stored_base, agents, result, stored_numbers, beyond, counts)

    def _convert_words(self, source: str, words: Words, begin: int, end: int) -> Numbers:
        format = arithmetic(self.formats)
        stretch = words.view(f"u{FORMATS[source].itemsize}")[begin:end]
        if source == format:
            return stretch.view(FORMATS[format].real)
        wide = np.empty(end - begin, FORMATS[format].word)
        convert(source, stretch, format, wide, end - begin)
        return wide.view(FORMATS[format].real)
