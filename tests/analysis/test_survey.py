"""What an analysis counts of many elements at once."""

from itertools import pairwise

import numpy as np
import pytest

from ramerge.analysis import survey as statistics
from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import Words, uniform
from tests.checkpoints import floats
from tests.kernels.test_ram import words

ELEMENTS = 100_002  # several segments, the last one not full, and a last chunk of one part of a word
LAYOUT = statistics.TallyLayout(3)
EPSILONS = (1e-2, 1e-5)


def models(share: float) -> list[Words]:
    """bfloat16 words of a base, three agents that change so large a share of it, and a merge."""
    random = np.random.default_rng(7)
    base = (random.standard_normal(ELEMENTS).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    agents = [base + (random.random(ELEMENTS) < share) * random.integers(-3, 4, ELEMENTS) for _ in range(3)]
    return [base, *[agent.astype(np.uint16) for agent in agents], agents[0].astype(np.uint16)]


def counted(words: list[Words], cuts: list[int]) -> tuple[bool, list[np.ndarray]]:
    """Whether something is not finite, and everything that is counted of stretches, one after the other."""
    counts, found = np.zeros(statistics.size_of(LAYOUT.counts), np.int64), statistics.tables(3)
    sums, beyond = np.zeros(statistics.size_of(LAYOUT.sums)), np.zeros((len(EPSILONS), 2, 3), np.int64)
    flagged, loop = False, uniform("BF16", 4)
    for begin, end in pairwise(cuts):
        *inputs, merged = (each[begin:end].view(np.uint32) for each in words)
        flagged |= statistics.survey(loop, inputs, merged, (1e-5,), EPSILONS, "BF16", found, beyond, counts, sums)
    statistics.fold(found, counts, 3)
    at = statistics.slices(LAYOUT.counts)
    for name in ("masks", "exponents", "ulps"):
        table = counts[at[name]].reshape(1 if name == "masks" else 3, -1)
        table[:, 0] += ELEMENTS - table.sum(1)  # elements that no agent changed may be missing
    return flagged, [counts, beyond, sums]


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 1])
def test_many_elements_are_counted_as_few_are(share: float) -> None:
    words = models(share)
    (_, whole), (_, cut) = counted(words, [0, ELEMENTS]), counted(words, [*range(0, ELEMENTS, 62), ELEMENTS])
    assert (whole[0] == cut[0]).all() and (whole[1] == cut[1]).all()
    np.testing.assert_allclose(whole[2], cut[2], rtol=1e-4, atol=1e-3)
    base, *agents = ((each.astype(np.uint32) << 16).view(np.float32) for each in words[:4])
    moved = [int((np.abs(agent - base) > np.float32(1e-5)).sum()) for agent in agents]
    sets = whole[0][statistics.slices(LAYOUT.counts)["masks"]]
    assert [int(sets[[mask for mask in range(8) if mask >> t & 1]].sum()) for t in range(3)] == moved


@pytest.mark.full  # compiles everything again
def test_processors_without_vector_compression_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    words = models(0.1)
    _, wanted = counted(words, [0, ELEMENTS])
    monkeypatch.setattr(native, "can_expand", lambda: False)
    monkeypatch.setattr(
        statistics, "_compile_survey", statistics._compile_survey.__wrapped__
    )  # not what is kept for this processor
    _, found = counted(words, [0, ELEMENTS])
    assert all((one == other).all() for one, other in zip(found, wanted, strict=True))


def test_sums_are_those_of_what_is_finite() -> None:
    words = models(0.3)
    finite = counted(words, [0, ELEMENTS])[1][2]
    words[1][70_000] = 0x7FC0
    words[2][70_001] = 0xFF80
    flagged, (_, _, sums) = counted(words, [0, ELEMENTS])
    assert flagged
    np.testing.assert_allclose(sums, finite, rtol=1e-3, atol=1)


@pytest.mark.parametrize("place", [0, 40_000, ELEMENTS - 1])
@pytest.mark.parametrize("model", [0, 2])
def test_unmoved_non_finite_values_are_counted(place: int, model: int) -> None:
    words = models(0.01)
    assert not counted(words, [0, ELEMENTS])[0]
    for each in words if model == 0 else words[model : model + 1]:
        each[place] = 0x7F80
    assert counted(words, [0, ELEMENTS])[0]


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e17, 1e25])
def test_figures_of_an_analysis_do_not_leave_float32(size: float) -> None:
    values = np.random.default_rng(0).normal(0, size, (3, 700))
    values[0] = 0
    stack = [words(floats(row, "F32")) for row in values]
    layout = statistics.TallyLayout(2)
    counts, found = np.zeros(statistics.size_of(layout.counts), np.int64), statistics.tables(2)
    sums, beyond = np.zeros(statistics.size_of(layout.sums)), np.zeros((1, 2, 2), np.int64)
    loop = uniform("F32", 3)
    assert not statistics.survey(loop, stack, stack[1], (0.0,), (0.0,), "F32", found, beyond, counts, sums)
    statistics.fold(found, counts, 2)
    taus = values[1:].astype(np.float32).astype(np.float64)
    at = statistics.slices(layout.sums)
    assert sums[at["dots"]].reshape(2, 2) == pytest.approx(taus @ taus.T, rel=1e-5)
    assert sums[at["total"]] == pytest.approx(np.abs(taus).sum(1), rel=1e-6)
    assert beyond.tolist() == [[[700, 700], [0, 0]]]
    assert counts[statistics.slices(layout.counts)["masks"]].tolist()[1:] == [0, 0, 700]
