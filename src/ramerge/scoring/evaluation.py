"""Functions of ramerge-eval, a separate package, for rooms that score by its tasks or read its logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ramerge import EvaluationError
from ramerge.core.foundation.extras import evaluation_command
from ramerge.sdk.registry import FEATURES


def feature(name: str, who: str) -> Callable[..., Any]:
    """Return a function of ramerge-eval, by its entry point in the group `ramerge.features`.

    Args:
        name: the name of the entry point.
        who: the subject and verb of the message, such as `--scores needs`.

    Raises:
        EvaluationError: ramerge-eval is not installed.
    """
    if name not in FEATURES:
        raise EvaluationError(f"{who} ramerge-eval, which is not installed: {evaluation_command()}")
    return FEATURES[name]
