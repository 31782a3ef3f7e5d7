"""What the core must know of the layout of deltas: names in their folders, the size of their blocks, signed indices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

INDEX = "delta.safetensors.index.json"
"""A folder with this file is a delta in ramerge's layout."""

COMPANIONS = "companions"
"""The folder of what belongs to the model, in a delta's folder."""

BLOCK = 1 << 18
"""Elements of a block, the last one of a tensor excepted."""


def signed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an index with their digest."""
    return {**values, "metadata": {**values["metadata"], "index": digest_of_index(values)}}


def digest_of_index(values: Mapping[str, Any]) -> str:
    """The digest of an index: xxh3-128 of its JSON in ASCII, with sorted keys, no spaces, and no `metadata.index`."""
    metadata = {key: value for key, value in values["metadata"].items() if key != "index"}
    text = json.dumps({**values, "metadata": metadata}, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())
