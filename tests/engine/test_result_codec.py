"""Results of blocks as bytes: what comes back is what was found, whatever of it there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.engine.result_codec import BlockResult, ResultCodec, blank
from ramerge.core.methods.base import Statistic
from ramerge.core.planning.build import make_plan
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.planning.model import Block, MergePlan
from ramerge.core.recipe.points import make_points
from tests.checkpoints import recipe, write_simple

BLOCK = Block(1, 0, 640)


@pytest.fixture
def plan(tmp_path: Path) -> MergePlan:
    source = recipe(tmp_path, write_simple(tmp_path, {"code": 0.1, "tool": 0.2}), "ties")
    return make_plan(make_points(open_recipe(source)), options=ramerge.Options(cache=False))


def statistics_of(plan: MergePlan) -> tuple[Statistic, ...]:
    return plan.method.statistics(plan.points[0].parameters[0], plan.inputs.agents)


def same(first: BlockResult, second: BlockResult) -> bool:
    plain = [(each.block, each.elements, each.bytes_read, each.wrong, each.unequal) for each in (first, second)]
    return (
        plain[0] == plain[1]
        and first.counted.keys() == second.counted.keys()
        and all(np.array_equal(first.counted[key], second.counted[key]) for key in first.counted)
        and (first.rounding is None) == (second.rounding is None)
        and (first.rounding is None or np.array_equal(first.rounding, second.rounding))
    )


@pytest.mark.parametrize("wrong", [None, (), (0, 3, 2**40)])
@pytest.mark.parametrize("unequal", [(), (1, 2)])
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("filled", [0.0, 0.01, 1.0])  # large counts that are nearly empty are kept by their entries
def test_what_comes_back(
    plan: MergePlan, wrong: tuple[int, ...] | None, unequal: tuple[int, ...], rounds: bool, filled: float
) -> None:
    generator = np.random.default_rng(0)
    counted = {}
    for statistic in statistics_of(plan):
        counts = statistic.blank(len(plan.inputs.agents))
        counts[generator.random(counts.shape) < filled] = 7
        counted[statistic] = counts
    rounding = blank(plan) + 5 if rounds else None
    result = BlockResult(BLOCK, 640, 3840, counted, rounding, wrong, unequal)
    codec = ResultCodec(plan, {BLOCK.tensor: statistics_of(plan)})
    data, bytes_read = codec.encode(result)
    assert bytes_read == 3840
    assert same(codec.decode((BLOCK,), data), result)


def test_few_entries_take_few_bytes(plan: MergePlan) -> None:
    (statistic, *_) = statistics_of(plan)
    counts = statistic.blank(len(plan.inputs.agents))
    assert counts.nbytes > 4096
    counts.reshape(-1)[3] = 1
    codec = ResultCodec(plan, {BLOCK.tensor: statistics_of(plan)})
    data, _ = codec.encode(BlockResult(BLOCK, 640, 3840, {statistic: counts}))
    assert len(data) < 100


def test_nothing_was_counted(plan: MergePlan) -> None:
    result = BlockResult(BLOCK, 640, 3840)
    codec = ResultCodec(plan, {})
    assert same(codec.decode((BLOCK,), codec.encode(result)[0]), result)
