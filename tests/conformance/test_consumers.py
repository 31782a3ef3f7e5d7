"""The table of consumers and keys: every cell is tried, and none is missing.

`python -m tests.conformance.consumers [KEY ...]` tries all of them, or those of some keys, and writes the table.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramerge.cli.main import COMMANDS
from ramerge.core.engine.outputs import OUTPUT_KINDS
from ramerge.core.recipe.model import Recipe
from tests.conformance.consumers import CELLS, CONSUMERS, KEYS, NO_CONSUMERS, row

pytestmark = pytest.mark.full  # kernels of analyses, and searches

ROWS: dict[str, dict[str, str]] = json.loads(CELLS.read_text())
OTHERS = {
    "analyze": (),
    "recommend": (),
    "report": ("altair", "itables", "jinja2"),
    "search": ("optuna",),
    "calibrate": ("torch", "transformers"),
}
"""Consumers that take seconds, with the libraries that they need."""


def test_every_command_and_output_is_a_consumer() -> None:
    commands = {word for name in CONSUMERS for word in name.split(", ")}
    named = {*COMMANDS.usable()} | {f"as-{kind}" for kind in OUTPUT_KINDS if kind != "checkpoint"} | {"state dicts"}
    assert commands | NO_CONSUMERS.keys() == named and not commands & NO_CONSUMERS.keys()


def test_every_key_of_a_recipe_has_a_row() -> None:
    inside = {name: set(model.model_fields) for name, model in Recipe.inside.items() if name != "rename"}
    inside["agents"] -= {"model"}  # of which there are rows by form
    keys = {name for name in Recipe.model_fields if name not in ("rules", "allow")}
    keys |= {f"{name}.{key}" for name, results in inside.items() for key in results}
    assert keys | {"agents: ADAPTER", "agents: MODEL+ADAPTER"} == KEYS.keys() == ROWS.keys()
    assert all(results.keys() == CONSUMERS.keys() for results in ROWS.values())


@pytest.mark.parametrize("key", KEYS)
def test_cells_of_merges(key: str, tmp_path: Path) -> None:
    chosen = [name for name in CONSUMERS if name not in OTHERS]
    assert row(tmp_path, key, chosen) == {name: ROWS[key][name] for name in chosen}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "consumer", [pytest.param(name, marks=[pytest.mark.needs(*libraries)]) for name, libraries in OTHERS.items()]
)
@pytest.mark.parametrize("key", KEYS)
def test_cells_of_others(key: str, consumer: str, tmp_path: Path) -> None:
    assert row(tmp_path, key, [consumer])[consumer] == ROWS[key][consumer]
