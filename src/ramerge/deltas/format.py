"""The format `delta`: opens a delta over its base as the tensors of the agent; lists the sidecar files of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

from ramerge import CheckpointError
from ramerge.core.formats import safetensors
from ramerge.core.formats.files import check_index, indexed_files, opened_each
from ramerge.core.formats.safetensors import index_of
from ramerge.core.formats.sidecars import companion_files
from ramerge.core.foundation.dtypes import full_name
from ramerge.core.foundation.errors import readable
from ramerge.core.storage.own_files import COMPANIONS, DELTA_INDEX
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.deltas.codec import COLUMNS, blocks_of, digest
from ramerge.deltas.index import BLOCKS, DATA, DATA_FILE, HEADER, WHOLE, DeltaTensor, Index, description, read_index
from ramerge.deltas.patched import Patched
from ramerge.deltas.trainers import live
from ramerge.sdk.formats import Format, Opening, read_json
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import Contents, Stored, Tensor, identify
from ramerge.sdk.text import quoted

NAME = "delta"
_MOST_PROBLEMS = 100


def find(folder: Location) -> Location | None:
    """Return the folder itself if it has the index of a delta in ramerge's layout."""
    if (folder / DELTA_INDEX).exists():
        return folder
    if (folder / DATA_FILE.format(1)).exists():
        raise CheckpointError(f"{folder}: is a delta without its index, {DELTA_INDEX}; get the delta again")
    return None


def open_folder(folder: Location, opening: Opening) -> Contents:
    """Open a delta over `opening.base`, whose digests are checked block by block during reads."""
    base = opening.require(folder, "a delta")
    files = identify([folder / DELTA_INDEX])
    index = read_index(folder / DELTA_INDEX)
    _check_lineage(folder, index, base)
    if base.quantized is not None:
        raise CheckpointError(
            f"{folder}: is a delta, and its base {base.directory} is quantized; give a model that is not"
        )
    names, _ = indexed_files(folder / DELTA_INDEX, index.weight_map, ".safetensors")
    sidecars = {name: folder / COMPANIONS / name for name, each in index.companions.items() if not each.same}
    inside = [*names, *(f"{COMPANIONS}/{name}" for name in sidecars)]
    opening.check_files(folder, inside, in_index=True)
    files |= identify([*(folder / name for name in names), *sidecars.values()])
    tensors_of_files = _tensors_of_files(folder, names, index)
    retyped = [  # tensors that the base has in another dtype, but in the same shape
        name
        for name, entry in index.tensors.items()
        if entry.kind != "whole" and (below := base.tensors.get(name)) is not None
        if below.dtype != entry.dtype and below.shape == entry.shape
    ]
    tensors, problems = [], list(_contradiction_texts(folder, index, base, retyped))
    for name, entry in index.tensors.items():
        if name in retyped:
            continue
        try:
            tensors.append(_agent_tensor(name, entry, tensors_of_files, base, index.metadata.base))
        except ValueError as error:
            problems.append(f"{folder}: tensor {quoted(name)}: {error}")
    if problems:
        raise CheckpointError(problems[:_MOST_PROBLEMS])
    theirs = sidecar_files(base)
    companions = {name: sidecars.get(name, theirs.get(name, base.metadata_folder / name)) for name in index.companions}
    has_tokenizer = (*base.tokenizers, folder / COMPANIONS) if sidecars else base.tokenizers
    return Contents(
        tensors={tensor.name: tensor for tensor in tensors},
        files={**base.files, **files},
        config=read_json(sidecars["config.json"]) if "config.json" in sidecars else deepcopy(dict(base.config)),
        metadata_folder=base.metadata_folder,
        shards={name: tuple(names) for name, names in index.shards.items()},
        notes=(f"{folder} is a delta: {_contents_of(index)}",),
        tokenizers=has_tokenizer,
        companions=companions,
        lineage=(*(base.lineage or (index.metadata.base,)), index.metadata.result),
        delta=folder,
    )


def _contents_of(index: Index) -> str:
    """Describe the contents of a delta in a sentence."""
    kinds = [tensor.kind for tensor in index.tensors.values()]
    updates = sum(tensor.moved for tensor in index.tensors.values())
    text = description(len(kinds), kinds.count("changed"), kinds.count("whole"), updates)
    return text + (f"; {len(index.dropped):,} are dropped" if index.dropped else "")


STORED_FORMATS = (safetensors.NAME, live.NAME)
"""Formats of files whose headers a delta stores."""


def sidecar_files(model: Checkpoint) -> Mapping[str, Location]:
    """Return the sidecar files of a model by name: configuration, tokenizer and others, and the index of its files."""
    if model.companions is not None:
        return model.companions
    files = companion_files(model)
    index = model.metadata_folder / index_of(model.shards)
    return files | {index.name: index} if model.format in STORED_FORMATS and index.is_file() else files


def stored_header(folder: Location, index: Index, file: str) -> bytes:
    """Return the stored first bytes of one of the agent's files; empty if any fitting header will do."""
    name = HEADER + file
    if name not in index.weight_map:
        return b""
    path = folder / index.weight_map[name]
    origin = next((tensor.origin for tensor in safetensors.tensors_of(path) if tensor.name == name), None)
    if not isinstance(origin, Stored):
        raise CheckpointError(f"{path}: does not hold {quoted(name)}, as the index says")
    with readable(path), path.open("rb") as file_object:
        file_object.seek(origin.offset)
        data = file_object.read(origin.nbytes)
    length = 8 + int.from_bytes(data[:8], "little")
    if digest(data).hex() != index.headers[file]:
        raise CheckpointError(f"{path}: {quoted(name)} is damaged: the index has another digest; get the delta again")
    if len(data) < 8 or not length <= len(data) < length + 8:
        raise CheckpointError(f"{path}: {quoted(name)} is not the beginning of a safetensors file")
    return data[:length]


def _check_lineage(folder: Location, index: Index, base: Checkpoint) -> None:
    """Refuse a delta that was made for another version than the result of the deltas below it."""
    base_digest = index.metadata.base
    if not base.lineage or base.lineage[-1] == base_digest:
        return
    if base_digest in base.lineage:
        text = (
            f"is for a model that {base.directory} has changed already: name each delta after the one that it is for; "
            "of two deltas for the same model, only one can be applied"
        )
    else:
        text = f"is for the model with the digest {base_digest}, but {base.directory} gives {base.lineage[-1]}; "
        text += "a delta between them is missing, or they are in the wrong order"
    raise CheckpointError(f"{folder}: {text}")


def _tensors_of_files(folder: Location, names: list[str], index: Index) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    shards: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for name, tensors in zip(
        names, opened_each([folder / name for name in names], safetensors.tensors_of), strict=True
    ):
        if isinstance(tensors, CheckpointError):
            problems += tensors.problems
            continue
        problems += [
            f"{folder / name}: holds {quoted(one.name)} a second time" for one in tensors if one.name in result
        ]
        shards[name] = tuple(tensor.name for tensor in tensors)
        result |= {tensor.name: tensor for tensor in tensors}
    problems = problems or check_index(folder, index.weight_map, shards)
    if problems:
        raise CheckpointError(problems[:_MOST_PROBLEMS])
    return result


def _contradiction_texts(folder: Location, index: Index, base: Checkpoint, retyped: Sequence[str]) -> Iterator[str]:
    """Yield contradictions between base and delta: only one for all tensors in another dtype."""
    for name in base.tensors.keys() - index.tensors.keys() - set(index.dropped):
        yield f"{folder}: has no entry for tensor {quoted(name)} of the base {base.directory}; is that another model?"
    for name in set(index.dropped) - base.tensors.keys():
        yield f"{folder}: drops tensor {quoted(name)}, which the base {base.directory} lacks; is that another model?"
    if retyped:
        base_dtype, dtype = (
            " and ".join(sorted({full_name(tensors[name].dtype) for name in retyped}))
            for tensors in (index.tensors, base.tensors)
        )
        yield (
            f"{folder}: this delta was made from a base in {base_dtype}, and {base.directory} is in {dtype} "
            f"({len(retyped):,} tensor{'s' * (len(retyped) > 1)}); give that base, and for a merge in {dtype} "
            f"--dtype {dtype}"
        )


def _agent_tensor(
    name: str, entry: DeltaTensor, tensors: Mapping[str, Tensor], base: Checkpoint, digest: str
) -> Tensor:
    """Return a tensor of the agent, from its delta and the base."""
    if entry.kind == "whole":
        whole = _stored_extent(tensors, WHOLE + name, entry.dtype, entry.shape)
        return Tensor(name, entry.dtype, entry.shape, whole)
    below = base.tensors.get(name)
    if below is None:
        raise ValueError(f"the base {base.directory} lacks it; is that another model?")
    if below.shape != entry.shape:
        raise ValueError(
            f"has shape {list(entry.shape)}, but {list(below.shape)} in the base {base.directory}; is that another "
            "model?"
        )
    table = _stored_extent(tensors, BLOCKS + name, "U64", (blocks_of(below.elements), COLUMNS))
    data = None
    if entry.kind == "changed":
        data_tensor = tensors.get(DATA + name)
        data = _stored_extent(
            tensors, DATA + name, "U8", data_tensor.shape if data_tensor and len(data_tensor.shape) == 1 else (1,)
        )
    return Tensor(name, entry.dtype, entry.shape, Patched(below, table, data, digest))


def _stored_extent(tensors: Mapping[str, Tensor], name: str, dtype: str, shape: tuple[int, ...]) -> Stored:
    tensor = tensors.get(name)
    if tensor is None or not isinstance(tensor.origin, Stored):
        raise ValueError(f"the files of the delta lack {quoted(name)}")
    if (tensor.dtype, tensor.shape) != (dtype, shape):
        raise ValueError(f"{quoted(name)} is {tensor.dtype} {list(tensor.shape)}, not {dtype} {list(shape)}")
    return tensor.origin


# before safetensors, whose files it has
FORMAT = Format(NAME, "deltas", find, open_folder, needs_base=True, priority=100)
