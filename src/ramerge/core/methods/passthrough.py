"""One model unchanged, in another format or dtype: the method of `ramerge convert`.

merged = scale * a
"""

from __future__ import annotations

from typing import Annotated

from ramerge.core.kernels.elementwise import ONE, ZERO, Each
from ramerge.core.methods.define import ChosenAgent, merge_method


@merge_method(
    "passthrough",
    family="one model",
    source="mergekit's method of this name, for whole models",
    formula="scale * a, the chosen agent; needs no base",
    differs="there is no difference for whole models; stacks of layers are not supported",
    combines=False,
    symmetric=False,
    needs_base=False,
)
def passthrough(
    _b: float,
    values: Each,
    *,
    agent: Annotated[ChosenAgent, "the model that is copied; by default the first agent"] = None,
    scale: Annotated[float, "factor of the weights"] = 1.0,
) -> float:
    """One model as it is."""
    result = values[0]
    for t in range(len(values)):
        result = values[t] if agent[t] > ZERO else result
    return result if scale == ONE else scale * result
