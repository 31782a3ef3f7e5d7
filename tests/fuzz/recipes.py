"""Recipes in both forms, from YAML to a plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from ruamel.yaml import YAML

from ramerge import api
from ramerge.core.foundation.errors import RamergeError
from ramerge.core.options import Options
from tests.checkpoints import write_simple
from tests.fuzz.common import BATCH, check_refusal, check_shown, folder
from tests.fuzz.mutate import NAMES, dump, mutated, torn

OWN = """\
# ours
method: ram+
base: ./base
agents:
  code: ./code
  tool: {model: ./tool}
parameters: {r: 0.1, epsilon: 1e-5, alpha: 2}
dtype: bfloat16
shard_size: 5GB
rules:
  - {match: "*layers.2*", keep: base}
  - match: ["*layers.0*"]
    layers: 0-1
    parameters: {r: 0.2}
allow:
  extra_tensors: true
  config: [rope_theta]
"""
MERGEKIT = """\
merge_method: dare_ties
base_model: base
models:
  - model: code
    parameters: {weight: 0.5, density: 0.7}
  - model: tool
    parameters:
      weight: 1
parameters:
  normalize: true
  lambda: 1.0
dtype: bfloat16
tokenizer_source: base
"""
LINES = (
    "? [a, b]\n: 1",
    "[a]: 1",
    "{a: 1}: 2",
    "!!set {a, b}",
    "&a [*a]",
    "<<: {method: ram}",
    "a: !!binary aGk=",
    "b: 2020-01-01",
    "c: !foo bar",
    "d: 0x" + "f" * 400,
    "e: " + "1" * 5000,
    "f: [" * 40,
    "- " * 50 + "x",
    "x: >\n  a\n  b",
    "g: .inf",
    "? ",
    "method: dare",
    "method: fisher",
    "preset: paper",
    "companions: code",
    "rules: [{match: '['}]",
    "\t",
    "---",
    "...",
    "%YAML 1.1",
    'h: "\\ud800"',
    'agents: {"\\e[2J": ./code}',
    "i: " + "a, " * 3000,
    "k" * 3000 + ": 1",
    "agents: {}",
    "base: ~",
    "dtype: [float16]",
    "rules:\n- keep: base\n  layers: 0-9999",
    "parameters: {weights: {code: 1e999}}",
    "shard_size: 1e3",
    "seed: -0",
    "~: 1",
    "1: 2",
)


@cache
def _models() -> Path:
    place = folder("recipes")
    write_simple(place, {"code": 0.1, "tool": 0.2})
    return place


def cases(seed: int) -> Iterator[bytes]:
    """The text of a recipe's file."""
    rng = Random(seed)
    for _ in range(BATCH):
        text = rng.choice((OWN, MERGEKIT))
        change = rng.randrange(4)
        if change == 0:
            yield torn(rng, text.encode())
        elif change == 1:
            yield dump(mutated(rng, YAML(typ="safe", pure=True).load(text))).encode("utf-8", "surrogatepass")
        else:
            lines = text.splitlines()
            for _ in range(rng.choice((1, 2))):
                _change(rng, lines)
            yield "\n".join(lines).encode("utf-8", "surrogatepass")


def _change(rng: Random, lines: list[str]) -> None:
    place = rng.randrange(len(lines))
    change = rng.randrange(5)
    if change == 0:
        lines[place] = rng.choice(LINES)
    elif change == 1:
        lines.insert(place, rng.choice(LINES))
    elif change == 2:
        head, colon, _ = lines[place].partition(":")
        lines[place] = head + colon + " " + rng.choice((*NAMES, *(line.partition(": ")[2] for line in LINES)))
    elif change == 3:
        lines[place] = lines[place].replace(rng.choice("aeir.:{"), rng.choice(NAMES), 1)
    else:
        lines[place] = " " * rng.randrange(4) + lines[place].strip()


def check(case: bytes) -> bool:
    """A plan, or problems of the recipe."""
    path = _models() / "recipe.yaml"
    path.write_bytes(case)
    try:
        plan = api.plan(path, options=Options(cache=False))
    except RamergeError as error:
        check_refusal(error)
        return False
    check_shown([*plan.notes, *plan.problems, *plan.warnings])
    return not plan.problems
