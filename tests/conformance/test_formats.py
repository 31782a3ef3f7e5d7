"""What every format holds to: the bytes of the same merge from safetensors, whatever the blocks and the threads."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.formats.registry import by_priority
from ramerge.core.methods.registry import METHODS
from ramerge.core.tensors.arena import Arena
from tests.checkpoints import read_checkpoint, recipe, simple, write_checkpoint
from tests.conformance.formats import ROWS, Row
from tests.conformance.methods import REPRESENTATIVES
from tests.conformance.test_merge import same
from tests.deltas.writing import blocks_of_elements

# Every format with a method that counts first and one with thresholds, and a few formats with a method of each kind: a
# format does not know the method, but the method decides how much is read at once. The nightly run takes each with all.
SOME_METHODS = ("ram+", "ties")
SOME_ROWS = ("fsdp, second dimension", "adapter", "quantized, fp8 blocks", "delta")
OTHERS = [name for name, method in METHODS.items() if method.side is None and name not in SOME_METHODS]
PAIRS = [*product(ROWS, SOME_METHODS), *product(SOME_ROWS, {*REPRESENTATIVES} & {*OTHERS})]
REST = [pair for pair in product(ROWS, OTHERS) if pair not in PAIRS]


def parameters(pairs: Iterable[tuple[str, str]]) -> list[Any]:
    """Pairs, of which `make test` takes every format once, and representative methods with some formats."""
    fast = {*product(ROWS, SOME_METHODS[:1]), *product(SOME_ROWS, REPRESENTATIVES)}
    return [
        pytest.param(row, method, marks=[*ROWS[row].marks, *([] if (row, method) in fast else [pytest.mark.full])])
        for row, method in sorted(set(pairs))
    ]


class Planned(Arena):
    """An arena that gives no more than was planned."""

    def take(self, size: int) -> NDArray[np.uint8]:
        taken = super().take(size)
        assert not self.excess_count
        return taken


@pytest.fixture(autouse=True)
def _as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramerge.core.engine.worker.Arena", Planned)


def merged(source: dict[str, Any], out: Path, block: int, workers: int) -> dict[str, Any]:
    """The tensors of a merge in blocks of a given size, however small, in no more memory than was planned."""
    plan = ramerge.plan(source, out)
    assert plan.problems == ()
    kinds = {tensor.likeness: tensor.buffer_bytes(block) for tensor in plan.details.tensors}
    assert all(tensor.buffer_bytes(block) == kinds[tensor.likeness] for tensor in plan.details.tensors)
    tight = replace(
        plan.details.resources,
        block_elements=block,
        buffer_bytes=max(t.buffer_bytes(block) for t in plan.details.tensors),
    )
    execute(replace(plan.details, resources=tight), ThreadExecutor(workers))
    return read_checkpoint(out)


def written(format: Row, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Recipes for base and agents in a format, and for what ramerge must see in them, as safetensors."""
    dtype = format.dtypes[0]
    given = {"dtype": format.dtype} if format.dtype else {}
    source, plain = ({**recipe(folder / kind, ["a", "b"]), **given} for kind in ("written", "plain"))
    for seed, name in enumerate(("base", "a", "b")):
        tensors, place = simple(seed, dtype, moved=0.3 * (seed > 0)), folder / "written" / name
        is_own = name != "base" or format.as_base
        named = str(format.write(place, tensors) if is_own else write_checkpoint(place, tensors))
        write_checkpoint(folder / "plain" / name, format.expand(place, tensors) if is_own else tensors)
        if name == "base":
            source["base"] = named
        else:
            source["agents"][name] = named
    return source, plain


@pytest.mark.parametrize(
    ("row", "method"), [*parameters(PAIRS), *(pytest.param(*pair, marks=pytest.mark.thorough) for pair in REST)]
)
def test_bytes_of_the_merge_from_safetensors(row: str, method: str, tmp_path: Path) -> None:
    source, plain = (of(method, recipe) for recipe in written(ROWS[row], tmp_path))
    wanted = merged(plain, tmp_path / "wanted", 1 << 19, 1)
    for block, workers in ((100, 1), (7, 3), (1 << 19, 2)):
        same(merged(source, tmp_path / f"blocks of {block}", block, workers), wanted)


@pytest.mark.parametrize("method", [*SOME_METHODS, "linear"])
def test_merge_from_deltas_of_many_blocks(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks_of_elements(48, monkeypatch)
    source, plain = (of(method, recipe) for recipe in written(ROWS["delta, a chain"], tmp_path))
    wanted = merged(plain, tmp_path / "wanted", 1 << 19, 1)
    for block, workers in ((100, 1), (7, 3), (48, 2), (1 << 19, 2)):
        same(merged(source, tmp_path / f"blocks of {block}", block, workers), wanted)


def of(method: str, recipe: dict) -> dict:
    """A recipe with as many agents as the method takes, and parameters that no format has other defaults of."""
    agents = dict(list(recipe["agents"].items())[: METHODS[method].most])
    return recipe | {"method": method, "agents": agents, "parameters": dict(METHODS[method].for_adapters)}


def test_every_format_has_a_row() -> None:
    assert {format.name for format in by_priority()} <= {row.partition(",")[0] for row in ROWS}
