"""Registry of all tasks and of the sandbox `bubblewrap`, for Inspect's entry point; parameters of tasks, for `run`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

from inspect_ai import Task

from ramerge import EvaluationError
from ramerge.sdk.text import unknown
from ramerge_eval.sandbox import provider as provider
from ramerge_eval.tasks.agreement import agreement
from ramerge_eval.tasks.coding.task import coding
from ramerge_eval.tasks.harness import ifeval, math
from ramerge_eval.tasks.memory.task import memory
from ramerge_eval.tasks.rewards import rewards
from ramerge_eval.tasks.search import search
from ramerge_eval.tasks.tool import tool

TASKS: dict[str, Callable[..., Task]] = {
    each.__name__: each for each in (coding, tool, memory, search, ifeval, math, rewards, agreement)
}


def parameters(name: str) -> list[str]:
    """Return the parameters of the task ramerge/NAME, including the user's files.

    Raises:
        EvaluationError: there is no such task.
    """
    if name not in TASKS:
        raise EvaluationError(unknown("task", f"ramerge/{name}", [f"ramerge/{each}" for each in TASKS]))
    return list(inspect.signature(TASKS[name]).parameters)


def data_sets(name: str) -> list[str]:
    """Return the parameters of the task ramerge/NAME that are the user's files or folders."""
    hints = get_type_hints(TASKS[name])
    return [parameter for parameter, hint in hints.items() if Path in get_args(hint)]
