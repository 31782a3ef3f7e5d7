"""Every pair of features gives the bytes of the reference."""

from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.features import (
    OTHER_PARAMETERS,
    RUN,
    STORED,
    WHAT,
    Case,
    as_delta,
    expected,
    new_case,
    outcome,
    outcome_in_memory,
    swept,
)
from tests.conformance.test_merge import same
from tests.tiers import some

pytestmark = pytest.mark.filterwarnings("ignore::ramerge.core.foundation.errors.ContinueNote")
by_method = pytest.mark.parametrize("method", some(OTHER_PARAMETERS, fast=("ram+",), full=("ties", "fisher")))


def pairs(features: Iterable[Callable[[Case], None]]) -> list[Any]:
    """Each pair of features, under their names."""
    found = (pair for pair in combinations(features, 2) if pair != (as_delta, swept))  # no sweep writes deltas
    return [pytest.param(*pair, id=" and ".join(each.__name__ for each in pair)) for pair in found]


@by_method
@pytest.mark.parametrize(("first", "second"), pairs((*WHAT, *STORED, *RUN)))
def test_bytes_of_each_pair(first: Any, second: Any, method: str, tmp_path: Path) -> None:
    case = new_case(tmp_path, method)
    same(outcome(case, first, second), expected(case))


@by_method
@pytest.mark.parametrize(("first", "second"), pairs(WHAT))
def test_bytes_of_each_pair_in_memory(first: Any, second: Any, method: str, tmp_path: Path) -> None:
    case = new_case(tmp_path, method)
    same(outcome_in_memory(case, first, second), expected(case))


@by_method
def test_bytes_of_all_together(method: str, tmp_path: Path) -> None:
    for name, left in {"delta": swept, "sweep": as_delta}.items():
        case = new_case(tmp_path / name, method)
        same(outcome(case, *({*WHAT, *STORED, *RUN} - {left})), expected(case))
