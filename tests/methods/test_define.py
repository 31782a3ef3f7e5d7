"""Methods that are made of annotated formulas."""

import pickle
from typing import Annotated, Any

import pytest

from ramerge.core.methods.define import ChosenAgent, PerAgent, Range, merge_method
from ramerge.core.methods.registry import METHODS
from tests.messages import Messages


@merge_method("everything", source="a test", derived=lambda parameters, agents: {"half": parameters.scale / 2})
def everything(
    base: Any,
    taus: Any,
    *,
    weights: Annotated[PerAgent, Range(0, 1, below=True), "weights"] = 0.5,
    agent: Annotated[ChosenAgent, "an agent"] = None,
    half: Any,
    scale: Annotated[float, Range(high=2), "a factor"] = 1.0,
    steps: Annotated[int, Range(1, 9), "a number"] = 3,
    flag: Annotated[bool, "a flag"] = False,
) -> Any:
    """What it does.

    More of it.
    """
    return base


def test_a_formula_gets_what_it_names() -> None:
    parameters = everything.parameters(weights={"a": 0.25, "b": 0.75}, agent="b", flag=True)
    formula = everything.prepare(parameters, ("a", "b"), {})
    assert formula.given == ((0.25, 0.75), (0.0, 1.0), 0.5, 1.0, 3.0, True)
    assert (everything.title, everything.formula) == ("What it does", "What it does")
    assert everything.prepare(everything.parameters(), ("a",), {}).given == ((0.5,), (1.0,), 0.5, 1.0, 3.0, False)


@pytest.mark.parametrize(
    "wrong",
    [{"weights": 1}, {"weights": {"a": -0.1}}, {"scale": 2.5}, {"steps": 0}, {"steps": 1.5}, {"flag": 1}, {"x": 1}],
)
def test_parameters_have_types_and_ranges(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        everything.parameters(**wrong)


def test_annotations_that_no_parameter_can_have(messages: Messages) -> None:
    for hint in (str, float, Annotated[float, Range(0, 1)], Annotated[list, "a list"]):

        def formula(base: Any, taus: Any, *, x: Any = 1.0) -> Any:
            return base

        formula.__annotations__["x"] = hint
        with messages.raises(TypeError):
            merge_method("wrong", source="a test")(formula)


def total(base: float, taus: tuple[float, ...]) -> float:
    """A formula."""
    return base


def test_an_attribute_that_methods_do_not_have(messages: Messages) -> None:
    with messages.raises(TypeError):
        merge_method("wrong", source="a test", symetric=False)(total)


def test_an_unknown_method_is_named(messages: Messages) -> None:
    with messages.raises(KeyError):
        METHODS["tie"]


@pytest.mark.parametrize(
    "name", ["task_arithmetic", "linear", "fisher", "passthrough", "dare", "ties", "dare_ties", "breadcrumbs"]
)
def test_methods_travel_to_other_processes(name: str) -> None:
    method = METHODS[name]
    parameters = method.parameters(**{key: 1 for key in ("density",) if key in method.parameters.model_fields})
    formula = method.prepare(parameters, ("a", "b"), {})
    assert pickle.loads(pickle.dumps(formula)) == formula  # noqa: S301 - our own
