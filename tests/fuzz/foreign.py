"""Deltas of trainers: indices, manifests, headers and payloads that were changed, over a base that was not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import zstandard

from ramerge.core.formats.format import Opening
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.deltas.trainers import grail, skyrl, slime
from ramerge.deltas.trainers.chain import TrainerLayout, links
from ramerge.deltas.trainers.convert import apply_links
from tests.checkpoints import simple, write_checkpoint
from tests.deltas.foreign import packed, write_grail, write_skyrl, write_slime
from tests.fuzz.common import BATCH, check_refusal, folder
from tests.fuzz.mutate import json_text, torn

SHAPE = (6, 20)
Case = tuple[str, str, bytes]
LAYOUTS: dict[str, TrainerLayout] = {
    "slime": slime.LAYOUT,
    "overwrite": slime.LAYOUT,
    "skyrl": skyrl.LAYOUT,
    "grail 2": grail.LAYOUT,
    "grail 31": grail.LAYOUT,
}
INDEX = "model.safetensors.index.json"


@cache
def _good() -> tuple[Checkpoint, dict[str, Path], list[bytes]]:
    """The base, a delta of each kind, and the bytes of the tensors that all of them make."""
    home = folder("foreign")
    before, after = simple(0, shape=SHAPE), simple(1, moved=0.3, shape=SHAPE)
    places = {
        "slime": write_slime(home / "slime", 1, before, after),
        "overwrite": write_slime(home / "overwrite", 1, before, after, encoding="overwrite", checksum="adler32"),
        "skyrl": write_skyrl(home / "skyrl", 1, before, after),
        "grail 2": write_grail(home / "grail 2", 1, before, after, version=2),
        "grail 31": write_grail(home / "grail 31", 1, before, after),
    }
    base = open_checkpoint(write_checkpoint(home / "base", before))
    return base, places, [after[name].bits.tobytes() for name in sorted(after)]


def cases(seed: int) -> Iterator[Case]:
    """Which delta, the name of a file, and what it holds instead."""
    rng = Random(seed)
    _, places, _ = _good()
    for _ in range(BATCH):
        kind = rng.choice(list(LAYOUTS))
        path = rng.choice(sorted(path for path in places[kind].iterdir() if path.stat().st_size > 10))
        data = path.read_bytes()
        if path.suffix == ".json":
            yield kind, path.name, json_text(rng, json.loads(data))
        elif path.suffix == ".zst" and rng.random() < 0.8:
            yield kind, path.name, _sparse(rng, zstandard.ZstdDecompressor().decompress(data))
        elif path.suffix == ".safetensors" and rng.random() < 0.8:
            yield kind, path.name, _payloads(rng, data)
        else:
            yield kind, path.name, torn(rng, data)


def _sparse(rng: Random, raw: bytes) -> bytes:
    """A frame of grail with a changed header, or changed data."""
    length = int.from_bytes(raw[:4], "little")
    text, data = raw[4 : 4 + length], raw[4 + length :]
    if rng.random() < 0.6:
        text = json_text(rng, json.loads(text))
    else:
        data = torn(rng, data)
    told = len(text) if rng.random() < 0.9 else rng.choice((0, 1, len(text) - 1, 2**31, 2**32 - 1))
    return packed(told.to_bytes(4, "little") + text + data).tobytes()


def _payloads(rng: Random, data: bytes) -> bytes:
    """A safetensors file in which a frame holds something else, or as much as it should not."""
    length = int.from_bytes(data[:8], "little")
    header, begin = json.loads(data[8 : 8 + length]), 8 + length
    names = [name for name in header if name != "__metadata__"]
    chosen = rng.choice(names)
    found: list[bytes] = []
    position = 0
    for name in names:
        first, last = header[name]["data_offsets"]
        payload = data[begin + first : begin + last]
        if name == chosen:
            payload = _frame(rng, payload)
        header[name] = {"dtype": "U8", "shape": [len(payload)], "data_offsets": [position, position + len(payload)]}
        found.append(payload)
        position += len(payload)
    text = json.dumps(header).encode() if rng.random() < 0.8 else json_text(rng, header)
    return len(text).to_bytes(8, "little") + text + b"".join(found)


def _frame(rng: Random, payload: bytes) -> bytes:
    choice = rng.randrange(4)
    if choice == 0:
        return torn(rng, payload)
    if choice == 1:
        return packed(bytes(rng.choice((0, 1, 239, 241, 3_000_000)))).tobytes()
    content = zstandard.ZstdDecompressor().decompress(payload)
    if choice == 2:
        return packed(torn(rng, content)).tobytes()
    positions = np.array([rng.choice((0, 1, 2**31, 2**32 - 1)) for _ in range(rng.randrange(5))], "<u4")
    return packed(positions.tobytes() + bytes(rng.randrange(300))).tobytes()


def check(case: Case) -> bool:
    """What the trainer made, or refused."""
    kind, name, data = case
    base, places, wanted = _good()
    place = folder("foreign") / "case" / (places[kind].name if "grail" not in kind else "checkpoint-1")
    shutil.rmtree(place.parent, ignore_errors=True)
    place.mkdir(parents=True)
    for path in places[kind].iterdir():
        if path.name != name:
            os.link(path, place / path.name)
    (place / name).write_bytes(data)
    if name.endswith(".zst"):
        _sign(place, name)
    layout = LAYOUTS[kind]
    try:
        found = layout.find(place)
        if found is None:
            return False
        chain = links(layout, found, base, Opening())
        if chain[0].is_whole:
            return False
        made = [b"".join(new.tobytes() for _, new in blocks) for _, blocks in apply_links(base, chain, 50)]
    except CheckpointError as error:
        check_refusal(error)
        return False
    # a delta that says of fewer tensors that they changed is as good; a checksum vouches for each that is there
    assert all(one in pair for one, *pair in zip(made, wanted, _bytes_of_base(), strict=True))
    return True


@cache
def _bytes_of_base() -> tuple[bytes, ...]:
    before = simple(0, shape=SHAPE)
    return tuple(before[name].bits.tobytes() for name in sorted(before))


def _sign(place: Path, name: str) -> None:
    """Note the checksum of a file that was changed, so that its content is looked at."""
    metadata = json.loads((place / "metadata.json").read_text())
    metadata["file_manifest"][name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
    (place / "metadata.json").unlink()
    (place / "metadata.json").write_text(json.dumps(metadata))
