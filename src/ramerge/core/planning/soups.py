"""An agent that is a soup: the checkpoints of a run as one checkpoint, whose tensors are their weighted means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import quantity
from ramerge.core.methods.means import MeanMethod
from ramerge.core.methods.registry import METHODS
from ramerge.core.recipe.model import Soup
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.weighted import mean_of


def weights_of(soup: Soup) -> tuple[float, ...]:
    """The weights of a soup's agents, in order, which add up to 1. The soup was checked."""
    method = METHODS[soup.method]
    assert isinstance(method, MeanMethod)
    return method.weights(method.parameters(**soup.parameters), tuple(soup.agents))


def soup_of(soup: Soup, checkpoints: Mapping[str, Checkpoint]) -> Checkpoint:
    """The mean of checkpoints, with everything else of the last one. Integer tensors are the last one's, too."""
    weights, models = weights_of(soup), list(checkpoints.values())
    last, shapes = models[-1], [{(name, each.shape) for name, each in model.tensors.items()} for model in models]
    problems = [
        f"{model.directory}: tensors differ in name or shape from {last.directory}, such as {min(different)[0]!r}; a "
        "soup averages checkpoints of one run"
        for model, own in zip(models, shapes, strict=True)
        if (different := own ^ shapes[-1])
    ]
    if problems:
        raise CheckpointError(problems)
    tensors = {
        name: mean_of(name, [model.tensors[name] for model in models], weights) if tensor.is_float else tensor
        for name, tensor in last.tensors.items()
    }
    return replace(
        last,
        tensors=tensors,
        files={path: identity for model in models for path, identity in model.files.items()},
        format="soup",
        title=f"{soup.method} of {quantity(len(models), 'checkpoint')}: {last.title}",
        shards={},
        notes=(),
        warnings=(),
    )
