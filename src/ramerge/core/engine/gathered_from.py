"""Checks, by digests of sampled weights, whether recorded inputs and importances come from the merged models.

Also reads the notes of `ramerge calibrate` on an agent.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ramerge.core.formats.files import read_json
from ramerge.core.formats.recorded import CALIBRATION, MODEL, PLACES, read_digests
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.errors import WeightsError
from ramerge.core.planning.findings import key_of
from ramerge.core.planning.model import MergePlan
from ramerge.core.planning.owners import BASE
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.tensor import Tensor

_TENSORS = 4096
"""The most tensors of a model that are compared; they are evenly spread."""
_PIECES, _ELEMENTS = 4, 128
"""The number of evenly spread pieces sampled from each tensor, and the elements of a piece."""


def digests_of(tensors: Mapping[str, Tensor], reader: Reader) -> dict[str, str]:
    """Digest shape, dtype and sampled elements of each floating-point tensor, to be stored with recorded inputs.

    Args:
        tensors: the model's tensors, by the base's names.
        reader: reads the tensors.

    Raises:
        CheckpointError: a file cannot be read.
    """
    return {name: _tensor_digest(one, reader) for name, one in sorted(tensors.items()) if one.is_float and one.elements}


def _tensor_digest(tensor: Tensor, reader: Reader) -> str:
    digest = hashlib.sha256(repr((tensor.shape, tensor.usual_dtype)).encode())
    count = min(tensor.elements, _ELEMENTS)
    for piece in range(_PIECES):
        # two elements of a 16-bit format share a word
        start = (tensor.elements - count) * piece // (_PIECES - 1) // 2 * 2
        sample = np.zeros(count * itemsize(tensor.dtype), np.uint8)
        reader.read(tensor, start, start + count, sample)
        digest.update(sample.tobytes())
    return digest.hexdigest()[:32]


def notes_of(folder: Path) -> list[str]:
    """Read the notes of `ramerge calibrate` on an agent, such as replies that did not end, from the agent's folder.

    Raises:
        CheckpointError: its record cannot be read.
    """
    notes = read_json(folder / CALIBRATION).get("notes")
    return [*map(str, notes)] if isinstance(notes, list) else []


def refuse_other_models(plan: MergePlan) -> None:
    """Refuse recorded inputs and importances that were gathered from other weights than the merged ones.

    Inputs from memory have no file of digests, and importances of other tools need none.
    """
    side_folders = {
        name: side for name, side in plan.inputs.sides.items() if side.written not in plan.recipe.document.models
    }
    if not side_folders:
        return
    own: Mapping[str, dict[str, Tensor]] = defaultdict(dict)
    for tensor in plan.tensors:
        for source in tensor.originals or tensor.sources:
            if not source.is_importance:
                own[source.owner].setdefault(tensor.parts[0].name, source.tensor)
    problems = []
    with Files(plan.inputs.files) as files:
        reader = Reader(files)
        for name, side in side_folders.items():
            digests = read_digests(side.folder)
            if digests is not None:
                common_names = sorted(digests.keys() & own[name].keys() & own[BASE].keys())
                sample = common_names[:: -(-len(common_names) // _TENSORS) or 1]
                if all(
                    digests[one] in (_tensor_digest(own[owner][one], reader) for owner in (name, BASE))
                    for one in sample
                ):
                    continue
                text = f"was not calibrated with {name} or the base (was {name} trained further?);"
            elif (side.folder / PLACES).exists():
                text = f"has no {MODEL}, so the model of its inputs is unknown;"
            else:
                continue
            text = f"{side.folder}: {text} run `ramerge calibrate` again"
            problems.append(plan.recipe.document.where(key_of(name), text))
    if problems:
        raise WeightsError(problems)
