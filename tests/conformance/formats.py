"""A row for each format: how tests write a model in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.checkpoints import write_checkpoint
from tests.reference import Stored

Tensors = Mapping[str, Stored]


@dataclass(frozen=True)
class Row:
    """How a format is tested.

    Attributes:
        write: `write(folder, tensors)` writes a model into a new folder, and returns what a recipe names.
        expand: the tensors that ramerge must see; other than those that were written only where the format rounds, or
            computes its tensors.
        dtypes: the dtypes that the format can hold.
        as_base: whether the format can hold a base.
    """

    write: Callable[[Path, Tensors], Path]
    expand: Callable[[Path, Tensors], Tensors] = lambda _folder, tensors: tensors
    dtypes: tuple[str, ...] = ("BF16", "F32", "F16", "F64")
    as_base: bool = True


def in_shards(folder: Path, tensors: Tensors, **more: Any) -> Path:
    """Three safetensors files and an index."""
    return write_checkpoint(folder, tensors, shards=3, **more)


# By the name of the format, and what varies. Every format of `checkpoint.formats.table` needs a row.
ROWS: dict[str, Row] = {
    "safetensors": Row(in_shards),
}
