"""Definition of a plan: the tensors, files and bytes of a merge, as known from headers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ramerge.core.foundation.dtypes import FROM_FULL_NAME, full_name, itemsize, widest
from ramerge.core.kernels.element_formats import loop_of
from ramerge.core.kernels.piece import arithmetic, result_format
from ramerge.core.methods.base import FEW, Layer, Method, Statistic
from ramerge.core.output.targets import OutputTarget
from ramerge.core.output.write import Shard
from ramerge.core.planning.findings import NO_FINDINGS, Findings
from ramerge.core.planning.owners import ALL_AGENTS, BASE, label_of
from ramerge.core.recipe.layers import layer_of
from ramerge.core.recipe.model import Recipe
from ramerge.core.recipe.points import Point
from ramerge.core.storage.location import Location
from ramerge.core.storage.resolve import FoundModel
from ramerge.core.tensors import scaled
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.arena import room
from ramerge.core.tensors.scaled import Scaling
from ramerge.core.tensors.tensor import Tensor
from ramerge.core.tensors.weighted import WeightedSum, is_quantized

if TYPE_CHECKING:
    from ramerge.core.planning.kinds import PlannedKind

# Numbers of an element while many agents are summed: the origin, the sum, and what the result is made of.
_BYTES_OF_MANY = 5 * 8


class Source(NamedTuple):
    """One input of a tensor: weights or importances of `owner`: an agent's name, `BASE` or `ALL_AGENTS`."""

    owner: str
    tensor: Tensor
    is_importance: bool = False

    @property
    def label(self) -> str:
        """The owner of the input, for people; `importance of` it for importances."""
        return f"importance of {self.owner}" if self.is_importance else label_of(self.owner)


class InputRecord(NamedTuple):
    """Statistics recorded for an agent at the input of a linear layer.

    Attributes:
        inputs: one row for each token, shape (n, d); n may be 0.
        weights: how much each row counts, shape (n,).
        transposed: whether the layer's weight is stored as (in, out).
    """

    inputs: Tensor
    weights: Tensor
    transposed: bool = False


def recorded_rows(records: Sequence[InputRecord]) -> tuple[int, ...]:
    """How many rows were recorded of each agent."""
    return tuple(each.inputs.shape[0] for each in records)


def none_of(record: InputRecord) -> InputRecord:
    """An empty `Recorded`, for an agent without records where others have `record`."""
    inputs, weights, transposed = record
    return InputRecord(replace(inputs, shape=(0, *inputs.shape[1:])), replace(weights, shape=(0,)), transposed)


class OutputPart(NamedTuple):
    """A tensor of an output file.

    Attributes:
        offset: byte in that file where its data begins.
        begin: first byte of its data that is written, if only some rows are.
        size: bytes that are written, if not all.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    offset: int
    begin: int = 0
    size: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the part to write."""
        return self.whole_nbytes if self.size is None else self.size

    @property
    def whole_nbytes(self) -> int:
        """Bytes of the whole tensor in the file."""
        return math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of the output.

    Attributes:
        base: the base's tensor, which gives name, shape and place; rounded where agents were trained from it so.
        sources: what is read, in the order that the action needs. If an agent does not change a tensor, its source is
            the base's tensor itself.
        action: `merge` by the method; `copy` the only source; or `compare`: all sources must hold the same bytes.
        dtype: safetensors dtype of the result; F32 if it is quantized before it is written.
        parts: the written tensors: the tensor itself, or its codes and its scales.
        rule: the rule of the recipe that catches it, counted from 1; 0 if no rule does.
        counted: that rule if it has parameters, so that its tensors are counted by themselves; else 0.
        unit: how many elements that follow one another the method needs in one block.
        chunk: blocks begin at multiples of so many elements too, for statistics that add floats.
        quantized: the base's codes and scales if the result is stored like them.
        seed: of the random draws that round the method's result; None to round to nearest.
        together: the methods, or the `dtype`, that compute its elements from one another, if NaN and Inf are allowed in
            other tensors: here they are not.
        recorded: what was recorded of each agent at its input, in recipe order; empty if nothing was.
        transposed: whether it is a linear weight that is stored as (in, out).
        originals: the sources of the whole tensor, where this is some of its rows, or a part of it and the method takes
            recorded inputs.
    """

    base: Tensor
    sources: tuple[Source, ...]
    action: Literal["merge", "copy", "compare"]
    dtype: str
    parts: tuple[OutputPart, ...]
    rule: int = 0
    counted: int = 0
    unit: int = 1
    chunk: int = 1
    quantized: Scaling | None = None
    seed: int | None = None
    together: tuple[str, ...] = ()
    recorded: tuple[InputRecord, ...] = ()
    transposed: bool = False
    originals: tuple[Source, ...] = ()

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.base.name

    @property
    def layer(self) -> Layer:
        """The tensor as a method sees it."""
        real = arithmetic([source.tensor.dtype for source in self.sources])
        return Layer(self.name, self.base.shape, itemsize(real), recorded_rows(self.recorded), self.transposed)

    @property
    def merged(self) -> bool:
        """Whether the method computes the tensor."""
        return self.action == "merge"

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape that the method needs at once: the tensor's, or that of its stacked matrices; empty for less."""
        shape = self.base.shape
        shapes = (shape, shape[1:]) if len(shape) == 3 else (shape,)
        return next((each for each in shapes if 1 < self.unit == math.prod(each)), ())

    @property
    def coarse(self) -> dict[str, str]:
        """Safetensors dtypes of the agents that hold the base's numbers only rounded, by agent."""
        dtypes, base = {}, self.base.dtype
        for source in self.sources:
            if source.owner != BASE and not source.is_importance and self.base.is_float:
                dtype = source.tensor.dtype
                if itemsize(dtype) < itemsize(base) or (dtype, base) == ("BF16", "F16"):
                    dtypes[source.owner] = dtype
        return dtypes

    @property
    def narrowed(self) -> tuple[str, ...]:
        """The agents whose dtype is wider than the output's."""
        return tuple(
            source.owner
            for source in self.sources
            if source.owner != BASE and not source.is_importance
            if self.base.is_float and itemsize(source.tensor.dtype) > itemsize(self.dtype)
            # float32 numbers that come from 8 bits or fewer, or are a mean of narrower ones
            if not source.tensor.encoding and not isinstance(source.tensor.origin, WeightedSum)
        )

    @property
    def rounds_updates(self) -> bool:
        """Whether the last rounding of the method's result can lose anything."""
        arithmetic = "F64" if any(source.tensor.dtype == "F64" for source in self.sources) else "F32"
        return self.merged and (self.quantized is not None or itemsize(self.dtype) < itemsize(arithmetic))

    @cached_property
    def bytes_read(self) -> int:
        """Bytes of one read of all sources. Data that several of them need, such as the base's, are read once."""
        return sum(leaf.nbytes for leaf in {leaf for tensor in self._read for leaf in tensor.origin.leaves()})

    @property
    def _read(self) -> list[Tensor]:
        """The tensors to read. To keep the base's codes, its numbers are needed too."""
        own = [self.base] if self.quantized is not None else []
        return [*own, *[source.tensor for source in self.sources]]

    def block(self, size: int) -> int:
        """The number of elements of its blocks, given the size of blocks in general."""
        # blocks begin at even elements, because two elements of a 16-bit format share a word
        scaling_unit = scaled.scaling_unit(self.quantized) if self.quantized is not None else 1
        unit = math.lcm(2, self.unit, self.chunk, scaling_unit)
        return max(size // unit, 1) * unit

    @property
    def likeness(self) -> Hashable:
        """Equal for tensors of which workers need the same buffers."""
        read = tuple(tensor.likeness for tensor in self._read)
        return self.action, self.dtype, self.unit, self.chunk, self.seed is None, self.base.shape, read

    def buffer_bytes(self, block: int) -> int:
        """Bytes that a worker needs for a block, given the size of blocks in general."""
        elements = min(self.block(block), self.base.elements)
        # inputs, output, and widened copies of both where they are made
        each = sum(itemsize(source.tensor.dtype) for source in self.sources) + itemsize(self.dtype) + sum(self.scratch)
        arrays = room(1) * (len(self.sources) + 2) + 8 * (len(self.sources) + 1)
        scratch = max((tensor.scratch(elements) for tensor in self._read), default=0)
        quantized = 0
        if self.quantized is not None:
            wide_bytes = (
                0 if self.base.dtype == "F32" else room(4 * elements) + room(itemsize(self.base.dtype) * elements)
            )
            quantized = room(4 * elements) + wide_bytes + scaled.scratch_of(self.quantized, elements)
        many = _BYTES_OF_MANY * elements if self.merged and len(self.sources) > 1 + FEW else 0
        return elements * each + arrays + max(scratch, quantized) + many

    def part(self, scope: str) -> str:
        """The part of the model with which it is counted. The tensors of a rule with parameters are counted apart."""
        return f"{f'rule {self.counted}: ' if self.counted else ''}{scope_of(self.name, scope)}"

    @property
    def bytes_written(self) -> int:
        """Bytes of the tensor in the output."""
        return sum(part.nbytes for part in self.parts)

    @property
    def scratch(self) -> tuple[int, ...]:
        """Bytes of an element in each row of `kernels.piece.Piece.scratch`."""
        if not self.merged:
            return ()
        formats = [source.tensor.dtype for source in self.sources]
        loop_dtype, element = (
            result_format(formats, self.dtype, stochastic=self.seed is not None),
            itemsize(arithmetic(formats)),
        )
        if self.unit == 1 and loop_of(formats, loop_dtype) is not None:
            return () if loop_dtype == self.dtype else (element,)
        return (element,) * (len(formats) + 1)


@dataclass(frozen=True)
class Block:
    """Elements `start:stop` of the plan's tensor number `tensor`."""

    tensor: int
    start: int
    stop: int


Batch = tuple[Block, ...]
"""Blocks of a tensor that a worker takes at once; not empty."""

Run = tuple[Batch, ...]
"""Batches that a worker takes one after another; not empty."""


def share_of(tensor: TensorPlan, block: Block) -> int:
    """The block's share of the bytes that one read takes; the shares of all blocks add up to them."""
    total, elements = tensor.bytes_read, tensor.base.elements
    return total * block.stop // elements - total * block.start // elements


def matches_of_rules(recipe: Recipe, tensors: Sequence[TensorPlan]) -> list[int]:
    """How many tensors each rule of a recipe catches."""
    counts = Counter({tensor.parts[0].name: tensor.rule for tensor in tensors}.values())
    return [counts[rule] for rule in range(1, len(recipe.rules) + 1)]


def rules_with_dtype(recipe: Recipe) -> frozenset[int]:
    """The numbers of the rules that decide a dtype, counted from 1 as in `TensorPlan.rule`."""
    return frozenset(number for number, rule in enumerate(recipe.rules, 1) if rule.dtype is not None)


def dtype_by_rules(recipe: Recipe, tensors: Iterable[TensorPlan]) -> str | None:
    """The dtype of most elements if rules decide more than half of them; otherwise None."""
    rules = rules_with_dtype(recipe)
    plain = [tensor for tensor in tensors if tensor.base.is_float]
    elements = elements_by_dtype(plain)
    elements_of_rules = elements_by_dtype(tensor for tensor in plain if tensor.rule in rules)
    return most_common(elements) if 2 * elements_of_rules.total() > elements.total() else None


def elements_by_dtype(tensors: Iterable[TensorPlan], *, of_base: bool = False) -> Counter[str]:
    """How many elements have which dtype in the output, or in the base."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.base.usual_dtype if of_base else tensor.dtype] += tensor.base.elements
    return counts


def most_common(counts: Mapping[str, int]) -> str:
    """The dtype of most elements; in a tie the narrower, so that the order of tensors does not matter."""
    return max(counts, key=lambda dtype: (counts[dtype], -itemsize(dtype), dtype))


def matrices_of(points: Sequence[Point], tensors: Sequence[TensorPlan]) -> list[TensorPlan]:
    """For each whole matrix that the method of any point solves for, the tensor that it is, or is stacked in."""
    solved_tensors = [tensor for tensor in tensors if _is_solved_for(points, tensor)]
    return [tensor for tensor in solved_tensors for _ in range(tensor.base.elements // tensor.unit)]


def _is_solved_for(points: Sequence[Point], tensor: TensorPlan) -> bool:
    if not tensor.merged or not tensor.matrix:
        return False
    return any(point.method.solves(tensor.layer, point.parameters[tensor.rule]) for point in points)


def needed_by(points: Sequence[Point], tensor: TensorPlan, agents: int) -> int:
    """The most bytes that any point's method takes besides inputs and result of a matrix."""
    layer = tensor.layer
    return max(point.method.scratch(layer, point.parameters[tensor.rule], agents) for point in points)


def _stored_dtype(tensor: Tensor) -> str:
    if isinstance(tensor.origin, WeightedSum):
        return _stored_dtype(tensor.origin.terms[0]) if is_quantized(tensor) else tensor.usual_dtype
    return tensor.encoding or tensor.dtype


def scope_of(name: str, scope: str) -> str:
    """The part of a model that a tensor belongs to: the whole `model` (""), its `layer`, or the `tensor` itself."""
    if scope == "model":
        return ""
    layer = layer_of(name) if scope == "layer" else None
    return str(layer) if layer else name


@dataclass(frozen=True)
class Tie:
    """An output embedding that an agent stores although the base ties it: it must equal the agent's embedding."""

    agent: str
    head: Tensor
    embedding: Tensor

    @property
    def untie(self) -> str:
        """Advice how to keep both if they differ."""
        return (
            "untie a copy of the base and merge with that: set tie_word_embeddings to false in its config.json, and "
            f"store {self.head.name!r} in it as a copy of its {self.embedding.name!r}"
        )


@dataclass(frozen=True)
class Resources:
    """Threads, blocks and memory of the work.

    Attributes:
        block_elements: elements of each input that a worker holds at a time.
        run_bytes: bytes of the blocks that a worker takes at a stretch; 0 for single blocks.
        device: solves for whole matrices: `cpu`, or a device as torch names it.
        device_bytes: memory of the device for a matrix; the CPU solves for larger ones.
    """

    workers: int
    block_elements: int
    buffer_bytes: int
    peak_memory_bytes: int
    worker_bytes: int
    run_bytes: int = 0
    device: str = "cpu"
    device_name: str = "cpu"
    device_bytes: int = 0

    def takes(self, nbytes: int) -> bool:
        """Whether the device has room for a matrix that needs so many bytes."""
        return self.device != "cpu" and nbytes <= self.device_bytes

    def memory_of(self, workers: int) -> int:
        """Upper estimate of the memory of a process with so many workers, in bytes."""
        return self.peak_memory_bytes + (workers - self.workers) * self.worker_bytes


@dataclass(frozen=True)
class FoundModels:
    """The models that a recipe names, as they were found.

    Attributes:
        base: the base; if the recipe has no base, the first agent.
    """

    base: FoundModel
    agents: Mapping[str, FoundModel]
    sides: Mapping[str, FoundModel]


@dataclass(frozen=True)
class PlannedInputs(FoundModels):
    """The models that a merge reads.

    Attributes:
        files: the identities of all files before reading, including files to copy.
    """

    adapters: tuple[str, ...]
    formats: Mapping[str, str]
    files: Mapping[Location, Identity] = field(repr=False)


@dataclass(frozen=True)
class PlannedCounts:
    """Statistics that the method needs before the merging pass.

    Attributes:
        rounds: for each read before that pass: the statistics to count, by the tensor's index.
        cached: results of earlier reads of the same files, by statistic and part of the model, which are not counted.
        digest: the key for storing counts of these inputs; None if counts are not stored.
    """

    rounds: tuple[Mapping[int, tuple[Statistic, ...]], ...] = ()
    cached: Mapping[tuple[Statistic, str], object] = field(default_factory=dict)
    digest: bytes | None = None

    @property
    def origin(self) -> str:
        """Where counts come from: this `read` of the inputs, or an `earlier read` of the same files."""
        return "earlier read" if self.cached else "read"


@dataclass(frozen=True)
class ConfigChanges:
    """Ways in which the output's `config.json` differs from the base's.

    Attributes:
        vocabulary: rows of the embeddings if models have different numbers of them.
        dequantized_to: dtype of a quantized base's tensors in the output; None if the base is not quantized, or if the
            output is quantized like it.
    """

    vocabulary: int | None = None
    untied: bool = False
    dequantized_to: str | None = None
    base_dtype: str | None = None


@dataclass(frozen=True)
class PlannedOutput:
    """Place and kind of the output.

    Attributes:
        details: the kind's decisions.
        disk_free: free bytes of the output's disk; for a remote output, of the disk from which it is sent.
    """

    target: OutputTarget | None
    overwrite: bool
    kind: PlannedKind
    details: Any = field(default=None, repr=False)
    disk_free: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedContents:
    """The tensors of the output, and the inputs for them.

    Attributes:
        ties: tensors that must be equal before anything is merged.
        companions: relative name to source of the files that are copied.
    """

    tensors: tuple[TensorPlan, ...] = field(default=(), repr=False)
    shards: tuple[Shard, ...] = field(default=(), repr=False)
    ties: tuple[Tie, ...] = field(default=(), repr=False)
    companions: Mapping[str, Location] = field(default_factory=dict, repr=False)
    counts: PlannedCounts = field(default=PlannedCounts(), repr=False)
    config: ConfigChanges = ConfigChanges()

    @property
    def bytes_read(self) -> int:
        """Bytes of weights to read, in all passes together."""
        counting_bytes = sum(self.tensors[index].bytes_read for read in self.counts.rounds for index in read)
        ties = sum(tie.head.nbytes + tie.embedding.nbytes for tie in self.ties)
        return ties + counting_bytes + sum(tensor.bytes_read for tensor in self.tensors)


@dataclass(frozen=True, kw_only=True)
class MergePlan(PlannedContents):
    """Everything that is known about a merge from headers. It can be carried out if there are no problems.

    Attributes:
        points: the merges; one, or those of a sweep.
        inputs: base, agents and their files.
        output: the output's place and kind.
        resources: threads, blocks and memory.
        strict: whether warnings are problems, also those that come later, during the merge.
        findings: problems, warnings and notes.
    """

    points: tuple[Point, ...]
    inputs: PlannedInputs
    output: PlannedOutput
    resources: Resources
    strict: bool = False
    findings: Findings = NO_FINDINGS

    @property
    def recipe(self) -> Recipe:
        """The recipe; in a sweep, the first point's. Points differ only in method and parameters."""
        return self.points[0].recipe

    @property
    def method(self) -> Method:
        """The method; in a sweep, the first point's."""
        return self.points[0].method

    @property
    def parameters(self) -> Any:
        """The parameters of tensors that no rule catches; in a sweep, the first point's."""
        return self.points[0].parameters[0]

    @property
    def passes(self) -> int:
        """Number of reads of the inputs: one for each round of counting, and one for merging."""
        return len(self.counts.rounds) + 1

    @property
    def bytes_written(self) -> int:
        """Bytes of the output's safetensors files, of all points."""
        return sum(shard.file_bytes for shard in self.shards) * len(self.points)

    @property
    def is_sweep(self) -> bool:
        """Whether the plan is for a sweep, in which every point has its own folder in the output."""
        return bool(self.points[0].name)

    @property
    def caught(self) -> list[int]:
        """How many tensors each rule of the recipe catches."""
        return matches_of_rules(self.recipe, self.tensors)

    @property
    def tensors_count(self) -> int:
        """Tensors of the output; one that is quantized counts once."""
        return len({tensor.parts[0].name for tensor in self.tensors})

    @property
    def merged_tensors_count(self) -> int:
        """Tensors of the output that the method merges."""
        return len({tensor.parts[0].name for tensor in self.tensors if tensor.merged})

    @property
    def parameters_count(self) -> int:
        """Elements of the output."""
        return sum(tensor.base.elements for tensor in self.tensors)

    @property
    def dtype(self) -> str:
        """The output's dtype by its full name, `mixed` if it has several; floating-point tensors only."""
        names = {full_name(tensor.parts[0].dtype) for tensor in self.tensors if tensor.base.is_float}
        return names.pop() if len(names) == 1 else ("mixed" if names else "none")

    @property
    def is_quantized(self) -> bool:
        """Whether tensors of the output are quantized, as `dtype: like base` asks. Codes are rounded to nearest."""
        return any(tensor.quantized is not None for tensor in self.tensors)

    @property
    def loads_as(self) -> str | None:
        """The dtype that `config.json` must state; None if it states the right one.

        That is the widest of the output's. Models that store some tensors in a wider one than they state, such as
        routers, keep what they state. Where rules decide the dtypes of most elements, it is the dtype of most, because
        transformers loads all weights in the dtype that is stated; otherwise the dtypes of rules do not count.
        """
        if self.is_quantized:
            return None
        if most := dtype_by_rules(self.recipe, self.tensors):
            return most if most != self.config.base_dtype or self.config.dequantized_to else None
        rules = rules_with_dtype(self.recipe)
        plain = [tensor for tensor in self.tensors if tensor.base.is_float and tensor.rule not in rules]
        floats = elements_by_dtype(plain)
        if not floats:
            return None
        requested_dtype = FROM_FULL_NAME.get(self.recipe.dtype or "")
        config_dtype = (
            requested_dtype or self.config.dequantized_to or self.config.base_dtype or floats.most_common(1)[0][0]
        )
        wider = [tensor for tensor in plain if widest({tensor.dtype, config_dtype}) != config_dtype]
        config = self.companions.get("config.json")
        as_base = all(
            each.dtype == each.base.usual_dtype
            # it speaks of the files next to it, and not of an adapter's
            and (
                requested_dtype
                or (config and {leaf.path.parent for leaf in each.base.origin.leaves()} <= {config.parent})
            )
            for each in wider
        )
        if self.recipe.dtype != "widest" and config_dtype in floats and as_base:
            return config_dtype if config_dtype != self.config.base_dtype or self.config.dequantized_to else None
        return widest(floats)

    @cached_property
    def input_dtypes(self) -> dict[str, str]:
        """Dtypes of the floating-point tensors of every input, the most frequent first; inputs as `base` and agents."""
        importances = [f"importance of {name}" for name in (self.inputs.sides if self.method.needs_importance else ())]
        owners = [*(["base"] if self.recipe.base is not None else []), *self.inputs.agents, *importances]
        elements_by_owner: dict[str, Counter[str]] = {owner: Counter() for owner in owners}
        for tensor in self.tensors:
            if self.recipe.base is not None and tensor.base.is_float:
                elements_by_owner["base"][_stored_dtype(tensor.base)] += tensor.base.elements
            for source in tensor.sources:
                # if an agent lacks a tensor, the base's is used instead
                is_of_base = self.recipe.base is not None and source.tensor is tensor.base
                stored_as: Iterable[tuple[str, Tensor]] = [(source.label, source.tensor)]
                if source.owner == ALL_AGENTS:
                    parts, agents = source.tensor.origin.parts or (source.tensor,), self.inputs.agents
                    every = len(agents) == len(parts)  # of a mean that leaves out agents, each has all dtypes
                    stored_as = zip(agents, parts, strict=True) if every else product(agents, parts)
                for label, tensor_of_source in stored_as:
                    if source.owner != BASE and source.tensor.is_float and not is_of_base:
                        elements_by_owner[label][_stored_dtype(tensor_of_source)] += tensor_of_source.elements
        return {
            owner: ", ".join(full_name(dtype) for dtype, _ in counts.most_common())
            for owner, counts in elements_by_owner.items()
            if counts
        }

    def allow_nonfinite(self, tensor: TensorPlan) -> bool:
        """Whether NaN and Inf of a tensor are computed with."""
        return self.recipe.allow.non_finite and not tensor.together

    @property
    def rounds_updates(self) -> bool:
        """Whether rounding to the output's dtype can lose updates of agents, so that the losses are counted."""
        few = len(self.inputs.agents) <= FEW
        return few and self.points[0].uses_base and any(tensor.rounds_updates for tensor in self.tensors)

    @property
    def exact_dtype(self) -> str:
        """The full name of the dtype of the arithmetic. With this output dtype, the last rounding loses nothing."""
        dtypes = {source.tensor.dtype for tensor in self.tensors for source in tensor.sources}
        return full_name("F64" if "F64" in dtypes else "F32")

    @property
    def narrowed_copies(self) -> tuple[str, ...]:
        """Names of tensors that rules take from an agent whose dtype is wider than the output's."""
        return tuple(tensor.name for tensor in self.tensors if tensor.action == "copy" and tensor.narrowed)
