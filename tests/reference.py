"""The slow, obvious reference: Algorithm 1 of the paper in NumPy, one tensor at a time, everything in memory.

Tensors are arrays of bits; `decode` and `encode` go between bits and numbers.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BITS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "F64": np.uint64}
NUMBERS = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}
# the largest magnitude's successor would be infinity
LARGEST = {"BF16": 3.3895313892515355e38, "F16": 65504.0, "F32": 3.4028234663852886e38, "F64": 1.7976931348623157e308}


@dataclass(frozen=True)
class Stored:
    """A tensor as stored: safetensors dtype, and the bits of its elements in its shape."""

    dtype: str
    bits: NDArray

    @property
    def is_float(self) -> bool:
        return self.dtype in BITS

    def numbers(self, real: type) -> NDArray:
        """The elements in `real`, which is exact."""
        with np.errstate(invalid="ignore"):
            return self.bits.view(NUMBERS[self.dtype]).astype(real)


Tensors = Mapping[str, Stored]


def encode(values: NDArray, dtype: str) -> Stored:
    """Round float32 or float64 values once, to nearest even."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(NUMBERS[dtype])
    if dtype == "BF16" and values.dtype == np.float64:
        rounded = _nearest_bf16(values)
    return Stored(dtype, rounded.view(BITS[dtype]))


def _nearest_bf16(values: NDArray) -> NDArray:
    """float64 to bfloat16 without the detour over float32, by trying the neighbors of an estimate."""
    with np.errstate(over="ignore"):
        predict = np.abs(values).astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.int32)
    largest = 0x7F7F
    best, distance = np.zeros_like(predict), np.full(values.shape, np.inf)
    for step in (-1, 0, 1):
        bits = np.clip(predict + step, 0, largest)
        candidate = bits.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
        away = np.abs(np.abs(values) - candidate)
        better = (away < distance) | ((away == distance) & (bits % 2 == 0))
        best, distance = np.where(better, bits, best), np.where(better, away, distance)
    half_beyond = 3.3961775292304957e38  # halfway between the largest number and the one that would follow
    best = np.where(np.abs(values) >= half_beyond, 0x7F80, best)
    sign = np.where(np.signbit(values), 0x8000, 0)
    return (best | sign).astype(np.uint16).view(ml_dtypes.bfloat16)


def toss(values: NDArray, base: NDArray | None, words: Sequence[int], bits: int, dtype: str) -> Stored:
    """Round float64 values as random draws of so many bits say, by number, with exact fractions; those of the base to
    nearest even."""
    nearest = encode(values, dtype)
    found = nearest.bits.copy().reshape(-1)
    unsigned, sign = np.dtype(BITS[dtype]).type, 1 << (8 * nearest.bits.itemsize - 1)

    def number(code: int) -> float:
        return float(np.array([code], unsigned).view(NUMBERS[dtype]).astype(np.float64)[0])

    for i, value in enumerate(values.reshape(-1).tolist()):
        if not np.isfinite(value) or (base is not None and value == base.reshape(-1)[i]):
            continue
        magnitude, code = abs(value), int(found[i]) & (sign - 1)
        lower = code - 1 if number(code) > magnitude else code
        if number(lower) == magnitude or not np.isfinite(number(lower + 1)):
            continue
        below, above = Fraction(number(lower)), Fraction(number(lower + 1))
        share = int((Fraction(magnitude) - below) / (above - below) * 2**bits)
        up = int(words[i]) + share >= 2**bits
        found[i] = unsigned(lower + up + (sign if value < 0 else 0))
    return Stored(dtype, found.reshape(values.shape))


def rounding_coins(seed: int, tensor: str, size: int, bits: int, start: int = 0) -> list[int]:
    """The random draws of a tensor's elements from `start` on: the blocks of 64 bits, cut from the lowest bits up."""
    digest = hashlib.sha256(f"ramerge rounding\n{seed}\n{tensor}".encode()).digest()
    key = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")
    each = 64 // bits
    first = start // each
    counter = np.arange(first, -(-(start + size) // each), dtype=np.uint64)
    x, y = threefry(counter & np.uint64(0xFFFFFFFF), counter >> np.uint64(32), key)
    blocks = [first | second << 32 for first, second in zip(x.tolist(), y.tolist(), strict=True)]
    return [blocks[i // each - first] >> (bits * (i % each)) & (2**bits - 1) for i in range(start, start + size)]


def stochastic(
    exact: Tensors, base: Tensors | None, inputs: Sequence[Tensors], dtypes: Mapping[str, str], seed: int
) -> dict[str, Stored]:
    """The merged tensors, rounded stochastically.

    `exact` has results in float64, `base` is None for methods without one, `inputs` decide the arithmetic.
    """
    merged = {}
    for name, tensor in exact.items():
        wide = {np.float32: "F32", np.float64: "F64"}[real_of([one[name] for one in inputs])] if tensor.is_float else ""
        if not tensor.is_float:
            merged[name] = tensor
        elif BITS[dtypes[name]](0).itemsize >= BITS[wide](0).itemsize:
            merged[name] = encode(tensor.numbers(np.float64), dtypes[name])
        else:
            bits = 64 if wide == "F64" else 16 if dtypes[name] == "BF16" else 32
            values, own = tensor.numbers(np.float64), base[name].numbers(np.float64) if base is not None else None
            words = rounding_coins(seed, name, values.size, bits)
            merged[name] = toss(values, own, words, bits, dtypes[name])
    return merged


def real_of(tensors: Sequence[Stored]) -> type:
    return np.float64 if any(tensor.dtype == "F64" for tensor in tensors) else np.float32


def task_vectors(base: Stored, agents: Sequence[Stored]) -> list[NDArray]:
    real = real_of([base, *agents])
    with np.errstate(over="ignore", invalid="ignore"):
        return [agent.numbers(real) - base.numbers(real) for agent in agents]


def masks(taus: Sequence[NDArray], epsilon: float | Sequence[float]) -> list[NDArray]:
    each = [epsilon] * len(taus) if isinstance(epsilon, float) else epsilon
    return [np.abs(tau) > tau.dtype.type(one) for tau, one in zip(taus, each, strict=True)]


def sum_of_squares(taus: Sequence[NDArray]) -> float:
    """Over tensors: chunks of 65,536 elements in 1024 lanes, which are halved; and the exact sum of the chunks."""
    sums = [0.0]
    for tau in taus:
        square = tau.reshape(-1).astype(np.float64) ** 2
        for start in range(0, square.size, 65536):
            chunk = np.zeros(65536)
            chunk[: square[start : start + 65536].size] = square[start : start + 65536]
            lanes = np.zeros(1024)
            for row in chunk.reshape(-1, 1024):
                lanes = lanes + row
            while lanes.size > 1:
                lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
            sums.append(lanes[0])
    return math.fsum(sums)


def count(base: Stored, agents: Sequence[Stored], epsilon: float | Sequence[float]) -> NDArray:
    """Active and unique elements of each agent: int64, shape (2, N)."""
    moved = masks(task_vectors(base, agents), epsilon)
    c = sum(m.astype(np.int64) for m in moved)
    return np.array([[m.sum() for m in moved], [(m & (c == 1)).sum() for m in moved]], np.int64)


def lambdas(counts: NDArray, method: str, r: float = 0.1, alpha: float = 2.0) -> list[float]:
    """Equations 2, 6 and 8."""
    result = []
    for active, unique in counts.T.tolist():
        shared = active - unique
        if method == "ram":
            result.append(1.0)
        elif method == "ram+":
            rho = shared / unique if unique else (float("inf") if shared else 0.0)
            result.append(1.0 + r * min(max(rho, 0.0), alpha))
        else:
            result.append(1.0 + r * (shared / (shared + unique) if active else 0.0))
    return result


def merge(
    base: Stored,
    agents: Sequence[Stored],
    scales: Sequence[float],
    epsilon: float | Sequence[float],
    dtype: str,
    shared: str = "mean",
) -> Stored:
    """Equation 7, element by element in a Python loop, so that there is nothing to get wrong."""
    taus = task_vectors(base, agents)
    moved = masks(taus, epsilon)
    real = taus[0].dtype.type
    b = base.numbers(real).reshape(-1)
    out = np.empty_like(b)
    with np.errstate(all="ignore"):
        for i in range(b.size):
            active = [t for t in range(len(agents)) if moved[t].reshape(-1)[i]]
            if not active:
                out[i] = b[i]
                continue
            if len(active) == 1:
                tau = real(scales[active[0]]) * taus[active[0]].reshape(-1)[i]
            else:
                tau = taus[active[0]].reshape(-1)[i]
                for t in active[1:]:
                    tau = tau + taus[t].reshape(-1)[i]
                own = [taus[t].reshape(-1)[i] for t in active]
                if shared == "agree_max" and (min(own) > 0 or max(own) < 0):
                    tau = max(own, key=abs)
                elif shared in ("mean", "agree_max"):
                    tau = tau / real(len(active))
                elif shared == "rms":
                    tau = tau / np.sqrt(real(len(active)))
            out[i] = b[i] + tau
    result = encode(out, dtype)
    if dtype == base.dtype:
        unmoved = ~np.logical_or.reduce(moved).reshape(-1)
        result.bits[unmoved] = base.bits.reshape(-1)[unmoved]
    return Stored(dtype, result.bits.reshape(base.bits.shape))


# --- the other methods -----------------------------------------------------------------------------------------------
#
# Each takes a base and agents as mappings of names to tensors, and gives the merged tensors. `real` overrides the type
# of the arithmetic. Integer tensors are the base's.


def thresholds(base: Tensors, agents: Mapping[str, Tensors], epsilon: float | Mapping[str, float]) -> list[float]:
    """Of each agent; a relative one is a multiple of the root mean square of its task vector over the whole model."""
    if not isinstance(epsilon, Mapping):
        return [float(epsilon)] * len(agents)
    names = [name for name, tensor in base.items() if tensor.is_float]
    elements = sum(base[name].bits.size for name in names)
    found = []
    for agent in agents.values():
        taus = [task_vectors(base[name], [agent[name]])[0] for name in names]
        found.append(epsilon["relative"] * math.sqrt(sum_of_squares(taus) / elements) if elements else 0.0)
    return found


def weights_of(value: float | Mapping[str, float], agents: Mapping[str, Tensors]) -> list[float]:
    return [value[name] if isinstance(value, Mapping) else value for name in agents]


def dtypes(base: Tensors, asked: str | None) -> dict[str, str | None]:
    """The dtype of each tensor of an output of which one was asked for; None for the base's.

    What the base stores wider than most of its floating-point elements is not narrowed; of two dtypes with as many, the
    narrower counts, and then the name.
    """
    size = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
    counts: dict[str, int] = {}
    for tensor in base.values():
        if tensor.is_float:
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.bits.size
    most = max(counts, key=lambda dtype: (counts[dtype], -size[dtype], dtype), default="F64")
    return {
        name: None if asked and tensor.is_float and size[asked] < size[tensor.dtype] > size[most] else asked
        for name, tensor in base.items()
    }


def _each(base: Tensors, agents: Mapping[str, Tensors], dtype: str | None, real: type | None, formula, owns=None):
    """Apply `formula(name, b, taus)` to every floating-point tensor; `owns` gives what decides the arithmetic."""
    merged = {}
    for name, tensor in base.items():
        if not tensor.is_float:
            merged[name] = tensor
            continue
        of = [agent[name] for agent in agents.values()]
        kind = real or real_of([*(owns(name) if owns else [tensor, *of])])
        b = tensor.numbers(kind)
        with np.errstate(all="ignore"):
            taus = [agent.numbers(kind) - b for agent in of]
            merged[name] = encode(np.asarray(formula(name, b, taus), kind), dtype or tensor.dtype)
    return merged


def _summed(terms: Sequence[NDArray]) -> NDArray:
    total = np.zeros_like(terms[0])
    for term in terms:
        total = total + term
    return total


def _divisor(weights: Sequence[float]) -> float:
    return sum(weights) if abs(sum(weights)) >= 1e-8 else 1.0


def task_arithmetic(base, agents, dtype=None, real=None, *, scale=1.0, weights=1.0, normalize=False, change=None):
    w = weights_of(weights, agents)

    def formula(name, b, taus):
        kind = b.dtype.type
        taus = change(name, taus) if change else taus
        total = _summed([kind(one) * tau for one, tau in zip(w, taus, strict=True)])
        return b + kind(scale) * (total / kind(_divisor(w)) if normalize else total)

    return _each(base, agents, dtype, real, formula)


def linear(base, agents, dtype=None, real=None, *, weights=1.0, normalize=True):
    w = weights_of(weights, agents)

    def formula(name, b, _taus):
        kind = b.dtype.type
        total = _summed([kind(one) * agent[name].numbers(kind) for one, agent in zip(w, agents.values(), strict=True)])
        return total / kind(_divisor(w) if normalize else 1.0)

    return _each(base, agents, dtype, real, formula, owns=lambda name: [agent[name] for agent in agents.values()])


def passthrough(base, agents, dtype=None, real=None, *, agent=None, scale=1.0):
    chosen = agents[agent or next(iter(agents))]
    return _each(
        base,
        agents,
        dtype,
        real,
        lambda name, b, _taus: b.dtype.type(scale) * chosen[name].numbers(b.dtype.type),
        owns=lambda name: [agent[name] for agent in agents.values()],
    )


def _mean(base, agents, dtype, real, weights):
    """The weighted mean as the sum of what each agent changes of the one before it; agents of weight 0 do not count."""
    used = [(agent, weight) for agent, weight in zip(agents.values(), weights, strict=True) if weight]

    def formula(name, b, _taus):
        kind = b.dtype.type
        models = [agent[name].numbers(kind) for agent, _ in used]
        total, left = np.zeros_like(b), [0.0]
        for _, weight in reversed(used):
            left.append(left[-1] + weight)
        for before, after, factor in zip(models, models[1:], left[-2::-1], strict=False):
            total = total + kind(factor) * (after - before)
        return np.where(total == 0, models[0], models[0] + total)

    return _each(base, agents, dtype, real, formula, owns=lambda name: [agent[name] for agent in agents.values()])


def uniform(base, agents, dtype=None, real=None):
    return _mean(base, agents, dtype, real, [1 / len(agents)] * len(agents))


def ema(base, agents, dtype=None, real=None, *, decay=0.9):
    """For agents in the order of their steps."""
    weights = [1.0]
    for _ in range(len(agents) - 1):
        weights = [weight * decay for weight in weights] + [1 - decay]
    return _mean(base, agents, dtype, real, weights)


def scored(base, agents, dtype=None, real=None, *, scores=None, temperature=0.01):
    powers = [np.exp(((scores[name] - max(scores.values())) if scores else 0.0) / temperature) for name in agents]
    return _mean(base, agents, dtype, real, [power / sum(powers) for power in powers])


def extrapolate(base, agents, dtype=None, real=None, *, alpha=0.3):
    return _mean(base, agents, dtype, real, [-alpha, *[0.0] * (len(agents) - 2), 1 + alpha])


def relex(base, agents, dtype=None, real=None, *, steps=None, at=None):
    """By the singular value decomposition of the matrix of task vectors."""
    numbers = [re.findall(r"\d+", name) for name in agents]
    places = [int(found[-1]) if all(numbers) else place for place, found in enumerate(numbers, 1)]
    steps = [float(steps[name]) for name in agents] if steps else [float(place) for place in places]
    at = max(steps) if at is None else at

    def combine(vectors):
        if not vectors.any():
            return np.zeros_like(vectors[0])
        _, _, right = np.linalg.svd(vectors, full_matrices=False)
        coordinates = vectors @ right[0]
        if len(steps) == 1:
            return coordinates[0] * (at / steps[0] if steps[0] else 1) * right[0]
        return np.polyval(np.polyfit(steps, coordinates, 1), at) * right[0]

    return _combined(base, agents, dtype, real, True, "tensor", combine)


def fisher(base, agents, dtype=None, real=None, *, importances, scale=1.0, weights=1.0):
    w = weights_of(weights, agents)

    def formula(name, b, taus):
        kind = b.dtype.type
        f = [kind(one) * importances[agent][name].numbers(kind) for one, agent in zip(w, agents, strict=True)]
        total, mass = _summed([one * tau for one, tau in zip(f, taus, strict=True)]), _summed(f)
        merged = np.where(np.isinf(mass), kind("nan"), b + kind(scale) * (total / mass))
        return np.where(mass > 0, merged, b)

    def owners(name):
        return [base[name], *[a[name] for a in agents.values()], *[i[name] for i in importances.values()]]

    return _each(base, agents, dtype, real, formula, owns=owners)


def regmean(base, agents, dtype=None, real=None, *, inputs, towards="sum", share=1.0, ridge=0.01, shrink=1.0):
    """(sum_t tau_t G_t + mu S) (sum_t G_t + mu I)^-1 where inputs were recorded, otherwise S; in float64."""
    factor = {"sum": 1.0, "mean": 1 / len(agents), "zero": 0.0}.get(towards, 1.0) * share
    others = {
        "ties": ties,
        "ram+": lambda *models, **how: ram_family(*models, method="ram+", **how),
        "tsvm": tsvm,
    }
    exact = others[towards](base, agents, dtype="F64", real=real) if towards in others else None

    def formula(name, b, taus):
        start = exact[name].numbers(b.dtype.type) - b if exact else sum(taus)
        prior = b.dtype.type(factor) * start
        recorded = [inputs[agent][name] for agent in agents if name in inputs[agent]]
        if not recorded or not any((rows * weights[:, None]).any() for rows, weights in recorded):
            return b + prior
        d = b.shape[1]
        top, moments = 0.0, 0.0
        for tau, agent in zip(taus, agents, strict=True):
            rows, weights = inputs[agent].get(name, (np.zeros((0, d)), np.zeros(0)))
            g = rows.T @ (weights[:, None] * rows)
            g = shrink * g + (1 - shrink) * np.diag(np.diag(g))
            top, moments = top + tau.astype(np.float64) @ g, moments + g
        mean_square = np.trace(moments) / sum(weights.sum() for _, weights in recorded)
        mu = max(ridge, 1e-10) * len(agents) * mean_square / d
        merged = np.linalg.solve(moments + mu * np.eye(d), (top + mu * prior).T).T
        return b + merged.astype(b.dtype.type)

    return _each(base, agents, dtype, real, formula)


def svc(base, agents, dtype=None, real=None, *, scale=1.0, alpha=1.0, start="sum"):
    """Matrices: directions of the merged task vector, each times N over how often agents count in it."""
    exact = ram_family(base, agents, method="ram+", dtype="F64", real=real) if start == "ram+" else None

    def formula(name, b, taus):
        kind = b.dtype.type
        merged = exact[name].numbers(kind) - b if exact else kind({"sum": 1, "mean": 1 / len(taus)}[start]) * sum(taus)
        if not (b.ndim == 2 and b.size and name.startswith("model.layers.") and name.endswith(".weight")):
            return b + kind(scale) * merged
        if not merged.any():
            return b
        merged, taus = merged.astype(np.float64), [tau.astype(np.float64) for tau in taus]
        u, values, _ = np.linalg.svd(merged, full_matrices=False)
        values, equal = values**2, (64 + max(b.shape)) * 2.0**-52 * values[0] ** 2
        null = 1e-12 * max(np.sum(tau**2) for tau in taus)
        result = np.zeros_like(merged)
        first = 0
        for stop in range(1, len(values) + 1):
            if stop < len(values) and values[stop - 1] - values[stop] <= equal:
                continue
            part = u[:, first:stop].T
            counted = 0.0
            for tau in taus:
                size = np.sum((part @ tau) ** 2)
                counted += max(alpha, np.sum((part @ merged) * (part @ tau)) / size if size > null else 0.0)
            result += part.T @ (part @ merged) * len(taus) / counted
            first = stop
        return b + (scale * result).astype(kind)

    return _each(base, agents, dtype, real, formula)


def aim(base, agents, dtype=None, real=None, *, inputs, scale=1.0, keep=0.2):
    """scale * sum_t tau_t, damped in columns by the mean absolute inputs, where inputs were recorded."""

    def formula(name, b, taus):
        total = b.dtype.type(scale) * sum(taus)
        if not any(name in inputs[agent] for agent in agents):
            return b + total
        empty = (np.zeros((0, b.shape[1])), np.zeros(0))
        recorded = [inputs[agent].get(name, empty) for agent in agents]
        means = sum(weights @ np.abs(rows) for rows, weights in recorded) / len(agents)
        if not means.any():
            return b + total
        return b + total * (1 - (1 - keep) * means / means.max()).astype(b.dtype.type)

    return _each(base, agents, dtype, real, formula)


def isolate(base, agents, dtype=None, real=None, *, agent=None, region="unique", scale=1.0, epsilon=1e-5):
    chosen = list(agents).index(agent) if agent else 0
    epsilons = thresholds(base, agents, epsilon)

    def formula(name, b, taus):
        kind = b.dtype.type
        moved = masks(taus, epsilons)
        alone = sum(moved) == 1
        inside = moved[chosen] & {"unique": alone, "shared": ~alone, "active": np.ones_like(alone)}[region]
        return np.where(inside, b + kind(scale) * taus[chosen], b)

    return _each(base, agents, dtype, real, formula)


def magnitudes(base: Tensors, agents: Mapping[str, Tensors], names: Sequence[str], change=None) -> list[NDArray]:
    """For each agent |tau| as float32, over tensors."""
    found = [[np.zeros(0, np.float32)] for _ in agents]
    for name in names:
        taus = task_vectors(base[name], [agent[name] for agent in agents.values()])
        for row, tau in zip(found, change(name, taus) if change else taus, strict=True):
            with np.errstate(over="ignore"):
                row.append(np.abs(tau).astype(np.float32).reshape(-1))
    return [np.concatenate(row) for row in found]


def kth_largest(values: NDArray, density: float) -> float:
    """The least magnitude that trimming to a part of the values keeps."""
    if density >= 1 or not values.size:
        return 0.0
    if density == 0:
        return np.inf
    return float(np.sort(values)[::-1][max(1, int(density * values.size)) - 1])


def ties(
    base,
    agents,
    dtype=None,
    real=None,
    *,
    density=0.2,
    trim="model",
    scale=1.0,
    weights=1.0,
    normalize=True,
    change=None,
):
    w, kept = weights_of(weights, agents), weights_of(density, agents)
    floats = [name for name, tensor in base.items() if tensor.is_float]

    def thresholds(names):
        everything = min(kept) >= 1
        rows = magnitudes(base, agents, names, change)
        return [0.0 if everything else kth_largest(row, part) for row, part in zip(rows, kept, strict=True)]

    whole = thresholds(floats)

    def formula(name, b, taus):
        kind = b.dtype.type
        taus = change(name, taus) if change else taus
        least = whole if trim == "model" else thresholds([name])
        terms = [
            np.where(np.abs(tau).astype(np.float32) >= np.float32(limit), kind(one) * tau, kind(0))
            for one, tau, limit in zip(w, taus, least, strict=True)
        ]
        mass = _summed(terms)
        agree = [np.sign(term) * np.sign(mass) > 0 for term in terms]
        total = _summed([np.where(yes, term, kind(0)) for yes, term in zip(agree, terms, strict=True)])
        voices = _summed([np.where(yes, kind(one), kind(0)) for yes, one in zip(agree, w, strict=True)])
        divisor = np.where(normalize & (voices != 0), voices, kind(1))
        return np.where(total == 0, b, b + kind(scale) * (total / divisor))

    return _each(base, agents, dtype, real, formula)


def threefry(low: NDArray, high: NDArray, key: tuple[int, int]) -> tuple[NDArray, NDArray]:
    """Threefry-2x32-20 of Random123."""
    keys = [np.uint32(key[0]), np.uint32(key[1]), np.uint32(key[0] ^ key[1] ^ 0x1BD11BDA)]
    rotations = [13, 15, 26, 6, 17, 29, 16, 24]
    with np.errstate(over="ignore"):
        x, y = low.astype(np.uint32) + keys[0], high.astype(np.uint32) + keys[1]
        for turn in range(20):
            r = rotations[turn % 8]
            x = x + y
            y = (y << np.uint32(r) | y >> np.uint32(32 - r)) ^ x
            if turn % 4 == 3:
                group = turn // 4 + 1
                x = x + keys[group % 3]
                y = y + keys[(group + 1) % 3] + np.uint32(group)
    return x, y


def coins(seed: int, agent: str, tensor: str, size: int) -> NDArray:
    """The words of a tensor's elements."""
    digest = hashlib.sha256(f"ramerge dare\n{seed}\n{agent}\n{tensor}".encode()).digest()
    key = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")
    counter = np.arange((size + 1) // 2, dtype=np.uint64)
    pairs = threefry(counter & np.uint64(0xFFFFFFFF), counter >> np.uint64(32), key)
    return np.stack(pairs, axis=1).reshape(-1)[:size]


def dropping(agents: Mapping[str, Tensors], p: float | Mapping[str, float], seed: int, rescale: bool):
    """What drops elements of task vectors."""
    rates = weights_of(p, agents)

    def change(name, taus):
        changed = []
        for agent, rate, tau in zip(agents, rates, taus, strict=True):
            words = coins(seed, agent, name, tau.size).reshape(tau.shape)
            factor = tau.dtype.type(1 / (1 - rate) if rescale else 1.0)
            changed.append(np.where(words >= int(rate * 2**32), tau * factor, tau.dtype.type(0)))
        return changed

    return change


def dare(base, agents, dtype=None, real=None, *, p=0.5, seed=0, rescale=True, **more):
    return task_arithmetic(base, agents, dtype, real, change=dropping(agents, p, seed, rescale), **more)


def dare_ties(base, agents, dtype=None, real=None, *, p=0.5, seed=0, rescale=True, **more):
    return ties(base, agents, dtype, real, change=dropping(agents, p, seed, rescale), **more)


def ram_family(
    base,
    agents,
    dtype=None,
    real=None,
    *,
    method,
    epsilon=1e-5,
    scope="model",
    shared="mean",
    density=0.1,
    trim="tensor",
    **rescale,
):
    """RAM, RAM+ and RAM+s over all tensors."""
    epsilon = thresholds(base, agents, epsilon)

    def group(name: str, over: str) -> str:
        return {"model": "", "layer": name.rsplit(".", 1)[0], "tensor": name}[over]

    counts: dict[str, NDArray] = {}
    floats = [name for name, tensor in base.items() if tensor.is_float]
    for name in floats:
        found = count(base[name], [agent[name] for agent in agents.values()], epsilon)
        key = group(name, scope)
        counts[key] = counts.get(key, np.zeros_like(found)) + found

    def in_shared(name):
        taus = task_vectors(base[name], [agent[name] for agent in agents.values()])
        moved = masks(taus, epsilon)
        return taus, moved, sum(m.astype(int) for m in moved)

    def limits(names) -> list[float]:
        rows = [[np.zeros(0, np.float32)] for _ in agents]
        for name in names:
            taus, moved, c = in_shared(name)
            for row, tau, m in zip(rows, taus, moved, strict=True):
                with np.errstate(over="ignore"):
                    row.append(np.abs(np.where(m, tau, 0)[c >= 2]).astype(np.float32))
        return [kth_largest(np.concatenate(row), density) for row in rows]

    merged = {}
    for name, tensor in base.items():
        if not tensor.is_float:
            merged[name] = tensor
            continue
        scales = lambdas(counts[group(name, scope)], method, **rescale)
        rule = "mean" if shared == "ties" else shared
        merged[name] = merge(tensor, [a[name] for a in agents.values()], scales, epsilon, dtype or tensor.dtype, rule)
        if shared != "ties":
            continue
        least = limits([other for other in floats if group(other, trim) == group(name, trim)])
        taus, moved, c = in_shared(name)
        with np.errstate(all="ignore"):
            terms = [
                np.where(m & (np.abs(tau).astype(np.float32) >= np.float32(one)), tau, tau.dtype.type(0))
                for tau, m, one in zip(taus, moved, least, strict=True)
            ]
            mass = _summed(terms)
            agree = [np.sign(term) * np.sign(mass) > 0 for term in terms]
            voices = _summed([yes.astype(mass.dtype) for yes in agree])
            total = _summed([np.where(yes, term, term.dtype.type(0)) for yes, term in zip(agree, terms, strict=True)])
            b = tensor.numbers(mass.dtype.type)
            together = np.where(voices > 0, b + total / np.maximum(voices, mass.dtype.type(1)), b)
        bits = np.where(c >= 2, encode(together, dtype or tensor.dtype).bits, merged[name].bits)
        merged[name] = Stored(dtype or tensor.dtype, bits.astype(merged[name].bits.dtype))
    return merged


def wudi(base, agents, dtype=None, real=None, *, proximity=1e-5, scale=1.0):
    """WUDI in float64 by the book: two proximal steps, or for the smallest proximity a pseudo-inverse."""

    def formula(name, b, taus):
        kind = b.dtype.type
        if not (b.ndim == 2 and b.size and name.startswith("model.layers.") and name.endswith(".weight")):
            return b + kind(scale) * _summed(taus)
        taus = [tau.astype(np.float64) for tau in taus]
        norms = [np.sum(tau**2) for tau in taus]
        w = [1 / norm if norm else 0.0 for norm in norms]
        grams = [tau.T @ tau for tau in taus]
        s = sum(one * gram for one, gram in zip(w, grams, strict=True))
        target = sum(one * tau @ gram for one, tau, gram in zip(w, taus, grams, strict=True))
        if proximity > 1e-10:
            mu, x = proximity * np.trace(s), 0.0
            for _ in range(2):
                x = (target - sum(taus) @ s + mu * x) @ np.linalg.inv(s + mu * np.eye(len(s))) if mu else 0.0
            return b + (sum(taus) + x).astype(kind)
        return b + (target @ np.linalg.pinv(s, rcond=1e-9, hermitian=True)).astype(kind)

    return _each(base, agents, dtype, real, formula)


# --- lengths and angles ----------------------------------------------------------------------------------------------
#
# Directions are of whole tensors, or of their rows or columns, computed in float64.


def _combined(base, agents, dtype, real, based, per, combine):
    """`combine(vectors)`, of float64 vectors, for every tensor, row or column: of task vectors, or of the agents."""

    def formula(name, b, taus):
        taus = taus if based else [agent[name].numbers(b.dtype.type) for agent in agents.values()]
        vectors = np.stack([tau.astype(np.float64) for tau in taus])

        def of_some_length(lines):
            return combine(np.stack([line * (line @ line >= 2.0**-260) for line in lines]))

        if per == "tensor" or b.ndim < 2:
            merged = of_some_length(vectors.reshape(len(taus), -1)).reshape(b.shape)
        else:
            axis = {"row": -1, "column": 0}[per]
            lines = np.moveaxis(vectors, (0, axis if axis < 0 else 1), (-2, -1))
            merged = np.empty(lines.shape[:-2] + lines.shape[-1:])
            for place in np.ndindex(lines.shape[:-2]):
                merged[place] = of_some_length(lines[place])
            merged = np.moveaxis(merged, -1, axis)
        return (b.astype(np.float64) + merged if based else merged).astype(b.dtype)

    owns = None if based else (lambda name: [agent[name] for agent in agents.values()])
    return _each(base, agents, dtype, real, formula, owns)


def _unit(vector: NDArray) -> NDArray:
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def _arc(first: NDArray, second: NDArray, t: float, is_parallel) -> NDArray:
    cosine = np.clip(_unit(first) @ _unit(second), -1, 1)
    if is_parallel(cosine):
        return (1 - t) * first + t * second
    theta = np.arccos(cosine)
    return (np.sin((1 - t) * theta) * first + np.sin(t * theta) * second) / np.sin(theta)


def slerp(base, agents, dtype=None, real=None, *, t=0.5):
    return _combined(
        base, agents, dtype, real, False, "tensor", lambda v: _arc(v[0], v[1], t, lambda cosine: abs(cosine) > 0.9995)
    )


def nuslerp(base, agents, dtype=None, real=None, *, weights=1.0, per="tensor", based=True):
    w = weights_of(weights, agents)
    t = 0.5 if abs(sum(w)) < 1e-6 else w[1] / sum(w)
    return _combined(
        base,
        agents,
        dtype,
        real,
        based,
        per,
        lambda v: _arc(v[0], v[1], t, lambda cosine: np.sin(np.arccos(cosine)) < 1e-7),
    )


def multislerp(base, agents, dtype=None, real=None, *, weights=1.0, normalize=True, eps=1e-8, based=True):
    """The way through the tangent space that mergekit goes."""
    w = np.array(weights_of(weights, agents))
    w = w / sum(w) if normalize else w

    def combine(vectors):
        if len(vectors) == 1 or not vectors.any():
            return vectors[0]
        units = np.stack([_unit(vector) for vector in vectors])
        mean = w @ units
        if np.linalg.norm(mean) < max(eps, 1e-7 * np.abs(w).sum()):
            return w @ vectors if vectors.any(1).sum() <= 2 else np.full_like(mean, np.nan)
        mean = _unit(mean)
        tangent = w @ (units - np.outer(units @ mean, mean))
        far = np.linalg.norm(tangent)
        result = mean * np.cos(far) + (tangent * np.sin(far) / far if far else 0)
        return result * (w @ np.linalg.norm(vectors, axis=1))

    return _combined(base, agents, dtype, real, based, "tensor", combine)


def karcher(base, agents, dtype=None, real=None, *, max_iter=10, tol=1e-5):
    def combine(vectors):
        lengths = np.linalg.norm(vectors, axis=1)
        units = [vector / length for vector, length in zip(vectors, lengths, strict=True) if length > 0]
        if not units:
            return vectors[0]
        place = sum(units) / len(units)
        place = _unit(place) if np.linalg.norm(place) >= tol else units[0]
        for _ in range(max_iter):
            step = np.zeros_like(place)
            for unit in units:
                theta = 2 * np.arcsin(min(np.linalg.norm(unit - place) / 2, 1))
                direction = unit - (unit @ place) * place
                if theta >= tol and direction.any():
                    step = step + theta * _unit(direction) / len(units)
            far = np.linalg.norm(step)
            if far < tol:
                break
            place = _unit(np.cos(far) * place + np.sin(far) * step / far)
        return lengths.mean() * place

    return _combined(base, agents, dtype, real, False, "tensor", combine)


def model_stock(base, agents, dtype=None, real=None, *, per="tensor"):
    n = len(agents)

    def combine(vectors):
        cosine = np.mean([_unit(vectors[i]) @ _unit(vectors[j]) for i in range(n) for j in range(i)])
        below = 1 + (n - 1) * cosine
        return vectors.mean(0) * (n * cosine / below if abs(below) > 1e-12 else 0.0)

    return _combined(base, agents, dtype, real, True, per, combine)


# --- what is kept of task vectors ------------------------------------------------------------------------------------


def _linear(b, terms, w, scale, normalize):
    kind = b.dtype.type
    total = _summed(terms)
    return np.where(total == 0, b, b + kind(scale) * (total / kind(_divisor(w) if normalize else 1)))


def _elected(b, terms, w, scale, normalize):
    kind = b.dtype.type
    mass = _summed(terms)
    agree = [np.sign(term) * np.sign(mass) > 0 for term in terms]
    total = _summed([np.where(yes, term, kind(0)) for yes, term in zip(agree, terms, strict=True)])
    voices = _summed([np.where(yes, kind(one), kind(0)) for yes, one in zip(agree, w, strict=True)])
    return np.where(total == 0, b, b + kind(scale) * (total / np.where(normalize & (voices != 0), voices, kind(1))))


def _grown(tau: NDArray, kept: NDArray, rescale: bool) -> NDArray:
    """What is kept, with the sum of magnitudes of the whole."""
    whole, left = (np.abs(each.astype(np.float64)).sum() for each in (tau, kept))
    return kept * tau.dtype.type(whole / left if rescale and left else 1)


def breadcrumbs(
    base,
    agents,
    dtype=None,
    real=None,
    *,
    combine=_linear,
    scale=1.0,
    weights=1.0,
    normalize=False,
    density=0.1,
    gamma=0.01,
    rescale=False,
):
    w, densities, gammas = (weights_of(value, agents) for value in (weights, density, gamma))

    def crumbs(tau, density, gamma):
        if density >= 1 or not tau.size:
            return tau
        sizes = np.abs(tau).astype(np.float32)
        inside = np.sort(sizes.reshape(-1)[np.isfinite(sizes.reshape(-1))])
        n = inside.size
        top = min(int(gamma * n), n - int(density * n))
        inside = inside[n - int(density * n) - top : n - top]
        kept = (sizes >= inside[0]) & (sizes <= inside[-1]) if inside.size else np.zeros(tau.shape, bool)
        return _grown(tau, np.where(kept, tau, tau.dtype.type(0)), rescale)

    def formula(name, b, taus):
        kind = b.dtype.type
        terms = [kind(one) * crumbs(tau, d, g) for one, tau, d, g in zip(w, taus, densities, gammas, strict=True)]
        return combine(b, terms, w, scale, normalize)

    return _each(base, agents, dtype, real, formula)


def breadcrumbs_ties(*models, **parameters):
    return breadcrumbs(*models, combine=_elected, **parameters)


def della_linear(
    base,
    agents,
    dtype=None,
    real=None,
    *,
    combine=_linear,
    scale=1.0,
    weights=1.0,
    normalize=False,
    density=0.5,
    epsilon=0.15,
    rescale="l1",
    seed=0,
):
    w, densities, epsilons = (weights_of(value, agents) for value in (weights, density, epsilon))

    def sampled(tau, name, agent, density, epsilon):
        if density in (0, 1) or not tau.size:
            return tau * tau.dtype.type(density)
        rows = tau.reshape(-1, tau.shape[-1] if tau.ndim else 1)
        n = rows.shape[1]
        kept = np.zeros_like(rows)
        dice = coins(seed, agent, name, tau.size).reshape(rows.shape)
        for row, values in enumerate(rows):
            for rank, column in enumerate(sorted(range(n), key=lambda place: (abs(values[place]), place))):
                p = density - epsilon + 2 * epsilon * (rank / (n - 1)) if n > 1 else density
                if dice[row, column] >= math.floor((1 - p) * 2**32):
                    kept[row, column] = values[column] * tau.dtype.type(1 / p if rescale == "probability" else 1)
        return _grown(tau, kept.reshape(tau.shape), rescale == "l1")

    def formula(name, b, taus):
        kind = b.dtype.type
        terms = [
            kind(one) * sampled(tau, name, agent, d, e)
            for one, tau, agent, d, e in zip(w, taus, agents, densities, epsilons, strict=True)
        ]
        return combine(b, terms, w, scale, normalize)

    return _each(base, agents, dtype, real, formula)


def della(*models, normalize=True, **parameters):
    return della_linear(*models, combine=_elected, normalize=normalize, **parameters)


def sce(base, agents, dtype=None, real=None, *, select_topk=1.0):
    n = len(agents)

    def formula(_name, b, taus):
        kind = b.dtype.type
        wide = [tau.astype(np.float64) for tau in taus]
        total = _summed(wide)
        variance = (_summed([(n * tau - total) ** 2 for tau in wide]) / n**3).astype(np.float32)
        chosen = np.ones(b.shape, bool)
        if select_topk < 1:
            some = np.sort(variance[(variance > 0) & np.isfinite(variance)])[::-1]
            k = int(select_topk * some.size)
            chosen = variance >= (some[k - 1] if k else np.inf)
        taus = [np.where(chosen, tau, kind(0)) for tau in taus]
        squares = np.array([np.sum(tau.astype(np.float64) ** 2) for tau in taus])
        s = squares / squares.sum() if squares.sum() else np.full(n, 1 / n)
        positive = _summed(taus) >= 0
        agree = [np.where(positive, tau > 0, tau < 0) for tau in taus]
        total = _summed([np.where(yes, kind(one) * tau, kind(0)) for yes, one, tau in zip(agree, s, taus, strict=True)])
        voices = _summed([np.where(yes, kind(one), kind(0)) for yes, one in zip(agree, s, strict=True)])
        return np.where(total == 0, b, b + total / np.maximum(voices, kind(np.float32(1e-6))))

    return _each(base, agents, dtype, real, formula)


def arcee_fusion(base, agents, dtype=None, real=None):
    (agent,) = agents.values()

    def chances(row):
        powers = np.exp(row.astype(np.float64) - row.max())
        return powers / powers.sum() + 1e-8

    def formula(name, b, taus):
        a, width = agent[name].numbers(b.dtype.type), b.shape[-1] if b.ndim else 1
        if not b.size:
            return b
        importance = []
        for before, after, tau in zip(*(each.reshape(-1, width) for each in (b, a, taus[0])), strict=True):
            p, q = chances(after), chances(before)
            importance.append(np.abs(tau) * max(np.sum(p * np.log(p / q)), 0))
        importance = np.array(importance).astype(np.float32).reshape(b.shape)
        ordered = np.sort(importance.reshape(-1))
        lower, median, upper = (float(ordered[int(part * (ordered.size - 1))]) for part in (0.25, 0.5, 0.75))
        return np.where(importance >= np.float32(median + 1.5 * (upper - lower)), a, b)

    return _each(base, agents, dtype, real, formula)


# --- spectral methods, by numpy.linalg.svd in float64 ----------------------------------------------------------------


def _triples(x: NDArray, k: int) -> tuple[NDArray, NDArray, NDArray]:
    """The k leading singular triples that are not null."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    k = min(k, int((s > 1e-7 * s.max(initial=0)).sum()))
    return u[:, :k], s[:k], vt[:k].T


def _polar(x: NDArray) -> NDArray:
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    kept = s > 1e-6 * s.max(initial=0)
    return u[:, kept] @ vt[kept]


def _aligned(found: Sequence[tuple[NDArray, NDArray, NDArray]]) -> NDArray:
    u, s, v = (np.concatenate(parts, axis=-1) for parts in zip(*found, strict=True))
    return _polar(u) @ np.diag(s) @ _polar(v).T


def _spectral(solve):
    """A reference that merges linear weights by `solve(taus, **parameters)`, and takes the mean of others."""

    def merge(base, agents, dtype=None, real=None, *, scale=1.0, weights=1.0, **parameters):
        w = weights_of(weights, agents)

        def formula(name, b, taus):
            kind = b.dtype.type
            taus = [kind(one) * tau for one, tau in zip(w, taus, strict=True)]
            if not (b.ndim == 2 and b.size and name.startswith("model.layers.") and name.endswith(".weight")):
                return b + kind(scale) * (_summed(taus) / kind(len(taus)))
            if not any(tau.any() for tau in taus):
                return b
            return b + (scale * solve([tau.astype(np.float64) for tau in taus], **parameters)).astype(kind)

        return _each(base, agents, dtype, real, formula)

    return merge


@_spectral
def tsvm(taus):
    k = min(taus[0].shape) // len(taus)
    return _aligned([_triples(tau, k) for tau in taus]) if k else np.mean(taus, axis=0)


@_spectral
def iso_c(taus):
    delta = sum(taus)
    return _polar_of_all(delta) * np.linalg.svd(delta, compute_uv=False).mean()


def _polar_of_all(x: NDArray) -> NDArray:
    u, _, v = _triples(x, min(x.shape))
    return u @ v.T


@_spectral
def iso_cts(taus, common_space_fraction=0.8):
    r, n = min(taus[0].shape), len(taus)
    own = min(round((r - int(r * common_space_fraction)) / n), r // n)
    u, s, v = _triples(sum(taus), r - own * n)
    found = [_triples(tau - u @ u.T @ tau, own) for tau in taus if own]
    found = [one for one, tau in zip(found, taus, strict=False) if np.sum(one[1]) > 1e-7 * np.linalg.norm(tau)]
    found.append((u, s, v))
    mean = sum(np.sum(one[1]) for one in found) / r
    return _aligned([(u, np.full(len(s), mean), v) for u, s, v in found])


def core_sum(taus: Sequence[NDArray], rank=16, power=0.75, **_parameters) -> NDArray:
    """sum_j w_j tau_j with core coefficients, by singular value decompositions; equal values are not parted."""
    squares = [np.sum(tau**2) for tau in taus]
    moved = [tau for tau, square in zip(taus, squares, strict=True) if square > 1e-12 * max(squares)]
    if len(moved) == 1:
        return moved[0]
    a, b = np.zeros((len(moved),) * 2), np.zeros(len(moved))
    for i, tau in enumerate(moved):
        u, s, v = _triples(tau, min(tau.shape))
        k = min(rank, len(s))
        while k < len(s) and s[k - 1] ** 2 - s[k] ** 2 <= 1e-12 * s[0] ** 2:
            k += 1
        u, s, v = u[:, :k], s[:k], v[:, :k]
        acts = [u.T @ other @ v for other in moved]
        g = np.outer(s, s) ** (2 * power)
        g = g / np.sum(g * acts[i] ** 2)
        b += [np.sum(g * act * acts[i]) for act in acts]
        a += [[np.sum(g * one * other) for other in acts] for one in acts]
    w = np.full(len(moved), np.clip(b.sum() / a.sum(), 0, 1) if a.sum() > 0 else 0.0)
    for _ in range(10_000):
        before = w.copy()
        for j in range(len(w)):
            w[j] = np.clip((b[j] - a[j] @ w + a[j, j] * w[j]) / a[j, j], 0, 1)
        if np.abs(w - before).max() <= 1e-6:
            break
    return sum(one * tau for one, tau in zip(w, moved, strict=True))


def core(base, agents, dtype=None, real=None, *, scale=1.0, time=0.0, **parameters):
    """Every tensor as a matrix; a vector has one row."""

    def formula(name, b, taus):
        if not any(tau.any() for tau in taus):
            return b
        shape = (-1, b.shape[-1]) if b.ndim else (1, 1)
        wide = [tau.astype(np.float64).reshape(shape) for tau in taus]
        merged = core_sum(wide, **parameters)
        if time and b.ndim == 2 and name.startswith("model.layers.") and name.endswith(".weight"):
            merged = _flow(wide, merged, time)
        return b + (scale * merged).astype(b.dtype.type).reshape(b.shape)

    return _each(base, agents, dtype, real, formula)


def _flow(taus: Sequence[NDArray], theta: NDArray, time: float) -> NDArray:
    moved = [tau / np.linalg.norm(tau) for tau in taus if tau.any()]
    c = sum(tau.T @ tau for tau in moved)
    d = sum(tau @ (one.T @ one) for tau, one in zip([tau for tau in taus if tau.any()], moved, strict=True))
    values, vectors = np.linalg.eigh(c)
    phi = np.where(values > 1e-13, -np.expm1(-time * values) / np.maximum(values, 1e-300), time)
    return theta + (d - theta @ c) @ (vectors * phi) @ vectors.T


def _filtered(taus: Sequence[NDArray], start: str, time: float, choose) -> NDArray:
    """theta_0 + (D - theta_0 C) V f / lambda V^T over the leading directions."""
    starts = {
        "sum": sum,
        "mean": lambda taus: sum(taus) / len(taus),
        "zero": lambda taus: 0 * taus[0],
        "core": core_sum,
    }
    theta = starts[start](taus)
    g = [1 / np.sum(tau**2) if tau.any() else 0.0 for tau in taus]
    c = sum(one * tau.T @ tau for one, tau in zip(g, taus, strict=True))
    d = sum(one * tau @ tau.T @ tau for one, tau in zip(g, taus, strict=True))
    values, vectors = np.linalg.eigh(c)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = np.where(values > 1e-13 * values[0], values, 0)
    k = min(choose(kept), np.count_nonzero(kept))
    v, f = vectors[:, :k], 1 - np.exp(-time * kept[:k])
    return theta + (d - theta @ c) @ v @ np.diag(f / kept[:k]) @ v.T


@_spectral
def swudi(taus, filter_type="exponential", exp_time=300.0, truncate_rank_ratio=0.65, init_mode="sum"):
    k = max(1, int(np.ceil(taus[0].shape[1] * truncate_rank_ratio - 1e-9)))
    return _filtered(taus, init_mode, exp_time if filter_type == "exponential" else np.inf, lambda _values: k)


@_spectral
def aswudi(taus, auto_rank_method="participation_sqrt", rank_scale=1.0, init_mode="sum"):
    m, n = taus[0].shape

    def rank(values):
        shares, roots = values / values.sum(), np.sqrt(values)
        entropy = -sum(p * np.log(p) for p in shares if p > 0)
        beta = min(m, n) / max(m, n)
        omega = 2 * (beta + 1) + 8 * beta / (beta + 1 + np.sqrt(beta**2 + 14 * beta + 1))
        omega /= 2 + np.sqrt(3) if beta >= 0.9999 else (1 - beta) ** 2 + beta
        if auto_rank_method.startswith("cumvar_"):
            return int((np.cumsum(shares) < float(auto_rank_method[7:])).sum()) + 1
        return {
            "participation_sqrt": lambda: np.ceil(roots.sum() ** 2 / values.sum() - 1e-9),
            "participation": lambda: np.ceil(values.sum() ** 2 / np.sum(values**2) - 1e-9),
            "entropy": lambda: np.ceil(np.exp(entropy) - 1e-9),
            "stable_rank": lambda: np.ceil(np.sum(values**2) / values[0] ** 2 - 1e-9),
            "gavish_donoho": lambda: max(1, np.sum(roots > np.sqrt(omega) * np.sort(roots)[(n - 1) // 2])),
        }[auto_rank_method]()

    return _filtered(taus, init_mode, np.inf, lambda values: max(1, min(n, round(rank(values) * rank_scale))))


@_spectral
def resmerge(taus, rank_topk=1, src_beta_min=0.7, src_beta_max=1.0, head_ratio_budget=0.2):
    n = len(taus)  # the conformance tests merge weights that are neither of attention nor of an MLP
    split = [_triples(tau, rank_topk) for tau in taus]
    heads = [u @ np.diag(s) @ v.T for u, s, v in split]
    rest = [tau - head for tau, head in zip(taus, heads, strict=True)]
    norms = [np.linalg.norm(one) for one in rest]
    is_rounding = [norm <= 1e-9 * np.linalg.norm(tau) for norm, tau in zip(norms, taus, strict=True)]
    units = [0 * one if no else one / norm for one, norm, no in zip(rest, norms, is_rounding, strict=True)]
    c = np.linalg.norm(sum(units)) / n
    merged = sum(rest) / n
    if c > (1 + 1e-9) / np.sqrt(n):
        merged = c**src_beta_max * np.mean(norms) * sum(units) / np.linalg.norm(sum(units))
    unit_heads = [head / np.linalg.norm(head) for head in heads if head.any()]
    pairs = [max(0, np.sum(a * b)) for i, a in enumerate(unit_heads) for b in unit_heads[:i]]
    agreement = np.mean(pairs) if pairs else float(len(unit_heads))
    size = np.linalg.norm(sum(heads))
    if size > 1e-9 * max(np.linalg.norm(head) for head in heads):
        merged = merged + head_ratio_budget * agreement * np.linalg.norm(merged) * sum(heads) / size
    return merged


@_spectral
def psa(taus, energy=0.9):
    found = []
    for tau in taus:
        squares = np.linalg.svd(tau, compute_uv=False) ** 2
        k = int((np.cumsum(squares) < energy * squares.sum()).sum()) + 1
        found.append(_triples(tau, k if tau.any() else 0))
    u, v = (_polar(np.concatenate([one[side] for one in found], axis=1)) for side in (0, 2))
    merged, start = 0 * taus[0], 0
    for (_, s, _), tau in zip(found, taus, strict=True):
        part = slice(start, start + len(s))
        start += len(s)
        share = u[:, part] @ np.diag(s) @ v[:, part].T
        if share.any():
            merged = merged + np.linalg.norm(tau) / np.linalg.norm(share) * share
    return merged


@_spectral
def _knots(taus, density=1.0):
    u, _, _ = _triples(np.concatenate(taus, axis=1), sum(taus[0].shape) * len(taus))
    rows = [u.T @ tau for tau in taus]
    rows = [np.where(np.abs(row) >= kth_largest(np.abs(row).reshape(-1), density), row, 0) for row in rows]
    agree = [np.where(np.sign(row) == np.sign(sum(rows)), row, 0) for row in rows]
    return u @ (sum(agree) / np.maximum(sum(row != 0 for row in agree), 1))


def knots(base, agents, dtype=None, real=None, *, scale=0.5, **parameters):
    return _knots(base, agents, dtype, real, scale=scale, **parameters)


def gaps_of(positions: Iterable[int]) -> list[int]:
    """Ascending positions as distances to the one after the previous, in bytes; 255 adds as many and goes on."""
    gaps, after = [], 0
    for position in map(int, positions):
        gap = position - after
        gaps += [255] * (gap // 255) + [gap % 255]
        after = position + 1
    return gaps


def values_of(xors: np.ndarray, planes: int) -> list[int]:
    """The lowest bytes of all xors, then the next ones, up to so many; 0 for those that are longer, which follow."""
    rows = [int(xor).to_bytes(xors.itemsize, "little") for xor in xors]
    fits = [not any(row[planes:]) for row in rows]
    found = [row[plane] if fit else 0 for plane in range(planes) for row, fit in zip(rows, fits, strict=True)]
    return found + [byte for row, fit in zip(rows, fits, strict=True) if not fit for byte in row]
