"""The reward function of `ramerge calibrate --reward`, for replies without a reward."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ramerge import InputError, RecipeError
from ramerge.calibration.prompts import Prompt
from ramerge.scoring.functions import describe_error, load

RewardFunction = Callable[[Prompt, str], float]


_TRUTH = "ground_truth"


def check_rewards(spec: str, prompts: Mapping[str, Sequence[Prompt]], files: Mapping[str, object]) -> None:
    """Refuse prompts without the ground truth that the reward function requires, before any agent generates."""
    if not spec:
        return
    try:
        signature = inspect.signature(_load_reward(spec))
    except ValueError:  # of a function that is not written in Python
        return
    try:
        arguments = next((each.reward_fields for agent in prompts.values() for each in agent), {})
        signature.bind(solution_str="", **arguments)
    except TypeError as error:
        raise RecipeError(
            f"--reward {spec}: takes {signature}, and must take verl's arguments, (data_source, solution_str, "
            f"ground_truth, extra_info), and return a number: {error}"
        ) from error
    parameter = signature.parameters.get(_TRUTH)
    if parameter is None or parameter.default is not parameter.empty:
        return
    gaps = {name: [each for each in agent if _lacks_truth(each)] for name, agent in prompts.items()}
    if problems := [
        f"{files[name]}: {len(gap):,} of {len(prompts[name]):,} prompts lack {_TRUTH} (at the top or in reward_model), "
        f"which --reward {spec} takes (the first: {gap[0].place}); add it, or give its parameter {_TRUTH} a default"
        for name, gap in gaps.items()
        if gap
    ]:
        raise InputError(problems)


def _lacks_truth(prompt: Prompt) -> bool:
    """Whether a prompt has no ground truth although some reply needs a reward."""
    has_rewards = bool(prompt.replies) and all(reply.reward is not None for reply in prompt.replies)
    return prompt.reward_fields.get(_TRUTH) is None and not has_rewards


def reward_of(spec: str) -> RewardFunction | None:
    """Load the function of `--reward FILE.py:FUNCTION`, in verl's form; None if `spec` is empty."""
    if not spec:
        return None
    function = _load_reward(spec)

    def reward(prompt: Prompt, text: str) -> float:
        try:
            result = function(solution_str=text, **prompt.reward_fields)
            value = result.get("score", result.get("reward")) if isinstance(result, Mapping) else result
            if not isinstance(value, int | float | np.number):
                raise TypeError(f"it returned {value!r:.100}, and must return a number, or a mapping with score")
            number = float(value)
            if not math.isfinite(number):
                raise ValueError(f"the reward is {number}, and must be a finite number")
            return number
        except Exception as error:  # the user's code
            raise InputError(f"{prompt.place}: --reward {spec}: {describe_error(error)}") from error

    return reward


def _load_reward(spec: str) -> Callable[..., Any]:
    try:
        _, function = load(spec)
    except Exception as error:  # the user's code
        raise RecipeError(f"--reward {spec}: {describe_error(error)}") from error
    return function
