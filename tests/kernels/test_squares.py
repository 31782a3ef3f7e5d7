"""Sums of squares: one order, whatever the format, and exact where they meet."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.kernels import anatomy, fixed, native
from ramerge.kernels.formats import uniform
from ramerge.kernels.squares import squares
from tests import reference
from tests.checkpoints import floats
from tests.kernels.test_ram import words


@pytest.mark.parametrize("dtype", list(reference.BITS))
@pytest.mark.parametrize("size", [1, 1023, 1025, fixed.CHUNK + 77])
def test_sums_of_the_reference(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.normal(0, 0.02, size)
    base, *agents = (floats(values * scale, dtype) for scale in (1.0, 1 + rng.normal(0, 0.01, size), 1.5))
    limbs = np.zeros((2, fixed.LIMBS), np.int64)
    assert not squares(uniform(dtype, 3), [words(tensor) for tensor in (base, *agents)], limbs)
    taus = reference.task_vectors(base, agents)
    assert fixed.decode(limbs).tolist() == [reference.sum_of_squares([tau]) for tau in taus]
    exact = [math.fsum((tau.astype(np.float64) ** 2).tolist()) for tau in taus]
    assert fixed.decode(limbs) == pytest.approx(exact, rel=1e-14)


def test_numbers_in_two_formats_have_one_sum() -> None:
    values = np.random.default_rng(0).normal(0, 0.02, (3, 5000))
    stored = [floats(row, "BF16") for row in values]
    wide = [floats(tensor.numbers(np.float64), "F32") for tensor in stored]
    sums = np.zeros((2, 2, fixed.LIMBS), np.int64)
    squares(uniform("BF16", 3), [words(tensor) for tensor in stored], sums[0])
    squares(uniform("F32", 3), [words(tensor) for tensor in wide], sums[1])
    assert np.array_equal(sums[0], sums[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_not_finite_is_noticed_and_adds_nothing(bad: float, place: int) -> None:
    values = np.zeros((2, 100))
    values[1, 1], values[place, 7] = 3.0, bad
    limbs = np.zeros((1, fixed.LIMBS), np.int64)
    assert squares(uniform("F32", 2), [words(floats(row, "F32")) for row in values], limbs)
    assert fixed.decode(limbs).tolist() == [9.0]


_ENTER = """
def enter_all(values, limbs):
    for i in range(values.size):
        enter(values[i], limbs, np.int64(0))
    return np.uint32(0)
"""


@given(st.lists(st.floats(width=64) | st.floats(1e-100, 1e35) | st.floats(-1e-80, 1e-90), max_size=20))
def test_compiled_code_enters_numbers_as_python_does(values: list[float]) -> None:
    kernel = native.load("enter_all", _ENTER, ("f64[]", "i64[]"), "u32", {"enter": fixed.enter})
    array = np.array(values, np.float64)
    found, wanted = np.zeros(fixed.LIMBS, np.int64), np.zeros((1, fixed.LIMBS), np.int64)
    kernel(array, found)
    for value in values:
        fixed.encode(np.array([value]), wanted)
    assert found.tolist() == wanted[0].tolist()


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e17, 1e25])
def test_figures_of_an_analysis_do_not_leave_float32(size: float) -> None:
    values = np.random.default_rng(0).normal(0, size, (3, 700))
    values[0] = 0
    stack = [words(floats(row, "F32")) for row in values]
    layout = anatomy.Layout(2)
    counts, found = np.zeros(anatomy.size_of(layout.counts), np.int64), anatomy.tables(2)
    sums, beyond = np.zeros(anatomy.size_of(layout.sums)), np.zeros((1, 2, 2), np.int64)
    loop = uniform("F32", 3)
    assert not anatomy.survey(loop, stack, stack[1], (0.0,), (0.0,), "F32", found, beyond, counts, sums)
    anatomy.fold(found, counts)
    taus = values[1:].astype(np.float32).astype(np.float64)
    at = anatomy.slices(layout.sums)
    assert sums[at["dots"]].reshape(2, 2) == pytest.approx(taus @ taus.T, rel=1e-5)
    assert sums[at["total"]] == pytest.approx(np.abs(taus).sum(1), rel=1e-6)
    assert beyond.tolist() == [[[700, 700], [0, 0]]]
    assert counts[anatomy.slices(layout.counts)["masks"]].tolist()[1:] == [0, 0, 700]
