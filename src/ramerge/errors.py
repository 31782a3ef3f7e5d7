"""The classes of `ramerge.foundation.errors` under the name of earlier versions; all of them are in `ramerge` too."""

from ramerge.foundation.errors import (
    CheckpointError,
    EndpointError,
    EvaluationError,
    InputError,
    OutputError,
    OutputWarning,
    PlanError,
    RamergeError,
    RecipeError,
    StoppedError,
    WeightsError,
)

__all__ = [
    "CheckpointError",
    "EndpointError",
    "EvaluationError",
    "InputError",
    "OutputError",
    "OutputWarning",
    "PlanError",
    "RamergeError",
    "RecipeError",
    "StoppedError",
    "WeightsError",
]
