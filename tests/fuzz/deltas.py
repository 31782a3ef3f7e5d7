"""Deltas: mutated indices, and flipped, cut and exchanged bytes of tables and blocks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import xxhash
from numpy.typing import NDArray

from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.weighted import mean_of
from ramerge.deltas.codec import NOTHING, BlockRow, BlockTable, DamagedError, Encoder, decode, fold, most_nbytes
from ramerge.deltas.index import DELTA_INDEX, signed
from tests.checkpoints import simple, write_checkpoint
from tests.deltas.writing import write_delta
from tests.fuzz.common import BATCH, check_refusal, folder
from tests.fuzz.mutate import json_text, torn

Case = tuple[str, bytes, tuple[int, ...]]
ELEMENTS = 300
DATA = "delta-00001.safetensors"


@cache
def _models() -> Path:
    place = folder("deltas")
    write_checkpoint(place / "base", simple(0, shape=(10, 10)))
    write_checkpoint(place / "agent", simple(1, moved=0.3, shape=(10, 10)))
    write_delta(place / "good", place / "base", place / "agent")
    return place


@cache
def _base() -> Checkpoint:
    return open_checkpoint(_models() / "base")


@cache
def _blocks() -> list[tuple[BlockRow, bytes]]:
    """Good blocks of every form, with and without compression."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 1 << 16, ELEMENTS, np.uint16)
    found = []
    for density in (0, 0.01, 0.3, 1):
        for compression in ("none", "zstd"):
            changes = rng.choice(np.array([1, 2, 3, 300], np.uint16), ELEMENTS)
            other = np.where(rng.random(ELEMENTS) < density, base ^ changes, base)
            made = Encoder(compression).encode(base, other)
            found.append((made.row, made.payload))
    return found


def cases(seed: int) -> Iterator[Case]:
    """What is changed, its bytes, and for a block the numbers of its row, but for the checksum."""
    rng = Random(seed)
    index, data = (_models() / "good" / DELTA_INDEX).read_bytes(), (_models() / "good" / DATA).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for _ in range(BATCH):
        kind = rng.choice(("index", "data", "block", "block"))
        if kind == "index":
            text = json_text(rng, json.loads(index))
            yield kind, _signed(text) if rng.random() < 0.8 else text, ()
        elif kind == "data":
            place = rng.randrange(start, len(data))
            yield kind, data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :], ()
        else:
            row, payload = rng.choice(_blocks())
            numbers = [row.begin, row.nbytes, row.updates, row.escapes, row.form]
            if rng.random() < 0.5:
                place, small = rng.randrange(5), (0, 1, 2, 17, 18, 33, 34, 273, 274, 290, 300, 301)
                numbers[place] = rng.choice((*small, numbers[place] + 1, 2**31, 2**63, 2**64 - 1))
            yield kind, torn(rng, payload) if rng.random() < 0.8 else payload, tuple(numbers)


def _signed(text: bytes) -> bytes:
    """The same with its digest, so that what it says is looked at; as it is where it is no index."""
    try:
        return json.dumps(signed(json.loads(text))).encode()
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return text


def check(case: Case) -> bool:
    """Opened and read, or refused; a block that is decoded differs in as many elements as it says, and no others."""
    kind, data, numbers = case
    if kind == "block":
        return _check_block(data, numbers)
    return _check_folder(DELTA_INDEX if kind == "index" else DATA, data)


def _check_folder(changed: str, data: bytes) -> bool:
    place = _models() / "case"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(_models() / "good", place, copy_function=os.link)
    (place / changed).unlink()
    (place / changed).write_bytes(data)
    try:
        opened = open_checkpoint(place, base=_base())
        with Files() as files:
            for tensor in opened.tensors.values():
                assert tensor.nbytes <= 400
                Reader(files).read(tensor, 0, tensor.elements, np.empty(tensor.nbytes, np.uint8))
                mean = mean_of(tensor.name, [_base().tensors[tensor.name], tensor], [0.5, 0.5])
                Reader(files).read(mean, 0, mean.elements, np.empty(mean.nbytes, np.uint8))
    except CheckpointError as error:
        check_refusal(error)
        return False
    return True


def _check_block(data: bytes, numbers: tuple[int, ...]) -> bool:
    begin, stored, moved, escaped, form = numbers
    row = BlockRow(begin, stored, moved, escaped, form, 0, bytes(16))
    words = np.zeros(ELEMENTS, np.uint16)
    try:
        row.check(ELEMENTS, 2, len(data))
        assert row.nbytes <= most_nbytes(ELEMENTS, 2)
        payload = np.frombuffer(data, np.uint8)[begin : begin + row.nbytes].copy()
        right = BlockRow(begin, stored, moved, escaped, form, xxhash.xxh3_64_intdigest(payload.data), bytes(16))
        decode([right], payload, words, words, Arena().take)
    except DamagedError:
        return _folded(numbers, data)
    assert np.count_nonzero(words) <= moved
    assert _folded(numbers, data, words)
    return True


def _folded(numbers: tuple[int, ...], data: bytes, words: NDArray[np.uint16] | None = None) -> bool:
    """Whether the same block as a link of a chain is read, which gives these words."""
    begin, stored, *rest = numbers
    payload = np.frombuffer(data, np.uint8)[begin : begin + stored].copy()
    held, total = np.zeros(2 * ELEMENTS, np.uint8), np.zeros(ELEMENTS, np.float32)
    row = np.array([begin, stored, *rest, xxhash.xxh3_64_intdigest(payload.data), 0, 0], np.uint64)
    try:
        table = BlockTable.check_rows(row.reshape(1, 1, -1), 0, ELEMENTS, 2, [len(data)])
        if table.forms != [NOTHING]:
            fold(table, payload, "BF16", held, [1.0], total, Arena().take)
    except DamagedError:
        return False
    assert words is not None, "a link takes what a delta refuses"
    assert held.view(np.uint16).tobytes() == words.tobytes()
    return True
