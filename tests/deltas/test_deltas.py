"""Merging from deltas and into a delta: the same files as from checkpoints, to the byte."""

import errno
import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import ramerge
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.foundation.dtypes import full_name
from ramerge.core.foundation.errors import (
    CheckpointError,
    ContinueNote,
    OutputError,
    PlanError,
    RecipeError,
    WeightsError,
)
from ramerge.core.output.write import Writer
from ramerge.deltas.codec import Encoder
from ramerge.deltas.index import DELTA_INDEX
from ramerge.deltas.write import DeltaWriter
from tests.checkpoints import floats, read_checkpoint, recipe, simple, write_checkpoint
from tests.commands import ramerge as command
from tests.conformance.test_merge import same
from tests.deltas.writing import blocks_of_elements
from tests.e2e.kills import killed, left_behind
from tests.formats.test_lora import UP, factors, of_embeddings, write_adapter, write_base
from tests.messages import Messages
from tests.planning.test_vocabulary import COMMON
from tests.planning.test_vocabulary import write as with_vocabulary
from tests.reference import Stored

# What differs in every merge: times and folders.
RECORDS = {"README.md", "ramerge.json", "ramerge.yaml"}


def files(folder: Path) -> dict[str, bytes]:
    """A model's files by name, without records."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name not in RECORDS}


def large(folder: Path, seed: int, moved: float) -> Path:
    """Tensors of several blocks, of another number of rows than blocks, and of less than one."""
    rng = np.random.default_rng(seed)
    shapes = {"embed": (700, 1000), "w": (300, 1000), "norm": (1000,), "none": (0, 4)}
    base = np.random.default_rng(7)
    tensors = {}
    for name, shape in shapes.items():
        values = base.normal(0, 0.02, shape)
        tensors[name] = floats(values + np.where(rng.random(shape) < moved, 0.01, 0))
    return write_checkpoint(folder, tensors, shards=2)


@pytest.mark.parametrize("block", [1 << 19, 100_000])
def test_blocks_of_any_size_in_any_order(block: int, tmp_path: Path) -> None:
    for name, moved in (("base", 0), ("a", 0.1), ("b", 0.3)):
        large(tmp_path / name, len(name) + int(100 * moved), moved)
    source = recipe(tmp_path, ["a", "b"])
    ramerge.merge(source, tmp_path / "wanted", options=ramerge.Options(cache=False))
    plan = ramerge.plan(source, tmp_path / "packed", kind="delta", options=ramerge.Options(cache=False))
    assert plan.problems == ()
    execute(replace(plan.details, resources=replace(plan.details.resources, block_elements=block)), ThreadExecutor(5))
    ramerge.apply(tmp_path / "base", tmp_path / "packed", tmp_path / "out", options=ramerge.Options(threads=2))
    assert files(tmp_path / "out") == files(tmp_path / "wanted")


def test_output_of_another_dtype_and_more_rows(tmp_path: Path) -> None:
    with_vocabulary(tmp_path / "base", 0, 12)
    with_vocabulary(tmp_path / "a", 1, 14, ["<x>", "<y>", "<z>", "<u>", "<v>"])
    with_vocabulary(tmp_path / "b", 2, 10)
    for dtype in ("float32", "bfloat16"):
        source = recipe(tmp_path, ["a", "b"], allow=COMMON, dtype=dtype)
        ramerge.merge(source, tmp_path / dtype)
        ramerge.merge(source, tmp_path / f"packed {dtype}", kind="delta")
        ramerge.apply(tmp_path / "base", tmp_path / f"packed {dtype}", tmp_path / f"out {dtype}")
        assert files(tmp_path / f"out {dtype}") == files(tmp_path / dtype)


def test_what_was_saved_is_said(tmp_path: Path) -> None:
    for name, moved in (("base", 0), ("a", 0.01), ("b", 0.02)):
        large(tmp_path / name, len(name) + int(100 * moved), moved)
    record = ramerge.merge(recipe(tmp_path, ["a", "b"]), tmp_path / "out", kind="delta")
    size = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    assert record.bytes_written == pytest.approx(size, rel=0.1)
    (note,) = (note for note in record.notes if "delta" in note)
    assert f"{record.bytes_written:,} bytes" in note and "ramerge apply" in note
    applied = ramerge.apply(tmp_path / "base", tmp_path / "out", tmp_path / "model")
    assert applied.delta_bytes == record.bytes_written
    assert f"of the {applied.agent_bytes:,} of the model" in note
    assert "ramerge apply --base BASE" in (tmp_path / "out/README.md").read_text()
    again = ramerge.merge(
        recipe(tmp_path, ["a", "b"]), tmp_path / "out", kind="delta", options=ramerge.Options(overwrite=True)
    )
    assert again.bytes_written == record.bytes_written


def test_what_a_delta_lacks_is_not_read(tmp_path: Path) -> None:
    for name, moved in (("base", 0), ("a", 0.01), ("b", 0.02)):
        large(tmp_path / name, len(name) + int(100 * moved), moved)
    ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "packed")
    source = recipe(tmp_path, ["a", "b"])
    full = ramerge.plan(source, options=ramerge.Options(cache=False))
    source["agents"]["a"] = str(tmp_path / "packed")
    plan = ramerge.plan(source, options=ramerge.Options(cache=False))
    assert 2 / 3 < plan.bytes_read / full.bytes_read < 0.7
    record = ramerge.merge(source, tmp_path / "out", options=ramerge.Options(cache=False))
    assert record.bytes_read == plan.bytes_read


def test_limited_memory_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "agent", simple(1))
    used: list[int] = []

    class Counted(ThreadExecutor):
        def __init__(self, workers: int) -> None:
            used.append(workers)
            super().__init__(workers)

    monkeypatch.setattr("ramerge.core.engine.executors.ThreadExecutor", Counted)
    ramerge.delta(tmp_path / "base", tmp_path / "agent", tmp_path / "free", options=ramerge.Options(threads=64))
    ramerge.delta(
        tmp_path / "base",
        tmp_path / "agent",
        tmp_path / "tight",
        options=ramerge.Options(threads=64, max_memory="400MB"),
    )
    assert used[0] == 64 and 1 <= used[1] < 64
    assert files(tmp_path / "free") == files(tmp_path / "tight")
    ramerge.apply(tmp_path / "base", tmp_path / "free", tmp_path / "out", options=ramerge.Options(max_memory="400MB"))
    assert files(tmp_path / "out") == files(tmp_path / "agent")
    for name, work in (
        ("delta", partial(ramerge.delta, tmp_path / "base", tmp_path / "agent")),
        ("model", partial(ramerge.apply, tmp_path / "base", tmp_path / "free")),
    ):
        with messages.raises(RecipeError) as caught:
            work(tmp_path / name, options=ramerge.Options(max_memory="1MB"))
        work(tmp_path / name, options=ramerge.Options(max_memory=str(caught.value).rpartition(" ")[2]))


def test_what_cannot_be_a_delta_is_refused(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "a", simple(1, moved=0.1))
    source = recipe(tmp_path, ["a"])
    with messages.raises(PlanError):
        ramerge.plan(source, kind="delta").tensors()
    without = {key: value for key, value in source.items() if key != "base"}
    with messages.raises(PlanError):
        ramerge.merge({**without, "method": "linear"}, tmp_path / "out", kind="delta")
    swept = ramerge.plan(source, tmp_path / "out", kind="delta", vary={"parameters.r": [0, 0.1]})
    assert any("not for sweeps" in text for text in swept.problems)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["worker", "writer"])
def test_a_failure_ends_all_threads(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, moved in (("base", 0), ("a", 0.1), ("b", 0.3)):
        large(tmp_path / name, len(name) + int(100 * moved), moved)
    if place == "writer":

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(DeltaWriter, "changed", full)
    else:
        bad = large(tmp_path / "c", 3, 0.1)
        data = bytearray((bad / "model-00002-of-00002.safetensors").read_bytes())
        data[-2000:] = b"\xff\x7f" * 1000
        (bad / "model-00002-of-00002.safetensors").write_bytes(data)
    names = ["a", "b"] if place == "writer" else ["a", "c"]
    with pytest.raises(OutputError if place == "writer" else WeightsError):
        ramerge.merge(recipe(tmp_path, names), tmp_path / "out", kind="delta", options=ramerge.Options(threads=3))
    assert not (tmp_path / "out").exists()


def test_the_commands(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "a", {**simple(1, moved=0.1), "extra": floats([1.0, 2.0])}, shards=2)
    (tmp_path / "a/chat_template.jinja").write_text("{{ messages }}")
    said = command("delta", "--base", tmp_path / "base", "--agent", f"a={tmp_path / 'a'}", tmp_path / "d", "--json")
    assert said.returncode == 0, said.stderr
    made = json.loads(said.stdout)
    assert (made["tensors"], made["changed"], made["whole"]) == (4, 3, 1)
    with safe_open(tmp_path / "d/delta-00001.safetensors", "numpy") as file:
        stored = {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118
    assert made["delta_bytes"] == sum(
        size for name, size in stored.items() if name.startswith(("blocks:", "data:", "whole:"))
    )
    assert "ramerge apply --base BASE" in (tmp_path / "d/README.md").read_text()
    said = command("apply", "--base", tmp_path / "base", tmp_path / "d", tmp_path / "back")
    assert said.returncode == 0 and "3 of 4 tensors changed, " in said.stdout
    assert f": a model of {made['agent_bytes']:,} bytes, from deltas of {made['delta_bytes']:,}, in " in said.stdout
    assert "comparing" not in said.stderr
    assert files(tmp_path / "back") == files(tmp_path / "a")
    refused = command("apply", "--base", tmp_path / "base", tmp_path / "a", tmp_path / "other")
    assert refused.returncode == 2
    messages.check(refused.stderr)
    refused = command("apply", "--base", tmp_path / "base", tmp_path / "d")
    assert refused.returncode == 2
    messages.check(refused.stderr)
    refused = command("delta", "--base", tmp_path / "base", "--agent", f"a={tmp_path / 'a'}", tmp_path / "d")
    assert refused.returncode == 2
    messages.check(refused.stderr)
    write_checkpoint(tmp_path / "another", simple(5, moved=0.5))
    said = command("apply", "--base", tmp_path / "another", tmp_path / "d", tmp_path / "other")
    assert said.returncode == 2 and not (tmp_path / "other").exists()
    messages.check(said.stderr)
    said = command("merge", "--base", tmp_path / "base", "--agent", f"a={tmp_path / 'd'}", "--as-delta", tmp_path / "m")
    assert said.returncode == 2
    messages.check(said.stderr)  # as from the agent itself


def test_companions_are_checked_before_weights_are_written(tmp_path: Path, messages: Messages) -> None:
    for name, model in {"base": simple(0), "a": simple(1, moved=0.1), "f32": simple(1, "F32")}.items():
        write_checkpoint(tmp_path / name, model)
        (tmp_path / name / "generation_config.json").write_text("{}")
    events: list[ramerge.Progress] = []
    for agent in ("a", "f32"):
        ramerge.delta(tmp_path / "base", tmp_path / agent, tmp_path / f"delta of {agent}")
    (tmp_path / "base/generation_config.json").unlink()
    with messages.raises(CheckpointError) as refused:
        ramerge.apply(tmp_path / "base", tmp_path / "delta of a", tmp_path / "out", on_progress=events.append)
    assert events == [] and not (tmp_path / "out").exists()
    program, *words = shlex.split(str(refused.value).rpartition("other files of this base: ")[2].strip("`"))
    done = command(*words)
    assert program == "ramerge" and done.returncode == 0, done.stderr
    same(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "a"))
    # a merge would round these to the base's dtype
    with messages.raises(CheckpointError):
        ramerge.apply(tmp_path / "base", tmp_path / "delta of f32", tmp_path / "other")


@pytest.mark.parametrize(("dtype", "wide"), [("F32", "float32"), ("F64", "float64")])
def test_another_dtype_is_warned_of(dtype: str, wide: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", {**simple(0), "ids": Stored("I64", np.arange(3))})
    write_checkpoint(tmp_path / "a", {**simple(1, dtype, moved=0.1), "ids": Stored("I32", np.arange(3, dtype="i4"))})
    said = command("delta", "--base", tmp_path / "base", "--agent", f"a={tmp_path / 'a'}", tmp_path / "d", "--quiet")
    assert said.returncode == 0
    (line,) = said.stderr.splitlines()
    nbytes = sum(tensor.bits.nbytes for tensor in simple(1, dtype).values())
    assert line.startswith(f"warning: 3 of 4 tensors differ from the base in dtype ({full_name(dtype)} instead of")
    assert f"stored whole: {nbytes:,} bytes" in line and f"--dtype {wide}`" in line
    ramerge.convert(tmp_path / "base", tmp_path / "wide", dtype=wide)
    record = ramerge.delta(tmp_path / "wide", tmp_path / "a", tmp_path / "other")
    assert not record.warnings and record.changed == 3


@pytest.mark.parametrize(("base", "agent"), [("F32", "F16"), ("F32", "BF16"), ("F64", "F32"), ("BF16", "F16")])
def test_rounded_agent_is_stored_whole(base: str, agent: str, tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", simple(0, base))
    write_checkpoint(tmp_path / "a", simple(1, agent, moved=0.1))
    (text,) = ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "d").warnings
    messages.check(text)


def test_a_wrong_base_is_warned_of(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "agent", simple(1, moved=0.1))
    write_checkpoint(tmp_path / "other", simple(0), config={"model_type": "llama"})
    shape = (40, 16)
    noise = {name: floats(np.random.default_rng(place).normal(0, 1, shape)) for place, name in enumerate(simple(0), 5)}
    write_checkpoint(tmp_path / "unrelated", noise)
    assert not ramerge.delta(tmp_path / "base", tmp_path / "agent", tmp_path / "d").warnings
    (text,) = ramerge.delta(tmp_path / "other", tmp_path / "agent", tmp_path / "d2").warnings
    messages.check(text)
    said = command("delta", "--base", tmp_path / "base", "--agent", f"a={tmp_path / 'unrelated'}", tmp_path / "d3")
    assert said.returncode == 0
    messages.check(said.stderr.splitlines()[-1])


def test_a_base_of_another_dtype_is_one_problem(tmp_path: Path, messages: Messages) -> None:
    for dtype in ("F32", "BF16"):
        write_checkpoint(tmp_path / f"base {dtype}", simple(0, dtype))
    write_checkpoint(tmp_path / "a", simple(1, "F32", moved=0.1))
    ramerge.delta(tmp_path / "base F32", tmp_path / "a", tmp_path / "d")
    (problem,) = ramerge.plan({"base": str(tmp_path / "base BF16"), "agents": {"a": str(tmp_path / "d")}}).problems
    messages.check(problem)
    said = command("delta", "--base", tmp_path / "base BF16", "--agent", f"a={tmp_path / 'a'}", tmp_path / "whole")
    elements = sum(tensor.bits.size for tensor in simple(0).values())
    first = f"3 of 3 tensors stored whole (not in the base, or there in another dtype or shape), {elements:,} elements"
    assert said.stdout.splitlines()[0] == first
    (note,) = (
        note
        for note in ramerge.plan({"base": str(tmp_path / "base BF16"), "agents": {"a": str(tmp_path / "whole")}}).notes
        if "is a delta" in note
    )
    assert note.endswith(f"is a delta: {first}")


def test_cards_name_no_folders_of_this_machine(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "a", simple(1, moved=0.1))
    ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "d")
    text = (tmp_path / "d/README.md").read_text()
    assert "# A delta on base" in text and str(tmp_path) not in text
    ramerge.merge(recipe(tmp_path, ["a"]), tmp_path / "packed", kind="delta")
    text = (tmp_path / "packed/README.md").read_text()
    assert "# packed" in text and "recipe is in `companions/ramerge.yaml`" in text
    assert (tmp_path / "packed/companions/ramerge.yaml").is_file()
    ramerge.apply(tmp_path / "base", tmp_path / "packed", tmp_path / "model")
    text = (tmp_path / "model/README.md").read_text()
    assert "# A merged model" in text and 'from_pretrained("MODEL")' in text and "packed" not in text
    assert "recipe is in `ramerge.yaml`" in text and (tmp_path / "model/ramerge.yaml").is_file()


@pytest.mark.parametrize("unties", [False, True])
def test_merge_as_delta_on_base_with_adapter(unties: bool, tmp_path: Path) -> None:
    """Also where that adapter has untied the embeddings: the delta's base is then untied as it is, by no agent."""
    write_base(tmp_path / "base", tie_word_embeddings=True)
    write_adapter(tmp_path / "below", of_embeddings() if unties else factors(*UP, seed=2))
    write_adapter(tmp_path / "a", factors(*UP))
    base = f"{tmp_path / 'base'}+{tmp_path / 'below'}"
    source = recipe(tmp_path, ["a"], "task_arithmetic") | {"base": base}
    ramerge.merge(source, tmp_path / "model")
    record = ramerge.merge(source, tmp_path / "packed", kind="delta")
    assert "written as a delta on the base: " in record.notes[-1]
    assert "if BASE is base+below, each by" in (tmp_path / "packed/README.md").read_text()
    ramerge.apply(base, tmp_path / "packed", tmp_path / "back")
    assert files(tmp_path / "back") == files(tmp_path / "model")
    assert json.loads((tmp_path / "back/config.json").read_text())["tie_word_embeddings"] is not unties
    ramerge.delta(base, tmp_path / "model", tmp_path / "d")
    text = (tmp_path / "d/README.md").read_text()
    assert "# A delta on base+below" in text and "if BASE is base+below, each by" in text


def test_delta_of_adapter_on_shards_has_an_index(tmp_path: Path) -> None:
    """The adapter has no index of its own that the delta could hold."""
    write_base(tmp_path / "one")
    ramerge.convert(tmp_path / "one", tmp_path / "base", values={"shard_size": 1000})
    write_adapter(tmp_path / "a", factors(*UP))
    ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "d")
    ramerge.apply(tmp_path / "base", tmp_path / "d", tmp_path / "back")
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 1
    assert {*read_checkpoint(tmp_path / "back")} == {*read_checkpoint(tmp_path / "base")}


@pytest.mark.needs("altair")
def test_report_of_a_delta_merge(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "a", simple(1, moved=0.1))
    ramerge.merge(recipe(tmp_path, ["a"]), tmp_path / "packed", kind="delta")
    done = command("report", tmp_path / "packed")
    assert done.returncode == 0, done.stderr
    assert "ramerge.yaml" not in done.stderr and (tmp_path / "packed/report.html").is_file()
    ramerge.apply(tmp_path / "base", tmp_path / "packed", tmp_path / "model")  # the page does no harm


def test_arguments_are_checked(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "a", simple(1, moved=0.1))
    with pytest.raises(RecipeError, match="compression"):
        ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "d", compression="gzip")
    with pytest.raises(RecipeError, match="threads"):
        ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "d", options=ramerge.Options(threads=0))
    with messages.raises(RecipeError):
        ramerge.apply(tmp_path / "base", [], tmp_path / "d")
    with messages.raises(PlanError):
        ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "a", options=ramerge.Options(overwrite=True))


def test_links_that_lead_out_are_followed_if_allowed(tmp_path: Path, messages: Messages) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "a", simple(1, moved=0.1))
    (tmp_path / "a/model.safetensors").rename(tmp_path / "weights")
    (tmp_path / "a/model.safetensors").symlink_to(tmp_path / "weights")
    with messages.raises(CheckpointError):
        ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "d")
    ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "d", options=ramerge.Options(allow_outside_links=True))
    (tmp_path / "d/delta-00001.safetensors").rename(tmp_path / "data")
    (tmp_path / "d/delta-00001.safetensors").symlink_to(tmp_path / "data")
    with messages.raises(CheckpointError):
        ramerge.apply(tmp_path / "base", tmp_path / "d", tmp_path / "back")
    ramerge.apply(
        tmp_path / "base", tmp_path / "d", tmp_path / "back", options=ramerge.Options(allow_outside_links=True)
    )
    assert files(tmp_path / "back") == files(tmp_path / "a")


def test_a_chain(tmp_path: Path) -> None:
    steps: list[dict[str, Stored]] = [simple(0)]
    rng = np.random.default_rng(5)
    for _ in range(3):
        steps.append(
            {
                name: Stored(one.dtype, one.bits ^ (rng.random(one.bits.shape) < 0.1).astype(one.bits.dtype))
                for name, one in steps[-1].items()
            }
        )
    for number, tensors in enumerate(steps):
        write_checkpoint(tmp_path / f"v{number}", tensors)
    for number in (1, 2, 3):
        ramerge.delta(tmp_path / f"v{number - 1}", tmp_path / f"v{number}", tmp_path / f"d{number}")
    chain = [tmp_path / f"d{number}" for number in (1, 2, 3)]
    ramerge.apply(tmp_path / "v0", chain, tmp_path / "back")
    assert files(tmp_path / "back") == files(tmp_path / "v3")
    listed = "+".join(map(str, chain))
    source = {"method": "ram", "base": str(tmp_path / "v0")}
    ramerge.merge({**source, "agents": {"a": str(tmp_path / "v3")}}, tmp_path / "wanted")
    ramerge.merge({**source, "agents": {"a": listed}}, tmp_path / "found")
    assert files(tmp_path / "found") == files(tmp_path / "wanted")
    for wrong in ([chain[0], chain[2]], [chain[1]], [chain[0], chain[0]], [chain[1], chain[0]]):
        with pytest.raises(ramerge.CheckpointError, match=str(tmp_path)):
            ramerge.apply(tmp_path / "v0", wrong, tmp_path / "other")
        assert not (tmp_path / "other").exists()
    assert (tmp_path / "d1" / DELTA_INDEX).is_file()


# --- stopped deltas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [False, True])
def test_a_delta_that_was_killed_goes_on(torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has been encoded is not read again."""
    blocks_of_elements(1000, monkeypatch)
    base, agent = large(tmp_path / "base", 1, 0), large(tmp_path / "agent", 2, 0.2)
    done: list[int] = []
    real = Encoder.encode_all
    monkeypatch.setattr(Encoder, "encode_all", lambda *a: (done.append(1), real(*a))[1])
    ramerge.delta(base, agent, tmp_path / "whole")
    of_all = len(done)
    out = tmp_path / "out"
    assert killed(lambda: ramerge.delta(base, agent, out), 2 + of_all // 2, torn=torn)
    assert not out.exists()
    done.clear()
    with pytest.warns(ContinueNote, match=r"continuing: (4\d|50) % of the work was done before"):
        ramerge.delta(base, agent, out)
    assert len(done) == of_all - of_all // 2
    assert files(out) == files(tmp_path / "whole") and left_behind(out) == []


def test_what_has_changed_makes_a_delta_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    blocks_of_elements(1000, monkeypatch)
    base, agent = large(tmp_path / "base", 1, 0), large(tmp_path / "agent", 2, 0.2)
    out, other = tmp_path / "out", tmp_path / "wanted"
    assert killed(lambda: ramerge.delta(base, agent, out), 100)
    with messages.warns(ContinueNote):
        ramerge.delta(base, agent, out, compression="zstd")
    ramerge.delta(base, agent, other, compression="zstd")
    assert files(out) == files(other)
    assert killed(lambda: ramerge.delta(base, agent, out, options=ramerge.Options(overwrite=True)), 100)
    large(tmp_path / "agent", 3, 0.2)
    with messages.warns(ContinueNote):
        ramerge.delta(base, agent, out, options=ramerge.Options(overwrite=True))
    ramerge.delta(base, agent, other, options=ramerge.Options(overwrite=True))
    assert files(out) == files(other)
    assert killed(lambda: ramerge.delta(base, agent, out, options=ramerge.Options(overwrite=True)), 100)
    ramerge.delta(base, agent, out, options=ramerge.Options(overwrite=True, fresh=True))
    assert files(out) == files(other) and left_behind(out) == []
    assert killed(lambda: ramerge.delta(base, agent, out, options=ramerge.Options(overwrite=True)), 100)
    assert [text.endswith("removed") for text in ramerge.clean(out)] == [True]
    assert files(out) == files(other) and left_behind(out) == []


def test_damaged_spool_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    base, agent = large(tmp_path / "base", 1, 0), large(tmp_path / "agent", 2, 0.2)
    written = Writer.write
    monkeypatch.setattr(Writer, "write", lambda own, name, at, data: written(own, name, at, data[:-1]))
    with messages.raises(OutputError):
        ramerge.delta(base, agent, tmp_path / "out")
    assert not (tmp_path / "out").exists() and left_behind(tmp_path / "out") == []


def test_stopped_delta_is_not_resumed_with_exchanged_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    blocks_of_elements(1000, monkeypatch)
    one, other = large(tmp_path / "one", 1, 0), large(tmp_path / "other", 2, 0.2)
    assert killed(lambda: ramerge.delta(one, other, tmp_path / "out"), 100)
    with messages.warns(ContinueNote):
        ramerge.delta(other, one, tmp_path / "out")
    ramerge.delta(other, one, tmp_path / "wanted")
    assert files(tmp_path / "out") == files(tmp_path / "wanted")
