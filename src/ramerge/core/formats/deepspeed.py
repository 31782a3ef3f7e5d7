"""Reads checkpoints of DeepSpeed's ZeRO: the optimizer's float32 weights, in the partitions of its ranks.

A group of parameters is one long vector, split into a partition for each rank. In stages 1 and 2, the vector is the
concatenation of the parameters; in stage 3, every parameter is split separately, so a rank has a part of each. The
optimizer's moments, two thirds of its files, are never read. Source: `zero_to_fp32.py` of DeepSpeed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from math import prod
from pathlib import Path
from shlex import quote
from typing import TypeVar

from ramerge.core.formats.files import about_model, tag_of
from ramerge.core.formats.format import Format, Opening, local
from ramerge.core.formats.torchfile.instructions import RefusedError, Stub
from ramerge.core.formats.torchfile.load import View, load_file, numbers, suspend_garbage_collection
from ramerge.core.formats.views import split_off_ties, tensor_of, unwrapped_name
from ramerge.core.foundation.errors import CheckpointError, collect
from ramerge.core.foundation.text import quantity, quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.origins import box_of, reshaped, stack
from ramerge.core.tensors.tensor import Tensor

_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_optim_states\.pt")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,6})_)?mp_rank_(\d{1,6})_model_states\.pt")
_MOST_STEPS = 1e12
_Read = TypeVar("_Read")
_PLACES = ("", "_actor")  # OpenRLHF's name
# Files of models with other kinds of parallelism: experts, layers.
_OTHERS = {
    re.compile(r"(?:layer_\d+_)?expert_\d+_.*|expp_rank_.*"): "experts",
    re.compile(r"layer_\d+-model_.*"): "layers (a pipeline)",
}


def find(folder: Location) -> Location | None:
    """Find the folder with ZeRO's partitions: this one, or the latest step of a run."""
    for place in (folder / name for name in _PLACES):
        tag = tag_of(place / "latest")
        for step in (place, *([place / tag] if tag else [])):
            if any(any(step.glob(f"*_{kind}_states.pt")) for kind in ("model", "optim")):
                return step
    return None


def open_folder(folder: Path, opening: Opening) -> Contents:
    """Locate every parameter in the ZeRO partitions of all ranks."""
    try:
        optimizer, model = _rank_files(folder)
        opening.check_files(folder, [*optimizer, *model], in_index=False)
        about = about_model(folder, (folder, folder.parent, folder.parent / "huggingface"), opening)
        files = {**identify(folder / name for name in (*optimizer, *model)), **about.files}
        with suspend_garbage_collection():
            parts = _read_all(_OptimizerFile.read, (folder / name for name in optimizer))
            _check_world(parts, model)
            states = _read_all(partial(_ModelFile.read, stage=parts[0].stage), (folder / name for name in model))
            tensors = _assemble_tensors(parts, states)
    except RefusedError as error:
        # DeepSpeed puts its script into every checkpoint
        is_root = (folder / "zero_to_fp32.py").is_file()
        root, tag = (folder, "") if is_root else (folder.parent, f" --tag {quote(folder.name)}")
        script, out = quote(str(root / "zero_to_fp32.py")), quote(f"{root}-fp32")
        raise CheckpointError(
            f"{folder}: {error}; DeepSpeed converts it: python {script} {quote(str(root))} {out}{tag} "
            f"--safe_serialization, which keeps float32; then copy config.json and the tokenizer to {out}"
        ) from error
    untied, ties = split_off_ties(tensors.values(), about.config)
    note = f"{folder}: float32 weights of ZeRO-{parts[0].stage}, in partitions of {quantity(len(parts), 'rank')}"
    return Contents(untied, files, about.config, about.metadata_folder, notes=(note, *about.notes, *ties))


def _read_all(read: Callable[[Path], _Read], paths: Iterable[Path]) -> list[_Read]:
    results, problems = list[_Read](), list[str]()
    for path in paths:
        with collect(problems):
            results.append(read(path))
    if problems:
        raise CheckpointError(problems)
    return results


# --- files -----------------------------------------------------------------------------------------------------------


def _rank_files(folder: Path) -> tuple[list[str], list[str]]:
    """List the optimizer files and the model files, in the order of ranks."""
    names = sorted(path.name for path in folder.glob("*_states.pt"))
    for pattern, what in _OTHERS.items():
        if name := next(filter(pattern.fullmatch, names), None):
            raise RefusedError(f"holds {quoted(name)}: {what} were spread over ranks, which is not read")
    optimizer = {(int(m[1]), int(m[2])): m[0] for name in names if (m := _OPTIMIZER.fullmatch(name))}
    model = {(int(m[1] or 0), int(m[2])): m[0] for name in names if (m := _MODEL.fullmatch(name))}
    if any(parallel for _, parallel in (*optimizer, *model)):
        raise RefusedError(
            "holds files of several mp_ranks: the model was cut by tensor parallelism, which is not read"
        )
    if not optimizer:
        raise CheckpointError(
            f"{folder}: holds no *_optim_states.pt, in which the float32 weights are; copy them from all machines"
        )
    missing = [
        f"{folder}: has no {what} file of rank {rank}, so the model is not complete; copy it from the machine that ran "
        "this rank"
        for what, ranks in (("*_optim_states.pt", optimizer), ("*_model_states.pt", model))
        for rank in sorted(set(range(max((rank for rank, _ in ranks), default=0))) - {rank for rank, _ in ranks})
    ]
    if (0, 0) not in model:
        missing.append(f"{folder}: has no mp_rank_00_model_states.pt, which says what the partitions hold")
    if missing:
        raise CheckpointError(missing)
    return [optimizer[place] for place in sorted(optimizer)], [model[place] for place in sorted(model)]


@dataclass(frozen=True)
class _OptimizerFile:
    """Contents of an optimizer file.

    Attributes:
        path: the file.
        stage: ZeRO stage, 1 to 3.
        ranks: the number of partitions.
        groups: this rank's partition of each parameter group, 1-D.
        paddings: for each group, padding elements after each parameter; empty if unknown.
        step: the optimizer's steps; None if unknown.
    """

    path: Path
    stage: int
    ranks: int
    groups: tuple[Tensor, ...]
    paddings: tuple[tuple[int, ...], ...] = ()
    step: float | None = None

    @staticmethod
    def read(path: Path) -> _OptimizerFile:
        """Read and check an optimizer file of ZeRO."""
        state = _load_dictionary(path).get("optimizer_state_dict")
        state = state if isinstance(state, dict) else {}
        stage, ranks = state.get("zero_stage"), state.get("partition_count")
        if isinstance(stage, Stub):  # an enumeration
            stage = stage.args[0] if len(stage.args) == 1 else None
        if isinstance(ranks, list):  # one for each group
            ranks = max(ranks) if ranks and len({type(count) for count in ranks}) == 1 else None
        views = state.get("fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups")
        if stage not in (1, 2, 3) or type(ranks) is not int or not isinstance(views, list):
            raise CheckpointError(f"{path}: holds no float32 weights of ZeRO's stage 1, 2 or 3")
        if not all(isinstance(view, View) and view.dtype == "F32" and len(view.shape) == 1 for view in views):
            raise CheckpointError(f"{path}: its partitions of groups are not float32 vectors")
        paddings = state.get("param_alignment_paddings") or []
        if not isinstance(paddings, list) or not all(isinstance(row, list) for row in paddings):
            raise CheckpointError(f"{path}: its param_alignment_paddings are no lists")
        if any(type(one) is not int or one < 0 for one in chain(*paddings)):
            raise CheckpointError(f"{path}: its param_alignment_paddings are not counts")
        groups = tuple(tensor_of("", view) for view in views)
        return _OptimizerFile(path, stage, ranks, groups, tuple(map(tuple, paddings)), _step_of(state))


def _step_of(state: Mapping[object, object]) -> float | None:
    """Return how many steps an optimizer has taken, which Adam stores for each group or parameter; None if unknown."""
    for key, part in product(("base_optimizer_state", "optimizer_state_dict"), ("state", "param_groups")):
        inner = state.get(key)
        states = inner.get(part) if isinstance(inner, dict) else None
        for one in states.values() if isinstance(states, dict) else states if isinstance(states, list) else ():
            step = one.get("step") if isinstance(one, dict) else None
            if isinstance(step, View) and (step.dtype, prod(step.shape)) == ("F32", 1):
                with step.storage.path.open("rb") as file:
                    file.seek(step.storage.offset + 4 * step.start)
                    (step,) = struct.unpack("<f", file.read(4).ljust(4, b"\0"))
            if isinstance(step, int | float) and abs(step) < _MOST_STEPS:
                return step
    return None


def _check_world(parts: Sequence[_OptimizerFile], model: Sequence[str]) -> None:
    first = parts[0]
    problems = [
        f"{part.path}: is one of {part.ranks} partitions, but there are files of {quantity(len(parts), 'rank')}; copy "
        "those that are missing, or remove those that are left from an earlier run"
        for part in parts
        if part.ranks != len(parts)
    ]
    problems += [
        f"{part.path}: is of ZeRO-{part.stage} with {quantity(len(part.groups), 'group')}, but {first.path.name} of "
        f"ZeRO-{first.stage} with {len(first.groups)}; the files are of different runs"
        for part in parts
        if (part.stage, len(part.groups), part.paddings) != (first.stage, len(first.groups), first.paddings)
    ]
    steps = {part.step: part.path.name for part in parts if part.step is not None}
    if len(steps) > 1:
        ranks_of_steps = ", ".join(f"{step:g} in {name}" for step, name in steps.items())
        problems.append(
            f"{first.path.parent}: the ranks are of different steps ({ranks_of_steps}); copy all files of one step"
        )
    if first.stage == 3 and len(model) != len(parts):
        problems.append(
            f"{first.path.parent}: holds {quantity(len(parts), 'file')} *_optim_states.pt, but "
            f"{quantity(len(model), 'file')} *_model_states.pt; copy those that are missing"
        )
    if problems:
        raise CheckpointError(problems)


@dataclass(frozen=True)
class _ModelFile:
    """Contents of a model file.

    Attributes:
        path: the file.
        groups: the shapes of the parameters in each group, by name.
        frozen_shapes: in stage 3, the shapes of frozen parameters.
        fragments: in stage 3, this rank's parts of frozen parameters.
        whole: tensors outside of the partitions: buffers, and in stages 1 and 2 also frozen parameters.
        aliases: the names of tied parameters, mapped to the names under which they are stored.
    """

    path: Path
    groups: tuple[dict[str, tuple[int, ...]], ...]
    frozen_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fragments: dict[str, View] = field(default_factory=dict)
    whole: dict[str, View] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path, stage: int) -> _ModelFile:
        """Read and check a model file of a checkpoint of this ZeRO stage."""
        state = _load_dictionary(path)
        if state.get("autoep_layers") or state.get("ds_autoep_layers"):
            raise RefusedError(f"{path.name} has layers of experts that were spread over ranks, which is not read")
        groups, module, buffers = (state.get(key) for key in ("param_shapes", "module", "buffer_names"))
        if not isinstance(groups, list) or not isinstance(module, dict) or not isinstance(buffers, list | None):
            raise CheckpointError(f"{path}: does not say which parameters the partitions hold (param_shapes)")
        try:
            shapes = tuple(map(_parse_shapes, groups))
            aliases = {
                name: one
                for name, one in _checked_name_mapping(state.get("shared_params")).items()
                if isinstance(one, str)
            }
            views = {name: view for name, view in _checked_name_mapping(module).items() if isinstance(view, View)}
            if stage == 3:  # parameters have no elements here
                frozen_shapes = _parse_shapes(state.get("frozen_param_shapes"))
                parts = _checked_name_mapping(state.get("frozen_param_fragments"))
                fragments = {name: view for name, view in parts.items() if isinstance(view, View)}
                if len(fragments) < len(parts):
                    raise RefusedError("a frozen parameter is not a tensor")
                whole = {name: view for name, view in views.items() if name in (buffers or ())}
                return _ModelFile(path, shapes, frozen_shapes, fragments, whole, aliases)
        except RefusedError as error:
            raise CheckpointError(f"{path}: refused: {error}") from error
        trained_names = {name for group in shapes for name in group}
        twins = {
            view: name for name, view in views.items() if name in trained_names
        }  # older versions do not list shared parameters
        aliases |= {name: twins[view] for name, view in views.items() if name not in trained_names and view in twins}
        whole = {name: view for name, view in views.items() if name not in trained_names and name not in aliases}
        return _ModelFile(path, shapes, whole=whole, aliases=aliases)


def _load_dictionary(path: Path) -> dict[str, object]:
    state = load_file(path, modules=("deepspeed",))
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise CheckpointError(f"{path}: must hold a dictionary, as DeepSpeed saves it")
    return state


def _checked_name_mapping(mapping: object) -> dict[str, object]:
    mapping = {} if mapping is None else mapping
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping):
        raise RefusedError("it does not name its parameters")
    return mapping


def _parse_shapes(mapping: object) -> dict[str, tuple[int, ...]]:
    return {
        name: numbers(shape, f"a shape of {quoted(name)}") for name, shape in _checked_name_mapping(mapping).items()
    }


# --- partitions ------------------------------------------------------------------------------------------------------


def _assemble_tensors(parts: Sequence[_OptimizerFile], states: Sequence[_ModelFile]) -> dict[str, Tensor]:
    first = states[0]
    whole = chain(
        ((name, tensor_of("", view)) for name, view in first.whole.items()),
        _frozen_tensors(states),
        _stage_3_parameters(parts, first) if parts[0].stage == 3 else _stage_2_parameters(parts, first),
    )
    tensors: dict[str, Tensor] = {}
    problems = []
    for name, tensor in whole:
        if unwrapped_name(name) in tensors:
            problems.append(f"{first.path}: holds tensor {quoted(name)} twice")
        tensors[unwrapped_name(name)] = replace(tensor, name=unwrapped_name(name))
    for name, other in first.aliases.items():
        if (twin := tensors.get(unwrapped_name(other))) is not None:
            tensors[unwrapped_name(name)] = replace(twin, name=unwrapped_name(name))
    if problems:
        raise CheckpointError(problems)
    return tensors


def _flat_slice(flat: Tensor, offset: int, elements: int) -> Tensor:
    return box_of(flat, (offset,), (elements,))


def _concatenation(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate vectors, leaving out empty ones."""
    nonempty = [tensor for tensor in tensors if tensor.elements] or tensors[:1]
    return stack("", nonempty) if len(nonempty) > 1 else nonempty[0]


def _stage_2_parameters(parts: Sequence[_OptimizerFile], state: _ModelFile) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters that are stored one after another, possibly across partitions; the last may be shorter."""
    first = parts[0]
    paddings = first.paddings or tuple((0,) * len(group) for group in state.groups)
    sizes, padded = tuple(map(len, state.groups)), tuple(map(len, paddings))
    if len(sizes) != len(first.groups) or sizes != padded:
        raise CheckpointError(
            f"{state.path}: says {len(sizes)} groups of {list(sizes)} parameters, but {first.path.name} has "
            f"{len(first.groups)} with paddings of {list(padded)}; the files are of different runs"
        )
    for number, (group, group_padding) in enumerate(zip(state.groups, paddings, strict=True)):
        flat = _concatenation([part.groups[number] for part in parts])
        expected_elements = sum(map(prod, group.values())) + sum(group_padding)
        alignment = 2 * len(parts)
        if expected_elements > flat.elements or -(-expected_elements // alignment) != -(-flat.elements // alignment):
            raise _wrong_size_error(state, f"group {number}", expected_elements, flat.elements)
        offset = 0
        for (name, shape), padding in zip(group.items(), group_padding, strict=True):
            yield name, reshaped(_flat_slice(flat, offset, prod(shape)), shape)
            offset += prod(shape) + padding


def _stage_3_parameters(parts: Sequence[_OptimizerFile], state: _ModelFile) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters that are split across all ranks. The parts of a rank are contiguous, through all groups."""
    flats = [_concatenation(part.groups) for part in parts if part.groups]
    shapes = {name: shape for group in state.groups for name, shape in group.items()}
    expected_elements = sum(-(-prod(shape) // len(parts)) for shape in shapes.values())
    for part, flat in zip(parts, flats, strict=False):
        if flat.elements != expected_elements:
            raise _wrong_size_error(state, part.path.name, expected_elements, flat.elements)
    if len(flats) < len(parts):
        raise CheckpointError(f"{state.path.parent}: the partitions are empty")
    offset = 0
    for name, shape in shapes.items():
        share = -(-prod(shape) // len(parts))
        yield name, reshaped(_join_shares([_flat_slice(flat, offset, share) for flat in flats], prod(shape)), shape)
        offset += share


def _wrong_size_error(state: _ModelFile, what: str, expected_elements: int, present: int) -> CheckpointError:
    return CheckpointError(
        f"{state.path}: its parameters take {expected_elements:,} elements of {what}, which has {present:,}; the files "
        "are of different runs, or one is damaged"
    )


def _join_shares(shares: Sequence[Tensor], elements: int) -> Tensor:
    """Concatenate equal shares of all ranks to a vector of `elements`; the last shares may end with padding."""
    share = shares[0].elements
    return _concatenation(
        [_flat_slice(one, 0, max(0, min(share, elements - rank * share))) for rank, one in enumerate(shares)]
    )


def _frozen_tensors(states: Sequence[_ModelFile]) -> Iterator[tuple[str, Tensor]]:
    """Yield frozen parameters, which stage 3 splits across the files of all ranks."""
    for name, shape in states[0].frozen_shapes.items():
        shares: list[Tensor] = []
        for state in states:
            if name not in state.fragments:
                raise CheckpointError(f"{state.path}: lacks the frozen parameter {quoted(name)}")
            share = tensor_of(name, state.fragments[name])
            shares.append(reshaped(share, (share.elements,)))
        share_elements = -(-prod(shape) // len(states))
        for state, share in zip(states, shares, strict=True):
            if share.elements != share_elements or share.dtype != shares[0].dtype:
                raise CheckpointError(
                    f"{state.path}: has {share.elements:,} elements in {share.dtype} of the frozen parameter "
                    f"{quoted(name)}, not {share_elements:,} in {shares[0].dtype}"
                )
        yield name, reshaped(_join_shares(shares, prod(shape)), shape)


FORMAT = Format("deepspeed", "ZeRO partitions of DeepSpeed", find, local(open_folder), priority=20)
