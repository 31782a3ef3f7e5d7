"""A short cut through `make fuzz`: every kind, some seeds, in this process."""

import json
from itertools import islice

import pytest

from tests.fuzz import KINDS, kind
from tests.fuzz.__main__ import KEPT

CASES = 40
NEEDS = {"records": "altair", "results": "ramerge_eval"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.needs(NEEDS[name])] if name in NEEDS else []) for name in KINDS]
)
def test_mutated_inputs_are_taken_or_refused(name: str) -> None:
    module = kind(name)
    for seed in (*json.loads(KEPT.read_text()).get(name, []), 1):
        for case in islice(module.cases(seed), CASES):
            module.check(case)
