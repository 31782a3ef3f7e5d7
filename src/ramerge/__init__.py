"""Merge RL-trained agents of one base model, exactly and out of core.

import ramerge

record = ramerge.merge("recipe.yaml", "merged")
for agent in record.statistics:
    print(agent.name, agent.density, agent.rho, agent.lambda_)
"""

from __future__ import annotations

from importlib import import_module

from ramerge.foundation.version import __version__ as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than `ramerge.cli.start` may take, which a signal must find at work
    from typing import Any

    from ramerge.analysis.results import Analysis
    from ramerge.analysis.tables import frames
    from ramerge.api import analyze, merge, plan, sweep
    from ramerge.engine.record import AgentStatistics, Record
    from ramerge.engine.sinks import MergedTensor
    from ramerge.evaluation import evaluate
    from ramerge.foundation.errors import (
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
    from ramerge.foundation.events import Progress
    from ramerge.planning.model import Plan
    from ramerge.recipe.model import Agent, Allow, Recipe, Rule

_HOMES = {
    "Agent": "recipe.model",
    "Analysis": "analysis.results",
    "AgentStatistics": "engine.record",
    "Allow": "recipe.model",
    "CheckpointError": "foundation.errors",
    "EndpointError": "foundation.errors",
    "EvaluationError": "foundation.errors",
    "InputError": "foundation.errors",
    "MergedTensor": "engine.sinks",
    "OutputError": "foundation.errors",
    "Plan": "planning.model",
    "PlanError": "foundation.errors",
    "Progress": "foundation.events",
    "RamergeError": "foundation.errors",
    "Recipe": "recipe.model",
    "RecipeError": "foundation.errors",
    "Record": "engine.record",
    "Rule": "recipe.model",
    "WeightsError": "foundation.errors",
    "analyze": "api",
    "evaluate": "evaluation.evaluate",
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
