"""The task `rewards`: the user's prompts, scored by a reward function in verl's form.

Records have the form of verl's data sets (docs/preparation/prepare_data of verl): `prompt` is a text or a list of
messages, `reward_model` holds `ground_truth`, and `data_source` and `extra_info` are passed on. The function is verl's
`compute_score(data_source, solution_str, ground_truth, extra_info)`; it returns a number, or a mapping with `score` (of
earlier versions: `reward`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import TaskState
from pydantic import Field, ValidationError

from ramerge import EvaluationError
from ramerge.scoring.functions import describe_error, load
from ramerge.sdk.text import shown
from ramerge_eval.data import read_records, refuse
from ramerge_eval.tasks import common
from ramerge_eval.time_limit import call_within_limit


@task
@common.with_validation
def rewards(
    prompts: Path | None = None,
    function: str = "",
    reward_seconds: Annotated[float, Field(gt=0, le=3600)] = 10.0,
    seed: common.Seed = 0,
) -> Task:
    """The task `rewards`: your own prompts, scored by a reward function in verl's form.

    Args:
        prompts: JSON lines or verl's parquet: prompt, reward_model with ground_truth, data_source, extra_info.
        function: file.py:compute_score or module:compute_score.
        reward_seconds: the time limit of one call of the function.
        seed: the seed of sampling.
    """
    if problems := common.lacking("rewards", {"prompts": prompts, "function": function}):
        raise EvaluationError(problems)
    assert prompts is not None
    try:
        _, compute_score = load(function)
    except Exception as error:
        text = f"ramerge/rewards: --task-set rewards.function={function}: {describe_error(error)}"
        raise EvaluationError(text) from error
    return Task(
        dataset=_samples(prompts),
        solver=common.answer(seed),
        scorer=_reward(compute_score, reward_seconds),
        config=GenerateConfig(temperature=0.0, top_p=1.0, max_tokens=1024),
    )


@scorer(name="ramerge/rewards", metrics=[common.shares()])
def _reward(function: Callable[..., object], seconds: float) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        if common.is_failed(state):
            return common.score_of(state, {"reward": (0.0, 1.0)}, problem=common.FAILURE)
        text = common.text_of(state.output)
        result, problem = call_within_limit(_call, function, state.metadata, text, seconds=seconds)
        reward, details = result if result is not None else (0.0, {})
        return common.score_of(state, {"reward": (reward, 1.0)}, text, problem, **details)

    return score


def _call(function: Callable[..., Any], prompt: Mapping[str, Any], text: str) -> tuple[float, Mapping[str, Any]]:
    """Call the reward function; return the reward, and its other results."""
    result = function(
        data_source=prompt["data_source"],
        solution_str=text,
        ground_truth=prompt["ground_truth"],
        extra_info=dict(prompt["extra_info"]),
    )
    details = dict(result) if isinstance(result, Mapping) else {}
    value: Any = details.get("score", details.get("reward")) if details else result
    reward = float(value)
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    return reward, details


def _samples(path: Path) -> list[Sample]:
    samples, problems, without_truth = [], [], []
    records = read_records(path, {})
    for number, record in enumerate(records, 1):
        try:
            if (prompt := record.get("prompt")) is None:
                raise ValueError(f"lacks prompt; has {shown(', '.join(record)) or 'nothing'}")
            model, extra = record.get("reward_model"), record.get("extra_info")
            truth = model.get("ground_truth") if isinstance(model, Mapping) else record.get("ground_truth")
            if truth is None:
                without_truth.append(number)
                continue
            if not isinstance(extra, Mapping | None):
                raise ValueError("extra_info: must be an object")
            source = str(record.get("data_source") or "")
            about = {"data_source": source, "ground_truth": truth, "extra_info": extra or {}}
            samples.append(common.sample("prompts", str(number), prompt, str(truth), **about))
        except ValidationError:
            what = "must be a text, or a list of messages with role and content"
            problems.append(f"{path}, record {number}: prompt: {what}")
        except ValueError as error:
            problems.append(f"{path}, record {number}: {error}")
    if without_truth:
        which = f"{len(without_truth):,} of {len(records):,} records lack reward_model with ground_truth"
        problems.append(f"{path}: {which} (the first: record {without_truth[0]})")
    refuse(problems)
    return samples
