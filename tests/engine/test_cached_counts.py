"""Counts that an earlier read has left: used where the files are the same, and never where they are not."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.foundation import store
from ramerge.core.planning import cached_counts
from ramerge.core.tensors import identity
from ramerge.core.tensors.identity import identify
from tests.checkpoints import mapped, read_checkpoint, recipe, simple, write_checkpoint, write_simple
from tests.messages import Messages


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files count as settled at once, and a folder of their own is the cache."""
    monkeypatch.setattr(cached_counts, "SETTLED_SECONDS", -1e6)
    monkeypatch.setattr(identity, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(store, "folder", lambda kind: tmp_path / "cache" / kind)


def passes(source: dict[str, Any], **options: Any) -> int:
    vary = options.pop("vary", None)
    return ramerge.plan(source, vary=vary, options=ramerge.Options(**options)).details.passes


@pytest.mark.full
def test_ram_plus_reads_once_after_an_analysis(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    before = ramerge.merge(source, tmp_path / "before", options=ramerge.Options(cache=False))
    assert (passes(source), before.counts) == (2, "read")
    ramerge.analyze(source)
    assert (passes(source), passes(source, cache=False)) == (1, 2)
    after = ramerge.merge(source, tmp_path / "after")
    assert after.counts == json.loads((tmp_path / "after/ramerge.json").read_text())["counts"] == "earlier read"
    assert after.bytes_read == before.bytes_read // 2
    assert after.agents == before.agents
    for name, tensor in read_checkpoint(tmp_path / "before").items():
        assert read_checkpoint(tmp_path / "after")[name].bits.tobytes() == tensor.bits.tobytes()


@pytest.mark.parametrize("scope", ["model", "layer", "tensor"])
def test_every_scope_and_threshold_of_the_analysis(scope: str, tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    ramerge.analyze(source, epsilons=[1e-3])
    for epsilon in (1e-3, 1e-5):
        one = {**source, "parameters": {"scope": scope, "epsilon": epsilon}}
        assert passes(one) == 1
        after, before = (
            ramerge.merge(one, tmp_path / str(cache), options=ramerge.Options(cache=cache, overwrite=True))
            for cache in (True, False)
        )
        assert (after.agents, after.parts) == (before.agents, before.parts)
    assert passes({**source, "parameters": {"epsilon": 1e-4}}) == 2


def test_a_merge_leaves_counts_too(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    ramerge.merge({**source, "method": "ram"}, tmp_path / "ram")
    assert passes(source) == 1
    records = ramerge.sweep(source, tmp_path / "sweep", vary={"parameters.r": [0.1, 0.2]})
    assert {record.counts for record in records} == {"earlier read"}


@pytest.mark.full
def test_shared_ties_still_reads_for_its_thresholds(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), parameters={"shared": "ties"})
    ramerge.merge(source, tmp_path / "before", options=ramerge.Options(cache=False))
    ramerge.analyze(source)
    ramerge.merge(source, tmp_path / "after")
    for name, tensor in read_checkpoint(tmp_path / "before").items():
        assert read_checkpoint(tmp_path / "after")[name].bits.tobytes() == tensor.bits.tobytes()


def changed_in_place(path: Path) -> None:
    """Other weights, the same size and modification time."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path: Path) -> None:
    """Another file of the same size and modification time."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    other = path.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [changed_in_place, replaced, os.utime])
@pytest.mark.parametrize("owner", ["base", "tool"])
def test_changed_file_invalidates_cached_counts(change: Any, owner: str, tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    ramerge.analyze(source)
    plan = ramerge.plan(source, tmp_path / "out")
    assert plan.details.passes == 1
    change(tmp_path / owner / "model.safetensors")
    assert passes(source) == 2
    from ramerge.core.engine.execute import execute
    from ramerge.core.engine.executors.threads import ThreadExecutor

    with messages.raises(ramerge.CheckpointError):
        execute(plan.details, ThreadExecutor(1))


@pytest.mark.parametrize("owner", ["base", "tool"])
def test_a_write_through_a_memory_map_is_noticed(owner: str, tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    with mapped(tmp_path / owner / "model.safetensors") as change:
        ramerge.analyze(source)
        assert passes(source) == 1
        change()
        assert passes(source) == 2


def test_files_of_any_size_have_a_sample(tmp_path: Path) -> None:
    """Small files as a whole, larger ones at their beginning, their end, and between."""
    path = tmp_path / "file"
    for size, places in ((0, []), (1, [0]), (100_000, range(0, 100_000, 999)), (10**8 + 7, [0, 10**8 - 3_000_000])):
        path.write_bytes(bytes(size))
        before = identify([path])[path]
        for place in places:
            with path.open("r+b") as file:
                file.seek(place)
                file.write(b"x" * (3_000_007 if size > 10**6 else 1))
            after = identify([path])[path]
            assert after.sample != before.sample
            before = after


def test_other_agents_or_another_order_are_other_inputs(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ramerge.analyze(recipe(tmp_path, names))
    assert passes(recipe(tmp_path, names[:2])) == 2
    assert passes(recipe(tmp_path, names[::-1])) == 2
    assert passes(recipe(tmp_path, names, rules=[{"match": "*.0.*", "keep": "base"}])) == 2


def test_young_files_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_counts, "SETTLED_SECONDS", 2.0)
    source = recipe(tmp_path, write_simple(tmp_path))
    ramerge.analyze(source)
    assert passes(source) == 2


def test_a_damaged_or_foreign_cache_is_ignored(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path))
    ramerge.analyze(source)
    kept = list((tmp_path / "cache/counts").iterdir())
    assert len(kept) == 4
    for path in kept:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    assert passes(source) == 2


def test_a_merge_that_fails_leaves_nothing(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    tensors = simple(1)
    next(iter(tensors.values())).bits[0, 0] = 0x7FC0
    write_checkpoint(tmp_path / "nan", tensors)
    with pytest.raises(ramerge.WeightsError):
        ramerge.merge(recipe(tmp_path, [*names, "nan"]), tmp_path / "out")
    assert not (tmp_path / "cache/counts").exists()


def test_cached_counts_equal_a_fresh_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for place, name in enumerate(("base", "a", "b")):
        tensors = {
            f"model.layers.{layer}.{kind}.weight": simple(place + layer, moved=0.3 * place)["model.layers.0.weight"]
            for layer in rng.permutation(4)
            for kind in ("q", "k")
        }
        write_checkpoint(tmp_path / name, tensors, shards=2)
    source = recipe(tmp_path, ["a", "b"], parameters={"scope": "layer"})
    ramerge.analyze(source)
    after, before = (
        ramerge.merge(source, tmp_path / str(cache), options=ramerge.Options(cache=cache)) for cache in (True, False)
    )
    assert after.parts == before.parts != {}
