"""The figures of coding: worked examples, and the definitions once more by hand on random tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge_eval.tasks.coding.scores import METRICS, Table, best, figures, nothing

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

YES, NO = True, False


def test_a_worked_example() -> None:
    truth = [[YES, YES], [YES, NO], [YES, YES]]
    generated = [[YES, NO, YES], [YES, YES, YES], [YES, NO, NO]]
    assert figures(truth, generated, (3, 3)) == {
        "acc": (2, 3),
        "accumulated": (5, 6),
        "ut": (1, 3),
        "ut_accumulated": (3, 6),
        "bon_acc": (0.0, 1.0),
        "bon_accumulated": (1.0, 2.0),
    }
    assert figures(truth, generated, (1, 3))["bon_acc"] == (1.0, 1.0)


def test_without_a_right_program_unit_tests_have_no_weight() -> None:
    scored = figures([[NO]], [[YES, NO]], (1, 2))
    assert (scored["ut"], scored["ut_accumulated"]) == ((0, 0), (0, 0))
    assert scored["bon_acc"] == (0.0, 1.0)


def test_without_unit_tests_only_the_programs_have_weight() -> None:
    scored = figures([[YES], [NO]], [[], []], (2, 0))
    assert (scored["acc"], scored["accumulated"]) == ((1, 2), (1, 2))
    assert all(scored[name][1] == 0 for name in METRICS[2:])


def test_the_first_of_equal_programs_is_taken_from_the_first_n_by_the_first_m_tests() -> None:
    generated = [[NO, NO, YES], [YES, NO, NO], [NO, YES, NO], [YES, YES, YES]]
    assert best(generated, (4, 3)) == 3
    assert best(generated, (3, 3)) == 0
    assert best(generated, (3, 2)) == 1


def test_a_failed_problem_has_its_whole_weight() -> None:
    assert nothing(4, 8, 2) == {
        "acc": (0.0, 4.0),
        "accumulated": (0.0, 32.0),
        "ut": (0.0, 2.0),
        "ut_accumulated": (0.0, 8.0),
        "bon_acc": (0.0, 1.0),
        "bon_accumulated": (0.0, 8.0),
    }
    assert [nothing(4, 8, 0)[name][1] for name in METRICS] == [4, 32, 0, 0, 0, 0]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, Table]:
    programs, truth, generated = (draw(st.integers(low, 5)) for low in (1, 1, 0))
    return tuple(  # type: ignore[return-value]
        draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=programs, max_size=programs))
        for n in (truth, generated)
    )


@given(tables())
def test_figures_are_their_definitions(both: tuple[Table, Table]) -> None:
    truth, generated = both
    asked = len(generated[0])
    scored = figures(truth, generated, (len(truth), asked))
    correct = [i for i in range(len(truth)) if False not in truth[i]]
    assert scored["acc"] == (len(correct), len(truth))
    assert scored["accumulated"][0] == sum(passed for row in truth for passed in row)
    right = [j for j in range(asked) if correct and all(generated[i][j] for i in correct)]
    assert scored["ut"] == (len(right), asked if correct else 0)
    assert scored["ut_accumulated"] == (
        sum(generated[i][j] for i in correct for j in range(asked)),
        len(correct) * asked,
    )
    whole = nothing(len(truth), len(truth[0]), asked)
    assert all(0 <= numerator <= denominator <= whole[name][1] for name, (numerator, denominator) in scored.items())
