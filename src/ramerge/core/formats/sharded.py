"""Helpers of formats with tensors in pieces: assemble a model, and read the parts that ranks save.

A part is a stub for torch's DTensor or ShardedTensor, or a plain tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from ramerge.core.formats.files import about_model, write_time_warnings
from ramerge.core.formats.format import Opening
from ramerge.core.formats.torchfile.instructions import Name, RefusedError, Stub
from ramerge.core.formats.torchfile.load import DTYPES, SHARDED_TENSOR, View, numbers
from ramerge.core.formats.views import split_off_ties
from ramerge.core.foundation.errors import CheckpointError, collect
from ramerge.core.foundation.text import quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.origins import Box, Pieces, PlacedPiece, is_covered
from ramerge.core.tensors.tensor import Tensor


@dataclass
class ShardedModel:
    """A model that is assembled from pieces in files, and its problems so far."""

    folder: Path
    files: dict[Location, Identity]
    problems: list[str] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def assemble(self, parts: Iterable[tuple[str, str, tuple[int, ...], Sequence[PlacedPiece]]]) -> None:
        """Assemble tensors (name, dtype, shape) from their pieces, unless there already are problems."""
        for name, dtype, shape, pieces in parts if not self.problems else ():
            try:
                if others := sorted({piece.tensor.dtype for piece in pieces} - {dtype}):
                    raise ValueError(f"is {dtype}, but a piece of it is {others[0]}")
                if wrong := is_covered(shape, [(piece.offsets, piece.tensor.shape) for piece in pieces]):
                    raise ValueError(wrong)
                nonempty = [piece for piece in pieces if piece.tensor.elements]
                if len(nonempty) == 1 and nonempty[0].tensor.shape == shape:
                    self.tensors.append(Tensor(name, dtype, shape, nonempty[0].tensor.origin))
                    continue
                if any(Box.find_box(shape, piece.offsets, piece.tensor.shape) is None for piece in nonempty):
                    raise ValueError("is sharded along several inner dimensions, which is not read")
                # pieces have no names, so that the origins of tied tensors are equal
                unnamed = (PlacedPiece(piece.offsets, replace(piece.tensor, name="")) for piece in nonempty or pieces)
                self.tensors.append(Tensor(name, dtype, shape, Pieces(tuple(unnamed))))
            except ValueError as error:
                self.problems.append(f"{self.folder}: tensor {quoted(name)}: {error}")

    def contents(self, metadata_folder: Path, opening: Opening) -> Contents:
        """Return the contents of the folder, with the configuration from `metadata_folder`; raise all problems."""
        with collect(self.problems):
            about = about_model(metadata_folder, [metadata_folder], replace(opening, base=None))
        if self.problems:
            raise CheckpointError(self.problems)
        untied, ties = split_off_ties(self.tensors, about.config)
        files, notes = {**self.files, **about.files}, (*self.notes, *ties)
        warnings = write_time_warnings(self.folder, self.files.values())
        return Contents(untied, files, about.config, metadata_folder, notes=notes, warnings=warnings)


@dataclass(frozen=True)
class ShardedPart:
    """The part of a tensor that one rank holds.

    Attributes:
        shape: shape of the whole tensor.
        dtype: the name of the dtype in safetensors.
        boxes: pieces of the tensor, each with its offset in every dimension; empty if the rank holds no elements.
    """

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[tuple[tuple[int, ...], View], ...]


def part_of(value: object) -> ShardedPart:
    """Read the part that a rank holds from an entry of its state dict. Raises RefusedError for unsupported entries."""
    if isinstance(value, View):
        return ShardedPart(value.shape, value.dtype, (((0,) * len(value.shape), value),))
    if isinstance(value, Stub) and value.path.endswith(".DTensor"):
        return _dtensor_part(value)
    if isinstance(value, Stub) and value.path == SHARDED_TENSOR:
        return _sharded_tensor_part(value)
    raise RefusedError(f"is a {type(value).__name__}, not a tensor")


def _dtensor_part(stub: Stub) -> ShardedPart:
    local, mesh = stub.get("_local_tensor"), stub.get("_spec", "mesh")
    meta, placements = stub.get("_spec", "tensor_meta"), stub.get("_spec", "placements")
    if not (
        isinstance(local, View)
        and isinstance(mesh, Stub)
        and isinstance(meta, Stub)
        and len(meta.args) == 3
        and isinstance(meta.args[2], Name)
        and isinstance(placements, tuple | list)
    ):
        raise RefusedError("is a DTensor that says nothing of its shards")
    shape, dtype = numbers(meta.args[0], "a shape"), DTYPES.get(meta.args[2].path, "unknown")
    coordinate = mesh.get("_coordinate_on_dim")
    if coordinate is None:
        return ShardedPart(shape, dtype, ())  # a rank outside of the mesh
    ranks, place = _mesh_shape(mesh), numbers(coordinate, "a place in the mesh")
    if not len(ranks) == len(place) == len(placements) or any(i >= n for i, n in zip(place, ranks, strict=True)):
        raise RefusedError(f"has {len(placements)} placements at {list(place)} in a mesh of {list(ranks)} ranks")
    offsets, sizes = [0] * len(shape), list(shape)
    for index, count, placement in zip(place, ranks, placements, strict=True):
        kind = placement.path.rpartition(".")[2] if isinstance(placement, Stub) else "nothing"
        if kind == "Replicate":
            continue
        if kind != "Shard":
            raise RefusedError(
                f"has the placement {kind}; only Shard and Replicate are read, so save the model without tensor "
                "parallelism"
            )
        dim = placement.get("dim") if placement.state is not None else placement.args[0] if placement.args else None
        if type(dim) is not int or not -len(shape) <= dim < len(shape):
            raise RefusedError("is sharded along a dimension that it does not have")
        # like torch.chunk: equal parts, then a shorter one, then empty ones
        step = -(-sizes[dim] // count)
        begin = min(index * step, sizes[dim])
        offsets[dim] += begin
        sizes[dim] = min(step, sizes[dim] - begin)
    if tuple(sizes) != local.shape and not (0 in sizes and 0 in local.shape):
        raise RefusedError(f"should have a shard of {sizes} at {offsets} of {list(shape)}, but has {list(local.shape)}")
    return ShardedPart(shape, dtype, ((tuple(offsets), local),) if prod(local.shape) else ())


def _mesh_shape(mesh: Stub) -> tuple[int, ...]:
    """Return the shape of a mesh: a tensor of ranks up to torch 2.8, later a layout with or without axes."""
    tensor, layout = mesh.get("mesh"), mesh.get("_layout")
    if isinstance(tensor, View):
        return tensor.shape
    if isinstance(layout, Stub):
        axes = layout.get("axes")
        extents = [axis.get("shape") for axis in axes] if isinstance(axes, tuple) else layout.get("shape")
        if isinstance(extents, int):
            extents = (extents,)
        if isinstance(extents, tuple | list):
            return tuple(prod(numbers(extent if type(extent) is tuple else (extent,), "a mesh")) for extent in extents)
    raise RefusedError("is a DTensor whose mesh has no shape")


def _sharded_tensor_part(stub: Stub) -> ShardedPart:
    state = stub.state if isinstance(stub.state, tuple) and len(stub.state) >= 2 else ((), None)
    shards, metadata = state[:2]
    properties = metadata.get("tensor_properties") if isinstance(metadata, Stub) else None
    if not isinstance(shards, list) or not isinstance(properties, Stub) or not isinstance(properties.state, tuple):
        raise RefusedError("is a ShardedTensor that says nothing of its shards")
    shape = numbers(metadata.get("size"), "a shape")
    dtype = next((DTYPES[p.path] for p in properties.state if isinstance(p, Name) and p.path in DTYPES), "unknown")
    boxes = []
    for shard in shards:
        view = shard.get("tensor") if isinstance(shard, Stub) else None
        box = shard.get("metadata") if isinstance(shard, Stub) else None
        if not isinstance(view, View) or not isinstance(box, Stub):
            raise RefusedError("has a shard that is not a tensor")
        offsets, sizes = numbers(box.get("shard_offsets"), "offsets"), numbers(box.get("shard_sizes"), "sizes")
        if sizes != view.shape:
            raise RefusedError(f"should have a shard of {list(sizes)} at {list(offsets)}, but has {list(view.shape)}")
        boxes.append((offsets, view))
    return ShardedPart(shape, dtype, tuple(boxes))
