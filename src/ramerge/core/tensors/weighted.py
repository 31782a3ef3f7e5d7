"""A weighted mean of tensors: checkpoints of a run as one model, read block by block.

    x_0 + sum_t W_t (x_t - x_(t-1))        W_t = w_t + w_(t+1) + ..., where the weights w add up to 1

This equals sum_t w_t x_t, and is exact for elements that no checkpoint moved. The changes are added one after another
in float32 (float64 if a tensor is F64), so the result does not depend on blocks or on how many tensors are read at
once. A checkpoint that is stored as changes of the one before it is never fully computed: only its changes are added.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from typing_extensions import override

from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.kernels import weighted as kernels
from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.element_formats import FORMATS
from ramerge.core.kernels.piece import arithmetic
from ramerge.core.tensors.arena import Bytes, room
from ramerge.core.tensors.reader import Reader
from ramerge.core.tensors.tensor import Origin, Stored, Tensor


class _TermStep(NamedTuple):
    """The step from one term to the next: the factor of the changes, and whether the next term stores its changes."""

    before: Tensor
    term: Tensor
    factor: float
    is_change: bool


def _held_terms(steps: Sequence[_TermStep]) -> int:
    """The number of terms that are held in memory at once."""
    runs = [len(list(group)) for is_change, group in groupby(steps, attrgetter("is_change")) if not is_change]
    return 1 + min(max(runs, default=0), kernels.GROUP)


@dataclass(frozen=True)
class WeightedSum(Origin):
    """A weighted sum of tensors, in float32, or float64 if a tensor is F64.

    Attributes:
        terms: tensors of one shape; each may be stored as changes of the one before it.
        weights: one weight per term; they add up to 1.
    """

    terms: tuple[Tensor, ...]
    weights: tuple[float, ...]

    @property
    @override
    def parts(self) -> Sequence[Tensor]:
        return self.terms

    @property
    @override
    def likeness(self) -> Hashable:
        first, *others = self.terms
        changes = [term.origin.is_change_of(before) for before, term in pairwise(self.terms)]
        # reading changes takes the same memory for all changes, so a long chain need not be followed
        rest = [is_change or term.likeness for is_change, term in zip(changes, others, strict=True)]
        return first.likeness, tuple(rest)

    @property
    def _change_factors(self) -> list[float]:
        """The factors W_1, W_2, ... of the changes."""
        return list(accumulate(reversed(self.weights)))[-2::-1]

    @property
    @override
    def grain(self) -> int:
        return max(term.origin.grain for term in self.terms)

    @override
    def leaves(self) -> Iterator[Stored]:
        """Yield the stored extents of all terms; for a term that is stored as changes, only those of its changes."""
        first, *others = self.terms
        yield from first.origin.leaves()
        for before, term in zip(self.terms, others, strict=False):
            own = term.origin
            yield from own.changes_of(before) if own.is_change_of(before) else own.leaves()

    @override
    def scratch(self, tensor: Tensor, elements: int) -> int:
        grain, steps = self.grain, self.steps(tensor.dtype)
        size = elements if elements % grain == 0 else min(elements + 2 * (grain - 1), tensor.elements)
        whole, sum_itemsize = itemsize(tensor.dtype), itemsize(self.held_dtype(tensor.dtype))
        inner = [self.terms[0].scratch(size)]
        for step in steps:
            origin, width = step.term.origin, itemsize(step.term.dtype)
            if step.is_change:
                inner.append(origin.scratch_of_changes(step.term, step.before, size))
            else:
                inner.append(origin.scratch(step.term, size) + room(size * width))
        # memory for the result, the sum of changes, and the terms of a group
        return 2 * room(size * whole) + _held_terms(steps) * room(size * sum_itemsize) + max(inner)

    def steps(self, real: str) -> list[_TermStep]:
        """The steps from each term to the next, for a mean of the dtype `real`."""
        sum_dtype = self.held_dtype(real)
        return [
            _TermStep(before, term, factor, term.dtype == sum_dtype and term.origin.is_change_of(before))
            for (before, term), factor in zip(pairwise(self.terms), self._change_factors, strict=True)
        ]

    def held_dtype(self, real: str) -> str:
        """The dtype in which terms are held in memory: their own if all have the same, otherwise that of the mean."""
        dtypes = {term.dtype for term in self.terms}
        return dtypes.pop() if len(dtypes) == 1 and arithmetic(dtypes) == real else real

    @override
    def read(self, reader: Reader, tensor: Tensor, start: int, stop: int, out: Bytes) -> None:
        if start == stop:
            return
        grain, width = self.grain, itemsize(tensor.dtype)
        aligned_start, aligned_stop = start // grain * grain, min(-(-stop // grain) * grain, tensor.elements)
        is_aligned = (aligned_start, aligned_stop) == (start, stop)
        aligned_block = out if is_aligned else reader.arena.take((aligned_stop - aligned_start) * width)
        self._compute_mean(reader, tensor.dtype, aligned_start, aligned_stop, aligned_block)
        if not is_aligned:
            out[:] = aligned_block[(start - aligned_start) * width : (stop - aligned_start) * width]

    def _compute_mean(self, reader: Reader, real: str, aligned_start: int, aligned_stop: int, out: Bytes) -> None:
        """Fill `out` with the mean of elements `aligned_start:aligned_stop`, which begin and end at the grain."""
        sum_dtype, result = self.held_dtype(real), out.view(FORMATS[real].real)
        total = reader.arena.take(out.size).view(result.dtype)
        total[:] = 0
        steps = self.steps(real)
        count = aligned_stop - aligned_start
        slots = [reader.arena.take(count * itemsize(sum_dtype)) for _ in range(_held_terms(steps))]
        waiting, weights = [0], list[float]()

        def fetch(term: Tensor, slot: Bytes) -> None:
            if term.dtype == sum_dtype:
                reader.read(term, aligned_start, aligned_stop, slot)
                return
            with reader.arena.scratch():  # terms have different dtypes, so they are held in the mean's
                words = reader.arena.take(count * itemsize(term.dtype))
                reader.read(term, aligned_start, aligned_stop, words)
                convert(term.dtype, words, sum_dtype, slot, count)

        def add() -> None:
            if weights:
                kernels.add_changes(sum_dtype, [slots[index] for index in waiting], weights, total)
                del waiting[:-1], weights[:]

        fetch(self.terms[0], slots[0])
        convert(sum_dtype, slots[0], real, out, result.size)
        for is_change, group in groupby(steps, attrgetter("is_change")):
            if is_change:
                add()
                chain = list(group)
                factors = [(step.term, step.factor) for step in chain]
                with reader.arena.scratch():
                    origin, before = chain[0].term.origin, chain[0].before
                    origin.add_changes(reader, before, factors, aligned_start, aligned_stop, slots[waiting[0]], total)
                continue
            for step in group:
                if len(waiting) == len(slots):
                    add()
                free = next(index for index in range(len(slots)) if index not in waiting)
                fetch(step.term, slots[free])
                waiting.append(free)
                weights.append(step.factor)
        add()
        kernels.finish(total, result)


def mean_of(name: str, tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean of tensors of one shape, in their common arithmetic; tensors with weight 0 are not read.

    Args:
        weights: one weight per tensor; they must add up to 1.
    """
    terms_with_weights = [(tensor, weight) for tensor, weight in zip(tensors, weights, strict=True) if weight]
    terms, factors = zip(*terms_with_weights, strict=True)
    real = arithmetic([tensor.dtype for tensor in tensors])
    if len(terms) == 1 and arithmetic([terms[0].dtype]) == real:
        return terms_with_weights[0][0]
    return Tensor(name, real, terms[0].shape, WeightedSum(terms, factors))


def is_quantized(tensor: Tensor) -> bool:
    """Whether a tensor is decoded from codes, or is a mean of such tensors."""
    origin = tensor.origin
    return bool(tensor.encoding) or (isinstance(origin, WeightedSum) and all(map(is_quantized, origin.terms)))
