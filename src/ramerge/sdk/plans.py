"""Plans: what a merge will read, compute and write, decided from headers.

>>> from ramerge.sdk.plans import make_plan
>>> from ramerge.sdk.recipes import make_points, open_recipe
>>> plan = make_plan(make_points(open_recipe("recipe.yaml")))
>>> len(plan.tensors)
38
"""

from ramerge.core.planning import requirements
from ramerge.core.planning.build import make_plan
from ramerge.core.planning.findings import PlanFinding
from ramerge.core.planning.inputs import OpenedInputs
from ramerge.core.planning.kinds import PlannedKind
from ramerge.core.planning.model import Block, MergePlan, TensorPlan

__all__ = [
    "Block",
    "MergePlan",
    "OpenedInputs",
    "PlanFinding",
    "PlannedKind",
    "TensorPlan",
    "make_plan",
    "requirements",
]
