"""Sums over segments, and sums of floats as integers."""

import math

import numpy as np
import pytest

from ramerge.core.kernels.element_formats import uniform
from ramerge.core.kernels.elementwise import Inputs
from ramerge.core.kernels.fixed import CHUNK, LIMBS, WIDE_LIMBS, decode, encode
from ramerge.core.kernels.sums import products, squares, sums, totals
from ramerge.core.methods.moved import finite
from ramerge.core.methods.trim import every
from tests import reference
from tests.checkpoints import floats
from tests.kernels.test_ram import words
from tests.tiers import some


def sizes(dtype, stored):
    """Sums of squares of task vectors, and whether something is not finite."""
    agents = len(stored) - 1
    inputs = [words(tensor) for tensor in stored]
    elements = stored[0].bits.size
    found, flagged = sums(finite, uniform(dtype, agents + 1), inputs, Inputs(agents), squares(agents), CHUNK, elements)
    limbs = np.zeros((agents, WIDE_LIMBS), np.int64)
    for chunk in found:
        encode(chunk, limbs)
    return decode(limbs), flagged


@pytest.mark.parametrize("dtype", some(reference.BITS, fast=["BF16", "F32"]))
@pytest.mark.parametrize("size", [1, 1023, 1025, CHUNK + 77])
def test_sums_of_the_reference(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.normal(0, 0.02, size)
    base, *agents = (floats(values * scale, dtype) for scale in (1.0, 1 + rng.normal(0, 0.01, size), 1.5))
    found, flagged = sizes(dtype, [base, *agents])
    taus = reference.task_vectors(base, agents)
    assert not flagged
    assert found.tolist() == [reference.sum_of_squares([tau]) for tau in taus]
    exact = [math.fsum((tau.astype(np.float64) ** 2).tolist()) for tau in taus]
    assert found == pytest.approx(exact, rel=1e-14)


def test_numbers_in_two_formats_have_one_sum() -> None:
    values = np.random.default_rng(0).normal(0, 0.02, (3, 5000))
    stored = [floats(row, "BF16") for row in values]
    wide = [floats(tensor.numbers(np.float64), "F32") for tensor in stored]
    assert sizes("BF16", stored)[0].tolist() == sizes("F32", wide)[0].tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_non_finite_values_add_nothing(bad: float, place: int) -> None:
    values = np.zeros((2, 100))
    values[1, 1], values[place, 7] = 3.0, bad
    found, flagged = sizes("F32", [floats(row, "F32") for row in values])
    assert flagged and found.tolist() == [9.0]


@pytest.mark.parametrize(("segment", "lanes"), [(2, 16), (7, 16), (64, 16), (896, 32), (4096, 256), (CHUNK, 1024)])
@pytest.mark.parametrize("dtype", some(["BF16", "F32"], fast=["BF16"]))
def test_every_segment_has_one_order(dtype: str, segment: int, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramerge.core.kernels.sums._TERMS", 5)  # so that there are two groups of terms
    size = 2 * segment + segment // 2 // 2 * 2  # the last one is shorter
    stored = [floats(row, dtype) for row in np.random.default_rng(0).normal(size=(4, size))]
    loop, terms = uniform(dtype, 4), (*products(3), *totals(3))
    found, _ = sums(every, loop, [words(tensor) for tensor in stored], Inputs(3), terms, segment, size)
    taus = [*[tau.astype(np.float64) for tau in reference.task_vectors(stored[0], stored[1:])], np.ones(size)]
    wanted = [
        [_folded(taus[i][begin : begin + segment] * taus[j][begin : begin + segment], lanes) for i, j in terms]
        for begin in range(0, size, segment)
    ]
    assert found.tolist() == wanted


def _folded(values, lanes):
    total = np.zeros(lanes)
    for begin in range(0, values.size, lanes):
        row = values[begin : begin + lanes]
        total[: row.size] += row
    while total.size > 1:
        total = total[: total.size // 2] + total[total.size // 2 :]
    return total[0]


@pytest.mark.parametrize("dtype", some(["BF16", "F32", "F64"], fast=["BF16"]))
@pytest.mark.parametrize("base", [True, False])
def test_sums_of_every_segment(dtype: str, base: bool) -> None:
    rng = np.random.default_rng(0)
    size, segment = 5_000, 2_048
    stored = [floats(rng.normal(size=size), dtype) for _ in range(3)]
    loop = uniform(dtype, 3)
    words = [tensor.bits.view(loop.out.word) for tensor in stored]
    numbers = [tensor.numbers(loop.out.real) for tensor in stored]
    agents = [number - numbers[0] for number in numbers[1:]] if base else numbers
    which = Inputs(len(agents), base=base)
    terms = (*products(which.agents), *totals(which.agents))
    found, flagged = sums(every, loop, words, which, terms, segment, size)
    assert not flagged
    ones = [*(agent.astype(np.float64) for agent in agents), np.ones(size)]
    for index, start in enumerate(range(0, size, segment)):
        for (i, j), one in zip(terms, found[index], strict=True):
            part = slice(start, start + segment)
            assert one == pytest.approx(math.fsum(ones[i][part] * ones[j][part]), rel=1e-12, abs=1e-12)


def test_rows_of_odd_length() -> None:
    rows = np.arange(21, dtype=np.float32).reshape(3, 7)
    words = [rows.reshape(-1).view(np.uint32)]
    found, _ = sums(every, uniform("F32", 1), words, Inputs(1, base=False), products(1), 7, 21)
    assert found[:, 0].tolist() == (rows.astype(np.float64) ** 2).sum(1).tolist()


def test_what_is_not_finite_is_told() -> None:
    words = [np.array([1, np.nan, 2], np.float32).view(np.uint32)]
    found, flagged = sums(every, uniform("F32", 1), words, Inputs(1, base=False), products(1), 3, 3)
    assert flagged and np.isnan(found).all()


@pytest.mark.parametrize(("limbs", "largest"), [(LIMBS, 2.0**120), (WIDE_LIMBS, 2.0**300)])
def test_integers_hold_what_they_promise(limbs: int, largest: float) -> None:
    values = [largest, -largest / 3, 1e-90, -(2.0**-300), 3.5]
    total = np.zeros((1, limbs), np.int64)
    for value in values:
        encode(np.array([value]), total)
    assert decode(total)[0] == math.fsum(values)
