"""Whether recorded inputs belong to the models that are merged: a digest of samples of the weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ramerge.core.formats.recorded import PLACES, read_model
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.errors import WeightsError
from ramerge.core.planning.findings import key_of
from ramerge.core.planning.model import MergePlan
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.tensor import Tensor

_TENSORS = 4096
_PIECES, _ELEMENTS = 4, 128
"""At most so many tensors are sampled, in so many pieces of so many elements, evenly spread."""


def digest_of(tensors: Sequence[Tensor], reader: Reader) -> str:
    """A digest of names, shapes, dtypes and samples of the floating-point tensors of a model.

    Args:
        tensors: of the model; the order does not matter.
        reader: reads them.

    Raises:
        CheckpointError: a file cannot be read.
    """
    floats = sorted((one for one in tensors if one.is_float and one.elements), key=lambda one: one.name)
    digest = hashlib.sha256(repr([(one.name, one.shape, one.usual_dtype) for one in floats]).encode())
    for tensor in floats[:: -(-len(floats) // _TENSORS) or 1]:
        count = min(tensor.elements, _ELEMENTS)
        for piece in range(_PIECES):
            # two elements of a 16-bit format share a word
            start = (tensor.elements - count) * piece // (_PIECES - 1) // 2 * 2
            sample = np.zeros(count * itemsize(tensor.dtype), np.uint8)
            reader.read(tensor, start, start + count, sample)
            digest.update(sample.tobytes())
    return digest.hexdigest()


def refuse_other_models(plan: MergePlan) -> None:
    """Refuse inputs that were recorded of another model than the agent or the base, or do not say of which.

    What was given in memory has no file that could say it.

    Raises:
        WeightsError: some were; all are listed.
        CheckpointError: a file cannot be read.
    """
    with Files(plan.files) as files:
        if problems := list(_problems(plan, Reader(files))):
            raise WeightsError(problems)


def _problems(plan: MergePlan, reader: Reader) -> Iterator[str]:
    stored = {name: side for name, side in plan.sides.items() if side.written not in plan.recipe.document.models}
    recorded = {name: read_model(side.folder) for name, side in stored.items() if (side.folder / PLACES).exists()}
    if not recorded:
        return
    own: Mapping[str, list[Tensor]] = {owner: [] for owner in ("base", *plan.agents)}
    for tensor in {one.parts[0].name: one for one in plan.tensors}.values():
        for source in tensor.originals or tensor.sources:
            if source.owner in own and not source.is_importance:
                own[source.owner].append(source.tensor)
    base = digest_of(own["base"], reader)
    for name, model in recorded.items():
        if model is None:
            text = f"{PLACES} does not say of which model the inputs were recorded (its key model);"
        elif len(own[name]) == len(own["base"]) and model not in (base, digest_of(own[name], reader)):
            # where rules keep tensors of the base, not all of the agent is read, and its digest is not known
            text = (
                f"holds inputs that were recorded of another model than {name} or the base (was it trained on since?);"
            )
        else:
            continue
        text = f"{plan.sides[name].folder}: {text} run `ramerge calibrate` again"
        yield plan.recipe.document.where(key_of(name), text)
