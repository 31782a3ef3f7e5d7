"""Requests for the sources of a block."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from ramerge.checkpoint.read import Files, Reader
from ramerge.checkpoint.storage.place import Remote
from ramerge.checkpoint.storage.storage import Storage, Version
from ramerge.checkpoint.tensor import Stored, Tensor
from ramerge.foundation.errors import CheckpointError

NAMES = ("base", "code", "tool")


class Meeting(Storage):
    """A server that answers when it was asked for three files."""

    address = "s3://bucket/models"

    def __init__(self, broken: str = "") -> None:
        self.all_are_there = threading.Barrier(len(NAMES))
        self.broken = broken
        self.ended: list[str] = []

    def files(self) -> Mapping[str, Version]:
        return {name: Version(name, 8, 0) for name in NAMES}

    def fill(self, key: str, position: int, out: NDArray[np.uint8]) -> None:
        self.all_are_there.wait(30)
        if key == self.broken:
            raise CheckpointError(f"{key}: is broken")
        out[:] = NAMES.index(key) + position
        self.ended.append(key)


def sources(storage: Storage) -> list[Tensor]:
    return [Tensor("weight", "BF16", (4,), Stored(Remote(storage, name), 0, 8)) for name in NAMES]


def test_the_sources_of_a_block_are_asked_for_at_the_same_time() -> None:
    with Files() as files:
        reader, tensors = Reader(files), sources(Meeting())
        reader.begin(1, 4)
        blocks = reader.blocks(tensors)
        expected = [[2] * 6 + [0] * 2, [3] * 6 + [0] * 2, [4] * 6 + [0] * 2]
        assert [block.tolist() for block in blocks] == expected
        again = reader.blocks([*tensors, tensors[0]])
    assert [block.tolist() for block in again] == [*expected, expected[0]], "they are held"


def test_files_are_read_again_after_they_were_closed() -> None:
    """A process of a cluster does one task after another with the same files."""
    files = Files()
    for _task in range(2):
        reader = Reader(files)
        reader.begin(1, 4)
        assert [block.tolist()[0] for block in reader.blocks(sources(Meeting()))] == [2, 3, 4]
        files.close()


@pytest.mark.parametrize("broken", NAMES)
def test_an_error_comes_when_no_request_writes_any_more(broken: str) -> None:
    storage = Meeting(broken)
    with Files() as files:
        reader = Reader(files)
        reader.begin(0, 4)
        with pytest.raises(CheckpointError, match=f"{broken}: is broken"):
            reader.blocks(sources(storage))
        assert sorted(storage.ended) == sorted(set(NAMES) - {broken})
