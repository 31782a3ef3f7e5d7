"""From a plan to a checkpoint: count, reduce, merge, commit. One merge reads top to bottom in `execute`."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import ramerge
from ramerge.card import model_card
from ramerge.checkpoint.companions import copy_companions
from ramerge.checkpoint.dtypes import FROM_FULL_NAME, itemsize
from ramerge.checkpoint.index import SAFETENSORS_INDEX
from ramerge.checkpoint.read import Reader
from ramerge.checkpoint.write import Writer, staged
from ramerge.errors import PlanError, WeightsError
from ramerge.executors import Executor
from ramerge.kernels.convert import count_non_finite
from ramerge.kernels.formats import FORMATS
from ramerge.kernels.piece import Piece, words_of
from ramerge.methods import AgentCounts, rho
from ramerge.planning.model import Plan, TensorPlan, Tie, room
from ramerge.recipe import Agent, Recipe
from ramerge.record import AgentStatistics, Record


@dataclass(frozen=True)
class Progress:
    """Something was done: `done` of `total` bytes of the stage named `stage`."""

    stage: str
    done: int
    total: int


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class Block:
    """Elements `start:stop` of the plan's tensor number `tensor`."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True)
class Outcome:
    """What a worker found in a block.

    Attributes:
        block: the block.
        bytes_read: bytes of input.
        counts: int64, shape (2, agents): active and unique elements; None where nothing was counted.
        non_finite: NaN and Inf in base and agents, where the result is not finite; all zero for an overflow.
        unequal: places of the agents whose bytes differ from the base's in a tensor that must be equal.
    """

    block: Block
    bytes_read: int
    counts: NDArray[np.int64] | None = None
    non_finite: tuple[int, ...] | None = None
    unequal: tuple[int, ...] = ()


def execute(plan: Plan, executor: Executor, listen: Listener = lambda _: None) -> Record:
    """Carry a plan out.

    Raises:
        PlanError: the plan has problems, or no output folder.
        WeightsError: values that cannot be merged; every tensor that holds some.
        CheckpointError: an input cannot be read.
        OutputError: the output cannot be written.
    """
    if plan.problems or plan.out is None:
        raise PlanError(plan.problems or "an output folder is needed")
    began = time.monotonic()
    method, blocks = plan.method, list(_blocks(plan))
    _check_ties(plan)
    with staged(plan.out, overwrite=plan.overwrite) as stage:
        counted, lambdas, bytes_read = None, None, 0
        with closing(Writer(stage, plan.shards)) as writer:
            if method.needs_counts:
                floats = [block for block in blocks if plan.tensors[block.tensor].merged]
                counted = _run(plan, executor, listen, "counting", floats, _Worker.count)
                lambdas, bytes_read = counted.lambdas(), counted.bytes_read
                # Backwards: what the counting pass read last is still in the page cache.
                blocks.reverse()
            merged = _run(
                plan, executor, listen, "merging", blocks, lambda worker, block: worker.merge(block, writer, lambdas)
            )
            writer.finish()
        record = _record(plan, counted or merged, bytes_read + merged.bytes_read, began)
        _write_beside(plan, record, stage)
    return record


# --- passes ----------------------------------------------------------------------------------------------------------


def _blocks(plan: Plan) -> Iterator[Block]:
    """All blocks, tensor by tensor in the order of the output's files."""
    size = plan.resources.block_elements
    for place, tensor in enumerate(plan.tensors):
        for start in range(0, tensor.base.elements, size):
            yield Block(place, start, min(start + size, tensor.base.elements))


def _run(
    plan: Plan,
    executor: Executor,
    listen: Listener,
    stage: str,
    blocks: Sequence[Block],
    work: Callable[[_Worker, Block], Outcome],
) -> _Counted:
    """One pass over blocks: sum up what workers find, and refuse the weights at the end if any are bad."""
    counted = _Counted(plan)
    total = sum(plan.tensors[place].bytes_read for place in {block.tensor for block in blocks})
    listen(Progress(stage, 0, total))
    # closed here and not by the garbage collector: no worker may write once the output is being taken away
    with closing(executor.map(lambda: _worker(plan), work, blocks)) as outcomes:
        for outcome in outcomes:
            counted.add(outcome)
            listen(Progress(stage, counted.bytes_read, total))
    counted.refuse()
    assert counted.bytes_read == total, f"{stage} read {counted.bytes_read:,} bytes of {total:,}"
    return counted


class _Counted:
    """Sums over the blocks of a pass. Integers only, so that the order of blocks does not matter."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.bytes_read = 0
        self.groups: dict[str, NDArray[np.int64]] = {}
        self.non_finite: dict[int, NDArray[np.int64]] = {}
        self.overflows: set[int] = set()
        self.unequal: set[tuple[int, int]] = set()
        for tensor in plan.tensors:
            self.groups.setdefault(tensor.group, np.zeros((3, len(plan.agents)), np.int64))
            self.groups[tensor.group][2] += tensor.base.elements if tensor.merged else 0

    def add(self, outcome: Outcome) -> None:
        place = outcome.block.tensor
        self.bytes_read += outcome.bytes_read
        if outcome.counts is not None:
            self.groups[self.plan.tensors[place].group][:2] += outcome.counts
        if outcome.non_finite is not None and any(outcome.non_finite):
            found = np.array(outcome.non_finite, np.int64)
            self.non_finite[place] = self.non_finite.get(place, np.zeros_like(found)) + found
        elif outcome.non_finite is not None:
            self.overflows.add(place)
        self.unequal.update((place, agent) for agent in outcome.unequal)

    def of(self, group: str) -> list[AgentCounts]:
        """Each agent's counts in a group."""
        return [AgentCounts(int(total), int(active), int(unique)) for active, unique, total in self.groups[group].T]

    def whole(self) -> list[AgentCounts]:
        """Each agent's counts over the whole model."""
        everything = sum(self.groups.values(), np.zeros((3, len(self.plan.agents)), np.int64))
        return [AgentCounts(int(total), int(active), int(unique)) for active, unique, total in everything.T]

    def lambdas(self) -> dict[str, list[float]]:
        """Each group's scales of unique elements, one an agent, in float64."""
        rescale, parameters = self.plan.method.rescale, self.plan.parameters
        return {group: [rescale(counts, parameters) for counts in self.of(group)] for group in self.groups}

    def refuse(self) -> None:
        """Raise for everything that cannot be merged."""
        names = ("base", *self.plan.agents)
        problems = []
        for place, counts in sorted(self.non_finite.items()):
            tensor = self.plan.tensors[place]
            for name, source, count in zip(names, tensor.inputs, counts, strict=True):
                if count and (name == "base" or source is not tensor.base):
                    problems.append(
                        f"{source.path}: {name}: tensor {source.name!r} holds {count:,} NaN or Inf; "
                        "the training diverged or the file is damaged (allow.non_finite: true computes with them)"
                    )
        problems += [
            f"tensor {self.plan.tensors[place].name!r}: a result overflows {self.plan.tensors[place].dtype}; "
            "choose a dtype with a larger range, such as bfloat16"
            for place in sorted(self.overflows - self.non_finite.keys())
        ]
        problems += [
            f"{self.plan.tensors[place].agents[agent].path}: {names[agent + 1]}: "
            f"{self.plan.tensors[place].base.dtype} tensor {self.plan.tensors[place].name!r} differs from the base's; "
            "tensors that are not floating point cannot be merged and must be equal"
            for place, agent in sorted(self.unequal)
        ]
        if problems:
            raise WeightsError(problems)


# --- what is left behind ----------------------------------------------------------------------------------------------


def _record(plan: Plan, counted: _Counted, bytes_read: int, began: float) -> Record:
    whole, scales = counted.whole(), counted.lambdas()
    one_scale = plan.parameters.counted_over == "model"
    statistics = tuple(
        AgentStatistics(
            name=name,
            model=plan.recipe.agents[name].model,
            total=counts.total,
            active=counts.active,
            shared=counts.shared,
            unique=counts.unique,
            density=counts.density,
            rho=rho(counts),
            lambda_=plan.method.rescale(counts, plan.parameters) if one_scale else None,
        )
        for name, counts in zip(plan.agents, whole, strict=True)
    )
    return Record(
        ramerge_version=ramerge.__version__,
        method=plan.method.name,
        parameters=plan.parameters.model_dump(),
        base=plan.recipe.base,
        dtype=plan.dtype,
        statistics=statistics,
        lambdas={} if one_scale else {group: dict(zip(plan.agents, of, strict=True)) for group, of in scales.items()},
        tensors=len(plan.tensors),
        parameters_count=plan.parameters_count,
        bytes_read=bytes_read + sum(tie.head.nbytes + tie.embedding.nbytes for tie in plan.ties),
        bytes_written=plan.bytes_written,
        seconds=round(time.monotonic() - began, 3),
        peak_memory_bytes=peak_memory(),
    )


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes.

    Not `ru_maxrss` where Linux tells better: that one starts with the peak of the process that started this one.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _write_beside(plan: Plan, record: Record, stage: Path) -> None:
    """Index, companions, model card, recipe and record."""
    if [shard.name for shard in plan.shards] != ["model.safetensors"]:
        index = {
            "metadata": {
                "total_parameters": plan.parameters_count,
                "total_size": sum(tensor.bytes_written for tensor in plan.tensors),
            },
            "weight_map": {tensor.name: tensor.shard for tensor in sorted(plan.tensors, key=lambda t: t.name)},
        }
        (stage / SAFETENSORS_INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    dtype = FROM_FULL_NAME[plan.recipe.dtype] if plan.recipe.dtype else None
    copy_companions(plan.companions, stage, dtype)
    (stage / "README.md").write_text(model_card(plan, record), encoding="utf-8")
    (stage / "ramerge.yaml").write_text(_resolved(plan).to_yaml(), encoding="utf-8")
    (stage / "ramerge.json").write_text(record.to_json(), encoding="utf-8")


def _resolved(plan: Plan) -> Recipe:
    """The recipe with everything spelled out: parameters, absolute folders, revisions."""
    return plan.recipe.model_copy(
        update={
            "base": plan.base.spelled_out,
            "agents": {name: Agent(model=model.spelled_out) for name, model in plan.agents.items()},
            "parameters": plan.parameters.model_dump(),
            "preset": None,
        }
    )


def _check_ties(plan: Plan) -> None:
    """Refuse an output embedding that the base ties and an agent stores with other values."""
    problems = [
        f"{tie.head.path}: {tie.agent}: {tie.head.name!r} differs from {tie.embedding.name!r}, to which the base "
        "ties it; the merged model has no place for it (untie the base, or retrain with tied embeddings)"
        for tie in plan.ties
        if not _equal(tie)
    ]
    if problems:
        raise WeightsError(problems)


def _equal(tie: Tie) -> bool:
    if (tie.head.dtype, tie.head.nbytes) != (tie.embedding.dtype, tie.embedding.nbytes):
        return False
    size = 1 << 20
    left, right = np.empty(size, np.uint8), np.empty(size, np.uint8)
    with Reader() as head, Reader() as embedding:
        for start in range(0, tie.head.nbytes, size):
            stop = min(size, tie.head.nbytes - start)
            head.read(tie.head, start, left[:stop])
            embedding.read(tie.embedding, start, right[:stop])
            if not np.array_equal(left[:stop], right[:stop]):
                return False
    return True


# --- workers ---------------------------------------------------------------------------------------------------------


@contextmanager
def _worker(plan: Plan) -> Iterator[_Worker]:
    with ExitStack() as stack:
        yield _Worker(plan, [stack.enter_context(Reader()) for _ in range(1 + len(plan.agents))])


class _Worker:
    """A thread's buffer and open files."""

    def __init__(self, plan: Plan, readers: Sequence[Reader]) -> None:
        self._plan = plan
        self._readers = readers
        self._buffer = np.empty(plan.resources.buffer_bytes, np.uint8)
        self._used = 0
        self._bytes_read = 0

    def count(self, block: Block) -> Outcome:
        """Read the block of all inputs and count."""
        tensor = self._plan.tensors[block.tensor]
        piece = self._piece(tensor, block)
        counts = np.zeros((2, len(tensor.agents)), np.int64)
        flagged = self._plan.method.count(piece, self._plan.parameters, counts)
        found = _non_finite(piece) if flagged and not self._plan.recipe.allow.non_finite else ()
        # a difference may overflow although both sides are finite; what that means shows in the result
        return Outcome(block, self._bytes_read, counts, found if any(found) else None)

    def merge(self, block: Block, writer: Writer, lambdas: Mapping[str, Sequence[float]] | None) -> Outcome:
        """Read the block of all inputs, merge and write; count on the way if that was not done before."""
        tensor = self._plan.tensors[block.tensor]
        if not tensor.merged:
            return self._copy(tensor, block, writer)
        piece = self._piece(tensor, block)
        counts = np.zeros((2, len(tensor.agents)), np.int64) if lambdas is None else None
        scales = lambdas[tensor.group] if lambdas is not None else None
        lenient = self._plan.recipe.allow.non_finite
        flagged = self._plan.method.merge(piece, self._plan.parameters, scales, counts, lenient) and not lenient
        width = itemsize(tensor.dtype)
        writer.write(
            tensor.shard, tensor.offset + block.start * width, piece.out.view(np.uint8)[: piece.elements * width]
        )
        return Outcome(block, self._bytes_read, counts, _non_finite(piece) if flagged else None)

    def _copy(self, tensor: TensorPlan, block: Block, writer: Writer) -> Outcome:
        """Copy the block of a tensor that is not floating point, and compare the agents' with it."""
        base, *others = self._read(tensor, block)
        width = itemsize(tensor.dtype)
        data = base[: (block.stop - block.start) * width]
        writer.write(tensor.shard, tensor.offset + block.start * width, data)
        unequal = tuple(place for place, other in enumerate(others) if not np.array_equal(other, base))
        return Outcome(block, self._bytes_read, unequal=unequal)

    def _piece(self, tensor: TensorPlan, block: Block) -> Piece:
        elements = block.stop - block.start
        formats = tuple(source.dtype for source in tensor.inputs)
        parts = self._read(tensor, block)
        words = [part.view(FORMATS[format].word) for part, format in zip(parts, formats, strict=True)]
        out_word = np.dtype(FORMATS[tensor.dtype].word)
        out = self._take(words_of(tensor.dtype, elements) * out_word.itemsize).view(out_word)
        rows = len(formats) + 1 if set(formats) != {tensor.dtype} else 0
        scratch = self._take(rows * 8 * (elements + 1)).reshape(rows, 8 * (elements + 1))
        return Piece(elements, formats, words, tensor.dtype, out, scratch)

    def _read(self, tensor: TensorPlan, block: Block) -> list[NDArray[np.uint8]]:
        """The block's bytes in base and agents, with zeros up to a multiple of 4, which every word divides or is.

        An agent that leaves the tensor as it is shares the base's.
        """
        self._used = self._bytes_read = 0
        parts: list[NDArray[np.uint8]] = []
        for source, reader in zip(tensor.inputs, self._readers, strict=True):
            if parts and source is tensor.base:
                parts.append(parts[0])
                continue
            width = itemsize(source.dtype)
            size = (block.stop - block.start) * width
            part = self._take(size + -size % 4)
            part[size:] = 0
            reader.read(source, block.start * width, part[:size])
            self._bytes_read += size
            parts.append(part)
        return parts

    def _take(self, size: int) -> NDArray[np.uint8]:
        """The next `size` bytes of the buffer."""
        start = self._used
        self._used += room(size)
        return self._buffer[start : start + size]


def _non_finite(piece: Piece) -> tuple[int, ...]:
    """NaN and Inf in each input."""
    return tuple(
        count_non_finite(format, words, piece.elements)
        for format, words in zip(piece.formats, piece.inputs, strict=True)
    )
