"""`Analysis`: the figures of the model and all its parts; to and from JSON, and as tables and data frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ramerge.analysis.cells import HeatCell
from ramerge.analysis.parts import EXPONENTS, ULPS, AgentPart, AnalyzedPart, Finding, TensorPart
from ramerge.analysis.tables import Row, rows
from ramerge.core.foundation.extras import data_frame
from ramerge.core.foundation.text import ByName
from ramerge.sdk.records import to_model
from ramerge.sdk.text import Displayed, JsonLimits, dumped, parse

SCHEMA = "ramerge.analysis/1"
"""Name and version of the JSON; the version grows when a key changes its meaning or is removed."""

_LIMITS = JsonLimits(size=64_000_000, signs=3_000_000)


@dataclass(frozen=True, repr=False)
class Analysis(Displayed):
    """The changes by RL in each agent of a base.

    Attributes:
        ramerge_version: the version of ramerge that made the analysis.
        base: the base model's folder or hub id.
        models: the agents' models, by name.
        epsilon: an element has moved where |agent - base| > epsilon; None if that is relative.
        relative_epsilon: the threshold in units of the root mean square of each agent's task vector; None if absolute.
        thresholds: each agent's threshold as a number; empty if rules of the recipe give an agent several.
        epsilons: the thresholds of `by_epsilon`.
        method: the method of the merge that `fates` call `merge`: the recipe's, or `ram` if that cannot be measured in
            the same pass.
        input_dtypes: the dtypes of floating-point tensors, by name: `base` and agents.
        dtype: the full name of a merge's output dtype, or `mixed`. All figures of merges are for this dtype.
        rounding: what rounding does to each agent's updates in that merge, as in a record:
            `updates`, `erased`, `erased_share` and the figures of a sample; empty if rounding loses nothing.
        precision_loss: what storing each float32 or float64 agent in bfloat16 would lose.
        model, layers, roles, tensors: the same figures for the whole model and its parts.
        cells: figures by layer and role.
        findings: three sentences, and a fourth about float32 and float64 agents.
        notes: notes of the plan.
        warnings: likely mistakes.
        adapters: the agents that are LoRA adapters.
        recipe: the analyzed recipe, as plain values.
        bytes_read: bytes of weights read.
        seconds: wall time.
        peak_memory_bytes: the process's largest resident memory.

    Example:
        >>> analysis = ramerge.analyze("recipe.yaml")
        >>> 0 < analysis.agents["code"].density < 1
        True
        >>> analysis.frame()["agent"].tolist()
        ['code', 'tool', 'memory']
    """

    _all_figures: ClassVar[str] = "frames()"

    ramerge_version: str
    base: str
    models: Mapping[str, str]
    epsilon: float | None
    epsilons: tuple[float, ...]
    method: str
    input_dtypes: Mapping[str, str]
    dtype: str
    rounding: Mapping[str, Mapping[str, int | float | None]]
    model: AnalyzedPart
    layers: tuple[AnalyzedPart, ...]
    roles: tuple[AnalyzedPart, ...]
    tensors: tuple[TensorPart, ...]
    cells: tuple[HeatCell, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    recipe: Mapping[str, Any]
    bytes_read: int
    seconds: float
    peak_memory_bytes: int
    precision_loss: Mapping[str, Mapping[str, int | float]] = field(default_factory=dict)
    relative_epsilon: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()

    @property
    def agents(self) -> Mapping[str, AgentPart]:
        """The figures of the whole model, by agent."""
        return ByName((agent.name, agent) for agent in self.model.agents)

    def _summary(self) -> Mapping[str, object]:
        findings = {"finding": self.findings[0].text} if self.findings else {}
        return {**findings, "base": self.base, "elements": self.model.elements, "warnings": len(self.warnings)}

    def _rows(self) -> Sequence[Mapping[str, object]]:
        merge, method = "retained by merge", f"retained by {self.method}"
        rows = self.model._rows()  # noqa: SLF001  # its own room
        return [{method if name == merge else name: figure for name, figure in row.items()} for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Return the analysis as plain values, as in `--json`. Infinity and NaN become None."""
        values = {"schema": SCHEMA, "bins": {"exponents": list(EXPONENTS), "ulps": list(ULPS)}, **asdict(self)}
        return {key: _replace_nonfinite(value) for key, value in values.items()}

    def to_json(self) -> str:
        """Return the analysis as `analyze --json` prints it."""
        return dumped(self.to_dict(), indent=None)

    def tables(self) -> dict[str, list[Row]]:
        """Return the tables of `analyze --csv` as lists of rows, by name."""
        parts = {"model": (self.model,), "layer": self.layers, "role": self.roles, "tensor": self.tensors}
        return rows(parts)

    def frame(self) -> Any:
        """Return the figures of the whole model as a pandas data frame with a row for each agent.

        Raises:
            RecipeError: pandas is not installed.
        """
        return data_frame(rows({"model": (self.model,)})["agents"])

    def frames(self) -> dict[str, Any]:
        """Return the tables of `analyze --csv` as pandas data frames, by name.

        Raises:
            RecipeError: pandas is not installed.
        """
        return {name: data_frame(table) for name, table in self.tables().items()}


def analysis_of(text: str) -> Analysis:
    """Load the analysis from the output of `--json`.

    Raises:
        ValueError: the text is not an analysis.
    """
    return to_model(parse(text.encode(), _LIMITS), Analysis)


def _replace_nonfinite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    return [_replace_nonfinite(item) for item in value] if isinstance(value, list | tuple) else value
