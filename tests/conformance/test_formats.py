"""What every format holds to: the bytes of the same merge from safetensors, whatever the blocks and the threads."""

from dataclasses import replace
from pathlib import Path

import pytest

import ramerge
from ramerge.engine.execute import execute
from ramerge.engine.executors.threads import ThreadExecutor
from tests.checkpoints import read_checkpoint, recipe, simple, write_checkpoint
from tests.conformance.formats import ROWS
from tests.conformance.test_merge import same

METHODS = ("ram+", "ties", "linear")


def run(source: dict, out: Path, block: int, workers: int) -> None:
    plan = ramerge.plan(source, out)
    assert plan.problems == ()
    tight = replace(plan.resources, block_elements=block, buffer_bytes=max(t.buffer_bytes(block) for t in plan.tensors))
    execute(replace(plan, resources=tight), ThreadExecutor(workers))


@pytest.mark.parametrize("row", list(ROWS))
def test_bytes_of_the_merge_from_safetensors(row: str, tmp_path: Path) -> None:
    format = ROWS[row]
    dtype = format.dtypes[0]
    models = {name: simple(seed, dtype, moved=0.3 * (seed > 0)) for seed, name in enumerate(("base", "a", "b"))}
    plain, written = tmp_path / "plain", tmp_path / "written"
    given = {"dtype": format.dtype} if format.dtype else {}
    source = {**recipe(written, ["a", "b"]), **given}
    for name, tensors in models.items():
        if name == "base" and not format.as_base:
            write_checkpoint(written / name, tensors)
            write_checkpoint(plain / name, tensors)
            continue
        named = str(format.write(written / name, tensors))
        if name == "base":
            source["base"] = named
        else:
            source["agents"][name] = named
        write_checkpoint(plain / name, format.expand(written / name, tensors))
    for method in METHODS:
        run({**recipe(plain, ["a", "b"]), **given, "method": method}, tmp_path / method / "plain", 1 << 19, 1)
        wanted = read_checkpoint(tmp_path / method / "plain")
        for block, workers in ((100, 1), (7, 3), (1 << 19, 2)):
            out = tmp_path / method / f"{block}"
            run({**source, "method": method}, out, block, workers)
            same(read_checkpoint(out), wanted)
