"""Whether the libraries of the extra `eval` are there."""

from __future__ import annotations

from ramerge import EvaluationError
from ramerge.sdk.machine import missing


def require_extra(who: str, *more: str) -> None:
    """Refuse to score or read logs if Inspect, or one of `more` modules of the extra `eval`, is missing.

    Args:
        who: what needs them, with its verb, such as `ramerge table needs`.
        more: top-level names of modules.
    """
    if lacking := missing({"eval": ["inspect_ai", *more]}, who=who):
        raise EvaluationError(lacking)
