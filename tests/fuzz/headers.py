"""Headers of safetensors files, with the library of safetensors as the oracle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from safetensors import SafetensorError, deserialize

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.header import read_header
from tests.fuzz.common import BATCH, check_refusal, folder
from tests.fuzz.mutate import json_text, torn

# Why a header is refused that the library takes: what would be lost or unclear, and what no model has.
DOCUMENTED = re.compile(
    r"more than once|must have exactly the keys|key of more than|too many values|nested more than|overflows 64 bits"
)


def good(rng: Random) -> tuple[dict[str, object], int]:
    """A header that is right, and the bytes of its data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}} if rng.random() < 0.5 else {}
    position = 0
    for place in range(rng.randrange(4)):
        dtype, size = rng.choice((("BF16", 2), ("F32", 4), ("I64", 8), ("F8_E4M3", 1), ("BOOL", 1)))
        shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
        nbytes = size
        for extent in shape:
            nbytes *= extent
        header[f"model.layers.{place}.weight"] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [position, position + nbytes],
        }
        position += nbytes
    return header, position


def cases(seed: int) -> Iterator[bytes]:
    """Whole files."""
    rng = Random(seed)
    for _ in range(BATCH):
        header, size = good(rng)
        text = json_text(rng, header) + b" " * rng.choice((0, 0, 5))
        length = len(text) if rng.random() < 0.95 else rng.choice((0, 1, len(text) + 1, 2**31, 2**63, 99_999_999))
        data = length.to_bytes(8, "little") + text + bytes(max(0, size + rng.choice((0, 0, 0, 0, 0, 1, -1))))
        yield torn(rng, data) if rng.random() < 0.05 else data


def check(case: bytes) -> bool:
    """What the library refuses is refused; what it takes is taken, or there is a reason."""
    path = folder("headers") / "model.safetensors"
    path.write_bytes(case)
    try:
        theirs: object = deserialize(case)
    except SafetensorError as error:
        theirs = error
    try:
        ours = read_header(path)
    except CheckpointError as error:
        check_refusal(error)
        assert isinstance(theirs, SafetensorError) or all(map(DOCUMENTED.search, error.problems)), error
        return False
    assert isinstance(theirs, list), theirs
    assert {(name, entry["dtype"], tuple(entry["shape"]), len(entry["data"])) for name, entry in theirs} == {
        (entry.name, entry.dtype, entry.shape, entry.end - entry.begin) for entry in ours.entries
    }
    return True
