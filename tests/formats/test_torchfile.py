"""Files of torch.save without torch: what is read, and a file for each way to attack or to lie."""

import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramerge.core.formats.torchfile.archive import Archive, window
from ramerge.core.formats.torchfile.instructions import Stub
from ramerge.core.formats.torchfile.load import View, load_file, load_plain
from ramerge.core.formats.views import tensor_of
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.reader import Files, Reader
from tests.messages import Messages

DATA = bytes(range(24))


def archive(
    path: Path,
    pickled: bytes,
    storages: dict[str, bytes] | None = None,
    *,
    method: int = zipfile.ZIP_STORED,
    **more: bytes,
) -> Path:
    """An archive as torch.save writes it, but with any pickle."""
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("archive/data.pkl", pickled)
        for name, data in more.items():
            file.writestr(f"archive/{name}", data)
        file.writestr("archive/data/0", DATA)
    return path


def text(value: str) -> bytes:
    return pickle.SHORT_BINUNICODE + bytes([len(value)]) + value.encode()


def name(module: str, attribute: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def number(value: int) -> bytes:
    data = value.to_bytes(9, "little", signed=True)
    return pickle.LONG1 + b"\x09" + data


def numbers(*values: int) -> bytes:
    return pickle.MARK + b"".join(map(number, values)) + pickle.TUPLE


def storage(kind: str = "FloatStorage", key: str = "0", elements: int = 6, module: str = "torch") -> bytes:
    parts = text("storage") + name(module, kind) + text(key) + text("cuda:3") + number(elements)
    return pickle.MARK + parts + pickle.TUPLE + pickle.BINPERSID


def tensor(
    shape: tuple[int, ...] = (2, 3), strides: tuple[int, ...] = (3, 1), start: int = 0, held: bytes | None = None
) -> bytes:
    hooks = name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    args = (held or storage()) + number(start) + numbers(*shape) + numbers(*strides) + pickle.NEWFALSE + hooks
    return name("torch._utils", "_rebuild_tensor_v2") + pickle.MARK + args + pickle.TUPLE + pickle.REDUCE


def state(**values: bytes) -> bytes:
    items = b"".join(text(key) + value for key, value in values.items())
    return pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS + pickle.STOP


def raw(*parts: bytes) -> bytes:
    return pickle.PROTO + b"\x02" + b"".join(parts) + pickle.STOP


def elements(view: View) -> bytes:
    found = tensor_of("x", view)
    out = np.zeros(found.nbytes, np.uint8)
    with Files() as files:
        Reader(files).read(found, 0, found.elements, out)
    return out.tobytes()


def test_a_tensor_is_where_its_elements_are(tmp_path: Path) -> None:
    path = archive(tmp_path / "x", state(a=tensor(), b=tensor((2, 2), (2, 1), 2), t=tensor((3, 2), (1, 3))))
    found = load_file(path)
    assert elements(found["a"]) == DATA
    assert elements(found["b"]) == DATA[8:]
    assert np.frombuffer(elements(found["t"]), "<f4").tobytes() == np.frombuffer(DATA, "<f4").reshape(2, 3).T.tobytes()


def test_an_archive_inside_of_a_file(tmp_path: Path, messages: Messages) -> None:
    inner = archive(tmp_path / "x", state(a=tensor())).read_bytes()
    (tmp_path / "y").write_bytes(b"before" + inner + b"after")
    with window(tmp_path / "y") as file:
        entries = Archive(file.part(6, len(inner))).entries
        assert set(entries) == {"data.pkl", "data/0"}
        with messages.raises(CheckpointError):
            file.part(7, len(inner) + 5)


class Gadget:
    """What pickle would call when it is loaded."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.args


class WithState:
    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, (), {"x": 1}, iter([Gadget(os.system, "touch attacked")])


GADGETS = {
    "system": Gadget(os.system, "touch attacked"),
    "exec": Gadget(exec, "open('attacked', 'w')"),
    "eval": Gadget(eval, "open('attacked', 'w')"),
    "getattr": Gadget(getattr, "", "format"),
    "import": Gadget(__import__, "antigravity"),
    "open": Gadget(open, "attacked", "w"),
    "numpy": np.zeros(3),
    "numpy scalar": np.float64(1),
    "partial": partial(print, "x"),
    "bytearray": bytearray(b"x"),
    "set": {1, 2},
    "complex": 1j,
    "items of a list": WithState(),
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("gadget", list(GADGETS))
def test_gadgets_are_refused(gadget: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"a": GADGETS[gadget]}, protocol)
    with pytest.raises(CheckpointError, match="refused"):
        load_file(archive(tmp_path / "x", data))
    (tmp_path / "plain").write_bytes(data)
    with pytest.raises(CheckpointError, match="refused"):
        load_plain(tmp_path / "plain")
    assert not (tmp_path / "attacked").exists()


SIZE = name("torch", "Size")
DTENSOR = name("torch.distributed.tensor", "DTensor")
GET = name("builtins", "getattr")
CALLED = text("x") + pickle.TUPLE1 + pickle.REDUCE
STUB = DTENSOR + pickle.EMPTY_TUPLE + pickle.NEWOBJ
DEEP = pickle.EMPTY_TUPLE + pickle.BINPUT + b"\0" + (pickle.BINGET + b"\0" + pickle.TUPLE2 + pickle.BINPUT + b"\0") * 90
OF_A_STUB = pickle.MARK + text("storage") + STUB + text("0") + text("cpu") + number(6) + pickle.TUPLE + pickle.BINPERSID
UNTYPED = storage("UntypedStorage", "0", 24, "torch.storage")
PICKLES = {
    "another class, by name": (raw(name("os", "system"), CALLED), "imports 'os.system'"),
    "by a name that is made": (raw(text("os"), text("system"), pickle.STACK_GLOBAL, CALLED), "imports 'os.system'"),
    "a name with dots": (raw(text("torch"), text("Size.mro"), pickle.STACK_GLOBAL), "imports 'torch.Size.mro'"),
    "a submodule": (raw(name("torch.hub", "load"), CALLED), "imports 'torch.hub.load'"),
    "names that are numbers": (raw(number(1), number(2), pickle.STACK_GLOBAL), "a name is not a text"),
    "an attribute": (raw(GET, DTENSOR, text("mro"), pickle.TUPLE2, pickle.REDUCE), "attribute of an object"),
    "an attribute of a stub": (raw(GET, STUB, text("get"), pickle.TUPLE2, pickle.REDUCE), "attribute of an object"),
    "a call of a stub": (raw(STUB, CALLED), "calls what is not a class"),
    "a call of a text": (raw(text("os.system"), CALLED), "calls what is not a class"),
    "a call of a dtype": (raw(name("torch", "float32"), CALLED), "calls torch.float32"),
    "a call of a storage": (raw(name("torch", "FloatStorage"), CALLED), "calls torch.FloatStorage"),
    "a call with a list": (raw(SIZE, pickle.EMPTY_LIST, pickle.REDUCE), "calls what is not a class"),
    "attributes of a class": (raw(DTENSOR, pickle.EMPTY_DICT, pickle.BUILD), "sets attributes of a Name"),
    "attributes of a number": (raw(number(1), pickle.EMPTY_DICT, pickle.BUILD), "sets attributes of a int"),
    "an extension": (raw(pickle.EXT1, b"\x01"), "instruction"),
    "an extension of four bytes": (raw(pickle.EXT4, b"\x01\0\0\0"), "instruction"),
    "INST": (raw(pickle.MARK, text("x"), pickle.INST, b"os\nsystem\n"), "instruction"),
    "OBJ": (raw(pickle.MARK, name("torch", "Size"), text("x"), pickle.OBJ), "instruction"),
    "NEWOBJ_EX": (raw(SIZE, pickle.EMPTY_TUPLE, pickle.EMPTY_DICT, pickle.NEWOBJ_EX), "instruction"),
    "PERSID": (raw(pickle.PERSID, b"x\n"), "instruction"),
    "a text of Python's": (raw(pickle.STRING, b"'x'\n"), "instruction"),
    "a buffer": (raw(pickle.NEXT_BUFFER), "instruction"),
    "a huge index of the memo": (raw(number(1), pickle.LONG_BINPUT, b"\xff\xff\xff\xff"), "damaged"),
    "an index that was never set": (raw(pickle.BINGET, b"\x07"), "damaged"),
    "bytes without end": (raw(pickle.BINBYTES, b"\xff\xff\xff\xff"), "damaged"),
    "a text without end": (raw(pickle.BINUNICODE8, b"\xff" * 8), "damaged"),
    "a long number": (raw(pickle.LONG4, b"\xff\xff\xff\x7f"), "instruction"),
    "a text that is not UTF-8": (raw(pickle.SHORT_BINUNICODE, b"\x01\xff"), "not UTF-8"),
    "a line without end": (raw(pickle.GLOBAL, b"os"), "damaged"),
    "an empty stack": (raw(pickle.REDUCE), "damaged"),
    "no mark": (raw(number(1), pickle.TUPLE), "damaged"),
    "too few for a pair": (raw(number(1), pickle.TUPLE2), "damaged"),
    "a key without a value": (raw(pickle.EMPTY_DICT, pickle.MARK, text("x"), pickle.SETITEMS), "damaged"),
    "no end": (pickle.PROTO + b"\x02" + pickle.EMPTY_DICT, "damaged"),
    "nothing": (b"", "damaged"),
    "items of a tuple": (raw(pickle.EMPTY_TUPLE, number(1), pickle.APPEND), "a tuple is filled as a list"),
    "keys of a stub": (raw(STUB, text("a"), number(1), pickle.SETITEM), "a Stub is filled as a dict"),
    "a key that takes a year to hash": (raw(pickle.EMPTY_DICT, DEEP, number(1), pickle.SETITEM), "key of type tuple"),
    "an ordered dictionary of items": (raw(name("collections", "OrderedDict"), CALLED), "from arguments"),
    "a size of texts": (raw(SIZE, text("x"), pickle.TUPLE1, pickle.TUPLE1, pickle.REDUCE), "no list of up to"),
    "a size of negative numbers": (raw(SIZE, numbers(-1), pickle.TUPLE1, pickle.REDUCE), "no list of up to"),
    "a size of many dimensions": (raw(SIZE, numbers(*[1] * 40), pickle.TUPLE1, pickle.REDUCE), "no list of up to"),
    "a tensor of nothing": (raw(name("torch._utils", "_rebuild_tensor_v2"), CALLED), "not a storage"),
    "a parameter of a text": (raw(name("torch._utils", "_rebuild_parameter"), CALLED), "not a tensor"),
    "a type of a text": (raw(name("torch._tensor", "_rebuild_from_type_v2"), CALLED), "that torch does not"),
    "a wrapper of a text": (raw(name("torch._utils", "_rebuild_wrapper_subclass"), CALLED), "not a class"),
    "negative strides": (state(a=tensor(strides=(-3, 1))), "strides that is no list"),
    "a negative offset": (state(a=tensor(start=-1)), "an offset that is no list"),
    "beyond the storage": (state(a=tensor(start=1)), "goes beyond its storage"),
    "strides beyond the storage": (state(a=tensor(strides=(4, 1))), "goes beyond its storage"),
    "a shape of 64 bits": (state(a=tensor((2**62, 2**62), (1, 1))), "goes beyond its storage"),
    "other dimensions": (state(a=tensor((6,), (3, 1))), "1 dimensions, but 2 strides"),
    "a storage that is not there": (state(a=tensor(held=storage(key="9"))), "storage '9', which the archive does not"),
    "a storage outside": (state(a=tensor(held=storage(key="../data.pkl"))), "which the archive does not hold"),
    "a storage of more elements": (state(a=tensor(held=storage(elements=7))), "holds 7 elements, but it has 24 bytes"),
    "a storage of another dtype": (state(a=tensor(held=storage("DoubleStorage"))), "but it has 24 bytes"),
    "a reference to nothing": (raw(text("storage"), pickle.BINPERSID), "refers to something"),
    "a storage of a stub": (raw(OF_A_STUB), "in a way that torch does not"),
    "an untyped storage without a dtype": (state(a=tensor(held=UNTYPED)), "a tensor without a dtype"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(PICKLES))
def test_pickles_that_attack_or_lie(case: str, tmp_path: Path, messages: Messages) -> None:
    data, words = PICKLES[case]
    with pytest.raises(CheckpointError, match=words) as found:
        load_file(archive(tmp_path / "x", data))
    messages.check(str(found.value))


def test_recursive_and_shared_values_are_harmless(tmp_path: Path) -> None:
    ring: list[Any] = []
    ring.append(ring)
    loaded = load_file(archive(tmp_path / "x", pickle.dumps(ring, 2)))
    assert loaded[0] is loaded
    assert isinstance(load_file(archive(tmp_path / "y", raw(DEEP))), list | tuple)


def test_a_path_of_a_path_does_not_grow(tmp_path: Path) -> None:
    again = (pickle.BINGET + b"\0") * 2 + pickle.TUPLE2 + pickle.REDUCE + pickle.BINPUT + b"\0"
    grown = text("x" * 200) + pickle.BINPUT + b"\0" + (name("pathlib", "PosixPath") + again) * 12
    assert isinstance(load_file(archive(tmp_path / "x", raw(grown))), Stub)


def test_numbered_keys_that_would_collide(tmp_path: Path) -> None:
    colliding = [
        pickle.LONG1 + b"\x10" + (turn * (2**61 - 1)).to_bytes(16, "little") + pickle.NONE for turn in range(50_000)
    ]
    loaded = load_file(archive(tmp_path / "x", raw(pickle.EMPTY_DICT, pickle.MARK, *colliding, pickle.SETITEMS)))
    assert len(loaded) == 50_000


@pytest.mark.needs("torch")
def test_a_negated_view_is_refused(tmp_path: Path, messages: Messages) -> None:
    import torch

    torch.save({"a": torch._neg_view(torch.ones(2))}, tmp_path / "x")
    with messages.raises(CheckpointError):
        load_file(tmp_path / "x")


def test_too_many_objects_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    monkeypatch.setattr("ramerge.core.formats.torchfile.instructions._MOST_CONTAINERS", 1000)
    with messages.raises(CheckpointError):
        load_file(archive(tmp_path / "x", raw(pickle.EMPTY_LIST * 2000)))


def test_foreign_pickle_instructions_are_refused(tmp_path: Path) -> None:
    known = {opcode.code.encode("latin-1") for opcode in pickletools.opcodes}
    refused = set()
    for code in known:
        try:
            load_file(archive(tmp_path / "x", raw(code, b"\0" * 20)))
        except CheckpointError as error:
            if "instruction" in str(error) and repr(code) in str(error):
                refused.add(code)
    assert {pickle.INST, pickle.OBJ, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEWOBJ_EX, pickle.PERSID} < refused
    assert len(refused) == 27


# --- archives --------------------------------------------------------------------------------------------------------

GOOD = state(a=tensor())


def good(path: Path) -> bytearray:
    return bytearray(archive(path / "good", GOOD).read_bytes())


def central(data: bytes, entry: int) -> int:
    """Where an entry of the list of entries begins."""
    place = data.index(b"PK\1\2")
    for _ in range(entry):
        place = data.index(b"PK\1\2", place + 4)
    return place


def patched(data: bytearray, place: int, form: str, value: int) -> bytearray:
    struct.pack_into(form, data, place, value)
    return data


def test_archives_that_lie(tmp_path: Path) -> None:
    data = good(tmp_path)
    first, second = central(data, 0), central(data, 1)
    end = len(data) - 22
    cases = {
        "damaged|truncated": bytes(data[:-1]),
        "truncated: the end": bytes(data[: len(data) // 2]),
        "not a file of torch": b"",
        "not a file of torch.save": b"hello world",
        "does not end where": bytes(data) + bytes(data[-22:]),
        "contradicts its list": bytes(patched(good(tmp_path), data.index(b"PK\3\4", 4) + 26, "<H", 60000)),
        "header of its entry": bytes(patched(good(tmp_path), data.index(b"PK\3\4", 4) + 18, "<I", 12)),
        "contradicts": bytes(patched(good(tmp_path), data.index(b"PK\3\4", 4) + 8, "<H", 8)),
        "compressed or encrypted": bytes(patched(good(tmp_path), second + 10, "<H", 8)),
        "or encrypted": bytes(patched(good(tmp_path), second + 8, "<H", 1)),
        "compressed": bytes(patched(good(tmp_path), second + 20, "<I", 12)),
        "overlaps what follows": bytes(patched(good(tmp_path), second + 42, "<I", 0)),
        "damaged at": bytes(patched(good(tmp_path), second + 20, "<I", 0xFFFFFFFF)),
        "is cut off": bytes(data[: end + 8]) + struct.pack("<HH", 3, 3) + bytes(data[end + 12 :]),
        "holds more than it says": bytes(data[: end + 8]) + struct.pack("<HH", 1, 1) + bytes(data[end + 12 :]),
        "the archive does": bytes(patched(good(tmp_path), end + 16, "<I", first + 1)),
        "where the archive": b"before" + bytes(data),
    }  # fmt: skip
    for words, content in cases.items():
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(CheckpointError, match=words):
            load_file(tmp_path / "bad")


def test_a_compressed_archive_is_refused(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(CheckpointError):
        load_file(archive(tmp_path / "x", GOOD, method=zipfile.ZIP_DEFLATED))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_doubled_entries_and_other_folders_are_refused(tmp_path: Path, messages: Messages) -> None:
    archive(tmp_path / "x", GOOD)
    with zipfile.ZipFile(tmp_path / "x", "a") as file:
        file.writestr("archive/data/0", bytes(24))
    with messages.raises(CheckpointError):
        load_file(tmp_path / "x")
    archive(tmp_path / "y", GOOD)
    with zipfile.ZipFile(tmp_path / "y", "a") as file:
        file.writestr("other/data.pkl", GOOD)
    with messages.raises(CheckpointError):
        load_file(tmp_path / "y")


def test_what_is_no_archive(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(CheckpointError):
        with zipfile.ZipFile(tmp_path / "x", "w") as file:
            file.writestr("archive/version", "3")
        load_file(tmp_path / "x")
    with messages.raises(CheckpointError):
        load_file(archive(tmp_path / "y", GOOD, byteorder=b"big"))
    (tmp_path / "z").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with messages.raises(CheckpointError):
        load_file(tmp_path / "z")
    with messages.raises(CheckpointError):
        load_file(tmp_path / "none")


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    archive(tmp_path / "x", GOOD)
    with monkeypatch.context() as patch:
        patch.setattr("ramerge.core.formats.torchfile.archive._MOST_DIRECTORY_BYTES", 10)
        with messages.raises(CheckpointError):
            load_file(tmp_path / "x")
    monkeypatch.setattr("ramerge.core.formats.torchfile.load._MOST_PICKLE_BYTES", 10)
    with messages.raises(CheckpointError):
        load_file(tmp_path / "x")


# --- what torch writes -----------------------------------------------------------------------------------------------


@pytest.mark.needs("torch")
def test_what_torch_saves_is_read(tmp_path: Path) -> None:
    import torch

    from ramerge.core.formats.torchfile.load import DTYPES

    shared = torch.arange(12.0)
    values: dict[str, Any] = {
        "whole": shared,
        "part": shared[4:10].view(2, 3),
        "turned": shared.view(3, 4).t(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    for spelled in DTYPES:
        dtype = getattr(torch, spelled.removeprefix("torch."), None)
        if dtype is not None:
            values[spelled] = torch.arange(8, dtype=torch.uint8).repeat(2).view(dtype)
    for protocol in (2, 4):
        torch.save(OrderedDict(values), tmp_path / "x", pickle_protocol=protocol)
        found = load_file(tmp_path / "x")
        assert list(found) == list(values)
        for key, value in values.items():
            assert found[key].shape == tuple(value.shape)
            bits = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy() if value.numel() else b""
            assert elements(found[key]) == bytes(bits)
        assert {key: found[key].dtype for key in DTYPES if key in found} == {k: DTYPES[k] for k in DTYPES if k in found}


@pytest.mark.needs("torch")
def test_old_torch_file_is_refused_with_advice(tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.ones(2)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(
        CheckpointError, match=r"torch\.save\(torch\.load\(sys\.argv\[1\], weights_only=True\)"
    ) as found:
        load_file(tmp_path / "old.bin")
    command = str(found.value).partition('python -c "')[2].partition('"')[0]
    subprocess.run([sys.executable, "-c", command, str(tmp_path / "old.bin")], check=True)
    assert list(load_file(tmp_path / "old.bin")) == ["a"]


@pytest.mark.needs("torch")
def test_archives_without_checksums(tmp_path: Path) -> None:
    import torch

    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes checksums")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(2)}, tmp_path / "x")
    finally:
        torch.serialization.set_crc32_options(True)
    assert elements(load_file(tmp_path / "x")["a"]) == np.ones(2, np.float32).tobytes()


def test_any_stream_of_bytes_is_refused_or_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stream = io.BytesIO()
    pickle.dump({"a": [1, "x", (2.0, None)]}, stream, 4)
    data = np.frombuffer(stream.getvalue(), np.uint8)
    for _ in range(300):
        torn = data.copy()
        torn[rng.integers(0, torn.size, 2)] = rng.integers(0, 256, 2)
        (tmp_path / "x").write_bytes(torn.tobytes())
        try:
            load_plain(tmp_path / "x")
        except CheckpointError as error:
            assert "refused" in str(error)
