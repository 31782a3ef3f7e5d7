"""The interface of encodings, and helpers that turn codes and scales into the model's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ramerge.core.foundation.text import quoted
from ramerge.core.kernels.dequantize import Grid
from ramerge.core.tensors.scaled import Scaling
from ramerge.core.tensors.tensor import Tensor

Tensors = Mapping[str, Tensor]
Config = Mapping[str, object]

FLOAT8 = ("F8_E4M3", "F8_E5M2")
# Formats of scales by dtype; a plain byte is an exponent.
_SCALE_FORMATS = {"F32": "F32", "BF16": "BF16", "F8_E8M0": "F8_E8M0", "U8": "F8_E8M0"}


@dataclass
class Decoding:
    """A model's tensors during decoding.

    Attributes:
        encoded_tensors: the stored tensors by name.
        config: the declared quantization.
        dtype: the model's dtype before quantization.
        tensors: decoded tensors by the name of the stored tensor that each replaces.
        hidden_names: stored tensors that are not part of the model: scales, and activation statistics.
        problems: the problems so far.
    """

    encoded_tensors: Tensors
    config: Config
    dtype: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    hidden_names: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def problem(self, tensor: Tensor, text: str) -> None:
        """Note a problem of a tensor."""
        self.problems.append(f"{tensor.path}: tensor {quoted(tensor.name)}: {text}")

    def put_with_scales(self, name: str, codes: Tensor, scales: str, candidate_grids: Sequence[Grid]) -> None:
        """Replace one-byte codes by the decoded tensor `name`, as `put` does."""
        self.put(name, codes, codes.dtype, codes.shape, scales, candidate_grids)

    def put(
        self,
        name: str,
        codes: Tensor,
        format: str,
        shape: tuple[int, ...],
        scales: str,
        candidate_grids: Sequence[Grid],
        *,
        factor: str | None = None,
        divisor: str | None = None,
    ) -> Tensor | None:
        """Replace codes by a decoded tensor.

        Args:
            name: the decoded tensor's name.
            codes: the stored codes.
            format: the format of the codes.
            shape: the decoded tensor's shape.
            scales: the name of the stored scales.
            candidate_grids: candidate layouts of the scales, of which exactly one must fit the stored shape.
            factor: the name of a number, or of a number for each matrix, by which scales are multiplied.
            divisor: the name of a number by which scales are divided.

        Returns:
            The decoded tensor; None after a problem, which is noted.
        """
        second_scale_name = factor or divisor
        self.hidden_names |= {scales, *([second_scale_name] if second_scale_name else [])}
        scale_tensor = self.encoded_tensors.get(scales)
        if scale_tensor is None:
            self.problem(codes, f"has no scales: {quoted(scales)} is missing")
            return None
        # only scales of groups with a second scale are e4m3
        scale_format = (
            "F8_E4M3"
            if second_scale_name and scale_tensor.dtype == "F8_E4M3"
            else _SCALE_FORMATS.get(scale_tensor.dtype)
        )
        if scale_format is None:
            formats = "F8_E4M3" if second_scale_name else ", ".join(_SCALE_FORMATS)
            self.problem(scale_tensor, f"scales of dtype {scale_tensor.dtype} are not known; known are {formats}")
            return None
        if 0 in shape:
            self.problem(codes, f"has no elements: {list(shape)}")
            return None
        grid = self._matching_grid(scale_tensor, shape, tuple(candidate_grids))
        matrices = math.prod(shape[:-2]) if factor else 1
        second_scale = self._find_second_scale(codes, second_scale_name, (1, matrices))
        if grid is None or (second_scale_name is not None and second_scale is None):
            return None
        scales_are_powers_of_two = self.config.get("scale_fmt") == "ue8m0"
        origin = Scaling(
            codes,
            format,
            scale_tensor,
            scale_format,
            grid,
            second_scale if factor else None,
            second_scale if divisor else None,
            self.dtype,
            scales_are_powers_of_two,
        )
        decoded = Tensor(name, "F32", shape, origin)
        self.tensors[codes.name] = decoded
        return decoded

    def _matching_grid(self, scales: Tensor, shape: tuple[int, ...], candidate_grids: tuple[Grid, ...]) -> Grid | None:
        """Return the only grid that fits the scales; None if no grid or several fit, which is noted as a problem."""
        fitting = _fitting_grids(scales.shape, shape, candidate_grids)
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            blocks = " or ".join(f"{grid.block_rows} x {grid.block_columns}" for grid in fitting)
            self.problem(
                scales,
                f"scales of shape {list(scales.shape)} may be those of blocks of {blocks} in weights of {list(shape)}; "
                "store them with one dimension for each of the weights'",
            )
            return None
        shapes = (
            " or ".join(dict.fromkeys(str(list(_grid_shape(shape, grid))) for grid in candidate_grids))
            or "another shape"
        )
        text = f"scales of shape {list(scales.shape)} do not fit weights of {list(shape)}, which take {shapes}"
        self.problem(scales, text)
        return None

    def _find_second_scale(self, codes: Tensor, name: str | None, counts: tuple[int, int]) -> Tensor | None:
        global_scale = self.encoded_tensors.get(name) if name is not None else None
        if name is not None and global_scale is None:
            self.problem(codes, f"has no global scale: {quoted(name)} is missing")
        elif global_scale is not None and (global_scale.dtype != "F32" or global_scale.elements not in counts):
            many = f", or {counts[1]} for as many matrices," if counts[1] > 1 else ""
            description = f"{global_scale.dtype} {list(global_scale.shape)}"
            self.problem(global_scale, f"the global scale must be one number of F32{many}, not {description}")
            return None
        return global_scale


def block_grid(shape: Sequence[int], rows: int, columns: int) -> Grid:
    """Return a grid with a scale for each block of `rows` by `columns`."""
    *_, height, width = (1, 1, *shape)
    return Grid(max(height, 1), max(width, 1), min(rows, max(height, 1)), min(columns, max(width, 1)))


def whole_grid(shape: Sequence[int]) -> Grid:
    """Return a grid with one scale for a tensor, or for each matrix of a stack."""
    return block_grid(shape, 1 << 62, 1 << 62)


def row_grid(shape: Sequence[int]) -> Grid:
    """Return a grid with a scale for each row (output channel)."""
    return block_grid(shape, 1, 1 << 62)


def _grid_shape(shape: Sequence[int], grid: Grid) -> tuple[int, ...]:
    return (*shape[:-2], grid.down, grid.across)


@lru_cache(1024)  # a large model has thousands of tensors of each shape
def _fitting_grids(scales: Sequence[int], shape: Sequence[int], candidate_grids: tuple[Grid, ...]) -> list[Grid]:
    """Return the grids whose scales have this shape; if there are none, ignore singleton dimensions."""
    extents = [extent for extent in scales if extent != 1]
    candidate_grids = tuple(dict.fromkeys(candidate_grids))
    fitting = [
        grid for grid in candidate_grids if [extent for extent in _grid_shape(shape, grid) if extent != 1] == extents
    ]
    return [grid for grid in fitting if tuple(scales) == _grid_shape(shape, grid)] or fitting


@dataclass(frozen=True)
class Encoding:
    """A way to store quantized weights.

    Attributes:
        method: the value of `quant_method` in `config.json`.
        title: returns a readable description, given the configuration.
        decode: replaces codes and scales by decoded tensors, or notes problems.
    """

    method: str
    title: Callable[[Config], str]
    decode: Callable[[Decoding], None]
