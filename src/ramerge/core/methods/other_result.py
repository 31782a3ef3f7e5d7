"""The result of another method as the start of a method: the other method's name, parameters and task vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.linalg.arrays import Array
from ramerge.core.methods.base import Agents, Counts, Layer, Method, Results, Statistic
from ramerge.core.methods.formula import Formula
from ramerge.core.methods.formula import merge as merge_formula
from ramerge.core.methods.task_arithmetic import weighted_sum

SUMS = ("sum", "mean", "zero")
_COPIES = 24  # bytes per element: the result before rounding, its task vector, and the scaled task vector


def name_field(description: str) -> Any:
    """A field that holds one of `SUMS` or the name of another method; by default `sum`."""
    extra: dict[str, Any] = {"range": f"{', '.join(SUMS)}, or a method that merges task vectors"}
    return Field("sum", json_schema_extra=extra, description=description)


def parameters_field(of: str) -> Any:
    """A field that holds the parameters of the method whose name is in the field `of`."""
    extra: dict[str, Any] = {"range": "names and values", "of_method": of}
    return Field({}, json_schema_extra=extra, description=f"parameters of the method that `{of}` names")


def _checked_name(name: str) -> str:
    """Return the name if it is one of `SUMS`, or a method that can be a start; raise ValueError otherwise."""
    from ramerge.core.methods.registry import METHODS  # which imports the methods

    if name in SUMS:
        return name
    if name not in METHODS:
        raise ValueError(f"must be {', '.join(SUMS)} or the name of a method, not {name!r}")
    method = METHODS[name]
    if not method.needs_base or not method.combines or method.side is not None or method.most is not None:
        raise ValueError(
            f"{name} cannot be started from; take a method that merges any number of task vectors and needs no inputs "
            "of its own"
        )
    return name


OtherName: TypeAlias = Annotated[str, AfterValidator(_checked_name)]
"""The type of a field made by `name_field`."""


def fits(of: str) -> AfterValidator:
    """Validator of a `parameters_field`: checks that the method named in the field `of` takes these parameters."""

    def check(values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get(of)
        if name in SUMS and values:
            raise ValueError(f"{name} takes none, so remove {', '.join(values)}")
        if name is None or name in SUMS:
            return values
        try:
            _method_of(name, values)
        except ValidationError as error:
            texts = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
            raise ValueError(f"of {name}: {'; '.join(texts)}") from error
        return values

    return AfterValidator(check)


def _method_of(name: str, values: Mapping[str, Any]) -> tuple[Method, Any] | None:
    """The method with this name, and its parameters; None for one of `SUMS`."""
    from ramerge.core.methods.registry import METHODS

    return None if name in SUMS else (METHODS[name], METHODS[name].parameters(**values))


@dataclass(frozen=True)
class Start:
    """The start of a method: the sum of the task vectors, or another method's result, times a factor.

    Attributes:
        method: the other method; None for the sum.
        prepared: the argument of the other method's `merge`.
    """

    agents: int
    factor: float
    method: Method | None = None
    prepared: Any = None

    def __call__(self, taus: Sequence[Array]) -> Array:
        """The sum of task vectors times the factor."""
        return np.asarray(sum(taus[1:], taus[0]) * taus[0].dtype.type(self.factor))

    def task_vector(self, piece: Piece, allow_nonfinite: bool, shape: tuple[int, ...]) -> Array | None:
        """The other method's task vector times the factor, in the piece's arithmetic, unrounded; None for the sum."""
        if self.method is None:
            return None
        exact = piece.exact()
        self.method.merge(exact, self.prepared, None, allow_nonfinite)
        base, result = exact.numbers(shape)[0], exact.result(shape)
        return np.asarray((result - base) * base.dtype.type(self.factor))

    def merge(self, piece: Piece, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        """Merge a piece: write the start as the result."""
        if self.method is None:
            return merge_formula(piece, self._sum)
        if self.factor == 1:
            return self.method.merge(piece, self.prepared, counts, allow_nonfinite)
        tau = self.task_vector(piece, allow_nonfinite, (-1,))
        return piece.compute_numbers(lambda base, *_agents: np.asarray(base + tau), (-1,))

    @property
    def _sum(self) -> Formula:
        return weighted_sum((1.0,) * self.agents, self.factor)


@dataclass(frozen=True)
class OtherResult:
    """One of `SUMS`, or another method with its parameters, as chosen in a method's parameters."""

    name: str
    parameters: Mapping[str, Any]

    @property
    def _method(self) -> tuple[Method, Any] | None:
        return _method_of(self.name, self.parameters)

    def start(self, share: float, agents: Agents, results: Results) -> Start:
        """Return the start, multiplied by `share`; for `Method.prepare`."""
        if (other := self._method) is None:
            return Start(len(agents), {"sum": 1.0, "mean": 1 / len(agents), "zero": 0.0}[self.name] * share)
        method, parameters = other
        return Start(len(agents), share, method, method.prepare(parameters, agents, results))

    def statistics(self, agents: Agents) -> tuple[Statistic, ...]:
        """The statistics that the other method needs."""
        other = self._method
        return other[0].statistics(other[1], agents) if other is not None else ()

    def unit(self, share: float, layer: Layer) -> int:
        """How many consecutive elements the other method needs at once; at least 2 if its result is scaled."""
        other = self._method
        return max(other[0].unit(layer, other[1]), 1 if share == 1 else 2) if other is not None else 1

    def scratch(self, layer: Layer, agents: int) -> int:
        """Bytes of memory that the other method takes besides inputs and result."""
        if (other := self._method) is None:
            return 0
        own = other[0].scratch(layer, other[1], agents)
        return own + (_COPIES * int(np.prod(layer.shape)) if other[0].unit(layer, other[1]) > 1 else 0)

    def solves(self, layer: Layer) -> bool:
        """Whether the other method solves for a tensor as a whole matrix."""
        other = self._method
        return other is not None and other[0].solves(layer, other[1])
