"""The words that are written for a recipe give the recipe again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.cli.flags.read import read_inputs
from ramerge.cli.flags.write import words_of
from ramerge.cli.options import KEYS, command, options
from ramerge.core.recipe.checks import check
from ramerge.core.recipe.document import Document


def read(words: list[str]) -> Any:
    """The recipe of words, as the command line reads them."""
    found: list[Any] = []

    @command()
    @options(*KEYS)
    def collect(**flags: Any) -> None:
        found.append(read_inputs([], flags)[0])

    collect.main(words, standalone_mode=False)
    return check(found[0])


RECIPES = (
    {"base": "a/b", "agents": {"code": "a/c"}},
    {
        "method": "dare_ties",
        "base": "a/b",
        "agents": {"code": "a/c", "t.1": "a/d@v1"},
        "parameters": {"p": 0.25, "seed": 7},
    },
    {"method": "ram+", "base": "a/b", "agents": {"code": "a/c"}, "preset": "paper", "dtype": "like base"},
    {
        "method": "ram",
        "base": "a/b",
        "agents": {"a=b": "a/c", "--x": "a/d"},
        "rounding": "stochastic",
        "rounding_seed": -3,
    },
    {"method": "ram", "base": "a/b", "agents": {"a": "a/c"}, "parameters": {"epsilon": {"relative": 0.5}}},
    {"method": "fisher", "base": "a/b", "agents": {"a": {"model": "a/c", "importance": "a/i"}}},
    {"method": "ties", "base": "a/b", "agents": {"a": "a/c"}, "rules": [{"match": ["*norm*"], "keep": "base"}]},
    {"method": "linear", "agents": {"a": "a/c", "b": "a/d"}, "parameters": {"weights": {"a": 1.0, "b": 2.0}}},
    {"base": "a/b", "agents": {"a": "a/c"}, "rename": [{"from": "^x", "to": ""}], "allow": {"missing_tensors": True}},
    {"base": "a/b", "agents": {"a": "a/c"}, "companions": "a", "shard_size": 5_000_000_000},
)


@pytest.mark.parametrize("values", RECIPES)
def test_words_give_the_recipe_again(values: dict[str, Any]) -> None:
    assert read(words_of(Document(values))).to_yaml() == check(Document(values)).to_yaml()


@given(r=st.floats(0, 10), epsilon=st.floats(0, 1), seed=st.integers(-(2**63) + 1, 2**63 - 1))
def test_numbers_are_those_of_the_recipe(r: float, epsilon: float, seed: int) -> None:
    values = {"method": "ram+", "base": "a/b", "agents": {"a": "a/c"}, "parameters": {"r": r, "epsilon": epsilon}}
    values |= {"rounding": "stochastic", "rounding_seed": seed}
    assert read(words_of(Document(values))).to_yaml() == check(Document(values)).to_yaml()


def test_paths_below_the_working_folder_are_relative(tmp_path: Path) -> None:
    for name in ("base", "-coder", "base+"):
        (tmp_path / name).mkdir()
    values = {"base": "base", "agents": {"code": str(tmp_path / "-coder"), "tool": "base+", "far": "/etc"}}
    document = Document(values, folder=tmp_path)
    assert words_of(document, start=tmp_path) == [
        *("--base", "base", "--agent", "code=./-coder", "--agent", "tool=base+", "--agent", "far=/etc"),
    ]
    assert words_of(document)[1] == str(tmp_path / "base")
