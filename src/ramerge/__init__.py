"""Merge RL-trained agents of one base model, exactly and out of core.

import ramerge

record = ramerge.merge("recipe.yaml", "merged")
for agent in record.statistics:
    print(agent.name, agent.density, agent.rho, agent.lambda_)
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than `ramerge.start` may take, which a signal must find at work
    from typing import Any

    from ramerge.analysis.results import Analysis
    from ramerge.analysis.tables import frames
    from ramerge.api import analyze, merge, plan, sweep
    from ramerge.engine.events import Progress
    from ramerge.engine.sinks import MergedTensor
    from ramerge.errors import (
        CheckpointError,
        EndpointError,
        EvaluationError,
        InputError,
        OutputError,
        PlanError,
        RamergeError,
        RecipeError,
        WeightsError,
    )
    from ramerge.evaluation import evaluate
    from ramerge.planning.model import Plan
    from ramerge.recipe import Agent, Allow, Recipe, Rule
    from ramerge.record import AgentStatistics, Record

__version__ = "0.1.0"

_HOMES = {
    "Agent": "recipe",
    "Analysis": "analysis.results",
    "AgentStatistics": "record",
    "Allow": "recipe",
    "CheckpointError": "errors",
    "EndpointError": "errors",
    "EvaluationError": "errors",
    "InputError": "errors",
    "MergedTensor": "engine.sinks",
    "OutputError": "errors",
    "Plan": "planning.model",
    "PlanError": "errors",
    "Progress": "engine.events",
    "RamergeError": "errors",
    "Recipe": "recipe",
    "RecipeError": "errors",
    "Record": "record",
    "Rule": "recipe",
    "WeightsError": "errors",
    "analyze": "api",
    "evaluate": "evaluation",
    "frames": "analysis.tables",
    "merge": "api",
    "plan": "api",
    "sweep": "api",
}

__all__ = [
    "Agent",
    "AgentStatistics",
    "Allow",
    "Analysis",
    "CheckpointError",
    "EndpointError",
    "EvaluationError",
    "InputError",
    "MergedTensor",
    "OutputError",
    "Plan",
    "PlanError",
    "Progress",
    "RamergeError",
    "Recipe",
    "RecipeError",
    "Record",
    "Rule",
    "WeightsError",
    "analyze",
    "evaluate",
    "frames",
    "merge",
    "plan",
    "sweep",
]


def __getattr__(name: str) -> Any:
    # numba takes most of a second to import; `ramerge --version` and `import ramerge` do without it
    if name in _HOMES:
        return getattr(import_module(f"ramerge.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ramerge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
