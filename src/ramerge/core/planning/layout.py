"""The layout of the output: the file, the offset and the dtype of each tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ramerge.core.formats.recorded import expert_of, name_of
from ramerge.core.formats.series import renumbered, stem_of, with_usual_names
from ramerge.core.foundation.dtypes import FROM_FULL_NAME, itemsize, widest
from ramerge.core.methods.base import Layer, Statistic
from ramerge.core.methods.matrices import is_matrix
from ramerge.core.output.write import Shard, lay_out
from ramerge.core.planning.model import InputRecord, OutputPart, Source, TensorPlan, most_common, none_of, recorded_rows
from ramerge.core.planning.owners import ALL_AGENTS, BASE
from ramerge.core.planning.vocabulary import Rows
from ramerge.core.recipe.model import LIKE_BASE, Recipe
from ramerge.core.recipe.points import Point, means_of
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.origins import reshaped, rows_of
from ramerge.core.tensors.rounded import round_tensor
from ramerge.core.tensors.scaled import Scaling, countable_scaling, writable_scaling
from ramerge.core.tensors.tensor import Tensor
from ramerge.core.tensors.weighted import WeightedSum, is_quantized, mean_of

_Entry = tuple[str, str, Sequence[int], int]

# The shard size if the base has no safetensors files: the former default of transformers.
_SHARD_BYTES = 5_000_000_000
# Last parts of names of buffers: of batch norms, observers for quantization, and codebooks that are moving averages.
_STATISTICS = frozenset(
    [
        "running_mean",
        "running_var",
        "running_std",
        "num_batches_tracked",
        "moving_mean",
        "moving_variance",
        "min_val",
        "max_val",
        "observer_enabled",
        "fake_quant_enabled",
        "cluster_size",
        "cluster_usage",
        "embed_avg",
        "embed_sum",
    ]
)


@dataclass(frozen=True)
class Counterparts:
    """The counterparts of the base's tensors in agents and side inputs, by name of the agent and of the tensor.

    Attributes:
        rows: for each embedding with different numbers of rows in different models: which models have which rows.
    """

    agents: Mapping[str, Mapping[str, Tensor]]
    importances: Mapping[str, Mapping[str, Tensor]]
    rows: Mapping[str, Sequence[Rows]] = field(default_factory=dict)
    input_records: Mapping[str, Mapping[str, InputRecord]] = field(default_factory=dict)

    def inputs_of(self, tensor: Tensor) -> tuple[InputRecord, ...]:
        """The recorded inputs of each agent for a tensor; empty if there are none."""
        records = [by_tensor.get(tensor.name) for by_tensor in self.input_records.values()]
        some = next((each for each in records if each is not None), None)
        return tuple(each or none_of(some) for each in records) if some is not None else ()

    def cut_rows(self, tensor: Tensor, rows: Rows) -> tuple[Tensor, Counterparts]:
        """Some rows of a tensor, and their counterparts; an agent without these rows gets the base's."""
        sources = {
            BASE: tensor,
            **{name: tensors_of_agent[tensor.name] for name, tensors_of_agent in self.agents.items()},
        }
        cut = {name: rows_of(source, rows.start, rows.stop) for name, source in sources.items() if name in rows.owners}
        if rows.shape is not None:
            cut = {name: reshaped(source, rows.shape) for name, source in cut.items()}
        base = replace(cut[BASE] if BASE in cut else next(iter(cut.values())), name=rows.name)
        agents = {agent: {rows.name: cut.get(agent, base)} for agent in self.agents}
        # a tensor that a rule takes or keeps may have no importances
        importances = {
            agent: {rows.name: tensors_of_agent[tensor.name]} if tensor.name in tensors_of_agent else {}
            for agent, tensors_of_agent in self.importances.items()
        }
        return base, Counterparts(
            agents, importances, input_records=self.input_records if rows.shape is not None else {}
        )

    def experts(self, tensor: Tensor, alone: Sequence[int]) -> Iterator[Rows]:
        """Split a tensor that stacks experts: each expert in `alone` by itself, and the rows between these."""
        owners, end = (BASE, *self.agents), 0
        for expert in [*alone, tensor.shape[0]]:
            if end < expert:
                yield Rows(end, expert, owners, f"{tensor.name}[{end}:{expert}]")
            if expert < tensor.shape[0]:
                yield Rows(expert, expert + 1, owners, name_of(tensor.name, expert), tensor.shape[1:])
            end = expert + 1

    @cached_property
    def experts_by_tensor(self) -> dict[str, list[int]]:
        """The numbers of experts with recorded inputs, sorted, by the name of the tensor in which they are stacked."""
        names = {name for by_tensor in self.input_records.values() for name in by_tensor}
        whole = next(iter(self.agents.values()), {})
        experts: dict[str, list[int]] = {}
        for tensor, expert in sorted(filter(None, map(expert_of, names - whole.keys()))):
            experts.setdefault(tensor, []).append(expert)
        return experts


def plan_tensors(
    base: Checkpoint, counterparts: Counterparts, points: Sequence[Point], observations: Sequence[Statistic]
) -> tuple[list[Shard], list[TensorPlan]]:
    """Plan the output's files, split like the base's or by the requested shard size, and the tensors in them."""
    recipe = points[0].recipe
    like = countable_scaling if observations else writable_scaling  # only counting needs no way to write the tensors
    quantized_tensors = (
        base.quantized if recipe.dtype == LIKE_BASE and not unlike_base(base, only_counts=bool(observations)) else None
    )
    wide, numbers = _wider_tensor_names(base), recipe.rules_of(base.tensors)
    outputs = []
    for tensor in base.tensors.values():
        quantized = like(tensor) if quantized_tensors is not None and tensor.name not in counterparts.rows else None
        if quantized is not None:
            entries = tuple(_layout_entry(part, part.dtype) for part in (quantized.codes, quantized.scales))
        else:
            dtype = _output_dtype(tensor, recipe, numbers[tensor.name], wide, counterparts)
            rows = counterparts.rows.get(tensor.name)  # the output has the rows of all models
            whole = replace(tensor, shape=(rows[-1].stop, *tensor.shape[1:])) if rows is not None else tensor
            entries = (_layout_entry(whole, dtype),)
        is_stack = tensor.name in base.orientation.stacks and quantized is None
        transposed = base.orientation.of(tensor.name)
        outputs.append(_OutputTensor(tensor, numbers[tensor.name], entries, quantized, transposed, is_stack))
    if quantized_tensors is not None:
        extras = quantized_tensors.extras.values()
        outputs += [
            _OutputTensor(tensor, 0, (_layout_entry(tensor, tensor.dtype),), is_extra=True) for tensor in extras
        ]
    owners = {entry[0]: output for output in outputs for entry in output.entries}
    by_name = {entry[0]: entry for output in outputs for entry in output.entries}
    files = quantized_tensors.shards if quantized_tensors is not None else base.shards
    groups = {shard: [by_name[name] for name in names if name in by_name] for shard, names in renumbered(files).items()}
    if recipe.shard_size is not None or not groups:
        groups = _group_into_shards(list(by_name.values()), recipe.shard_size or _SHARD_BYTES, stem_of(files))
    shards = [lay_out(name, group) for name, group in groups.items()]
    places = {name: (shard.name, offset) for shard in shards for name, offset in shard.offsets.items()}
    outputs_in_order = {id(owners[name]): owners[name] for name in places}.values()
    chunks = [
        math.lcm(
            *(
                statistic.chunk
                for point in points
                for statistic in (*point.statistics(rule), point.reported(rule), *observations)
                if statistic is not None
            )
        )
        for rule in range(len(points[0].parameters))
    ]
    return shards, [
        plan for output in outputs_in_order for plan in _plan_tensor(output, counterparts, points, chunks, places)
    ]


def _plan_tensor(
    output: _OutputTensor,
    all_counterparts: Counterparts,
    points: Sequence[Point],
    chunks: Sequence[int],
    places: Mapping[str, tuple[str, int]],
) -> Iterator[TensorPlan]:
    """Plan a tensor: as a whole, or as several parts of its rows that are treated differently."""
    tensor, recipe, number = output.tensor, points[0].recipe, output.rule
    rule = recipe.rules[number - 1] if number else None
    parts = tuple(
        OutputPart(name, dtype, tuple(shape), *places[name]) for name, dtype, shape, _nbytes in output.entries
    )
    segments: Iterable[Rows | None] = all_counterparts.rows.get(tensor.name, (None,))
    if experts := _separate_experts(output, all_counterparts, points):
        segments = all_counterparts.experts(tensor, experts)
    for rows in segments:
        piece, counterparts = (tensor, all_counterparts) if rows is None else all_counterparts.cut_rows(tensor, rows)
        action, sources = _tensor_treatment(piece, output, number, counterparts, points)
        if rows is not None:
            row = itemsize(output.dtype) * math.prod(tensor.shape[1:])
            parts = (parts[0]._replace(begin=rows.start * row, size=(rows.stop - rows.start) * row),)
            if BASE not in rows.owners:
                forced_owner = rule.take if rule is not None and rule.take in rows.owners else None
                owner = forced_owner or rows.owners[0]
                action, sources = "copy", (Source(owner, counterparts.agents[owner][piece.name]),)
        of_parts = rows is not None and (all_counterparts.input_records or tensor.name in all_counterparts.rows)
        originals = _tensor_treatment(tensor, output, number, all_counterparts, points)[1] if of_parts else ()
        plan = TensorPlan(
            piece,
            sources,
            action,
            output.dtype,
            parts,
            number,
            number if rule is not None and rule.parameters else 0,
            quantized=output.quantized,
            originals=originals,
        )
        if plan.merged:
            plan = _merge_plan(plan, points, chunks[number], counterparts.inputs_of(piece), bool(output.transposed))
        yield plan


def _separate_experts(output: _OutputTensor, counterparts: Counterparts, points: Sequence[Point]) -> Sequence[int]:
    """The experts that are merged separately: all if a method solves for them, otherwise those with recorded inputs."""
    tensor, number = output.tensor, output.rule
    if output.quantized is not None or (number and not points[0].recipe.rules[number - 1].merges):
        return ()
    if output.is_stack and tensor.is_float:
        expert = Layer(name_of(tensor.name, 0), tensor.shape[1:])
        if any(
            point.method.solves(expert, point.parameters[number])
            and (output.transposed is not None or point.method.is_transposable)
            for point in points
        ):
            return range(tensor.shape[0])
    return counterparts.experts_by_tensor.get(tensor.name, ())


def _merge_plan(
    plan: TensorPlan, points: Sequence[Point], chunk: int, records: tuple[InputRecord, ...], transposed: bool
) -> TensorPlan:
    """Complete the plan of a merged tensor with the requirements of the methods."""
    recipe, name, shape = points[0].recipe, plan.base.name, plan.base.shape
    alone, agents = Layer(name, shape), tuple(recipe.agents)
    transposed = any(one.transposed for one in records) if records else transposed and is_matrix(alone)
    layer = replace(alone, rows=recorded_rows(records), transposed=transposed)
    merges = [(point.method, point.parameters[plan.rule]) for point in points]
    together = [method.name for method, values in merges if method.together(alone, values, agents)]
    # the elements of a block share a scale
    together += [f"dtype: {LIKE_BASE}"] if plan.quantized is not None else []
    return replace(
        plan,
        base=plan.sources[0].tensor if plan.sources[0].owner == BASE else plan.base,
        unit=1
        if all(method.elementwise for method, _ in merges)
        else math.lcm(*(max(method.unit(layer, values), 1) for method, values in merges)),
        chunk=chunk,
        seed=recipe.seed,
        together=tuple(dict.fromkeys(together)) if recipe.allow.non_finite else (),
        recorded=records,
        transposed=transposed,
    )


@dataclass(frozen=True)
class _OutputTensor:
    """How a tensor of the base is written.

    Attributes:
        rule: number of the matching rule; 0 for none.
        entries: the tensors in the files: the tensor itself, or its codes and scales.
        quantized: the base's codes and scales if the output is quantized like them.
        transposed: whether it is a linear weight stored as (in, out); None if unknown.
        is_stack: whether it stacks the matrices of experts.
        is_extra: whether it only belongs to the base's encoding.
    """

    tensor: Tensor
    rule: int
    entries: tuple[_Entry, ...]
    quantized: Scaling | None = None
    transposed: bool | None = False
    is_stack: bool = False
    is_extra: bool = False

    @property
    def dtype(self) -> str:
        return "F32" if self.quantized is not None else self.entries[0][1]


def unlike_base(base: Checkpoint, *, only_counts: bool) -> list[Tensor]:
    """Quantized tensors of the base in whose encoding results cannot be written; with `only_counts`, not be counted."""
    like = countable_scaling if only_counts else writable_scaling
    names = base.quantized.names if base.quantized is not None else frozenset[str]()
    return [tensor for name, tensor in base.tensors.items() if name in names and like(tensor) is None]


def _wider_tensor_names(base: Checkpoint) -> frozenset[str]:
    """The names of floating-point tensors with a wider dtype than most weights of a model, such as routers and states.

    Tensors of adapters are left out: they are often trained in a wider dtype than the model's.
    """
    floats = [tensor for tensor in base.tensors.values() if tensor.is_float]
    counts: Counter[str] = Counter()
    for tensor in floats:
        counts[tensor.usual_dtype] += tensor.elements
    if len(counts) < 2:
        return frozenset()
    usual = most_common(counts)
    folders = {_tensor_folder(tensor) for tensor in floats if tensor.usual_dtype == usual}
    wider = (tensor for tensor in floats if itemsize(tensor.usual_dtype) > itemsize(usual))
    return frozenset(tensor.name for tensor in wider if _tensor_folder(tensor) in folders)


def _output_dtype(tensor: Tensor, recipe: Recipe, rule: int, wide: Container[str], counterparts: Counterparts) -> str:
    """The dtype of a tensor in the output: from its rule or the recipe, otherwise the base's."""
    own = recipe.rules[rule - 1].dtype if rule else None
    requested_dtype = own or recipe.dtype
    if requested_dtype in (None, LIKE_BASE) or not tensor.is_float:
        return tensor.usual_dtype
    if requested_dtype == "widest":
        return widest([tensor.dtype, *[agent[tensor.name].dtype for agent in counterparts.agents.values()]])
    dtype = FROM_FULL_NAME[requested_dtype]
    # tensors that the base stores wider than others stay so unless a rule narrows them
    return max(tensor.usual_dtype, dtype, key=itemsize) if own is None and tensor.name in wide else dtype


def _tensor_folder(tensor: Tensor) -> Location:
    """The folder of a tensor's file; for a tensor changed by an adapter, the model's folder."""
    *_, last = tensor.origin.leaves()
    return last.path.parent


def _tensor_treatment(
    tensor: Tensor, output: _OutputTensor, number: int, counterparts: Counterparts, points: Sequence[Point]
) -> tuple[Literal["merge", "copy", "compare"], tuple[Source, ...]]:
    rule = points[0].recipe.rules[number - 1] if number else None
    base = Source(BASE, tensor)
    if output.is_extra or (rule is not None and rule.keep is not None):
        return "copy", (base,)
    if rule is not None and rule.take is not None:
        return "copy", (Source(rule.take, counterparts.agents[rule.take][tensor.name]),)
    if is_statistic(tensor.name):
        return "copy", (base,)
    agents = [Source(name, tensors[tensor.name]) for name, tensors in counterparts.agents.items()]
    if not tensor.is_float:
        return "compare", (base, *agents)
    if means := means_of(points, number):
        tensors = [source.tensor for source in agents]
        return "merge", tuple(Source(ALL_AGENTS, mean_of(tensor.name, tensors, weights)) for weights in means)
    if not any(point.uses_base for point in points):
        return "merge", tuple(agents)
    importances = [Source(name, tensors[tensor.name], True) for name, tensors in counterparts.importances.items()]
    return "merge", (*_trained_sources(base, agents), *importances)


def _trained_sources(base: Source, agents: Sequence[Source]) -> Iterator[Source]:
    """The base and the agents; a quantized base is rounded first, as the agents' trainers did.

    Trainers dequantize such a base when they load it, so elements that they did not move equal the base's numbers
    rounded to the agents' 16-bit dtype. Agents that are quantized themselves are rounded, too. An adapter is not,
    because its updates are smaller than the rounding errors.
    """
    others = [source.tensor for source in agents if source.tensor is not base.tensor]
    kinds = {
        tensor.usual_dtype if isinstance(tensor.origin, WeightedSum) else tensor.dtype
        for tensor in others
        if not is_quantized(tensor)
    }
    if not base.tensor.encoding or len(kinds) != 1 or itemsize(kind := kinds.pop()) != 2:
        yield from (base, *agents)
        return
    rounded_tensors = {
        id(tensor): round_tensor(tensor, kind) for tensor in (base.tensor, *others) if is_quantized(tensor)
    }
    yield from (
        source._replace(tensor=rounded_tensors.get(id(source.tensor), source.tensor)) for source in (base, *agents)
    )


def is_statistic(name: str) -> bool:
    """Whether a tensor holds statistics of a layer's inputs, so that updates cannot be added."""
    return name.rpartition(".")[2] in _STATISTICS


def _layout_entry(tensor: Tensor, dtype: str) -> _Entry:
    return tensor.name, dtype, tensor.shape, tensor.elements * itemsize(dtype)


def _group_into_shards(entries: Sequence[_Entry], limit: int, stem: str) -> dict[str, list[_Entry]]:
    """Group tensors into shards of at most `limit` bytes of data. A larger tensor gets its own shard."""
    groups: list[list[_Entry]] = [[]]
    room = limit
    for entry in entries:
        if groups[-1] and entry[3] > room:
            groups.append([])
            room = limit
        groups[-1].append(entry)
        room -= entry[3]
    return with_usual_names(groups, stem)
