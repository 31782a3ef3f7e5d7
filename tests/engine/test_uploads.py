"""Shards that are uploaded while later ones are merged, to a store in memory, under names of their run."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import LocalStore, MemoryStore

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.engine.uploads import _AHEAD
from ramerge.core.foundation.errors import OutputWarning, SendError
from ramerge.core.planning.model import MergePlan
from ramerge.core.storage import bucket_upload
from ramerge.core.storage.bucket_upload import BucketUpload
from ramerge.core.storage.objects import Bucket
from ramerge.core.storage.upload import CLAIM, UploadRun, is_shard_of_run
from tests.checkpoints import floats, recipe, simple, write_checkpoint, write_simple
from tests.e2e.kills import weights
from tests.engine.executors.wrapped import Around, Wrapped
from tests.formats.test_quantized import family
from tests.messages import Messages
from tests.planning.test_vocabulary import write as write_rows

_SECONDS = 60
_WORKERS = 4


def rows_apart(folder: Path) -> dict[str, Any]:
    """Models of which rows of a tensor are planned apart."""
    write_rows(folder / "base", 0, 12)
    write_rows(folder / "a", 1, 10)
    write_rows(folder / "b", 2, 14, ["<x>", "<y>", "<z>", "<u>", "<v>"])
    return recipe(folder, ["a", "b"], allow={"vocabulary": "common"})


SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "one file": lambda folder: recipe(folder, write_simple(folder)),
    "shards": lambda folder: recipe(folder, write_simple(folder), shard_size="2KB"),
    "float32": lambda folder: recipe(folder, write_simple(folder), dtype="float32", rounding="nearest"),
    "stochastic": lambda folder: recipe(folder, write_simple(folder), rounding="stochastic"),
    "rows apart": rows_apart,
    "codes and scales": lambda folder: family(folder, "fp8 blocks") | {"dtype": "like base"},
}


class Place(BucketUpload):
    """A folder of a store in memory.

    Args:
        staging: see `Upload`.
        store: of obstore; a new one by default.
        before: called with the name of each shard before it is uploaded.
    """

    def __init__(self, staging: Path, store: Any = None, before: Callable[[str], None] = lambda name: None) -> None:
        self.store = store if store is not None else MemoryStore()
        super().__init__(Bucket("s3://memory/model", self.store, "check it", SendError), staging)
        self._before = before
        self.arrived: list[str] = []
        self.most = 0

    def put(self, run: UploadRun, name: str, path: Path) -> str:
        self._before(name)
        self.most = max(self.most, len([one for one in path.parent.iterdir() if one.stat().st_blocks > 8]))
        said = super().put(run, name, path)
        self.arrived.append(name)
        return said

    def files(self) -> dict[str, bytes]:
        """What is there."""
        names = [meta["path"] for chunk in self._bucket.obstore.list(self.store) for meta in chunk]
        return {name: bytes(self._bucket.obstore.get(self.store, name).bytes()) for name in names}


def as_written_here(files: dict[str, bytes], *, whole: bool = True) -> dict[str, bytes]:
    """The files under the names that a local output gives them, without records.

    Args:
        files: what is at the place. Each index must name what is there.
        whole: whether there may be no other shards.
    """
    found = dict[str, bytes]()
    for name, data in files.items():
        if _is_index(name):
            values = json.loads(data)
            values["weight_map"] = {tensor: plain(shard) for tensor, shard in values["weight_map"].items()}
            if set(values["weight_map"].values()) != {"model.safetensors"}:
                found[name] = (json.dumps(values, indent=2) + "\n").encode()
        elif is_shard_of_run(name):
            found |= {plain(name): data} if name in shards_of(files) else {}
        elif name.rpartition("/")[2] not in ("ramerge.json", "ramerge.yaml", "sweep.json", "README.md"):
            found[name] = data
    assert shards_of(files) <= files.keys()
    assert not whole or {name for name in files if is_shard_of_run(name)} == shards_of(files)
    return dict(sorted(found.items()))


def shards_of(files: dict[str, bytes]) -> set[str]:
    """What indexes name."""
    indexes = {name: json.loads(data) for name, data in files.items() if _is_index(name)}
    return {
        f"{name.rpartition('/')[0]}/{shard}".lstrip("/")
        for name, index in indexes.items()
        for shard in index["weight_map"].values()
    }


def without_strays(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files without shards that no index names: those of runs that are at work, or were killed."""
    return {name: data for name, data in files.items() if not is_shard_of_run(name) or name in shards_of(files)}


def _is_index(name: str) -> bool:
    return name.endswith(".index.json") and not name.startswith("companions/")


def plain(name: str) -> str:
    if not is_shard_of_run(name):
        return name
    begin, number = re.sub(r"-[0-9a-f]{12}-(\d{5}(-of-\d{5})?)\.safetensors$", r" \1", name).split(" ")
    return f"{begin}.safetensors" if number == "00001-of-00001" else f"{begin}-{number}.safetensors"


def planned(source: object, out: Path | BucketUpload, block: int = 32, *, overwrite: bool = False) -> MergePlan:
    plan = ramerge.plan(
        source, out if isinstance(out, Path) else out.staging / "out", options=ramerge.Options(cache=False)
    )
    resources = replace(plan.details.resources, block_elements=block, workers=_WORKERS)
    output = replace(plan.details.output, target=out, overwrite=overwrite)
    return replace(plan.details, output=output, resources=resources)


def shuffled(seed: int) -> Around:
    """An executor whose blocks end in another order than they begin in."""
    draw, lock = random.Random(seed), threading.Lock()

    def slowly(process: Any, worker: Any, block: Any) -> Any:
        with lock:
            seconds = draw.choice([0, 0, 0.001, 0.004])
        result = process(worker, block)
        threading.Event().wait(seconds)
        return result

    return Around(ThreadExecutor(_WORKERS), slowly)


@pytest.mark.parametrize("case", SOURCES)
def test_the_output_is_that_of_a_folder(case: str, tmp_path: Path) -> None:
    source = SOURCES[case](tmp_path)
    out = Place(tmp_path / "stage")
    execute(planned(source, out), shuffled(0))
    execute(planned(source, tmp_path / "here", block=1 << 14), ThreadExecutor(1))
    assert as_written_here(out.files()) == weights(tmp_path / "here")
    assert "model.safetensors.index.json" in out.files(), "one shard, too, has an index"
    assert out.most <= _AHEAD + 1 and not (tmp_path / "stage").exists()


def test_old_model_stays_until_the_commit(tmp_path: Path) -> None:
    store = MemoryStore()
    old = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB")
    execute(planned(old, Place(tmp_path / "stage", store)), ThreadExecutor(2))
    before = Place(tmp_path / "stage", store).files()
    seen = list[bool]()
    out = Place(tmp_path / "stage", store, lambda _: seen.append(before.items() <= out.files().items()))
    new = old | {"method": "ram", "shard_size": "4KB"}
    execute(planned(new, out, overwrite=True), ThreadExecutor(2))
    execute(planned(new, tmp_path / "here"), ThreadExecutor(2))
    assert seen and all(seen)
    assert as_written_here(out.files()) == weights(tmp_path / "here")


@contextmanager
def asleep(out: Place, source: dict[str, Any], at: int, overwrite: bool) -> Iterator[list[BaseException]]:
    """A merge to a place in a thread, which sleeps at its so many-th shard until the `with` block ends."""
    sleeping, awake, calls, failures = threading.Event(), threading.Event(), iter(range(1000)), list[BaseException]()

    def before(_name: str) -> None:
        if next(calls) == at:
            sleeping.set()
            assert awake.wait(_SECONDS)

    out._before = before

    def merge() -> None:
        try:
            execute(planned(source, out, overwrite=overwrite), ThreadExecutor(2))
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=merge)
    thread.start()
    try:
        assert sleeping.wait(_SECONDS)
        yield failures
    finally:
        awake.set()
        thread.join(_SECONDS)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("at", [0, 2])
def test_defeated_job_changes_nothing(at: int, old: bool, tmp_path: Path) -> None:
    """Another job completes the same output meanwhile; both have shards of the same number."""
    store, source = MemoryStore(), recipe(tmp_path, write_simple(tmp_path), shard_size="2KB")
    if old:
        execute(planned(source | {"method": "ram"}, Place(tmp_path / "old", store)), ThreadExecutor(2))
    first, second = Place(tmp_path / "a", store), Place(tmp_path / "b", store)
    with asleep(first, source, at, old) as failures:
        execute(planned(source | {"parameters": {"r": 0.3}}, second, overwrite=old), ThreadExecutor(2))
        arrived, there = first.arrived, without_strays(second.files())
        assert len(second.files()) - len(there) == len(arrived), "shards of a job that may be at work stay"
    (failure,) = failures
    assert "another job has written to the same place since this one began" in str(failure)
    assert second.files() == there
    execute(planned(source | {"parameters": {"r": 0.3}}, tmp_path / "here"), ThreadExecutor(2))
    assert as_written_here(there) == weights(tmp_path / "here")


def test_no_job_begins_while_another_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one still removes what it found at the beginning, of which the next job may have files of the same bytes."""
    store, source = MemoryStore(), recipe(tmp_path, write_simple(tmp_path), shard_size="2KB")
    execute(planned(source, Place(tmp_path / "old", store)), ThreadExecutor(2))
    first, second, remove = Place(tmp_path / "a", store), Place(tmp_path / "b", store), BucketUpload._remove_old

    def asleep(self: BucketUpload, *arguments: Any) -> None:
        with pytest.raises(
            ramerge.PlanError, match=r"another job is completing .* \(ramerge clean s3://memory/model\)"
        ):
            execute(planned(source, second, overwrite=True), ThreadExecutor(2))
        with pytest.raises(ramerge.CheckpointError, match="a merge is being uploaded there"):
            Bucket("s3://memory/model", store, "check it").files()
        remove(self, *arguments)

    monkeypatch.setattr(BucketUpload, "_remove_old", asleep)
    execute(planned(source | {"method": "ram"}, first, overwrite=True), ThreadExecutor(2))
    monkeypatch.undo()
    execute(planned(source | {"method": "ram"}, tmp_path / "here"), ThreadExecutor(2))
    assert as_written_here(first.files()) == weights(tmp_path / "here")
    execute(planned(source, second, overwrite=True), ThreadExecutor(2))


@pytest.mark.parametrize("conditions", [True, False])
def test_a_claim_of_another_job_defeats(
    conditions: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    messages: Messages,
) -> None:
    """One that was killed while it completed its output leaves it until `clean`; also without conditions."""
    monkeypatch.setattr(bucket_upload, "_PATIENCE_SECONDS", 0.3)
    (tmp_path / "store").mkdir()
    store = MemoryStore() if conditions else LocalStore(str(tmp_path / "store"))
    out, source = Place(tmp_path / "stage", store), recipe(tmp_path, write_simple(tmp_path), shard_size="2KB")
    out._before = lambda _name: obstore.put(out.store, CLAIM, b"another") and None
    with messages.raises(ramerge.OutputError):
        execute(planned(source, out), ThreadExecutor(2))
    assert out.files() == {CLAIM: b"another"} and not (tmp_path / "stage").exists()
    out._before = lambda _name: None
    assert out.clean() == ["s3://memory/model: files of interrupted merges removed: 1"]
    execute(planned(source, out), ThreadExecutor(2))
    execute(planned(source, tmp_path / "here"), ThreadExecutor(2))
    assert as_written_here(out.files()) == weights(tmp_path / "here")


def test_job_with_removed_claim_leaves_the_next_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It slept after its index, and was taken for dead."""
    source, out = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB"), Place(tmp_path / "stage")
    obstore.put(out.store, "old.txt", b"old")
    remove = BucketUpload._remove_old

    def asleep(self: BucketUpload, *arguments: Any) -> None:
        assert self.clean()
        obstore.put(out.store, CLAIM, b"another")
        remove(self, *arguments)

    monkeypatch.setattr(BucketUpload, "_remove_old", asleep)
    execute(planned(source, out, overwrite=True), ThreadExecutor(2))
    assert out.files()[CLAIM] == b"another" and out.files()["old.txt"] == b"old"


def test_released_claim_is_waited_for(tmp_path: Path) -> None:
    out, source = Place(tmp_path / "stage"), recipe(tmp_path, write_simple(tmp_path), shard_size="5GB")
    obstore.put(out.store, CLAIM, b"another")
    given_up = threading.Timer(0.5, partial(obstore.delete, out.store, [CLAIM]))
    out.begin = lambda run, **_: given_up.start() or run.begin({})  # type: ignore[method-assign]
    execute(planned(source, out), ThreadExecutor(2))
    execute(planned(source, tmp_path / "here"), ThreadExecutor(2))
    assert as_written_here(out.files()) == weights(tmp_path / "here")


COMPANION = "special_tokens_map.json"


@pytest.mark.parametrize("whose", ["its own", "replaced", "another's", "there before"])
def test_failed_job_removes_its_own_files(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """A small file is removed if the job has put it there, and it is still so: not if it only has the same bytes."""
    source = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB")
    (Path(source["base"]) / COMPANION).write_text("{}")
    out = Place(tmp_path / "stage")
    put = partial(obstore.put, out.store)
    if whose == "there before":
        put(COMPANION, b"{}")
    real = BucketUpload._put

    def fails(self: BucketUpload, name: str, *arguments: Any) -> bool:
        """Its index cannot be put. Meanwhile another program writes there, which knows of no claim."""
        if name == COMPANION and whose == "another's":
            put(COMPANION, b"{}")
        if name == "model.safetensors.index.json":
            if whose == "replaced":
                put(COMPANION, b"[]")
            raise ramerge.OutputError("the index cannot be put")
        return real(self, name, *arguments)

    monkeypatch.setattr(BucketUpload, "_put", fails)
    with messages.raises(ramerge.OutputError):
        execute(planned(source, out, overwrite=whose == "there before"), ThreadExecutor(2))
    wanted = {"its own": {}, "replaced": {COMPANION: b"[]"}}.get(whose, {COMPANION: b"{}"})
    assert out.files() == wanted


@pytest.mark.parametrize("index", ["delta.safetensors.index.json", "r=0.1/model.safetensors.index.json", "sweep.json"])
def test_a_job_of_any_kind_defeats_the_others(index: str, tmp_path: Path, messages: Messages) -> None:
    """Whatever record or index it has put, and though it has no file of the same name."""
    source, out = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB"), Place(tmp_path / "stage")
    out._before = lambda _name: obstore.put(out.store, index, b"{}") and None
    with messages.raises(ramerge.OutputError):
        execute(planned(source, out), ThreadExecutor(2))
    assert out.files() == {index: b"{}"}


def test_files_of_others_stay(tmp_path: Path) -> None:
    """What was put there since the merge began is not the merge's to remove."""
    source = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB")
    execute(planned(source, out := Place(tmp_path / "stage")), ThreadExecutor(2))
    put = partial(out._bucket.obstore.put, out.store)
    out._before = lambda name: put("notes.txt", b"mine") and None
    execute(planned(source, out, overwrite=True), ThreadExecutor(2))
    assert out.files()["notes.txt"] == b"mine"


def test_a_store_without_conditions_is_named(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "store").mkdir()
    source = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB")
    out = Place(tmp_path / "stage", LocalStore(str(tmp_path / "store")))
    with messages.warns(OutputWarning):
        execute(planned(source, out), ThreadExecutor(2))
    execute(planned(source, tmp_path / "here"), ThreadExecutor(2))
    assert as_written_here(out.files()) == weights(tmp_path / "here")


def test_store_without_conditions_is_resumed_elsewhere(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "store").mkdir()
    source, store = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB"), LocalStore(str(tmp_path / "store"))

    def fails(_name: str) -> None:
        raise SendError("s3://memory/model: the server says no")

    with messages.warns(OutputWarning):
        execute(planned(source, Place(tmp_path / "stage", store)), ThreadExecutor(2))
    with (
        messages.warns(OutputWarning),
        messages.raises(ramerge.OutputError),
    ):
        execute(planned(source, Place(tmp_path / "stage", store, fails), overwrite=True), ThreadExecutor(2))
    again = Place(tmp_path / "stage", store)
    with pytest.warns(OutputWarning, match="continuing"):
        execute(planned(source, again, overwrite=True), ThreadExecutor(2))
    execute(planned(source, tmp_path / "here"), ThreadExecutor(2))
    assert as_written_here(again.files()) == weights(tmp_path / "here")


def test_weights_that_are_refused_leave_nothing(tmp_path: Path) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), method="ram", shard_size="1KB")
    tensors = simple(1, moved=0.3)
    name = sorted(tensors)[-1]
    values = np.zeros((40, 16))
    values[-1, -1] = np.nan
    write_checkpoint(tmp_path / "code", tensors | {name: floats(values, "BF16")})
    out = Place(tmp_path / "stage")
    with pytest.raises(ramerge.WeightsError, match=name):
        execute(planned(source, out), ThreadExecutor(_WORKERS))
    assert out.files() == {} and not (tmp_path / "stage").exists()


@pytest.mark.parametrize("shard_size", ["2KB", "5GB"])
def test_merge_resumes_after_a_store_error(shard_size: str, tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), method="ram", shard_size=shard_size)

    def fails(_name: str) -> None:
        raise SendError("s3://memory/model: the server says no")

    out = Place(tmp_path / "stage", before=fails)
    with messages.raises(ramerge.OutputError) as caught:
        execute(planned(source, out), ThreadExecutor(_WORKERS))
    assert str(caught.value).count("the server says no") == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ramerge-") and thread.is_alive()]
    out._before = lambda name: None
    with pytest.warns(OutputWarning, match="continuing"):
        execute(planned(source, out), ThreadExecutor(_WORKERS))
    execute(planned(source, tmp_path / "here"), ThreadExecutor(2))
    assert as_written_here(out.files()) == weights(tmp_path / "here")


def test_what_has_arrived_is_not_uploaded_again(tmp_path: Path, messages: Messages) -> None:
    source, last = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB"), list[str]()

    def before(name: str) -> None:
        if len(out.arrived) == 2:
            last.append(name)
            raise SendError("s3://memory/model: the server says no")

    out = Place(tmp_path / "stage", before=before)
    with messages.raises(ramerge.OutputError):
        execute(planned(source, out), ThreadExecutor(2))
    done, out.arrived, out._before = list(out.arrived), [], lambda name: None
    with pytest.warns(OutputWarning, match="continuing"):
        execute(planned(source, out), ThreadExecutor(2))
    assert out.arrived[0] == last[0] and not set(done) & set(out.arrived)


def test_changed_uploaded_shard_restarts_the_merge(tmp_path: Path, messages: Messages) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), shard_size="2KB")

    def before(name: str) -> None:
        if len(out.arrived) == 2:
            raise SendError("s3://memory/model: the server says no")

    out = Place(tmp_path / "stage", before=before)
    with messages.raises(ramerge.OutputError):
        execute(planned(source, out), ThreadExecutor(2))
    out._bucket.obstore.put(out.store, next(iter(out.files())), b"another")
    out._before = lambda name: None
    with messages.warns(OutputWarning):
        execute(planned(source, out), ThreadExecutor(2))
    execute(planned(source, tmp_path / "here"), ThreadExecutor(2))
    assert as_written_here(out.files()) == weights(tmp_path / "here")


def test_uploading_begins_before_merging_ends(tmp_path: Path) -> None:
    """The last block waits until the first shard has been taken."""
    begun, merged = threading.Event(), threading.Event()

    left = [1000]

    class Waiting(ThreadExecutor):
        def run(self, work: Any, runs: Any, recorder: Any) -> Any:
            left[0] = sum(map(len, runs))
            yield from super().run(Wrapped(work, waiting), runs, recorder)
            merged.set()

    def waiting(process: Any, worker: Any, block: Any) -> Any:
        left[0] -= 1
        assert left[0] or begun.wait(_SECONDS), "nothing is uploaded before the last block is merged"
        return process(worker, block)

    out = Place(tmp_path / "stage", before=lambda name: begun.set())
    execute(planned(recipe(tmp_path, write_simple(tmp_path), method="ram", shard_size="1KB"), out), Waiting(_WORKERS))
    assert merged.is_set()


def test_blocks_that_are_needed_next_never_wait(tmp_path: Path) -> None:
    """The first block is late, and the other workers run ahead as far as they may. Yet all comes to an end."""
    source = recipe(tmp_path, write_simple(tmp_path), method="ram", shard_size="1KB")
    held = threading.Event()

    def late(process: Any, worker: Any, block: Any) -> Any:
        if block[0].tensor == block[0].start == 0:
            held.wait(0.3)
        return process(worker, block)

    out = Place(tmp_path / "stage")
    ended = threading.Thread(
        target=partial(execute, planned(source, out), Around(ThreadExecutor(_WORKERS), late)), daemon=True
    )
    ended.start()
    ended.join(_SECONDS)
    assert not ended.is_alive() and out.most <= _AHEAD + 1
    assert len(out.arrived) == len([name for name in out.files() if name.endswith(".safetensors")])


def test_names_of_a_run() -> None:
    run = UploadRun(Path(), "0123456789ab")
    names = {
        "model.safetensors": "model-0123456789ab-00001-of-00001.safetensors",
        "model-00002-of-00016.safetensors": "model-0123456789ab-00002-of-00016.safetensors",
        "r=0.1/model.safetensors": "r=0.1/model-0123456789ab-00001-of-00001.safetensors",
        "delta-00001.safetensors": "delta-0123456789ab-00001.safetensors",
    }
    assert {name: run.remote_name(name) for name in names} == names
    assert all(run.owns(name) and not UploadRun(Path()).owns(name) for name in names.values())
    assert not any(is_shard_of_run(name) for name in names)
