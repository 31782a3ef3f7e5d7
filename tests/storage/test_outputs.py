"""Models that are sent to a bucket of a real S3 server."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request

import numpy as np
import pytest

import ramerge
from ramerge.checkpoint.storage import objects_out, uploads
from ramerge.checkpoint.storage.objects import MARKER, Bucket
from ramerge.checkpoint.storage.objects_out import ObjectsOut
from ramerge.engine.worker import Worker
from ramerge.foundation.errors import OutputWarning, SendError
from ramerge.foundation.events import Progress
from ramerge.planning.model import Block
from tests import kills
from tests.checkpoints import floats, recipe, simple, write_checkpoint, write_simple
from tests.commands import ramerge as command
from tests.storage.killed import killed, leave_upload
from tests.storage.seaweed import BUCKET, REFUSED, Server


@pytest.fixture(autouse=True)
def stage(own_cache: Path) -> Path:
    """Where files lie until they are sent."""
    return own_cache / "outputs"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return recipe(tmp_path, write_simple(tmp_path)) | {"shard_size": "2KB"}


def left(stage: Path) -> list[str]:
    """What is on the stage."""
    return sorted(path.name for path in stage.rglob("*")) if stage.exists() else []


CASES = {
    "ram": {"method": "ram"},
    "ram+": {"method": "ram+"},
    "ties": {"method": "ties"},
    "wudi": {"method": "wudi"},
    "one file": {"method": "ram+", "shard_size": "5GB"},
    "float32": {"method": "ram+", "dtype": "float32"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_that_of_a_folder(
    case: str, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    source, name = source | CASES[case], f"out/{case.replace(' ', '-')}"
    here = ramerge.merge(source, tmp_path / "here", cache=False)
    seen: list[Progress] = []
    there = ramerge.merge(source, f"s3://{BUCKET}/{name}", cache=False, on_progress=seen.append)
    assert seen[-1].stage == "sending" or case != "one file"
    assert there.statistics == here.statistics
    assert s3.files(name).keys() == {path.name for path in (tmp_path / "here").iterdir()}
    told = ("ramerge.json", "README.md")
    for path in (tmp_path / "here").iterdir():
        assert path.name in told or s3.files(name)[path.name] == path.read_bytes()
    assert len(list((tmp_path / "here").glob("*.safetensors"))) > 2 or case == "one file"
    assert left(stage) == []


def expected(source: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """The files of the merge that depend on its inputs only."""
    kills.merge(source, folder)
    return kills.weights(folder)


def found(s3: Server, name: str) -> dict[str, bytes]:
    """The same of a folder of the bucket."""
    return {key: data for key, data in s3.files(name).items() if key not in ("ramerge.json", "README.md")}


MOMENTS = [
    ("record", 40),
    ("record", 80),
    ("sent", 0),
    ("emptied", 1),
    ("put", 1),  # the marker, after the old model was removed
    ("put", 3),  # the first shard
    ("put", 6),
    ("removed", 0),  # the marker, when all is there
]


@pytest.mark.parametrize(("what", "number"), MOMENTS)
def test_a_killed_merge_goes_on_to_the_same_bytes(
    what: str, number: int, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    wanted, name = expected(source, tmp_path / "here"), f"killed/{what}-{number}"
    out = f"s3://{BUCKET}/{name}"
    assert killed(source, out, what, number)
    there = s3.files(name)
    assert MARKER in there and ("model.safetensors.index.json" not in there or what == "removed")
    assert "a merge is being written there, or was stopped" in ramerge.plan(source | {"base": out}).problems[0]
    again = [name for name in there if name.endswith(".safetensors")]
    assert left(stage)
    sends: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        real = ObjectsOut.send
        patch.setattr(ObjectsOut, "send", lambda *a: (sends.append(a[1]), real(*a))[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutputWarning)
            kills.merge(source, out)
    assert found(s3, name) == wanted
    assert left(stage) == []
    if what not in ("sent", "emptied"):
        assert not set(sends) & set(again), "what was sent is not sent again"
    assert len(sends) >= len([name for name in wanted if name.endswith(".safetensors")]) - len(again)


@pytest.fixture
def large(tmp_path: Path) -> dict[str, Any]:
    """A merge whose weights take several parts of an upload."""
    for seed, name in enumerate(["base", "code"]):
        write_checkpoint(tmp_path / name, simple(seed, moved=0.3 * bool(seed), shape=(1500, 1800)))
    return {"method": "ram", "base": str(tmp_path / "base"), "agents": {"code": str(tmp_path / "code")}}


def test_a_kill_within_a_shard(s3: Server, large: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    """Its parts are not visible, and the next run removes them. Uploads of other programs go on."""
    out = f"s3://{BUCKET}/within"
    leave_upload(BUCKET, "within/others.bin")
    assert killed(large, out, "part", 2, block=1 << 19)
    assert set(s3.files("within")) == {MARKER}
    assert s3.uploads("within") == ["model.safetensors", "others.bin"]
    with pytest.warns(OutputWarning, match="continuing"):
        kills.merge(large, out, block=1 << 19)
    assert s3.uploads("within") == ["others.bin"]
    kills.merge(large, tmp_path / "here", block=1 << 19)
    assert found(s3, "within") == kills.weights(tmp_path / "here")


def test_clean_removes_what_the_run_has_sent(s3: Server, large: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    """On any machine. Files that another program has put there meanwhile stay, and so do its uploads."""
    import obstore

    out = f"s3://{BUCKET}/clean"
    assert killed(large | {"shard_size": "6MB"}, out, "part", 3, block=1 << 19)
    assert len(s3.files("clean")) == 2  # the marker, and the first shard
    assert len(s3.uploads("clean")) == 1
    leave_upload(BUCKET, "clean/others.bin")
    obstore.put(s3.bucket(), "clean/notes", b"mine")
    (said,) = ramerge.clean(out, stage=tmp_path / "other")
    assert said == f"{out}: files of a stopped merge removed: 1, and the parts of an upload that was broken off"
    assert s3.files("clean") == {"notes": b"mine"}
    assert s3.uploads("clean") == ["others.bin"]


def test_parts_that_may_not_be_removed(
    s3: Server, large: dict[str, Any], stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = f"s3://{BUCKET}/parts"
    assert killed(large, out, "part", 2, block=1 << 19)

    def denied(request: Request, place: str) -> bytes:
        raise SendError(f"{place}: the server says 403 AccessDenied")

    monkeypatch.setattr(uploads, "_answer", denied)
    with pytest.warns(OutputWarning) as caught:
        kills.merge(large, out, block=1 << 19)
    said = (
        f"{out}/model.safetensors: the server says 403 AccessDenied; so parts of an upload that was broken off may be"
    )
    assert [str(each.message)[: len(said)] for each in caught if "parts" in str(each.message)[len(out) :]] == [said]
    assert set(s3.files("parts")) >= {"model.safetensors", "config.json"}


@pytest.mark.parametrize("key", ["uploads/model.safetensors", "uploads/a b+c~/ü&x=%41.bin"])
@pytest.mark.parametrize("virtual", [False, True])
def test_uploads_are_aborted(key: str, virtual: bool, s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_upload(BUCKET, key)
    leave_upload(BUCKET, key)
    leave_upload(BUCKET, f"{key}.other")
    if virtual:
        monkeypatch.setenv("AWS_ENDPOINT", f"{s3.environment['AWS_ENDPOINT']}/{BUCKET}")
        monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    open_ones = uploads.Uploads(BUCKET, "")
    folder, _, name = key.partition("/")
    assert open_ones.abort(key) == 2 and s3.uploads(folder) == [f"{name}.other"]
    assert open_ones.abort(f"{key}.other") == 1 and s3.uploads(folder) == []
    assert open_ones.abort(key) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "the server says 403 SignatureDoesNotMatch"),
        ({"AWS_ENDPOINT": "http://127.0.0.1:9"}, "the server cannot be reached, or breaks off its answers"),
        (
            {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"},
            "requests for its uploads cannot be signed with these settings",
        ),
        ({"AWS_ENDPOINT": "not an address"}, "the server cannot do what is asked"),
    ],
)
def test_uploads_that_cannot_be_listed(
    settings: dict[str, str], said: str, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_PAUSES", (0.01, None))
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SendError, match=f"^s3://{BUCKET}/x/y: {said}") as caught:
        uploads.Uploads(BUCKET, "check").abort("x/y")
    text = f"{caught.value} {caught.value.__cause__}"
    assert not any(secret in text for secret in ("wrong", "a-secret-of-tests", "AKIATESTS", "Signature="))


def test_another_recipe_begins_anew(s3: Server, source: dict[str, Any], tmp_path: Path) -> None:
    assert killed(source, f"s3://{BUCKET}/anew", "sent", 2)
    source |= {"method": "ram", "shard_size": "5GB"}
    with pytest.warns(OutputWarning, match="anew: begins anew: .* has changed"):
        kills.merge(source, f"s3://{BUCKET}/anew")
    assert found(s3, "anew") == expected(source, tmp_path / "here")


def test_what_was_sent_is_gone(s3: Server, source: dict[str, Any], tmp_path: Path) -> None:
    import obstore

    assert killed(source, f"s3://{BUCKET}/gone", "sent", 2)
    obstore.delete(s3.bucket(), [f"gone/{name}" for name in s3.files("gone") if name != MARKER])
    with pytest.warns(OutputWarning, match="begins anew: what an earlier run had sent has changed there"):
        kills.merge(source, f"s3://{BUCKET}/gone")
    assert found(s3, "gone") == expected(source, tmp_path / "here")


def test_clean_that_is_denied_leaves_nothing_of_its_own(
    s3: Server, large: dict[str, Any], stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, other = f"s3://{BUCKET}/denied", stage.parent / "other"
    assert killed(large | {"shard_size": "6MB"}, out, "part", 3, block=1 << 19)
    kept = left(stage)
    with monkeypatch.context() as wrong:
        wrong.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        for folder in (other, stage):
            with pytest.raises(SendError, match="AWS_SECRET_ACCESS_KEY"):
                ramerge.clean(out, stage=folder)
    assert not other.exists()
    assert left(stage) == [name for name in kept if name != "lock"] != []
    assert ramerge.clean(out, stage=stage)
    assert left(stage) == []


def test_other_machines_and_clean(s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    out = f"s3://{BUCKET}/others"
    assert killed(source, out, "sent", 2)
    (problem,) = ramerge.plan(source, out, stage=tmp_path / "other").problems
    assert re.search(
        r"others: a merge on \S+ has written there since .*--stage.*`ramerge clean s3://models/others`", problem
    )
    said = command("clean", out)
    assert "files of a stopped merge removed: 3" in said.stdout and "ramerge-partial: removed" in said.stdout
    assert s3.files("others") == {} and left(stage) == []
    assert "nothing is left" in command("clean", out).stdout


@pytest.mark.parametrize("marker", [b"", b"{", b"[]", b'{"run": 1}'])
def test_a_damaged_marker_is_named(marker: bytes, s3: Server, source: dict[str, Any]) -> None:
    import obstore

    out = f"s3://{BUCKET}/damaged"
    obstore.put(s3.bucket(), f"damaged/{MARKER}", marker)
    (problem,) = ramerge.plan(source, out).problems
    assert f"its file {MARKER} is damaged" in problem and f"`ramerge clean {out}`" in problem and "None" not in problem
    assert ramerge.clean(out) == [f"{out}: released"] and ramerge.plan(source, out).problems == ()


def test_a_model_is_replaced_when_its_weights_are_sent(s3: Server, source: dict[str, Any], tmp_path: Path) -> None:
    out = f"s3://{BUCKET}/replaced"
    ramerge.merge(source, out)
    (problem,) = ramerge.plan(source, out).problems
    assert problem == f"{out}: holds files; choose another folder, or pass --overwrite (in Python overwrite=True)"
    before = s3.files("replaced")
    other = source | {"method": "ram", "shard_size": "4KB"}
    assert killed(other, out, "record", 10, overwrite=True)
    assert {key: data for key, data in s3.files("replaced").items() if key != MARKER} == before
    assert ramerge.plan(other, out).problems == (problem,)
    assert ramerge.clean(out) and s3.files("replaced") == before
    assert killed(other, out, "sent", 0, overwrite=True)
    assert len(s3.files("replaced")) == 2  # the marker, and the first new shard
    with pytest.warns(OutputWarning, match="continuing"):
        kills.merge(other, out, overwrite=True)
    assert found(s3, "replaced") == expected(other, tmp_path / "here")


def test_what_is_no_model_is_not_replaced(s3: Server, source: dict[str, Any]) -> None:
    import obstore

    obstore.put(s3.bucket(), "home/deep/file", b"mine")
    (problem,) = ramerge.plan(source, f"s3://{BUCKET}/home", overwrite=True).problems
    assert "has subfolders and was not made by a merge" in problem
    s3.put(Path(source["base"]), "home/model")
    obstore.put(s3.bucket(), "home/ramerge.json", b"{}")
    (problem,) = ramerge.plan(source, f"s3://{BUCKET}/home", overwrite=True).problems
    assert f"holds another model, in s3://{BUCKET}/home/model" in problem
    out = s3.put(Path(source["base"]), "home-base")
    (problem,) = ramerge.plan(source | {"base": out}, out, overwrite=True).problems
    assert "is, holds or is inside the input" in problem


def test_weights_that_cannot_be_merged_leave_nothing(s3: Server, source: dict[str, Any], stage: Path) -> None:
    folder = Path(source["agents"]["code"])
    tensors = simple(1, moved=0.3)
    last = sorted(tensors)[-1]
    tensors[last] = floats(np.full((40, 16), np.nan), "BF16")
    write_checkpoint(folder, tensors)
    with pytest.raises(ramerge.WeightsError):
        ramerge.merge(source | {"method": "ties"}, f"s3://{BUCKET}/wrong", cache=False)
    assert s3.files("wrong") == {} and left(stage) == []


def test_a_refused_merge_leaves_the_old_model(s3: Server, large: dict[str, Any], stage: Path) -> None:
    """Although much of the new one's only file had been sent."""
    out = f"s3://{BUCKET}/refused-late"
    kills.merge(large, out, block=1 << 19)
    before = s3.files("refused-late")
    tensors = simple(1, moved=0.3, shape=(1500, 1800))
    values = np.zeros((1500, 1800))
    values[-1, -1] = np.nan
    write_checkpoint(Path(large["agents"]["code"]), tensors | {sorted(tensors)[-1]: floats(values, "BF16")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects_out, "_PART", 5 << 20)
        waits_for_parts(patch, 2)
        with pytest.raises(ramerge.WeightsError):
            kills.merge(large, out, block=1 << 19, overwrite=True)
    assert s3.files("refused-late") == before and s3.uploads("refused-late") == [] and left(stage) == []


def waits_for_parts(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The last blocks are merged when so many parts have been given to the library that sends them."""
    pieces, merge, sent = objects_out._pieces, Worker.merge, threading.Semaphore(0)

    def told(*arguments: Any) -> Iterator[bytes]:
        for piece in pieces(*arguments):
            yield piece
            sent.release()

    def late(worker: Worker, block: Block, *arguments: Any) -> Any:
        if block.tensor == 2 and block.stop == 1500 * 1800:
            assert all(sent.acquire(timeout=60) for _ in range(number)), "nothing is sent before all is merged"
        return merge(worker, block, *arguments)

    monkeypatch.setattr(objects_out, "_pieces", told)
    monkeypatch.setattr(Worker, "merge", late)


@pytest.mark.parametrize("ends", ["continues", "clean"])
def test_a_kill_while_a_shard_is_sent_and_merged(
    ends: str, s3: Server, large: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    """The old model is there until the new one's file is ready, although an upload of the same name is open."""
    name = f"both-{ends}"
    out = s3.put(Path(large["base"]), name)
    before = s3.files(name)
    assert killed(large, out, "part", 0, block=1 << 17, overwrite=True)
    assert {key: data for key, data in s3.files(name).items() if key != MARKER} == before
    assert s3.uploads(name) == ["model.safetensors"]
    if ends == "clean":
        (said,) = ramerge.clean(out, stage=tmp_path / "other")
        assert said.endswith("removed: 0, and the parts of an upload that was broken off")
        assert s3.files(name) == before
    else:
        with pytest.warns(OutputWarning, match="continuing"):
            kills.merge(large, out, block=1 << 17, overwrite=True)
        kills.merge(large, tmp_path / "here", block=1 << 17)
        assert found(s3, name) == kills.weights(tmp_path / "here")
    assert s3.uploads(name) == []


def failing(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """From the second file on, files are sent with other settings."""
    real, calls = ObjectsOut.send, []

    def send(out: ObjectsOut, *arguments: Any) -> str:
        calls.append(arguments)
        if len(calls) == 2:
            with monkeypatch.context() as patch:
                for name, value in settings.items():
                    patch.setenv(name, value)
                out._bucket = Bucket("s3", out.address.removeprefix("s3://"), "", SendError)
        return real(out, *arguments)

    monkeypatch.setattr(ObjectsOut, "send", send)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"AWS_SECRET_ACCESS_KEY": "expired"},
            r"access is denied .*403 SignatureDoesNotMatch.*check AWS_ACCESS_KEY_ID",
        ),
        ({"AWS_ENDPOINT": "http://127.0.0.1:9"}, "the server cannot be reached.*repeated for 1 s"),
    ],
)
def test_a_server_that_fails_in_the_middle(
    settings: dict[str, str], said: str, s3: Server, source: dict[str, Any], tmp_path: Path
) -> None:
    out = (
        f"s3://{BUCKET}/middle-{len(settings['AWS_ENDPOINT' if 'AWS_ENDPOINT' in settings else next(iter(settings))])}"
    )
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, **settings)
        with pytest.raises(ramerge.OutputError, match=rf"{out}/\S+: {said}.* of the work is kept") as caught:
            kills.merge(source, out)
    assert not any(secret in str(caught.value) for secret in ("expired:", "a-secret-of-tests", "AKIATESTS"))
    name = out.rpartition("/")[2]
    assert "model.safetensors.index.json" not in s3.files(name)
    with pytest.warns(OutputWarning, match="continuing"):
        kills.merge(source, out)
    assert found(s3, name) == expected(source, tmp_path / "here")


@pytest.mark.parametrize(("environment", "out", "said"), REFUSED)
def test_a_plan_says_what_is_wrong(
    environment: dict[str, str],
    out: str,
    said: str,
    s3: Server,
    source: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (problem,) = ramerge.plan(source, out).problems
    assert re.search(f"{out}: {said}", problem)
    assert "wrong" not in problem and "a-secret-of-tests" not in problem


@pytest.mark.parametrize(
    ("out", "options", "said"),
    [
        ("s3://bucket", {}, "name a bucket and a folder"),
        ("s3://", {}, "s3://: name a bucket and a folder"),
        ("az://bucket/x", {}, "no credentials were found; check AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://me:hush@bucket/x", {}, "must not hold user and password"),
        ("s3://bucket/x//y", {}, "no part that is empty"),
        ("s3://bucket/x?sig=hush", {}, "a query has no meaning here"),
        ("https://host/x?sig=hush", {}, "is not a place that is known .s3://, gs://, az://"),
        ("ftp://host/x", {}, "is not a place that is known"),
        ("s3://bucket/x", {"public": True}, "--public is of use for the hub only"),
        ("out", {"public": True}, "--public: is of use for outputs elsewhere only"),
        ("out", {"stage": "here"}, "--stage: is of use for outputs elsewhere only"),
        ("s3:/bucket/x?hush", {}, "s3:/bucket/x.* has one slash after s3: and needs two: s3://bucket/x"),
        (Path("s3://bucket/x"), {}, "needs two: s3://bucket/x .in Python as a string"),
        ("s3://bucket/x", {"stage": ""}, "--stage: is empty; name a folder"),
        ("s3://bucket/x", {"stage": "/dev/null"}, "--stage /dev/null: /dev/null is no folder"),
        ("s3://bucket/x", {"stage": "/dev/null/here"}, "--stage /dev/null/here: /dev/null is no folder"),
    ],
)
def test_outputs_that_cannot_be(
    out: str | Path, options: dict[str, Any], said: str, s3: Server, source: dict[str, Any]
) -> None:
    with pytest.raises(ramerge.InputError, match=said) as caught:
        ramerge.plan(source, out, **options)
    assert "hush" not in str(caught.value)


VARY = {"vary": {"parameters.r": [0, 0.1]}}


def test_a_sweep_is_that_of_a_folder(s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    out = f"s3://{BUCKET}/sweep"
    kills.merge(source, tmp_path / "here", **VARY)
    kills.merge(source, out, **VARY)
    assert kills.weights_of(s3.files("sweep")) == kills.weights(tmp_path / "here")
    assert {"sweep.json", "r=0.1/README.md"} <= s3.files("sweep").keys()
    assert ramerge.plan(source | {"base": f"{out}/r=0.1"}).problems == ()
    assert "holds files" in ramerge.plan(source, out, **VARY).problems[0]
    other = {"vary": {"parameters.r": [0.1, 0.3]}}
    kills.merge(source, tmp_path / "other", **other)
    kills.merge(source, out, overwrite=True, **other)
    assert kills.weights_of(s3.files("sweep")) == kills.weights(tmp_path / "other")
    assert left(stage) == []
    s3.put(Path(source["base"]), "sweep/mine")
    (problem,) = ramerge.plan(source, out, overwrite=True, **other).problems
    assert "holds another model, in s3://models/sweep/mine, which --overwrite would remove" in problem


DOINGS = {"sweep": VARY, "delta": {"as_delta": True}}


@pytest.mark.parametrize("doing", DOINGS)
@pytest.mark.parametrize(("what", "number"), [("record", 40), ("sent", 0), ("put", 2), ("put", 5), ("removed", 0)])
def test_killed_sweeps_and_deltas_go_on(
    doing: str, what: str, number: int, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    name, options = f"killed-{doing}/{what}-{number}", DOINGS[doing]
    out = f"s3://{BUCKET}/{name}"
    kills.merge(source, tmp_path / "here", **options)
    was = killed(source, out, what, number, **options)
    assert was or (doing, what) == ("delta", "sent"), "a delta is sent as a whole"
    if was:
        there = s3.files(name)
        complete = [key for key in there if key.endswith(".index.json")]
        assert MARKER in there and (not complete or what == "removed")
        for point in {key.partition("/")[0] for key in there if "/" in key}:
            found = ramerge.plan(source | {"base": f"{out}/{point}"}).problems
            assert found or what == "removed", "a point is no model before it is complete"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutputWarning)
            kills.merge(source, out, **options)
    assert kills.weights_of(s3.files(name)) == kills.weights(tmp_path / "here")
    assert left(stage) == [] and s3.uploads(name) == []


def test_deltas_are_those_of_a_folder(s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    """A merge's, and an agent's. Both give the models back from there."""
    out, agent = f"s3://{BUCKET}/as-delta", next(iter(source["agents"].values()))
    kills.merge(source, tmp_path / "merged")
    ramerge.merge(source, out, as_delta=True, cache=False)
    ramerge.apply(source["base"], out, tmp_path / "from-merge")
    assert kills.weights(tmp_path / "from-merge") == kills.weights(tmp_path / "merged")
    ran = command("delta", source["base"], agent, f"s3://{BUCKET}/of-agent", "--stage", tmp_path / "own")
    assert ran.returncode == 0 and f"s3://{BUCKET}/of-agent: a delta of" in ran.stdout, ran.stderr
    ramerge.delta(source["base"], agent, tmp_path / "delta")
    assert kills.weights_of(s3.files("of-agent")) == kills.weights(tmp_path / "delta")
    ramerge.apply(source["base"], f"s3://{BUCKET}/of-agent", tmp_path / "agent")
    assert kills.weights(tmp_path / "agent") == kills.weights(Path(agent))
    with pytest.raises(ramerge.PlanError, match="holds files"):
        ramerge.delta(source["base"], agent, f"s3://{BUCKET}/of-agent")
    assert any(name.startswith("companions/") for name in s3.files("as-delta"))
    ramerge.delta(source["base"], agent, out, overwrite=True)
    assert kills.weights_of(s3.files("as-delta")) == kills.weights(tmp_path / "delta")
    assert left(stage) == [] and left(tmp_path / "own") == []


def test_what_is_written_on_this_machine_only(s3: Server, source: dict[str, Any], tmp_path: Path) -> None:
    agent = next(iter(source["agents"].values()))
    ramerge.delta(source["base"], agent, tmp_path / "delta")
    with pytest.raises(ramerge.RecipeError, match="must be on this machine; write to a folder here and upload it"):
        ramerge.apply(source["base"], tmp_path / "delta", f"s3://{BUCKET}/refused")
    assert s3.files("refused") == {}


def test_commands_write_elsewhere(s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    flags = ["--base", source["base"], *(f"--agent={name}={folder}" for name, folder in source["agents"].items())]
    out = f"s3://{BUCKET}/by-command"
    planned = command("plan", *flags, out)
    assert planned.returncode == 0 and out in planned.stdout
    merged = command("merge", *flags, out, "--stage", tmp_path / "elsewhere")
    assert merged.returncode == 0 and f"{out}: ram+" in merged.stdout, merged.stderr
    assert (tmp_path / "elsewhere").is_dir() is False or not any((tmp_path / "elsewhere").iterdir())
    converted = command("convert", out, f"s3://{BUCKET}/converted", "--dtype", "float32")
    assert converted.returncode == 0, converted.stderr
    assert "model.safetensors.index.json" in s3.files("converted") or "model.safetensors" in s3.files("converted")
    swept = command("sweep", *flags, f"s3://{BUCKET}/swept", "--vary", "parameters.r=0,0.1")
    assert swept.returncode == 0 and f"s3://{BUCKET}/swept/r=0.1" in swept.stdout, swept.stderr


def test_few_files_are_on_the_stage(
    s3: Server, source: dict[str, Any], stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, most = ObjectsOut.send, [0]

    def slowly(*arguments: Any) -> str:
        time.sleep(0.1)
        files = [path for path in stage.rglob("*.safetensors") if path.stat().st_blocks > 8]
        most[0] = max(most[0], len(files))
        return real(*arguments)

    monkeypatch.setattr(ObjectsOut, "send", slowly)
    rng = np.random.default_rng(0)
    for name in ("base", "code"):
        tensors = {
            f"model.layers.{layer}.weight": floats(rng.normal(0, 0.02, (100, 60)), "BF16") for layer in range(30)
        }
        write_checkpoint(stage.parent / name, tensors)
    source = {"method": "ram", "base": str(stage.parent / "base"), "agents": {"code": str(stage.parent / "code")}}
    kills.merge(source | {"shard_size": "37KB"}, f"s3://{BUCKET}/few", block=200)
    assert len([name for name in s3.files("few") if name.endswith(".safetensors")]) == 10
    # workers are ahead of what is known of their blocks, which are so many that this is no more than a file
    assert 1 <= most[0] <= 6
