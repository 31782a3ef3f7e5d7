"""The tasks' rewards in verl's form, for `ramerge eval` and `ramerge search`.

ramerge search recipe.yaml OUT --score .real/prompts/fact.jsonl --reward lab/real/reward.py:compute_score --serve vllm
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # it is loaded by its path, and tasks.py lies next to it

from tasks import ALL_TASKS, Task


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any]) -> float:
    """The reward of a reply; `data_source` is the task's name."""
    del extra_info  # part of verl's form
    return ALL_TASKS[data_source].reward(solution_str, ground_truth)


def records(task: Task, prompts: int, seed: int) -> list[dict[str, Any]]:
    """Held-out problems of a task as verl's records."""
    return [
        {
            "data_source": task.name,
            "prompt": task.messages(example),
            "reward_model": {"style": "rule", "ground_truth": example.answer},
        }
        for example in task.examples("test", seed, prompts)
    ]
