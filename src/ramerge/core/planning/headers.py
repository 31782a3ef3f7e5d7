"""Headers of a recipe's models, one by one: format, size, dtypes, and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rich.filesize import decimal

from ramerge.core.formats.open import open_stacked
from ramerge.core.foundation.dtypes import full_name
from ramerge.core.foundation.errors import RamergeError
from ramerge.core.planning.owners import BASE, label_of
from ramerge.core.recipe.document import Document
from ramerge.core.storage.resolve import resolve_all
from ramerge.core.tensors.checkpoint import Checkpoint

_MOST_DTYPES = 3


@dataclass(frozen=True)
class ModelHeader:
    """A model of a recipe as its headers describe it, in text.

    Attributes:
        name: `base` or the agent's name.
        where: as the recipe names it.
        form: its format, human-readable; empty if it could not be opened.
        tensors, parameters, size: figures for people.
        dtypes: of its tensors, the most frequent first.
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
    """Each model that a recipe names, from its headers alone. Whether they fit each other is a plan's business."""
    models = [(BASE, document.stated("base")), *document.agents.items()]
    found: list[ModelHeader] = []
    base: Checkpoint | None = None
    for owner, value in models:
        parts = value.get("model") or value.get("delta") if isinstance(value, Mapping) else value
        parts = [parts] if isinstance(parts, str) else parts
        texts = [str(each) for each in parts] if isinstance(parts, list | tuple) else []
        if not texts:
            continue
        try:
            opened = open_stacked(resolve_all(texts, document.folder).folders, base=base)
        except RamergeError as error:
            found.append(ModelHeader(label_of(str(owner)), "+".join(texts), problems=error.problems))
            continue
        base = opened if owner == BASE else base
        elements: Counter[str] = Counter()
        for tensor in opened.tensors.values():
            elements[tensor.encoding or tensor.dtype] += tensor.elements
        stored = {leaf for tensor in opened.tensors.values() for leaf in tensor.origin.leaves()}
        dtypes = [full_name(dtype) for dtype, _ in elements.most_common(_MOST_DTYPES)]
        header = ModelHeader(
            name=label_of(str(owner)),
            where="+".join(texts),
            form=opened.title,
            tensors=f"{len(opened.tensors):,}",
            parameters=f"{elements.total():,}",
            size=decimal(sum(leaf.nbytes for leaf in stored)),
            dtypes=", ".join(dtypes) + (", ..." if len(elements) > _MOST_DTYPES else ""),
        )
        found.append(header)
    return found
