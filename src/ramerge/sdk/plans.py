"""Plans: what will be read, computed and written, decided from headers.

>>> from ramerge.sdk.plans import make_plan
>>> from ramerge.sdk.recipes import make_points, open_recipe
>>> plan = make_plan(make_points(open_recipe("recipe.yaml")))
>>> len(plan.tensors)
38
"""

from ramerge.core.planning import cached_counts, requirements
from ramerge.core.planning.build import make_plan
from ramerge.core.planning.findings import PlanFinding, note, problem
from ramerge.core.planning.headers import ModelHeader, read_headers
from ramerge.core.planning.inputs import OpenedInputs, open_model, open_models
from ramerge.core.planning.kinds import PlannedKind
from ramerge.core.planning.model import Batch, Block, MergePlan, TensorPlan, scope_of
from ramerge.core.planning.resources import BASELINE_BYTES
from ramerge.core.registry import FEATURES

__all__ = [
    "BASELINE_BYTES",
    "FEATURES",
    "Batch",
    "Block",
    "MergePlan",
    "ModelHeader",
    "OpenedInputs",
    "PlanFinding",
    "PlannedKind",
    "TensorPlan",
    "cached_counts",
    "make_plan",
    "note",
    "open_model",
    "open_models",
    "problem",
    "read_headers",
    "requirements",
    "scope_of",
]
