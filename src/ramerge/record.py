"""What a merge did: the content of `ramerge.json`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class AgentStatistics:
    """One agent over the whole model, in elements of the tensors that were merged.

    Attributes:
        name: as in the recipe.
        model: folder or hub id, as in the recipe.
        total: elements that were compared.
        active: elements that it moved by more than epsilon.
        shared: active elements that another agent moved too.
        unique: active elements that no other agent moved.
        density: active / total.
        rho: shared / unique (equation 2); infinite without unique elements.
        lambda_: scale of its unique elements (`lambda` in JSON); None where each layer or tensor has its own.
    """

    name: str
    model: str
    total: int
    active: int
    shared: int
    unique: int
    density: float
    rho: float
    lambda_: float | None

    @property
    def unique_share(self) -> float:
        """Unique over active (figure 2, right); 0 where nothing is active."""
        return self.unique / self.active if self.active else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values. JSON knows no infinity: rho without unique elements is null."""
        values = asdict(self)
        values["lambda"] = values.pop("lambda_")
        values["rho"] = self.rho if math.isfinite(self.rho) else None
        return values


@dataclass(frozen=True)
class Record:
    """What a merge did. Sizes are in bytes, `seconds` is wall time.

    Attributes:
        parameters: as they were used, defaults included.
        dtype: full name of the output's dtype, or `mixed`.
        statistics: one entry an agent, in recipe order.
        lambdas: with `scope: layer` or `tensor`, each part's lambda of each agent (`statistics.parts` in JSON).
        tensors: tensors of the output.
        parameters_count: elements of the output.
        bytes_read: bytes of weights read, every pass counted.
        bytes_written: bytes of the output's safetensors files.
        peak_memory_bytes: the process's largest resident memory.
    """

    ramerge_version: str
    method: str
    parameters: dict[str, Any]
    base: str
    dtype: str
    statistics: tuple[AgentStatistics, ...]
    lambdas: dict[str, dict[str, float]]
    tensors: int
    parameters_count: int
    bytes_read: int
    bytes_written: int
    seconds: float
    peak_memory_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in `ramerge.json`."""
        values = {key: value for key, value in vars(self).items() if key not in ("statistics", "lambdas")}
        statistics: dict[str, Any] = {"statistics": {"agents": [agent.as_dict() for agent in self.statistics]}}
        if self.lambdas:
            statistics["statistics"]["parts"] = self.lambdas
        place = list(values).index("tensors")
        items = list(values.items())
        return dict(items[:place]) | statistics | dict(items[place:])

    def to_json(self) -> str:
        """`ramerge.json`."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
