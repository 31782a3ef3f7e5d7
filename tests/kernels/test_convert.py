import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ramerge.core.kernels.convert import convert, count_non_finite
from ramerge.core.kernels.element_formats import FORMATS
from tests.reference import BITS, NUMBERS, encode


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_16_bit_number_round_trips(dtype: str) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    wide = np.empty(65536, np.uint32)
    convert(dtype, bits, "F32", wide, 65536)
    with np.errstate(invalid="ignore"):
        expected = bits.view(NUMBERS[dtype]).astype(np.float32)
    ordinary = ~np.isnan(expected)
    assert np.array_equal(wide[ordinary], expected.view(np.uint32)[ordinary])
    assert np.isnan(wide.view(np.float32)[~ordinary]).all()
    back = np.empty(65536, np.uint16)
    convert("F32", wide, dtype, back, 65536)
    assert np.array_equal(back, bits)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_narrowing_rounds_to_nearest_even(dtype: str) -> None:
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 2**32, 1 << 20, dtype=np.uint32)
    # exact ties, and their neighbors, between all pairs of adjacent numbers
    largest = 0x7F00 if dtype == "BF16" else 0x7C00
    halves = np.arange(largest, dtype=np.uint16).view(NUMBERS[dtype]).astype(np.float64)
    middle = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    middle = middle[np.isfinite(middle)]
    ties = np.concatenate([middle, np.nextafter(middle, np.float32(9)), -middle]).astype(np.float32).view(np.uint32)
    values = np.concatenate([anything, ties])
    numbers = values.view(np.float32)
    out = np.empty(values.size, np.uint16)
    convert("F32", values, dtype, out, values.size)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = numbers.astype(NUMBERS[dtype])
    ordinary = ~np.isnan(numbers)
    assert np.array_equal(out[ordinary], expected.view(np.uint16)[ordinary])
    assert np.isnan(out[~ordinary].view(NUMBERS[dtype]).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@given(data=arrays(np.float64, 64, elements=st.floats(allow_nan=False, width=64)))
def test_float64_is_rounded_once(dtype: str, data: np.ndarray) -> None:
    # values that a rounding to float32 on the way would turn into a tie
    sixteen = data[:32].astype(np.float32).astype(NUMBERS[dtype] if dtype != "F32" else np.float32).astype(np.float64)
    near_ties = np.concatenate([data[32:], sixteen * (1 + 2.0**-9), sixteen * (1 + 2.0**-9 + 2.0**-40)])
    near_ties = near_ties[np.isfinite(near_ties)]
    out = np.empty(near_ties.size, BITS[dtype])
    flagged = convert("F64", near_ties.view(np.uint64), dtype, out, near_ties.size)
    expected = encode(near_ties, dtype)
    assert np.array_equal(out, expected.bits)
    assert flagged == bool(np.isinf(expected.numbers(np.float64)).any())


@pytest.mark.parametrize("dtype", list(BITS))
def test_non_finite_values_are_counted(dtype: str) -> None:
    values = np.array([1.0, np.nan, -np.inf, 0.0, np.inf, 5.0], np.float64).astype(NUMBERS[dtype])
    words = values.view(FORMATS[dtype].word)
    assert count_non_finite(dtype, words, 6) == 3
    assert count_non_finite(dtype, words, 2) == 1


def test_bfloat16_nan_keeps_its_payload() -> None:
    values = np.array([0x7FC00001, 0x7F800001, 0xFFFFFFFF, 0x7FA50000], np.uint32)
    out = np.empty(4, np.uint16)
    assert convert("F32", values, "BF16", out, 4)
    assert out.tolist() == [0x7FC0, 0x7FC0, 0xFFFF, 0x7FA5]
    assert np.isnan(out.view(ml_dtypes.bfloat16).astype(np.float32)).all()


def test_memory_behind_the_last_element_is_ignored() -> None:
    one, out = np.array([0x3F80, 0xFFFF], np.uint16), np.zeros(2, np.uint32)
    assert not convert("BF16", one, "F32", out, 1)
    assert out.view(np.float32).tolist() == [1.0, 0.0]
