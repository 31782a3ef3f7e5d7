"""Indices of sharded checkpoints, and the names and links of the files next to them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

from ramerge.core.formats.open import open_checkpoint
from ramerge.core.formats.sidecars import companion_files
from ramerge.core.foundation.errors import CheckpointError
from tests.checkpoints import simple, write_checkpoint
from tests.fuzz.common import BATCH, check_refusal, folder
from tests.fuzz.mutate import NAMES, json_text

INDEX = "model.safetensors.index.json"
Case = tuple[bytes, str | None, str]


@cache
def _good() -> Path:
    return write_checkpoint(folder("indices") / "good", simple(0, shape=(2, 2)), shards=2)


def cases(seed: int) -> Iterator[Case]:
    """The index's text; the name of one more file; what it is: a copy of a shard, a link, or something else."""
    rng = Random(seed)
    document = json.loads((_good() / INDEX).read_bytes())
    for _ in range(BATCH):
        name = rng.choice((None, None, *NAMES)) if rng.random() < 0.3 else None
        text = json.dumps(document).encode() if name is not None else json_text(rng, document)
        yield text, name, rng.choice(("copy", "loop", "out", "broken", "folder", "pipe", "text"))


def check(case: Case) -> bool:
    """Opened with the tensors that the index names and the shards hold, or refused."""
    text, name, kind = case
    place = folder("indices") / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for path in _good().iterdir():
        if path.name != INDEX:
            os.link(path, place / path.name)
    (place / INDEX).write_bytes(text)
    if name is not None:
        _add(place, name, kind)
    try:
        opened = open_checkpoint(place)
        companions = companion_files(opened)
    except CheckpointError as error:
        check_refusal(error)
        return False
    assert set(opened.tensors) == set(json.loads(text)["weight_map"]) <= set(simple(0, shape=(2, 2)))
    assert all(path.is_file() for path in companions.values())
    return True


def _add(place: Path, name: str, kind: str) -> None:
    """One more file, where the file system takes its name."""
    with suppress(OSError, ValueError):
        path = place / (name.replace("/", "_").encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape"))
        path = path.with_name(path.name + (".safetensors" if kind in ("copy", "loop") else ""))
        if kind == "copy":
            os.link(next(place.glob("*.safetensors")), path)
        elif kind == "loop":
            path.symlink_to(path.name)
            (place / "config.json").unlink()
            (place / "config.json").symlink_to("config.json")
        elif kind == "out":
            path.symlink_to("/etc/hostname")
        elif kind == "broken":
            path.symlink_to("nowhere")
        elif kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_text("x")
