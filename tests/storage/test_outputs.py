"""Models that are uploaded to a bucket of a real S3 server."""

from __future__ import annotations

import os
import re
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.foundation.errors import OutputWarning, SendError
from ramerge.core.foundation.progress import Progress
from ramerge.core.storage.bucket_upload import BucketUpload
from ramerge.core.storage.objects import open_bucket
from ramerge.core.storage.upload import CLAIM
from tests.checkpoints import floats, recipe, write_checkpoint, write_simple
from tests.commands import ramerge as command
from tests.e2e import kills
from tests.engine.test_uploads import as_written_here, without_strays
from tests.messages import Messages
from tests.plans import planned
from tests.storage.killed import killed, started
from tests.storage.seaweed import BUCKET, REFUSED, Server


@pytest.fixture(autouse=True)
def stage(own_cache: Path) -> Path:
    """Where files lie until they are uploaded."""
    return own_cache / "outputs"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    return recipe(tmp_path, write_simple(tmp_path)) | {"shard_size": "2KB"}


def left(stage: Path) -> list[str]:
    """What is in the staging directory."""
    return sorted(path.name for path in stage.rglob("*")) if stage.exists() else []


CASES = {
    "ram": {"method": "ram"},
    "ram+": {"method": "ram+"},
    "ties": {"method": "ties"},
    "wudi": {"method": "wudi"},
    "one file": {"method": "ram+", "shard_size": "5GB"},
    "float32": {"method": "ram+", "dtype": "float32"},
}


def without_places(record: ramerge.Record) -> dict[str, object]:
    """Statistics of the agents: a folder's own record names models relative to it."""
    return {name: replace(agent, model="") for name, agent in record.agents.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_that_of_a_folder(
    case: str, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    source, name = source | CASES[case], f"out/{case.replace(' ', '-')}"
    here = ramerge.merge(source, tmp_path / "here", options=ramerge.Options(cache=False))
    seen: list[Progress] = []
    there = ramerge.merge(
        source, f"s3://{BUCKET}/{name}", on_progress=seen.append, options=ramerge.Options(cache=False)
    )
    assert seen[-1].stage == "uploading" or case != "one file"
    assert without_places(there) == without_places(here)
    assert as_written_here(s3.files(name)) == kills.weights(tmp_path / "here")
    assert {"ramerge.json", "README.md", "model.safetensors.index.json"} <= s3.files(name).keys()
    assert len(list((tmp_path / "here").glob("*.safetensors"))) > 2 or case == "one file"
    assert left(stage) == []


def expected(source: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """The files of the merge that depend on its inputs only."""
    kills.merge(source, folder)
    return kills.weights(folder)


def found(s3: Server, name: str) -> dict[str, bytes]:
    """The same of a folder of the bucket, under the names of a local output."""
    return as_written_here(s3.files(name))


MOMENTS = [
    ("record", 40),
    ("record", 80),
    ("arrived", 0),
    ("removed here", 1),
    ("put", 6),  # the claim, after shards, before which it is tried whether the store takes conditions
    ("put", 9),  # one of the small files
]
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(("what", "number"), MOMENTS)
def test_a_killed_merge_resumes_to_the_same_bytes(
    what: str, number: int, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path, messages: Messages
) -> None:
    wanted, name = expected(source, tmp_path / "here"), f"killed/{what.replace(' ', '-')}-{number}"
    out = f"s3://{BUCKET}/{name}"
    assert killed(source, out, what, number)
    there = s3.files(name)
    assert INDEX not in there and left(stage)
    if any(key.endswith(".safetensors") for key in there):
        messages.check(ramerge.plan(source | {"base": out}).problems[0])
    arrived = [key for key in there if key.endswith(".safetensors")]
    puts: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        real = BucketUpload.put
        patch.setattr(BucketUpload, "put", lambda *a: (puts.append(a[1].remote_name(a[2])), real(*a))[1])
        with pytest.warns(OutputWarning, match="continuing"):
            kills.merge(source, out)
    assert found(s3, name) == wanted
    assert left(stage) == []
    if what != "arrived":
        assert not set(puts) & set(arrived), "what has arrived is not uploaded again"


@pytest.mark.parametrize("number", [2, 3])
def test_a_kill_after_the_commit(number: int, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    """The next run removes what is left of the old model, although it was refused without `overwrite`."""
    out = s3.put(Path(source["base"]), f"after/{number}")
    for name in ("one.txt", "two.txt"):
        (tmp_path / "more").mkdir(exist_ok=True)
        (tmp_path / "more" / name).write_text(name)
    s3.put(tmp_path / "more", f"after/{number}")
    assert killed(source, out, "removed", number, overwrite=True)  # after the probe and the old weights
    assert INDEX in s3.files(f"after/{number}")
    with pytest.warns(OutputWarning, match="continuing: 100 %"):
        kills.merge(source, out, overwrite=True)
    assert found(s3, f"after/{number}") == expected(source, tmp_path / "here")


@pytest.mark.parametrize("executor", ["threads", "ray"])
@pytest.mark.parametrize("trial", range(int(os.environ.get("RAMERGE_STOPS", "2"))))
def test_stopped_process_resumes_after_defeat(
    trial: int,
    executor: str,
    s3: Server,
    source: dict[str, Any],
    stage: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """It was stopped (SIGSTOP) at some request, and another job completed the same output meanwhile."""
    name, old = f"stopped/{executor}-{trial}", trial % 2 == 1
    cluster = request.getfixturevalue("cluster").address if executor == "ray" else ""
    out = f"s3://{BUCKET}/{name}"
    if old:
        kills.merge(source | {"method": "ram"}, out, staging_dir=tmp_path / "old")
    what, number = [("put", 6), ("put", 5), ("put", 3), ("arrived", 1), ("put", 4), ("removed here", 0)][trial % 6]
    process = started(source, out, what, number, signal="SIGSTOP", overwrite=old, cluster=cluster)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    other = source | {"parameters": {"r": 0.3}}
    kills.merge(other, out, staging_dir=tmp_path / "other", overwrite=old)
    there = without_strays(s3.files(name))
    os.kill(process.pid, signal.SIGCONT)
    _, said = process.communicate()
    assert process.returncode == 1 and "another job has written to the same place since this one began" in said
    assert s3.files(name) == there
    assert found(s3, name) == expected(other, tmp_path / "here")
    assert ramerge.plan(source | {"base": out}).problems == ()
    assert left(stage) == []


@pytest.mark.parametrize("number", [7, 11])
def test_a_process_that_is_stopped_while_it_commits(
    number: int, s3: Server, source: dict[str, Any], tmp_path: Path, messages: Messages
) -> None:
    """Any other job is refused meanwhile, and it completes its output when it continues."""
    name, base, agent = f"committing/{number}", source["base"], source["agents"]["code"]
    out, options = f"s3://{BUCKET}/{name}", ramerge.Options(overwrite=True)
    process = started(source, out, "put", number, signal="SIGSTOP")
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    there = s3.files(name)
    with messages.raises(ramerge.PlanError):
        ramerge.delta(base, agent, out, options=replace(options, upload=ramerge.Upload(staging_dir=tmp_path / "b")))
    assert s3.files(name) == there
    os.kill(process.pid, signal.SIGCONT)
    assert not process.communicate()[1] and process.returncode == 0
    assert found(s3, name) == expected(source, tmp_path / "here")


@pytest.mark.parametrize(("what", "number"), [("arrived", 2), ("put", 9)])
def test_another_recipe_restarts(
    what: str, number: int, s3: Server, source: dict[str, Any], tmp_path: Path, messages: Messages
) -> None:
    """Also where the first one was killed in the middle of its commit: its small files are gone."""
    name = f"other-{what}"
    assert killed(source, f"s3://{BUCKET}/{name}", what, number)
    assert (CLAIM in s3.files(name)) == (what == "put")
    source |= {"method": "ram", "shard_size": "5GB"}
    with messages.warns(OutputWarning):
        kills.merge(source, f"s3://{BUCKET}/{name}")
    assert found(s3, name) == expected(source, tmp_path / "here")


def test_what_was_uploaded_is_gone(s3: Server, source: dict[str, Any], tmp_path: Path, messages: Messages) -> None:
    import obstore

    assert killed(source, f"s3://{BUCKET}/gone", "arrived", 2)
    obstore.delete(s3.bucket(), [f"gone/{name}" for name in s3.files("gone")])
    with messages.warns(OutputWarning):
        kills.merge(source, f"s3://{BUCKET}/gone")
    assert found(s3, "gone") == expected(source, tmp_path / "here")


def test_denied_clean_leaves_nothing(
    s3: Server, source: dict[str, Any], stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, other = f"s3://{BUCKET}/denied", stage.parent / "other"
    assert killed(source, out, "arrived", 2)
    kept = left(stage)
    with monkeypatch.context() as wrong:
        wrong.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        for folder in (other, stage):
            with pytest.raises(SendError, match="AWS_SECRET_ACCESS_KEY"):
                ramerge.clean(out, staging_dir=folder)
    assert not other.exists()
    assert left(stage) == [name for name in kept if name != "lock"] != []
    assert ramerge.clean(out, staging_dir=stage)
    assert left(stage) == [] and s3.files("denied") == {}


def test_other_machines_and_clean(s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    """Files of others stay, and so does a complete model."""
    import obstore

    out = f"s3://{BUCKET}/others"
    assert killed(source, out, "arrived", 2)
    obstore.put(s3.bucket(), "others/notes", b"mine")
    (said,) = ramerge.clean(out, staging_dir=tmp_path / "other")
    assert said == f"{out}: files of interrupted merges removed: 3"
    assert s3.files("others") == {"notes": b"mine"}
    said = command("clean", out)
    assert "ramerge-partial: removed" in said.stdout and left(stage) == []
    assert "no leftovers" in command("clean", out).stdout
    kills.merge(source, out, overwrite=True)
    before = s3.files("others")
    assert ramerge.clean(out) == [] and s3.files("others") == before


def test_a_model_is_replaced_by_the_commit(
    s3: Server, source: dict[str, Any], tmp_path: Path, messages: Messages
) -> None:
    out = f"s3://{BUCKET}/replaced"
    ramerge.merge(source, out)
    (problem,) = ramerge.plan(source, out).problems
    messages.check(problem)
    before = s3.files("replaced")
    other = source | {"method": "ram", "shard_size": "4KB"}
    assert killed(other, out, "removed here", 0, overwrite=True)
    assert before.items() < s3.files("replaced").items()
    assert ramerge.clean(out) and s3.files("replaced") == before
    assert killed(other, out, "arrived", 0, overwrite=True)
    with pytest.warns(OutputWarning, match="continuing"):
        kills.merge(other, out, overwrite=True)
    assert found(s3, "replaced") == expected(other, tmp_path / "here")


def test_what_is_no_model_is_not_replaced(s3: Server, source: dict[str, Any], messages: Messages) -> None:
    import obstore

    obstore.put(s3.bucket(), "home/deep/file", b"mine")
    (problem,) = ramerge.plan(source, f"s3://{BUCKET}/home", options=ramerge.Options(overwrite=True)).problems
    messages.check(problem)
    s3.put(Path(source["base"]), "home/model")
    obstore.put(s3.bucket(), "home/ramerge.json", b"{}")
    (problem,) = ramerge.plan(source, f"s3://{BUCKET}/home", options=ramerge.Options(overwrite=True)).problems
    messages.check(problem)
    out = s3.put(Path(source["base"]), "home-base")
    (problem,) = ramerge.plan(source | {"base": out}, out, options=ramerge.Options(overwrite=True)).problems
    messages.check(problem)


def failing(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """From the second shard on, shards are uploaded with other settings."""
    real, calls = BucketUpload.put, []

    def put(out: BucketUpload, *arguments: Any) -> str:
        calls.append(arguments)
        if len(calls) == 2:
            with monkeypatch.context() as patch:
                for name, value in settings.items():
                    patch.setenv(name, value)
                out._bucket = open_bucket(out.address, SendError)
        return real(out, *arguments)

    monkeypatch.setattr(BucketUpload, "put", put)


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
        ("https://host/x?sig=hush", {}, "has no supported scheme .s3://, gs://, az://"),
        ("ftp://host/x", {}, "has no supported scheme"),
        ("s3://bucket/x", {"public": True}, r"upload=Upload\(public=True\)\) applies to the hub only"),
        ("out", {"public": True}, r"upload=Upload\(public=True\)\): applies to remote outputs only"),
        ("out", {"staging_dir": "here"}, "options.upload.staging_dir: applies to remote outputs only"),
        ("s3:bucket/x", {}, "did you mean s3://bucket/x"),
        ("s3:/bucket/x?hush", {}, "s3:/bucket/x.* has one slash after s3: and needs two: s3://bucket/x"),
        (Path("s3://bucket/x"), {}, "needs two: s3://bucket/x .in Python as a string"),
        ("s3://bucket/x", {"staging_dir": ""}, "options.upload.staging_dir: is empty; name a folder"),
        ("s3://bucket/x", {"staging_dir": "/dev/null"}, "options.upload.staging_dir /dev/null: /dev/null is no folder"),
        (
            "s3://bucket/x",
            {"staging_dir": "/dev/null/here"},
            "options.upload.staging_dir /dev/null/here: /dev/null is no folder",
        ),
    ],
)
def test_outputs_that_cannot_be(
    out: str | Path, options: dict[str, Any], said: str, s3: Server, source: dict[str, Any]
) -> None:
    with pytest.raises(ramerge.InputError, match=said) as caught:
        planned(source, out, **options)
    assert "hush" not in str(caught.value)


VARY = {"vary": {"parameters.r": [0, 0.1]}}


def test_a_sweep_is_that_of_a_folder(
    s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path, messages: Messages
) -> None:
    out = f"s3://{BUCKET}/sweep"
    kills.merge(source, tmp_path / "here", **VARY)
    kills.merge(source, out, **VARY)
    assert found(s3, "sweep") == kills.weights(tmp_path / "here")
    assert {"sweep.json", "r=0.1/README.md"} <= s3.files("sweep").keys()
    assert ramerge.plan(source | {"base": f"{out}/r=0.1"}).problems == ()
    messages.check(ramerge.plan(source, out, **VARY).problems[0])
    other = {"vary": {"parameters.r": [0.1, 0.3]}}
    kills.merge(source, tmp_path / "other", **other)
    kills.merge(source, out, overwrite=True, **other)
    assert found(s3, "sweep") == kills.weights(tmp_path / "other")
    assert left(stage) == []
    s3.put(Path(source["base"]), "sweep/mine")
    (problem,) = planned(source, out, overwrite=True, **other).findings.problems
    messages.check(problem)


DOINGS = {"sweep": VARY, "delta": {"kind": "delta"}}


@pytest.mark.parametrize(
    ("doing", "what", "number"),
    [("sweep", "record", 40), ("sweep", "put", 4), ("sweep", "put", 9), ("delta", "put", 6), ("delta", "put", 9)],
)
def test_killed_sweeps_and_deltas_resume(
    doing: str, what: str, number: int, s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path
) -> None:
    name, options = f"killed-{doing}/{what}-{number}", DOINGS[doing]
    out = f"s3://{BUCKET}/{name}"
    kills.merge(source, tmp_path / "here", **options)
    assert killed(source, out, what, number, **options)
    there = s3.files(name)
    assert not [key for key in there if key.endswith(".index.json") and not key.startswith("companions/")]
    for point in {key.partition("/")[0] for key in there if "/" in key}:
        assert ramerge.plan(source | {"base": f"{out}/{point}"}).problems, "no model before it is complete"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutputWarning)
        kills.merge(source, out, **options)
    assert matches(s3.files(name), tmp_path / "here")
    assert left(stage) == []


def matches(there: dict[str, bytes], here: Path) -> bool:
    """Whether a place holds what a local output holds; but for a delta's index, which names files of the run."""
    drop = "delta.safetensors.index.json"
    one, other = as_written_here(there), kills.weights(here)
    return {name: one[name] for name in one if name != drop} == {name: other[name] for name in other if name != drop}


def test_deltas_are_those_of_a_folder(
    s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path, messages: Messages
) -> None:
    """A merge's, and an agent's. Both give the models back from there."""
    out, agent = f"s3://{BUCKET}/as-delta", next(iter(source["agents"].values()))
    kills.merge(source, tmp_path / "merged")
    ramerge.merge(source, out, kind="delta", options=ramerge.Options(cache=False))
    ramerge.apply(source["base"], out, tmp_path / "from-merge")
    assert kills.weights(tmp_path / "from-merge") == kills.weights(tmp_path / "merged")
    ran = command(
        "delta",
        "--base",
        source["base"],
        "--agent",
        f"a={agent}",
        f"s3://{BUCKET}/of-agent",
        "--staging-dir",
        tmp_path / "own",
    )
    assert ran.returncode == 0 and f"s3://{BUCKET}/of-agent: a delta of" in ran.stdout, ran.stderr
    ramerge.delta(source["base"], agent, tmp_path / "delta")
    assert matches(s3.files("of-agent"), tmp_path / "delta")
    ramerge.apply(source["base"], f"s3://{BUCKET}/of-agent", tmp_path / "agent")
    assert kills.weights(tmp_path / "agent") == kills.weights(Path(agent))
    with messages.raises(ramerge.PlanError):
        ramerge.delta(source["base"], agent, f"s3://{BUCKET}/of-agent")
    assert any(name.startswith("companions/") for name in s3.files("as-delta"))
    ramerge.delta(source["base"], agent, out, options=ramerge.Options(overwrite=True))
    assert matches(s3.files("as-delta"), tmp_path / "delta")
    assert left(stage) == [] and left(tmp_path / "own") == []


def test_apply_writes_there(
    s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path, messages: Messages
) -> None:
    """With an index, also of one file; the weights are the agent's."""
    agent = next(iter(source["agents"].values()))
    ramerge.delta(source["base"], agent, tmp_path / "delta")
    out = f"s3://{BUCKET}/applied"
    ran = command("apply", "--base", source["base"], tmp_path / "delta", out, "--staging-dir", tmp_path / "own")
    assert ran.returncode == 0, ran.stderr
    assert found(s3, "applied") == kills.weights(Path(agent))
    assert INDEX in s3.files("applied") and left(tmp_path / "own") == []
    with messages.raises(ramerge.PlanError):
        ramerge.apply(source["base"], tmp_path / "delta", out)


def test_commands_write_elsewhere(s3: Server, source: dict[str, Any], stage: Path, tmp_path: Path) -> None:
    flags = ["--base", source["base"], *(f"--agent={name}={folder}" for name, folder in source["agents"].items())]
    out = f"s3://{BUCKET}/by-command"
    planned = command("plan", *flags, out)
    assert planned.returncode == 0 and out in planned.stdout
    merged = command("merge", *flags, out, "--staging-dir", tmp_path / "elsewhere")
    assert merged.returncode == 0 and f"{out}: ram+" in merged.stdout, merged.stderr
    assert (tmp_path / "elsewhere").is_dir() is False or not any((tmp_path / "elsewhere").iterdir())
    converted = command("convert", out, f"s3://{BUCKET}/converted", "--dtype", "float32")
    assert converted.returncode == 0, converted.stderr
    assert INDEX in s3.files("converted")
    swept = command("sweep", *flags, f"s3://{BUCKET}/swept", "--vary", "parameters.r=0,0.1")
    assert swept.returncode == 0, swept.stderr
    assert f"2 checkpoints, the first in s3://{BUCKET}/swept/r=0, in " in swept.stdout


def test_few_files_are_on_the_stage(
    s3: Server, source: dict[str, Any], stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, most = BucketUpload.put, [0]

    def slowly(*arguments: Any) -> str:
        time.sleep(0.1)
        files = [path for path in stage.rglob("*.safetensors") if path.stat().st_blocks > 8]
        most[0] = max(most[0], len(files))
        return real(*arguments)

    monkeypatch.setattr(BucketUpload, "put", slowly)
    rng = np.random.default_rng(0)
    base = rng.normal(0, 0.02, (30, 100, 60))
    for name in ("base", "code"):
        moved = 0.0 if name == "base" else rng.normal(0, 0.01, base.shape)
        tensors = {f"model.layers.{layer}.weight": floats(one, "BF16") for layer, one in enumerate(base + moved)}
        write_checkpoint(stage.parent / name, tensors)
    source = {"method": "ram", "base": str(stage.parent / "base"), "agents": {"code": str(stage.parent / "code")}}
    kills.merge(source | {"shard_size": "37KB"}, f"s3://{BUCKET}/few", block=200)
    assert len([name for name in s3.files("few") if name.endswith(".safetensors")]) == 10
    # workers are ahead of what is known of their blocks, which are so many that this is no more than a file
    assert 1 <= most[0] <= 6
