"""What may vary: every value checked, every problem named with its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.recipe.document import Document
from ramerge.core.recipe.model import Recipe
from ramerge.demo.run import AGENTS
from ramerge.sdk.recipes import check
from ramerge.searches.points import document_of
from ramerge.searches.space import Choices, Space, ValueRange
from ramerge.searches.spacefile import file_space, mapped_space, vary_space

TASKS = ("coder", "tool", "memory")
VALUES = {"base": str(AGENTS / "base"), "agents": {name: str(AGENTS / name) for name in TASKS}}


def recipe(**values: object) -> Document:
    return Document({**VALUES, **values})


def recipe_at(document: Document, point: dict[str, object]) -> Recipe:
    return check(document_of(document, point))


def spanned(tmp_path: Path, text: str, **values: object) -> Space:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return file_space(recipe(**values), path)


def test_a_parameter_counts_with_the_methods_that_have_it(tmp_path: Path) -> None:
    text = """
method:
  ram:
  ram+: {parameters: {r: [0, 0.1]}}
  ties: {parameters.density: [0.2, 0.5]}
dtype: [bfloat16, float32]
"""
    assert list(spanned(tmp_path, text).points()) == [
        *[{"method": "ram", "dtype": dtype} for dtype in ("bfloat16", "float32")],
        *[{"method": "ram+", "parameters.r": r, "dtype": d} for r in (0, 0.1) for d in ("bfloat16", "float32")],
        *[{"method": "ties", "parameters.density": p, "dtype": d} for p in (0.2, 0.5) for d in ("bfloat16", "float32")],
    ]


@pytest.mark.parametrize(
    "text", ["method: ties\nrounding: [nearest, stochastic]\n", "method: {ties: {rounding: [nearest, stochastic]}}\n"]
)
def test_a_single_method_is_that_of_every_point_and_not_the_recipes(tmp_path: Path, text: str) -> None:
    space = spanned(tmp_path, text, method="ram+", parameters={"r": 0.2})
    points = [*space.points(), space.draw(lambda axis: axis.domain.extremes()[0])]
    assert [point["rounding"] for point in points] == ["nearest", "stochastic", "nearest"]
    assert {recipe_at(recipe(method="ram+", parameters={"r": 0.2}), point).method for point in points} == {"ties"}


def test_a_parameter_that_another_value_switches_off_does_not_vary(tmp_path: Path) -> None:
    text = "method: [ram]\nparameters: {density: [0.2, 0.5], shared: [mean, ties]}\n"
    points = list(spanned(tmp_path, text).points())
    assert [point["parameters.shared"] for point in points] == ["mean", "ties", "ties"]
    assert ["parameters.density" in point for point in points] == [False, True, True]


def test_agents_weights_and_ranges(tmp_path: Path) -> None:
    text = """
parameters:
  weights: {coder: {from: 0, to: 1, step: 0.5}, tool: 1, memory: [1, 2]}
  scale: {from: 0.5, to: 1.5}
"""
    space = spanned(tmp_path, text, method="task_arithmetic")
    assert space.size is None
    point = space.draw(lambda axis: axis.domain.extremes()[0])
    parameters = recipe_at(recipe(method="task_arithmetic"), point).parameters
    assert parameters == {"weights": {"coder": 0, "tool": 1, "memory": 1}, "scale": 0.5}


def test_another_method_loses_what_is_not_its_own() -> None:
    rules = [{"layers": "0", "parameters": {"r": 0.5}}]
    source = recipe(method="ram+", preset="paper", parameters={"r": 0.2, "epsilon": 1e-4}, rules=rules)
    made = recipe_at(source, {"method": "task_arithmetic"})
    assert made.method == "task_arithmetic" and made.preset is None
    assert made.parameters == {} and made.rules[0].parameters == {}
    assert source.as_dict()["parameters"] == {"r": 0.2, "epsilon": 1e-4}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("parameters:\n  rr: [0, 1]\n", ["space.yaml:2: parameters.rr", "unknown parameter of ram+", "did you mean"]),
        ("r: [0, 0.1]\n", ["space.yaml:1: r", "did you mean 'parameters.r'?"]),
        ("color: [red]\n", ["space.yaml:1: color", "only these can vary"]),
        ("base: [a, b]\n", ["space.yaml:1: base", "only these can vary"]),
        ("method: [ram, tyes]\n", ["space.yaml:1: method", "did you mean 'ties'?"]),
        ("method: {ram: 3}\n", ["space.yaml:1: method.ram", "a space of its own"]),
        ("method: [ram, ram]\n", ["each of them once"]),
        ("parameters.r: []\n", ["has no values"]),
        ("parameters.r: [0, 0]\n", ["names a value twice"]),
        ("dtype: [float32, fp32]\n", ["names a value twice"]),
        ("parameters.density: [0.1, 0.2]\n", ["parameters.density: changes nothing; only shared: ties uses it"]),
        ("parameters.r: {from: 0}\n", ["to must be a number"]),
        ("parameters.r: {from: 1, to: 0}\n", ["must rise"]),
        ("parameters.r: {from: 0, to: 1, stepp: 1}\n", ["unknown key of a range 'stepp'", "did you mean 'step'?"]),
        ("parameters.r: {low: 1, high: 0}\n", ["space.yaml:1: parameters.r: unknown key of a range 'low'", "{from: 0"]),
        ("\nparameters.r: {lowest: 1, wide: [0]}\n", ["space.yaml:2: parameters.r.lowest=1: must be a number"]),
        ("parameters.r: {from: 0, to: 1, step: 2}\n", ["step 2: must be above 0"]),
        ("parameters.r: {from: 0, to: 1, log: true}\n", ["a range above 0"]),
        ("\nparameters.r: [0, -3]\n", ["space.yaml:2: parameters.r=-3"]),
        ("dtype: [bfloat16, floaty]\n", ["space.yaml:1: dtype=floaty"]),
        ("method: [ram]\n", ["nothing varies"]),
        (
            "parameters.r: {from: 0, to: 0x" + "f" * 5000 + "}\n",
            ["space.yaml:1: parameters.r.to: a whole number of more than 63 bits"],
        ),
        ("- 3\n", ["a space is a mapping from keys"]),
        ("method: [fisher, ram]\n", ["has no importance, but fisher needs it", "(importance={"]),
        ("parameters: {epsilon: [0.1], epsilon.relative: [1]}\n", ["is a part of parameters.epsilon"]),
    ],
)
def test_problems_name_their_line(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        spanned(tmp_path, text, method="ram+")
    assert all(words in str(error.value) for words in said), str(error.value)


def test_whole_numbers_from_python_are_bounded() -> None:
    for space in (vary_space, mapped_space):
        with pytest.raises(RecipeError, match="a whole number of more than 63 bits"):
            space(recipe(), {"parameters.r": [0, 1 << 20_000]})


def test_a_grid_of_words() -> None:
    space = vary_space(recipe(), {"method": ["ram", "ties"], "parameters.density": [0.2, 0.5]})
    assert [point.get("parameters.density") for point in space.points()] == [None, 0.2, 0.5]
    with pytest.raises(RecipeError, match=r"vary parameters.densty: unknown parameter"):
        vary_space(recipe(method="ties"), {"parameters.densty": [0.2]})


@given(st.integers(0, 20), st.integers(1, 20), st.integers(1, 7), st.booleans())
def test_a_range_lists_its_values_in_order_and_within(low: int, length: int, step: int, whole: bool) -> None:
    unit = 1 if whole else 0.1
    domain = ValueRange(low * unit, (low + length) * unit, min(step, length) * unit)
    values = domain.enumeration()
    assert values is not None and list(values) == sorted(set(values))
    assert domain.low <= values[0] and values[-1] <= domain.high
    assert len(values) == length // min(step, length) + 1


def test_choices_keep_their_order() -> None:
    assert Choices((3, 1, 2)).enumeration() == (3, 1, 2)


def test_a_parameter_of_another_method_names_it() -> None:
    recipe = Document({"base": "base", "agents": {"code": "coder"}})
    with pytest.raises(RecipeError) as error:
        vary_space(recipe, {"parameters.scale": [1, 2]})
    [problem] = error.value.problems
    assert problem.startswith("vary parameters.scale: the default method, ram+, has no parameter scale; name a method")
    assert 'vary={"method": ' in problem
