"""A user's prompts and reward function, in verl's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramerge.core.foundation.errors import EvaluationError
from ramerge_eval.tasks.rewards import rewards
from suites.chats import Suite, attempt, main_metric
from suites.gold import gold_of

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

FUNCTION = """
import time
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "sums" and extra_info["index"] >= 0
    if solution_str == "throw": raise KeyError("oh")
    if solution_str == "nan": return float("nan")
    if solution_str == "hang": time.sleep(60)
    if solution_str == "dict": return {"score": 0.5, "length": 3}
    return float(solution_str == ground_truth)
"""
RECORDS: list[dict[str, Any]] = [
    {
        "data_source": "sums",
        "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{number} + 1"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
        "extra_info": {"index": number, "split": "test"},
    }
    for number in range(4)
]


def opened(folder: Path, records: list[Any] = RECORDS, **settings: Any) -> Suite:
    (folder / "reward.py").write_text(FUNCTION)
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    given = {"function": f"{folder / 'reward.py'}:compute_score", "reward_seconds": 0.3, **settings}
    return Suite(rewards, prompts=path, **given)


def test_gold_scores_one_and_another_answer_nothing(tmp_path: Path) -> None:
    suite = opened(tmp_path)
    suite.check(["prompts"])
    items = list(suite.items("prompts"))
    assert [item.key for item in items] == ["1", "2", "3", "4"]
    for item, other in zip(items, items[1:] + items[:1], strict=True):
        assert main_metric(suite, "prompts", item, gold_of(suite, "prompts", item)) == 1
        assert main_metric(suite, "prompts", item, gold_of(suite, "prompts", other)) == 0


def test_a_broken_function_costs_the_answer_only(tmp_path: Path) -> None:
    suite = opened(tmp_path)
    item = next(suite.items("prompts"))
    for answer, problem in (("throw", "KeyError"), ("nan", "the reward is nan"), ("hang", "did not end within 0.3")):
        score = attempt(suite, "prompts", item, [answer])
        assert score.metrics == {"reward": (0.0, 1.0)} and problem in str(score.problem)
    score = attempt(suite, "prompts", item, ["dict"])
    assert score.metrics == {"reward": (0.5, 1.0)} and score.details["length"] == 3


def test_parquet_of_verl_is_read_as_it_is(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    suite = opened(tmp_path)
    path = tmp_path / "test.parquet"
    pq.write_table(pa.Table.from_pylist(RECORDS), path)
    other = Suite(rewards, **{**suite.arguments, "prompts": path})
    assert [(each.messages, each.about) for each in other.items("prompts")] == [
        (each.messages, each.about) for each in suite.items("prompts")
    ]
    path.write_bytes(b"PAR1 no")
    with pytest.raises(EvaluationError, match="is no Parquet file"):
        Suite(rewards, **{**suite.arguments, "prompts": path}).check(["prompts"])


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([{"question": "x"}], "record 1: lacks prompt; has question"),
        ([{"prompt": "x"}], "1 of 1 records lack reward_model with ground_truth"),
        ([{"prompt": [{"role": "me", "content": "x"}], "ground_truth": "1"}], "a list of messages"),
        ([{"prompt": "x", "ground_truth": "1", "extra_info": 3}], "extra_info: must be an object"),
        ([3], "line 1: must be an object"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, records: list[Any], said: str) -> None:
    with pytest.raises(EvaluationError) as error:
        opened(tmp_path, records).check(["prompts"])
    assert said in str(error.value)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    suite = opened(tmp_path)
    for broken, said in [
        (Suite(rewards, **{**suite.arguments, "prompts": None}), "needs --data prompts=FILE"),
        (opened(tmp_path, function=""), "needs --task-set rewards.function"),
        (opened(tmp_path, function="reward.py"), "'reward.py' names no function; write reward.py:FUNCTION"),
        (opened(tmp_path, function=f"{tmp_path / 'reward.py'}:score"), "it has compute_score"),
    ]:
        with pytest.raises(EvaluationError) as error:
            broken.check(["prompts"])
        assert said in str(error.value)
