"""Sums over the blocks of a pass, for `Passes.run`. Sums are integers, so the order of blocks does not matter."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramerge.core.engine.passes import PlanPass
from ramerge.core.engine.result_codec import BlockResult, Results, blank
from ramerge.core.engine.worker import Message, Warning
from ramerge.core.foundation.errors import WeightsError
from ramerge.core.foundation.progress import Listener, Progress
from ramerge.core.foundation.signals import raise_dropped
from ramerge.core.foundation.text import brief_list
from ramerge.core.kernels.convert import count_non_finite
from ramerge.core.methods.base import Counts, Statistic
from ramerge.core.planning.model import Block, MergePlan, Source, TensorPlan, share_of
from ramerge.core.planning.owners import ALL_AGENTS, label_of
from ramerge.core.tensors.identity import check_unchanged
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.tensor import Tensor

_LOG = logging.getLogger("ramerge")
_ELEMENTS_AT_ONCE = 1 << 20
_BAD_IMPORTANCES = "importances that are negative, NaN or Inf"


class _PartSums:
    """Sums of counted statistics, by part of the model.

    When the last block of a part is counted, the part's sums are reduced to a small result. Sums that will be cached
    stay in `by_tensor`, separately for each tensor.
    """

    def __init__(
        self,
        plan: MergePlan,
        statistics_by_tensor: Mapping[int, Sequence[Statistic]],
        results: Results,
        blocks: Iterable[Block],
    ) -> None:
        """Prepare to count."""
        self._plan = plan
        self._totals: dict[tuple[Statistic, str], NDArray[np.int64]] = {}
        self._elements: dict[tuple[Statistic, str], int] = {}
        self._before: dict[tuple[Statistic, str], object] = {}
        self.results: dict[tuple[Statistic, str], object] = {}
        self.by_tensor: dict[tuple[Statistic, str], NDArray[np.int64]] = {}
        for index, statistics in statistics_by_tensor.items():
            tensor = plan.tensors[index]
            for statistic in statistics:
                key = statistic, tensor.part(statistic.scope)
                self._elements[key] = 0
                if statistic.after is not None:
                    self._before[key] = results[statistic.after, tensor.part(statistic.after.scope)]
                if statistic.kept is not None:
                    self.by_tensor[statistic, tensor.name] = statistic.blank(len(plan.inputs.agents))
        for block in blocks:
            for statistic in statistics_by_tensor.get(block.tensor, ()):
                self._elements[statistic, plan.tensors[block.tensor].part(statistic.scope)] += block.stop - block.start
        self._missing = dict(self._elements)
        for key in [key for key, elements in self._elements.items() if not elements]:
            self._finish_part(key)

    def add(self, result: BlockResult) -> None:
        """Add the counts of a block."""
        tensor = self._plan.tensors[result.block.tensor]
        for statistic, counts in result.counted.items():
            key = statistic, tensor.part(statistic.scope)
            self._part_total(key, counts)[...] += counts
            if statistic.kept is not None:
                self.by_tensor[statistic, tensor.name] += counts
            self._missing[key] -= result.elements
            if not self._missing[key]:
                self._finish_part(key)

    def _part_total(self, key: tuple[Statistic, str], like: Counts) -> NDArray[np.int64]:
        if key not in self._totals:
            self._totals[key] = np.zeros(like.shape, np.int64)
        return self._totals[key]

    def _finish_part(self, key: tuple[Statistic, str]) -> None:
        statistic, _ = key
        total = self._part_total(key, statistic.blank(len(self._plan.inputs.agents)))
        self.results[key] = statistic.finish(total, self._elements[key], self._before.get(key))
        del self._totals[key]


@dataclass
class NonFinite:
    """Allowed NaN and Inf in one input.

    Attributes:
        first: the first tensor that holds NaN or Inf.
        count: how many NaN and Inf there are; in importances, also negative values.
        tensors: how many tensors hold NaN or Inf.
        elements: elements of these tensors.
    """

    first: Tensor
    count: int = 0
    tensors: int = 0
    elements: int = 0


class PassTally:
    """Results and progress of a running pass.

    Attributes:
        rounding: int64 counts of what rounding does to updates, for each point, laid out as in
            `kernels.piece.rounding_counts`.
        done_bytes: bytes of input in finished blocks.
    """

    def __init__(self, work: PlanPass, results: Results, listen: Listener) -> None:
        plan, blocks = work.plan, [block for run in work.batches for batch in run for block in batch]
        self.statistics: _PartSums = _PartSums(plan, work.counted, results, blocks)
        self.rounding: Counts = blank(plan)
        self.done_bytes: int = 0
        self.warnings: list[str] = []
        self._plan, self._label, self._listen = plan, work.label, listen
        self._refusals = Refusals(plan)
        self._kernel_total = self._compiled_kernels = 0
        self._total = sum(share_of(plan.tensors[block.tensor], block) for block in blocks)
        self._start = time.monotonic()
        _LOG.debug("%s: begins, %d bytes", self._label, self._total)
        self._report_progress()

    def _report_progress(self) -> None:
        self._listen(Progress(self._label, self.done_bytes, self._total))

    def take(self, result: BlockResult) -> None:
        """Add the result of a finished block, and report progress."""
        raise_dropped()
        self.statistics.add(result)
        self._refusals.add(result)
        if result.rounding is not None:
            self.rounding += result.rounding
        self.done_bytes += result.bytes_read
        self._report_progress()

    def report(self, message: Message) -> None:
        """Handle a message that a worker sends during a block: a warning, or progress of a kernel's compilation."""
        if isinstance(message, Warning):
            self.warnings.append(message.text)
            return
        self._kernel_total += not message.is_done
        self._compiled_kernels += message.is_done
        methods, agents = {point.method.name: None for point in self._plan.points}, len(self._plan.inputs.agents)
        note = f"{' and '.join(methods)}, {agents} agent{'s' if agents > 1 else ''}"
        self._listen(Progress("compiling kernels", self._compiled_kernels, self._kernel_total, "kernels", note))

    def finish(self) -> Refusals:
        """Raise if inputs have changed since planning or hold bad weights; return counts of allowed bad values."""
        _LOG.debug("%s: %d bytes done after %.2f s", self._label, self.done_bytes, time.monotonic() - self._start)
        check_unchanged(self._plan.inputs.files)
        self._refusals.refuse()
        assert self.done_bytes == self._total, f"{self._label} read {self.done_bytes:,} bytes of {self._total:,}"
        return self._refusals


class Refusals:
    """Collects a pass's NaN, Inf, overflows and unequal tensors; those that are not allowed are reported together."""

    def __init__(self, plan: MergePlan) -> None:
        self._plan = plan
        self._wrong: dict[int, NDArray[np.int64]] = {}
        self._overflows: set[int] = set()
        self._unequal: set[tuple[int, int]] = set()

    def add(self, result: BlockResult) -> None:
        """Add the problems of a block."""
        index = result.block.tensor
        if result.wrong is not None and any(result.wrong):
            counts = np.array(result.wrong, np.int64)
            self._wrong[index] = self._wrong.get(index, np.zeros_like(counts)) + counts
        elif result.wrong is not None:
            self._overflows.add(index)
        self._unequal.update((index, source) for source in result.unequal)

    def refuse(self) -> None:
        """Raise one error for all weights of the pass that cannot be merged."""
        problems = [*self._bad_values(), *self._overflow_refusals(allow_nonfinite=False)]
        for index, number in sorted(self._unequal):
            tensor, source = self._plan.tensors[index], self._plan.tensors[index].sources[number]
            problems.append(
                f"{source.tensor.path}: {source.label}: {tensor.base.dtype} tensor {tensor.name!r} differs from the "
                "base's; tensors that are not floating point cannot be merged and must be equal"
            )
        if problems:
            raise WeightsError(problems)

    def allowed_sources(self) -> dict[str, NonFinite]:
        """Return counts of allowed NaN and Inf, by the label of their source: `base` or an agent's name."""
        by_label: dict[str, NonFinite] = {}
        for tensor, source, count in self._bad_sources():
            if self._plan.allow_nonfinite(tensor):
                each = by_label.setdefault(source.label, NonFinite(source.tensor))
                each.count, each.tensors = each.count + count, each.tensors + 1
                each.elements += source.tensor.elements
        return by_label

    def _bad_sources(self) -> Iterator[tuple[TensorPlan, Source, int]]:
        for index, counts in sorted(self._wrong.items()):
            tensor, tensors_before = self._plan.tensors[index], set()
            for source, count in zip(tensor.sources, counts.tolist(), strict=True):
                if count and id(source.tensor) not in tensors_before:
                    tensors_before.add(id(source.tensor))
                    yield tensor, source, count

    def _bad_values(self) -> Iterator[str]:
        groups: dict[tuple[str, str, str], list[tuple[Source, int]]] = {}
        for tensor, source, count in self._bad_sources():
            if self._plan.allow_nonfinite(tensor):
                continue
            what, why = _BAD_IMPORTANCES, "they must be squared gradients or similar"
            if not source.is_importance:
                codes = "a scale is NaN, Inf, negative or 0, or codes are NaN: " if source.tensor.encoding else ""
                allowing = "--set allow.non_finite=true computes with them"
                if tensor.together:
                    which = f"{' and '.join(tensor.together)} compute{'s' * (len(tensor.together) == 1)}"
                    allowing = (
                        f"allow.non_finite: true does not help: {which} each element of this tensor from others, which "
                        "would be lost too; a rule with `keep: base`, or with `take` and an agent, leaves the tensor "
                        "as it is"
                    )
                cure = f"use another checkpoint of that training; {allowing}"
                what, why = "NaN or Inf", f"{codes}the training diverged or the file is damaged ({cure})"
            groups.setdefault((source.owner, what, why), []).append((source, count))
        for (owner, what, why), sources in groups.items():
            first, count = sources[0]
            place = first.tensor.place
            if owner == ALL_AGENTS and (bad := _first_non_finite(self._plan, first)) is not None:
                place, owner = bad
            text = f"tensor {first.tensor.name!r} holds {count:,} {what}"
            if len(sources) > 1:
                examples = brief_list([f"{source.tensor.name!r} ({count:,})" for source, count in sources])
                text = f"{len(sources):,} of {len(self._plan.tensors):,} tensors hold {what}: {examples}"
            yield f"{place}: {label_of(owner)}: {text}; {why}"

    def overflowing(self) -> tuple[str, ...]:
        """Return warnings about results that overflow although all inputs are finite, where Inf is allowed."""
        return tuple(f"{text}; the output holds Inf there" for text in self._overflow_refusals(allow_nonfinite=True))

    def _overflow_refusals(self, *, allow_nonfinite: bool) -> Iterator[str]:
        for index in sorted(self._overflows - self._wrong.keys()):
            tensor = self._plan.tensors[index]
            if self._plan.allow_nonfinite(tensor) == allow_nonfinite:
                wider = "choose a dtype with a larger range, such as bfloat16"
                cure = wider if tensor.dtype == "F16" else "reduce the scale"
                yield f"tensor {tensor.name!r}: a result overflows {tensor.dtype}; {cure}"


def _first_non_finite(plan: MergePlan, mean: Source) -> tuple[str, str] | None:
    """Return file and owner of the first input of a mean that holds NaN or Inf; None if only the sum overflows."""
    parts = mean.tensor.origin.parts or (mean.tensor,)
    suspects = [f"{name}, and perhaps others" for name in plan.inputs.agents]
    owners = suspects if len(suspects) == len(parts) else [mean.owner] * len(parts)  # agents of weight 0 are left out
    with Files(plan.inputs.files) as files:
        reader = Reader(files)
        for owner, tensor in zip(owners, parts, strict=True):
            grain = tensor.origin.grain
            step = -(-_ELEMENTS_AT_ONCE // grain) * grain
            for start in range(0, tensor.elements, step):
                stop = min(start + step, tensor.elements)
                reader.begin(start, stop)
                if count_non_finite(tensor.dtype, reader.block(tensor), stop - start):
                    return tensor.place, owner
    return None
