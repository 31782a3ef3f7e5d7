"""The base class of methods: paper, parameters, statistics, and pure functions on pieces of tensors.

A method is an object of a class of one of these kinds, with these members to define:

    Method[P, R]             prepare(parameters, agents, results) -> R; merge(piece, R, ...)
      ElementMethod[P]       element(base, taus, *numbers), compiled; numbers(parameters, agents, results)
        CountedMethod[P]     statistics(parameters, agents), which the numbers depend on
      RowMethod[P, R]        rows(piece, R, base, *agents): whole rows
      CombinationMethod[P]   coefficients(parameters, agents, gram): a linear combination
      MatrixMethod[P]        solve(tensor, taus, parameters); memory(layer, parameters, agents): whole linear weights
      MeanMethod[P]          weights(parameters, agents): a mean that is computed as the agents are read

P are its parameters. R is what it makes of them before it merges, with the results of its statistics.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, SerializeAsAny, WithJsonSchema
from typing_extensions import TypeVar

from ramerge.core.kernels.elementwise import Each
from ramerge.core.kernels.piece import Numbers, Piece, PieceResult

Counts = NDArray[Any]
FEW = 16
"""The most agents that a kernel takes that is written out for their number."""
MANY = 512
"""The most agents of methods that take them one after another, or in groups."""
Agents = tuple[str, ...]


class Parameters(BaseModel):
    """A method's parameters, each stated once: type, range, default, description."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

    def in_effect(self) -> dict[str, object]:
        """Those in effect, as plain values: without fields whose `only` is not met."""
        values = self.model_dump()
        return {name: value for name, value in values.items() if conditions(type(self), name).items() <= values.items()}


def only(**conditions: str) -> dict[str, Any]:
    """Metadata of a field that counts only where other fields have these values."""
    return {"only": conditions}


def conditions(parameters: type[BaseModel], name: str) -> Mapping[str, str]:
    """The parameters that must have these values for `name` to count; empty if it always counts."""
    only = _extra(parameters, name).get("only", {})
    return {key: str(value) for key, value in only.items()}


def _extra(parameters: type[BaseModel], name: str) -> Mapping[str, Any]:
    extra = parameters.model_fields[name].json_schema_extra
    return extra if isinstance(extra, Mapping) else {}


PerAgentNumber: TypeAlias = float | Mapping[str, float]
"""One number for all agents, or a mapping of agents to numbers."""


def per_agent(
    low: float = -math.inf, high: float = math.inf, *, below: bool = False
) -> tuple[PlainValidator, WithJsonSchema]:
    """Validator and schema of a parameter that is a `PerAgentNumber`.

    Numbers are from `low` to `high`, without `high` itself if `below`.
    """
    span = f"{low:g} to {'below ' if below else ''}{high:g}"
    if math.isinf(high):
        span = "any number" if math.isinf(low) else f"{low:g} or more"

    def check(value: Any) -> float | dict[str, float]:
        if isinstance(value, Mapping):
            wrong = [f"{name}: {text}" for name, number in value.items() if (text := problem(number, "a number"))]
            if wrong:
                raise ValueError("; ".join(wrong))
            return {str(name): float(number) for name, number in value.items()}
        if text := problem(value, "a number, or a mapping of agents to numbers"):
            raise ValueError(text)
        return float(value)

    def problem(value: Any, kind: str) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be {kind}, not {value!r}"
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            return f"must be a number that a float holds, not one of {value.bit_length():,} bits"
        if not math.isfinite(value):
            return f"must be a finite number, not {value!r}"
        if not low <= value <= high or (below and value == high):
            return f"must be {span}, not {value!r}"
        return None

    bounds = {} if math.isinf(high - low) else {"minimum": low, "exclusiveMaximum" if below else "maximum": high}
    schema: dict[str, Any] = {"range": f"{span}, or one for each agent", **bounds}
    return PlainValidator(check), WithJsonSchema(schema)


def for_each(value: PerAgentNumber, agents: Agents) -> Each:
    return tuple(value[name] for name in agents) if isinstance(value, Mapping) else (value,) * len(agents)


_NUMBERS, _SHARES = per_agent(), per_agent(0.0, 1.0)
WEIGHTS: TypeAlias = Annotated[SerializeAsAny[PerAgentNumber], _NUMBERS[0], _NUMBERS[1]]
FRACTIONS: TypeAlias = Annotated[SerializeAsAny[PerAgentNumber], _SHARES[0], _SHARES[1]]


def weights_field() -> Any:
    return Field(1.0, description="factor of each agent, before anything is summed")


def total_weight(weights: PerAgentNumber) -> float:
    """The sum of weights by agent, or the one weight of all agents."""
    return sum(weights.values()) if isinstance(weights, Mapping) else weights


class ScaledParameters(Parameters):
    """Parameters of a method whose merged task vector has a factor."""

    scale: float = Field(1.0, allow_inf_nan=False, description="factor of the merged task vector")


class WeightedParameters(ScaledParameters):
    """Parameters of a method in which agents have weights, too."""

    weights: WEIGHTS = weights_field()


SEED = 2**63 - 1
"""The largest seed, also of recipes in YAML; the least one is -SEED."""


def seed_field() -> Any:
    extra: dict[str, Any] = {"range": "whole number of at most 63 bits"}
    return Field(0, ge=-SEED, le=SEED, json_schema_extra=extra, description="seed of the random draws")


def agent_field(description: str) -> Any:
    """A parameter that is the name of an agent, or None."""
    extra: dict[str, Any] = {"range": "name of an agent", "agent": True}
    return Field(None, json_schema_extra=extra, description=description)


def names_agent(parameters: type[BaseModel], name: str) -> bool:
    """Whether the value of a parameter is the name of an agent."""
    return bool(_extra(parameters, name).get("agent"))


def names_method(parameters: type[BaseModel], name: str) -> str | None:
    """The parameter with the name of the method whose parameters this one holds; None for an ordinary parameter."""
    name_of_method = _extra(parameters, name).get("of_method")
    return str(name_of_method) if name_of_method else None


P = TypeVar("P", bound=Parameters, default=Any)
R = TypeVar("R", default=Any)
S = TypeVar("S", default=Any)


@dataclass(frozen=True)
class Statistic(ABC, Generic[S]):
    """Something to count before the inputs can be merged. Subclasses are frozen dataclasses.

    What is equal is counted once, however many merges need it, so all that it depends on must be a field.

    Attributes:
        scope: the part that one result is counted over: the whole `model`, each `layer`, or each `tensor`.
        after: the statistic whose result is required first, which takes a read of the inputs more.
    """

    scope: str
    after: Statistic | None = None
    # sums of floats run over so many elements that follow one another, and blocks begin at multiples of it
    chunk: ClassVar[int] = 1
    # whether one number that is not finite makes the result unusable for all that it is counted over
    spoiled: ClassVar[bool] = False

    @abstractmethod
    def blank(self, agents: int) -> Counts:
        """An array of zeros to count in; small, because every block of the inputs gets one."""

    @abstractmethod
    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> S:
        """The result, small again: from the sums of all counts, over so many elements, and the result of `after`."""

    @property
    def kept(self) -> str | None:
        """Key of its counts, whatever the scope, for keeping them beyond the process; None: they are not kept.

        Only for counts of a few integers, where a part's counts are the sums over its tensors.
        """
        return None

    @abstractmethod
    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        """Add the tallies of a piece to `counts`, given the result of `after`; True if a task vector is not finite."""

    @property
    def reads(self) -> int:
        """Reads of the inputs until its result is complete."""
        return 1 + (self.after.reads if self.after is not None else 0)


class Results(Protocol):
    """Results of statistics: a mapping."""

    def __getitem__(self, statistic: Statistic[S], /) -> S: ...


NO_RESULTS: dict[Statistic, Any] = {}
"""Results for a method that needs no statistics."""


def present(*statistics: Statistic | None) -> tuple[Statistic, ...]:
    return tuple(statistic for statistic in statistics if statistic is not None)


@dataclass(frozen=True)
class Column:
    """A reported figure of each agent: its key in the record, its heading, its format, and the meaning of None.

    One that is `optional` is shown where it is reported. `of` is the key of a further figure that stands behind it.
    """

    key: str
    title: str
    format: str
    meaning: str
    none: str = "by part"
    optional: bool = False
    of: str = ""


@dataclass(frozen=True)
class Layer:
    """View of a tensor for a method that states its needs.

    Attributes:
        name: the tensor's name.
        shape: its shape.
        itemsize: bytes of a number in the type that it is computed in.
        rows: how many rows each agent's side input has for it; empty if it has none.
        transposed: whether it is a linear weight that is stored as (in, out), so that inputs meet its first dimension.
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int = 8
    rows: tuple[int, ...] = ()
    transposed: bool = False

    @property
    def width(self) -> int:
        """Inputs of a linear layer."""
        return self.shape[0] if self.transposed else self.shape[-1]

    @property
    def oriented(self) -> Layer:
        """The same layer, stored as (out, in)."""
        return replace(self, shape=self.shape[::-1], transposed=False) if self.transposed else self


@dataclass(frozen=True)
class SideInput:
    """Input of a method from each agent in addition to its weights. An agent's key in a recipe names the folder.

    Attributes:
        in_memory: how to give it for an agent that is a state dict.
    """

    key: Literal["importance", "inputs"]
    plural: str
    advice: str
    in_memory: str


IMPORTANCE = SideInput(
    "importance",
    "importances",
    "pass prompts to estimate it (--prompts {name}=FILE), or a folder of `ramerge calibrate` (--importance "
    "{name}=FOLDER)",
    'give {"model": STATE_DICT, "importance": {NAME: ARRAY}} as the agent, with arrays of the tensors\' shapes; '
    "`ramerge.merge` estimates them from folders and `prompts`",
)
"""Importances, float tensors with names and shapes of the model's; the method `fisher` takes them."""
INPUTS = SideInput(
    "inputs",
    "recorded inputs",
    "pass prompts to record them (--prompts {name}=FILE), or a folder of `ramerge calibrate` (--inputs {name}=FOLDER)",
    'give {"model": STATE_DICT, "inputs": {NAME: ROWS}} as the agent, with rows (n, d) for each weight (m, d); '
    "`ramerge.merge` records them from folders and `prompts`",
)
"""Inputs of linear layers on some prompts; the method `regmean` takes them."""
SIDE_INPUTS = (IMPORTANCE, INPUTS)


@dataclass(frozen=True)
class RecordedRows:
    """Recorded inputs of a linear layer of one agent.

    Attributes:
        inputs: one row for each token, shape (n, d), float64.
        weights: how much each counts, shape (n,), float64; those of an agent add up to 1 where a layer sees all tokens.
    """

    inputs: NDArray[np.float64]
    weights: NDArray[np.float64]


Figure: TypeAlias = float | None
"""A number that is reported of an agent; None where it differs by part of the model."""
Figures: TypeAlias = Mapping[str, Any]
"""An agent's figures by key: those that its method reports, and what rounding did."""


Presets: TypeAlias = Mapping[str, Mapping[str, object]]


class Method(ABC, Generic[P, R]):
    """A merging method; its classes are listed by kind in this module's docstring.

    Attributes:
        name: as in recipes.
        title: human-readable name.
        source: paper and equations.
        formula: in one line.
        parameters: the model that states and checks its parameters.
        family: the group in lists.
        alone: the meaning of a merge of one agent.
        differs: how it differs from mergekit's method of that name; empty where there is none.
        for_adapters: defaults of parameters where several agents are LoRA adapters, in place of the usual ones.
        presets: named values of parameters.
        combines: whether it makes one model of several; otherwise it rewrites one of them.
        fewest: how many agents it takes at least.
        most: how many it takes at most, which is also the fewest; None for any number up to `limit`.
        limit: how many agents its kernels are made for at most: they are written out for each number of agents, unless
            they take any number in groups.
        along_run: whether the agents are checkpoints of one run, which would else look like agents of another base.
        symmetric: whether the order of agents changes nothing but rounding.
        is_transposable: whether it makes of transposed matrices the transposed result, so that it need not know which
            side of a linear weight meets the inputs.
        needs_base: whether task vectors are needed; without them the base gives no more than the layout.
        takes_base: whether it works on task vectors if the recipe has a base, and on the agents themselves if not.
        side: the side input that every agent needs; None for nothing.
        columns: the figures of `report`.
        for_sparse: whether it is made for sparse task vectors: it keeps apart what only one agent moved.
        interface: the version of the interface that a plug-in's method is written for; see `ramerge.sdk.methods`.
    """

    name: str
    title: str
    source: str
    formula: str
    parameters: type[P]
    family: str = "plug-in"
    alone: str = "there is nothing to merge it with"
    differs: str = ""
    for_adapters: ClassVar[Mapping[str, object]] = {}
    presets: ClassVar[Presets] = {}
    combines: bool = True
    fewest: int = 1
    most: int | None = None
    limit: int = FEW
    along_run: bool = False
    symmetric: bool = True
    is_transposable: bool = False
    needs_base: bool = True
    takes_base: bool = False
    side: SideInput | None = None
    columns: tuple[Column, ...] = ()
    for_sparse: bool = False
    interface: int | None = None

    # --- merging ---

    @abstractmethod
    def prepare(self, parameters: P, agents: Agents, results: Results) -> R:
        """Arguments of `merge`, from results of `statistics`; made once for each part that these are counted over."""

    @abstractmethod
    def merge(self, piece: Piece, prepared: R, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        """Write the result of a piece, and return its findings.

        Args:
            piece: what to merge.
            prepared: the result of `prepare` for its tensor.
            counts: where to count what `reported` would; None if that is not needed.
            allow_nonfinite: whether numbers that are not finite are computed with.
        """

    def operator(self, layer: Layer, recorded: Sequence[RecordedRows], parameters: P) -> object:
        """The piece's `operator`, of the recorded inputs of each agent; made once for tensors that share their inputs.

        None if nothing can be made of them. Asked only of a method whose `side` is `INPUTS`.
        """
        return None

    # --- statistics and figures ---

    def statistics(self, parameters: P, agents: Agents) -> tuple[Statistic, ...]:
        """Statistics that must be counted before anything is merged."""
        return ()

    def reported(self, parameters: P, agents: Agents) -> Statistic | None:
        """The statistic of the record. If it is none of `statistics`, `merge` counts it on the way."""
        return None

    def report(self, parameters: P, parts: Sequence[Any], agents: Agents) -> list[dict[str, Figure]]:
        """Each agent's figures, from results of `reported`, one for each part of the model."""
        return [{} for _ in agents]

    def remarks(self, figures: Figures) -> str:
        """A note of the record on an agent's figures; empty for nothing."""
        return ""

    def warning(self, figures: Sequence[Figures]) -> str:
        """A warning about all agents' figures; empty for nothing."""
        return ""

    # --- needs of a tensor ---

    def unit(self, layer: Layer, parameters: P) -> int:
        """Number of consecutive elements needed at once: blocks begin at multiples of it.

        1: it works on elements by themselves; all of a tensor's: on the tensor as a whole.
        """
        return 1

    def scratch(self, layer: Layer, parameters: P, agents: int) -> int:
        """Bytes besides inputs and result; not 0 where it solves for a whole matrix."""
        return 0

    def solves(self, layer: Layer, parameters: P) -> bool:
        """Whether it solves for a tensor as a whole matrix, which takes long and can be done on a GPU."""
        return False

    @property
    def elementwise(self) -> bool:
        """Whether every element is merged by itself, in any block."""
        return type(self).unit is Method.unit

    def together(self, layer: Layer, parameters: P, agents: Agents) -> bool:
        """Whether each element of a tensor depends on others of it, so that one NaN or Inf would make them all NaN."""
        return self.unit(layer, parameters) > 1 or any(each.spoiled for each in self.statistics(parameters, agents))

    # --- facts for plans and messages ---

    def factors(self, parameters: P, agents: Agents) -> Each | None:
        """The factor of each agent's task vector, of a weighted sum of these; None if it is no such sum, or not with
        these parameters. Adapters out are then exact.
        """
        return None

    def noted(self, parameters: P) -> bool:
        """Whether plans show `differs`, because mergekit's results with these parameters differ much."""
        return False

    def harms_adapters(self, parameters: P) -> str:
        """Harm of these parameters to LoRA adapters, and a remedy; empty for none."""
        return ""

    def takes(self, count: int) -> str:
        """How many agents it takes, human-readable, for a message about another number."""
        if self.most is not None:
            return f"exactly {self.most} agents" if self.most > 1 else "exactly one agent"
        return f"at least {self.fewest} agents" if count < self.fewest else f"at most {self.limit} agents"

    @property
    def needs_importance(self) -> bool:
        """Whether every agent needs importances."""
        return self.side is IMPORTANCE


class RowMethod(Method[P, R]):
    """A method that needs the whole row of an element, so blocks hold whole rows."""

    @abstractmethod
    def rows(self, piece: Piece, prepared: R, base: Numbers, *agents: Numbers) -> Numbers:
        """Merged rows of a piece, of shape (rows, columns), as those of its inputs; float32 or float64."""

    def unit(self, layer: Layer, parameters: P) -> int:
        return row_unit(layer)

    def merge(self, piece: Piece, prepared: R, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        return piece.compute_numbers(lambda *rows: self.rows(piece, prepared, *rows), (-1, row_of(piece.shape)))


def row_of(shape: tuple[int, ...]) -> int:
    """Number of elements of a row; a scalar counts as a row of one."""
    return max(shape[-1], 1) if shape else 1


def row_unit(layer: Layer) -> int:
    """Whole rows; more than one element, for which there is room to widen them."""
    return max(row_of(layer.shape), 2)
