"""Models in a bucket of a real S3 server."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramerge
from ramerge.core.engine import execute
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage import client
from ramerge.core.storage.schemes import open_remote
from ramerge.core.tensors.reader import Files
from tests.checkpoints import floats, simple, write_checkpoint, write_safetensors, write_simple
from tests.commands import ramerge as command
from tests.deltas.writing import write_delta
from tests.e2e import kills
from tests.messages import Messages
from tests.storage.seaweed import BUCKET, REFUSED, Server


def names(agents: list[str], place: Any) -> dict[str, Any]:
    """Base and agents of a recipe, each named by `place`."""
    return {"base": place("base"), "agents": {name: place(name) for name in agents}}


def weights(folder: Path) -> dict[str, bytes]:
    """The files of an output that depend on its inputs' bytes only."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in ("README.md", "ramerge.json", "ramerge.yaml")
    }


def write_adapter(folder: Path) -> None:
    """A LoRA adapter for the base of `write_simple`."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 2, "r": 2}')
    module = "base_model.model.model.layers.0.lora_"
    rng = np.random.default_rng(5)
    factors = {
        f"{module}A.weight": floats(rng.standard_normal((2, 16)), "F32"),
        f"{module}B.weight": floats(rng.standard_normal((40, 2)), "F32"),
    }
    write_safetensors(folder / "adapter_model.safetensors", factors)


@pytest.mark.parametrize(("method", "shards"), [("ram+", 1), ("ties", 3), ("tsvm", 1)])
def test_merge_from_a_bucket_equals_folders(method: str, shards: int, s3: Server, tmp_path: Path) -> None:
    for seed, name in enumerate(["base", "code", "tool"]):
        made = write_checkpoint(tmp_path / name, simple(seed, moved=0.3 * bool(seed)), shards=shards)
        (made / "tokenizer.json").write_text('{"model": {}}')
        s3.put(made, f"{method}-{shards}/{name}")
    local = names(["code", "tool"], lambda name: str(tmp_path / name))
    remote = names(["code", "tool"], lambda name: f"s3://{BUCKET}/{method}-{shards}/{name}")
    ramerge.merge({"method": method, **local}, tmp_path / "here")
    record = ramerge.merge({"method": method, **remote}, tmp_path / "there")
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    assert record.base == f"s3://{BUCKET}/{method}-{shards}/base"
    assert f"code: s3://{BUCKET}/{method}-{shards}/code" in (tmp_path / "there/ramerge.yaml").read_text()


def test_commands_take_places(s3: Server, tmp_path: Path) -> None:
    write_simple(tmp_path)
    places = [s3.put(tmp_path / name, f"commands/{name}") for name in ("base", "code", "tool")]
    flags = ["--base", places[0], "--agent", f"code={places[1]}", "--agent", f"tool={places[2]}"]
    planned = command("plan", "--method", "ram+", *flags)
    assert planned.returncode == 0 and places[1] in planned.stdout
    merged = command("merge", "--method", "ram+", *flags, "out", cwd=tmp_path)
    assert merged.returncode == 0, merged.stderr
    analyzed = command("analyze", *flags, "--json-file", tmp_path / "analysis.json")
    assert analyzed.returncode == 0 and places[0] in (tmp_path / "analysis.json").read_text()
    again = command("merge", tmp_path / "out/ramerge.yaml", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert weights(tmp_path / "again") == weights(tmp_path / "out")


def test_deltas_and_adapters_from_a_bucket(s3: Server, tmp_path: Path) -> None:
    write_simple(tmp_path)
    write_delta(tmp_path / "delta", tmp_path / "base", tmp_path / "code")
    write_adapter(tmp_path / "lora")
    local = names(["delta", "lora"], lambda name: str(tmp_path / name))
    remote = names(["delta", "lora"], lambda name: s3.put(tmp_path / name, f"changes/{name}"))
    ramerge.merge({"method": "ram+", **local}, tmp_path / "here")
    ramerge.merge({"method": "ram+", **remote}, tmp_path / "there")
    assert weights(tmp_path / "there") == weights(tmp_path / "here")


def test_pieces_of_a_delta_are_asked_for_together(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many tensors, of tensors with several blocks, and of a chain; wrongly predicted bytes are requested again."""
    rng = np.random.default_rng(0)
    shapes = {f"model.layers.{i}.weight": (200, 200) for i in range(60)} | {"large": (700, 1000)}
    values = {name: rng.normal(0, 0.02, shape) for name, shape in shapes.items()}
    for place, name in enumerate(("base", "one", "two")):
        moved = {key: each + 0.01 * place * (rng.random(each.shape) < 0.2) for key, each in values.items()}
        # what moves in the large tensor lies in its first rows, so its blocks take very different sizes
        moved["large"][100:] = values["large"][100:]
        write_checkpoint(tmp_path / name, {key: floats(each) for key, each in moved.items()}, shards=2)
    write_delta(tmp_path / "d1", tmp_path / "base", tmp_path / "one")
    write_delta(tmp_path / "d2", tmp_path / "one", tmp_path / "two")
    places = [s3.put(tmp_path / name, f"pieces/{name}") for name in ("d1", "d2")]
    asked: list[int] = []
    real = client.chunks
    monkeypatch.setattr(client, "chunks", lambda *a, **more: (asked.append(a[4] - a[3]), real(*a, **more))[1])
    ramerge.apply(tmp_path / "base", places, tmp_path / "applied")
    assert kills.weights(tmp_path / "applied") == kills.weights(tmp_path / "two")
    headers, tables = 10, len(shapes)  # tables of the last delta are held against its index
    assert len(asked) < tables + headers + 20
    asked.clear()
    monkeypatch.setattr(execute, "inspect", lambda plan: ())  # looks at a sample of few tensors, one by one
    source = {"method": "ram", "base": str(tmp_path / "base")}
    ramerge.merge(
        {**source, "agents": {"a": {"delta": places}}}, tmp_path / "there", options=ramerge.Options(cache=False)
    )
    ramerge.merge(
        {**source, "agents": {"a": str(tmp_path / "two")}}, tmp_path / "here", options=ramerge.Options(cache=False)
    )
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    assert len(asked) < headers + 40
    assert sum(asked) < 3 * sum(path.stat().st_size for name in ("d1", "d2") for path in (tmp_path / name).iterdir())


def test_delta_and_apply_from_a_bucket(s3: Server, tmp_path: Path) -> None:
    write_simple(tmp_path)
    base, code = (s3.put(tmp_path / name, f"apply/{name}") for name in ("base", "code"))
    assert command("delta", "--base", base, "--agent", f"a={code}", tmp_path / "delta").returncode == 0
    delta = s3.put(tmp_path / "delta", "apply/delta")
    assert command("apply", "--base", base, delta, tmp_path / "whole").returncode == 0
    assert weights(tmp_path / "whole") == weights(tmp_path / "code")
    sums = command("merge", "--method", "ram", "--base", base, "--agent", f"a={base}+{delta}", "out", cwd=tmp_path)
    assert sums.returncode == 0, sums.stderr


def test_an_object_that_changes_after_planning(s3: Server, tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path)
    recipe = names(["code", "tool"], lambda name: s3.put(tmp_path / name, f"changing/{name}"))
    plan = ramerge.plan({"method": "ram", **recipe}, tmp_path / "out")
    write_checkpoint(tmp_path / "other", simple(9))
    s3.put(tmp_path / "other", "changing/code")
    with messages.raises(ramerge.CheckpointError):
        plan.merge()
    assert not any(path.name.startswith(("out", ".out")) for path in tmp_path.iterdir())


def test_other_machine_reads_the_same_versions(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    write_simple(tmp_path)
    place = open_remote(s3.put(tmp_path / "base", "travelling/base")) / "model.safetensors"
    files = Files({place: place.version()})
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token-of-tests")
    pickled = pickle.dumps((place, files))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT"):
        assert os.environ[name].encode() not in pickled
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    there, of_there = pickle.loads(pickled)  # noqa: S301
    assert there == place and there.version() == place.version()
    assert there.read_bytes() == (tmp_path / "base/model.safetensors").read_bytes()
    out = np.empty(8, np.uint8)
    of_there.fill(there, 0, out)
    assert out.tobytes() == there.read_bytes()[:8]
    write_checkpoint(tmp_path / "base", simple(9, moved=0.5))
    s3.put(tmp_path / "base", "travelling/base")
    with messages.raises(CheckpointError):
        pickle.loads(pickled)[0].read_bytes()  # noqa: S301
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(CheckpointError, match="AWS_ACCESS_KEY_ID"):
        pickle.loads(pickled)[0].read_bytes()  # noqa: S301


def test_ranges_of_any_size(s3: Server, tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)
    (tmp_path / "some").mkdir()
    data.tofile(tmp_path / "some/a b+c%20é.bin")
    (tmp_path / "some/empty").write_bytes(b"")
    folder = open_remote(s3.put(tmp_path / "some", "ranges"))
    file = folder / "a b+c%20é.bin"
    assert file.is_file() and not (folder / "a b").exists() and folder.is_dir()
    assert (folder / "empty").read_bytes() == b"" and file.read_bytes() == data.tobytes()
    with Files() as files:
        for start, size in ((0, 1), (7, 100_000), (299_999, 1), (0, 300_000), (5, 0)):
            out = np.empty(size, np.uint8)
            files.fill(file, start, out)
            assert np.array_equal(out, data[start : start + size])
    with file.open("rb") as opened:
        opened.seek(65_000)
        assert opened.read(70_000) == data[65_000:135_000].tobytes()
        assert opened.seek(0, 2) == 300_000 and opened.read(1) == b""


@pytest.mark.parametrize(
    ("environment", "place", "said"),
    [
        *REFUSED,
        ({"AWS_ACCESS_KEY_ID": "nobody"}, f"s3://{BUCKET}/x", "access is denied .*403 InvalidAccessKeyId"),
        ({}, f"s3://{BUCKET}/nothing", "there is nothing under this name"),
        ({}, "s3://", "name a bucket and a folder"),
        ({}, f"s3://{BUCKET}", "name a bucket and a folder"),
        ({}, f"s3://{BUCKET}/x/../y", "no part that is empty"),
        ({}, f"s3://{BUCKET}//y", "no part that is empty"),
        ({}, f"s3://{BUCKET}/x?versionId=3", "a query has no meaning here"),
        ({}, f"s3://me:hush@{BUCKET}/x", "must not hold user and password"),
        ({}, "ftp://host/x", "has no supported scheme"),
        ({}, "s3:models/x", "did you mean s3://models/x"),
        ({}, "S3//models/x", "did you mean s3://models/x"),
        ({}, "s3:/models", "has one slash after s3: and needs two: s3://models "),
        ({"RAMERGE_RETRY_SECONDS": "soon"}, f"s3://{BUCKET}/x", "must be a number of seconds"),
    ],
)
def test_what_goes_wrong_is_said(
    environment: dict[str, str],
    place: str,
    said: str,
    s3: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_simple(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    recipe = {"method": "ram", "base": str(tmp_path / "base"), "agents": {"a": place}}
    with pytest.raises(ramerge.PlanError, match=said) as caught:
        ramerge.merge(recipe, tmp_path / "out")
    assert len(caught.value.problems) == 1
    assert not any(secret in str(caught.value) for secret in ("wrong", "hush", "a-secret-of-tests"))
    assert not any(path.name.startswith(("out", ".out")) for path in tmp_path.iterdir())


def test_formats_that_are_read_here_only(s3: Server, tmp_path: Path) -> None:
    import torch

    write_simple(tmp_path)
    (tmp_path / "bin").mkdir()
    torch.save({"a.weight": torch.zeros(2)}, tmp_path / "bin/pytorch_model.bin")
    recipe = {"method": "ram", "base": str(tmp_path / "base"), "agents": {"a": s3.put(tmp_path / "bin", "bin")}}
    assert (
        "s3://models/bin: holds files of a kind that is read on this machine only" in ramerge.plan(recipe).problems[0]
    )


def test_without_obstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    write_simple(tmp_path)
    recipe = {"method": "ram", "base": str(tmp_path / "base"), "agents": {"a": "s3://bucket/x"}}
    assert "s3://bucket/x: remote models need the package obstore: pip install" in ramerge.plan(recipe).problems[0]


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        *[({"AWS_ENDPOINT": address}, "s3://bucket/m") for address in ("127.0.0.1:9", "", "http://", "ht!tp://x")],
        ({"AWS_ENDPOINT": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a\nb"}, "s3://bucket/m"),
        ({"AWS_ENDPOINT": "http://127.0.0.1:9"}, "s3://b k/m"),
    ],
)
def test_what_makes_no_request_is_said(
    environment: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore panics there, which is no Exception."""
    for name, value in ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"} | environment).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CheckpointError, match=f"{place}: the address, or a setting of the storage .*AWS_ENDPOINT"):
        open_remote(place).is_dir()
