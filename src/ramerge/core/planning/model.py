"""The definition of a plan: tensors, files and bytes of a merge, from headers alone."""

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

# While many agents are summed, each element takes five float64: the origin, the sum, and temporaries of the result.
_BYTES_OF_MANY = 5 * 8


class Source(NamedTuple):
    """One input of a planned tensor: weights or importances. `owner`: an agent's name, `BASE` or `ALL_AGENTS`."""

    owner: str
    tensor: Tensor
    is_importance: bool = False

    @property
    def label(self) -> str:
        """Readable name of the input: its owner, or `importance of OWNER`."""
        return f"importance of {self.owner}" if self.is_importance else label_of(self.owner)


class InputRecord(NamedTuple):
    """Recorded inputs of an agent's linear layer.

    Attributes:
        inputs: one row per token, shape (n, d); n may be 0.
        weights: the weight of each row, shape (n,).
        transposed: whether the layer's weight is stored as (in, out).
    """

    inputs: Tensor
    weights: Tensor
    transposed: bool = False


def recorded_rows(records: Sequence[InputRecord]) -> tuple[int, ...]:
    """The number of recorded rows of each agent."""
    return tuple(each.inputs.shape[0] for each in records)


def none_of(record: InputRecord) -> InputRecord:
    """An empty `InputRecord` like `record`, for an agent without recorded inputs."""
    inputs, weights, transposed = record
    return InputRecord(replace(inputs, shape=(0, *inputs.shape[1:])), replace(weights, shape=(0,)), transposed)


class OutputPart(NamedTuple):
    """A tensor in an output file, or some rows of it.

    Attributes:
        shard: the name of the file.
        offset: the byte in the file where the tensor's data begins.
        begin: the first byte of the data that is written, if only some rows are written.
        size: how many bytes are written; None for all.
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
        """Bytes that are written."""
        return self.whole_nbytes if self.size is None else self.size

    @property
    def whole_nbytes(self) -> int:
        """Bytes of the whole tensor in the file."""
        return math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class TensorPlan:
    """How one tensor of the output, or some of its rows, is made.

    Attributes:
        base: the base's tensor, which determines name and shape; rounded if the agents' trainers rounded it.
        sources: the inputs, in the order that the action needs. If an agent does not change a tensor, its source is
            the base's tensor itself.
        action: `merge` by the method; `copy` the only source; or `compare`: all sources must have the same bytes.
        dtype: safetensors dtype of the result; F32 if it is quantized before it is written.
        parts: the tensors that are written: the tensor itself, or its codes and its scales.
        rule: number of the matching rule of the recipe, counted from 1; 0 if no rule matches.
        counted: the same number if the rule has parameters, so that its tensors are counted separately; else 0.
        unit: how many consecutive elements the method needs in one block.
        chunk: blocks also begin at multiples of this many elements, for statistics that sum floats.
        quantized: the base's codes and scales, if the result is quantized like them.
        seed: seed of the random draws that round the method's result; None to round to nearest.
        together: names of methods, or the `dtype`, for which elements of this tensor depend on each other, so that NaN
            and Inf are refused in it even if they are allowed in other tensors.
        recorded: the recorded inputs of each agent, in recipe order; empty if there are none.
        transposed: whether it is a linear weight that is stored as (in, out).
        originals: the sources of the whole tensor, if this is only a part of it, because models have different numbers
            of rows, or because inputs were recorded for single experts.
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
        """The description of the tensor that methods get."""
        real = arithmetic([source.tensor.dtype for source in self.sources])
        return Layer(self.name, self.base.shape, itemsize(real), recorded_rows(self.recorded), self.transposed)

    @property
    def merged(self) -> bool:
        """Whether the tensor is merged by the method."""
        return self.action == "merge"

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape of the whole matrix that the method needs at once: the tensor, or one of its stacked matrices.

        Empty if the method needs less.
        """
        shape = self.base.shape
        shapes = (shape, shape[1:]) if len(shape) == 3 else (shape,)
        return next((each for each in shapes if 1 < self.unit == math.prod(each)), ())

    @property
    def coarse(self) -> dict[str, str]:
        """Safetensors dtypes of the agents whose dtype is coarser than the base's, by agent."""
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
            # dequantized codes and means of narrower numbers are float32, but were not stored so
            if not source.tensor.encoding and not isinstance(source.tensor.origin, WeightedSum)
        )

    @property
    def rounds_updates(self) -> bool:
        """Whether rounding the method's result to the output's dtype can lose updates."""
        arithmetic = "F64" if any(source.tensor.dtype == "F64" for source in self.sources) else "F32"
        return self.merged and (self.quantized is not None or itemsize(self.dtype) < itemsize(arithmetic))

    @cached_property
    def bytes_read(self) -> int:
        """Bytes of one read of all sources. Data that several sources need, such as the base's, are read once."""
        return sum(
            leaf.nbytes for leaf in {leaf for tensor in self._tensors_to_read for leaf in tensor.origin.leaves()}
        )

    @property
    def _tensors_to_read(self) -> list[Tensor]:
        """The tensors to read. If the result is quantized like the base, this includes the base's tensor."""
        own = [self.base] if self.quantized is not None else []
        return [*own, *[source.tensor for source in self.sources]]

    def block(self, size: int) -> int:
        """The number of elements in blocks of this tensor, given the general block size in elements."""
        # blocks begin at even elements, because two elements of a 16-bit format share a word
        scaling_unit = scaled.scaling_unit(self.quantized) if self.quantized is not None else 1
        unit = math.lcm(2, self.unit, self.chunk, scaling_unit)
        return max(size // unit, 1) * unit

    @property
    def likeness(self) -> Hashable:
        """A key that is equal for tensors for which workers need the same buffers."""
        read = tuple(tensor.likeness for tensor in self._tensors_to_read)
        return self.action, self.dtype, self.unit, self.chunk, self.seed is None, self.base.shape, read

    def buffer_bytes(self, block: int) -> int:
        """Bytes that a worker needs for a block, given the general block size in elements."""
        elements = min(self.block(block), self.base.elements)
        # inputs, output, and widened copies of both if there are any
        each = sum(itemsize(source.tensor.dtype) for source in self.sources) + itemsize(self.dtype) + sum(self.scratch)
        arrays = room(1) * (len(self.sources) + 2) + 8 * (len(self.sources) + 1)
        scratch = max((tensor.scratch(elements) for tensor in self._tensors_to_read), default=0)
        quantized = 0
        if self.quantized is not None:
            wide_bytes = (
                0 if self.base.dtype == "F32" else room(4 * elements) + room(itemsize(self.base.dtype) * elements)
            )
            quantized = room(4 * elements) + wide_bytes + scaled.scratch_of(self.quantized, elements)
        many = _BYTES_OF_MANY * elements if self.merged and len(self.sources) > 1 + FEW else 0
        return elements * each + arrays + max(scratch, quantized) + many

    def part(self, scope: str) -> str:
        """The name of the part of the model with which the tensor is counted.

        Tensors of a rule with parameters are counted separately.
        """
        return f"{f'rule {self.counted}: ' if self.counted else ''}{scope_of(self.name, scope)}"

    @property
    def bytes_written(self) -> int:
        """Bytes of the tensor in the output."""
        return sum(part.nbytes for part in self.parts)

    @property
    def scratch(self) -> tuple[int, ...]:
        """Bytes per element in each row of `kernels.piece.Piece.scratch`."""
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
    """Elements `start:stop` of a tensor; `tensor` is its index in the plan."""

    tensor: int
    start: int
    stop: int


Batch = tuple[Block, ...]
"""Blocks of one tensor that a worker processes at once; not empty."""

Run = tuple[Batch, ...]
"""Batches that a worker processes one after another; not empty."""


def share_of(tensor: TensorPlan, block: Block) -> int:
    """A block's share of the bytes of one read of its tensor; the shares of all blocks add up to these bytes."""
    total, elements = tensor.bytes_read, tensor.base.elements
    return total * block.stop // elements - total * block.start // elements


def matches_of_rules(recipe: Recipe, tensors: Sequence[TensorPlan]) -> list[int]:
    """How many tensors each rule of a recipe matches."""
    counts = Counter({tensor.parts[0].name: tensor.rule for tensor in tensors}.values())
    return [counts[rule] for rule in range(1, len(recipe.rules) + 1)]


def rules_with_dtype(recipe: Recipe) -> frozenset[int]:
    """The numbers of the rules that set a dtype, counted from 1 as in `TensorPlan.rule`."""
    return frozenset(number for number, rule in enumerate(recipe.rules, 1) if rule.dtype is not None)


def dtype_by_rules(recipe: Recipe, tensors: Iterable[TensorPlan]) -> str | None:
    """The most common dtype of elements, if rules set the dtypes of more than half of the elements; otherwise None."""
    rules = rules_with_dtype(recipe)
    plain = [tensor for tensor in tensors if tensor.base.is_float]
    elements = elements_by_dtype(plain)
    elements_of_rules = elements_by_dtype(tensor for tensor in plain if tensor.rule in rules)
    return most_common(elements) if 2 * elements_of_rules.total() > elements.total() else None


def elements_by_dtype(tensors: Iterable[TensorPlan], *, of_base: bool = False) -> Counter[str]:
    """The number of elements with each dtype, in the output or in the base."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.base.usual_dtype if of_base else tensor.dtype] += tensor.base.elements
    return counts


def most_common(counts: Mapping[str, int]) -> str:
    """The dtype of most elements; the narrower one in a tie, so that the order of tensors does not matter."""
    return max(counts, key=lambda dtype: (counts[dtype], -itemsize(dtype), dtype))


def matrices_of(points: Sequence[Point], tensors: Sequence[TensorPlan]) -> list[TensorPlan]:
    """The tensors with whole matrices that the method of any point solves for, repeated for each stacked matrix."""
    solved_tensors = [tensor for tensor in tensors if _is_solved_for(points, tensor)]
    return [tensor for tensor in solved_tensors for _ in range(tensor.base.elements // tensor.unit)]


def _is_solved_for(points: Sequence[Point], tensor: TensorPlan) -> bool:
    if not tensor.merged or not tensor.matrix:
        return False
    return any(point.method.solves(tensor.layer, point.parameters[tensor.rule]) for point in points)


def method_bytes(points: Sequence[Point], tensor: TensorPlan, agents: int) -> int:
    """The most bytes that the method of any point takes for a matrix, besides inputs and result."""
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
    """An output embedding that an agent stores although the base ties it; it must equal the agent's input embedding."""

    agent: str
    head: Tensor
    embedding: Tensor

    @property
    def untie(self) -> str:
        """Advice on how to keep both embeddings if they differ."""
        return (
            "untie a copy of the base and merge with that: set tie_word_embeddings to false in its config.json, and "
            f"store {self.head.name!r} in it as a copy of its {self.embedding.name!r}"
        )


@dataclass(frozen=True)
class Resources:
    """Threads, blocks and memory of a merge.

    Attributes:
        workers: the number of threads.
        block_elements: elements of each input that a worker holds at a time.
        buffer_bytes: bytes of a worker's buffer.
        peak_memory_bytes: upper estimate of the memory of the process.
        worker_bytes: bytes that each worker adds to the memory of the process.
        run_bytes: bytes of consecutive blocks that a worker takes as one run; 0 for single blocks.
        device: the device that solves for whole matrices: `cpu`, or torch's name of a device.
        device_name: readable name of the device.
        device_bytes: memory of the device for one matrix; the CPU solves for larger matrices.
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
        """Whether the device solves for matrices and has room for one that needs `nbytes`."""
        return self.device != "cpu" and nbytes <= self.device_bytes

    def memory_of(self, workers: int) -> int:
        """Upper estimate of the memory of a process with this many workers, in bytes."""
        return self.peak_memory_bytes + (workers - self.workers) * self.worker_bytes


@dataclass(frozen=True)
class FoundModels:
    """The models of a recipe, located but not opened.

    Attributes:
        base: the base; the first agent if the recipe has no base.
        agents: the agents by name.
        sides: the agents' side inputs, by name of the agent.
    """

    base: FoundModel
    agents: Mapping[str, FoundModel]
    sides: Mapping[str, FoundModel]


@dataclass(frozen=True)
class PlannedInputs(FoundModels):
    """The models that a merge reads.

    Attributes:
        adapters: the agents that are LoRA adapters.
        formats: readable formats of the models.
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
        cached: results from earlier reads of the same files, by statistic and part of the model; not counted again.
        digest: the key for storing counts of these inputs; None if counts are not stored.
    """

    rounds: tuple[Mapping[int, tuple[Statistic, ...]], ...] = ()
    cached: Mapping[tuple[Statistic, str], object] = field(default_factory=dict)
    digest: bytes | None = None

    @property
    def origin(self) -> str:
        """The source of the counts: `read` if this merge counts them, `earlier read` if they are cached."""
        return "earlier read" if self.cached else "read"


@dataclass(frozen=True)
class ConfigChanges:
    """Differences between the output's `config.json` and the base's.

    Attributes:
        vocabulary: the number of rows of the output's embeddings, if models have different numbers.
        untied: whether embeddings that the base ties are untied.
        dequantized_to: the dtype of a quantized base's tensors in the output; None if the base is not quantized, or if
            the output is quantized like it.
        base_dtype: the dtype that the base's `config.json` states.
    """

    vocabulary: int | None = None
    untied: bool = False
    dequantized_to: str | None = None
    base_dtype: str | None = None


@dataclass(frozen=True)
class PlannedOutput:
    """The target and kind of the output.

    Attributes:
        details: the decisions of the kind (`PlannedKind.details`).
        disk_free: free bytes on the output's disk; for a remote output, on the disk of the staging directory.
    """

    target: OutputTarget | None
    overwrite: bool
    kind: PlannedKind
    details: Any = field(default=None, repr=False)
    disk_free: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedContents:
    """The tensors and files of the output, and the counts for them.

    Attributes:
        ties: pairs of embeddings that must be equal; checked before merging.
        companions: the files to copy, as a mapping from relative names to sources.
    """

    tensors: tuple[TensorPlan, ...] = field(default=(), repr=False)
    shards: tuple[Shard, ...] = field(default=(), repr=False)
    ties: tuple[Tie, ...] = field(default=(), repr=False)
    companions: Mapping[str, Location] = field(default_factory=dict, repr=False)
    counts: PlannedCounts = field(default=PlannedCounts(), repr=False)
    config: ConfigChanges = ConfigChanges()

    @property
    def bytes_read(self) -> int:
        """Bytes of weights to read in all passes together."""
        counting_bytes = sum(self.tensors[index].bytes_read for read in self.counts.rounds for index in read)
        ties = sum(tie.head.nbytes + tie.embedding.nbytes for tie in self.ties)
        return ties + counting_bytes + sum(tensor.bytes_read for tensor in self.tensors)


@dataclass(frozen=True, kw_only=True)
class MergePlan(PlannedContents):
    """Everything about a merge that follows from headers. It can be carried out if there are no problems.

    Attributes:
        points: the merges: one, or all points of a sweep.
        inputs: base, agents and their files.
        output: the target and kind of the output.
        resources: threads, blocks and memory.
        strict: whether warnings are problems, including warnings during the merge.
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
        """The recipe; in a sweep, of the first point. Points differ only in method and parameters."""
        return self.points[0].recipe

    @property
    def method(self) -> Method:
        """The method; in a sweep, of the first point."""
        return self.points[0].method

    @property
    def parameters(self) -> Any:
        """The parameters for tensors without a matching rule; in a sweep, of the first point."""
        return self.points[0].parameters[0]

    @property
    def passes(self) -> int:
        """The number of reads of the inputs: one for each round of counting, and one for merging."""
        return len(self.counts.rounds) + 1

    @property
    def bytes_written(self) -> int:
        """Bytes of the output's safetensors files, for all points together."""
        return sum(shard.file_bytes for shard in self.shards) * len(self.points)

    @property
    def is_sweep(self) -> bool:
        """Whether the plan is for a sweep, in which each point has its own folder in the output."""
        return bool(self.points[0].name)

    @property
    def caught(self) -> list[int]:
        """How many tensors each rule of the recipe matches."""
        return matches_of_rules(self.recipe, self.tensors)

    @property
    def tensors_count(self) -> int:
        """The number of tensors in the output; a quantized tensor counts once."""
        return len({tensor.parts[0].name for tensor in self.tensors})

    @property
    def merged_tensors_count(self) -> int:
        """The number of tensors in the output that the method merges."""
        return len({tensor.parts[0].name for tensor in self.tensors if tensor.merged})

    @property
    def parameters_count(self) -> int:
        """The number of elements in the output."""
        return sum(tensor.base.elements for tensor in self.tensors)

    @property
    def dtype(self) -> str:
        """The full name of the dtype of floating-point tensors in the output; `mixed` if there are several."""
        names = {full_name(tensor.parts[0].dtype) for tensor in self.tensors if tensor.base.is_float}
        return names.pop() if len(names) == 1 else ("mixed" if names else "none")

    @property
    def is_quantized(self) -> bool:
        """Whether the output has quantized tensors, because of `dtype: like base`. Codes are rounded to nearest."""
        return any(tensor.quantized is not None for tensor in self.tensors)

    @property
    def loads_as(self) -> str | None:
        """The dtype that the output's `config.json` must state; None if the base's states the right dtype.

        This is the widest dtype in the output, but a model that stores some tensors, such as routers, in a wider dtype
        than its `config.json` states keeps the stated dtype. Dtypes set by rules do not count, unless rules set the
        dtypes of most elements: then it is the most common dtype, because transformers loads all weights in the stated
        dtype.
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
            # config.json describes the files next to it, not those of an adapter
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
        """The dtypes of floating-point tensors in each input, the most frequent first.

        Keys are `base`, names of agents, and `importance of AGENT`.
        """
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
                    every = len(agents) == len(parts)  # if a mean leaves out agents, it is unknown which
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
        """Whether NaN and Inf are allowed in a tensor."""
        return self.recipe.allow.non_finite and not tensor.together

    @property
    def rounds_updates(self) -> bool:
        """Whether rounding to the output's dtype can lose agents' updates, so that lost updates are counted."""
        few = len(self.inputs.agents) <= FEW
        return few and self.points[0].uses_base and any(tensor.rounds_updates for tensor in self.tensors)

    @property
    def exact_dtype(self) -> str:
        """The full name of the dtype of the computation. With this output dtype, no update is lost by rounding."""
        dtypes = {source.tensor.dtype for tensor in self.tensors for source in tensor.sources}
        return full_name("F64" if "F64" in dtypes else "F32")

    @property
    def narrowed_copies(self) -> tuple[str, ...]:
        """The names of tensors that rules take from an agent whose dtype is wider than the output's."""
        return tuple(tensor.name for tensor in self.tensors if tensor.action == "copy" and tensor.narrowed)
