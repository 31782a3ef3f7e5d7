"""What rounding to the output's dtype does to a merge: counted while merging, said wherever it matters."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.foundation.errors import InputError
from tests.checkpoints import Tensors, floats, read_checkpoint, recipe, write_checkpoint, write_simple
from tests.cli.test_cli import ramerge as command
from tests.messages import Messages
from tests.reference import Stored

SHAPES = {"model.layers.0.weight": (33, 70), "model.layers.1.weight": (7,), "model.norm.weight": (64,)}
FULL = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


def family(folder: Path, base: str, agents: Mapping[str, str], *, step: float = 3e-5) -> list[str]:
    """A base, and agents that move most elements by about `step`, in these dtypes."""
    rng = np.random.default_rng(5)
    values = {name: floats(rng.normal(0, 0.02, shape), base) for name, shape in SHAPES.items()}
    write_checkpoint(folder / "base", values)
    for agent, dtype in agents.items():
        tensors = {}
        for name, stored in values.items():
            change = rng.normal(0, step, stored.bits.shape) * (rng.random(stored.bits.shape) < 0.7)
            tensors[name] = floats(stored.numbers(np.float64) + change, dtype)
        write_checkpoint(folder / agent, tensors)
    return list(agents)


def expected(base: Tensors, agent: Tensors, exact: Tensors, stored: Tensors, beyond: float) -> tuple[int, int]:
    """An agent's updates and those that are erased, from the merge before and after rounding."""
    updates = erased = 0
    for name, tensor in base.items():
        real = np.float64 if "F64" in {tensor.dtype, agent[name].dtype, exact[name].dtype} else np.float32
        b = tensor.numbers(real)
        moved = np.abs(agent[name].numbers(real) - b) > real(beyond)
        update = moved & (exact[name].numbers(real) != b)
        same = stored[name].numbers(real) == rounded(tensor, stored[name].dtype).numbers(real)
        updates += int(update.sum())
        erased += int((update & same).sum())
    return updates, erased


def rounded(tensor: Stored, dtype: str) -> Stored:
    return floats(tensor.numbers(np.float64), dtype)


METHODS = {
    "ram": ({}, 1e-5),
    "ram+": ({"r": 0.3}, 1e-5),
    "ram+s": ({"shared": "ties", "density": 1.0}, 1e-5),
    "task_arithmetic": ({"scale": 0.4}, 0.0),
    "ties": ({"density": 1.0}, 0.0),
    "dare": ({"p": 0.5}, 0.0),
    "wudi": ({}, 0.0),
}
SOME = ("ram+", "dare", "wudi")


# What counts is the loop's, so that one method of each kind meets every combination of dtypes.
FORMATS = [("BF16", "BF16", None), ("BF16", "F32", None), ("F16", "F16", None), ("F32", "F32", "BF16")]
# every method in one format, some methods in all, and of these two in the fast tier
FAST = ("ram+s", "task_arithmetic")


def _marks(method: str, formats: tuple[str, str, str | None]) -> list[pytest.MarkDecorator]:
    if formats is FORMATS[0]:
        return [] if method in FAST else [pytest.mark.full]
    return [pytest.mark.full] if method in SOME else [pytest.mark.full, pytest.mark.thorough]


CASES = [pytest.param(method, *formats, marks=_marks(method, formats)) for method in METHODS for formats in FORMATS]


@pytest.mark.parametrize(("method", "base", "agent", "output"), CASES)
def test_the_merge_counts_what_rounding_erases(
    method: str, base: str, agent: str, output: str | None, tmp_path: Path
) -> None:
    names = family(tmp_path, base, {"code": agent, "tool": agent, "math": base})
    parameters, beyond = METHODS[method]
    more = {"dtype": FULL[output]} if output else {}
    record = ramerge.merge(recipe(tmp_path, names, method, parameters=parameters, **more), tmp_path / "out")
    ramerge.merge(recipe(tmp_path, names, method, parameters=parameters, dtype="float32"), tmp_path / "exact")
    first, exact, stored = (read_checkpoint(tmp_path / name) for name in ("base", "exact", "out"))
    for one in record.agents.values():
        updates, erased = expected(first, read_checkpoint(tmp_path / one.name), exact, stored, beyond)
        assert (one.updates, one.erased) == (updates, erased) and updates > erased
        assert one.erased_share == erased / updates
    if agent == "F32":
        assert any(one.erased for one in record.agents.values())


def test_nothing_is_counted_where_rounding_loses_nothing(tmp_path: Path) -> None:
    names = family(tmp_path, "BF16", {"code": "F32", "tool": "BF16"})
    record = ramerge.merge(recipe(tmp_path, names, dtype="float32"), tmp_path / "out")
    assert not record.warnings and "erased" not in next(iter(record.agents.values())).values
    linear = ramerge.merge(recipe(tmp_path, names, "linear"), tmp_path / "linear")
    assert "erased" not in next(iter(linear.agents.values())).values  # its agents are merged without a base


@pytest.fixture
def lossy(tmp_path: Path) -> Path:
    """The recipe of a merge that rounds most of float32 agents away."""
    names = family(tmp_path, "BF16", {"code": "F32", "tool": "F32"}, step=2e-5)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe(tmp_path, names)))
    return path


def test_large_rounding_loss_is_warned_of(lossy: Path, tmp_path: Path, messages: Messages) -> None:
    record = ramerge.merge(lossy, tmp_path / "out")
    (warning,) = record.warnings
    share = next(iter(record.agents.values())).erased_share
    assert share > 0.1 and f"{share:.0%} of the changes of code" in warning
    messages.check(warning)
    said = command("merge", str(lossy), str(tmp_path / "quiet"), "--quiet")
    assert said.returncode == 0 and warning in said.stderr and not said.stdout
    with messages.raises(InputError):
        ramerge.merge(lossy, tmp_path / "strict", options=ramerge.Options(strict=True))
    assert not (tmp_path / "strict").exists()
    # following the advice helps
    said = command("merge", str(lossy), str(tmp_path / "wide"), "--quiet", "--dtype", "float32", "--strict")
    assert said.returncode == 0 and not said.stderr


@pytest.mark.full
def test_every_command_and_the_card_name_the_dtypes(lossy: Path, tmp_path: Path) -> None:
    dtypes = "base bfloat16, code float32, tool float32"
    planned = command("plan", str(lossy), str(tmp_path / "out"))
    assert f"dtypes       {dtypes}, output bfloat16" in planned.stdout
    assert (
        "warning: code and tool are float32, the output is bfloat16: updates" in planned.stderr
        and not planned.returncode
    )
    assert command("plan", str(lossy), "--strict").returncode == 2
    merged = command("merge", str(lossy), str(tmp_path / "out"))
    assert f"dtypes: {dtypes}, output bfloat16" in merged.stdout
    assert re.search(r"  erased +effective\n", merged.stdout) and re.search(r" [\d.]+ of [\d.]+\n", merged.stdout)
    assert f"Inputs: {dtypes}. Output: bfloat16." in (tmp_path / "out/README.md").read_text()
    record = json.loads((tmp_path / "out/ramerge.json").read_text())
    assert record["input_dtypes"] == {"base": "bfloat16", "code": "float32", "tool": "float32"}
    analyzed = command("analyze", str(lossy))
    assert f"dtypes: {dtypes}, output bfloat16" in analyzed.stdout
    assert "warning: rounding to bfloat16 erases" in analyzed.stderr


@pytest.mark.full
def test_analysis_measures_the_recipes_method_and_dtype(lossy: Path, tmp_path: Path) -> None:
    record = ramerge.merge(lossy, tmp_path / "out")
    stored, wide = ramerge.analyze(lossy), ramerge.analyze({**json.loads(lossy.read_text()), "dtype": "float32"})
    assert stored.method == "ram+" and stored.warnings == record.warnings
    for one in record.agents.values():
        assert stored.rounding[one.name]["erased"] == one.erased
    for narrow, exact in zip(stored.model.agents, wide.model.agents, strict=True):
        assert narrow.fates["merge"].retained < 0.8 * exact.fates["merge"].retained
        assert exact.fates["merge"].retained > exact.fates["ram"].retained  # lambda is above 1
        # a unit in the last place of float32 is much smaller than one of bfloat16
        assert np.argmax(exact.ulps[1:]) > np.argmax(narrow.ulps[1:]) + 10
    assert not wide.rounding and not wide.warnings


@pytest.mark.full
@pytest.mark.parametrize("method", ["ram", "task_arithmetic", "ties"])
def test_analysis_predicts_the_merges_loss(method: str, tmp_path: Path) -> None:
    source = recipe(tmp_path, family(tmp_path, "BF16", {"code": "F32", "tool": "BF16"}), method)
    analysis = ramerge.analyze(source)
    ramerge.merge(source, tmp_path / "out")
    base, out = read_checkpoint(tmp_path / "base"), read_checkpoint(tmp_path / "out")
    for agent in analysis.model.agents:
        own, kept = read_checkpoint(tmp_path / agent.name), 0.0
        whole = 0.0
        for name, tensor in base.items():
            b = tensor.numbers(np.float32)
            tau = own[name].numbers(np.float32) - b
            tau = np.where(np.abs(tau) > np.float32(1e-5), tau, 0).astype(np.float64)
            kept += float((tau * (out[name].numbers(np.float32) - b)).sum())
            whole += float((tau**2).sum())
        assert agent.fates["merge"].retained == pytest.approx(kept / whole, rel=1e-6)


def test_unmeasurable_method_is_named(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    analysis = ramerge.analyze(recipe(tmp_path, names, "wudi"))
    assert analysis.method == "ram" and any("wudi" in note for note in analysis.notes)


def test_widest_keeps_what_the_inputs_hold(tmp_path: Path) -> None:
    names = family(tmp_path, "BF16", {"code": "F32", "tool": "BF16"})
    half = {name: rounded(tensor, "F16") for name, tensor in read_checkpoint(tmp_path / "tool").items()}
    tensors = read_checkpoint(tmp_path / "code")
    tensors["model.norm.weight"] = rounded(tensors["model.norm.weight"], "BF16")
    write_checkpoint(tmp_path / "code", tensors)
    write_checkpoint(tmp_path / "tool", {**half, "model.norm.weight": rounded(half["model.norm.weight"], "BF16")})
    record = ramerge.merge(recipe(tmp_path, names, dtype="widest"), tmp_path / "out")
    assert {name: str(tensor.dtype) for name, tensor in read_checkpoint(tmp_path / "out").items()} == {
        "model.layers.0.weight": "F32",
        "model.layers.1.weight": "F32",
        "model.norm.weight": "BF16",
    }
    assert record.dtype == "mixed"
    # transformers loads all of it in the dtype that the configuration states
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "float32"
    only = ramerge.merge(recipe(tmp_path, ["tool"], dtype="widest"), tmp_path / "half")
    assert only.dtype == "mixed"  # bfloat16 and float16 both fit in float32 only


def test_widest_of_equal_dtypes_is_that_dtype(tmp_path: Path) -> None:
    names = family(tmp_path, "BF16", {"code": "BF16"})
    assert ramerge.merge(recipe(tmp_path, names, dtype="widest"), tmp_path / "out").dtype == "bfloat16"
    ramerge.merge(recipe(tmp_path, names), tmp_path / "plain")
    left, right = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "plain"))
    assert left == right


def test_where_nothing_is_counted_headers_warn(tmp_path: Path) -> None:
    names = family(tmp_path, "BF16", {"code": "F32", "tool": "BF16"})
    (warning,) = ramerge.merge(recipe(tmp_path, names, "linear"), tmp_path / "out").warnings
    assert "code is float32" in warning and "not counted, because linear does not look at the base" in warning
    rules = [{"match": "*norm*", "take": "code"}]
    record = ramerge.merge(recipe(tmp_path, names, rules=rules), tmp_path / "taken")
    assert any("1 tensor that rules take from agents" in warning for warning in record.warnings)


def test_the_advised_dtype_is_one_that_loses_nothing(tmp_path: Path, messages: Messages) -> None:
    names = family(tmp_path, "F32", {"code": "F64"}, step=1e-9)
    source = recipe(tmp_path, names, "task_arithmetic")
    (warning,) = ramerge.merge(source, tmp_path / "out").warnings
    messages.check(warning)
    assert not ramerge.merge({**source, "dtype": "float64"}, tmp_path / "wide").warnings


def test_without_a_base_only_agents_have_dtypes(tmp_path: Path) -> None:
    names = family(tmp_path, "BF16", {"code": "F32", "tool": "BF16"})
    source = recipe(tmp_path, names, "linear")
    del source["base"]
    record = ramerge.merge(source, tmp_path / "out")
    assert record.input_dtypes == {"code": "float32", "tool": "bfloat16"}
