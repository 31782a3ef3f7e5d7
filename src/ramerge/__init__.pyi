from .analysis.results import Analysis
from .analysis.tables import frames
from .api import analyze, merge, plan, sweep
from .engine.record import AgentStatistics, Record
from .engine.sinks import MergedTensor
from .evaluation.evaluate import evaluate
from .foundation.errors import (
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
from .foundation.events import Progress
from .foundation.version import __version__
from .planning.model import Plan
from .recipe.model import Agent, Allow, Recipe, Rule

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
    "__version__",
    "analyze",
    "evaluate",
    "frames",
    "merge",
    "plan",
    "sweep",
]
