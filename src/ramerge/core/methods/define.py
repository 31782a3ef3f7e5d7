"""Define a method by an annotated formula of one element.

    @merge_method("my_method", source="arXiv 2401.00000", formula="scale * sum_t w_t tau_t")
    def my_method(
        base: float,
        taus: tuple[float, ...],
        *,
        weights: Annotated[PerAgent, "factor of each agent"] = 1.0,
        scale: Annotated[float, Range(0, 10), "factor of the sum"] = 1.0,
    ) -> float:
        # the docstring becomes the title
        total = ZERO
        for t in range(len(taus)):
            total = total + weights[t] * taus[t]
        return base + scale * total

The parameters with their ranges, checks of recipes, help, the page in the docs, and kernels for each dtype and number
of agents are derived from it. The formula is compiled with numba, without reordering of IEEE operations: it may use
numbers, comparisons, loops over agents, `abs`, and functions and constants of its own module. `ZERO` and `ONE` promote
to the dtype of the computation; a literal such as `0.5` is a float64, and makes the rest of the expression float64.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from pydantic import Field, SerializeAsAny, create_model, model_validator

from ramerge.core.kernels import native
from ramerge.core.kernels.elementwise import Argument, Element
from ramerge.core.methods.base import (
    IMPORTANCE,
    Agents,
    Method,
    Parameters,
    PerAgentNumber,
    Results,
    agent_field,
    for_each,
    per_agent,
)
from ramerge.core.methods.formula import ElementMethod

Derivation = Callable[[Any, Agents], Mapping[str, Argument]]
"""A function from parameters and agents' names to further keyword arguments of the formula."""


@dataclass(frozen=True)
class Range:
    """The values that a parameter may have: `low` to `high`; `below` excludes `high` itself."""

    low: float = -float("inf")
    high: float = float("inf")
    below: bool = False


class _PerAgent:
    """Marks a parameter that is a number, or a number for each agent."""


class _ChosenAgent:
    """Marks a parameter that is the name of an agent."""


PerAgent: TypeAlias = Annotated[Any, _PerAgent()]
"""A number, or a number for each agent. The formula gets a tuple with a number for each agent."""

ChosenAgent: TypeAlias = Annotated[Any, _ChosenAgent()]
"""The name of an agent, by default the first. The formula gets a tuple with 1 for this agent and 0 for the others."""

_KINDS = "float, int, bool, PerAgent or ChosenAgent"


@dataclass(frozen=True)
class _FormulaParameter:
    name: str
    kind: type[object]
    default: object
    range: Range
    description: str

    @property
    def field(self) -> tuple[object, object]:
        if self.kind is _ChosenAgent:
            return str | None, agent_field(self.description)
        if self.kind is _PerAgent:
            metadata = per_agent(self.range.low, self.range.high, below=self.range.below)
            kind = Annotated[(SerializeAsAny[PerAgentNumber], *metadata)]
            return kind, Field(self.default, description=self.description)
        if self.kind is bool:
            return bool, Field(self.default, description=self.description)
        upper = {"lt" if self.range.below else "le": self.range.high} if self.range.high != float("inf") else {}
        lower = {"ge": self.range.low} if self.range.low != -float("inf") else {}
        finite = {"allow_inf_nan": False} if self.kind is float else {}
        limits: dict[str, Any] = {**lower, **upper, **finite}
        return self.kind, Field(self.default, description=self.description, **limits)

    def value(self, parameters: object, agents: Agents) -> Argument:
        value = getattr(parameters, self.name)
        if self.kind is _ChosenAgent:
            return tuple(float(name == (value or agents[0])) for name in agents)
        if self.kind is _PerAgent:
            return for_each(value, agents)
        return value if isinstance(value, bool) else float(value)


def merge_method(
    name: str,
    *,
    source: str,
    title: str = "",
    formula: str = "",
    derived: Derivation | None = None,
    check: Callable[[Any], None] | None = None,
    needs_base: bool = True,
    needs_importance: bool = False,
    interface: int | None = None,
    kind: type[FormulaMethod] | None = None,
    **more: object,
) -> Callable[[Element], FormulaMethod]:
    """Turn a formula of one element into an `ElementMethod`; the module's docstring has an example.

    The formula takes the base's element (0 if the method needs no base), a tuple of the agents' task-vector elements
    (the agents' own elements if it needs no base), and, if needed, a tuple of their importances. Parameters and the
    values from `derived` are keyword arguments.

    Args:
        name: the method's name in recipes.
        source: paper and equations.
        title: the method in a few words; by default the first line of the docstring.
        formula: the merged task vector in one line; by default the title.
        derived: computes further keyword arguments of the formula, which have no default, from parameters and names of
            agents.
        check: raises ValueError if parameters contradict each other.
        needs_base: whether the formula takes task vectors.
        needs_importance: whether the formula takes importances.
        interface: the version of this interface that a plug-in is written for (`ramerge.sdk.methods.INTERFACE`).
        kind: a subclass of `FormulaMethod` with further abilities, such as merging more agents than a kernel takes.
        **more: further attributes of `Method`, such as `differs` or `fewest`.

    Returns:
        A decorator that turns the formula into a method.

    Raises:
        TypeError: a keyword of the formula has no description, or an annotation that parameters cannot have; or a name
            in `more` is not an attribute of `Method`.
    """

    def decorate(function: Element) -> FormulaMethod:
        description = inspect.getdoc(function) or name
        shown_title = title or description.partition("\n")[0].rstrip(".")
        formula_parameters = _parameters_of(function)
        return (kind or FormulaMethod)(
            function,
            derived,
            formula_parameters,
            name=name,
            title=shown_title,
            source=source,
            formula=formula or shown_title,
            parameters=_parameters_class(name, formula_parameters, check),
            needs_base=needs_base,
            side=IMPORTANCE if needs_importance else None,
            interface=interface,
            **more,
        )

    return decorate


class FormulaMethod(ElementMethod[Any]):
    """A method made by `merge_method`; its parameters are the formula's keywords."""

    def __init__(
        self,
        function: Element,
        derived: Derivation | None,
        formula_parameters: Sequence[_FormulaParameter],
        **attributes: object,
    ) -> None:
        # kernels pass all arguments by position
        assert isinstance(function, FunctionType)
        code = function.__code__
        if code.co_freevars:
            names = ", ".join(code.co_freevars)
            raise TypeError(f"{function.__qualname__}: uses {names} of the function around it; {native.FORMULAS}")
        positional_code = code.replace(co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0)
        self.element: Element = FunctionType(positional_code, function.__globals__, function.__name__)
        self.element.__qualname__ = f"{function.__qualname__}.element"  # where pickle finds it
        self._keywords, self._formula_parameters, self._derivation = (
            _element_keywords(function),
            formula_parameters,
            derived,
        )
        for name, value in attributes.items():
            if name not in Method.__annotations__:
                raise TypeError(f"{function.__qualname__}: methods have no attribute {name!r}")
            setattr(self, name, value)

    def numbers(self, parameters: Any, agents: Agents, results: Results) -> tuple[Argument, ...]:
        values = {each.name: each.value(parameters, agents) for each in self._formula_parameters}
        values |= self._derivation(parameters, agents) if self._derivation is not None else {}
        return tuple(values[keyword] for keyword in self._keywords)


def _element_keywords(function: Element) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def _parameters_of(function: Element) -> list[_FormulaParameter]:
    hints, signature = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    result = []
    for name in _element_keywords(function):
        hint, default = hints.get(name), signature[name].default
        if default is inspect.Parameter.empty:
            continue
        if get_origin(hint) is Union:  # Python 3.10 adds None to the type of a parameter whose default it is
            hint = get_args(hint)[0]
        kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        marker = next((type(each) for each in metadata if isinstance(each, _PerAgent | _ChosenAgent)), kind)
        description = next((each for each in metadata if isinstance(each, str)), "")
        if marker not in (float, int, bool, _PerAgent, _ChosenAgent) or not description:
            where = f"{function.__module__}.{function.__qualname__}: {name}"
            raise TypeError(f'{where}: annotate it as Annotated[TYPE, "what it means"], where TYPE is {_KINDS}')
        span = next((each for each in metadata if isinstance(each, Range)), Range())
        result.append(_FormulaParameter(name, marker, default, span, description))
    return result


def _parameters_class(
    name: str, formula_parameters: Sequence[_FormulaParameter], check: Callable[[Any], None] | None
) -> type[Parameters]:
    def check_values(self: Parameters) -> Parameters:
        if check is not None:
            check(self)
        return self

    title = "".join(part.capitalize() for part in name.replace("+", "_plus").split("_"))
    fields: dict[str, Any] = {each.name: each.field for each in formula_parameters}
    validators: dict[str, Any] = {"checked": model_validator(mode="after")(check_values)}
    return create_model(
        f"{title}Parameters",
        __base__=Parameters,
        __doc__=f"Parameters of `{name}`.",
        __validators__=validators,
        **fields,
    )
