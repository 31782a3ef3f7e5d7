"""A short cut of the mutants of results; a longer one is a command."""

from itertools import islice

import pytest

pytest.importorskip("openai", reason="needs the extra eval")

from tests.fuzz.results import cases, check


@pytest.mark.parametrize("seed", [1, 2])
def test_mutants_are_read_or_refused(seed: int) -> None:
    for case in islice(cases(seed), 40):
        check(case)
