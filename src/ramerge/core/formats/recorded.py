"""Reads statistics of `ramerge calibrate`: inputs of linear layers, importances, and digests of their model.

Recorded inputs are a folder of safetensors files and `inputs.json`, which maps weights to their inputs:

    {"inputs": {"model.layers.0.self_attn.q_proj.weight": ["rows.0", "weights"], ...}, "transposed": [...], ...}

Each weight is mapped to a tensor of rows, shape (tokens, width), and a tensor with the weight of each row, shape
(tokens,). Weights with the same inputs, such as q, k and v, share their rows. `NAME[3]` is expert 3 of a tensor that
stacks all experts. `transposed` lists the weights that are stored as (in, out), `NAME` for all experts of a tensor; if
the key is missing, it is inferred from the model's shapes. `model.json` maps each tensor of the model to a digest
(`engine.gathered_from`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ramerge.core.formats.files import read_json
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage.location import Location

PLACES = "inputs.json"
MODEL = "model.json"
_EXPERT = re.compile(r"(.+)\[(0|[1-9]\d{0,8})\]")
CALIBRATION = "calibration.json"
"""The file in an agent's folder that records what `ramerge calibrate` has gathered."""
IMPORTANCES = "importance"
"""The folder of importances within an agent's folder."""


class InputPlace(NamedTuple):
    """The names of a weight's recorded inputs.

    Attributes:
        rows: name of the tensor of rows.
        weights: name of the tensor with the weight of each row.
        transposed: whether the layer's weight is stored as (in, out); None if unknown.
    """

    rows: str
    weights: str
    transposed: bool | None = None


def name_of(tensor: str, expert: int) -> str:
    """Return the name of an expert's matrix in recorded statistics if one tensor stacks all experts."""
    return f"{tensor}[{expert}]"


def expert_of(name: str) -> tuple[str, int] | None:
    """Return the tensor that contains an expert's matrix, and the expert's index; None for other names."""
    match = _EXPERT.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def read_places(folder: Location) -> dict[str, InputPlace]:
    """Read the recorded inputs of each weight, by the weight's name."""
    path = folder / PLACES
    if not path.exists():
        raise CheckpointError(f"{folder}: holds no {PLACES}; give a folder that `ramerge calibrate` has made")
    content = read_json(path)
    places, transposed = content.get("inputs"), content.get("transposed")
    if not isinstance(places, dict) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)
        for pair in places.values()
    ):
        raise CheckpointError(
            f"{path}: inputs must map each weight to two names of tensors; run `ramerge calibrate` again"
        )
    if transposed is not None and not (
        isinstance(transposed, list) and all(isinstance(name, str) for name in transposed)
    ):
        raise CheckpointError(f"{path}: transposed must list names of weights; run `ramerge calibrate` again")
    transposed_names = None if transposed is None else frozenset(transposed)
    return {
        weight: InputPlace(
            rows, weights, None if transposed_names is None else (expert_of(weight) or (weight,))[0] in transposed_names
        )
        for weight, (rows, weights) in places.items()
    }


def read_digests(folder: Location) -> dict[str, str] | None:
    """Read the digests of the model from which statistics were gathered; None if there are none."""
    path = folder / MODEL
    if not path.exists():
        return None
    digests = read_json(path).get("digests")
    if not isinstance(digests, dict) or not all(isinstance(each, str) for each in digests.values()):
        raise CheckpointError(f"{path}: digests must map each tensor to a text; run `ramerge calibrate` again")
    return digests
