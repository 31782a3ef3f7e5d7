"""Renaming rules of recipes: what `re` does, in bounded time and memory."""

from __future__ import annotations

import re
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramerge
from ramerge.core.recipe.patterns import LONGEST_NAME, replace_all
from tests.checkpoints import floats, recipe, write_checkpoint

LONG = "model." + "a" * 60 + ".weight"


def write(folder: Path, names: tuple[str, ...] = ("model.x.weight", "model.y.weight")) -> None:
    for model in ("base", "a"):
        write_checkpoint(folder / model, {name: floats([0.5, 1.0]) for name in names})


@pytest.mark.full
@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([(r"(a|aa|aaa)+b", "x")], "rename 1: '(a|aa|aaa)+b': takes too long; remove repetitions inside of repetit"),
        ([(r"(.*)", r"policy.\1")], "'(.*)': also matches the empty text, so 'model."),
        ([(r"x*", "y")], "also matches the empty text"),
        ([(r"(.+)", r"\1\1")] * 40, "makes names of more than 1,000 characters"),
        ([(r"(?=(.*))", r"\1" * 300)], "also matches the empty text"),
        ([("m", "n" * 1001)], "rename 1: to: has 1,001 characters, but only 1,000 are allowed"),
        ([("m" * 1001, "n")], "rename 1: from: has 1,001 characters"),
        ([("(" * 490 + "a" + ")" * 490, "x")], "recursion"),
        ([(r"(?R)?a|b", "x")], "unknown extension ?R"),
        ([(r"model\.[xy]", "model.z")], "several tensors the name 'model.z.weight'"),
    ],
)
def test_refused_in_bounded_time(rules: list[tuple[str, str]], words: str, tmp_path: Path) -> None:
    write(tmp_path, (LONG, "model.x.weight", "model.y.weight"))
    began = monotonic()
    written = [{"from": pattern, "to": to} for pattern, to in rules]
    try:
        problems = list(ramerge.plan(recipe(tmp_path, ["a"], rename=written)).problems)
    except ramerge.RecipeError as error:
        problems = list(error.problems)
    assert any(words in problem for problem in problems), problems
    assert monotonic() - began < 30  # of which 5 are the limit; `re` needs years for the first


def test_rename_rules_limit_name_length(tmp_path: Path) -> None:
    name = f"model.{'x' * LONGEST_NAME}"
    write(tmp_path, (name,))
    assert not ramerge.plan(recipe(tmp_path, ["a"])).problems
    (problem, *_) = ramerge.plan(recipe(tmp_path, ["a"], rename=[{"from": "^model", "to": "net"}])).problems
    assert f"'^model': is for names of at most 1,000 characters, and one has {len(name):,}" in problem


_PIECES = st.sampled_from(["^", "$", r"\.", "layers", r"(\d+)", r"\w+", "[a-m]", "(?:q|k)_proj", "(model)?", ".", "x"])
_NAMES = ["model.layers.0.self_attn.q_proj.weight", "model.layers.12.mlp.x.weight", "h.3.attn.c_attn.weight", "lm_head"]


@given(st.lists(_PIECES, min_size=1, max_size=5), st.sampled_from(["", "x.", r".\g<0>.", "y"]), st.sampled_from(_NAMES))
def test_names_are_replaced_as_by_re(pieces: list[str], to: str, name: str) -> None:
    pattern = "".join(pieces)
    found = list(re.finditer(pattern, name))
    if len(found) > 1 and not all(match[0] for match in found):
        with pytest.raises(ValueError, match="also matches the empty text"):
            replace_all(pattern, to, name, monotonic() + 5)
    else:
        assert replace_all(pattern, to, name, monotonic() + 5) == re.sub(pattern, to, name)
