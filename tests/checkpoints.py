"""Checkpoints for tests: written to disk as tools write them, and drawn by hypothesis with awkward values."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramerge.core.engine.gathered_from import digests_of
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.tensors.reader import Files, Reader
from tests.reference import BITS, NUMBERS, Stored

INTEGERS = {"I64": np.int64, "I32": np.int32, "U8": np.uint8, "BOOL": np.uint8}
CODES = {"F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8}
Tensors = Mapping[str, Stored]


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """A safetensors file with the tensors in the given order, written independently of the code under test."""
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        size = tensor.bits.nbytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.bits.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header).encode()
    path.write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(tensor.bits.tobytes() for tensor in tensors.values())
    )


def read_safetensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file, by the book."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        kind = (BITS | INTEGERS | CODES)[entry["dtype"]]
        found[name] = Stored(entry["dtype"], np.frombuffer(data[begin:end], kind).reshape(entry["shape"]))
    return found


def write_checkpoint(
    folder: Path, tensors: Tensors, *, shards: int = 1, config: Mapping[str, object] | None = None
) -> Path:
    """A checkpoint of one or several shards, tensors dealt round."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "test", "torch_dtype": "bfloat16"}))
    if (shards := min(shards, len(tensors))) <= 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    names = [f"model-{place:05}-of-{shards:05}.safetensors" for place in range(1, shards + 1)]
    weight_map = {name: names[place % shards] for place, name in enumerate(tensors)}
    for shard in names:
        write_safetensors(folder / shard, {name: tensors[name] for name in tensors if weight_map[name] == shard})
    index = {"metadata": {"total_size": sum(t.bits.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_inputs(
    folder: Path, inputs: Mapping[str, tuple[np.ndarray, np.ndarray]], model: Path, transposed: Sequence[str] = ()
) -> Path:
    """Recorded inputs of a model: for each weight rows, which bfloat16 must hold, and how much each of them counts."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Stored] = {}
    for name, (rows, weights) in inputs.items():
        tensors |= {f"{name}.rows": floats(rows), f"{name}.counts": floats(weights, "F32")}
    write_safetensors(folder / "inputs.safetensors", tensors)
    places = {name: [f"{name}.rows", f"{name}.counts"] for name in inputs}
    opened = open_checkpoint(model)
    with Files(opened.files) as files:
        digests = digests_of(opened.tensors, Reader(files))
    (folder / "inputs.json").write_text(json.dumps({"inputs": places, "transposed": list(transposed)}))
    (folder / "model.json").write_text(json.dumps({"digests": digests}))
    return folder


def read_checkpoint(folder: Path) -> dict[str, Stored]:
    """All tensors of a checkpoint, through its index where it has one."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    weight_map = json.loads(index.read_text())["weight_map"]
    found: dict[str, Stored] = {}
    for shard in sorted(set(weight_map.values())):
        found |= read_safetensors(folder / shard)
    assert set(found) == set(weight_map)
    return found


def recipe(folder: Path, agents: Sequence[str], method: str = "ram+", **more: object) -> dict[str, object]:
    """A recipe for checkpoints written under `folder`."""
    return {
        "method": method,
        "base": str(folder / "base"),
        "agents": {name: str(folder / name) for name in agents},
        **more,
    }


def floats(values: object, dtype: str = "BF16") -> Stored:
    """A float tensor from numbers."""
    return Stored(dtype, np.asarray(values, np.float64).astype(NUMBERS[dtype]).view(BITS[dtype]))


def simple(
    seed: int, dtype: str = "BF16", *, moved: float = 0.0, shape: tuple[int, ...] = (40, 16)
) -> dict[str, Stored]:
    """A base, or with `moved` an agent of the base of the same shape, in which that share of elements was moved."""
    base = np.random.default_rng(1234).normal(0, 0.02, (3, *shape))
    rng = np.random.default_rng(seed)
    change = np.where(rng.random(base.shape) < moved, rng.normal(0, 0.01, base.shape), 0)
    return {f"model.layers.{layer}.weight": floats(values, dtype) for layer, values in enumerate(base + change)}


@contextmanager
def mapped(path: Path) -> Iterator[Callable[[], None]]:
    """Gives a function that changes a file's last byte through a memory map, which leaves its times as they are."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        data[-1] = data[-1]  # the first write to a page is seen

        def change() -> None:
            before = path.stat()
            data[-1] ^= 1
            if path.stat() != before:
                pytest.skip("this file system sees each write through a memory map")

        yield change


def write_simple(
    folder: Path, agents: Mapping[str, float] | None = None, dtype: str = "BF16", shape: tuple[int, ...] = (40, 16)
) -> list[str]:
    """A base and agents under `folder`; agents are names with the share of elements that they move."""
    agents = agents or {"code": 0.05, "tool": 0.4, "memory": 0.5}
    write_checkpoint(folder / "base", simple(0, dtype, shape=shape))
    for place, (name, moved) in enumerate(agents.items(), 1):
        write_checkpoint(folder / name, simple(place, dtype, moved=moved, shape=shape))
    return list(agents)


# --- hypothesis ------------------------------------------------------------------------------------------------------

EPSILON = 1e-5


@st.composite
def bit_patterns(draw: st.DrawFn, dtype: str, size: int) -> NDArray:
    """Finite values: subnormals, signed zeros, powers of two, neighbors of epsilon, ordinary weights."""
    number, bits = NUMBERS[dtype], BITS[dtype]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = rng.integers(0, 6, size)
    values = np.select(
        [kind == 0, kind == 1, kind == 2, kind == 3],
        [
            rng.normal(0, 0.02, size),
            rng.choice([0.0, -0.0, 1.0, -1.0, 2.0**-14, -(2.0**-24), 6e-8, 2.0**-133, 1e-40], size),
            rng.choice([EPSILON, -EPSILON, np.nextafter(EPSILON, 1), np.nextafter(EPSILON, 0)], size),
            2.0 ** rng.integers(-20, 8, size) * rng.choice([-1, 1, 1.5], size),
        ],
        rng.normal(0, 1e-3, size),
    )
    result = values.astype(number).view(bits)
    # any pattern at all, but finite and far from overflow
    anything = rng.integers(0, np.iinfo(bits).max, size, dtype=bits, endpoint=True)
    with np.errstate(all="ignore"):
        usable = np.abs(anything.view(number).astype(np.float64)) < 1e4
    return np.where((kind == 5) & usable, anything, result)


Kind = Sequence[tuple[str, ...]]


def alike(agents: int, dtype: str) -> Kind:
    """So many agents, and a base, of one dtype."""
    return [(dtype,) * (1 + agents)]


# What each tensor draws from: the dtypes of the base and of every agent. A kernel is compiled for each combination that
# is usual, which takes a hundred times longer than to run it. So here: one agent, an odd and an even number, words of
# one and of two elements, and combinations that are brought to F32 or F64 first, whichever inputs a method takes.
MIXED = [
    ("F32", "BF16", "F16", "F32"),
    ("BF16", "F16", "BF16", "F32"),
    ("F16", "BF16", "F16", "F64"),
    ("F64", "F16", "F64", "BF16"),
]
KINDS: Sequence[Kind] = (alike(1, "F32"), alike(2, "BF16"), MIXED, MIXED)
EVERY_KIND: Sequence[Kind] = [
    kind for n in range(1, 6) for kind in (*[alike(n, dtype) for dtype in BITS], list(product(BITS, repeat=1 + n)))
]


@st.composite
def families(draw: st.DrawFn, kinds: Sequence[Kind] = KINDS) -> tuple[dict[str, Stored], list[dict[str, Stored]]]:
    """A base and agents with a few tensors: one dtype or several, scalars, empty tensors, integers."""
    kind = draw(st.sampled_from(kinds))
    base: dict[str, Stored] = {}
    agents: list[dict[str, Stored]] = [{} for _ in kind[0][1:]]
    for place in range(draw(st.integers(1, 4))):
        name = f"model.layers.{place % 2}.w{place}"
        shape = draw(st.sampled_from([(), (0,), (1,), (7,), (3, 5), (2, 0, 4), (33,), (64, 3)]))
        size = int(np.prod(shape))
        contents = draw(st.sampled_from(["float"] * 5 + list(INTEGERS)))
        if contents != "float":
            values = np.arange(size).reshape(shape).astype(INTEGERS[contents])
            for tensors in (base, *agents):
                tensors[name] = Stored(contents, values % 2 if contents == "BOOL" else values)
            continue
        dtype, *others = draw(st.sampled_from(kind))
        base[name] = Stored(dtype, draw(bit_patterns(dtype, size)).reshape(shape))
        for agent, other in zip(agents, others, strict=True):
            agent[name] = Stored(other, _moved(draw, base[name], other))
    return base, agents


def _moved(draw: st.DrawFn, base: Stored, dtype: str) -> NDArray:
    """The base in another dtype, with some elements replaced, some moved by a unit in the last place."""
    size = base.bits.size
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    with np.errstate(over="ignore"):
        same = base.bits.reshape(-1).view(NUMBERS[base.dtype]).astype(np.float64).astype(NUMBERS[dtype])
    bits = same.view(BITS[dtype])
    kind = rng.integers(0, 4, size)
    step = rng.integers(-1, 2, size).astype(np.int64)
    with np.errstate(all="ignore"):
        near = (bits.astype(np.int64) + step * (kind == 1)).astype(BITS[dtype])
        near = np.where(np.isfinite(near.view(NUMBERS[dtype]).astype(np.float64)), near, bits)
    fresh = draw(bit_patterns(dtype, size))
    return np.where(kind == 2, fresh, near).astype(BITS[dtype]).reshape(base.bits.shape)
