"""Records the inputs of a model's linear layers while it runs. Imports torch.

A product with a weight goes through `torch.nn.functional.linear`, or through torch's other products if the weight is
stored as (in, out); this also holds for experts, whose weights are parts of one tensor. The recorder recognizes a
weight by the memory that it shares with a tensor of the checkpoint, and a transposed weight by its strides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from ramerge import WeightsError
from ramerge.calibration.experts import number_of, rows_per_expert
from ramerge.calibration.live import LiveModel
from ramerge.core.formats.recorded import expert_of, name_of

_PRODUCTS = {
    torch.matmul: (0, 1),
    torch.Tensor.matmul: (0, 1),
    torch.mm: (0, 1),
    torch.bmm: (0, 1),
    torch.addmm: (1, 2),
}
"""Functions that multiply inputs by a weight (in, out), with the positions of both among the arguments."""


@dataclass(frozen=True)
class _MatrixView:
    """A matrix of the checkpoint, as a view of the model's memory.

    Attributes:
        name: the tensor's name; `NAME[expert]` for a part of a tensor that stacks experts.
        strides: the strides of rows and columns.
    """

    name: str
    begin: int
    strides: tuple[int, int]
    elements: int

    def lies_in(self, begin: int, end: int) -> bool:
        return begin <= self.begin and self.begin + self.elements <= end


@dataclass
class _RecordingSite:
    """A place where inputs are recorded: the inputs that one or several weights share.

    Attributes:
        parts: the recorded rows, in order.
        token_count: the number of tokens that an expert has seen.
    """

    names: list[str]
    parts: list[torch.Tensor] = field(default_factory=list)
    token_count: int = 0

    @property
    def is_expert(self) -> bool:
        return number_of(self.names[0]) is not None

    @property
    def rows(self) -> int:
        return sum(map(len, self.parts))


class InputRecorder(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed for mypy
    """A context that records the inputs of linear layers at chosen positions of each sequence.

    Experts see only some tokens; a seeded choice of all these tokens is kept.

    Args:
        names: the names of the checkpoint's tensors; in transformers, most have several names.
    """

    def __init__(self, live: LiveModel, names: Container[str], most: int, seed: int) -> None:
        super().__init__()
        self._offloaded = live.offloaded
        self._seed = seed
        self._matrices: dict[int, list[_MatrixView]] = {}
        self._transposed: set[str] = set()
        exclusions = {
            layer.weight.untyped_storage().data_ptr()
            for layer in (live.model.get_input_embeddings(), live.model.get_output_embeddings())
            if layer is not None
        }
        for name, target in live.targets.items():
            memory = target.untyped_storage().data_ptr()
            if name in names and memory not in exclusions:
                self._matrices.setdefault(memory, []).extend(_matrix_views(name, target))
        self._most = rows_per_expert(most, (each.name for views in self._matrices.values() for each in views))
        self._sites: dict[tuple[int, int, int], _RecordingSite] = {}
        self._last: tuple[torch.Tensor, _RecordingSite] | None = None
        self._positions = torch.empty(0, dtype=torch.long)
        self._length = 0

    def begin(self, positions: Sequence[int], length: int, device: torch.device) -> None:
        """Begin a sequence of `length` tokens; rows of these positions are recorded."""
        self._positions = torch.tensor(positions, dtype=torch.long, device=device)
        self._length, self._last = length, None

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            weight = self._weight_home(args[1] if len(args) > 1 else (kwargs or {})["weight"])
            self._record_inputs(args[0], weight, weight.stride(-1))
        elif func in _PRODUCTS:
            inputs, weight = (args[place] for place in _PRODUCTS[func])
            weight = self._weight_home(weight)
            if weight.untyped_storage().data_ptr() not in self._matrices:
                pass
            elif weight.ndim == 2:
                self._record_inputs(inputs, weight, weight.stride(-2))
            elif inputs.ndim == weight.ndim == 3:  # all experts at once, each with zeros for tokens of others
                for rows, one in zip(inputs, weight, strict=True):
                    self._record_inputs(rows[rows.any(-1)], one, one.stride(-2))
        return func(*args, **(kwargs or {}))

    def _weight_home(self, weight: torch.Tensor) -> torch.Tensor:
        return weight if self._offloaded is None else self._offloaded.home(weight)

    def _record_inputs(self, inputs: torch.Tensor, weight: torch.Tensor, stride: int) -> None:
        """Record the inputs of a weight with this stride along its input dimension."""
        memory, begin = weight.untyped_storage().data_ptr(), weight.storage_offset()
        key = (memory, begin, begin + weight.numel())
        site = self._sites.get(key)
        if site is None:
            matrices = [each for each in self._matrices.get(memory, ()) if each.lies_in(*key[1:])]
            names = [each.name for each in matrices]
            if not names:
                return
            self._transposed |= {each.name for each in matrices if each.strides[0] == stride != each.strides[1]}
            if self._last is not None and self._last[0] is inputs:  # as q, k and v see one tensor
                site = self._last[1]
                site.names += names
                self._sites[key] = site
                return
            site = self._sites[key] = _RecordingSite(names)
        elif self._last is not None and self._last[1] is site:
            return
        self._last = inputs, site
        flat = inputs.detach().reshape(-1, inputs.shape[-1])
        if site.is_expert:
            site.token_count += len(flat)
            site.parts.append(_row_copy(flat))
            if site.rows > 2 * self._most:
                self._subsample_rows(site)
        elif len(flat) == self._length:
            site.parts.append(_row_copy(flat[self._positions]))

    def _subsample_rows(self, site: _RecordingSite) -> None:
        """Keep a seeded choice of an expert's rows."""
        rows = torch.cat(site.parts)
        digest = hashlib.sha256(f"{self._seed}\n{site.names[0]}\n{site.token_count}".encode()).digest()
        order = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "big"))).permutation(len(rows))
        site.parts = [rows[torch.from_numpy(np.sort(order[: self._most]))]]

    def result(self, weights: NDArray[np.float32], tokens: int) -> RecordedInputs:
        """Stack all recorded inputs.

        Args:
            weights: the weight of each chosen position, over all sequences; they add up to 1.
            tokens: the number of tokens of all sequences, for the weights of experts.
        """
        rows: dict[str, torch.Tensor] = {}
        counts: dict[str, NDArray[np.float32]] = {"weights": weights}
        places: dict[str, list[str]] = {}
        wrong = []
        for site in {id(each): each for each in self._sites.values()}.values():
            if site.is_expert and site.rows > self._most:
                self._subsample_rows(site)
            all_rows = torch.cat(site.parts) if site.parts else torch.empty(0)
            if not site.is_expert and len(all_rows) != len(weights):
                continue  # a layer that sees other tokens than these, such as one behind a pool
            if not bool(torch.isfinite(all_rows).all()):
                wrong.append(site.names[0])
            name, weights_name = f"rows.{site.names[0]}", "weights"
            if site.is_expert:
                weights_name = f"weights.{site.names[0]}"
                counts[weights_name] = np.full(
                    len(all_rows), site.token_count / max(len(all_rows), 1) / tokens, np.float32
                )
            rows[name] = all_rows
            places |= {each: [name, weights_name] for each in site.names}
        if wrong:
            raise WeightsError(f"inputs of {wrong[0]!r} and {len(wrong) - 1:,} other layers are NaN or Inf")
        transposed = {(expert_of(name) or (name,))[0] for name in self._transposed & places.keys()}
        return RecordedInputs(rows, counts, dict(sorted(places.items())), sorted(transposed))


def _matrix_views(name: str, target: torch.Tensor) -> list[_MatrixView]:
    """Views of a matrix, or of each expert's matrix in a stacked tensor; empty if there are gaps in the memory."""
    if target.ndim == 3:
        return [view for expert, part in enumerate(target) for view in _matrix_views(name_of(name, expert), part)]
    if target.ndim != 2 or not (target.is_contiguous() or target.T.is_contiguous()):
        return []
    return [_MatrixView(name, target.storage_offset(), target.stride(), target.numel())]


def _row_copy(rows: torch.Tensor) -> torch.Tensor:
    return rows.to(torch.bfloat16).cpu()


@dataclass(frozen=True)
class RecordedInputs:
    """Recorded inputs of a model's layers, as `regmean` takes them.

    Attributes:
        rows: by name, bfloat16 tensors of shape (n, d).
        weights: by name, the weight of each row, float32 of shape (n,).
        places: for each weight of the model, the names of its rows and of their weights.
        transposed: weights of the model that are stored as (in, out).
    """

    rows: Mapping[str, torch.Tensor]
    weights: Mapping[str, NDArray[np.float32]]
    places: Mapping[str, Sequence[str]]
    transposed: Sequence[str] = ()


def chosen_positions(
    sequences: Sequence[Sequence[int]], starts: Sequence[int], most: int, seed: int
) -> tuple[list[list[int]], NDArray[np.float32]]:
    """Choose the positions to record in each sequence, in order, and their weights.

    The common beginning of all sequences is recorded once, from the first sequence, and counts once per sequence: a
        causal
    model computes the same there each time. If there are more positions than `most`, a seeded choice is taken.

    Args:
        starts: positions where the replies begin; the common beginning ends before the first of them.

    Returns:
        Positions by sequence, and weights that add up to 1.
    """
    beginnings = zip(*(ids[: min(starts)] for ids in sequences), strict=False)
    common = len(list(takewhile(lambda tokens: len(set(tokens)) == 1, beginnings))) if len(sequences) > 1 else 0
    candidates = [
        (number, position, len(sequences) if position < common else 1)
        for number, ids in enumerate(sequences)
        for position in range(len(ids))
        if not number or position >= common
    ]
    if len(candidates) > most:
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(candidates))[:most]
        candidates = [candidates[place] for place in np.sort(order)]
    positions: list[list[int]] = [[] for _ in sequences]
    for number, position, _count in candidates:
        positions[number].append(position)
    counts = np.array([count for _, _, count in candidates], np.float64)
    return positions, (counts / counts.sum()).astype(np.float32)
