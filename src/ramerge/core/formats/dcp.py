"""Reads folders of torch.distributed.checkpoint: `.metadata` and `*.distcp`, or shards in safetensors files.

`.metadata` maps every piece to its offset in the whole tensor and to its bytes, so the parallel layout of the training
does not matter. Each piece in a `.distcp` file is a separate torch.save archive.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ramerge.core.formats.format import Format, Opening, local
from ramerge.core.formats.sharded import ShardedModel
from ramerge.core.formats.torchfile.archive import window
from ramerge.core.formats.torchfile.instructions import Name, RefusedError, Stub
from ramerge.core.formats.torchfile.load import DTYPES, View, load, load_plain, numbers, suspend_garbage_collection
from ramerge.core.formats.views import tensor_of, unwrapped_name
from ramerge.core.foundation.errors import CheckpointError, collect
from ramerge.core.foundation.jsontext import JsonLimits, parse
from ramerge.core.foundation.text import few_quoted, quantity, quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.embeddings import EMBEDDINGS
from ramerge.core.tensors.header import read_header
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.origins import PlacedPiece
from ramerge.core.tensors.paths import climbs_out, is_too_long
from ramerge.core.tensors.tensor import Stored, Tensor
from ramerge.core.tensors.text_config import text_configs

METADATA = ".metadata"
_INNER = ("pytorch_model_fsdp_0", "trainer")  # accelerate's name, prime-rl's
_MODELS = (("model",), ("state_dict",), ("app", "model"), ("module",), ())
# Keys of a trainer's state. They must match as a whole, because models have parts such as `progress_head`.
_NO_MODEL = re.compile(
    r"(\w+_)?(optim(izer)?s?|(lr_?)?sched(uler)?s?|rng|dataloader)(_states?)?(_dict)?(_\d+)?"
    r"|_?extra_states?|(train_)?progress|train(er|ing)?_state"
)
_SAFETENSORS = re.compile(r"shard-([0-9]{5})-model-([0-9]{5})-of-([0-9]{5})\.safetensors")
_MOST_ABSENT = 20
_SHARDING = "DCP_SHARDING_INFO"
_LIMITS = JsonLimits(size=32_000_000, signs=1_700_000, depth=8)


def find(folder: Location) -> Location | None:
    """Find a checkpoint of torch.distributed: in this folder, or in a known folder inside of it."""
    for place in (folder, *(folder / name for name in _INNER)):
        if place.is_dir() and ((place / METADATA).is_file() or any(place.glob("*.distcp")) or any(_shards(place))):
            return place
    return None


def _shards(folder: Location) -> Iterator[str]:
    names = [path.name for path in folder.glob("shard-*.safetensors")]
    return filter(_SAFETENSORS.fullmatch, sorted(names))


def open_folder(folder: Path, opening: Opening) -> Contents:
    """Read the positions of pieces from `.metadata`, and check that the pieces form whole tensors."""
    shards = list(_shards(folder))
    if shards:
        contents = _read_safetensors(folder, shards, opening)
        return _add_rank_warning(folder, contents.contents(_companion_folder(folder), opening))
    with suspend_garbage_collection():
        metadata = read_metadata(folder)
        model, notes = _model_tensors(folder, metadata)
        contents = read_distcp(folder, metadata, model, opening)
        contents.notes += notes
    return contents.contents(_companion_folder(folder), opening)


def _companion_folder(folder: Path) -> Path:
    """Find the folder with the model's `config.json`, or at least with its tokenizer."""
    places = [folder, folder / "huggingface", *([folder.parent] if folder.name in _INNER else [])]
    telling = ("config.json", "tokenizer_config.json", "tokenizer.json")
    return next((place for name in telling for place in places if (place / name).is_file()), folder)


# --- .metadata and *.distcp ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorDescription:
    """A tensor as `.metadata` describes it.

    Attributes:
        key: the tensor's flat name in the file.
        path: the keys that lead to the tensor through nested dictionaries.
        dtype: the name of the dtype in safetensors.
        shape: shape of the whole tensor.
        pieces: offset and size of each piece; empty pieces are left out.
    """

    key: str
    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    @staticmethod
    def from_stub(key: str, value: Stub, paths: Mapping[object, object]) -> TensorDescription:
        """Read torch's `TensorStorageMetadata`."""
        properties, chunks = value.get("properties"), value.get("chunks")
        state = properties.state if isinstance(properties, Stub) else None
        dtype = properties.get("dtype") if isinstance(properties, Stub) else None
        if isinstance(state, tuple) and state:
            dtype = state[0]
        if not isinstance(dtype, Name) or dtype.path not in DTYPES:
            raise RefusedError(f"tensor {quoted(key)} has no dtype that is known")
        if not isinstance(chunks, list) or not all(isinstance(chunk, Stub) for chunk in chunks):
            raise RefusedError(f"tensor {quoted(key)} has no list of pieces")
        boxes = [(numbers(c.get("offsets"), "offsets"), numbers(c.get("sizes"), "sizes")) for c in chunks]
        path = paths.get(key)
        if not isinstance(path, tuple) or not path or not all(isinstance(part, str) for part in path):
            # `model.` is not cut off, because names of models begin with it
            roots = (root for root in _MODELS if root not in (("model",), ()) and key.startswith(f"{'.'.join(root)}."))
            root = next(roots, ())
            path = (*root, key[len("".join(f"{part}." for part in root)) :])
        nonempty = tuple(box for box in boxes if 0 not in box[1])
        return TensorDescription(key, path, DTYPES[dtype.path], numbers(value.get("size"), "a size"), nonempty)


@dataclass(frozen=True)
class DcpMetadata:
    """Contents of `.metadata`: the tensors, and file, first byte and size of each piece, by name and offsets."""

    tensors: tuple[TensorDescription, ...]
    places: Mapping[tuple[str, tuple[int, ...]], tuple[str, int, int]]


def read_metadata(folder: Path, modules: Collection[str] = ()) -> DcpMetadata:
    """Read `.metadata`; `modules` is described at `torchfile.load`."""
    path = folder / METADATA
    if not path.is_file():
        raise CheckpointError(
            f"{path}: is missing; it is written last, so the checkpoint is not complete, or it was copied without "
            "the files whose names begin with a dot"
        )
    root = load_plain(path, modules)
    about = root if isinstance(root, Stub) else Stub("", ())
    descriptions, storage, paths = map(about.get, ("state_dict_metadata", "storage_data", "planner_data"))
    tensors, places = [], {}
    try:
        if not isinstance(descriptions, dict) or not isinstance(storage, dict):
            raise RefusedError("it does not describe tensors and their places")
        for key, value in descriptions.items():
            if not isinstance(key, str) or not isinstance(value, Stub):
                raise RefusedError("it describes something without a name")
            if value.path.endswith(".TensorStorageMetadata"):
                tensors.append(TensorDescription.from_stub(key, value, paths if isinstance(paths, dict) else {}))
        for index, info in storage.items():
            name, offset = (index.get("fqn"), index.get("offset")) if isinstance(index, Stub) else (None, None)
            if isinstance(name, str) and offset is not None:
                places[name, numbers(offset, "an offset")] = _parse_place(name, info)
    except RefusedError as error:
        raise CheckpointError(f"{path}: refused: {error}") from error
    return DcpMetadata(tuple(tensors), places)


def _parse_place(name: str, info: object) -> tuple[str, int, int]:
    if not isinstance(info, Stub) or not isinstance(info.state, dict):
        raise RefusedError(f"tensor {quoted(name)} has no place in a file")
    if info.get("transform_descriptors"):
        raise RefusedError(
            f"tensor {quoted(name)} is stored compressed or encrypted; save it again without extensions of the storage"
        )
    path, (offset, length) = info.get("relative_path"), numbers((info.get("offset"), info.get("length")), "a place")
    if not isinstance(path, str):
        raise RefusedError(f"the file of tensor {quoted(name)} is a {type(path).__name__}, not a name")
    if climbs_out(path) or is_too_long(path):
        raise RefusedError(f"the file {quoted(path)} of tensor {quoted(name)} leads out of the folder")
    return path, offset, length


def _model_tensors(folder: Path, metadata: DcpMetadata) -> tuple[dict[str, TensorDescription], tuple[str, ...]]:
    roots: dict[tuple[str, ...], list[TensorDescription]] = defaultdict(list)
    for tensor in metadata.tensors:
        if not any(map(_NO_MODEL.fullmatch, tensor.path[:-1] or tensor.key.split(".")[:1])):
            roots[tensor.path[:-1]].append(tensor)
    root = next((root for root in _MODELS if root in roots), next(iter(roots)) if len(roots) == 1 else None)
    if root is None:
        root_names = ", ".join(quoted(".".join(root)) for root in list(roots)[:20]) or "none"
        raise CheckpointError(
            f"{folder}: it is not clear where the model is; keys with tensors: {root_names}; "
            "save it under the key 'model': dcp.save({'model': model.state_dict()}, checkpoint_id=...)"
        )
    tensors: dict[str, TensorDescription] = {}
    for tensor in roots[root]:
        name = unwrapped_name(tensor.path[-1])
        if name in tensors:
            raise CheckpointError(f"{folder}: holds tensor {quoted(name)} twice")
        tensors[name] = tensor
    keys = {tensor.key for tensor in roots[root]}
    others = [tensor.key for tensor in metadata.tensors if tensor.key not in keys]
    return tensors, (f"{folder}: left out as the trainer's state: {few_quoted(others)}",) if others else ()


def read_distcp(
    folder: Path, metadata: DcpMetadata, tensors: Mapping[str, TensorDescription], opening: Opening
) -> ShardedModel:
    """Read the requested tensors from `*.distcp` files, under the requested names."""
    problems: list[str] = []
    by_file: dict[str, list[tuple[int, int, TensorDescription, tuple[int, ...], tuple[int, ...]]]] = defaultdict(list)
    for tensor in tensors.values():
        for offsets, sizes in tensor.pieces:
            if place := metadata.places.get((tensor.key, offsets)):
                by_file[place[0]].append((*place[1:], tensor, offsets, sizes))
            else:
                problems.append(
                    f"{folder / METADATA}: tensor {quoted(tensor.key)}: its piece at {list(offsets)} is in no file"
                )
    opening.check_files(folder, by_file, in_index=True)
    model = ShardedModel(folder, identify([folder / METADATA, *(folder / name for name in by_file)]), problems)
    spans: dict[Identity, list[tuple[int, int, str]]] = defaultdict(list)
    for name, items in by_file.items():
        spans[model.files[folder / name]] += ((begin, nbytes, tensor.key) for begin, nbytes, tensor, *_ in items)
    if overlapping := [text for places in spans.values() for text in _overlap_problems(places)]:
        raise CheckpointError([*problems, *(f"{folder / METADATA}: {text}" for text in overlapping)])
    pieces: dict[str, list[PlacedPiece]] = defaultdict(list)
    for name, items in by_file.items():
        with window(folder / name) as file:
            for begin, nbytes, tensor, offsets, sizes in sorted(items, key=lambda item: item[0]):
                try:
                    view = load(file.part(begin, nbytes))
                    if not isinstance(view, View):
                        raise CheckpointError(f"{file.path}: an item is not a tensor")
                    if (view.dtype, view.shape) != (tensor.dtype, sizes):
                        raise CheckpointError(
                            f"{file.path}: holds {view.dtype} {list(view.shape)} where {METADATA} says {tensor.dtype} "
                            f"{list(sizes)}; the files are of different checkpoints"
                        )
                    pieces[tensor.key].append(PlacedPiece(offsets, tensor_of(tensor.key, view)))
                except CheckpointError as error:
                    problems.extend(f"{problem} (of tensor {quoted(tensor.key)})" for problem in error.messages)
    model.assemble((name, tensor.dtype, tensor.shape, pieces[tensor.key]) for name, tensor in tensors.items())
    return model


def _overlap_problems(places: list[tuple[int, int, str]]) -> Iterator[str]:
    """Yield problems of pieces that share bytes of a file; opening an archive for many pieces could take forever."""
    for (begin, nbytes, name), (after, _, other) in pairwise(sorted(places)):
        if begin + nbytes > after:
            yield (
                f"a piece of tensor {quoted(name)} and one of {quoted(other)} are in the same bytes of a file; no "
                "writer does that, so it is damaged"
            )


# --- shards in safetensors files -------------------------------------------------------------------------------------


def _read_safetensors(folder: Path, names: Sequence[str], opening: Opening) -> ShardedModel:
    """Read files of `HuggingFaceStorageWriter`. They do not state shapes, which follow from the ends of pieces."""
    opening.check_files(folder, names, in_index=False)
    model = ShardedModel(folder, identify(folder / name for name in names))
    numbers = [tuple(map(int, match.groups())) for name in names if (match := _SAFETENSORS.fullmatch(name))]
    ranks, parts = {rank for rank, _, _ in numbers}, {part for _, part, _ in numbers}
    # a rank writes only the parts of which it holds elements
    absent = [f"shard-{rank:05}-model-..." for rank in range(1, max(ranks)) if rank not in ranks]
    absent += [f"shard-...-model-{n:05}-..." for n in range(1, max(of for *_, of in numbers) + 1) if n not in parts]
    model.problems += [f"{folder / name}: is missing, so the model is not complete" for name in absent[:_MOST_ABSENT]]
    if len(absent) > _MOST_ABSENT:
        model.problems.append(f"{folder}: lacks {quantity(len(absent) - _MOST_ABSENT, 'more file')}")
    if len(totals := sorted({of for *_, of in numbers})) > 1:
        several = " and ".join(map(str, totals))
        model.problems.append(
            f"{folder}: the files are numbered as parts of {several}; remove those of an earlier save"
        )
    pieces: dict[str, list[PlacedPiece]] = defaultdict(list)
    within: dict[int, set[str]] = defaultdict(set)
    for name, (_, part, _) in zip(names, numbers, strict=True):
        with collect(model.problems):
            for tensor, offsets in _saved_tensors(folder / name):
                pieces[tensor.name].append(PlacedPiece(offsets, tensor))
                within[part].add(tensor.name)
    most = max(map(len, pieces.values()), default=0)
    for rank, part in sorted({(rank, part) for rank in ranks for part in parts} - {place[:2] for place in numbers}):
        if any(_is_cut(pieces[name], most) for name in within[part]):
            absent_file = f"shard-{rank:05}-model-{part:05}-of-{totals[-1]:05}.safetensors"
            model.problems.append(f"{folder / absent_file}: is missing, so the model is not complete")
    whole = []
    for name, has in pieces.items():
        ends = [[o + s for o, s in zip(piece.offsets, piece.tensor.shape, strict=True)] for piece in has]
        shape = tuple(map(max, zip(*ends, strict=True))) if len({len(end) for end in ends}) == 1 else ()
        whole.append((unwrapped_name(name), has[0].tensor.dtype, shape, has))
    model.assemble(whole)
    return model


def _is_cut(pieces: Sequence[PlacedPiece], ranks: int) -> bool:
    """Whether pieces of a tensor are missing: fewer ranks have a piece than its size allows.

    Each rank gets ceil(n / ranks) of n rows; the last ranks get nothing only if the rows are fewer than the ranks.
    """
    first = min(pieces, key=lambda piece: piece.offsets)
    dim = next((dim for piece in pieces for dim, offset in enumerate(piece.offsets) if offset), 0)
    return len(pieces) < ranks and bool(first.tensor.shape) and first.tensor.shape[dim] >= ranks


def _add_rank_warning(folder: Path, contents: Contents) -> Contents:
    """Return the contents, with a warning if files of the last ranks may be missing, which file names do not show."""
    counts = [text.get("vocab_size") for text in text_configs(contents.config)]
    tokens = next((count for count in counts if type(count) is int), None)
    embeddings = [tensor for name, tensor in contents.tensors.items() if name.endswith(EMBEDDINGS) and tensor.shape]
    largest = max(embeddings, key=lambda tensor: tensor.shape[0], default=None)
    if largest is not None and tokens is not None and largest.shape[0] < tokens:
        raise CheckpointError(
            f"{folder}: tensor {quoted(largest.name)} has {largest.shape[0]:,} rows, but config.json says a vocabulary "
            f"of {tokens:,}; files of the last ranks are missing, or config.json is of another model"
        )
    is_spread = largest is not None and len({leaf.path for leaf in largest.origin.leaves()}) > 1
    if largest is not None and largest.shape[0] == tokens and is_spread:
        return contents
    warning = (
        f"{folder}: neither the names of its files nor config.json tell how many ranks there were; make sure that the "
        "files of the last ones are there"
    )
    return replace(contents, warnings=(*contents.warnings, warning))


def _saved_tensors(path: Path) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    header = read_header(path)
    text = header.metadata.get(_SHARDING)
    if text is None:
        raise CheckpointError(f"{path}: its header lacks {_SHARDING}, so it is not known where its pieces belong")
    try:
        info = parse(text.encode(), _LIMITS, constants=False)
    except ValueError as error:
        raise CheckpointError(f"{path}: {_SHARDING} {error}") from error
    for entry in header.entries:
        entry_info = info.get(entry.name) if isinstance(info, dict) else None
        try:
            offsets = numbers(entry_info.get("saved_offsets") if isinstance(entry_info, dict) else None, "offsets")
        except RefusedError:
            offsets = (-1,)
        if len(offsets) != len(entry.shape) or -1 in offsets:
            raise CheckpointError(f"{path}: tensor {quoted(entry.name)}: {_SHARDING} has no offsets that fit its shape")
        origin = Stored(path, entry.begin, entry.end - entry.begin)
        yield Tensor(entry.name, entry.dtype, entry.shape, origin), offsets


FORMAT = Format("dcp", "torch.distributed.checkpoint", find, local(open_folder), priority=30)
