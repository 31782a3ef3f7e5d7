"""Writes the index of a delta, `delta.safetensors.index.json`, and reads it as untrusted input; a delta's size.

    metadata     the format's name and version, elements of a block, digests of base, agent and this index
    weight_map   maps names in the data files to these files, as in the index of a model
    tensors      the agent's tensors in order: dtype, shape, kind, digests, number of moved elements
    dropped      the base's tensors that the agent lacks
    shards       the agent's safetensors files in order, each with the names of its tensors in the order of their bytes
    headers      digests of the `header:FILE` that are stored
    companions   the agent's other files, with the digest of each, and whether the base's file is the same

In the data files, which are safetensors files,

    blocks:NAME   uint64 (blocks, 8): the table of a tensor, a `codec.BlockRow` for each block
    data:NAME     uint8: the blocks' bytes; absent if nothing has moved
    whole:NAME    a tensor that the base lacks, or has in another dtype or shape: stored unchanged
    header:FILE   uint8: the first bytes of one of the agent's files, up to its tensors, and zeros up to a multiple of 8
    padding:…     uint8: zeros, so that the next tensor begins at a multiple of 8 bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Literal

import xxhash

from ramerge import CheckpointError
from ramerge.core.foundation.dtypes import BITS
from ramerge.core.foundation.errors import readable
from ramerge.core.storage.own_files import BLOCK, DELTA_INDEX, digest_of_delta_index, signed
from ramerge.core.tensors.header import read_header
from ramerge.core.tensors.paths import climbs_out, is_too_long
from ramerge.sdk.records import to_model
from ramerge.sdk.storage import Location
from ramerge.sdk.text import JsonLimits, dumped, quoted, read_object

DATA_FILE = "delta-{:05}.safetensors"
"""Names of data files, numbered from 1."""
BLOCKS, DATA, WHOLE, HEADER, PADDING = "blocks:", "data:", "whole:", "header:", "padding:"
CHANGES = (BLOCKS, DATA, WHOLE)
FORMAT = "ramerge-delta"
VERSION = 1

# Enough for 100,000 tensors.
_LIMITS = JsonLimits(size=64_000_000, signs=3_000_000)
_MOST_PROBLEMS = 100
_HEX = frozenset("0123456789abcdef")

TensorKind = Literal["same", "changed", "whole"]


@dataclass(frozen=True)
class DeltaTensor:
    """The entry of a tensor in the index of a delta.

    Attributes:
        kind: `same` as the base's; `changed`, with the base's dtype and shape; or stored `whole`.
        moved: number of elements that differ from the base's; all elements of a `whole` tensor.
        base: digest of the base's tensor in hexadecimal; empty for a `whole` tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    kind: TensorKind
    moved: int
    base: str
    result: str


@dataclass(frozen=True)
class Companion:
    """The entry of a sidecar file: whether the base has the same file, and the digest of its bytes in hexadecimal."""

    same: bool
    digest: str


@dataclass(frozen=True)
class DeltaMetadata:
    """The metadata in the index of a delta.

    Attributes:
        block: elements per block.
        base: digest of the model that the delta changes; see `digest_of_model`.
        result: digest of the resulting model.
        index: digest of everything else in the index; see `digest_of_delta_index`.
    """

    format: str
    version: int
    block: int
    base: str
    result: str
    index: str


@dataclass(frozen=True)
class Index:
    """The index of a delta, with all its entries."""

    metadata: DeltaMetadata
    weight_map: dict[str, str]
    tensors: dict[str, DeltaTensor]
    dropped: list[str]
    shards: dict[str, list[str]]
    headers: dict[str, str]
    companions: dict[str, Companion]

    def text(self) -> str:
        return dumped(signed(asdict(self)), indent=1)


def digest_of_model(tensors: Mapping[str, tuple[str, Iterable[int], str]]) -> str:
    """Return the digest of a model: xxh3-128 over the sorted lines `NAME DTYPE 2x3 DIGEST`."""
    lines = [f"{name} {dtype} {'x'.join(map(str, shape))} {key}\n" for name, (dtype, shape, key) in tensors.items()]
    return xxhash.xxh3_128_hexdigest("".join(sorted(lines)).encode("utf-8", "surrogatepass"))


def read_index(path: Location) -> Index:
    """Read and check the index of a delta. Its statements about data files are checked when these are opened."""
    try:
        with readable(path):
            values = read_object(path, _LIMITS, constants=False)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; get the delta again") from error
    metadata = values.get("metadata")
    header = metadata if isinstance(metadata, Mapping) else {}
    if (header.get("format"), header.get("version")) != (FORMAT, VERSION):
        what = f"version {quoted(header.get('version'))}" if header.get("format") == FORMAT else "another format"
        raise CheckpointError(f"{path}: is of {what}; this ramerge reads {FORMAT}, version {VERSION}")
    if header.get("block") != BLOCK:
        raise CheckpointError(f"{path}: has blocks of {quoted(header.get('block'))} elements, not of {BLOCK:,}")
    try:
        index = to_model(values, Index)
    except ValueError as error:
        raise CheckpointError(f"{path}: is not the index of a delta: {error}; get the delta again") from error
    if problems := _index_problems(index):
        raise CheckpointError(f"{path}: {text}" for text in problems)
    if index.metadata.index != digest_of_delta_index(values):
        raise CheckpointError(f"{path}: is damaged: its digest is wrong; get the delta again")
    return index


def description(tensors: int, changed_count: int, whole: int, elements: int) -> str:
    """Return a sentence on how many of the agent's tensors and elements a delta holds."""
    texts = [f"{changed_count:,} of {tensors:,} tensors changed"] if changed_count or not whole else []
    if whole:
        texts.append(
            f"{whole:,} of {tensors:,} tensors stored whole (not in the base, or there in another dtype or shape)"
        )
    return f"{', '.join(texts)}, {elements:,} elements"


def size_of(folder: Location) -> int:
    """Return the bytes of a delta's changes and whole tensors; headers, index and other files do not count."""
    names = sorted({*read_index(folder / DELTA_INDEX).weight_map.values()})
    entries = (entry for name in names for entry in read_header(folder / name).entries)
    return sum(entry.end - entry.begin for entry in entries if entry.name.startswith(CHANGES))


def _index_problems(index: Index) -> list[str]:
    problems = []
    for name, tensor in index.tensors.items():
        elements = _element_count(tensor.shape)
        if tensor.dtype not in BITS or BITS[tensor.dtype] % 8:
            problems.append(f"tensor {quoted(name)} has dtype {quoted(tensor.dtype)}, which deltas do not have")
        elif any(extent < 0 for extent in tensor.shape) or elements >= 1 << 60:
            problems.append(f"tensor {quoted(name)} cannot have shape {quoted(list(tensor.shape))}")
        elif not 0 <= tensor.moved <= elements or (tensor.kind == "same" and tensor.moved):
            problems.append(f"tensor {quoted(name)} cannot have {tensor.moved:,} elements that moved")
        elif tensor.kind == "whole" and tensor.moved != elements:
            text = f"is stored whole, and says that {tensor.moved:,} elements moved, not all"
            problems.append(f"tensor {quoted(name)} {text}")
        if not _is_digest(tensor.result) or (tensor.kind != "whole" and not _is_digest(tensor.base)):
            problems.append(f"tensor {quoted(name)} has no digest")
    problems += [f"dropped tensor {quoted(name)} is there too" for name in index.dropped if name in index.tensors]
    problems += [
        f"the path {quoted(name)} leads out of its folder, or has useless parts"
        for name in (*index.shards, *index.companions)
        if PurePosixPath(name).as_posix() != name  # else two names could be one file
        or climbs_out(name)
        or is_too_long(name)
        or name == "."
    ]
    problems += [f"{quoted(name)} is a shard and a companion" for name in index.shards.keys() & index.companions.keys()]
    names_in_files = [name for names in index.shards.values() for name in names]
    if index.shards and (len(names_in_files) != len(index.tensors) or set(names_in_files) != index.tensors.keys()):
        problems.append("the shards do not hold every tensor once")
    if {HEADER + name for name in index.headers} != {name for name in index.weight_map if name.startswith(HEADER)}:
        problems.append("its headers are not those that its files hold")
    if not all(map(_is_digest, (index.metadata.base, index.metadata.result))):
        problems.append("its digests are not 32 hexadecimal digits")
    return problems[:_MOST_PROBLEMS]


def _element_count(shape: Iterable[int]) -> int:
    """Return the product, or a number above all possible products."""
    product = 1
    for extent in shape:
        product *= extent
        if product >= 1 << 60:
            return 1 << 60
    return product


def _is_digest(text: str) -> bool:
    return len(text) == 32 and set(text) <= _HEX
