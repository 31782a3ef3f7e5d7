"""A tensor of a checkpoint: its dtype and shape, and where its bytes are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramerge.foundation.dtypes import FLOATS


@dataclass(frozen=True)
class Tensor:
    """A tensor. Its bytes are at `offset` in the file `path`, or in `memory` (uint8) for a pickled checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int
    memory: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar, 0 for an empty tensor."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether merging is defined for its dtype."""
        return self.dtype in FLOATS
