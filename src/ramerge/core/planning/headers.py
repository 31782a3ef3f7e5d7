"""Headers of each model in a recipe: format, size, dtypes, and problems."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.filesize import decimal

from ramerge.core.foundation.dtypes import full_name
from ramerge.core.planning.inputs import open_inputs
from ramerge.core.planning.owners import BASE, label_of
from ramerge.core.recipe.checks import models_only
from ramerge.core.recipe.document import Document
from ramerge.core.storage.resolve import FoundModel
from ramerge.core.tensors.checkpoint import Checkpoint

_MOST_DTYPES = 3
# The name of the model if it is the only one in the recipe.
_ALONE = "base"


@dataclass(frozen=True)
class ModelHeader:
    """The headers of a model in a recipe, as readable text.

    Attributes:
        name: `base` or the agent's name.
        where: its path, or its hub id.
        form: its format; empty if it could not be opened.
        tensors: the number of its tensors.
        parameters: the number of its parameters.
        size: the size of its weights.
        dtypes: the dtypes of its tensors, the most frequent first.
        problems: why it could not be opened.
    """

    name: str
    where: str
    form: str = ""
    tensors: str = ""
    parameters: str = ""
    size: str = ""
    dtypes: str = ""
    problems: tuple[str, ...] = ()


def read_headers(document: Document) -> list[ModelHeader]:
    """Read the headers of each model in a recipe. They are not compared with each other, as a plan would do.

    Raises:
        RecipeError: the entries for models in the recipe are invalid.
    """
    base = document.stated("base")
    if not document.agents and base is None:
        return []
    alone = {} if document.agents else {"base": None, "agents": {_ALONE: base}}
    inputs, findings = open_inputs(models_only(document.replacing(alone)))
    problems: dict[str, list[str]] = {}
    for finding in findings:
        if finding.kind == "problem":
            problems.setdefault(str(finding.about), []).append(finding.text)
    models = {BASE: (inputs.base, inputs.opened_base)} if inputs.has_base else {}
    models |= {name: (model, inputs.opened_agents.get(name)) for name, model in inputs.agents.items()}
    return [
        _model_header(label_of(name), model, checkpoint)
        if checkpoint
        else ModelHeader(label_of(name), model.written, problems=tuple(problems.get(name, ())))
        for name, (model, checkpoint) in models.items()
    ]


def _model_header(label: str, model: FoundModel, checkpoint: Checkpoint) -> ModelHeader:
    elements: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        elements[tensor.encoding or tensor.dtype] += tensor.elements
    leaves = {leaf for tensor in checkpoint.tensors.values() for leaf in tensor.origin.leaves()}
    dtypes = [full_name(dtype) for dtype, _ in elements.most_common(_MOST_DTYPES)]
    return ModelHeader(
        name=label,
        where=model.written,
        form=checkpoint.title,
        tensors=f"{len(checkpoint.tensors):,}",
        parameters=f"{elements.total():,}",
        size=decimal(sum(leaf.nbytes for leaf in leaves)),
        dtypes=", ".join(dtypes) + (", ..." if len(elements) > _MOST_DTYPES else ""),
    )
