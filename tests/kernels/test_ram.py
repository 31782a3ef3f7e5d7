"""The compiled loops against the reference, bit for bit."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramerge.core.kernels import ram
from ramerge.core.kernels.element_formats import FORMATS, loop_of, uniform
from ramerge.core.kernels.rounding import survey
from tests import reference
from tests.checkpoints import EPSILON, bit_patterns, floats
from tests.reference import BITS, Stored
from tests.tiers import at_most, some


def words(tensor: Stored) -> np.ndarray:
    size = tensor.bits.size
    padded = np.zeros(size + size % 2, tensor.bits.dtype)
    padded[:size] = tensor.bits.reshape(-1)
    return padded.view(FORMATS[tensor.dtype].word)


# Counters are for two agents each and the same in all formats. Each pair takes four kernels of its own.
FEW_NUMBERS = {"BF16": (3,), "F32": (2,)}
NUMBERS = {"BF16": (1, 2, 3, 5), "F16": (2, 3), "F32": (2,), "F64": (2,)}
ALL_NUMBERS = dict.fromkeys(BITS, (1, 2, 3, 4, 5, 8))


@st.composite
def inputs(draw: st.DrawFn, dtype: str, numbers: Sequence[int]) -> list[Stored]:
    size = draw(st.sampled_from([1, 2, 31, 64, 1001]))
    base = Stored(dtype, draw(bit_patterns(dtype, size)))
    agents = []
    for _ in range(draw(st.sampled_from(numbers))):
        other = draw(bit_patterns(dtype, size))
        keep = np.random.default_rng(draw(st.integers(0, 99))).random(size) < draw(st.sampled_from([0.0, 0.5, 0.95]))
        agents.append(Stored(dtype, np.where(keep, base.bits, other)))
    return [base, *agents]


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        *(pytest.param(dtype, FEW_NUMBERS, id=f"{dtype}-few") for dtype in FEW_NUMBERS),
        *(pytest.param(dtype, NUMBERS, id=f"{dtype}-some", marks=pytest.mark.full) for dtype in BITS),
        *(pytest.param(dtype, ALL_NUMBERS, id=f"{dtype}-all", marks=pytest.mark.thorough) for dtype in BITS),
    ],
)
@settings(max_examples=at_most(40), deadline=None)
@given(data=st.data())
def test_counts_and_merges_as_the_reference(
    dtype: str, numbers: Mapping[str, Sequence[int]], data: st.DataObject
) -> None:
    base, *agents = data.draw(inputs(dtype, numbers[dtype]))
    epsilon = data.draw(st.sampled_from([EPSILON, 0.0, 1e-3]))
    scales = [1.0 + 0.1 * t for t in range(len(agents))]
    expected = reference.count(base, agents, epsilon)

    stack = [words(tensor) for tensor in (base, *agents)]
    counts = np.zeros((2, len(agents)), np.int64)
    assert not ram.count(uniform(dtype, len(stack)), stack, (epsilon,), counts)
    assert np.array_equal(counts, expected)

    out, again = np.empty_like(stack[0]), np.zeros_like(counts)
    assert not ram.merge(uniform(dtype, len(stack)), stack, (epsilon,), None, out, again)
    plain = reference.merge(base, agents, [1.0] * len(agents), epsilon, dtype)
    assert np.array_equal(out.view(BITS[dtype])[: base.bits.size], plain.bits)
    assert np.array_equal(again, expected)

    assert not ram.merge(uniform(dtype, len(stack)), stack, (epsilon,), scales, out)
    rescaled = reference.merge(base, agents, scales, epsilon, dtype)
    assert np.array_equal(out.view(BITS[dtype])[: base.bits.size], rescaled.bits)

    assert not ram.merge(uniform(dtype, len(stack)), stack, (epsilon,), scales, out, allow_nonfinite=True)
    assert np.array_equal(out.view(BITS[dtype])[: base.bits.size], rescaled.bits)


@pytest.mark.parametrize("shared", [rule for rule in ram.COMBINATIONS if rule != "mean"])
@pytest.mark.parametrize("dtype", some(["BF16", "F64"], fast=["BF16"]))
@settings(max_examples=at_most(40), deadline=None)
@given(data=st.data())
def test_other_rules_for_shared_elements(shared: str, dtype: str, data: st.DataObject) -> None:
    base, *agents = data.draw(inputs(dtype, (3,) if dtype == "BF16" else (2,)))
    stack, scales = [words(tensor) for tensor in (base, *agents)], [1.1, 1.2, 1.3][: len(agents)]
    out, counts = np.empty_like(stack[0]), np.zeros((2, len(agents)), np.int64)
    wrong = ram.merge(uniform(dtype, len(stack)), stack, (EPSILON,), scales, out, counts, combination=shared)
    wanted = reference.merge(base, agents, scales, EPSILON, dtype, shared)
    assert wrong == (not np.isfinite(wanted.numbers(np.float64)).all())
    assert np.array_equal(counts, reference.count(base, agents, EPSILON))
    if not wrong:
        assert np.array_equal(out.view(BITS[dtype])[: base.bits.size], wanted.bits)


@settings(max_examples=at_most(40), deadline=None)
@given(data=st.data())
def test_agents_may_have_own_thresholds(data: st.DataObject) -> None:
    base, *agents = data.draw(inputs("BF16", (3,)))
    epsilons = [data.draw(st.sampled_from([EPSILON, 0.0, 1e-3, 1.0])) for _ in agents]
    stack, scales = [words(tensor) for tensor in (base, *agents)], [1.1, 1.2, 1.3]
    out, counts, expected = np.empty_like(stack[0]), np.zeros((2, 3), np.int64), reference.count(base, agents, epsilons)
    assert not ram.count(uniform("BF16", 4), stack, epsilons, counts)
    assert np.array_equal(counts, expected)
    assert not ram.merge(uniform("BF16", 4), stack, epsilons, scales, out, counts)
    assert np.array_equal(counts, 2 * expected)
    wanted = reference.merge(base, agents, scales, epsilons, "BF16")
    assert np.array_equal(out.view(np.uint16)[: base.bits.size], wanted.bits)


@pytest.mark.parametrize("shared", list(ram.COMBINATIONS))
@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_reach_every_result(shared: str, place: int, bad: float) -> None:
    values = [np.zeros(8), *(np.full(8, step) for step in (1.0, 2.0, -1.0))]
    values[place][5] = bad
    stack = [words(floats(array)) for array in values]
    out, counts = np.empty_like(stack[0]), np.zeros((2, 3), np.int64)
    assert ram.merge(uniform("BF16", 4), stack, (EPSILON,), [1.0] * 3, out, counts, combination=shared)


@pytest.mark.parametrize(
    ("moved", "wanted"),
    [
        ((1.0, 3.0, 2.0), {"mean": 2.0, "agree_max": 3.0, "sum": 6.0, "rms": 6 / 3**0.5}),
        ((-1.0, -3.0, 0.0), {"mean": -2.0, "agree_max": -3.0, "sum": -4.0, "rms": -4 / 2**0.5}),
        ((1.0, -3.0, 0.0), {"mean": -1.0, "agree_max": -1.0, "sum": -2.0, "rms": -2 / 2**0.5}),
        ((0.0, -3.0, 0.0), dict.fromkeys(ram.COMBINATIONS, -3.0)),
    ],
)
def test_known_answers_of_every_rule(moved: Sequence[float], wanted: Mapping[str, float]) -> None:
    stack = [words(floats([value])) for value in (0.5, *(0.5 + step for step in moved))]
    for shared, tau in wanted.items():
        out, counts = np.empty_like(stack[0]), np.zeros((2, 3), np.int64)
        ram.merge(uniform("BF16", 4), stack, (EPSILON,), [1.0] * 3, out, counts, combination=shared)
        found = Stored("BF16", out.view(np.uint16)[:1]).numbers(np.float64)[0]
        assert found == (pytest.approx(0.5 + tau, rel=2**-8) if shared == "rms" else 0.5 + tau), shared


@pytest.mark.parametrize(
    ("dtypes", "output"),
    [(("BF16", "F32", "F32"), "BF16"), (("F32", "BF16", "BF16"), "F32"), (("F32", "F32", "F32"), "F16")],
)
def test_formats_are_read_and_written_as_they_are(dtypes: tuple[str, ...], output: str) -> None:
    rng, size = np.random.default_rng(0), 2 * (1 << 14) + 77  # counters are flushed on the way
    values = rng.normal(0, 0.02, size)
    moved = [np.where(rng.random(size) < 0.4, values * (1 + rng.normal(0, 2.0**-8, size)), values) for _ in dtypes]
    base, *agents = [floats(array, dtype) for array, dtype in zip((values, *moved[1:]), dtypes, strict=True)]
    loop = loop_of(dtypes, output)
    assert loop is not None
    inputs = loop.arrays([words(tensor) for tensor in (base, *agents)], size)

    counts, rounding = np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64)
    assert not ram.count(loop, inputs, (EPSILON,), counts)
    assert np.array_equal(counts, reference.count(base, agents, EPSILON))

    out = np.empty(size, BITS[output])
    rounding_of = rounding if output != "F32" else None
    assert not ram.merge(loop, inputs, (EPSILON,), [1.1, 1.2], out, None, rounding=rounding_of)
    assert np.array_equal(out, reference.merge(base, agents, [1.1, 1.2], EPSILON, output).bits)
    if output != "F32":
        expected = np.zeros_like(rounding)
        exact = reference.merge(base, agents, [1.1, 1.2], EPSILON, "F32").numbers(np.float32)
        wide = [_wide(tensor) for tensor in (base, *agents)]
        survey(uniform("F32", 3), wide, exact.view(np.uint32), output, out, (EPSILON,), expected)
        assert np.array_equal(rounding, expected) and rounding[1].any()

    for place in range(3):
        bad = [array.copy() for array in inputs]
        bad[place].view(BITS[dtypes[place]])[size - 1] = floats([np.nan], dtypes[place]).bits[0]
        assert ram.count(loop, bad, (EPSILON,), counts)
        assert ram.merge(loop, bad, (EPSILON,), None, out)


def _wide(tensor: Stored) -> np.ndarray:
    return tensor.numbers(np.float32).view(np.uint32)


def test_counters_do_not_overflow_on_long_arrays() -> None:
    size = 3 * (1 << 16) + 5
    zeros, ones = words(floats(np.zeros(size))), words(floats(np.ones(size)))
    counts = np.zeros((2, 3), np.int64)
    ram.count(uniform("BF16", 4), [zeros, ones, ones, zeros], (EPSILON,), counts)
    assert counts.tolist() == [[size, size, 0], [0, 0, 0]]
    ram.count(uniform("BF16", 4), [zeros, zeros, zeros, ones], (EPSILON,), counts)
    assert counts.tolist() == [[size, size, size], [0, 0, size]]


@pytest.mark.full
@pytest.mark.parametrize(
    "n", [1, 2, 3, 5, 16, *[pytest.param(n, marks=pytest.mark.thorough) for n in (4, *range(6, 16))]]
)
def test_up_to_sixteen_agents(n: int) -> None:
    rng = np.random.default_rng(n)
    base = floats(rng.normal(0, 0.02, 501))
    agents = [Stored("BF16", np.where(rng.random(501) < 0.2, base.bits + 1, base.bits)) for _ in range(n)]
    counts = np.zeros((2, n), np.int64)
    out = np.empty_like(words(base))
    stack = [words(t) for t in (base, *agents)]
    ram.merge(uniform("BF16", 1 + n), stack, (EPSILON,), None, out, counts)
    assert np.array_equal(counts, reference.count(base, agents, EPSILON))
    assert np.array_equal(out.view(np.uint16)[:501], reference.merge(base, agents, [1.0] * n, EPSILON, "BF16").bits)


@pytest.mark.parametrize("dtype", some(BITS, fast=["BF16", "F32"]))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_non_finite_value_anywhere_is_noticed(dtype: str, bad: float, place: int) -> None:
    values = [np.zeros(100) for _ in range(3)]
    values[place][57] = bad
    stack = [words(floats(array, dtype)) for array in values]
    counts = np.zeros((2, 2), np.int64)
    assert ram.count(uniform(dtype, len(stack)), stack, (EPSILON,), counts)
    assert ram.merge(uniform(dtype, len(stack)), stack, (EPSILON,), None, np.empty_like(stack[0]), counts)
    assert ram.merge(uniform(dtype, len(stack)), stack, (EPSILON,), [1.0, 1.0], np.empty_like(stack[0]))
    loop, out = uniform(dtype, len(stack)), np.empty_like(stack[0])
    assert ram.merge(loop, stack, (EPSILON,), [1.0, 1.0], out, allow_nonfinite=True)


def test_infinity_in_base_and_agents_alike_is_noticed() -> None:
    stack = [words(floats(np.full(8, np.inf)))] * 3
    assert ram.merge(
        uniform("BF16", len(stack)), stack, (EPSILON,), None, np.empty_like(stack[0]), np.zeros((2, 2), np.int64)
    )


@pytest.mark.parametrize("dtype", list(BITS))
def test_a_result_that_overflows_is_noticed(dtype: str) -> None:
    largest = reference.LARGEST[dtype]
    stack = [words(floats(np.full(4, value), dtype)) for value in (largest * 0.5, largest)]
    out = np.empty_like(stack[0])
    assert not ram.merge(uniform(dtype, len(stack)), stack, (EPSILON,), [1.0], out)
    assert ram.merge(uniform(dtype, len(stack)), stack, (EPSILON,), [2.0], out)


def test_nonfinite_nan_does_not_count_as_moved() -> None:
    base = floats([1.0, 1.0, np.nan, 1.0])
    agent = floats([np.nan, 2.0, 3.0, np.inf])
    out, counts = np.empty_like(words(base)), np.zeros((2, 1), np.int64)
    ram.merge(uniform("BF16", 2), [words(base), words(agent)], (EPSILON,), None, out, counts, allow_nonfinite=True)
    assert out.view(np.uint16).tolist() == floats([1.0, 2.0, np.nan, np.inf]).bits.tolist()
    assert counts.tolist() == [[2], [2]]
