"""The base class of methods: paper, parameters, statistics, and pure functions on pieces of tensors.

A method is an instance of a subclass of one of these classes, which defines the members listed here:

    Method[P, R]             prepare(parameters, agents, results) -> R; merge(piece, R, ...)
      ElementMethod[P]       element(base, taus, *numbers), compiled; numbers(parameters, agents, results)
        CountedMethod[P]     statistics(parameters, agents), which the numbers depend on
      RowMethod[P, R]        rows(piece, R, base, *agents): whole rows
      CombinationMethod[P]   coefficients(parameters, agents, gram): a linear combination
      MatrixMethod[P]        solve(tensor, taus, parameters); memory(layer, parameters, agents): whole linear weights
      MeanMethod[P]          weights(parameters, agents): a mean that is computed as the agents are read

P is the type of its parameters. R is the type of what `prepare` returns from parameters and results of statistics.
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
"""The most agents for a kernel that is compiled for a fixed number of agents."""
MANY = 512
"""The most agents for a method that takes them one after another, or in groups."""
Agents = tuple[str, ...]


class Parameters(BaseModel):
    """A method's parameters. Each field states type, range, default and description."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

    def in_effect(self) -> dict[str, object]:
        """The parameters in effect, as plain values; leaves out fields whose `only` conditions are not met."""
        values = self.model_dump()
        return {name: value for name, value in values.items() if conditions(type(self), name).items() <= values.items()}


def only(**conditions: str) -> dict[str, Any]:
    """Field metadata: the field takes effect only if other fields have these values."""
    return {"only": conditions}


def conditions(parameters: type[BaseModel], name: str) -> Mapping[str, str]:
    """The values that other parameters must have for `name` to take effect; empty if it always does."""
    only = _schema_extra(parameters, name).get("only", {})
    return {key: str(value) for key, value in only.items()}


def _schema_extra(parameters: type[BaseModel], name: str) -> Mapping[str, Any]:
    extra = parameters.model_fields[name].json_schema_extra
    return extra if isinstance(extra, Mapping) else {}


PerAgentNumber: TypeAlias = float | Mapping[str, float]
"""One number for all agents, or a mapping of agents to numbers."""


def per_agent(
    low: float = -math.inf, high: float = math.inf, *, below: bool = False
) -> tuple[PlainValidator, WithJsonSchema]:
    """Validator and schema of a parameter that is a `PerAgentNumber`.

    Numbers range from `low` to `high`; `below` excludes `high` itself.
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
    """The sum of per-agent weights; a single weight is returned as it is."""
    return sum(weights.values()) if isinstance(weights, Mapping) else weights


class ScaledParameters(Parameters):
    """Parameters of a method that scales the merged task vector."""

    scale: float = Field(1.0, allow_inf_nan=False, description="factor of the merged task vector")


class WeightedParameters(ScaledParameters):
    """Parameters of a method that scales the merged task vector and weights the agents."""

    weights: WEIGHTS = weights_field()


SEED = 2**63 - 1
"""The largest seed, also in YAML recipes; the smallest is -SEED."""


def seed_field() -> Any:
    extra: dict[str, Any] = {"range": "whole number of at most 63 bits"}
    return Field(0, ge=-SEED, le=SEED, json_schema_extra=extra, description="seed of the random draws")


def agent_field(description: str) -> Any:
    """A field for the name of an agent, or None."""
    extra: dict[str, Any] = {"range": "name of an agent", "agent": True}
    return Field(None, json_schema_extra=extra, description=description)


def names_agent(parameters: type[BaseModel], name: str) -> bool:
    """Whether a parameter's value is the name of an agent."""
    return bool(_schema_extra(parameters, name).get("agent"))


def names_method(parameters: type[BaseModel], name: str) -> str | None:
    """If a parameter holds another method's parameters: the field with that method's name. None otherwise."""
    name_of_method = _schema_extra(parameters, name).get("of_method")
    return str(name_of_method) if name_of_method else None


P = TypeVar("P", bound=Parameters, default=Any)
R = TypeVar("R", default=Any)
S = TypeVar("S", default=Any)


@dataclass(frozen=True)
class Statistic(ABC, Generic[S]):
    """Something to count before the inputs can be merged. Subclasses are frozen dataclasses.

    Equal statistics are counted once, however many merges need them, so everything that the result depends on must be a
    field.

    Attributes:
        scope: the part of the model that one result covers: the whole `model`, each `layer`, or each `tensor`.
        after: the statistic whose result is required first; it takes one more read of the inputs.
    """

    scope: str
    after: Statistic | None = None
    # floats are summed over this many consecutive elements, and blocks begin at multiples of it
    chunk: ClassVar[int] = 1
    # whether one non-finite number makes the result unusable for its whole scope
    spoiled: ClassVar[bool] = False

    @abstractmethod
    def blank(self, agents: int) -> Counts:
        """Return an array of zeros to count in; it should be small, because each block of the inputs gets one."""

    @abstractmethod
    def finish(self, total: NDArray[np.int64], elements: int, required: Any) -> S:
        """Return the result, which should be small.

        Args:
            total: the sum of the counts of all blocks.
            elements: how many elements were counted.
            required: the result of `after`.
        """

    @property
    def kept(self) -> str | None:
        """The key under which its counts are cached on disk, the same for all scopes; None if they are not cached.

        Only for counts of a few integers that add up: those of a layer or model are the sums over its tensors.
        """
        return None

    @abstractmethod
    def count(self, piece: Piece, required: Any, counts: Counts) -> bool:
        """Add a piece's counts to `counts`. Return True if a task vector is not finite.

        Args:
            required: the result of `after`.
        """

    @property
    def reads(self) -> int:
        """The number of reads of the inputs until its result is complete."""
        return 1 + (self.after.reads if self.after is not None else 0)


class Results(Protocol):
    """A mapping from statistics to their results."""

    def __getitem__(self, statistic: Statistic[S], /) -> S: ...


NO_RESULTS: dict[Statistic, Any] = {}
"""Results for a method that needs no statistics."""


def present(*statistics: Statistic | None) -> tuple[Statistic, ...]:
    return tuple(statistic for statistic in statistics if statistic is not None)


@dataclass(frozen=True)
class Column:
    """A figure that is reported for each agent.

    Attributes:
        key: its key in the record.
        title: its heading in tables.
        format: its format specification, such as `.3f`.
        meaning: an explanation of the figure.
        none: the text shown for None.
        optional: whether the column is shown only if some agent has the figure.
        of: key of a second figure, shown as `VALUE of SECOND`; empty for none.
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
    """Description of a tensor, from which a method states its needs.

    Attributes:
        name: the tensor's name.
        shape: its shape.
        itemsize: bytes per number in the dtype of the computation.
        rows: how many rows each agent's side input has for the tensor; empty if there is none.
        transposed: whether it is a linear weight stored as (in, out), so that inputs multiply its first dimension.
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int = 8
    rows: tuple[int, ...] = ()
    transposed: bool = False

    @property
    def width(self) -> int:
        """The number of inputs of a linear layer."""
        return self.shape[0] if self.transposed else self.shape[-1]

    @property
    def oriented(self) -> Layer:
        """The same layer, stored as (out, in)."""
        return replace(self, shape=self.shape[::-1], transposed=False) if self.transposed else self


@dataclass(frozen=True)
class SideInput:
    """Data that a method needs from each agent in addition to its weights.

    Attributes:
        key: the agent's key in a recipe, whose value is the folder with the data.
        advice: how to provide it on the command line.
        in_memory: how to provide it for an agent that is a state dict.
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
"""Importances: float tensors with the names and shapes of the model's tensors; the method `fisher` takes them."""
INPUTS = SideInput(
    "inputs",
    "recorded inputs",
    "pass prompts to record them (--prompts {name}=FILE), or a folder of `ramerge calibrate` (--inputs {name}=FOLDER)",
    'give {"model": STATE_DICT, "inputs": {NAME: ROWS}} as the agent, with rows (n, d) for each weight (m, d); '
    "`ramerge.merge` records them from folders and `prompts`",
)
"""Recorded inputs of linear layers on some prompts; the method `regmean` takes them."""
SIDE_INPUTS = (IMPORTANCE, INPUTS)


@dataclass(frozen=True)
class RecordedRows:
    """Recorded inputs of one agent's linear layer.

    Attributes:
        inputs: one row per token, shape (n, d), float64.
        weights: the weight of each row, shape (n,), float64; an agent's weights add up to 1 if the layer sees all
            tokens.
    """

    inputs: NDArray[np.float64]
    weights: NDArray[np.float64]


Figure: TypeAlias = float | None
"""A number reported for an agent; None if it differs between parts of the model."""
Figures: TypeAlias = Mapping[str, Any]
"""An agent's figures by key: those that the method reports, and the effects of rounding."""


Presets: TypeAlias = Mapping[str, Mapping[str, object]]


class Method(ABC, Generic[P, R]):
    """A merging method. The docstring of this module lists its subclasses.

    Attributes:
        name: the method's name in recipes.
        title: human-readable name.
        source: paper and equations.
        formula: the merged task vector in one line.
        parameters: the pydantic model that defines and checks the parameters.
        family: the group in lists of methods.
        alone: what a merge of only one agent means.
        differs: how it differs from mergekit's method of the same name; empty if mergekit has none.
        for_adapters: other defaults of parameters, for merges in which several agents are LoRA adapters.
        presets: named sets of parameter values.
        combines: whether it combines several models; otherwise it rewrites a single one.
        fewest: the least number of agents.
        most: the exact number of agents, if it is fixed (equal to `fewest`); None for any number up to `limit`.
        limit: the most agents that its kernels take: they are compiled for each number of agents, unless they take
            agents in groups.
        along_run: whether the agents are checkpoints of one run, which skips the checks for agents of another base.
        symmetric: whether the order of agents changes nothing but rounding.
        is_transposable: whether transposed matrices give the transposed result, so that it does not matter which
            dimension of a linear weight multiplies the inputs.
        needs_base: whether task vectors are needed; otherwise the base only gives the layout.
        takes_base: whether it works on task vectors if the recipe has a base, and on the agents themselves if not.
        side: the side input that each agent needs; None for none.
        columns: the figures that `report` returns.
        for_sparse: whether it is made for sparse task vectors: it treats elements that only one agent moved separately.
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
        """Return the argument `prepared` of `merge`, from results of `statistics`; called once per scope of these."""

    @abstractmethod
    def merge(self, piece: Piece, prepared: R, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        """Merge a piece, write the result into it, and return its findings.

        Args:
            piece: the part of a tensor to merge.
            prepared: the result of `prepare` for the tensor.
            counts: the array to count the statistic `reported` in; None if that is not needed.
            allow_nonfinite: whether to merge values that are not finite, too.
        """

    def operator(self, layer: Layer, recorded: Sequence[RecordedRows], parameters: P) -> object:
        """Compute `Piece.operator` from the recorded inputs of each agent, once for all tensors with the same inputs.

        None if the inputs do not determine an operator. Called only if the method's `side` is `INPUTS`.
        """
        return None

    # --- statistics and figures ---

    def statistics(self, parameters: P, agents: Agents) -> tuple[Statistic, ...]:
        """Statistics that must be counted before anything is merged."""
        return ()

    def reported(self, parameters: P, agents: Agents) -> Statistic | None:
        """The statistic that goes into the record. If it is not one of `statistics`, `merge` counts it."""
        return None

    def report(self, parameters: P, parts: Sequence[Any], agents: Agents) -> list[dict[str, Figure]]:
        """Return each agent's figures. `parts`: results of the statistic `reported`, one for each part of the model."""
        return [{} for _ in agents]

    def remarks(self, figures: Figures) -> str:
        """A note on an agent's figures for the record; empty for none."""
        return ""

    def warning(self, figures: Sequence[Figures]) -> str:
        """A warning about the figures of all agents; empty for none."""
        return ""

    # --- needs of a tensor ---

    def unit(self, layer: Layer, parameters: P) -> int:
        """The number of consecutive elements that must be merged together; blocks begin at multiples of it.

        1 for an element-wise method; the size of the tensor for a method that needs the whole tensor.
        """
        return 1

    def scratch(self, layer: Layer, parameters: P, agents: int) -> int:
        """Bytes of memory needed besides inputs and result; must not be 0 if the method solves for a whole matrix."""
        return 0

    def solves(self, layer: Layer, parameters: P) -> bool:
        """Whether the method solves for the tensor as a whole matrix, which is slow and can run on a GPU."""
        return False

    @property
    def elementwise(self) -> bool:
        """Whether each element is merged independently of all others, so that blocks may begin anywhere."""
        return type(self).unit is Method.unit

    def together(self, layer: Layer, parameters: P, agents: Agents) -> bool:
        """Whether elements of a tensor depend on each other, so that one NaN or Inf could make all of them NaN."""
        return self.unit(layer, parameters) > 1 or any(each.spoiled for each in self.statistics(parameters, agents))

    # --- facts for plans and messages ---

    def factors(self, parameters: P, agents: Agents) -> Each | None:
        """Each agent's factor if the result is a weighted sum of task vectors with these parameters; None otherwise.

        Merged adapters of such a sum are exact.
        """
        return None

    def noted(self, parameters: P) -> bool:
        """Whether plans show `differs`, because mergekit's results with these parameters are quite different."""
        return False

    def harms_adapters(self, parameters: P) -> str:
        """The harm that these parameters do to LoRA adapters, and a remedy; empty for none."""
        return ""

    def takes(self, count: int) -> str:
        """How many agents the method takes, as text for a message about `count` agents, which it does not take."""
        if self.most is not None:
            return f"exactly {self.most} agents" if self.most > 1 else "exactly one agent"
        return f"at least {self.fewest} agents" if count < self.fewest else f"at most {self.limit} agents"

    @property
    def needs_importance(self) -> bool:
        """Whether each agent needs importances."""
        return self.side is IMPORTANCE


class RowMethod(Method[P, R]):
    """A method that needs whole rows, so blocks hold whole rows."""

    @abstractmethod
    def rows(self, piece: Piece, prepared: R, base: Numbers, *agents: Numbers) -> Numbers:
        """Return the merged rows of a piece; shape (rows, columns) and float32 or float64, as its inputs."""

    def unit(self, layer: Layer, parameters: P) -> int:
        return row_unit(layer)

    def merge(self, piece: Piece, prepared: R, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        return piece.compute_numbers(lambda *rows: self.rows(piece, prepared, *rows), (-1, row_of(piece.shape)))


def row_of(shape: tuple[int, ...]) -> int:
    """The number of elements in a row; a scalar counts as a row of one."""
    return max(shape[-1], 1) if shape else 1


def row_unit(layer: Layer) -> int:
    """The unit of a method that needs whole rows; at least 2, so that memory to widen them is planned."""
    return max(row_of(layer.shape), 2)
