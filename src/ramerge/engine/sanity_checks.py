"""Finds inputs that are probably wrong, such as agents of another base, in a sample of the weights.

Three things are compared, in blocks of tensors from the whole model:

- Equal values. If an agent equals the base or another agent in the sample, all tensors are read to be sure.
- The correlation of weights. It stays high between a model and its agents: an update that is as large as the weights
  and independent of them still leaves 0.71. Between models with different initializations it is 0.
- Common values and directions. Agents of one base share changes from that base only by chance and by similar training.
  Relative to any other model, for example one of the agents, they all share the direction to their real base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

import numpy as np
from numpy.typing import NDArray

from ramerge.foundation.dtypes import itemsize
from ramerge.foundation.pool import map_in_threads
from ramerge.foundation.text import decimals
from ramerge.methods.base import FEW
from ramerge.planning.findings import key_of
from ramerge.planning.model import MergePlan, TensorPlan
from ramerge.tensors.reader import Files, Reader, threads_for
from ramerge.tensors.tensor import Tensor

# A quarter of a million elements of each input: 26 moved elements, if an agent moved a ten-thousandth of its elements.
_PLACES = 32
_ELEMENTS = 1 << 13
# The fewest elements of a tensor for a meaningful correlation.
_ENOUGH = 256
# The correlation after an update that is 1.7 times as large as the weights and independent of them.
_FOREIGN = 0.5
# The largest weights of models are near 1, the largest code of float8 is 448, and inverted scales give thousands.
_TOO_LARGE = 448
# Where an agent and the base differ: how many times more often others must hold the agent's value than the base's.
_VOTES = 4
_FEW = 10  # votes that may be chance
# Cosines of task vectors: of agents that share most of their direction, a part of it, and nothing.
_COMMON, _PARTLY, _APART = 0.9, 0.4, 0.2


class SwappedBase(str):
    """A warning that an agent looks like the base; a merge refuses that unless the recipe allows it."""

    __slots__ = ()


Values = NDArray[np.float32] | NDArray[np.float64]


def suspicions(plan: MergePlan) -> tuple[str, ...]:
    """Warnings about inputs that are probably damaged, not of this base, or the wrong checkpoints.

    Raises:
        CheckpointError: an input cannot be read.
    """
    return (*_wrong_scales(plan), *_wrong_models(plan))


def _wrong_scales(plan: MergePlan) -> Iterator[str]:
    """Warnings about quantized weights that are too large for weights, as they are where scales are inverted."""
    quantized: dict[str, list[Tensor]] = {}
    for tensor in plan.tensors:
        for source in tensor.sources:
            if source.tensor.encoding and not source.is_importance and source.tensor.elements:
                quantized.setdefault(source.owner, []).append(source.tensor)
    with Files() as files:
        for owner, tensors in quantized.items():
            chosen = Random(0).sample(tensors, min(_PLACES, len(tensors)))
            with np.errstate(all="ignore"):  # values that are not finite are refused when all are read
                largest = sorted(_largest(tensor, Reader(files)) for tensor in chosen)
            if (middle := largest[len(largest) // 2]) > _TOO_LARGE:
                name = "" if owner == "base" else owner
                text = f"its quantized weights are as large as {middle:,.0f}; are its scales inverted?"
                model = plan.agents[owner] if name else plan.base
                where = f"{model.location}: {text} They must be what codes are multiplied by"
                yield plan.recipe.document.where(key_of(name), where)


def _largest(tensor: Tensor, reader: Reader) -> float:
    values = np.abs(_numbers(tensor, reader, 0, min(tensor.elements, _ELEMENTS)))
    return float(np.max(values, where=np.isfinite(values), initial=0))


def _wrong_models(plan: MergePlan) -> tuple[str, ...]:
    tensors = [tensor for tensor in plan.tensors if tensor.merged and tensor.base.elements]
    if not tensors or not plan.points[0].uses_base or plan.method.along_run or len(plan.agents) > FEW:
        return ()
    names = tuple(plan.agents)
    sample = _Sample.of(tensors, len(names))
    found: list[str] = []
    for t, name in enumerate(names, 1):
        if sample.equal[0, t] and _equal(tensors, 0, t):
            text = "every merged tensor equals the base's, so it adds nothing; is it the right checkpoint?"
            found.append(_of(plan, name, text))
        elif sample.correlations[t - 1] < _FOREIGN:
            text = f"its weights correlate with the base's by only {decimals(sample.correlations[t - 1], 2)}"
            text += "; the value is nearly 1 for agents of this base; is it an agent of another model?"
            found.append(_of(plan, name, text))
    if found:
        return tuple(found)  # further comparisons would be misleading
    for s, t in combinations(range(1, len(names) + 1), 2):
        if sample.equal[s, t] and not _are_one(tensors, s, t) and _equal(tensors, s, t):
            found.append(
                f"{names[s - 1]} and {names[t - 1]} hold the same values; is one of them the wrong checkpoint?"
            )
    apart = [0, *(t for t in range(1, len(names) + 1) if not any(sample.equal[s, t] for s in range(1, t)))]
    return (*found, *_wrong_base(plan, sample, apart))


def _of(plan: MergePlan, name: str, text: str) -> str:
    return plan.recipe.document.where(key_of(name), f"{plan.agents[name].location}: {text}")


@dataclass(frozen=True)
class _Sample:
    """Figures of a sample of N agents. Models are numbered: the base is 0, agents are 1 to N.

    Attributes:
        equal: shape (N + 1, N + 1): whether all values are equal.
        for_agent: shape (N + 1, N + 1): values of model j that equal those of another model k, and not the base's.
        for_base: shape (N + 1, N + 1): values of model j that equal the base's, and not those of model k.
        dots: shape (N + 1, N + 1): scalar products of task vectors, of elements that are finite in all models; the
            base's is 0.
        carried: shape (N + 1): how many elements carry each task vector: (sum of squares)^2 / sum of fourth powers. A
            few elements that are far larger than all others make any cosine.
        correlations: of each agent's weights with the base's, likewise, the median over matrices; 1 without
            matrices.
    """

    equal: NDArray[np.bool_]
    for_agent: NDArray[np.int64]
    for_base: NDArray[np.int64]
    dots: NDArray[np.float64]
    carried: NDArray[np.float64]
    correlations: NDArray[np.float64]

    @staticmethod
    @np.errstate(all="ignore")  # values that are not finite are refused when all are read
    def of(tensors: Sequence[TensorPlan], agents: int) -> _Sample:
        models = agents + 1
        total, same, unmoved = 0, np.zeros((models, models), np.int64), np.zeros((models, models), np.int64)
        dots, fourth, correlations = np.zeros((models, models)), np.zeros(models), []
        for tensor, values in _blocks(tensors, agents):
            still = (values == values[0]).astype(np.float32)  # counts up to 2^24 are exact, and products are fast
            unmoved += (still @ still.T).astype(np.int64)
            same += np.array([[np.count_nonzero(left == right) for right in values] for left in values])
            total += values.shape[1]
            finite = values[:, np.isfinite(values).all(axis=0)]  # one NaN would decide products and correlations
            tau = (finite - finite[:1]).astype(np.float64)
            dots += tau @ tau.T
            fourth += np.square(np.square(tau)).sum(axis=1)
            if len(tensor.base.shape) > 1 and finite.size and finite[0].min() < finite[0].max():
                correlations.append(np.nan_to_num(np.corrcoef(finite)[0, 1:]))
        return _Sample(
            equal=same == total,
            for_agent=(same - unmoved) * ~np.eye(models, dtype=bool),
            for_base=same[:, :1] - unmoved,
            dots=dots,
            carried=np.diag(dots) ** 2 / fourth,
            correlations=_median(correlations) if correlations else np.ones(agents),
        )


def _median(rows: Sequence[Values]) -> NDArray[np.float64]:
    """The median of each column. `numpy.median` imports masked arrays, which takes longer than all else here."""
    count = len(rows)
    middle: NDArray[np.float64] = np.sort(rows, axis=0)[(count - 1) // 2 : count // 2 + 1].mean(axis=0)
    return middle


def _blocks(tensors: Sequence[TensorPlan], agents: int) -> Iterator[tuple[TensorPlan, Values]]:
    """Tensors and values of all models, shape (N + 1, elements), at random places that are the same in every run."""
    draw = Random(0)
    large = [tensor for tensor in tensors if tensor.base.elements >= _ENOUGH] or list(tensors)
    places = []
    for index in sorted(draw.sample(range(len(large)), min(_PLACES, len(large)))):
        size = min(large[index].base.elements, _ELEMENTS)
        places.append((large[index], draw.randint(0, large[index].base.elements - size), size))

    def read(reader: Reader, place: tuple[TensorPlan, int, int]) -> tuple[TensorPlan, Values]:
        tensor, start, size = place
        sources = tensor.sources[: agents + 1]  # importances come last
        return tensor, np.array([_numbers(source.tensor, reader, start, size) for source in sources])

    with Files() as files:
        paths = {source.tensor.path for tensor, _, _ in places for source in tensor.sources}
        yield from map_in_threads(threads_for(paths), lambda: Reader(files), read, places)


def _numbers(tensor: Tensor, reader: Reader, start: int, size: int) -> Values:
    width = itemsize(tensor.dtype)
    raw = np.empty(size * width, np.uint8)
    reader.read(tensor, start, start + size, raw)
    if tensor.dtype == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    kind = {"F16": np.float16, "F32": np.float32, "F64": np.float64}[tensor.dtype]
    numbers = raw.view(kind)
    return numbers.astype(np.float32) if tensor.dtype == "F16" else numbers


def _equal(tensors: Sequence[TensorPlan], first: int, second: int) -> bool:
    size = 1 << 20
    with Files() as files:
        reader = Reader(files)
        for tensor in tensors:
            if tensor.sources[first].tensor is tensor.sources[second].tensor:
                continue
            for start in range(0, tensor.base.elements, size):
                stop = min(size, tensor.base.elements - start)
                left = _numbers(tensor.sources[first].tensor, reader, start, stop)
                if not np.array_equal(left, _numbers(tensor.sources[second].tensor, reader, start, stop)):
                    return False
    return True


def _are_one(tensors: Sequence[TensorPlan], first: int, second: int) -> bool:
    return all(tensor.sources[first].tensor == tensor.sources[second].tensor for tensor in tensors)


def _wrong_base(plan: MergePlan, sample: _Sample, apart: Sequence[int]) -> Iterator[str]:
    """A warning if different agents were probably trained from another model than the base.

    Args:
        plan: gives names.
        sample: of all models.
        apart: the models that differ from those before them; the base first.
    """
    if len(apart) < 3:
        return
    names = tuple(plan.agents)
    votes = {k: _votes(sample, k, [j for j in apart if j not in (0, k)]) for k in apart[1:]}
    cosines = {k: _mean_cosine(sample, k, [j for j in apart if j != k]) for k in apart}
    likely = max(votes, key=lambda k: votes[k])
    straight = min(apart[1:], key=lambda k: cosines[k])
    by_angles = not _is_start(sample)
    if (cosines[0] > _COMMON and by_angles) or all(share > _VOTES for share in votes.values()):
        text = "the agents differ from the base in the same way, and little from each other"
        text += f" (mean cosine of task vectors {cosines[0]:.2f}); unless they are checkpoints of one run, they were"
        yield _of_base(plan, f"{text} probably trained from another model, or the base is swapped with an agent")
    elif votes[likely] > _VOTES:
        text = f"where {names[likely - 1]} differs from the base, the other agents hold its values and not the base's"
        yield SwappedBase(_of_base(plan, f"{text}; {_asked('it')}"))
    elif cosines[0] > _PARTLY and cosines[straight] < _APART and by_angles:
        name = names[straight - 1]
        text = f"the other models differ from {name} in different directions (mean cosine "
        text += f"{decimals(cosines[straight], 2)}), but from the base in a common direction ({cosines[0]:.2f}); "
        text = _of_base(plan, f"{text}{_asked(name)}")
        yield SwappedBase(text) if sample.carried[apart[1:]].min() > _ENOUGH else text


def _asked(agent: str) -> str:
    return f"is {agent} swapped with the base, or were the others trained from it?"


def _is_start(sample: _Sample) -> bool:
    """Whether agents hold the base's values where another agent has moved them, which only agents of this base do."""
    return bool(sample.for_base[1:, 1:].sum() > max(_VOTES * sample.for_agent[1:, 1:].sum(), _FEW))


def _of_base(plan: MergePlan, text: str) -> str:
    return plan.recipe.document.where(key_of(""), f"{plan.base.location}: {text}")


def _votes(sample: _Sample, k: int, voters: Sequence[int]) -> float:
    """How many times more often others hold an agent's value than the base's, where the two differ."""
    for_agent, for_base = (int(counts[voters, k].sum()) for counts in (sample.for_agent, sample.for_base))
    return for_agent / max(for_base, _FEW)


def _mean_cosine(sample: _Sample, k: int, others: Sequence[int]) -> float:
    dots = sample.dots
    found = []
    for i, j in combinations(others, 2):
        lengths = [dots[i, i] - 2 * dots[i, k] + dots[k, k], dots[j, j] - 2 * dots[j, k] + dots[k, k]]
        product = dots[i, j] - dots[i, k] - dots[j, k] + dots[k, k]
        found.append(product / np.sqrt(max(lengths[0] * lengths[1], 1e-300)))
    return float(sum(found) / len(found))
