"""The work of one thread: read a block from all inputs, count or merge it, and return the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ramerge.core.engine.operators import Operators, read_rows
from ramerge.core.engine.result_codec import BlockResult, Results, blank
from ramerge.core.foundation.dtypes import FLOATS, itemsize
from ramerge.core.kernels.convert import convert, count_negative, count_non_finite
from ramerge.core.kernels.element_formats import FORMATS, Words
from ramerge.core.kernels.elementwise import Inputs
from ramerge.core.kernels.piece import Piece, PieceResult, words_of
from ramerge.core.linalg.solver import Solver
from ramerge.core.methods.base import Counts, Statistic
from ramerge.core.planning.model import Batch, Block, MergePlan, TensorPlan, share_of
from ramerge.core.planning.owners import BASE
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.reader import Files, Reader, Span
from ramerge.core.tensors.scaled import decode_parts, requantize, reread

_NOTHING = np.empty((0, 0), np.uint8)


class Sink(Protocol):
    """The target of merged bytes.

    Attributes:
        in_order: whether bytes must arrive nearly in order, so that workers process neighboring blocks concurrently.
    """

    in_order: bool

    def write(self, point: int, tensor: int, part: int, start: int, data: NDArray[np.uint8]) -> None:
        """Write bytes of a part of a point's tensor at byte `start`; called from any thread, which reuses `data`."""
        ...

    def advance(self, block: Block) -> None:
        """Called after each block that this or an earlier run has finished, in the thread that runs the pass."""
        ...

    def sync(self) -> None:
        """Flush written data to the disk; called in other processes before they report their results."""
        ...

    def close(self) -> None:
        """Called when no more bytes will be written. Workers that wait must stop."""
        ...


@dataclass(frozen=True)
class Task:
    """How a tensor is merged for one point.

    Attributes:
        prepared: the return value of the method's `prepare`, for `merge`.
        on_the_way: the statistic that the method reports, counted during merging.
    """

    prepared: object
    on_the_way: Statistic | None


@dataclass(frozen=True)
class Compiling:
    """A message that the compilation of a kernel has begun, or is done if `is_done`."""

    is_done: bool


@dataclass(frozen=True)
class Warning:
    """A warning of a worker, for the record."""

    text: str


Message = Compiling | Warning


class Worker:
    """The buffers of one thread, and its work on blocks.

    Args:
        plan: the plan.
        files: the open input files.
        operators: the cache of operators, shared by the workers of a process.
        tell: called with messages for users.
    """

    def __init__(self, plan: MergePlan, files: Files, operators: Operators, tell: Callable[[Message], None]) -> None:
        self._plan = plan
        self._operators = operators
        self._tell = tell
        self._arena = Arena(plan.resources.buffer_bytes)
        self._reader = Reader(files, self._arena)

    def expect(self, batches: Sequence[Batch]) -> None:
        """Note which blocks come next, to prefetch them."""
        self._reader.expect(
            Span([source.tensor for source in self._plan.tensors[block.tensor].sources], block.start, block.stop)
            for batch in batches
            for block in batch
        )

    def count(self, blocks: Sequence[Block], statistics: Sequence[Statistic], results: Results) -> BlockResult:
        """Read blocks of one tensor from all inputs, one after another, and add up their counts."""
        tensor = self._plan.tensors[blocks[0].tensor]
        counts: dict[Statistic, Counts] = {each: each.blank(len(self._plan.inputs.agents)) for each in statistics}
        wrong = [
            self._count_piece(tensor, self._read_piece(tensor, block), statistics, counts, results) for block in blocks
        ]
        elements = sum(block.stop - block.start for block in blocks)
        read = sum(share_of(tensor, block) for block in blocks)
        return BlockResult(blocks[0], elements, read, counts, wrong=_sum_counts(wrong))

    def _count_piece(
        self,
        tensor: TensorPlan,
        piece: Piece,
        statistics: Sequence[Statistic],
        counts: Mapping[Statistic, Counts],
        results: Results,
    ) -> tuple[int, ...]:
        """Count a piece, and return how many elements of each source are not finite; empty if all are finite."""
        is_nonfinite = False
        for statistic in statistics:
            after = statistic.after
            before = results[after, tensor.part(after.scope)] if after is not None else None
            is_nonfinite |= statistic.count(piece, before, counts[statistic])
        # a difference may overflow although both sides are finite; only the result then shows whether it matters
        return self._nonfinite_counts(tensor, piece) if is_nonfinite else ()

    def observe(self, block: Block, statistics: Sequence[Statistic], results: Results, task: Task) -> BlockResult:
        """Merge a block for the first point without writing it, and count both inputs and result."""
        tensor = self._plan.tensors[block.tensor]
        piece = self._read_piece(tensor, block)
        rounding = blank(self._plan)
        merged_piece, result = self._merge_piece(0, tensor, piece, task, None, rounding[0])
        if tensor.quantized is not None and merged_piece.counts is not None:
            with self._arena.scratch():
                values, old = self._dequantized_values(tensor, merged_piece)
                stored_values = reread(tensor.quantized, self._reader, block.start, block.stop, values, old)
                self._count_stored_values(tensor, merged_piece, result, stored_values)
        counts: dict[Statistic, Counts] = {each: each.blank(len(self._plan.inputs.agents)) for each in statistics}
        wrong = self._count_piece(tensor, piece, statistics, counts, results)
        return BlockResult(block, piece.elements, share_of(tensor, block), counts, rounding, _sum_counts([wrong]))

    def merge(self, block: Block, tasks: Sequence[Sequence[Task]], sink: Sink) -> BlockResult:
        """Read a block from all inputs, merge it, and write it for every point. A tensor that is not merged is copied.

        `tasks`: the tasks of each tensor, one for each point.
        """
        tensor = self._plan.tensors[block.tensor]
        read = share_of(tensor, block)
        if tensor.action == "compare":
            first, *others = self._read_sources(tensor, block)
            width, elements = itemsize(tensor.dtype), block.stop - block.start
            for point in range(len(self._plan.points)):
                sink.write(point, block.tensor, 0, block.start * width, first[: elements * width])
            unequal = tuple(index for index, other in enumerate(others, 1) if not np.array_equal(other, first))
            return BlockResult(block, elements, read, unequal=unequal)
        piece = self._read_piece(tensor, block)
        if tensor.action == "copy":
            has_nonfinite = piece.copy()
            self._write_piece(tensor, block, piece, PieceResult(has_nonfinite), range(len(self._plan.points)), sink)
            wrong = self._nonfinite_counts(tensor, piece)
            return BlockResult(block, piece.elements, read, wrong=wrong if has_nonfinite or any(wrong) else None)
        counts_by_statistic: dict[Statistic, Counts] = {}
        rounding = blank(self._plan)
        has_nonfinite = False
        for index, task in enumerate(tasks[block.tensor]):
            counts = None
            if task.on_the_way is not None and task.on_the_way not in counts_by_statistic:
                counts = counts_by_statistic[task.on_the_way] = task.on_the_way.blank(len(self._plan.inputs.agents))
            merged_piece, result = self._merge_piece(index, tensor, piece, task, counts, rounding[index])
            has_nonfinite |= result.nonfinite
            self._write_piece(tensor, block, merged_piece, result, (index,), sink)
        wrong_counts = self._nonfinite_counts(tensor, piece) if has_nonfinite else None
        return BlockResult(block, piece.elements, read, counts_by_statistic, rounding, wrong_counts)

    def _merge_piece(
        self, index: int, tensor: TensorPlan, read: Piece, task: Task, counts: Counts | None, rounding: Counts
    ) -> tuple[Piece, PieceResult]:
        """Merge a piece of the inputs for one point; return the point's piece and its result."""
        point, allow_nonfinite = self._plan.points[index], self._plan.allow_nonfinite(tensor)
        method, layer, parameters = point.method, tensor.layer, point.parameters[tensor.rule]
        operator = solver = None
        if tensor.recorded:
            operator = self._operators.get(
                (index, tensor.rule, layer.shape[1:], tensor.recorded),
                lambda: method.operator(layer, [read_rows(self._reader, each) for each in tensor.recorded], parameters),
            )
        resources = self._plan.resources
        if tensor.matrix and resources.takes(method.scratch(layer, parameters, len(self._plan.inputs.agents))):
            solver = Solver(resources.device, lambda text: self._tell(Warning(text)))
        piece = replace(read, operator=operator, solver=solver, counts=rounding if point.uses_base else None)
        result = method.merge(piece, task.prepared, counts, allow_nonfinite)
        for sample in piece.unrounded(result):
            method.merge(sample, task.prepared, None, allow_nonfinite)
            piece.measure(sample, result)
        return piece, result

    def _write_piece(
        self, tensor: TensorPlan, block: Block, piece: Piece, result: PieceResult, points: Sequence[int], sink: Sink
    ) -> None:
        quantization = tensor.quantized
        if quantization is None:
            width = itemsize(tensor.dtype)
            data = piece.out.view(np.uint8)[: piece.elements * width]
            for point in points:
                sink.write(point, block.tensor, 0, block.start * width, data)
            return
        with self._arena.scratch():
            values, old = self._dequantized_values(tensor, piece)
            codes, scales = requantize(quantization, self._reader, block.start, block.stop, values, old)
            first, _ = quantization.grid.scales_of(block.start, block.stop)
            for point in points:
                sink.write(point, block.tensor, 0, block.start, codes)
                sink.write(point, block.tensor, 1, first * itemsize(quantization.scales.dtype), scales)
            if piece.counts is not None:
                stored_values = self._arena.take(4 * piece.elements).view(np.float32)
                decode_parts(quantization, block.start, codes, scales, stored_values)
                self._count_stored_values(tensor, piece, result, stored_values)

    def _dequantized_values(self, tensor: TensorPlan, piece: Piece) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return a quantized tensor's merged values of a piece, and the base's values, as float32."""
        base_words, kind = self._reader.block(tensor.base), tensor.base.dtype
        if kind != "F32":
            narrow, base_words = base_words, self._arena.take(4 * piece.elements)
            convert(kind, narrow, "F32", base_words, piece.elements)
        return piece.out.view(np.float32)[: piece.elements], base_words.view(np.float32)[: piece.elements]

    def _count_stored_values(
        self, tensor: TensorPlan, piece: Piece, result: PieceResult, stored_values: NDArray[np.float32]
    ) -> None:
        """Count the effects of rounding, from the values that a reader gets back from the stored codes."""
        kind = tensor.base.dtype
        if kind != "F32":  # so that unchanged codes give exactly the base's value
            narrow = self._arena.take(itemsize(kind) * piece.elements)
            convert("F32", stored_values.view(np.uint8), kind, narrow, piece.elements)
            convert(kind, narrow, "F32", stored_values.view(np.uint8), piece.elements)
        piece.count_stored(stored_values, result)

    def _read_piece(self, tensor: TensorPlan, block: Block) -> Piece:
        elements = block.stop - block.start
        formats = tuple(source.tensor.dtype for source in tensor.sources)
        importances = sum(source.is_importance for source in tensor.sources)
        base = tensor.sources[0].owner == BASE
        which = Inputs(len(formats) - base - importances, base, importances > 0)
        parts = self._read_sources(tensor, block)
        if tensor.dtype not in FLOATS:
            # integers that a rule keeps or takes: only their bytes are copied
            first, form = parts[0], formats[0]
            shape = tensor.base.shape
            return Piece(tensor.name, shape, block.start, elements, which, formats, [*parts], form, first, first)
        words: list[Words] = [part.view(FORMATS[format].word) for part, format in zip(parts, formats, strict=True)]
        out_word = np.dtype(FORMATS[tensor.dtype].word)
        out = self._arena.take(words_of(tensor.dtype, elements) * out_word.itemsize).view(out_word)
        rows = len(tensor.scratch)
        scratch = self._arena.take(sum(tensor.scratch) * elements).reshape(rows, -1) if rows else _NOTHING
        return Piece(
            tensor.name,
            tensor.base.shape,
            block.start,
            elements,
            which,
            formats,
            words,
            tensor.dtype,
            out,
            scratch,
            transposed=tensor.transposed,
            seed=tensor.seed,
        )

    def _read_sources(self, tensor: TensorPlan, block: Block) -> list[NDArray[np.uint8]]:
        """Return the block's bytes in every source, padded with zeros to a multiple of 4 to fill whole words.

        An agent that does not change the tensor shares the base's bytes.
        """
        self._reader.begin(block.start, block.stop)
        return self._reader.blocks([source.tensor for source in tensor.sources])

    @staticmethod
    def _nonfinite_counts(tensor: TensorPlan, piece: Piece) -> tuple[int, ...]:
        if tensor.dtype not in FLOATS:
            return (0,) * len(piece.inputs)
        counts = []
        for source, format, words in zip(tensor.sources, piece.formats, piece.inputs, strict=True):
            count = count_non_finite(format, words, piece.elements)
            if source.is_importance:
                count += count_negative(format, words, piece.elements)
            counts.append(count)
        return tuple(counts)


def _sum_counts(wrong: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Add up the counts of bad elements in blocks of a tensor; None if there are none."""
    nonzero = [counts for counts in wrong if any(counts)]
    return tuple(map(sum, zip(*nonzero, strict=True))) if nonzero else None
