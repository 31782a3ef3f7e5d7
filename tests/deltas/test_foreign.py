"""Deltas of trainers: every encoding gives the trainer's bytes, and every kind of damage is named."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import ramerge
from ramerge.core.formats.format import Opening
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import CheckpointError, OutputError
from ramerge.core.output.lifecycle import build_output
from ramerge.core.tensors.checkpoint import Checkpoint, Quantized
from ramerge.core.tensors.reader import Files, Reader
from ramerge.deltas.rebuild import write_agent
from ramerge.deltas.trainers import digests, grail, skyrl, slime, unpack
from ramerge.deltas.trainers.chain import TrainerLayout, links
from ramerge.deltas.trainers.convert import apply_links, convert
from ramerge.deltas.trainers.link import Link
from tests.checkpoints import alike, families, floats, read_checkpoint, simple, write_checkpoint
from tests.conformance.test_merge import same
from tests.deltas.foreign import CHECKSUMS, packed, write_grail, write_skyrl, write_slime
from tests.messages import Messages
from tests.reference import BITS, Stored

Model = dict[str, Stored]
Write = Callable[[Path, int, Model, Model], Path]

WRITERS: dict[str, tuple[TrainerLayout, Write]] = {
    **{
        f"slime {encoding} {checksum}": (slime.LAYOUT, partial(write_slime, encoding=encoding, checksum=checksum))
        for encoding in ("xor", "overwrite")
        for checksum in ("xxh3-128", "adler32")
    },
    "skyrl": (skyrl.LAYOUT, write_skyrl),
    "skyrl sha256": (skyrl.LAYOUT, partial(write_skyrl, checksum="sha256")),
    **{
        f"grail {version}": (
            grail.LAYOUT,
            lambda *given, v=version: write_grail(*given, previous=given[1] - 1, version=v),
        )
        for version in (2, 3, 31)
    },
    "grail sha256": (grail.LAYOUT, lambda *given: write_grail(*given, previous=given[1] - 1, old_hash=True)),
}


def result(base: Path, chain: list[Link], block: int = 1 << 18) -> Model:
    """What a chain makes of a base, checked for what it says that it was before."""
    opened = open_checkpoint(base)
    found = {}
    for tensor, blocks in apply_links(opened, chain, block):
        before, after = [], []
        for old, new in blocks:
            before.append(old.tobytes())
            after.append(new.tobytes())
        original = read_checkpoint(base)[tensor.name]
        assert b"".join(before) == original.bits.tobytes()
        bits = np.frombuffer(b"".join(after), original.bits.dtype).reshape(original.bits.shape)
        found[tensor.name] = Stored(tensor.dtype, bits)
    return found


def follow(layout: TrainerLayout, named: Path, base: Path) -> list[Link]:
    folder = layout.find(named)
    assert folder is not None
    return links(layout, folder, open_checkpoint(base), Opening())


def models(dtype: str = "BF16", count: int = 4) -> list[Model]:
    """A base and later versions of it, with a tensor that never changes and one of one dimension."""
    found: list[Model] = []
    for version in range(count):
        model = simple(version, dtype, moved=0.2 * (version > 0), shape=(100, 40))
        model["norm.weight"] = floats(np.arange(77) + version * (np.arange(77) % 5 == 0), dtype)
        model["constant.weight"] = floats(np.ones((3, 5)), dtype)
        found.append(model)
    return found


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("name", list(WRITERS))
def test_a_chain_gives_the_bytes_of_the_trainer(name: str, dtype: str, tmp_path: Path) -> None:
    layout, write = WRITERS[name]
    versions = models(dtype)
    base = write_checkpoint(tmp_path / "base", versions[0], shards=2)
    places = [write(tmp_path / "run", k, versions[k - 1], versions[k]) for k in (1, 2, 3)]
    for k, place in enumerate(places, 1):
        chain = follow(layout, place, base)
        assert [link.version for link in chain] == list(range(1, k + 1))
        for block in (1 << 18, 501):
            same(result(base, chain, block), versions[k])
    assert [link.version for link in follow(layout, tmp_path / "run", base)] == [1, 2, 3]


@pytest.mark.parametrize("name", list(WRITERS))
def test_nothing_changed(name: str, tmp_path: Path) -> None:
    layout, write = WRITERS[name]
    model = models(count=1)[0]
    base = write_checkpoint(tmp_path / "base", model)
    same(result(base, follow(layout, write(tmp_path / "run", 1, model, model), base)), model)


@pytest.mark.parametrize("name", list(WRITERS))
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_any_bits(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Signed zeros, NaN, integers, scalars and empty tensors."""
    layout, write = WRITERS[name]
    folder = tmp_path_factory.mktemp("any")
    before, (after,) = data.draw(families(kinds=[alike(1, dtype) for dtype in ("BF16", "F32", "F16")]))
    if layout is grail.LAYOUT:  # which writes neither scalars nor, as they are, other dtypes
        before = {name: one for name, one in before.items() if one.bits.shape and one.is_float}
        after = {name: _without_signs(before[name], after[name]) for name in before}
    base = write_checkpoint(folder / "base", before)
    same(result(base, follow(layout, write(folder / "run", 1, before, after), base), 13), after)


def _without_signs(before: Stored, after: Stored) -> Stored:
    """Zeros that only change their sign are not noticed."""
    return Stored(
        after.dtype, np.where(after.numbers(np.float64) == before.numbers(np.float64), before.bits, after.bits)
    )


def test_signed_zeros(tmp_path: Path, messages: Messages) -> None:
    before, after = {"w.weight": floats([0.0, 1.0])}, {"w.weight": floats([-0.0, 1.0])}
    base = write_checkpoint(tmp_path / "base", before)
    for name in ("slime xor xxh3-128", "slime overwrite xxh3-128", "skyrl"):
        layout, write = WRITERS[name]
        same(result(base, follow(layout, write(tmp_path / name, 1, before, after), base)), after)
    layout, write = WRITERS["grail 31"]
    with messages.raises(CheckpointError):
        result(base, follow(layout, write(tmp_path / "grail", 1, before, after), base))


def test_positions_of_every_width(tmp_path: Path) -> None:
    """Rows and columns that are far apart, and more than fit a piece."""
    before = {"wide.weight": floats(np.zeros((3, 200_000))), "tall.weight": floats(np.zeros((200_000, 2)))}
    after = {name: Stored(one.dtype, one.bits.copy()) for name, one in before.items()}
    for row, column in ((0, 5), (2, 3), (2, 199_999)):
        after["wide.weight"].bits[row, column] = 7
    after["tall.weight"].bits[[0, 300, 199_999], [1, 0, 1]] = 9
    dense = {
        **before,
        "tall.weight": Stored("BF16", (np.arange(400_000) % 30_000).astype(np.uint16).reshape(200_000, 2)),
    }
    base = write_checkpoint(tmp_path / "base", before)
    for place, (layout, write) in enumerate(WRITERS.values()):
        same(result(base, follow(layout, write(tmp_path / f"{place}", 1, before, after), base)), after)
        same(result(base, follow(layout, write(tmp_path / f"{place}-dense", 1, before, dense), base)), dense)


def test_tensors_that_two_ranks_write_are_applied_once(tmp_path: Path) -> None:
    versions = models(count=2)
    base = write_checkpoint(tmp_path / "base", versions[0])
    names = ["model.layers.0.weight", "norm.weight"]
    place = write_slime(tmp_path / "run", 1, *versions, ranks=3, twice=names)
    same(result(base, follow(slime.LAYOUT, place, base)), versions[1])


def test_a_whole_model_begins_a_new_chain(tmp_path: Path) -> None:
    versions = models()
    base = write_checkpoint(tmp_path / "base", versions[0])
    write_slime(tmp_path / "run", 1, versions[0], versions[1])
    write_checkpoint(tmp_path / "run/weight_v000002", versions[2])
    place = write_slime(tmp_path / "run", 3, versions[2], versions[3])
    chain = follow(slime.LAYOUT, place, base)
    assert [link.version for link in chain] == [2, 3]
    same(result(base, chain), versions[3])


def test_base_that_is_a_version_begins_the_chain(tmp_path: Path, messages: Messages) -> None:
    versions = models()
    base = write_checkpoint(tmp_path / "weight_v000002", versions[2])
    place = write_slime(tmp_path / "run", 3, versions[2], versions[3])
    assert [link.version for link in follow(slime.LAYOUT, place, base)] == [3]
    with messages.raises(CheckpointError):
        follow(slime.LAYOUT, write_slime(tmp_path / "other", 1, versions[0], versions[1]), base)
    full = write_checkpoint(tmp_path / "FULL", versions[2])
    (full / "metadata.json").write_text(json.dumps({"window": 60, "checkpoint_type": "FULL"}))
    place = write_grail(tmp_path / "run", 90, versions[2], versions[3], previous=60, anchor=30)
    same(result(full, follow(grail.LAYOUT, place, full)), versions[3])


# --- damage ----------------------------------------------------------------------------------------------------------


def broken(layout: TrainerLayout, place: Path, base: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as found:
        result(base, follow(layout, place, base))
    assert str(place.parent.parent) in str(found.value) or str(place.parent) in str(found.value)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Model, Model, Path]:
    before, after = models(count=2)
    return before, after, write_checkpoint(tmp_path / "base", before)


def edit(path: Path, change: Callable[[dict], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


INDEX = "model.safetensors.index.json"


def _slime_with(place: Path, name: str, payload: np.ndarray, **more: str) -> None:
    """Replace what a delta holds of a tensor."""
    weight_map = json.loads((place / INDEX).read_text())["weight_map"]
    path = place / weight_map[name]
    with safetensors.safe_open(path, "numpy") as file:
        digests = {**file.metadata(), **more}
    tensors = safetensors.numpy.load_file(path) | {name: payload}
    path.write_bytes(safetensors.numpy.save(tensors, metadata=digests))


NORM = "norm.weight"


def overwrite(positions: list[int], count: int | None = None) -> np.ndarray:
    size = len(positions) if count is None else count
    return packed(np.array([size, *positions], "<u4").tobytes() + bytes(len(positions)))


@pytest.mark.parametrize(
    ("encoding", "payload", "match"),
    [
        ("xor", packed(bytes(153)), "unpacks to 153 bytes, but the tensor has 154"),
        ("xor", packed(bytes(100_000_000)), "unpacks to 100,000,000 bytes"),
        ("xor", packed(bytes(154))[:-1], "is truncated|is damaged|checksum"),
        ("xor", packed(bytes(154))[:5], "truncated|not compressed with zstd"),
        ("xor", packed(bytes(154)), "does not have the checksum"),
        ("xor", np.concatenate([packed(bytes(154)), packed(bytes(9))]), "is damaged|continue|holds more"),
        ("xor", np.frombuffer(b"nothing", np.uint8), "not compressed with zstd"),
        ("xor", np.empty(0, np.uint8), "not compressed with zstd|truncated"),
        ("overwrite", overwrite([3, 3]), "do not ascend"),
        ("overwrite", overwrite([4, 3]), "do not ascend"),
        ("overwrite", overwrite([3, 154]), "position 154, but the last one is 153"),
        ("overwrite", overwrite([3], 2), "unpacks to 9 bytes, but 2 changed bytes take 14"),
        ("overwrite", overwrite([3], 155), "has 155 changed bytes, but the tensor has only 154"),
        ("overwrite", overwrite([3, 4], 1), "unpacks to 14 bytes"),
        ("overwrite", overwrite([3]), "does not have the checksum"),
        ("overwrite", packed(b"ab"), "is truncated"),
    ],
)
def test_payloads_of_slime(encoding: str, payload: np.ndarray, match: str, pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after, encoding=encoding)
    _slime_with(place, NORM, payload)
    broken(slime.LAYOUT, place, base, match)


def streamed(data: bytes, window: int = 20) -> np.ndarray:
    """A frame that does not say how much it holds."""
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return np.frombuffer(compressor.compress(data) + compressor.flush(), np.uint8)


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (streamed(bytes(155)), "holds more than it may"),
        (streamed(bytes(50_000_000)), "holds more than it may"),
        (streamed(bytes(153)), "is truncated"),
        (streamed(bytes(154), 27), "is damaged: .*memory"),
    ],
)
def test_frames_of_unknown_size_are_bounded(payload: np.ndarray, match: str, pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after)
    _slime_with(place, NORM, payload)
    broken(slime.LAYOUT, place, base, match)


def test_frame_of_unknown_but_right_size(pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after)
    xor = before[NORM].bits ^ after[NORM].bits
    _slime_with(place, NORM, streamed(xor.tobytes()))
    same(result(base, follow(slime.LAYOUT, place, base)), after)


METADATA = "metadata"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda index: index[METADATA].update(delta_encoding="diff"), "the encoding 'diff' is not known"),
        (lambda index: index[METADATA].update(compression_format="lz4"), "the compression 'lz4' is not zstd"),
        (lambda index: index[METADATA].update(checksum_format="md5"), "names the checksum 'md5'"),
        (lambda index: index[METADATA].update(version="x"), "version must be a number, not 'x'"),
        (lambda index: index[METADATA].update(version="000007"), "says that it is version 7, but its name says 1"),
        (lambda index: index[METADATA].update(base_version="000001"), "version 1 builds on version 1"),
        (lambda index: index.pop("weight_map"), "must have metadata and weight_map"),
        (lambda index: index["weight_map"].update({NORM: "../x.safetensors"}), "is no name of a safetensors file"),
        (lambda index: index["weight_map"].update({NORM: 3}), "is no name of a safetensors file"),
        (lambda index: index["weight_map"].update({NORM: "none.safetensors"}), "is missing"),
        (lambda index: index["weight_map"].update(ghost=index["weight_map"][NORM]), "lacks 'ghost'"),
        (lambda index: index["weight_map"].pop(NORM), "'norm.weight' is not in the index"),
    ],
)
def test_indices_of_slime(change: Callable[[dict], object], match: str, pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after, ranks=1)
    edit(place / INDEX, change)
    broken(slime.LAYOUT, place, base, match)


def test_checksums_of_slime(pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    frame = packed((before[NORM].bits ^ after[NORM].bits).tobytes())
    place = write_slime(tmp_path / "run", 1, before, after)
    _slime_with(place, NORM, frame, **{NORM: "0" * 32})
    broken(slime.LAYOUT, place, base, "does not have the checksum 0000")
    _slime_with(place, NORM, frame, **{NORM: "0" * 8})
    broken(slime.LAYOUT, place, base, "has no checksum")
    place = write_slime(tmp_path / "twice", 1, before, after, ranks=2, twice=[NORM])
    first = next(
        path
        for path in place.glob("*.safetensors")
        if path.name != json.loads((place / INDEX).read_text())["weight_map"][NORM]
    )
    with safetensors.safe_open(first, "numpy") as file:
        metadata = file.metadata()
    first.write_bytes(
        safetensors.numpy.save(
            safetensors.numpy.load_file(first) | {NORM: frame}, metadata={**metadata, NORM: "1" * 32}
        )
    )
    broken(slime.LAYOUT, place, base, "in several files, which disagree")


@pytest.mark.parametrize(
    "name", ["slime xor xxh3-128", "slime overwrite xxh3-128", "skyrl", "grail 2", "grail 3", "grail 31"]
)
def test_a_flipped_bit_anywhere(name: str, pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    layout, write = WRITERS[name]
    place = write(tmp_path / "run", 1, before, after)
    files = [path for path in place.iterdir() if path.suffix in (".safetensors", ".zst")]
    rng = np.random.default_rng(3)
    for _ in range(40):
        path = files[rng.integers(len(files))]
        good = path.read_bytes()
        at = int(rng.integers(len(good)))
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << rng.integers(8)]) + good[at + 1 :])
        try:
            same(
                result(base, follow(layout, place, base)), after
            )  # nothing that is read: padding, or a copy's checksum
        except CheckpointError as error:
            assert str(place) in str(error)
        path.write_bytes(good)


def test_links_of_a_chain(tmp_path: Path) -> None:
    versions = models()
    base = write_checkpoint(tmp_path / "base", versions[0])
    for name in ("slime xor xxh3-128", "skyrl", "grail 31"):
        layout, write = WRITERS[name]
        run = tmp_path / name
        first, second, third = (write(run, k, versions[k - 1], versions[k]) for k in (1, 2, 3))
        named = layout.find(second)
        assert named is not None
        numbered = named if layout.number(named) is not None else named.parent
        numbered.rename(run / "away")
        broken(layout, third, base, "builds on version 2, which is not in")
        (run / "away").rename(numbered)
        twin = numbered.with_name(
            numbered.name.replace("2", "02") if layout is not skyrl.LAYOUT else f"{numbered.name}_{'0' * 16}"
        )
        twin.mkdir()
        broken(layout, third, base, "is version 2, and so is")
        twin.rmdir()
        swapped = write_checkpoint(tmp_path / f"other {name}", versions[3])
        broken(layout, first, swapped, "checksum")


@pytest.mark.parametrize("name", ["slime xor xxh3-128", "skyrl", "grail 31"])
def test_bases_that_do_not_fit(name: str, pair: tuple, tmp_path: Path) -> None:
    before, after, _ = pair
    layout, write = WRITERS[name]
    place = write(tmp_path / "run", 1, before, after)
    lacking = write_checkpoint(tmp_path / "lacking", {key: one for key, one in before.items() if key != NORM})
    broken(layout, place, lacking, "changes 'norm.weight', which .* does not have")
    other = write_checkpoint(tmp_path / "wider", {**before, NORM: floats(np.zeros(78))})
    broken(layout, place, other, "changes 'norm.weight' as|unpacks to 154 bytes, but the tensor has 156")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m.update(version=2), "is version 2, but its name says 1"),
        (lambda m: m.update(base_version=-1), "base_version must be a number"),
        (lambda m: m["tensors"].append(m["tensors"][0]), "is there twice"),
        (lambda m: m["tensors"].pop(), "has 3 tensors, but the files hold 4"),
        (lambda m: m["tensors"][0].update(shape=[-1]), "has the shape"),
        (lambda m: m["tensors"][0].update(dtype="bfloat17"), "its dtype 'bfloat17'"),
        (lambda m: m["tensors"][0].update(dtype="float32"), "changes .* as F32"),
        (lambda m: m["tensors"][0].update(compressed_num_bytes=1), "compressed bytes, but the manifest says 1"),
        (lambda m: m["tensors"][0].update(payload_key="x"), "does not hold its compressed bytes as 'x'"),
        (lambda m: m["tensors"][0].update(payload_file="x"), "does not hold its compressed bytes"),
        (lambda m: m["tensors"][0].update(payload_key=m["tensors"][1]["payload_key"]), "compressed bytes|files hold"),
        (lambda m: m["tensors"][0].update(checksum_algorithm="crc"), "names the checksum 'crc'"),
        (lambda m: m["tensors"][0].update(checksum="0"), "has no checksum"),
        (lambda m: m["tensors"][0].update(checksum="0" * 32), "does not have the checksum"),
        (lambda m: m.update(payload_files=["../a.safetensors"]), "is no name of a safetensors file"),
        (lambda m: m.update(payload_files=m["payload_files"] * 2), "a list of different names"),
        (lambda m: m.update(tensors=3), "must be a list of records"),
    ],
)
def test_manifests_of_skyrl(change: Callable[[dict], object], match: str, pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_skyrl(tmp_path / "run", 1, before, after)
    edit(place / "manifest.json", change)
    broken(skyrl.LAYOUT, place, base, match)


def _regrail(place: Path, change: Callable[[dict, bytearray], object]) -> None:
    """Change header and data of a delta of grail, whose manifest then has the new checksum."""
    import hashlib

    import zstandard

    path = place / "delta_sparse.bin.zst"
    raw = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    length = int.from_bytes(raw[:4], "little")
    header, data = json.loads(raw[4 : 4 + length]), bytearray(raw[4 + length :])
    change(header, data)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(packed(len(text).to_bytes(4, "little") + text + data).tobytes())
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(place / "metadata.json", lambda metadata: metadata["file_manifest"].update({path.name: found}))


@pytest.mark.parametrize(
    ("version", "change", "match"),
    [
        (31, lambda h, d: h.update(version=3), "is not of version 31"),
        (31, lambda h, d: h.update(tensors=None), "has no list of tensors"),
        (31, lambda h, d: h["tensors"].reverse(), "where .* is right|names must ascend"),
        (31, lambda h, d: h["tensors"][0].update(num_nonzero=10**9), "have changed, of 4,000"),
        (31, lambda h, d: h["tensors"][0].update(num_nonzero=1), "says indices_size|says values_size"),
        (31, lambda h, d: h["tensors"][0].update(values_offset=0), "says values_offset 0"),
        (31, lambda h, d: h["tensors"][0].update(value_dtype="float64"), "values of 'float64'"),
        (31, lambda h, d: h["tensors"][0].update(row_dtype="int8"), "positions of"),
        (31, lambda h, d: h["tensors"][0].update(shape=[]), "the shape"),
        (31, lambda h, d: h["tensors"][0].update(shape=[40, 100]), "changes .* as BF16"),
        (31, lambda h, d: d.extend(b"more"), "describes .* bytes, but the file unpacks to"),
        (31, lambda h, d: d.__delitem__(slice(-4, None)), "describes .* bytes, but the file unpacks to"),
        (
            31,
            lambda h, d: d.__setitem__(h["tensors"][0]["rows_size"], 255),
            "has row .* and column|checksum|do not ascend",
        ),
        (2, lambda h, d: d.__setitem__(slice(4, 8), b"\0\0\0\0"), "do not ascend"),
        (2, lambda h, d: d.__setitem__(slice(4, 8), b"\xff\xff\xff\xff"), "do not ascend"),
        (2, lambda h, d: d.__setitem__(slice(0, 4), b"\xff\xff\xff\x7f"), "but the last one is 3,999"),
        (3, lambda h, d: d.__setitem__(slice(0, 4), b"\xff\xff\xff\xff"), "do not ascend"),
        (3, lambda h, d: d.__setitem__(slice(0, 4), b"\xff\xff\xff\x7f"), "has row"),
        (3, lambda h, d: d.__setitem__(-1, d[-1] ^ 1), "the resulting model does not have the checksum"),
    ],
)
def test_data_of_grail(version: int, change: Callable, match: str, pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_grail(tmp_path / "run", 1, before, after, version=version)
    _regrail(place, change)
    broken(grail.LAYOUT, place, base, match)


@pytest.mark.parametrize(
    ("file", "change", "match"),
    [
        ("delta_metadata.json", lambda m: m.update(format="sparse_coo"), "the format 'sparse_coo' is not read"),
        ("delta_metadata.json", lambda m: m.update(prev_window=5), "disagree about what it builds on"),
        ("delta_metadata.json", lambda m: m.update(threshold=1.0), "delta_metadata.json: is damaged"),
        ("metadata.json", lambda m: m.update(weights_hash=None), "has no weights_hash"),
        ("metadata.json", lambda m: m.update(weights_hash="0" * 32), "does not have the checksum 0000"),
        ("metadata.json", lambda m: m.update(checkpoint_type="FULL"), "says that this is no delta"),
        ("metadata.json", lambda m: m.update(file_manifest=3), "file_manifest must map"),
        ("metadata.json", lambda m: m["file_manifest"].update({"delta_sparse.bin.zst": "0"}), "is damaged"),
    ],
)
def test_metadata_of_grail(
    file: str, change: Callable[[dict], object], match: str, pair: tuple, tmp_path: Path
) -> None:
    before, after, base = pair
    place = write_grail(tmp_path / "run", 1, before, after)
    edit(place / file, change)
    broken(grail.LAYOUT, place, base, match)


# --- opened as agents ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cache(own_cache: Path) -> Path:
    return own_cache


def contents(opened: Checkpoint) -> Model:
    """The tensors of an opened model."""
    found = {}
    with Files(opened.files) as files:
        for name, tensor in opened.tensors.items():
            reader = Reader(files)
            reader.begin(0, tensor.elements)
            bits = reader.block(tensor)[: tensor.nbytes].view(BITS[tensor.dtype]).reshape(tensor.shape)
            found[name] = Stored(tensor.dtype, bits)
    return found


@pytest.mark.parametrize("name", list(WRITERS))
def test_opened_over_the_base(name: str, cache: Path, tmp_path: Path, messages: Messages) -> None:
    layout, write = WRITERS[name]
    versions = models()
    base = open_checkpoint(write_checkpoint(tmp_path / "base", versions[0], shards=2))
    first, second, third = (write(tmp_path / "run", k, versions[k - 1], versions[k]) for k in (1, 2, 3))
    opened = open_checkpoint(third, base=base)
    assert (opened.format, opened.config, opened.metadata_folder) == (layout.name, base.config, base.metadata_folder)
    assert (list(opened.tensors), opened.shards) == (list(base.tensors), base.shards)
    assert re.search(
        "versions 1 to 3 of deltas of .*, unpacked to .*, which may be deleted at any time", opened.notes[0]
    )
    same(contents(opened), versions[3])
    same(contents(open_checkpoint(tmp_path / "run", base=base)), versions[3])
    (made,) = (cache / "deltas").iterdir()
    stacked = open_checkpoint(second, base=open_checkpoint(first, base=base))
    assert "version 2 of" in stacked.notes[0]
    same(contents(stacked), versions[2])
    assert len(list((cache / "deltas").iterdir())) == 3
    same(contents(open_checkpoint(third, base=open_checkpoint(first, base=base))), versions[3])
    with messages.raises(CheckpointError):
        open_checkpoint(second, base=stacked)
    made = (cache / "deltas") / re.findall("deltas/([0-9a-f]+),", opened.notes[0])[0]
    written = made.stat().st_ino
    open_checkpoint(third, base=base)
    assert made.stat().st_ino == written
    shutil.rmtree(cache / "deltas")
    same(contents(open_checkpoint(third, base=base)), versions[3])


def test_it_needs_a_base_and_an_unquantized_one(pair: tuple, tmp_path: Path, messages: Messages) -> None:
    before, after, base = pair
    for name, (_, write) in WRITERS.items():
        place = write(tmp_path / name, 1, before, after)
        with messages.raises(CheckpointError):
            open_checkpoint(place)
        opened = open_checkpoint(base)
        quantized = Quantized("float8", frozenset(), "BF16", {}, {})
        with messages.raises(CheckpointError):
            open_checkpoint(place, base=replace(opened, quantized=quantized))


def test_what_is_refused_leaves_nothing(pair: tuple, cache: Path, tmp_path: Path, messages: Messages) -> None:
    before, after, _ = pair
    for name in ("slime xor xxh3-128", "grail 31"):
        _, write = WRITERS[name]
        place = write(tmp_path / name, 1, after, before)
        with messages.raises(CheckpointError):
            open_checkpoint(
                place, base=open_checkpoint(write_checkpoint(tmp_path / f"{name} base", models(count=3)[2]))
            )
    assert list((cache / "deltas").iterdir()) == []


def test_what_a_killed_process_left_is_replaced(pair: tuple, cache: Path, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after)
    opened = open_checkpoint(base)
    open_checkpoint(place, base=opened)
    (made,) = (cache / "deltas").iterdir()
    partial = made.with_name(f".{made.name}.partial")
    made.rename(partial)
    (partial / "delta.safetensors.index.json").unlink()
    made.mkdir()
    same(contents(open_checkpoint(place, base=opened)), after)
    assert [path.name for path in (cache / "deltas").iterdir()] == [made.name]


def test_two_processes_unpack_once(pair: tuple, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after)
    calls = []

    def slow(*given: Any, **more: Any) -> Any:
        calls.append(1)
        time.sleep(0.1)
        return convert(*given, **more)

    monkeypatch.setattr(unpack, "convert", slow)
    opened = open_checkpoint(base)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: open_checkpoint(place, base=opened), range(3)):
            same(contents(found), after)
    assert len(calls) == 1


def test_a_changed_file_is_unpacked_anew(pair: tuple, cache: Path, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after)
    same(contents(open_checkpoint(place, base=open_checkpoint(base))), after)
    shutil.rmtree(place)
    write_slime(tmp_path / "run", 1, before, models(count=3)[2])
    same(contents(open_checkpoint(place, base=open_checkpoint(base))), models(count=3)[2])


def test_cache_writable_by_others_is_refused(pair: tuple, cache: Path, tmp_path: Path) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after)
    open_checkpoint(place, base=open_checkpoint(base))
    (made,) = (cache / "deltas").iterdir()
    made.chmod(0o777)
    with pytest.raises(OutputError, match=str(made)):
        open_checkpoint(place, base=open_checkpoint(base))


def test_what_was_not_used_for_long_is_removed(pair: tuple, cache: Path, tmp_path: Path) -> None:
    before, after, base = pair
    old, theirs = cache / "deltas" / ("0" * 40), cache / "deltas" / "experiments"
    for folder in (old, theirs):
        folder.mkdir(parents=True, mode=0o700)
        os.utime(folder, (0, 0))
    (cache / "deltas").chmod(0o700)
    open_checkpoint(write_slime(tmp_path / "run", 1, before, after), base=open_checkpoint(base))
    assert not old.exists() and theirs.exists()


def test_full_disk_is_an_output_error(
    pair: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("RAMERGE_CACHE", str(blocked))
    with pytest.raises(OutputError, match="cannot be written"):
        open_checkpoint(place, base=open_checkpoint(base))
    monkeypatch.setattr("ramerge.core.foundation.store.folder", lambda _kind: None)
    with messages.raises(CheckpointError):
        open_checkpoint(place, base=open_checkpoint(base))


def test_blake3_is_refused_without_its_package(pair: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, base = pair
    place = write_slime(tmp_path / "run", 1, before, after)
    edit(place / INDEX, lambda index: index[METADATA].update(checksum_format="blake3"))
    monkeypatch.setattr(digests, "find_spec", lambda _name: None)
    broken(slime.LAYOUT, place, base, r"are blake3, which cannot be verified without another package: pip install")


@pytest.mark.needs("blake3")
def test_blake3_with_its_package(pair: tuple, tmp_path: Path) -> None:
    import blake3

    before, after, base = pair
    CHECKSUMS["blake3"] = lambda data: blake3.blake3(data).hexdigest()
    place = write_slime(tmp_path / "run", 1, before, after, checksum="blake3")
    same(result(base, follow(slime.LAYOUT, place, base)), after)


# --- folders that are not read ---------------------------------------------------------------------------------------


def test_folders_that_an_engine_patches(pair: tuple, tmp_path: Path, messages: Messages) -> None:
    """The state of slime's patch for SGLang (docker/patch/latest/sglang-pull_weights.patch) and of SkyRL's store."""
    before, _, base = pair
    sync = base / ".weight_sync"
    sync.mkdir()
    with messages.raises(CheckpointError):
        open_checkpoint(base)
    (sync / "state.json").write_text('{"version": "000002"}')
    assert "may have been interrupted" in open_checkpoint(base).warnings[0]
    assert slime.version_of(base) == 2
    with (sync / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with messages.raises(CheckpointError):
            open_checkpoint(base)
    weights = write_checkpoint(tmp_path / "local/weights", before)
    state = tmp_path / "local/.skyrl_weight_sync/state.json"
    state.parent.mkdir()
    for text in ('{"version": 1, "write_in_progress": true, "target_version": 2}', "{}"):
        state.write_text(text)
        with messages.raises(CheckpointError):
            open_checkpoint(weights)
    state.write_text('{"version": 2, "write_in_progress": false, "target_version": null}')
    same(contents(open_checkpoint(weights)), before)
    assert skyrl.version_of(weights) == 2


def test_a_model_beside_deltas_is_a_model(pair: tuple, tmp_path: Path) -> None:
    before, after, base = pair
    write_slime(base, 1, before, after)
    write_grail(base, 1, before, after)
    same(contents(open_checkpoint(base)), before)


@pytest.mark.parametrize("name", ["slime xor xxh3-128", "grail 31"])
def test_applied_to_the_agents_files(name: str, tmp_path: Path) -> None:
    """They are those of the base with other words: same shards, same headers, same files next to them."""
    _, write = WRITERS[name]
    before, after = models(count=2)
    base = write_checkpoint(tmp_path / "base", before, shards=2)
    (base / "tokenizer.json").write_text("{}")
    agent = open_checkpoint(write(tmp_path / "run", 1, before, after), base=open_checkpoint(base))
    with build_output(tmp_path / "out", overwrite=False) as stage:
        write_agent(agent, stage)
    wanted = write_checkpoint(tmp_path / "wanted", after, shards=2)
    (wanted / "tokenizer.json").write_text("{}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in wanted.iterdir())
    for path in wanted.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.needs("torch")
def test_tied_tensors_that_a_checkpoint_stores_twice(tmp_path: Path) -> None:
    """A base of torch whose names share their bytes; the trainer publishes both, or one that then differs."""
    from tests.formats.trainers import write_bin

    before, after = models(count=2)
    shared = before["model.layers.0.weight"]
    before |= {"lm_head.weight": shared}
    base = write_bin(tmp_path / "base", before)
    for changed in (after["model.layers.0.weight"], shared):
        wanted = {**after, "lm_head.weight": changed}
        place = write_slime(tmp_path / f"run {changed is shared}", 1, before, wanted, ranks=3)
        same(contents(open_checkpoint(place, base=open_checkpoint(base))), wanted)


def test_a_recipe_names_them_as_deltas(tmp_path: Path) -> None:
    """One version after the other, all versions of a run, and a delta of ours made of them: the same merge."""
    versions = models(count=3)
    base = write_checkpoint(tmp_path / "base", versions[0])
    write_checkpoint(tmp_path / "full", versions[2])
    run = tmp_path / "run"
    first, second = (write_slime(run, k, versions[k - 1], versions[k]) for k in (1, 2))
    ramerge.delta(base, second, tmp_path / "ours")
    results = []
    for place, agent in enumerate(
        (
            {"model": str(tmp_path / "full")},
            {"delta": [str(first), str(second)]},
            {"delta": str(run)},
            {"delta": str(tmp_path / "ours")},
        )
    ):
        other = {"delta": str(first)}
        recipe = {"method": "ram", "base": str(base), "agents": {"a": agent, "b": other}}
        ramerge.merge(recipe, tmp_path / f"out {place}")
        results.append(read_checkpoint(tmp_path / f"out {place}"))
    for found in results[1:]:
        same(found, results[0])


@pytest.mark.parametrize("name", ["slime xor xxh3-128", "slime overwrite adler32", "grail 31"])
def test_long_chains_are_unpacked_in_parts(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "_MOST_LINKS", 2)
    _, write = WRITERS[name]
    versions = models(count=7)
    base = open_checkpoint(write_checkpoint(tmp_path / "base", versions[0]))
    for k in range(1, 7):
        write(tmp_path / "run", k, versions[k - 1], versions[k])
    opened = open_checkpoint(tmp_path / "run", base=base)
    assert "versions 1 to 6 of" in opened.notes[0]
    same(contents(opened), versions[6])
    assert len(list((cache / "deltas").iterdir())) == 3  # up to versions 2, 4 and 6


def test_versions_that_are_links(tmp_path: Path, messages: Messages) -> None:
    versions = models(count=3)
    base = open_checkpoint(write_checkpoint(tmp_path / "base", versions[0]))
    first = write_slime(tmp_path / "elsewhere", 1, versions[0], versions[1])
    second = write_slime(tmp_path / "run", 2, versions[1], versions[2])
    (tmp_path / "run" / first.name).symlink_to(first)
    with messages.raises(CheckpointError):
        open_checkpoint(second, base=base)
    same(contents(open_checkpoint(second, base=base, allow_outside_links=True)), versions[2])
    (tmp_path / "run" / "latest").symlink_to(second)
    same(contents(open_checkpoint(tmp_path / "run" / "latest", base=base, allow_outside_links=True)), versions[2])
