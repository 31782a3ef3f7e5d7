"""Plans: what will be read, computed and written, decided from headers.

>>> from ramerge.sdk.plans import make_plan
>>> from ramerge.sdk.recipes import make_points, open_recipe
>>> plan = make_plan(make_points(open_recipe("recipe.yaml")))
>>> len(plan.tensors)
38
"""

from ramerge.api import with_chosen_method
from ramerge.core.planning import cached_counts
from ramerge.core.planning.adapters import BLOCK_ELEMENTS, ENERGY, OVERSAMPLING, SMALL, needed, said_of_vllm
from ramerge.core.planning.build import make_plan
from ramerge.core.planning.findings import listed
from ramerge.core.planning.headers import ModelHeader, read_headers
from ramerge.core.planning.inputs import tensors_of_base
from ramerge.core.planning.model import (
    AdaptedMatrix,
    AdapterPlan,
    Batch,
    Block,
    MergePlan,
    OutputPart,
    TensorPlan,
    scope_of,
)

__all__ = [
    "BLOCK_ELEMENTS",
    "ENERGY",
    "OVERSAMPLING",
    "SMALL",
    "AdaptedMatrix",
    "AdapterPlan",
    "Batch",
    "Block",
    "MergePlan",
    "ModelHeader",
    "OutputPart",
    "TensorPlan",
    "cached_counts",
    "listed",
    "make_plan",
    "needed",
    "read_headers",
    "said_of_vllm",
    "scope_of",
    "tensors_of_base",
    "with_chosen_method",
]
