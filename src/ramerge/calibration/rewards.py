"""The reward function of `ramerge calibrate --reward`, for replies without a reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ramerge import InputError, RecipeError
from ramerge.calibration.prompts import Prompt
from ramerge.evaluation.functions import in_words, load

RewardFunction = Callable[[Prompt, str], float]


def reward_of(spec: str) -> RewardFunction | None:
    """Load the function of `--reward FILE.py:FUNCTION`, in verl's form; None for no specification.

    Raises:
        RecipeError: it cannot be loaded.
    """
    if not spec:
        return None
    try:
        _, function = load(spec)
    except Exception as error:  # the user's code
        raise RecipeError(f"--reward {spec}: {in_words(error)}") from error

    def reward(prompt: Prompt, text: str) -> float:
        try:
            returned = function(solution_str=text, **prompt.about)
            value = returned.get("score", returned.get("reward")) if isinstance(returned, Mapping) else returned
            found = float(value)
            if not math.isfinite(found):
                raise ValueError(f"the reward is {found}, and must be a finite number")
            return found
        except Exception as error:  # the user's code
            raise InputError(f"{prompt.place}: --reward {spec}: {in_words(error)}") from error

    return reward
