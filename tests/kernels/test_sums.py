"""Sums over segments, and sums of floats as integers."""

import math

import numpy as np
import pytest

from ramerge.kernels.elementwise import Inputs
from ramerge.kernels.fixed import LIMBS, WIDE_LIMBS, decode, encode
from ramerge.kernels.formats import uniform
from ramerge.kernels.sums import products, sums, totals
from ramerge.methods.trim import every
from tests.checkpoints import floats


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F64"])
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
