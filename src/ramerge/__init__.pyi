from .analysis.recommend import Recommendation, recommend
from .analysis.results import Analysis
from .analysis.run import analyze
from .api import clean, convert, merge, plan, sweep
from .deltas.record import DeltaRecord
from .deltas.run import apply, delta
from .engine.record import AgentStatistics, Record
from .engine.sinks import MergedTensor
from .evaluation.endpoint import EndpointAccess
from .evaluation.evaluate import EvaluationRequest, evaluate
from .evaluation.progress import EvaluationProgress
from .evaluation.serving import ModelServer
from .evaluation.summary import EvaluationSummary
from .evaluation.targets import EvaluationTarget
from .foundation.errors import (
    CheckpointError,
    EndpointError,
    EvaluationError,
    InputError,
    OutputError,
    PlanError,
    RamergeError,
    RankError,
    RayError,
    RecipeError,
    WeightsError,
)
from .foundation.events import Progress
from .foundation.version import __version__
from .importance.estimate import fisher
from .importance.record import FisherRecord
from .planning.model import Plan
from .recipe.model import Agent, Allow, Recipe, Rename, Rule
from .selection.results import SearchResult
from .selection.run import SearchProgress
from .selection.search import search

__all__ = [
    "Agent",
    "AgentStatistics",
    "Allow",
    "Analysis",
    "CheckpointError",
    "DeltaRecord",
    "EndpointAccess",
    "EndpointError",
    "EvaluationError",
    "EvaluationProgress",
    "EvaluationRequest",
    "EvaluationSummary",
    "EvaluationTarget",
    "FisherRecord",
    "InputError",
    "MergedTensor",
    "ModelServer",
    "OutputError",
    "Plan",
    "PlanError",
    "Progress",
    "RamergeError",
    "RankError",
    "RayError",
    "Recipe",
    "RecipeError",
    "Recommendation",
    "Record",
    "Rename",
    "Rule",
    "SearchProgress",
    "SearchResult",
    "WeightsError",
    "__version__",
    "analyze",
    "apply",
    "clean",
    "convert",
    "delta",
    "evaluate",
    "fisher",
    "merge",
    "plan",
    "recommend",
    "search",
    "sweep",
]
