"""A file for each rule of the format that an attacker, or a bad download, could break."""

import json
from pathlib import Path

import pytest

from ramerge.core.foundation.errors import AGAIN, CheckpointError
from ramerge.core.tensors.header import MAX_HEADER_BYTES, encode_header, read_header
from tests.messages import Messages


def entry(begin: int = 0, end: int = 8, dtype: object = "F32", shape: object = (2,)) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


def write(path: Path, header: object, data: int = 8, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data))
    return path


def test_a_good_header(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "b": entry(8, 8, "I64", (0, 3)), "a": entry(0, 8)}
    found = read_header(write(tmp_path / "x", header))
    start = found.file_bytes - 8
    assert [(e.name, e.dtype, e.shape, e.begin - start, e.end - start) for e in found.entries] == [
        ("a", "F32", (2,), 0, 8),
        ("b", "I64", (0, 3), 8, 8),
    ]
    assert found.metadata == {"format": "pt"}


def test_equal_headers_are_those_of_each_file(tmp_path: Path, messages: Messages) -> None:
    header = {"a": entry(0, 8)}
    first = read_header(write(tmp_path / "x", header))
    assert read_header(write(tmp_path / "y", header)) is first  # a base's, and an agent's
    with pytest.raises(CheckpointError, match=r"z: truncated"):
        read_header(write(tmp_path / "z", header, data=4))
    bad = {"a": entry(0, 9)}
    for name in ("v", "w"):
        with messages.raises(CheckpointError):
            read_header(write(tmp_path / name, bad, data=9))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    entries = [("é", "BF16", (3,), 6), ("s", "F64", (), 8), ("none", "F32", (0,), 0)]
    data = encode_header(entries, {"format": "pt"})
    assert len(data) % 8 == 0
    (tmp_path / "x").write_bytes(data + bytes(14))
    found = read_header(tmp_path / "x")
    assert {e.name: (e.dtype, e.shape, e.end - e.begin) for e in found.entries} == {
        name: (dtype, shape, size) for name, dtype, shape, size in entries
    }


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"[1]", 0, "not an object"),
        (b"not json", 0, "not JSON"),
        (b"\xff\xfe{}", 0, "not UTF-8"),
        (b'{"a":' * 100_000, 0, "nested"),
        (b'{"a": NaN}', 0, "not a finite number"),
        (
            json.dumps({"a": entry()}).encode()[:-1] + b"," + json.dumps({"a": entry()}).encode()[1:],
            8,
            "more than once",
        ),
        ({"a": 5}, 8, "exactly the keys"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "exactly the keys"),
        ({"a": {**entry(), "more": 1}}, 8, "exactly the keys"),
        ({"a": entry(dtype="FLOAT")}, 8, "unknown dtype 'FLOAT'"),
        ({"a": entry(dtype=["F32"])}, 8, "unknown dtype"),
        ({"a": entry(shape=[-2])}, 8, "non-negative"),
        ({"a": entry(shape=[2.0])}, 8, "non-negative"),
        ({"a": entry(shape=[True, 2])}, 8, "non-negative"),
        ({"a": entry(shape="2")}, 8, "non-negative"),
        ({"a": entry(-8, 0)}, 8, "non-negative"),
        ({"a": {**entry(), "data_offsets": [0]}}, 8, "two non-negative"),
        ({"a": {**entry(), "data_offsets": [0, "8"]}}, 8, "two non-negative"),
        ({"a": entry(8, 0)}, 8, "end before they begin"),
        ({"a": entry(0, 2**64)}, 8, "overflows"),
        ({"a": entry(shape=[2**62, 2**62])}, 8, "overflows"),
        ({"a": entry(shape=[2**40, 2**40])}, 8, "overflows"),
        ({"a": entry(0, 8, shape=(3,))}, 8, "takes 12 bytes"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "overlaps"),
        ({"a": entry(0, 8), "b": entry(0, 8)}, 8, "overlaps"),
        ({"a": entry(4, 12)}, 12, "belong to no tensor"),
        ({"a": entry(0, 8)}, 12, "at the end belong to no tensor"),
        ({"a": entry(0, 8)}, 4, "truncated"),
        ({"__metadata__": {"a": 1}, "a": entry()}, 8, "__metadata__"),
        ({"__metadata__": [], "a": entry()}, 8, "__metadata__"),
        (b'{"a": {"dtype": "F32", "shape": [-0], "data_offsets": [0, 0]}}', 0, "non-negative"),
        (b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [-0, 0]}}', 0, "two non-negative"),
        (b'{"\\ud800": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}', 0, "surrogate"),
        (b'{"a": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 0]}}' % (b"9" * 400), 0, "100 digits"),
        ({"a": entry(dtype="x" * 10**6)}, 8, "unknown dtype 'xxx.*characters more"),
    ],
)
def test_refused(header: object, data: int, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(CheckpointError, match=message) as raised:
        read_header(path)
    assert all(problem.startswith(str(path)) for problem in raised.value.problems)
    if {"truncated", "overlaps", "belong to no tensor"} & {message, message.removeprefix("at the end ")}:
        assert raised.value.problems[0].endswith(AGAIN)


def test_length_beyond_the_limit_or_the_file(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(CheckpointError):
        read_header(write(tmp_path / "a", {}, length=MAX_HEADER_BYTES + 1))
    with pytest.raises(CheckpointError, match=f"truncated: .*; {AGAIN}"):
        read_header(write(tmp_path / "b", {}, length=1000))
    (tmp_path / "c").write_bytes(b"abc")
    with messages.raises(CheckpointError):
        read_header(tmp_path / "c")
    with messages.raises(CheckpointError):
        read_header(tmp_path / "absent")


def test_every_problem_is_listed(tmp_path: Path) -> None:
    header = {"a": entry(dtype="X"), "b": entry(shape=[-1]), "c": 3}
    with pytest.raises(CheckpointError) as raised:
        read_header(write(tmp_path / "x", header))
    assert len(raised.value.problems) == 3


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, messages: Messages) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with messages.raises(CheckpointError):
        read_header(path)
