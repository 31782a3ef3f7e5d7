"""Merges of state dicts in memory: the bytes of a merge of folders, whatever holds the tensors."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st

import ramerge
from ramerge.core.methods.registry import all_parameters
from tests.checkpoints import KINDS, families, read_checkpoint, simple, write_checkpoint
from tests.conformance.methods import REPRESENTATIVES, ROWS, one_of_each_kind
from tests.conformance.test_merge import as_many_as_it_takes, plain, written
from tests.formats.quantized import SAMPLES, write_quantized
from tests.messages import Messages
from tests.reference import NUMBERS, Stored
from tests.tiers import at_most, some

_TYPES: dict[str, Any] = {
    **NUMBERS,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "BOOL": bool,
}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()} | {np.dtype(f"i{n // 8}"): f"I{n}" for n in (32, 64)}
Bits = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def arrays(tensors: Mapping[str, Stored]) -> dict[str, np.ndarray]:
    """Tensors as a program holds them."""
    return {name: one.bits.copy().view(_TYPES.get(one.dtype, one.bits.dtype)) for name, one in tensors.items()}


def bits(found: Mapping[str, Any]) -> Bits:
    """Dtype, shape and bytes of each array."""
    return {
        name: (_NAMES.get(array.dtype, "U8"), array.shape, array.tobytes()) for name, array in sorted(found.items())
    }


def bits_of(folder: Path) -> Bits:
    """The same of a checkpoint."""
    found = sorted(read_checkpoint(folder).items())
    return {name: (one.dtype, one.bits.shape, one.bits.tobytes()) for name, one in found}


def with_sides(models: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Agents with their side inputs as a program holds them, in the dtypes that files have."""
    made = {}
    for agent, model in models.items():
        made[agent] = {"model": model}
        if "importances" in extra:
            made[agent]["importance"] = arrays(extra["importances"][agent])
        if "inputs" in extra:
            made[agent]["inputs"] = {
                name: (rows.astype(ml_dtypes.bfloat16), counts.astype(np.float32))
                for name, (rows, counts) in extra["inputs"][agent].items()
            }
    return made if extra else dict(models)


def merged(method: str, base: Any, agents: Any, extra: Mapping[str, Any], recipe: Any) -> Any:
    models = with_sides({name: arrays(tensors) for name, tensors in agents.items()}, extra)
    return ramerge.merge_state_dicts(arrays(base), models, method, recipe=recipe)


@pytest.mark.parametrize("method", one_of_each_kind(ROWS))
@settings(max_examples=8)
@given(data=st.data())
def test_bytes_of_the_merge_of_folders(method: str, data: st.DataObject) -> None:
    base, listed = data.draw(families(KINDS[:2]))  # several dtypes are brought to one as in merges of folders
    agents = {f"a{place}": agent for place, agent in enumerate(as_many_as_it_takes(method, listed))}
    more: dict[str, Any] = {"rounding": data.draw(st.sampled_from(["nearest", "stochastic"])), "rounding_seed": 7}
    more |= data.draw(st.sampled_from([{}, {"dtype": "float32"}, {"rules": [{"match": "*w1", "keep": "base"}]}]))
    more = more if any(name.endswith("w1") for name in base) else {**more, "rules": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for agent, tensors in {"base": base, **agents}.items():
            write_checkpoint(folder / agent, tensors, shards=2)
        source, extra = written(folder, method, agents, **more)
        try:
            record = ramerge.merge(source, folder / "out")
        except ramerge.WeightsError:
            with pytest.raises(ramerge.WeightsError):
                merged(method, base, agents, extra, more)
            return
        found = merged(method, base, agents, extra, more)
        assert bits(found) == bits_of(folder / "out")
        assert list(found) == list(base)
        same = ("parameters", "parts", "counts", "non_finite", "merged_tensors", "parameters_count")
        assert all(getattr(found.record, key) == getattr(record, key) for key in same)
        figures = [[agent.values for agent in one.agents.values()] for one in (found.record, record)]
        assert repr(figures[0]) == repr(figures[1])  # NaN is itself here


_WITH_DTYPES = list(product(ROWS, ("BF16", "F16", "F32", "F64")))


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("method", "dtype"),
    some(_WITH_DTYPES, full=[(m, d) for m, d in _WITH_DTYPES if m == "ram+" or (m in REPRESENTATIVES and d == "BF16")]),
)
def test_tensors_of_torch(method: str, dtype: str, tmp_path: Path) -> None:
    import torch

    source, base, agents, extra = plain(tmp_path, method, dtype)
    ramerge.merge(source, tmp_path / "out")

    def tensors(model: Mapping[str, Stored]) -> dict[str, Any]:
        kind = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}[dtype]
        return {name: torch.from_numpy(one.bits.copy().view(np.uint8)).view(kind) for name, one in model.items()}

    held, trained = tensors(base), {name: tensors(model) for name, model in agents.items()}
    found = ramerge.merge_state_dicts(held, with_sides(trained, extra), method)
    assert {name: one.dtype for name, one in found.items()} == {name: one.dtype for name, one in held.items()}
    as_bytes = {name: one.view(torch.uint8).numpy().tobytes() for name, one in found.items()}
    assert as_bytes == {name: one.bits.tobytes() for name, one in read_checkpoint(tmp_path / "out").items()}
    first = next(iter(trained.values()))
    again = ramerge.merge_state_dicts(held, with_sides(trained, extra), method, out=first)
    assert all(again[name] is first[name] and torch.equal(first[name], found[name]) for name in first)


def test_functions_take_no_method_parameters_as_keywords() -> None:
    for function in (ramerge.merge_state_dicts, ramerge.merge_tensors):
        assert not set(inspect.signature(function).parameters) & set(all_parameters())


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("dtype", [None, "like base"])
def test_quantized_state_dicts(sample: str, dtype: str | None, tmp_path: Path) -> None:
    shape = (64, 64)
    models = {"base": simple(0, shape=shape), **{n: simple(s, moved=0.3, shape=shape) for s, n in enumerate("ab", 1)}}
    config: Any = {"model_type": "test", "torch_dtype": "bfloat16", "quantization_config": SAMPLES[sample].config}
    held = {}
    for name, tensors in models.items():
        plain_agent = name == "b"  # a trainer's, in bfloat16
        if plain_agent:
            write_checkpoint(tmp_path / name, tensors)
        else:
            write_quantized(tmp_path / name, sample, tensors)
        held[name] = arrays(read_checkpoint(tmp_path / name))
    more = {"dtype": dtype} if dtype else {}
    source = {"base": str(tmp_path / "base"), "agents": {name: str(tmp_path / name) for name in "ab"}, **more}
    try:
        ramerge.merge(source, tmp_path / "out")
    except ramerge.PlanError:
        with pytest.raises(ramerge.PlanError):
            ramerge.merge_state_dicts(held.pop("base"), held, config=config, recipe=more)
        return
    found = ramerge.merge_state_dicts(held.pop("base"), held, config=config, recipe=more)
    assert bits(found) == bits_of(tmp_path / "out")


def test_float8_tensors_need_a_config_of_scales(messages: Messages) -> None:
    model = {"w": np.ones((2, 2), ml_dtypes.float8_e4m3fn)}
    with messages.raises(ramerge.PlanError):
        ramerge.merge_state_dicts(model, {"a": {"w": model["w"].copy()}})


def family(seed: int = 0, agents: int = 2, shape: tuple[int, ...] = (40, 16)) -> tuple[Any, dict[str, Any]]:
    models = {f"a{t}": arrays(simple(seed + t + 1, moved=0.3, shape=shape)) for t in range(agents)}
    return arrays(simple(0, shape=shape)), models


@pytest.mark.parametrize("method", ["ram+", "tsvm", "ties", "dare"])
def test_threads_share_nothing(method: str) -> None:
    """A trainer's loop in several threads: each merge gives its own bytes, and BLAS has its threads afterwards."""
    blas = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    families_ = [family(10 * number, shape=(24 + 2 * number, 16)) for number in range(4)]
    wanted = [bits(ramerge.merge_state_dicts(*one, method=method)) for one in families_]
    before = threading.active_count()
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ramerge.merge_state_dicts, *families_[n % 4], method=method) for n in range(16)]
        assert [bits(job.result()) for job in jobs] == wanted * 4
    assert threading.active_count() == before
    assert [pool["num_threads"] for pool in threadpoolctl.threadpool_info()] == blas


def test_nothing_is_opened_forked_or_imported() -> None:
    """A merge in a process that watches itself: no file of weights is opened, no process begins, torch stays out."""
    script = """
import sys, numpy as np, ramerge
base = {"w": np.zeros((8, 8), np.float32)}
agents = {"a": {"w": np.eye(8, dtype=np.float32)}, "b": {"w": np.ones((8, 8), np.float32)}}
for method in ("ram+", "ties", "tsvm"):
    ramerge.merge_state_dicts(base, agents, method=method)  # loads kernels, and what Python imports
seen = []
sys.addaudithook(lambda event, args: seen.append((event, args)) if event in WATCHED else None)
WATCHED = "open os.fork os.forkpty os.posix_spawn subprocess.Popen socket.connect os.mkdir os.listdir".split()
for method in ("ram+", "ties", "tsvm"):
    ramerge.merge_state_dicts(base, agents, method=method)
opened = [one for one in seen if not str(one[1][0]).startswith(("/proc/", "/sys/"))]
assert not opened, opened
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_merge_takes_current_values_and_keeps_inputs() -> None:
    base, agents = family()
    kept = bits(base), {name: bits(model) for name, model in agents.items()}
    first = bits(ramerge.merge_state_dicts(base, agents))
    assert (bits(base), {name: bits(model) for name, model in agents.items()}) == kept
    agents["a0"]["model.layers.0.weight"][:] = 0.5
    assert bits(ramerge.merge_state_dicts(base, agents)) != first


def test_arrays_are_read_where_they_are() -> None:
    """The memory of a merge is that of its result, and of a few buffers."""
    rng = np.random.default_rng(0)
    base = {f"{n}.weight": rng.standard_normal((1024, 2048)).astype(np.float32) for n in range(8)}
    agents = {name: {key: one + np.float32(1e-3) for key, one in base.items()} for name in "ab"}
    options = ramerge.Options(threads=1)
    ramerge.merge_state_dicts(base, agents, "task_arithmetic", options=options)
    tracemalloc.start()
    try:
        found = ramerge.merge_state_dicts(base, agents, "task_arithmetic", options=options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    result = sum(one.nbytes for one in found.values())
    assert result <= peak < 1.4 * result


@pytest.mark.parametrize("target", ["new", "base", "agent"])
def test_in_place(target: str) -> None:
    base, agents = family()
    wanted = bits(ramerge.merge_state_dicts(base, agents, method="ties"))
    out = {"new": {name: np.zeros_like(one) for name, one in base.items()}, "base": base, "agent": agents["a1"]}[target]
    held = dict(out)
    result = ramerge.merge_state_dicts(base, agents, method="ties", out=out)
    assert bits(out) == bits(result) == wanted
    assert all(out[name] is held[name] is result[name] for name in held)


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_places_that_overlap_in_part_are_refused(library: str, messages: Messages) -> None:
    memory: Any = np.zeros(12, np.float32)
    if library == "torch":
        memory = importlib.import_module("torch").zeros(12)
    models = {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}
    agents = {"code": {name: 3 * one for name, one in models.items()}}
    merge = partial(ramerge.merge_state_dicts, models, agents, "task_arithmetic")
    with messages.raises(ramerge.PlanError):
        merge(out={"a": memory[:4], "b": memory[3:7]})
    apart = {"a": memory[0:8:2], "b": memory[1:8:2]}  # interleaved
    assert [float(one) for one in merge(out=apart)["b"]] == [3.0] * 4
    one_place = {"a": memory[:4], "b": memory[:4]}
    assert float(merge(out=one_place)["a"][0]) == 3.0


def test_error_restores_tensors_in_place() -> None:
    base, agents = family()
    agents["a0"]["model.layers.2.weight"][3] = np.nan
    before = bits(base)
    with pytest.raises(ramerge.WeightsError, match=r"^agents\.a0: tensor 'model\.layers\.2\.weight' holds"):
        ramerge.merge_state_dicts(base, agents, out=base)
    assert bits(base) == before


def test_errors_name_arguments_and_no_folders_or_flags() -> None:
    base, agents = family()
    with pytest.raises(ramerge.PlanError, match=r"^options\.max_memory: 1,000 bytes are too little"):
        ramerge.merge_state_dicts(base, agents, options=ramerge.Options(max_memory=1000))
    with pytest.raises(ramerge.RecipeError, match=r"^base: is missing, but ram\+ needs it; give its state dict$"):
        ramerge.merge_state_dicts(None, agents)
    ones = {name: np.ones(np.shape(tensor), np.float32) for name, tensor in base.items()}
    entries = {name: {"model": agent, "importance": ones} for name, agent in agents.items()}
    first = next(iter(ones))
    entries["a0"]["importance"] = {**ones, first: np.ones(1, np.float32)}
    with pytest.raises(ramerge.PlanError, match=rf"^agents\.a0\.importance: shapes differ: '{re.escape(first)}'"):
        ramerge.merge_state_dicts(base, entries, "fisher")
    with pytest.raises(ramerge.WeightsError, match=r"^agents\.a0: every merged tensor equals the base's") as error:
        ramerge.merge_state_dicts(base, {**agents, "a0": base}, options=ramerge.Options(strict=True))
    assert "memory:" not in str(error.value)
    [note, *_] = ramerge.merge_state_dicts(base, {**agents, "a0": base}).record.warnings
    assert note.startswith("agents.a0: every merged tensor equals")


def test_misfits_of_out_are_reported_before_merging() -> None:
    base, agents = family()
    out = {name: np.zeros_like(one) for name, one in base.items()}
    del out["model.layers.0.weight"]
    out["model.layers.1.weight"] = out["model.layers.1.weight"].astype(np.float32)
    out["model.layers.2.weight"].flags.writeable = False
    with pytest.raises(ramerge.PlanError) as error:
        ramerge.merge_state_dicts(base, agents, out=out)
    said = error.value.problems
    assert len(said) == 3
    assert "out: lacks 'model.layers.0.weight'" in said[0]
    assert "is F32 [40, 16], and the merged tensor is BF16 [40, 16]" in said[1]
    assert "read-only" in said[2]


def test_many_misfits_are_a_few_lines() -> None:
    base = {f"w{number:02}": np.zeros(2, np.float32) for number in range(30)}
    agents = {"a": {name: np.ones(2, np.float32) for name in base}}
    with pytest.raises(ramerge.PlanError) as error:
        ramerge.merge_state_dicts(base, agents, method="linear", out={})
    (said,) = error.value.problems
    assert said.startswith("out: lacks 'w00', 'w01', ") and " and 2" in said and " more, which the merge has" in said
    with pytest.raises(ramerge.PlanError) as error:
        ramerge.merge_state_dicts(base, agents, method="linear", out={name: np.zeros(3) for name in base})
    assert len(error.value.problems) == 11 and error.value.problems[-1] == "and 20 more"


@pytest.mark.parametrize("agents", [[{"w": np.ones(1)}], {"w"}, None, {1: {"w": np.ones(1)}}])
def test_agents_have_names(agents: Any, messages: Messages) -> None:
    for merge, base in ((ramerge.merge_state_dicts, {"w": np.ones(1)}), (ramerge.merge_tensors, np.ones(1))):
        with messages.raises(ramerge.RecipeError):
            merge(base, agents, method="ram")
    one = {"w": np.ones(1)}
    for label in ("recipe", "config"):
        with messages.raises(ramerge.RecipeError):
            ramerge.merge_state_dicts(one, {"a": one}, method="ram", **{label: [1]})


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"w": [1.0]}, "base: 'w' is a list, neither a NumPy array nor a torch tensor"),
        ({"w": np.array(["x"])}, "base: 'w' is str"),
        ({1: np.ones(1)}, "base: must map names to tensors"),
        (3, "base: must map names to tensors, or be a module; it is a int"),
    ],
)
def test_what_is_no_state_dict_is_refused(wrong: Any, text: str) -> None:
    with pytest.raises(ramerge.RecipeError, match=re.escape(text)):
        ramerge.merge_state_dicts(wrong, {"a": {"w": np.ones(1, np.float32)}})


def test_unknown_keys_of_an_agent_are_refused(messages: Messages) -> None:
    base, agents = family()
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts(base, {"a": {"model": agents["a0"], "importances": base}}, "fisher")


@pytest.mark.parametrize("method", ["fisher", "regmean"])
def test_missing_side_inputs_are_explained_to_callers(method: str, messages: Messages) -> None:
    with messages.raises(ramerge.RecipeError) as caught:
        ramerge.merge_state_dicts(*family(), method)
    assert "--" not in str(caught.value)  # no flags


def test_keys_that_are_for_folders_are_refused(messages: Messages) -> None:
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts(*family(), recipe={"prompts": {"a0": "code.jsonl"}})


def test_strange_arrays() -> None:
    """Views, other byte orders and read-only arrays are merged as their values."""
    base, agents = family()
    plain_ = {name: one.astype(np.float32) for name, one in base.items()}
    trained = {agent: {name: one.astype(np.float32) for name, one in model.items()} for agent, model in agents.items()}
    wanted = ramerge.merge_state_dicts(plain_, trained)
    strange = {
        agent: {
            "model.layers.0.weight": np.asfortranarray(model["model.layers.0.weight"]),
            "model.layers.1.weight": model["model.layers.1.weight"].astype(">f4"),
            "model.layers.2.weight": np.repeat(model["model.layers.2.weight"], 2, axis=1)[:, ::2],
        }
        for agent, model in trained.items()
    }
    for model in trained.values():
        for array in model.values():
            array.flags.writeable = False
    assert bits(ramerge.merge_state_dicts(plain_, strange)) == bits(wanted)
    swapped = {name: one.astype(">f4") for name, one in plain_.items()}
    assert bits(ramerge.merge_state_dicts(swapped, trained)) == bits(wanted)


def test_tied_tensors_are_counted_and_merged_once(messages: Messages) -> None:
    """`state_dict()` has tied embeddings twice, files once; RAM+ counts elements, so its lambda depends on it."""
    base, agents = family()
    once = {"model.embed_tokens.weight": base.pop("model.layers.0.weight"), **base}
    own = {a: {"model.embed_tokens.weight": m.pop("model.layers.0.weight"), **m} for a, m in agents.items()}
    wanted = ramerge.merge_state_dicts(once, own)
    twice = {**once, "lm_head.weight": once["model.embed_tokens.weight"]}
    both = {a: {**m, "lm_head.weight": m["model.embed_tokens.weight"]} for a, m in own.items()}
    found = ramerge.merge_state_dicts(twice, both)
    assert found["lm_head.weight"] is found["model.embed_tokens.weight"]
    assert list(found) == list(twice)
    assert bits({name: one for name, one in found.items() if name != "lm_head.weight"}) == bits(wanted)
    copied = {a: {**m, "lm_head.weight": m["model.embed_tokens.weight"].copy()} for a, m in own.items()}
    assert bits(ramerge.merge_state_dicts(twice, copied)) == bits(found)
    copied["a0"]["lm_head.weight"][0, 0] += 1
    with messages.raises(ramerge.WeightsError):
        ramerge.merge_state_dicts(twice, copied)


@pytest.mark.parametrize("tower", [False, True])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "base_model.model.", "policy."])
def test_tied_output_embedding_is_compared_under_any_prefix(prefix: str, tower: bool, messages: Messages) -> None:
    base = {"model.embed_tokens.weight": np.ones((6, 4), np.float32)}
    base |= {f"model.layers.{layer}.mlp.up_proj.weight": np.ones((4, 4), np.float32) for layer in range(2)}
    agent = {f"{prefix}{name}": 2 * values for name, values in base.items()}
    if tower:
        agent[f"{prefix}visual.blocks.0.attn.weight"] = np.ones((3, 3), np.float32)
    head, embedding = f"{prefix}lm_head.weight", 2 * base["model.embed_tokens.weight"]
    notes = ramerge.merge_state_dicts(base, {"a": {**agent, head: embedding}}).record.notes
    assert any("'lm_head.weight' must equal 'model.embed_tokens.weight'" in note for note in notes)
    assert any("next to the text model" in note for note in notes) is tower
    with messages.raises(ramerge.WeightsError):
        ramerge.merge_state_dicts(base, {"a": {**agent, head: embedding + 1}})
    with messages.raises(ramerge.PlanError):
        ramerge.merge_state_dicts(base, {"a": {**agent, head: np.ones((7, 4), np.float32)}})
    with messages.raises(ramerge.WeightsError):
        ramerge.merge_state_dicts(base, {"a": {**agent, f"wrapper.{head}": embedding + 1}})


def test_without_a_base() -> None:
    _, agents = family()
    found = ramerge.merge_state_dicts(None, agents, method="linear")
    assert bits(found) == bits(ramerge.merge_state_dicts(agents["a0"], agents, method="linear"))


def test_a_cluster_is_refused(messages: Messages) -> None:
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts(*family(), options=ramerge.Options(ray=ramerge.Ray()))


def test_auto_is_refused(messages: Messages) -> None:
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts(*family(), method="auto")


@pytest.mark.parametrize("method", one_of_each_kind(ROWS))
def test_one_tensor(method: str, tmp_path: Path) -> None:
    _, base, agents, extra = plain(tmp_path, method)
    name = next(iter(base))
    only = {agent: arrays({name: model[name]}) for agent, model in agents.items()}
    models, held = with_sides(only, extra), arrays({name: base[name]})
    for agent in models if extra else ():
        models[agent] = {key: {name: values[name]} for key, values in models[agent].items()}
    wanted = ramerge.merge_state_dicts(held, models, method)[name]
    single = {
        agent: {key: values[name] for key, values in model.items()} if extra else model[name]
        for agent, model in models.items()
    }
    found = ramerge.merge_tensors(held[name], single, method=method, name=name)
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()
    out = np.zeros_like(held[name])
    assert ramerge.merge_tensors(held[name], single, method=method, name=name, out=out) is out
    assert out.tobytes() == wanted.tobytes()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("shape", [(0, 4, 4), (0,)])
@pytest.mark.parametrize("shared", [False, True], ids=["of torch", "of NumPy"])
def test_tensors_of_torch_without_elements(shape: tuple[int, ...], shared: bool) -> None:
    import torch

    def model(value: float) -> dict[str, Any]:
        none = torch.from_numpy(np.zeros(shape, np.float32)) if shared else torch.zeros(shape)
        return {"model.layers.0.weight": torch.full((4, 4), value), "model.layers.0.mlp.experts.up_proj": none}

    found = ramerge.merge_state_dicts(model(0.0), {"code": model(0.1), "tool": model(0.2)}, "task_arithmetic")
    assert {name: each.shape for name, each in found.items()} == {n: each.shape for n, each in model(0.0).items()}
    target = model(0.0)
    assert (
        ramerge.merge_state_dicts(model(0.0), {"code": model(0.1)}, "task_arithmetic", out=target).keys()
        == found.keys()
    )
    assert torch.equal(target["model.layers.0.weight"], model(0.1)["model.layers.0.weight"])


@pytest.mark.needs("torch")
def test_modules_of_torch() -> None:
    """Parameters that need gradients, tied, with buffers; in place, and out of it."""
    import torch

    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(12, 8)
            self.lm_head = torch.nn.Linear(8, 12, bias=False)
            self.lm_head.weight = self.embed_tokens.weight
            self.norm = torch.nn.LayerNorm(8)
            self.register_buffer("steps", torch.tensor(3))

    base = Model().bfloat16()
    agents = {name: Model().bfloat16() for name in ("code", "tool")}
    for model in agents.values():
        model.load_state_dict(
            {
                name: one + 0.01 * torch.randn_like(one) if one.is_floating_point() else one
                for name, one in base.state_dict().items()
            }
        )
        assert model.lm_head.weight is model.embed_tokens.weight
    found = ramerge.merge_state_dicts(base, agents)
    assert found["lm_head.weight"] is found["embed_tokens.weight"]
    target = Model().bfloat16()
    ramerge.merge_state_dicts(base, agents, out=target)
    assert all(torch.equal(found[name], one) for name, one in target.state_dict().items())
    assert target.embed_tokens.weight.requires_grad
    assert target.lm_head.weight is target.embed_tokens.weight
    base.load_state_dict(found)


@pytest.mark.needs("torch")
def test_device_tensors_are_copied_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No accelerator is needed: what `_OnDevice` does for one is done for all."""
    import torch

    from ramerge import state_dicts

    base, agents = family(shape=(64, 32))
    wanted = bits(ramerge.merge_state_dicts(base, agents))

    def tensors(model: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {name: torch.from_numpy(one.view(np.uint8)).view(torch.bfloat16) for name, one in model.items()}

    taken: list[int] = []

    class Device(state_dicts._DeviceTensorBytes):
        def __getitem__(self, part: slice) -> Any:
            found = super().__getitem__(part)
            taken.append(len(found))
            return found

    of_torch = state_dicts._hold_torch
    monkeypatch.setattr(
        state_dicts, "_hold_torch", lambda one: of_torch(one)._replace(data=Device(one.reshape(-1).view(torch.uint8)))
    )
    found = ramerge.merge_state_dicts(tensors(base), {name: tensors(model) for name, model in agents.items()})
    as_arrays = {name: one.view(torch.uint8).numpy().view(ml_dtypes.bfloat16) for name, one in found.items()}
    assert bits(as_arrays) == wanted
    assert taken and max(taken) <= 64 * 32 * 2


VIEWS: dict[str, Any] = {
    "column": lambda torch, x: x[..., :1].squeeze(-1) if x.ndim else x,
    "one row": lambda torch, x: x[:1] if x.ndim else x,
    "steps": lambda torch, x: x[1::2] if x.ndim else x,
    "none": lambda torch, x: x[..., 2:2] if x.ndim else x,
    "transposed": lambda torch, x: x.permute(*reversed(range(x.ndim))),
    "strides past the end": lambda torch, x: x.as_strided((1, 1), (3, 5)) if x.numel() else x,
    "expanded": lambda torch, x: x[None].expand(3, *x.shape),
    "negated": lambda torch, x: torch._neg_view(x),
    "imaginary part": lambda torch, x: torch.complex(x.float(), x.float()).conj().imag.to(x.dtype),
    "of a gradient": lambda torch, x: x.detach().requires_grad_().clone(),
    "parameter": lambda torch, x: torch.nn.Parameter(x.detach()),
    "buffer": lambda torch, x: torch.nn.Buffer(x.detach()),
    "subclass": lambda torch, x: x.as_subclass(type("Own", (torch.Tensor,), {})),
}


@pytest.mark.needs("torch")
@settings(max_examples=at_most(150))
@given(data=st.data())
def test_views_of_torch(data: st.DataObject) -> None:
    """The values of a view in any role are merged as those of a copy, and `out` is written or refused."""
    import torch

    shape = data.draw(st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=2))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
    own, other = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (1, 2))
    steps = data.draw(st.lists(st.sampled_from([*VIEWS]), max_size=3))
    for step in steps:
        if own.ndim > 2:
            break
        own, other = VIEWS[step](torch, own), VIEWS[step](torch, other)

    def copy(x: Any) -> Any:
        return x.detach().as_subclass(torch.Tensor).resolve_neg().clone(memory_format=torch.contiguous_format)

    wanted = ramerge.merge_tensors(copy(own), {"a": copy(other)}, method="ram")
    assert torch.allclose(wanted.double(), copy(other).double(), atol=0.1)
    for base, agent in ((own, copy(other)), (copy(own), other), (own, other)):
        assert torch.equal(ramerge.merge_tensors(base, {"a": agent}, method="ram"), wanted)
    base, agent = copy(own), copy(other)
    places = torch.arange(own.untyped_storage().nbytes()).as_strided(own.shape, own.stride(), own.storage_offset())
    if places.unique().numel() < own.numel():
        with pytest.raises(ramerge.PlanError, match="out: 'weight' cannot be written in place"):
            ramerge.merge_tensors(base, {"a": agent}, method="ram", out=own)
        assert torch.equal(copy(own), base)
    else:
        assert ramerge.merge_tensors(base, {"a": agent}, method="ram", out=own) is own
        assert torch.equal(copy(own), wanted)


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_views_with_overlapping_elements_are_not_written(library: str, messages: Messages) -> None:
    place = np.zeros(8, np.float32)
    out: Any = np.lib.stride_tricks.as_strided(place, (3, 3), (8, 4))
    if library == "torch":
        import torch

        out = torch.from_numpy(place).as_strided((3, 3), (2, 1))
    with messages.raises(ramerge.PlanError):
        ramerge.merge_tensors(np.zeros((3, 3), np.float32), {"a": np.eye(3, dtype=np.float32)}, method="ram", out=out)
    assert not place.any()


@pytest.mark.needs("torch")
def test_views_of_one_storage_are_not_tied() -> None:
    import torch

    one, swapped = torch.arange(1.0, 5.0), np.arange(1, 5, dtype=np.float32)
    negated = {"x": one, "y": torch._neg_view(one)}
    assert ramerge.merge_state_dicts(negated, {"a": negated}, "ram")["y"].tolist() == (-one).tolist()
    orders = {"x": swapped, "y": swapped.view(">f4")}
    assert ramerge.merge_state_dicts(orders, {"a": orders}, "ram")["y"].tolist() == orders["y"].tolist()


@pytest.mark.parametrize("differ", [False, True])
def test_tied_tensors_of_out_take_one_result(differ: bool, messages: Messages) -> None:
    base = {"x": np.zeros(4, np.float32), "y": np.zeros(4, np.float32)}
    agent = {"x": np.ones(4, np.float32), "y": np.full(4, 1 + differ, np.float32)}
    place = np.zeros(4, np.float32)
    out = {"x": place, "y": place}
    if differ:
        with messages.raises(ramerge.WeightsError):
            ramerge.merge_state_dicts(base, {"a": agent}, "ram", out=out)
        assert not place.any()
    else:
        ramerge.merge_state_dicts(base, {"a": agent}, "ram", out=out)
        assert place.tolist() == [1] * 4


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "make",
    [
        "torch.zeros(2, device='meta')",
        "torch.zeros(2, 2).to_sparse()",
        "torch.nn.UninitializedParameter()",
        "(lambda x: (x.untyped_storage().resize_(0), x)[1])(torch.zeros(2))",
        "torch._to_functional_tensor(torch.zeros(2))",
        "torch.zeros(2, dtype=torch.complex128)",
    ],
)
def test_tensors_of_torch_that_are_refused(make: str, messages: Messages) -> None:
    import torch

    tensor = eval(make, {"torch": torch})  # noqa: S307
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_tensors(tensor, {"a": torch.zeros(2)})


@pytest.mark.needs("torch")
def test_tensors_inside_of_a_transformation_are_refused(messages: Messages) -> None:
    import torch

    with messages.raises(ramerge.RecipeError):
        torch.vmap(lambda x: ramerge.merge_tensors(x, {"a": x}, method="ram"))(torch.ones(2, 4))


def test_masked_arrays_are_refused(messages: Messages) -> None:
    base, masked = {"w": np.zeros(2, np.float32)}, np.ma.masked_array(np.ones(2, np.float32), [True, False])
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts(base, {"a": {"w": masked}}, method="ram")


def test_keys_of_a_recipe_are_no_parameters(messages: Messages) -> None:
    base, agents = {"w": np.zeros(2, np.float32)}, {"a": {"w": np.ones(2, np.float32)}}
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts(base, agents, method="linear", dtype="float16")
    with messages.raises(ramerge.PlanError):
        ramerge.merge_state_dicts(base, agents, method="linear", out={"w": np.zeros(2, np.float16)})


def test_peft_model_is_always_refused(messages: Messages) -> None:
    base = {"layers.0.q_proj.weight": np.zeros((4, 4), np.float32)}
    tuned = {
        "base_model.model.layers.0.q_proj.base_layer.weight": np.zeros((4, 4), np.float32),
        "base_model.model.layers.0.q_proj.lora_A.default.weight": np.ones((2, 4), np.float32),
        "base_model.model.layers.0.q_proj.lora_B.default.weight": np.ones((4, 2), np.float32),
    }
    allow = {"missing_tensors": True, "extra_tensors": True}
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts(base, {"lora": tuned, "code": base}, recipe={"allow": allow})


def _nested_in_itself() -> dict[str, object]:
    config: dict[str, object] = {}
    config["again"] = config
    return config


@pytest.mark.parametrize("config", [_nested_in_itself(), {"sizes": {(1, 2): 3}}], ids=["cycle", "key"])
def test_configs_without_json_are_refused(config: dict[str, object], messages: Messages) -> None:
    tensor = np.zeros(4, np.float32)
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts({"w": tensor}, {"a": {"w": tensor + 1}}, method="ram", config=config)


def test_names_with_half_a_character_are_refused(messages: Messages) -> None:
    tensor = np.zeros(4, np.float32)
    with messages.raises(ramerge.RecipeError):
        ramerge.merge_state_dicts({"\ud800": tensor}, {"a": {"\ud800": tensor + 1}}, method="ram")


def test_norms_in_another_convention_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    base = {"model.layers.0.mlp.up_proj.weight": rng.normal(0, 0.02, (32, 32)).astype(np.float32)}
    base["model.norm.weight"] = rng.normal(1, 0.2, 32).astype(np.float32)
    agents = {}
    for number, name in enumerate(("code", "tool"), 1):
        moved = {key: value + rng.normal(0, 0.001, value.shape).astype(np.float32) for key, value in base.items()}
        agents[name] = moved | {"model.norm.weight": moved["model.norm.weight"] + np.float32(number % 2)}
    warnings = ramerge.merge_state_dicts(base, agents, method="task_arithmetic").record.warnings
    (warning,) = (text for text in warnings if "norm" in text)
    assert "code" in warning and "plus 1" in warning
