"""A short cut of `make pairs`: some draws of a fixed seed, and what is said of draws that fail or are refused."""

from pathlib import Path

import pytest

import ramerge
from tests.pairs.draws import Draw, Table, compared, draws

pytestmark = pytest.mark.full  # kernels of many dtypes and methods


def refused() -> dict[str, object]:
    raise ramerge.PlanError(["base: cannot be results"])


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_some_draws_hold(first: int, tmp_path: Path) -> None:
    found = list(draws(range(first, first + 5), tmp_path))
    assert [draw.described for draw in found if draw.outcome == "failed"] == []
    assert len(found) == 5 and any(draw.outcome == "held" for draw in found)


def test_sides_that_differ_or_refuse_alone_fail() -> None:
    def one() -> dict[str, object]:
        return {"w": 1}

    def crash() -> dict[str, object]:
        raise KeyError("w")

    assert compared({"a": one, "b": one}) == ("held", "")
    assert compared({"a": refused, "b": refused})[0] == "refused"
    assert compared({"a": one, "b": lambda: {"w": 2}}) == ("failed", "a and b differ in w: 1 and 2")
    assert compared({"a": one, "b": refused})[0] == "failed"
    assert compared({"a": refused, "b": crash})[0] == "failed"


def test_the_table_tells_failures_and_vacuous_relations() -> None:
    table = Table()
    for seed in range(20):
        table.add(Draw(seed, "any shards", "ram", ("soup",), "refused" if seed < 10 else "held"))
    assert table.problems == [
        "any shards: 10 of 20 draws were refused, which shows little",
        "soup: 10 of 20 draws were refused, which shows little",
    ]
    table.add(Draw(20, "any shards", "ram", ("soup",), "failed"))
    assert "1 of 21 draws failed" in table.problems
    assert "python -m tests.pairs --draws 1 --seed 20" in Draw(20, "any shards", "ram", (), "failed").described
