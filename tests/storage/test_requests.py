"""Requests for the sources of a block, and of blocks that follow one another."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage.location import Remote
from ramerge.core.storage.storage import Storage, Stream, Version
from ramerge.core.tensors.reader import Files, Reader, Span
from ramerge.core.tensors.tensor import Stored, Tensor
from tests.messages import Messages

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

    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        self.all_are_there.wait(30)
        if key == self.broken:
            raise CheckpointError(f"{key}: is broken")
        yield np.full(stop - start, NAMES.index(key) + start, np.uint8)
        self.ended.append(key)


def sources(storage: Storage) -> list[Tensor]:
    return [Tensor("weight", "BF16", (4,), Stored(Remote(storage, name), 0, 8)) for name in NAMES]


def test_block_sources_are_requested_together() -> None:
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
def test_error_waits_for_running_requests(broken: str, messages: Messages) -> None:
    storage = Meeting(broken)
    with Files() as files:
        reader = Reader(files)
        reader.begin(0, 4)
        with messages.raises(CheckpointError):
            reader.blocks(sources(storage))
        assert sorted(storage.ended) == sorted(set(NAMES) - {broken})


class Served(Storage):
    """A server of files of 4,096 bytes, which all differ.

    Args:
        sizes: of the chunks of answers, in turns.
        breaks: answers that break off after so many chunks, one after another; later ones are whole.
    """

    address = "s3://bucket/models"
    size = 4096

    def __init__(self, sizes: tuple[int, ...] = (64,), breaks: tuple[int, ...] = ()) -> None:
        self.sizes, self.breaks = sizes, list(breaks)
        self.asked: list[tuple[str, int, int]] = []
        self.ended: list[tuple[str, int, int]] = []
        self.content = {
            name: np.random.default_rng(number).integers(0, 256, self.size, np.uint8)
            for number, name in enumerate(NAMES)
        }

    def files(self) -> Mapping[str, Version]:
        return {name: Version(name, self.size, 0) for name in NAMES}

    def chunks(self, key: str, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        self.asked.append((key, start, stop))
        left, given, place = self.breaks.pop(0) if self.breaks else None, 0, start
        while place < stop:
            if given == left:
                raise CheckpointError(f"{key}: breaks off")
            size = self.sizes[given % len(self.sizes)]
            yield self.content[key][place : min(place + size, stop)]
            place, given = place + size, given + 1
        self.ended.append((key, start, stop))


def tensors_of(storage: Storage, extents: list[tuple[int, int]]) -> list[list[Tensor]]:
    """Tensors at bytes `start:stop` of every file."""
    return [
        [Tensor("w", "U8", (stop - start,), Stored(Remote(storage, name), start, stop - start)) for name in NAMES]
        for start, stop in extents
    ]


CUTS = st.lists(st.integers(0, Served.size), min_size=2, max_size=12, unique=True).map(sorted)


@given(
    cuts=CUTS,
    kept=st.lists(st.booleans(), min_size=11, max_size=11),
    block=st.integers(1, 1500),
    expected=st.lists(st.booleans(), min_size=1),
    read=st.lists(st.booleans(), min_size=1),
    shuffled=st.randoms(use_true_random=False) | st.none(),
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=3).map(tuple),
    breaks=st.lists(st.integers(1, 3), max_size=2).map(tuple),
)
def test_any_ranges_have_the_same_bytes(
    cuts: list[int],
    kept: list[bool],
    block: int,
    expected: list[bool],
    read: list[bool],
    shuffled: Random | None,
    sizes: tuple[int, ...],
    breaks: tuple[int, ...],
) -> None:
    """Tensors next to one another or apart, in order or not; of the blocks that are expected not all are read, and
    others are; answers come in chunks of any size, and some break off."""
    storage = Served(sizes, breaks)
    extents = [extent for extent, is_kept in zip(pairwise(cuts), kept, strict=False) if is_kept]
    spans = [
        Span(sources, first, min(first + block, stop - start))
        for sources, (start, stop) in zip(tensors_of(storage, extents), extents, strict=True)
        for first in range(0, stop - start, block)
    ]
    if shuffled is not None:
        shuffled.shuffle(spans)
    with Files() as files:
        reader = Reader(files)
        reader.expect(span for span, is_expected in zip(spans, cycle(expected)) if is_expected)
        for span, is_read in zip(spans, cycle(read)):
            if is_read:
                reader.begin(span.start, span.stop)
                for tensor, found in zip(span.tensors, reader.blocks(span.tensors), strict=True):
                    assert isinstance(tensor.origin, Stored)
                    begin = tensor.origin.offset + span.start
                    whole = storage.content[tensor.path.name][begin : begin + span.stop - span.start]
                    assert found[: whole.size].tobytes() == whole.tobytes()
                    assert not found[whole.size :].any()


def test_neighbors_are_one_request_a_file() -> None:
    storage, extents = Served(), [(8, 100), (100, 101), (101, 400), (500, 600)]
    spans = [Span(each, 0, each[0].elements) for each in tensors_of(storage, extents)]
    with Files() as files:
        reader = Reader(files)
        reader.expect(spans)
        assert storage.asked == [], "nothing is asked for before it is wanted"
        for span in spans:
            reader.begin(span.start, span.stop)
            reader.blocks(span.tensors)
    wanted = sorted((name, *extent) for name in NAMES for extent in [(8, 400), (500, 600)])
    assert sorted(storage.asked) == sorted(storage.ended) == wanted, "connections are free for further requests"


def test_sources_that_are_the_same_file() -> None:
    """The second one takes nothing that was meant for the first."""
    storage = Served()
    blocks = [[one, replace(one)] for one, *_ in tensors_of(storage, [(0, 64), (64, 100)])]
    with Files() as files:
        reader = Reader(files)
        reader.expect(Span(each, 0, each[0].elements) for each in blocks)
        for each, (start, stop) in zip(blocks, [(0, 64), (64, 100)], strict=True):
            reader.begin(0, stop - start)
            for found in reader.blocks(each):
                assert found[: stop - start].tobytes() == storage.content["base"][start:stop].tobytes()


def test_broken_answer_is_continued() -> None:
    storage, out = Served(breaks=(2, 1)), np.empty(1000, np.uint8)
    Stream(storage, "code", 100, 1100).fill(out)
    assert out.tobytes() == storage.content["code"][100:1100].tobytes()
    assert storage.asked == [("code", 100, 1100), ("code", 228, 1100), ("code", 292, 1100)]


@pytest.mark.parametrize(("breaks", "requests"), [((0,), 1), ((3, 0), 2)])
def test_empty_answer_is_an_error(breaks: tuple[int, ...], requests: int, messages: Messages) -> None:
    storage, out = Served(breaks=breaks), np.empty(1000, np.uint8)
    stream = Stream(storage, "code", 0, 1000)
    with messages.raises(CheckpointError):
        stream.fill(out)
    assert len(storage.asked) == requests
