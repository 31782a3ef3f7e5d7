"""Reads FSDP shards of verl and SkyRL, one file for each rank: `model_world_size_4_rank_0.pt` and so on.

Weights are only read from the model's files, never from the optimizer's. Every rank states the offsets of its shards in
the whole tensors, so nothing depends on the order of files or names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ramerge.core.formats.files import policy_places, read_json
from ramerge.core.formats.format import Format, Opening, local
from ramerge.core.formats.sharded import ShardedModel, ShardedPart, part_of
from ramerge.core.formats.torchfile.instructions import RefusedError
from ramerge.core.formats.torchfile.load import View, load_file, suspend_garbage_collection
from ramerge.core.formats.views import tensor_of, unwrapped_name
from ramerge.core.foundation.errors import CheckpointError, collect
from ramerge.core.foundation.text import quantity, quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.access import access
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.origins import PlacedPiece

_FILE = re.compile(r"model_world_size_([1-9][0-9]{0,5})_rank_(0|[1-9][0-9]{0,5})\.pt")
_CONFIG = "fsdp_config.json"
_MOST_STEPS = 10**12
_LORA = re.compile(r"\.(base_layer|lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)\b")


def find(folder: Location) -> Location | None:
    """Find the folder with FSDP's shards: this one, its `actor` or `policy`, or these of the latest step of a run."""
    return next((place for place in policy_places(folder) if place.is_dir() and _shards(place)), None)


def _shards(folder: Location) -> dict[tuple[int, int], str]:
    matches = (_FILE.fullmatch(path.name) for path in folder.glob("model_world_size_*_rank_*.pt"))
    shards = {(int(m[1]), int(m[2])): m[0] for m in matches if m}
    return dict(sorted(shards.items()))


def open_folder(folder: Path, opening: Opening) -> Contents:
    """Read the positions of shards from every rank, and check that the shards form whole tensors."""
    files = _shards_by_rank(folder)
    inner, adapter = folder / "huggingface", folder / "lora_adapter"
    names = [*files, *([_CONFIG] if (folder / _CONFIG).is_file() else [])]
    opening.check_files(folder, names, in_index=False)
    model = ShardedModel(folder, identify(folder / name for name in names))
    model.notes = (f"{folder}: shards of {quantity(len(files), 'rank')}",)
    model.problems += _other_steps(folder, len(files))
    parts_by_name: dict[str, _ParameterParts] = {}
    with suspend_garbage_collection():
        for rank, path in enumerate(folder / name for name in files):
            with collect(model.problems):
                state = load_file(path)
                if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
                    raise CheckpointError(f"{path}: must hold a dictionary of tensors, the state dict of a model")
                for name, value in state.items():
                    try:
                        part = part_of(value)
                        parts_by_name.setdefault(unwrapped_name(name), _ParameterParts(part)).add(part, rank)
                    except RefusedError as error:
                        model.problems.append(f"{path}: tensor {quoted(name)}: {error}")
        if not model.problems:
            if any(map(_LORA.search, parts_by_name)):
                advice = f"give {adapter}" if adapter.is_dir() else "save the adapter (verl writes it to lora_adapter/)"
                model.problems.append(
                    f"{folder}: holds the shards of a LoRA adapter, not of a whole model; {advice} as the agent instead"
                )
            model.problems += [
                f"{folder}: tensor {quoted(name)}: only {one.ranks} of {len(files)} ranks have it; the files are of "
                "different models"
                for name, one in parts_by_name.items()
                if one.ranks != len(files)
            ]
        with collect(model.problems):
            model.assemble(
                (name, one.first.dtype, one.first.shape, one.pieces(name)) for name, one in parts_by_name.items()
            )
    return model.contents(inner if inner.is_dir() else folder, opening)


def _shards_by_rank(folder: Path) -> list[str]:
    """Return the names of the shards in the order of ranks; raise for missing ranks and for several world sizes."""
    shards = _shards(folder)
    sizes = sorted({size for size, _ in shards})
    if (folder / _CONFIG).is_file():
        world_size = read_json(folder / _CONFIG).get("world_size")
        if world_size not in sizes:
            raise CheckpointError(
                f"{folder / _CONFIG}: says {quoted(world_size)} ranks, but the shards are of "
                f"{' and '.join(map(str, sizes))}"
            )
    if len(sizes) > 1:
        raise CheckpointError(
            f"{folder}: holds shards of {' and '.join(map(str, sizes))} ranks; "
            "remove those that are left from an earlier run"
        )
    (size,) = sizes
    ranks = {rank for _, rank in shards}
    if extra := sorted(ranks - set(range(size))):
        raise CheckpointError(f"{folder / shards[size, extra[0]]}: there is no rank {extra[0]} of {size}")
    if missing := sorted(set(range(size)) - ranks):
        raise CheckpointError(
            f"{folder / f'model_world_size_{size}_rank_{rank}.pt'}: is missing, so the model is not complete; "
            "copy it from the machine that ran this rank"
            for rank in missing
        )
    return [shards[size, rank] for rank in range(size)]


def _other_steps(folder: Path, ranks: int) -> Iterator[str]:
    ranks_by_step: dict[int, list[int]] = {}
    for rank in range(ranks):
        path = folder / f"extra_state_world_size_{ranks}_rank_{rank}.pt"
        if not path.is_file() or access(path).leads_outside(folder):
            continue
        try:
            state = load_file(path, modules=("numpy", "_codecs", "random"))
        except CheckpointError:
            continue  # only weights must be read
        if not isinstance(state, dict):
            continue
        # the step of the learning rate's schedule, or of the trainer's state
        schedule = state.get("lr_scheduler")
        last_step = schedule.get("last_epoch") if isinstance(schedule, dict) else None
        steps = [
            step
            for step in (last_step, state.get("global_step"), state.get("step"))
            if type(step) is int and abs(step) < _MOST_STEPS
        ]
        if steps:
            ranks_by_step.setdefault(steps[0], []).append(rank)
    if len(ranks_by_step) > 1:
        steps_of_ranks = ", ".join(f"{step} for rank {ranks[0]}" for step, ranks in ranks_by_step.items())
        yield (
            f"{folder}: the ranks are of different steps (extra_state says {steps_of_ranks}); copy all files of one "
            "step"
        )


@dataclass
class _ParameterParts:
    """A tensor's parts in the ranks that were read so far.

    `boxes` maps offset and shape of every piece to the piece and the first rank that has it.
    """

    first: ShardedPart
    ranks: int = 0
    boxes: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[View, int]] = field(default_factory=dict)

    def add(self, part: ShardedPart, rank: int) -> None:
        """Add the part of a rank, which must agree with the parts of other ranks."""
        self.ranks += 1
        first = self.first
        if (part.shape, part.dtype) != (first.shape, first.dtype):
            raise RefusedError(
                f"is {part.dtype} {list(part.shape)} here, but {first.dtype} {list(first.shape)} in another rank's "
                "file; the files are of different models"
            )
        for offsets, view in part.boxes:
            twin, other_rank = self.boxes.setdefault((offsets, view.shape), (view, rank))
            # checksums of whole storages are compared, so no elements are read
            comparable = all(
                each.start == 0 and each.nbytes == each.storage.nbytes and each.storage.checksum
                for each in (view, twin)
            )
            if comparable and view.strides == twin.strides and view.storage.checksum != twin.storage.checksum:
                raise RefusedError(
                    f"its elements from {list(offsets)} on differ from those in the file of rank {other_rank}, which "
                    "should be the same; the files may be of different steps"
                )

    def pieces(self, name: str) -> list[PlacedPiece]:
        return [PlacedPiece(offsets, tensor_of(name, view)) for (offsets, _), (view, _) in self.boxes.items()]


FORMAT = Format("fsdp", "FSDP shards of verl or SkyRL", find, local(open_folder), priority=50)
