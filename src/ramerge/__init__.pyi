from .analysis.analyze import analyze
from .analysis.recommend import Recommendation, recommend
from .analysis.results import Analysis
from .api import Plan, SweepPlan, clean, convert, merge, plan, read_recipe, sweep
from .calibration.agreement import Agreement, agreement
from .calibration.cached import Ranking, gather, rank
from .calibration.calibrate import calibrate
from .calibration.record import CalibrationRecord, CalibrationSettings
from .deltas.record import DeltaRecord
from .deltas.run import apply, delta
from .engine.record import AgentStatistics, Record
from .engine.sinks import MergedTensor
from .engine.stream import TensorStream
from .evaluation.models import EvaluationTarget, ModelAccess
from .evaluation.run import EvaluationRequest, evaluate
from .foundation.errors import (
    CheckpointError,
    EndpointError,
    EvaluationError,
    InputError,
    OutputError,
    PlanError,
    RamergeError,
    RayError,
    RecipeError,
    WeightsError,
)
from .foundation.progress import Progress
from .foundation.version import __version__
from .options import AsAdapter, Options, Ray, Upload
from .recipe.model import Agent, Allow, Recipe, Rename, Rule, Soup
from .selection.results import SearchResult
from .selection.run import SearchProgress
from .selection.search import search
from .selection.served import TaskScore
from .selection.serving import ModelServer
from .selection.settings import SearchSettings
from .state_dicts import MergedStateDict, merge_state_dicts, merge_tensors

__all__ = [
    "Agent",
    "AgentStatistics",
    "Agreement",
    "Allow",
    "Analysis",
    "AsAdapter",
    "CalibrationRecord",
    "CalibrationSettings",
    "CheckpointError",
    "DeltaRecord",
    "EndpointError",
    "EvaluationError",
    "EvaluationRequest",
    "EvaluationTarget",
    "InputError",
    "MergedStateDict",
    "MergedTensor",
    "ModelAccess",
    "ModelServer",
    "Options",
    "OutputError",
    "Plan",
    "PlanError",
    "Progress",
    "RamergeError",
    "Ranking",
    "Ray",
    "RayError",
    "Recipe",
    "RecipeError",
    "Recommendation",
    "Record",
    "Rename",
    "Rule",
    "SearchProgress",
    "SearchResult",
    "SearchSettings",
    "Soup",
    "SweepPlan",
    "TaskScore",
    "TensorStream",
    "Upload",
    "WeightsError",
    "__version__",
    "agreement",
    "analyze",
    "apply",
    "calibrate",
    "clean",
    "convert",
    "delta",
    "evaluate",
    "gather",
    "merge",
    "merge_state_dicts",
    "merge_tensors",
    "plan",
    "rank",
    "read_recipe",
    "recommend",
    "search",
    "sweep",
]
