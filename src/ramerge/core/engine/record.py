"""The record of a merge: the content of `ramerge.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar, overload

from pydantic import AfterValidator, BeforeValidator

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.extras import data_frame
from ramerge.core.foundation.jsontext import RECORD, dumped
from ramerge.core.foundation.text import ByName, Displayed, brief, enumerated
from ramerge.core.foundation.typedjson import read_model
from ramerge.core.storage.own_files import SWEEP

Figure: TypeAlias = int | float | str | bool | None
T = TypeVar("T")


class _ValueAttribute(Generic[T]):
    """A typed attribute that reads a figure from an agent's `values`."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._key = name.removesuffix("_")

    @overload
    def __get__(self, agent: None, _owner: type) -> _ValueAttribute[T]: ...
    @overload
    def __get__(self, agent: AgentStatistics, _owner: type) -> T: ...
    def __get__(self, agent: AgentStatistics | None, _owner: type) -> Any:
        if agent is None:
            return self
        if self._key not in agent.values:
            raise AttributeError  # `__getattr__` words it
        return agent.values[self._key]


@dataclass(frozen=True, repr=False)
class AgentStatistics(Displayed):
    """Figures of one agent over all merged tensors; only the figures that the method reports exist.

    Each figure is an attribute and an entry of `values`. `dir(agent)` lists the existing figures.

    Attributes:
        name: the agent's name in the recipe.
        model: folder or hub id, as in the recipe.
        values: all figures that the method reports, by key.

    The RAM family reports these, and `isolate` the first:
        epsilon: the threshold above which an element counts as moved, if the recipe gives it relative to each agent's
            task vector; None if it differs by part.
        total: elements that were compared.
        active: elements that the agent moved by more than epsilon.
        shared: active elements that other agents moved, too.
        unique: active elements that no other agent moved.
        density: active / total.
        unique_share: unique / active.
        rho: shared / unique, equation 2; infinite if there are no unique elements.
        lambda_: the factor of unique elements, under the key `lambda`; None if each part of the model has its own.

    Methods that trim report:
        threshold: the smallest magnitude that trimming keeps.
        kept: the number of elements that trimming keeps.
        kept_share: kept / total.
        asked_share: the share that the recipe's density asks for.

    Model Stock reports:
        ratio: norm of the merged task vector divided by the norm of the agents' mean task vector; None if that is 0.

    All methods that take a base report these if rounding to the output's dtype can lose anything:
        updates: elements that the agent moved and that the merge changes.
        erased: updates that rounding puts back to the base's value.
        erased_share: erased / updates.
        sampled: updates in a sample of the elements, from which the figures below come (`kernels.effect`).
        grown_share: the share of sampled updates that rounding moves further from the base than the merge did.
        alone: sampled elements that only this agent moved.
        nominal_lambda: the factor that the merge gives to updates of `alone` before rounding; None if `alone` is 0.
        effective_lambda: the factor of these updates in the output; None if `alone` is 0.
        effective_error: the standard error of `effective_lambda` if rounding errors are random; None if `alone` is 0.

    Example:
        >>> code = ramerge.merge("recipe.yaml", "merged").agents["code"]
        >>> 0 < code.density < 1, hasattr(code, "threshold")
        (True, False)
    """

    name: str
    model: str
    values: Mapping[str, Figure]

    epsilon: ClassVar[_ValueAttribute[float | None]] = _ValueAttribute()
    total: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    active: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    shared: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    unique: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    density: ClassVar[_ValueAttribute[float]] = _ValueAttribute()
    unique_share: ClassVar[_ValueAttribute[float]] = _ValueAttribute()
    rho: ClassVar[_ValueAttribute[float | None]] = _ValueAttribute()
    lambda_: ClassVar[_ValueAttribute[float | None]] = _ValueAttribute()
    threshold: ClassVar[_ValueAttribute[float]] = _ValueAttribute()
    kept: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    kept_share: ClassVar[_ValueAttribute[float]] = _ValueAttribute()
    asked_share: ClassVar[_ValueAttribute[float]] = _ValueAttribute()
    ratio: ClassVar[_ValueAttribute[float | None]] = _ValueAttribute()
    updates: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    erased: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    erased_share: ClassVar[_ValueAttribute[float]] = _ValueAttribute()
    sampled: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    grown_share: ClassVar[_ValueAttribute[float]] = _ValueAttribute()
    alone: ClassVar[_ValueAttribute[int]] = _ValueAttribute()
    nominal_lambda: ClassVar[_ValueAttribute[float | None]] = _ValueAttribute()
    effective_lambda: ClassVar[_ValueAttribute[float | None]] = _ValueAttribute()
    effective_error: ClassVar[_ValueAttribute[float | None]] = _ValueAttribute()

    def __getattr__(self, name: str) -> Any:
        values, key = self.__dict__.get("values", {}), name.removesuffix("_")
        if key not in values:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; figures: {[*values]}")
        return values[key]

    def __dir__(self) -> list[str]:
        figures = [f"{key}_" if iskeyword(key) else key for key in self.values]
        absent = {name for name, value in vars(type(self)).items() if isinstance(value, _ValueAttribute)}.difference(
            figures
        )
        return sorted({*super().__dir__(), *figures} - absent)

    def _summary(self) -> Mapping[str, object]:
        return {"name": self.name, "model": self.model, **self.values}

    def to_dict(self) -> dict[str, Any]:
        """Return the agent's entry in `ramerge.json` as plain values; the entry's key, the name, is not included."""
        return {"model": self.model, **_replace_infinite(self.values)}


def _agent_fields(agents: object) -> object:
    """Turn the entries of `agents` in the file into fields of `AgentStatistics`; anything malformed stays unchanged."""
    if not isinstance(agents, Mapping):
        return agents
    entries: dict[object, object] = dict(agents)
    for name, agent in agents.items():
        if isinstance(agent, Mapping):
            values = {key: value for key, value in agent.items() if key != "model"}
            entries[name] = {"name": name, "model": agent.get("model"), "values": values}
    return entries


@dataclass(frozen=True, kw_only=True, repr=False)
class Record(Displayed):
    """Record of a merge. Sizes are in bytes, `seconds` is wall time.

    Fields with a default are missing in `ramerge.json` if they are empty.

    Attributes:
        ramerge_version: the version that wrote it.
        method: the name of the method.
        point: the values of the parameters that vary in a sweep; otherwise empty.
        parameters: the parameters used, defaults included.
        base: folder or hub id; None if the method needs no base.
        rules: the recipe's rules, each with the number of tensors that it matched.
        counts: where counts come from: this `read` of the inputs, or an `earlier read` of the same files.
        notes: the plan's notes, such as how many tensors each rule matches.
        warnings: likely mistakes in what was merged.
        input_dtypes: dtypes of the floating-point tensors of `base`, agents and importances.
        dtype: full name of the output's dtype, or `mixed`.
        rounding: how results were rounded to the output's dtype: `nearest` or `stochastic`.
        rounding_seed: the seed of stochastic rounding; otherwise None.
        non_finite: the number of NaN and Inf that `allow.non_finite` let through, by input: `base` or an agent.
        agents: the figures of each agent, by name, in recipe order.
        parts: figures by part of the model and agent, if several parts are counted separately.
        tensors: the number of tensors in the output.
        merged_tensors: the number of tensors that the method merged, on which the figures of `agents` are based.
        parameters_count: the number of elements in the output.
        device: the device that solved for whole matrices, with the name of a GPU; None if nothing had to be solved.
        bytes_read: bytes of weights read in all passes together; for a sweep, for all points together.
        bytes_written: bytes of the output's safetensors files.
        seconds: duration; for a sweep, of all points together.
        peak_memory_bytes: the process's largest resident memory.
        adapter: for a merge written as an adapter: each module's `rank`, whether its factors are the `exact` sum, and
            the `error`: the norm of the difference divided by the norm of the module's update.

    Example:
        >>> record = ramerge.merge("recipe.yaml", "merged")
        >>> record.method, list(record.agents)
        ('ram+', ['code', 'tool', 'memory'])
        >>> record.frame()["name"].tolist()
        ['code', 'tool', 'memory']
    """

    ramerge_version: str
    point: Mapping[str, Any] = field(default_factory=dict)
    method: str
    parameters: dict[str, Any]
    base: str | None
    rules: tuple[Mapping[str, Any], ...] = ()
    counts: str
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    input_dtypes: Mapping[str, str] = field(default_factory=dict)
    dtype: str
    rounding: str = "nearest"
    rounding_seed: int | None = None
    non_finite: Mapping[str, int] = field(default_factory=dict)
    agents: Annotated[Mapping[str, AgentStatistics], BeforeValidator(_agent_fields), AfterValidator(ByName)]
    parts: Mapping[str, Mapping[str, Mapping[str, Figure]]] = field(default_factory=dict)
    tensors: int
    merged_tensors: int
    parameters_count: int
    device: str | None = None
    bytes_read: int
    bytes_written: int
    seconds: float
    peak_memory_bytes: int
    adapter: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def _summary(self) -> Mapping[str, object]:
        return {
            "method": self.method,
            **self.point,
            "agents": enumerated(list(self.agents)),
            "dtype": self.dtype,
            "tensors": self.tensors,
            "warnings": len(self.warnings),
        }

    def _rows(self) -> Sequence[Mapping[str, object]]:
        return [{"name": name, **agent.to_dict()} for name, agent in self.agents.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values, as in `ramerge.json`."""
        values = {key: value for key, value in vars(self).items() if key not in ("agents", "parts")}
        values["rules"] = list(self.rules)
        values["notes"] = list(self.notes)
        values["warnings"] = list(self.warnings)
        for name in ("rounding_seed", "device"):
            if values[name] is None:
                del values[name]
        values["agents"] = {name: agent.to_dict() for name, agent in self.agents.items()}
        values["parts"] = {
            part: {agent: _replace_infinite(figures) for agent, figures in agents.items()}
            for part, agents in self.parts.items()
        }
        return {key: value for key, value in values.items() if value not in ({}, []) or key == "parameters"}

    def to_json(self) -> str:
        """Return the text of `ramerge.json`."""
        return dumped(self.to_dict())

    def frame(self) -> Any:
        """Return the figures of all agents as a pandas data frame with a row for each agent.

        Raises:
            RecipeError: pandas is not installed.
        """
        return data_frame(self._rows())


@dataclass(frozen=True)
class Sweep:
    """The record of a sweep, the content of `sweep.json`: each point's record by the name of its folder."""

    ramerge_version: str
    method: str
    points: Mapping[str, Record]

    def to_json(self) -> str:
        """Return the text of `sweep.json`."""
        return dumped(vars(self) | {"points": {name: record.to_dict() for name, record in self.points.items()}})


def read_record(path: Path) -> Record:
    """Read the record in a `ramerge.json`.

    Raises:
        RecipeError: the file cannot be read, or is not the record of a merge.
    """
    return read_model(path, Record, RECORD, "record of a merge")


def read_sweep(path: Path) -> Sweep:
    """Read the records in a `sweep.json`.

    Raises:
        RecipeError: the file cannot be read, or is not the record of a sweep.
    """
    return read_model(path, Sweep, RECORD, "record of a sweep")


def refuse_sweep(out: Path) -> None:
    """Refuse the folder of a sweep where that of one merge is expected.

    Raises:
        RecipeError: it is one; with the merges in it.
    """
    if (path := out / SWEEP).is_file():
        points = brief(", ".join(read_sweep(path).points), 500)
        raise RecipeError(f"{out}: is a sweep, which has several merges; name one of those in it: {points}")


def _replace_infinite(values: Mapping[str, object]) -> dict[str, object]:
    """Replace infinite values (rho without unique elements) by None, because JSON has no infinity."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
