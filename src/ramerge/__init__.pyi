from .analysis.analyze import analyze
from .analysis.recommend import Recommendation, recommend
from .analysis.results import Analysis
from .api import Plan, SweepPlan, clean, convert, merge, plan, read_recipe, sweep
from .calibration.agreement import Agreement, ReplySet, agreement, replies_of
from .calibration.cache import gather
from .calibration.calibrate import calibrate
from .calibration.record import CalibrationRecord, CalibrationSettings
from .core.engine.record import AgentStatistics, Record
from .core.engine.sinks import MergedTensor
from .core.engine.stream import TensorStream
from .core.foundation.errors import (
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
from .core.foundation.progress import Progress
from .core.foundation.version import __version__
from .core.options import Options, Ray, Upload
from .core.recipe.model import Agent, Allow, Recipe, Rename, Rule, Soup
from .deltas.kinds import AsAdapter
from .deltas.record import DeltaRecord
from .deltas.run import apply, delta
from .distillation.handoff import Handoff, handoff
from .distillation.settings import HandoffSettings
from .scoring.access import ModelAccess
from .scoring.serving import ModelServer
from .searches.ranking import Ranking, rank
from .searches.results import SearchResult
from .searches.run import SearchProgress
from .searches.search import search
from .searches.settings import SearchSettings
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
    "Handoff",
    "HandoffSettings",
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
    "ReplySet",
    "Rule",
    "SearchProgress",
    "SearchResult",
    "SearchSettings",
    "Soup",
    "SweepPlan",
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
    "gather",
    "handoff",
    "merge",
    "merge_state_dicts",
    "merge_tensors",
    "plan",
    "rank",
    "read_recipe",
    "recommend",
    "replies_of",
    "search",
    "sweep",
]
