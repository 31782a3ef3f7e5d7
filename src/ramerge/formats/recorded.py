"""Recorded inputs of linear layers: a folder of safetensors files, and `inputs.json`, which says whose inputs they are.

    {"inputs": {"model.layers.0.self_attn.q_proj.weight": ["rows.0", "weights"], ...}, ...}

Each weight is mapped to a tensor of rows, shape (tokens, width), and to one of how much each row counts, shape
(tokens,). Weights that see the same inputs, as q, k and v do, share their rows. `ramerge calibrate` writes them.
"""

from __future__ import annotations

from ramerge.formats.files import read_json
from ramerge.foundation.errors import CheckpointError
from ramerge.storage.location import Location

PLACES = "inputs.json"


def read_places(folder: Location) -> dict[str, tuple[str, str]]:
    """For each weight the names of the tensors with its rows and with how much each of them counts.

    Raises:
        CheckpointError: there is no such file, or it is wrong.
    """
    path = folder / PLACES
    if not path.exists():
        raise CheckpointError(f"{folder}: holds no {PLACES}; give a folder that `ramerge calibrate` has made")
    places = read_json(path).get("inputs")
    if not isinstance(places, dict) or not all(map(_is_pair, places.values())):
        raise CheckpointError(
            f"{path}: inputs must map each weight to two names of tensors; run `ramerge calibrate` again"
        )
    return {weight: (rows, weights) for weight, (rows, weights) in places.items()}


def read_model(folder: Location) -> str | None:
    """The digest of the model that inputs were recorded of (`engine.recorded`); None if the folder does not state it.

    Raises:
        CheckpointError: as for `read_places`.
    """
    path = folder / PLACES
    model = read_json(path).get("model") if path.exists() else None
    return model if isinstance(model, str) else None


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(name, str) for name in value)
