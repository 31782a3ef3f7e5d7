"""Finds inputs that are probably wrong, such as agents of another base, in a sample of the weights.

Five things are compared, in blocks of tensors from the whole model:

- Equal values. If an agent equals the base or another agent in the sample, all tensors are read to confirm it.
- The correlation of weights. It stays high between a model and its agents: an update that is as large as the weights
  and independent of them still leaves 0.71. Between models with different initializations it is 0.
- The same correlation in small pieces of every matrix. A piece that hardly correlates with the base's piece and is not
  larger holds other weights, such as the weights of another head.
- Norms. Some programs store them plus one, whereas training does not move all elements alike.
- Common values and directions. Agents of one base share changes from that base only by chance and by similar training.
Relative to any other model, for example one of the agents, they all share the direction to their real base.

If agents are stored in a narrower dtype than the base, all models are rounded to that dtype before they are compared,
because agents share the base's rounding errors, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import itemgetter
from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ramerge.core.engine.sampling import (
    ELEMENTS,
    ENOUGH,
    PLACES,
    Values,
    read_numbers,
    rounded_values,
    sampled_blocks,
    sampled_gains,
    sampled_pieces,
)
from ramerge.core.foundation.dtypes import full_name, itemsize
from ramerge.core.foundation.text import brief_list, decimals, quoted
from ramerge.core.methods.base import FEW
from ramerge.core.planning.findings import key_of
from ramerge.core.planning.model import MergePlan, TensorPlan
from ramerge.core.planning.owners import BASE
from ramerge.core.storage.location import is_far
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.rounded import Rounding
from ramerge.core.tensors.tensor import Tensor

# The correlation after an update that is 1.7 times as large as the weights and independent of them.
_FOREIGN = 0.5
# A few hundred weights that correlate less with the base's, and are less than 1.5 times as large, are other weights.
_REPLACEMENT, _LARGER = 0.3, 1.5
# The least share of an agent's elements that must hold the numbers of a quantized base.
_FEW_EXACT = 0.1
# The largest weights of models are near 1; the largest code of float8 is 448, and inverted scales give thousands.
_TOO_LARGE = 448
# How many times more often other agents must hold an agent's value than the base's, where the two differ.
_VOTES = 4
_FEW = 10  # so few votes may be chance
# Cosines of task vectors of agents that share most of their direction, a part of it, and nothing.
_COMMON, _PARTLY, _APART = 0.9, 0.4, 0.2
# Norms: the share of a difference that a constant may leave unexplained, how near to 1 a constant must be to count as
# 1, and the largest constant and factor (minus 1) by which training may move all elements alike.
_UNEXPLAINED, _NEAR_ONE, _TRAINING, _SCALING = 0.05, 0.05, 0.1, 0.2
_BY_PRECISION = ("BF16", "F16", "F32", "F64")


class WrongModel(str):
    """A warning about a model that a merge refuses unless the recipe's `allow` sets the key named by `allow`."""

    __slots__ = ()
    allow: ClassVar[str]


class SwappedBase(WrongModel):
    """An agent looks like the base."""

    __slots__ = ()
    allow = "swapped_base"


class OtherBase(WrongModel):
    """The weights of an agent are unrelated to the base's."""

    __slots__ = ()
    allow = "other_base"


def sanity_warnings(plan: MergePlan) -> tuple[str, ...]:
    """Return warnings about inputs that are probably damaged, trained from another base, or the wrong checkpoints."""
    scales = tuple(_scale_warnings(plan))
    tensors = [tensor for tensor in plan.tensors if tensor.merged and tensor.base.elements]
    if not tensors or not plan.points[0].uses_base:
        return scales
    names = tuple(plan.inputs.agents)
    lone_suspicions, replacements, shifts = list[str](), list[str](), list[str]()
    for first in range(0, len(names), FEW):
        group = names[first : first + FEW]
        some = [replace(each, sources=each.sources[:1] + each.sources[1 + first :][: len(group)]) for each in tensors]
        sample = _Sample.from_tensors(some, len(group))
        lone_suspicions += _single_agent_warnings(plan, group, some, sample)
        replacements += _replacement_warnings(plan, group, some)
        shifts += _norm_shift_warnings(plan, group, some)
    if lone_suspicions:
        return (*scales, *lone_suspicions, *shifts)  # further comparisons would be misleading
    together = () if len(names) > FEW or plan.method.along_run else _cross_agent_warnings(plan, tensors, sample)
    return (*scales, *replacements, *shifts, *together)


def _scale_warnings(plan: MergePlan) -> Iterator[str]:
    """Yield warnings about quantized weights whose values are implausibly large, as with inverted scales."""
    quantized: dict[str, list[Tensor]] = {}
    for tensor in plan.tensors:
        for source in tensor.sources:
            if source.tensor.encoding and not source.is_importance and source.tensor.elements:
                quantized.setdefault(source.owner, []).append(source.tensor)
    with Files() as files:
        for owner, tensors in quantized.items():
            largest: list[float] = []
            with np.errstate(all="ignore"):  # values that are not finite are refused when all are read
                for each in Random(0).sample(tensors, min(PLACES, len(tensors))):
                    values = np.abs(read_numbers(each, Reader(files), 0, min(each.elements, ELEMENTS)))
                    largest.append(float(np.max(values, where=np.isfinite(values), initial=0)))
            if (middle := sorted(largest)[len(largest) // 2]) > _TOO_LARGE:
                text = f"its quantized weights are as large as {middle:,.0f}; are its scales inverted?"
                model = plan.inputs.base if owner == BASE else plan.inputs.agents[owner]
                where = f"{model.location}: {text} They must be what codes are multiplied by"
                yield plan.recipe.document.where(key_of(owner), where)


def _single_agent_warnings(
    plan: MergePlan, names: Sequence[str], tensors: Sequence[TensorPlan], sample: _Sample
) -> Iterator[str]:
    """Yield warnings about agents that do not fit this base; each agent is compared with the base only."""
    for t, name in enumerate(names, 1):
        if not plan.method.along_run and sample.equal[0, t] and _has_equal_values(tensors, 0, t):
            after_rounding = (
                " when that is rounded as it is" if any(name in tensor.coarse for tensor in tensors) else ""
            )
            text = (
                f"every merged tensor equals the base's{after_rounding}, so it adds nothing; is it the right "
                "checkpoint?"
            )
            yield _agent_warning(plan, name, text)
        elif sample.correlations[t - 1] < _FOREIGN:
            text = f"its weights correlate with the base's by only {decimals(sample.correlations[t - 1], 2)}"
            text += "; the value is nearly 1 for agents of this base; is it an agent of another model?"
            yield OtherBase(_agent_warning(plan, name, text))
        elif start := sample.starts.get(t):
            yield _agent_warning(plan, name, start.sentence(plan))


def _cross_agent_warnings(plan: MergePlan, tensors: Sequence[TensorPlan], sample: _Sample) -> Iterator[str]:
    """Yield warnings from comparing agents with each other."""
    names = tuple(plan.inputs.agents)
    for s, t in combinations(range(1, len(names) + 1), 2):
        pairs = ((tensor.sources[s].tensor, tensor.sources[t].tensor) for tensor in tensors)
        # planning has already warned of agents that are the same checkpoint
        if sample.equal[s, t] and any(one != other for one, other in pairs) and _has_equal_values(tensors, s, t):
            yield f"{names[s - 1]} and {names[t - 1]} hold the same values; is one of them the wrong checkpoint?"
    apart = [0, *(t for t in range(1, len(names) + 1) if not any(sample.equal[s, t] for s in range(1, t)))]
    yield from _base_warnings(plan, sample, apart)


def _replacement_warnings(plan: MergePlan, names: Sequence[str], tensors: Sequence[TensorPlan]) -> Iterator[str]:
    """Yield warnings about matrices that partly hold other weights than the base's, such as exchanged heads.

    Training adds to weights, but does not remove them: an independent update that lowers the correlation to c makes
    weights 1/c times as large. So weights that hardly correlate with the base's, but are hardly larger, replace it.
    """
    if any(map(is_far, plan.inputs.files)):
        return  # each piece would be a request
    parts_by_agent: dict[str, dict[str, tuple[float, float]]] = {}
    for tensor, values in sampled_pieces(tensors, len(names)):
        with np.errstate(all="ignore"):  # values that are not finite are refused when all are read
            apart = values - values.mean(axis=-1, keepdims=True)
            sizes = np.square(apart).sum(axis=-1, dtype=np.float64)
            products = (apart[1:] * apart[:1]).sum(axis=-1, dtype=np.float64)
            correlations = products / np.sqrt(sizes[1:] * sizes[:1])
            other = (correlations < _REPLACEMENT) & (sizes[1:] < _LARGER**2 * sizes[:1])
        for name, own, here in zip(names, correlations, other, strict=True):
            if here.any():
                parts_by_agent.setdefault(name, {})[tensor.name] = float(own[here].min()), float(here.mean())
    for name, matrices in parts_by_agent.items():
        examples = [
            f"{quoted(key)} ({decimals(least, 2)} in {share:.0%} of its sample)"
            for key, (least, share) in sorted(matrices.items(), key=itemgetter(1))
        ]
        what = f"parts of {len(examples):,} matrices hold" if len(examples) > 1 else "parts of a matrix hold"
        text = f"{what} other weights than the base's; the least correlations are {brief_list(examples)}"
        yield _agent_warning(plan, name, f"{text}; are heads or experts exchanged, or is a matrix transposed?")


def _norm_shift_warnings(plan: MergePlan, names: Sequence[str], tensors: Sequence[TensorPlan]) -> Iterator[str]:
    """Yield warnings about norms that differ from the base's by one, or all by a common constant or factor.

    Training moves elements by different amounts. If a constant explains nearly all differences and is larger than
    changes by training, another program has stored the norms in its own way.
    """
    gains = {tensor.name: values for tensor, values in sampled_gains(tensors, len(names))}
    for t, name in enumerate(names, 1):
        pairs = {norm: (values[0], values[t]) for norm, values in gains.items()}
        shifts = {norm: _constant_shift(*pair) for norm, pair in pairs.items()}
        by_one = {norm: shift for norm, shift in shifts.items() if abs(abs(shift) - 1) < _NEAR_ONE}
        if by_one:
            such, change = list(by_one), "plus 1" if next(iter(by_one.values())) > 0 else "minus 1"
        elif pairs and (change := _common_change(list(pairs.values()))):
            such = list(pairs)
        else:
            continue
        examples = brief_list(list(map(quoted, such)))
        yield _agent_warning(
            plan,
            name,
            f"its norms are the base's {change} ({examples} and others of a sample), and training does not do that. "
            "MLX, llama.cpp and Megatron (zero-centered gamma) store norms this way, and a merge would add the "
            "difference. Give the checkpoint as its trainer saved it, or a base that the same program stored",
        )


@np.errstate(all="ignore")  # values that are not finite are refused when all are read
def _constant_shift(base: Values, agent: Values) -> float:
    """Return the constant that explains nearly all differences; 0 if none does."""
    tau = agent.astype(np.float64) - base
    middle = float(np.sort(tau)[tau.size // 2])
    return middle if np.square(tau - middle).sum() < _UNEXPLAINED * np.square(tau).sum() else 0


@np.errstate(all="ignore")
def _common_change(pairs: Sequence[tuple[Values, Values]]) -> str:
    """Return the common constant or factor by which vectors differ, as text; empty if there is none or it is small."""
    shifts = [_constant_shift(base, agent) for base, agent in pairs]
    if min(map(abs, shifts)) > _TRAINING and max(shifts) - min(shifts) < _UNEXPLAINED * max(map(abs, shifts)):
        return f"{'plus' if shifts[0] > 0 else 'minus'} {abs(shifts[0]):.3g}"
    factors = []
    for base, agent in pairs:
        wide = base.astype(np.float64)
        factor = float(wide @ agent) / max(float(wide @ wide), 1e-300)
        rest, whole = np.square(agent - factor * wide).sum(), np.square(agent - wide).sum()
        factors.append(factor if rest < _UNEXPLAINED * whole else 1.0)
    if min(abs(factor - 1) for factor in factors) > _SCALING and max(factors) - min(factors) < _UNEXPLAINED * max(
        factors
    ):
        return f"times {factors[0]:.3g}"
    return ""


def _agent_warning(plan: MergePlan, name: str, text: str) -> str:
    return plan.recipe.document.where(key_of(name), f"{plan.inputs.agents[name].location}: {text}")


@dataclass(frozen=True)
class _Sample:
    """Figures of a sample of N agents. Models are numbered: the base is 0, agents are 1 to N.

    Attributes:
        equal: shape (N + 1, N + 1): whether all values of two models are equal.
        for_agent: shape (N + 1, N + 1): how many values of model j equal another model k's, and not the base's.
        for_base: shape (N + 1, N + 1): how many values of model j equal the base's, and not model k's.
        dots: shape (N + 1, N + 1): scalar products of task vectors, over elements that are finite in all models; the
            base's task vector is 0.
        carriers: shape (N + 1): how many elements carry each task vector: (sum of squares)^2 / sum of fourth powers. If
            a few elements are far larger than all others, a cosine means little.
        correlations: shape (N): correlations of each agent's finite weights with the base's, the median over matrices;
            1 if no matrix is large enough.
        starts: the agents that hold hardly any of the quantized base's numbers, by number.
    """

    equal: NDArray[np.bool_]
    for_agent: NDArray[np.int64]
    for_base: NDArray[np.int64]
    dots: NDArray[np.float64]
    carriers: NDArray[np.float64]
    correlations: NDArray[np.float64]
    starts: Mapping[int, _EqualElementCounter]

    @staticmethod
    @np.errstate(all="ignore")  # values that are not finite are refused when all are read
    def from_tensors(tensors: Sequence[TensorPlan], agents: int) -> _Sample:
        models = agents + 1
        total, same, unmoved = 0, np.zeros((models, models), np.int64), np.zeros((models, models), np.int64)
        dots, fourth, correlations = np.zeros((models, models)), np.zeros(models), []
        starts = {t: _EqualElementCounter() for t in range(1, models)}
        for tensor, values_of_models in sampled_blocks(tensors, agents):
            coarse = tensor.coarse.values()
            values = (
                rounded_values(values_of_models, min(coarse, key=_BY_PRECISION.index)) if coarse else values_of_models
            )
            still = (values == values[0]).astype(np.float32)  # float32 is exact up to 2^24, and its products are fast
            unmoved += (still @ still.T).astype(np.int64)
            same += np.array([[np.count_nonzero(left == right) for right in values] for left in values])
            total += values.shape[1]
            for t in starts if tensor.base.encoding else ():
                starts[t].add(tensor, t, values_of_models)
            finite = values[:, np.isfinite(values).all(axis=0)]  # one NaN would make products and correlations NaN
            tau = (finite - finite[:1]).astype(np.float64)
            dots += tau @ tau.T
            fourth += np.square(np.square(tau)).sum(axis=1)
            if len(tensor.base.shape) > 1 and finite.shape[1] >= ENOUGH and finite[0].min() < finite[0].max():
                correlations.append(np.nan_to_num(np.corrcoef(finite)[0, 1:]))
        # the median; `numpy.median` imports masked arrays, which takes longer than all else here
        rows, count = np.sort(correlations, axis=0), len(correlations)
        return _Sample(
            equal=same == total,
            for_agent=(same - unmoved) * ~np.eye(models, dtype=bool),
            for_base=same[:, :1] - unmoved,
            dots=dots,
            carriers=np.diag(dots) ** 2 / fourth,
            correlations=rows[(count - 1) // 2 : count // 2 + 1].mean(axis=0) if count else np.ones(agents),
            starts={t: start for t, start in starts.items() if start.is_other},
        )

    def votes(self, k: int, voters: Sequence[int]) -> float:
        """How many times more often other models hold agent k's value than the base's, where the two differ."""
        for_agent, for_base = (int(counts[voters, k].sum()) for counts in (self.for_agent, self.for_base))
        return for_agent / max(for_base, _FEW)

    def mean_cosine(self, k: int, others: Sequence[int]) -> float:
        """Return the mean cosine between the differences of other models from model k."""
        dots = self.dots
        cosines = []
        for i, j in combinations(others, 2):
            lengths = [dots[i, i] - 2 * dots[i, k] + dots[k, k], dots[j, j] - 2 * dots[j, k] + dots[k, k]]
            product = dots[i, j] - dots[i, k] - dots[j, k] + dots[k, k]
            cosines.append(product / np.sqrt(max(lengths[0] * lengths[1], 1e-300)))
        return float(sum(cosines) / len(cosines))

    def stands_still(self, likely: int, apart: Sequence[int]) -> bool:
        """Whether only the agent `likely` has moved hardly any elements alone, like a base of the others.

        An agent alone has moved an element if all other models hold the base's value there.
        """
        own = {k: int(self.for_base[[j for j in apart if j not in (0, k)], k].sum()) for k in apart[1:]}
        return all(updates > _VOTES * own[likely] + _FEW for k, updates in own.items() if k != likely)


@dataclass
class _EqualElementCounter:
    """Counts the elements of an unquantized agent that equal the numbers of its quantized base.

    Attributes:
        elements: elements in the sample.
        exact: elements that equal the base's number as it is compared.
        rounded_count: elements that equal the base's number rounded to `dtype`.
        dtype: the 16-bit dtype to which trainers round when they dequantize the base.
        is_rounded: whether the compared base is already rounded to `dtype`.
    """

    elements: int = 0
    exact: int = 0
    rounded_count: int = 0
    dtype: str = "BF16"
    is_rounded: bool = False

    def add(self, tensor: TensorPlan, t: int, values: Values) -> None:
        """Count the elements of a sampled block where agent `t` equals the base."""
        source = tensor.sources[t].tensor
        if source is tensor.base or source.encoding or values.dtype != np.float32:
            return
        self.dtype, self.is_rounded = tensor.base.dtype, isinstance(tensor.base.origin, Rounding)
        if not self.is_rounded:
            self.dtype = tensor.base.usual_dtype if itemsize(tensor.base.usual_dtype) == 2 else "BF16"
        self.elements += values.shape[1]
        self.exact += int(np.count_nonzero(values[t] == values[0]))
        self.rounded_count += int(np.count_nonzero(values[t] == rounded_values(values[0], self.dtype)))

    @property
    def is_other(self) -> bool:
        """Whether the agent was probably trained from other numbers than the compared base's."""
        if self.is_rounded:
            return self.elements >= ENOUGH and self.exact < _FEW_EXACT * self.elements
        return self.rounded_count > max(_FEW_EXACT * self.elements, _VOTES * self.exact)

    def sentence(self, plan: MergePlan) -> str:
        """Describe the problem, and what to do about it."""
        dtype = full_name(self.dtype)
        if self.is_rounded:
            text = (
                f"only {self.exact / self.elements:.1%} of its values (a sample) equal the base's, rounded to {dtype}, "
            )
            return (
                f"{text}so quantization errors count as training; if it was trained from the unquantized model, give "
                "that as the base"
            )
        return (
            f"{self.rounded_count / self.elements:.0%} of its values (a sample) equal the base's, rounded to {dtype}: "
            "its "
            "trainer dequantized the base, so rounding makes most elements differ. Give the dequantized base: "
            f"ramerge convert {plan.inputs.base.location} OUT --dtype {dtype}"
        )


def _has_equal_values(tensors: Sequence[TensorPlan], first: int, second: int) -> bool:
    """Whether two models hold the same values; the base (model 0) is first rounded to the other model's dtype."""
    size = 1 << 20
    with Files() as files:
        reader = Reader(files)
        for tensor in tensors:
            if tensor.sources[first].tensor is tensor.sources[second].tensor:
                continue
            for start in range(0, tensor.base.elements, size):
                stop = min(size, tensor.base.elements - start)
                left = read_numbers(tensor.sources[first].tensor, reader, start, stop)
                if first == 0 and (dtype := tensor.coarse.get(tensor.sources[second].owner)):
                    left = rounded_values(left, dtype)
                if not np.array_equal(left, read_numbers(tensor.sources[second].tensor, reader, start, stop)):
                    return False
    return True


def _base_warnings(plan: MergePlan, sample: _Sample, apart: Sequence[int]) -> Iterator[str]:
    """Yield a warning if the agents were probably trained from another model than the base.

    Args:
        apart: the models that differ from all models before them; the base is first.
    """
    if len(apart) < 3:
        return
    names = tuple(plan.inputs.agents)
    votes = {k: sample.votes(k, [j for j in apart if j not in (0, k)]) for k in apart[1:]}
    cosines = {k: sample.mean_cosine(k, [j for j in apart if j != k]) for k in apart}
    likely = max(votes, key=lambda k: votes[k])
    straight = min(apart[1:], key=lambda k: cosines[k])
    # agents that hold the base's values where another agent has moved them are agents of this base
    by_angles = sample.for_base[1:, 1:].sum() <= max(_VOTES * sample.for_agent[1:, 1:].sum(), _FEW)
    others = [k for k in apart[1:] if k != straight]
    common = cosines[0] > _COMMON and by_angles
    alike = common or all(share > _VOTES for share in votes.values())
    if votes[likely] > _VOTES and (not alike or sample.stands_still(likely, apart)):
        text = (
            f"where {names[likely - 1]} differs from the base, the other agents have the values of {names[likely - 1]}"
        )
        yield SwappedBase(_base_message(plan, f"{text}; {_swap_question(names[likely - 1])}"))
    elif (
        cosines[0] > _PARTLY
        and cosines[straight] < _APART
        and by_angles
        # the middle one of three checkpoints of a run differs from the others in opposite directions
        and (
            not alike or (cosines[straight] > -_APART and min(cosines[k] for k in others) > cosines[straight] + _APART)
        )
    ):
        name = names[straight - 1]
        text = f"measured from the base, the other models moved in a common direction (mean cosine {cosines[0]:.2f}); "
        text += f"measured from {name}, in different ones ({decimals(cosines[straight], 2)}); "
        text = _base_message(plan, f"{text}{_swap_question(name)}")
        yield SwappedBase(text) if sample.carriers[apart[1:]].min() > ENOUGH else text
    elif alike:
        evidence = f"mean cosine of task vectors {cosines[0]:.2f}" if common else "they share most values that it lacks"
        text = (
            f"the agents differ from the base in the same way, and little from each other ({evidence}); unless they are"
        )
        text += " checkpoints of one run, the base is probably wrong, or swapped with an agent"
        yield _base_message(plan, text)


def _swap_question(agent: str) -> str:
    return f"are {agent} and the base swapped, or were the others trained from {agent}?"


def _base_message(plan: MergePlan, text: str) -> str:
    return plan.recipe.document.where(key_of(BASE), f"{plan.inputs.base.location}: {text}")
