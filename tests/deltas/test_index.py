"""Deltas: what goes in comes out to the byte, and whatever is wrong with them is an error that says where."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import ramerge
from ramerge.core.foundation.errors import CheckpointError, RamergeError
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.tensor import Stored as InFile
from ramerge.core.tensors.tensor import Tensor
from ramerge.deltas.codec import BITMAP, BLOCK, GAPS, NOTHING, BlockRow, DamagedError, EncodedBlock, Encoder, decode
from ramerge.deltas.format import stored_header
from ramerge.deltas.index import DELTA_INDEX, read_index, signed
from ramerge.deltas.patched import Patched
from tests.checkpoints import floats, read_checkpoint, recipe, simple, write_checkpoint
from tests.deltas.test_word_patches import drawn
from tests.deltas.writing import apply, blocks_of_elements, opened, write_delta
from tests.messages import Messages
from tests.reference import Stored
from tests.tiers import at_most

ELEMENTS = 40 * 16


def write_models(folder: Path) -> None:
    """A base and two later versions, in one file and in several."""
    write_checkpoint(folder / "base", simple(0))
    write_checkpoint(folder / "v1", simple(1, moved=0.2), shards=2)
    write_checkpoint(folder / "v2", simple(2, moved=0.05), shards=3)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_models(tmp_path)
    return tmp_path


def equal(left: Path, right: Path) -> bool:
    return subprocess.run(["diff", "-r", left, right], check=False).returncode == 0


# --- blocks ----------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 1000),
    st.integers(1, 3000),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0.0, 0.003, 0.1, 0.4, 1.0]),
    st.sampled_from(["none", "zstd"]),
)
@settings(max_examples=at_most(50), deadline=None)
def test_a_block_comes_back(seed: int, size: int, width: int, density: float, compression: Any) -> None:
    base, other = drawn(seed, size, width, density)
    found = Encoder(compression).encode(base, other)
    row = BlockRow.from_numbers(found.row.numbers)
    assert row == found.row
    row.check(size, width, len(found.payload))
    assert row.updates == np.count_nonzero(base != other)
    out = np.empty_like(base)
    decode([row], np.frombuffer(found.payload, np.uint8), base, out, Arena().take)
    assert np.array_equal(out, other)


def block_of(seed: int, size: int) -> tuple[np.ndarray, np.ndarray, EncodedBlock]:
    """A block whose form is drawn: nothing, gaps or a bitmap, one plane or two, compressed or not."""
    rng = np.random.default_rng(seed)
    base, other = drawn(seed, size, 2, float(rng.choice([0.0, 0.01, 0.5])))
    base, other = (words & (255 if rng.random() < 0.5 else 65535) for words in (base, other))
    return base, other, Encoder(rng.choice(["none", "zstd"])).encode(base, other)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.integers(1, 600), st.randoms(), st.data())
@settings(max_examples=at_most(50), deadline=None)
def test_blocks_of_all_forms_are_read_together(
    tmp_path_factory: pytest.TempPathFactory, seeds: list[int], last: int, random: Any, data: st.DataObject
) -> None:
    size = 600
    blocks = [*(block_of(seed, size) for seed in seeds[:-1]), block_of(seeds[-1], last)]
    rows, stored, order = [each.row for _, _, each in blocks], b"", [*range(len(blocks))]
    if data.draw(st.booleans()):
        random.shuffle(order)
    for number in order:
        rows[number] = rows[number]._replace(begin=len(stored))
        stored += blocks[number][2].payload
    base, other = (np.concatenate([block[side] for block in blocks]) for side in (0, 1))
    path = tmp_path_factory.mktemp("delta") / "all"
    table = np.concatenate([row.numbers for row in rows]).tobytes()
    path.write_bytes(base.tobytes() + table + stored)
    parts = [InFile(path, 0, base.nbytes), InFile(path, base.nbytes, len(table))]
    parts.append(InFile(path, base.nbytes + len(table), len(stored)))
    below = Tensor("w", "BF16", base.shape, parts[0])
    tensor = Tensor("w", "BF16", base.shape, Patched(below, parts[1], parts[2] if stored else None, "d"))
    start = data.draw(st.integers(0, base.size - 1))
    stop = data.draw(st.integers(start + 1, base.size))
    with pytest.MonkeyPatch.context() as patch, Files() as files:
        blocks_of_elements(size, patch)
        arena = Arena(tensor.scratch(stop - start))
        out = np.empty(2 * (stop - start), np.uint8)
        Reader(files, arena).read(tensor, start, stop, out)
    assert np.array_equal(out.view(np.uint16), other[start:stop])
    assert not arena.excess_count


def test_damaged_block_among_several_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 600
    blocks = [drawn(seed, size, 2, density) for seed, density in enumerate((0.0, 0.5, 0.5, 0.01))]
    found = [Encoder().encode(*block) for block in blocks]
    base = np.concatenate([block[0] for block in blocks])
    blocks_of_elements(size, monkeypatch)
    payload = np.frombuffer(b"".join(each.payload for each in found), np.uint8)
    rows = [each.row for each in found]
    decode(rows, payload, base, np.empty_like(base), Arena().take)
    for index in (1, 2, 3):
        fewer = rows[index]._replace(updates=rows[index].updates - 1)
        wrong = [*rows[:index], fewer, *rows[index + 1 :]]
        with pytest.raises(DamagedError) as error:
            decode(wrong, payload, base, np.empty_like(base), Arena().take)
        assert error.value.index == index
        flipped = payload.copy()
        flipped[sum(row.nbytes for row in rows[:index])] ^= 1
        with pytest.raises(DamagedError, match="checksum") as error:
            decode(rows, flipped, base, np.empty_like(base), Arena().take)
        assert error.value.index == index


@pytest.mark.parametrize(
    ("density", "most", "form"),
    [
        (0, 1, NOTHING),
        (0.01, 1, GAPS + 16),
        (0.01, 1 << 15, GAPS + 32),
        (0.5, 255, BITMAP + 16),
        (1, 300, BITMAP + 16),
        (1, 1 << 15, BITMAP + 32),
    ],
)
def test_small_forms_are_chosen(density: float, most: int, form: int) -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 1 << 16, 5000, np.uint16)
    other = np.where(rng.random(5000) < density, base ^ rng.integers(1, most + 1, 5000, np.uint16), base)
    assert Encoder("none").encode(base, other).row.form == form


def packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    ("form", "moved", "escaped", "payload"),
    [
        (GAPS + 32, 1, 0, b"\xc8\1\0"),  # outside
        (GAPS + 32, 2, 0, b"\1\1\0\1\0"),  # fewer positions than values
        (GAPS + 32, 1, 0, b"\1\xff\1\0"),  # a gap without an end
        (GAPS + 16, 1, 1, b"\1\1\0\1"),  # a long value that is not needed
        (GAPS + 16, 1, 0, b"\1\0"),  # one that is missing
        (GAPS + 16, 2, 1, b"\1\1\0\0\0\1"),
        (BITMAP + 16, 1, 0, bytes(16) + b"\1"),
        (BITMAP + 16, 1, 0, bytes(15) + b"\x80\1"),
        (BITMAP + 16, 1, 0, b"\1" + bytes(7) + b"\1"),
        (BITMAP + 16, 1, 1, b"\1" + bytes(15) + b"\1\0\1"),
        (BITMAP + 16, 1, 0, b"\1" + bytes(15) + b"\0"),
        (GAPS + 16 + 256, 1, 0, packed(bytes(1 << 24))),  # a bomb
        (GAPS + 16 + 256, 1, 0, packed(b"")),
        (GAPS + 16 + 256, 1, 0, packed(b"\1")),
        (GAPS + 16 + 256, 1, 0, b"nothing"),
        (GAPS + 16 + 256, 1, 0, packed(b"\1\1")[:-1]),
        (GAPS + 16 + 256, 1, 0, packed(b"\1\1") + b"more"),
        (GAPS + 16 + 256, 1, 0, b""),
        (GAPS + 16 + 256, 1, 0, zstandard.ZstdCompressor(write_content_size=False).compress(b"\1\1")),
        (BITMAP + 16 + 256, 1, 0, packed(b"\1\1")),
    ],
)
def test_bytes_that_are_no_block_are_refused(form: int, moved: int, escaped: int, payload: bytes) -> None:
    row = BlockRow(0, len(payload), moved, escaped, form, xxhash.xxh3_64_intdigest(payload), bytes(16))
    words = np.zeros(100, np.uint16)
    with pytest.raises(DamagedError):
        row.check(100, 2, len(payload))
        decode([row], np.frombuffer(payload, np.uint8), words, words, Arena().take)


@pytest.mark.parametrize(
    "numbers",
    [
        {"form": 3 + 16},
        {"form": GAPS},
        {"form": GAPS + 48},
        {"form": GAPS + 16 + 512},
        {"form": 16},
        {"form": GAPS + 32},
        {"updates": 101},
        {"updates": 0},
        {"form": NOTHING},
        {"nbytes": 6},
        {"nbytes": 13},
        {"escapes": 6},
        {"escapes": 1},
        {"begin": 2**63},
        {"begin": 12},
        {"form": GAPS + 16 + 256, "nbytes": 13},
    ],
)
def test_rows_that_lie_are_refused(numbers: dict[str, int]) -> None:
    good = {"begin": 0, "nbytes": 10, "updates": 5, "escapes": 0, "form": GAPS + 16, "payload": 0}
    BlockRow(**good, base=b"").check(100, 2, 20)
    with pytest.raises(DamagedError):
        BlockRow(**(good | numbers), base=b"").check(100, 2, 20)


# --- whole deltas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("block", [64, BLOCK])
def test_the_agent_comes_back_to_the_byte(
    models: Path, compression: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks_of_elements(block, monkeypatch)
    (models / "v1/tokenizer.json").write_text("{}")
    (models / "v1/chat_templates").mkdir()
    (models / "v1/chat_templates/tool.jinja").write_text("hello")
    (models / "base/vocab.txt").write_text("which the agent lacks")
    delta = write_delta(models / "delta", models / "base", models / "v1", compression=compression)
    assert equal(apply(models / "back", models / "base", delta), models / "v1")


def test_a_chain_comes_back_to_the_byte(models: Path) -> None:
    write_delta(models / "d1", models / "base", models / "v1")
    write_delta(models / "d2", models / "v1", models / "v2")
    assert equal(apply(models / "back", models / "base", models / "d1", models / "d2"), models / "v2")


WORDS = {"BF16": "u2", "F16": "u2", "F32": "u4", "F64": "u8", "I64": "u8", "I32": "u4", "U8": "u1", "BOOL": "u1"}
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def two_models(draw: st.DrawFn) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """A base and an agent, of any dtypes, with tensors that only one has, or both in other shapes or dtypes."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))

    def tensor(dtype: str, shape: tuple[int, ...]) -> Stored:
        return Stored(dtype, rng.integers(0, 256, (*shape, int(WORDS[dtype][1])), np.uint8).view(WORDS[dtype])[..., 0])

    kinds = st.sampled_from(sorted(WORDS))
    base, agent = {}, {"kept": floats([1.0])}
    for place in range(draw(st.integers(0, 5))):
        name, dtype, shape = f"layer:{place}", draw(kinds), draw(SHAPES)
        fate = draw(st.sampled_from(["same", "moved", "dropped", "added", "dtype", "shape"]))
        if fate != "added":
            base[name] = tensor(dtype, shape)
        if fate == "same":
            agent[name] = base[name]
        elif fate == "moved":
            other = tensor(dtype, shape).bits
            agent[name] = Stored(dtype, np.where(rng.random(shape) < 0.3, other, base[name].bits).astype(WORDS[dtype]))
        elif fate != "dropped":
            agent[name] = tensor(draw(kinds) if fate == "dtype" else dtype, draw(SHAPES) if fate == "shape" else shape)
    return base | {"first": floats([2.0])}, agent


@given(two_models(), st.sampled_from([1, 3]), st.sampled_from([4, BLOCK]))
@settings(max_examples=15, deadline=None)
def test_any_two_models(
    tmp_path_factory: pytest.TempPathFactory, models: tuple[Any, Any], shards: int, block: int
) -> None:
    folder = tmp_path_factory.mktemp("models")
    write_checkpoint(folder / "base", models[0])
    write_checkpoint(folder / "agent", models[1], shards=min(shards, len(models[1])))
    with pytest.MonkeyPatch.context() as patch:
        blocks_of_elements(block, patch)
        delta = write_delta(folder / "delta", folder / "base", folder / "agent")
        assert equal(apply(folder / "back", folder / "base", delta), folder / "agent")


def test_safetensors_library_reads_delta_files(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.numpy import load_file

    monkeypatch.setattr("ramerge.deltas.write._FULL", 1000)
    delta = write_delta(models / "delta", models / "base", models / "v1")
    assert len(list(delta.glob("delta-*.safetensors"))) == 2
    weight_map = json.loads((delta / DELTA_INDEX).read_text())["weight_map"]
    found = {name: tensor for path in delta.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert found.keys() == weight_map.keys()
    assert found["blocks:model.layers.0.weight"].shape == (1, 8)
    assert equal(apply(models / "back", models / "base", delta), models / "v1")


# --- what is wrong is an error, and nothing is written ---------------------------------------------------------------


def refused(models: Path, *deltas: Path, base: str = "base") -> str:
    """What applying and merging say; neither leaves anything behind."""
    with pytest.raises(CheckpointError) as found:
        apply(models / "back", models / base, *deltas)
    named = "+".join(map(str, deltas))
    with pytest.raises(RamergeError):
        ramerge.merge(
            recipe(models, []) | {"base": str(models / base), "agents": {"a": named, "b": named}}, models / "m"
        )
    assert not (models / "back").exists()
    assert not (models / "m").exists()
    return str(found.value)


def test_a_delta_without_its_index_is_no_model(models: Path, messages: Messages) -> None:
    delta = write_delta(models / "delta", models / "base", models / "v1")
    (delta / DELTA_INDEX).unlink()
    messages.check(refused(models, delta))


def test_another_base_is_refused(models: Path) -> None:
    delta = write_delta(models / "delta", models / "base", models / "v1")
    tensors = simple(0)
    tensors["model.layers.2.weight"].bits[3, 3] ^= 1
    write_checkpoint(models / "other", tensors)
    text = refused(models, delta, base="other")
    assert "'model.layers.2.weight' differs from the base of the delta" in text
    assert json.loads((delta / DELTA_INDEX).read_text())["metadata"]["base"] in text
    assert str(models / "other/model.safetensors") in text


def test_unchanged_tensor_must_be_the_bases(models: Path, messages: Messages) -> None:
    write_checkpoint(models / "same", simple(0))
    delta = write_delta(models / "delta", models / "base", models / "same")
    messages.check(refused(models, delta, base="v1"))


def test_links_of_a_chain(models: Path, messages: Messages) -> None:
    first = write_delta(models / "d1", models / "base", models / "v1")
    second = write_delta(models / "d2", models / "v1", models / "v2")
    back = write_delta(models / "d3", models / "base", models / "v2")
    digest = json.loads((first / DELTA_INDEX).read_text())["metadata"]["result"]
    assert digest in refused(models, second)
    assert "two deltas for the same model" in refused(models, first, back)
    assert "in the wrong order" in refused(models, second, first)
    assert "two deltas for the same model" in refused(models, first, first)
    with messages.raises(CheckpointError):
        ramerge.plan({"method": "linear", "agents": {"a": str(first)}}, models / "m")
        raise CheckpointError(ramerge.plan({"method": "linear", "agents": {"a": str(first)}}, models / "m").problems)


def test_recipes_say_that_an_agent_is_a_delta(models: Path, messages: Messages) -> None:
    first = write_delta(models / "d1", models / "base", models / "v1")
    second = write_delta(models / "d2", models / "v1", models / "v2")
    source = recipe(models, ["v1"], "task_arithmetic")
    wanted = source | {"agents": {"a": str(models / "v1"), "b": str(models / "v2")}}
    given = source | {"agents": {"a": {"delta": first}, "b": {"delta": [str(first), str(second)]}}}
    ramerge.merge(wanted, models / "wanted")
    ramerge.merge(given, models / "given")
    assert (models / "wanted/model.safetensors").read_bytes() == (models / "given/model.safetensors").read_bytes()
    ramerge.merge(models / "given/ramerge.yaml", models / "again")
    assert (models / "wanted/model.safetensors").read_bytes() == (models / "again/model.safetensors").read_bytes()
    plan = ramerge.plan(source | {"agents": {"a": {"delta": models / "v1"}}}, models / "m")
    assert any("is not a delta (safetensors files)" in text for text in plan.problems)
    plan = ramerge.plan(source | {"agents": {"a": f"{first}+{models / 'v2'}"}}, models / "m")
    assert any("only adapters and deltas can be added" in text for text in plan.problems)
    with messages.raises(RamergeError):
        ramerge.plan(source | {"agents": {"a": {"delta": str(first), "model": "x"}}}, models / "m")


def entry_of(delta: Path, name: str) -> tuple[Path, int, int]:
    """The file of an entry, and its bytes there."""
    path = delta / json.loads((delta / DELTA_INDEX).read_text())["weight_map"][name]
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    return path, 8 + length + begin, 8 + length + end


def changed_at(path: Path, place: int, change: Callable[[int], int] = lambda byte: byte ^ 16) -> None:
    data = bytearray(path.read_bytes())
    data[place] = change(data[place])
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 30, 100])
def test_a_flipped_bit_of_the_data(models: Path, place: int, messages: Messages) -> None:
    delta = write_delta(models / "delta", models / "base", models / "v1")
    path, begin, _ = entry_of(delta, "data:model.layers.1.weight")
    changed_at(path, begin + place)
    messages.check(refused(models, delta))


@pytest.mark.parametrize("column", range(8))
def test_a_flipped_bit_of_a_table(models: Path, column: int) -> None:
    delta = write_delta(models / "delta", models / "base", models / "v1")
    path, begin, _ = entry_of(delta, "blocks:model.layers.1.weight")
    changed_at(path, begin + 8 * column + 2)
    assert "'model.layers.1.weight'" in refused(models, delta)


@pytest.mark.full
def test_every_flipped_bit_of_a_stored_header(models: Path) -> None:
    """A header may be changed in ways that leave it valid: other metadata, another order of keys."""
    delta = write_delta(models / "delta", models / "base", models / "v1")
    path, begin, end = entry_of(delta, "header:model-00001-of-00002.safetensors")
    index, whole = read_index(delta / DELTA_INDEX), path.read_bytes()
    for bit in range(8 * (end - begin)):
        changed_at(path, begin + bit // 8, lambda byte, bit=bit: byte ^ 1 << bit % 8)
        with pytest.raises(CheckpointError, match=r"00001-of-00002\.safetensors"):
            stored_header(delta, index, "model-00001-of-00002.safetensors")
        path.write_bytes(whole)


def test_a_wrong_result_is_refused(models: Path, messages: Messages) -> None:
    """Digests of results are looked at where the agent itself is written."""
    delta = write_delta(models / "delta", models / "base", models / "v1")
    index = json.loads((delta / DELTA_INDEX).read_text())
    index["tensors"]["model.layers.0.weight"]["result"] = "0" * 32
    (delta / DELTA_INDEX).write_text(json.dumps(signed(index)))
    with messages.raises(CheckpointError):
        apply(models / "back", models / "base", delta)
    assert not (models / "back").exists()


def test_truncated_and_missing_files(models: Path, messages: Messages) -> None:
    delta = write_delta(models / "delta", models / "base", models / "v1")
    path = delta / "delta-00001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    messages.check(refused(models, delta))
    path.unlink()
    messages.check(refused(models, delta))


def test_a_companion_that_changed(models: Path, messages: Messages) -> None:
    (models / "v1/config.json").write_text('{"model_type": "test", "torch_dtype": "bfloat16", "x": 1}')
    delta = write_delta(models / "delta", models / "base", models / "v1")
    assert opened(models / "base", delta).config["x"] == 1
    (delta / "companions/config.json").write_text("{}")
    with messages.raises(CheckpointError):
        apply(models / "back", models / "base", delta)


def set_in(*keys: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(index: dict[str, Any]) -> None:
        place: Any = index
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return change


NAME = "model.layers.0.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_in("metadata", "format", to="other"), "another format"),
        (set_in("metadata", "version", to=2), "version 2"),
        (set_in("metadata", "block", to=7), "blocks of 7"),
        (set_in("metadata", "base", to="x"), "digests"),
        (set_in("tensors", NAME, "dtype", to="F4"), "dtype 'F4'"),
        (set_in("tensors", NAME, "dtype", to="F16"), "from a base in float16"),
        (set_in("tensors", NAME, "shape", to=[1 << 40, 1 << 40]), "cannot have shape"),
        (set_in("tensors", NAME, "shape", to=[-1, -640]), "cannot have shape"),
        (set_in("tensors", NAME, "shape", to=[16, 40]), "is that another model"),
        (set_in("tensors", NAME, "moved", to=641), "cannot have 641"),
        (set_in("tensors", NAME, "kind", to="whole"), "is stored whole, and says that"),
        (lambda index: index["tensors"][NAME].update(kind="whole", moved=640), "lack 'whole:"),
        (set_in("tensors", NAME, "kind", to="odd"), "kind"),
        (set_in("tensors", NAME, "result", to=""), "has no digest"),
        (set_in("tensors", "x", to=None), "get the delta again"),
        (set_in("weight_map", "data:" + NAME, to="../delta-00001.safetensors"), "leads out"),
        (set_in("weight_map", "data:" + NAME, to="delta-00002.safetensors"), "is missing"),
        (set_in("weight_map", "data:y", to="delta-00001.safetensors"), "which the index lists"),
        (set_in("companions", "../x", to={"same": False, "digest": ""}), "leads out"),
        (set_in("companions", "x", to={"same": False, "digest": ""}), "is missing"),
        (set_in("shards", "../x", to=[]), "leads out"),
        (set_in("companions", "./.", to={"same": False, "digest": ""}), "leads out"),
        (
            set_in("companions", "model-00001-of-00002.safetensors", to={"same": False, "digest": ""}),
            "is a shard and a companion",
        ),
        (set_in("shards", "model-00001-of-00002.safetensors", to=[]), "every tensor once"),
        (set_in("headers", to={}), "its headers are not those that its files hold"),
        (set_in("dropped", to=[NAME]), "is there too"),
        (set_in("dropped", to=["y"]), "which the base"),
    ],
)
def test_an_index_that_lies(models: Path, change: Callable[[dict[str, Any]], None], said: str) -> None:
    delta = write_delta(models / "delta", models / "base", models / "v1")
    index = json.loads((delta / DELTA_INDEX).read_text())
    change(index)
    (delta / DELTA_INDEX).write_text(json.dumps(signed(index)))
    assert said in refused(models, delta)


def test_an_index_that_lies_about_how_much_moved(models: Path, messages: Messages) -> None:
    """Only who reads all of a tensor notices it."""
    delta = write_delta(models / "delta", models / "base", models / "v1")
    index = json.loads((delta / DELTA_INDEX).read_text())
    moved = index["tensors"][NAME]["moved"]
    index["tensors"][NAME]["moved"] = moved - 1
    (delta / DELTA_INDEX).write_text(json.dumps(signed(index)))
    with messages.raises(CheckpointError):
        apply(models / "back", models / "base", delta)
    assert not (models / "back").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["companions"].pop("config.json"),
        lambda index: index["shards"].update(x=index["shards"].popitem()[1]),
        set_in("metadata", "base", to="0" * 32),
        set_in("metadata", "index", to="0" * 32),
    ],
)
def test_an_index_that_somebody_has_changed(
    models: Path, change: Callable[[dict[str, Any]], None], messages: Messages
) -> None:
    """What contradicts nothing else is found by the index's own digest. How the text is set does not matter."""
    delta = write_delta(models / "delta", models / "base", models / "v1")
    index = json.loads((delta / DELTA_INDEX).read_text())
    (delta / DELTA_INDEX).write_text(json.dumps(index))
    opened(models / "base", delta)
    change(index)
    (delta / DELTA_INDEX).write_text(json.dumps(index))
    messages.check(refused(models, delta))


def test_reading_a_part_reads_its_blocks_only(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks_of_elements(64, monkeypatch)
    delta = write_delta(models / "delta", models / "base", models / "v1")
    model, wanted = opened(models / "base", delta), read_checkpoint(models / "v1")
    with Files(model.files) as files:
        for start, stop in ((0, ELEMENTS), (1, 2), (63, 65), (100, 400), (ELEMENTS - 1, ELEMENTS)):
            out = np.empty(2 * (stop - start), np.uint8)
            Reader(files).read(model.tensors[NAME], start, stop, out)
            assert np.array_equal(out.view(np.uint16), wanted[NAME].bits.reshape(-1)[start:stop])
